"""What to keep of each layer, `jaxsink.record`: recorders read a tap of the network, and say how query blocks join.

A recorder is a traceable function of a tap (jaxsink/nn/taps.py), with the name of the tap that it reads. The ready-made
ones below work on any query block, so they cost no S x S memory under the blocked backend. Any other function may be passed
as it is: it then reads the tap "attention", and sees the whole map.

    record = {"received": received(), "entropy": row_entropy(), "mine": lambda tap: tap.probs.max(axis=(2, 3))}

gives the same dictionary back in `out.record`, each leaf with a leading layer axis. `received()` alone gives one array. A
function of another tap is wrapped: `Recorder(lambda tap: tap.vectors.mean(axis=1), tap="residual")`.
"""

from __future__ import annotations

from jaxsink.nn.batch import KINDS as QUERY_KINDS
from jaxsink.nn.pass_end import TunedLens
from jaxsink.nn.recorder import Recorder, compile_record
from jaxsink.nn.taps import Tap, VectorTap
from jaxsink.recording.attention import (
    diagonal,
    dropped,
    extra_sink,
    last_row,
    maps,
    received,
    received_by_query,
    row_entropy,
    where_hidden,
)
from jaxsink.recording.channels import channels
from jaxsink.recording.key_parts import contribution, logit_parts
from jaxsink.recording.lens import lens, lens_logits
from jaxsink.recording.norms import head_norm, key_norm, mlp_norm, residual_norm, value_norm
from jaxsink.recording.vectors import (
    attention_output,
    embedding,
    final_norm,
    head_outputs,
    head_values,
    hidden,
    hidden_max,
    mlp_output,
    residual,
    residual_before,
    value_vectors,
)

__all__ = [
    "QUERY_KINDS",
    "Recorder",
    "Tap",
    "TunedLens",
    "VectorTap",
    "attention_output",
    "channels",
    "compile_record",
    "contribution",
    "diagonal",
    "dropped",
    "embedding",
    "extra_sink",
    "final_norm",
    "head_norm",
    "head_outputs",
    "head_values",
    "hidden",
    "hidden_max",
    "key_norm",
    "last_row",
    "lens",
    "lens_logits",
    "logit_parts",
    "maps",
    "mlp_norm",
    "mlp_output",
    "received",
    "received_by_query",
    "residual",
    "residual_before",
    "residual_norm",
    "row_entropy",
    "value_norm",
    "value_vectors",
    "where_hidden",
]
