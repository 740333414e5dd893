"""Arguments of the wrong kind or shape: one sentence that names what they should be."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from support.shape_checks import no_shape_checks

import jaxsink
from jaxsink import ARSampler, JaxsinkError, LLaDASampler
from jaxsink.sinks import MaskSinks, Turns

pytestmark = pytest.mark.usefixtures("quick_compilation")

SAMPLER = LLaDASampler(8, 2, 8)
SHAPE = r"intervene must return \[L, B, H, S\] = \[4, 1, 4, 11\], bool \(True hides a key\) or float .* returned "


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return jaxsink.load("mini-llada", "float32")


def run(model: jaxsink.Model, **options: Any) -> jaxsink.Generation:
    return jaxsink.generate(model, [[1, 5, 6]], SAMPLER, **options)


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (lambda previous: jnp.zeros((4, 1, 4, 3), bool), r"bool\[4, 1, 4, 3\]"),
        (lambda previous: jnp.zeros((1, 11), bool), r"bool\[1, 11\]"),
        (lambda previous: jnp.zeros(previous.drop.shape, jnp.int32), r"int32\[4, 1, 4, 11\]"),
        (lambda previous: jnp.zeros((1, 1, 1, 11), bool), r"bool\[1, 1, 1, 11\]"),
        (lambda previous: None, "nothing"),
        (lambda previous: (previous.drop, previous.drop), "a tuple"),
    ],
)
def test_interventions_that_return_something_else(model: jaxsink.Model, returned: Any, shown: str) -> None:
    with pytest.raises(JaxsinkError, match=SHAPE + shown):
        run(model, intervene=returned)


def test_autoregressive_interventions_are_checked_too() -> None:
    with pytest.raises(JaxsinkError, match=r"\[4, 1, 4, 5\].* returned int32\[4, 1, 4, 5\]"):
        jaxsink.generate(
            jaxsink.load("mini-llama", "float32"),
            [[1, 5, 6]],
            ARSampler(2),
            intervene=lambda previous: previous.drop.astype(jnp.int32),
        )


def test_bool_and_float_interventions_still_work(model: jaxsink.Model) -> None:
    free = run(model)
    for nothing in (lambda p: jnp.zeros(p.drop.shape, bool), lambda p: jnp.ones(p.drop.shape, jnp.bfloat16)):
        np.testing.assert_array_equal(run(model, intervene=nothing).tokens, free.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"edit_logits": lambda step, logits, index: logits[:, :1]},
            r"edit_logits must return .* float32\[1, 1, 107\]",
        ),
        ({"edit_logits": lambda step, logits, index: logits > 0}, r"edit_logits must return logits .* returned bool"),
        ({"edit_logits": lambda step, logits, index: None}, "returned nothing"),
        ({"edit_tokens": lambda step, tokens: tokens[0]}, r"edit_tokens must return tokens .* whole numbers"),
        ({"edit_tokens": lambda step, tokens: tokens * 1.0}, r"returned float32\[1, 11\]"),
        ({"edit_tokens": 3}, "edit_tokens must be a function or None, not 3"),
        ({"intervene": MaskSinks}, r"intervene is the class MaskSinks; give one of its objects, MaskSinks\(…\)"),
        ({"intervene": "top"}, "intervene must be a function of the previous step, not a str: 'top'"),
        ({"record": "received"}, r"not 'received'; record\.received\(\) is one"),
        ({"record": {"a": 3}}, "expected a recorder or a function of the tap, not 3"),
        ({"record": jaxsink.record.maps}, r"record\.maps makes a recorder; give record\.maps\(\)"),
    ],
)
def test_other_arguments(model: jaxsink.Model, options: dict[str, Any], message: str) -> None:
    with no_shape_checks(), pytest.raises(JaxsinkError, match=message):
        run(model, **options)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (ARSampler, r"sampler is the class ARSampler; give one of its objects, ARSampler\(…\)"),
        ("llada", "sampler must be a LLaDASampler, .* or None .* not str: 'llada'"),
        ({"steps": 3}, "not dict"),
        (128, "not int: 128"),
    ],
)
def test_samplers(model: jaxsink.Model, sampler: Any, message: str) -> None:
    with pytest.raises(JaxsinkError, match=message):
        jaxsink.generate(model, [[1, 5, 6]], sampler)


def test_factors_are_not_taken_for_hidden_keys(model: jaxsink.Model) -> None:
    with pytest.raises(JaxsinkError, match=r"drop must be bool, True = hidden; factors .* go into scale"):
        jaxsink.forward(model, [[1, 5]], drop=np.ones((4, 1, 4, 2), np.float32))


def test_policies_are_among_those_there_are(model: jaxsink.Model) -> None:
    turns = Turns((None, MaskSinks(1)))
    prompts, sampler = [[5, 6, 7]] * 3, jaxsink.LLaDASampler(4, 4, 4)
    for policies in ([0, 1, 2], [0, -1, 1]):
        with pytest.raises(JaxsinkError, match="policies must be numbers from 0 to 1"):
            jaxsink.generate(model, prompts, sampler, intervene=turns, policies=policies)
    out = jaxsink.generate(
        model, prompts, sampler, intervene=turns, policies=[1, 0, 1], record=jaxsink.record.dropped()
    )
    assert np.asarray(out.record).any(axis=(0, 1, 3, 4)).tolist() == [True, False, True]


def test_positions_of_an_edit_may_come_from_numpy(model: jaxsink.Model) -> None:
    tokens = [[5, 6, 7, 8]]
    logits = [
        jaxsink.forward(model, tokens, edits=jaxsink.edit.zero("mlp", at=at)).logits
        for at in (np.flatnonzero([0, 1, 1, 0]), jnp.array([1, 2]), [1, 2])
    ]
    np.testing.assert_array_equal(logits[0], logits[2])
    np.testing.assert_array_equal(logits[1], logits[2])
    with pytest.raises(JaxsinkError, match="at must hold finite numbers of 0 or more"):
        jaxsink.edit.zero("mlp", at=[-1])
    with pytest.raises(JaxsinkError, match="layers names none"):
        jaxsink.edit.zero("mlp", layers=[])


@pytest.mark.parametrize("seed", [[5], (5, 6, 7), np.array([5])])
def test_a_list_of_seeds_has_one_for_each_prompt(model: jaxsink.Model, seed: Any) -> None:
    with pytest.raises(JaxsinkError, match=r"or one per prompt \(2\)"):
        jaxsink.generate(model, [[1, 5], [1, 6]], SAMPLER, seed=seed)
