"""Models that are told the noise level. That they equal plain float64 code is among the tests of all families."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import JaxsinkError, ModelConfig
from jaxsink.nn.batch import Batch
from jaxsink.nn.parameters import named_leaves
from jaxsink.recording import recorders as record

pytestmark = pytest.mark.usefixtures("quick_compilation")

GIDD, MDLM, BD3LM = (FAMILIES[name] for name in ("gidd", "mdlm", "bd3lm"))


def with_masks(config: ModelConfig, share: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Sequences whose first real tokens are masks, and their padding."""
    tokens, mask = sequences(config, len(share))
    tokens[tokens == config.mask_id] = 0
    for sequence, real, part in zip(tokens, mask, share, strict=True):
        there = np.flatnonzero(real)
        sequence[there[: round(part * len(there))]] = config.mask_id
    return tokens, mask


@pytest.mark.parametrize(("config", "told"), [(GIDD, lambda t: t), (MDLM, lambda t: -np.log(1 - 0.999 * t))])
def test_a_model_is_told_the_share_of_masks(config: ModelConfig, told) -> None:
    model = lively(config)
    tokens, mask = with_masks(config, (0.2, 1.0, 0.0))
    tokens[:, -4:][~mask[:, -4:]] = config.mask_id  # padding is no noise
    level = np.array([tokens[n, mask[n]].tolist().count(config.mask_id) / mask[n].sum() for n in range(3)])
    assert level.tolist() == [0.2, 1.0, 0.0]
    ours = jaxsink.forward(model, tokens, mask).logits
    given = jaxsink.forward(model, tokens, mask, time=told(level)).logits
    np.testing.assert_allclose(ours[mask], given[mask], atol=1e-5)
    other = jaxsink.forward(model, tokens, mask, time=told(level) + np.array([0, 0.3, 0])).logits
    np.testing.assert_array_equal(given[::2], other[::2])  # each sequence has its own
    assert np.abs(ours - other)[1][mask[1]].max() > 1e-2


def test_a_constant_level_is_not_looked_at() -> None:
    model = lively(BD3LM)
    tokens, mask = with_masks(BD3LM, (0.5, 0.5, 0.5))
    plain = jaxsink.forward(model, tokens, mask).logits
    np.testing.assert_array_equal(plain, jaxsink.forward(model, tokens, mask, time=np.full(3, 0.7)).logits)
    level = jaxsink.forward(
        with_config(model, BD3LM.replace(time_conditioning="level")), tokens, mask, time=np.zeros(3)
    )
    np.testing.assert_allclose(plain[mask], level.logits[mask], atol=1e-5)


def with_config(model: jaxsink.Model, config: ModelConfig) -> jaxsink.Model:
    """The same weights under another configuration."""
    leaves = jax.tree.leaves(model)
    return jax.tree.unflatten(jax.tree.structure(jaxsink.abstract(config)), leaves)


@pytest.mark.parametrize("config", [GIDD, BD3LM])
@pytest.mark.parametrize("backend", ["naive", "blocked"])
def test_contributions_are_gated(config: ModelConfig, backend: str) -> None:
    """What a key adds to the residual stream is what is left of it after the gate, which is each sequence's own."""
    model = lively(config)
    tokens, mask = with_masks(config, (0.1, 0.8, 0.4))
    wanted = {"maps": record.maps(), "added": record.contribution()}
    out = jaxsink.forward(model, tokens, mask, record=wanted, backend=backend)
    condition = np.asarray(model.time(Batch.make(config, jnp.asarray(tokens), jnp.asarray(mask))), np.float64)
    hidden = np.asarray(jaxsink.forward(model, tokens, mask, record=record.hidden()).record, np.float64)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), model.params["layers"])
    for layer in range(config.layers):
        parts = condition @ p["modulation"]["linear"]["weight"][layer].T + p["modulation"]["linear"]["bias"][layer]
        shift, scale, gate = np.split(np.broadcast_to(parts, (3, parts.shape[1])), 6, axis=-1)[:3]
        x = hidden[layer] - hidden[layer].mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * p["attention_norm"]["weight"][layer]
        v = (x * (1 + scale[:, None]) + shift[:, None]) @ p["attention"]["v"]["weight"][layer].T
        size = config.head_dim
        for head in range(config.heads):
            part = slice(head * size, (head + 1) * size)
            handed = gate[:, None] * (v[..., part] @ p["attention"]["o"]["weight"][layer][:, part].T)
            expected = np.asarray(out.record["maps"])[layer, :, head].sum(1) * np.linalg.norm(handed, axis=-1)
            np.testing.assert_allclose(np.asarray(out.record["added"])[layer, :, head], expected, atol=2e-4, rtol=1e-4)


def test_what_old_files_say_is_as_it_was() -> None:
    younger = {"head_bias", "time_conditioning", "time_width", "uniform_noise"}
    for name, config in FAMILIES.items():
        values = json.loads(json.dumps(config.to_dict()))
        assert ModelConfig.from_dict(values) == config
        assert bool(younger & set(values)) == (name in ("bd3lm", "mdlm", "gidd"))
        assert ("time_width" in repr(config)) == (name in ("bd3lm", "mdlm", "gidd"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "batch"}, "norm must be"),
        ({"time_conditioning": "always"}, "time_conditioning must be"),
        ({"time_width": None}, "give both or neither"),
        ({"time_conditioning": None}, "give both or neither"),
        ({"time_width": 0}, "time_width must be"),
        ({"extra_sink": True}, "extra_sink"),
        ({"tied": True}, "head_bias"),
        ({"uniform_noise": 1.0}, "uniform_noise"),
    ],
)
def test_configurations_that_cannot_be(change: dict, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        GIDD.replace(**change)


@pytest.mark.parametrize(
    ("time", "words"),
    [(np.zeros((2, 1)), "time must have the shape"), ([0.1, np.nan], "time must hold"), ([0, -1], "time")],
)
def test_times_that_cannot_be(time, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.forward(lively(GIDD), np.zeros((2, 5), int), time=time)


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    model = lively(GIDD)
    jaxsink.save(model, tmp_path / "gidd")
    loaded = jaxsink.load(tmp_path / "gidd", "float32")
    assert loaded.config == GIDD and jax.tree.structure(loaded) == jax.tree.structure(model)
    jax.tree.map(np.testing.assert_array_equal, loaded, model)


def test_narrow_types_run_and_leave_the_level_alone() -> None:
    model = lively(GIDD)
    tokens, mask = with_masks(GIDD, (0.2, 0.9, 0.5))
    exact = np.asarray(jaxsink.forward(model, tokens, mask).logits)[mask]
    for dtype, close in (("bfloat16", 0.02), ("int8", 0.03)):
        narrow = model.astype(dtype)
        names = [name for name, leaf in named_leaves(narrow)[0] if leaf.dtype == "int8"]
        assert not [name for name in names if "time" in name or "modulation" in name]
        ours = np.asarray(jaxsink.forward(narrow, tokens, mask).logits)[mask]
        assert np.abs(ours - exact).mean() < close * np.abs(exact).max(), dtype
