"""Where the attention goes when a key is hidden: step by step, layer by layer, of the queries that lose it.

Problems are written three times in one program: with nothing hidden, with the first token hidden, and with the
strongest key of every head hidden. Only the queries that lose keys are looked at, also where nothing is hidden: with
rows="all" the whole map, else the newest query, or those being decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxsink.recording.attention import diagonal, received, where_hidden
from jaxsink.recording.reductions import head_mean, top
from jaxsink.runs.arrays import Arrays
from jaxsink.runs.stopping import IsStopped, StoppedError
from jaxsink.sampling.base import Sampler
from jaxsink.sinks.choices import Rows
from jaxsink.sinks.mask import MaskSinks
from jaxsink.sinks.turns import Turns
from jaxsink.study.measurements import KeptAsArrays, write
from jaxsink.study.subject import Subject

if TYPE_CHECKING:
    from jaxsink.study.measure import Study

PROBLEMS = 8  # at least; as many as a study records
WRITTEN = 12  # tokens of an autoregressive model: what happens happens at once
HIDDEN = ("nothing", "first", "top")
RECORD = {
    "share": where_hidden(received()).then(head_mean()),
    "largest": where_hidden(received()).then(top(1)),
    "diagonal": where_hidden(diagonal()),
}


@dataclass(frozen=True)
class Succession(KeptAsArrays):
    """For each of HIDDEN: "NAME share" f32[T,L,B,S], the share of the attention that each token position receives, mean over
    heads; "NAME largest" and "NAME diagonal" f32[T,L,B], of the strongest key of a head and of the query's own; and "NAME
    taken" bool[T,B], the steps that a sequence took."""

    rows: Rows

    def path(self, study: Study, subject: Subject) -> Path:
        name = study.hash(subject, self.sampler(subject), self.rows, self.problems(study))
        return study.folder / "succession" / subject.name / f"{name}.npz"

    def describe(self, study: Study) -> str:
        return f"where the attention goes, {self.rows} rows"

    def sequences(self, study: Study) -> int:
        return self.problems(study) * len(HIDDEN)

    def problems(self, study: Study) -> int:
        return max(PROBLEMS, study.generations)

    def clusters(self, study: Study, subject: Subject) -> list[str]:
        """The distinct problem behind each sequence."""
        return [question.cluster for question in subject.exam(self.problems(study), study.seed).questions]

    def sampler(self, subject: Subject) -> Sampler:
        sampler = subject.sampler
        return sampler if subject.is_diffusion else sampler.with_length(min(WRITTEN, sampler.response_length))

    def compute(self, study: Study, subject: Subject, is_stopped: IsStopped) -> Arrays:
        exam, found = subject.exam(self.problems(study), study.seed), dict[str, list[np.ndarray]]()
        rows = None if subject.is_diffusion and self.rows == "all" else self.rows  # on a cache, all that run
        policies = (None, MaskSinks(1, "first", rows=rows), MaskSinks(1, rows=rows))
        for question in exam.questions:
            if is_stopped():
                raise StoppedError
            asked = [question] * len(HIDDEN)
            out = write(
                study, subject, exam, asked, self.sampler(subject), record=RECORD, intervene=Turns(policies)
            ).on_host()
            start, taken = int(out.mask[0].argmax()), np.arange(len(out.recorded_steps))[:, None] < out.recorded_of()
            share = np.roll(np.asarray(out.record["share"]), -start, axis=-1)
            total = np.maximum(share.sum(axis=-1, keepdims=True), 1e-30)
            largest = np.asarray(out.record["largest"]["score"])[..., 0].mean(axis=-1) / total[..., 0]
            parts = {"share": share / total, "largest": largest, "diagonal": out.record["diagonal"].mean(axis=-1)}
            for number, name in enumerate(HIDDEN):
                for kind, values in parts.items():
                    found.setdefault(f"{name} {kind}", []).append(values[:, :, number : number + 1])
                found.setdefault(f"{name} taken", []).append(taken[:, number : number + 1])
        return {name: np.concatenate(parts, axis=1 if name.endswith("taken") else 2) for name, parts in found.items()}
