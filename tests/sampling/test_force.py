"""Autoregressive models made to write a given text: its log-probability, with and without hidden keys."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.sampling.interventions import DropPositions
from jaxsink.sinks import MaskSinks

pytestmark = pytest.mark.usefixtures("quick_compilation")
PROMPTS = [[5, 6, 7, 8], [9, 10]]
TEXTS = [[11, 12, 13, 14], [15, 16]]
SAMPLER = jaxsink.ARSampler(6, stop_at_eos=False)


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return lively(FAMILIES["llama3.1"])


def test_forced_tokens_have_the_log_probability_of_one_pass(model) -> None:
    out = jaxsink.generate(model, PROMPTS, SAMPLER, force=TEXTS)
    for row, (prompt, text) in enumerate(zip(PROMPTS, TEXTS, strict=True)):
        assert np.asarray(out.response)[row, : len(text)].tolist() == text
        whole = np.array([[*prompt, *np.asarray(out.response)[row].tolist()]])
        table = jax.nn.log_softmax(jaxsink.forward(model, whole).logits[0])
        expected = [table[len(prompt) - 1 + n, whole[0, len(prompt) + n]] for n in range(SAMPLER.response_length)]
        np.testing.assert_allclose(np.asarray(out.log_prob)[row, out.prompt_length :], expected, atol=1e-4)
        np.testing.assert_array_equal(np.asarray(out.log_prob)[row, : out.prompt_length], 0)
        free = np.asarray(out.response)[row, len(text) :]  # what follows is the model's own choice
        best = np.asarray(table).argmax(axis=-1)[len(prompt) + len(text) - 1 : -1]
        np.testing.assert_array_equal(free, best)


def test_hidden_keys_change_the_likelihood(model) -> None:
    plain, hidden, sinks = (
        np.asarray(jaxsink.generate(model, PROMPTS, SAMPLER, force=TEXTS, intervene=policy).log_prob)[:, 4:]
        for policy in (None, DropPositions((0,)), MaskSinks(1))
    )
    np.testing.assert_allclose(plain[:, 0], hidden[:, 0], atol=1e-5)  # the first step hides nothing
    assert np.abs(plain[:, 1:] - hidden[:, 1:]).max() > 1e-3 and np.abs(plain - sinks).max() > 1e-3
    alone = jaxsink.generate(model, PROMPTS[1:], SAMPLER, force=TEXTS[1:], intervene=MaskSinks(1))
    np.testing.assert_allclose(np.asarray(alone.log_prob)[0, 2:], sinks[1], atol=1e-4)


def test_rows_that_end_are_filled(model) -> None:
    end = model.config.eos_ids[0]
    out = jaxsink.generate(model, PROMPTS, jaxsink.ARSampler(6), force=[[11, end], [15]])
    assert int(out.steps[0]) == 2 and (np.asarray(out.tokens) >= 0).all()
    assert (np.asarray(out.log_prob)[0, 6:] == 0).all()


@pytest.mark.parametrize(
    ("force", "message"),
    [
        ([[1]], "1 sequences, and there are 2"),
        ([[1] * 7, [1]], "7 tokens do not fit the 6"),
        ([[-1], [1]], "between 0 and"),
    ],
)
def test_mistakes_are_named(model, force, message) -> None:
    with pytest.raises(JaxsinkError, match=message):
        jaxsink.generate(model, PROMPTS, SAMPLER, force=force)
    with pytest.raises(JaxsinkError, match="for autoregressive models"):
        jaxsink.generate(lively(FAMILIES["llada"]), PROMPTS, jaxsink.LLaDASampler(4, 4, 4), force=[[1], [1]])
