"""Prompts as text, in Python and on the command line: the model's tokenizer, its sampler, and what was not understood."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.paths import GOLDEN

import jaxsink
from jaxsink import ARSampler, JaxsinkError, LLaDASampler
from jaxsink.cli.main import main
from jaxsink.sampling.generation import Generation
from jaxsink.sampling.prompts import unknown_words
from jaxsink.sampling.respond import why_empty

pytestmark = pytest.mark.usefixtures("quick_compilation")

QUESTION = "Mia has 2 bags with 3 apples in each bag and 4 more apples on the table. How many apples does Mia have?"
SHORT = "Mia has 4 apples. She buys 3 more. How many apples does she have?"
ANSWER = "\nThe bags hold 2 * 3 = 6 apples.\nMia has 6 + 4 = 10 apples.\n#### 10"


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return jaxsink.load("mini-llada", "float32")


def test_text_in_text_out(model: jaxsink.Model) -> None:
    out = jaxsink.generate(model, QUESTION)
    assert out.text == ANSWER and out.texts == [ANSWER]
    ids = model.tokenizer.encode(QUESTION, add_special_tokens=True)
    same = jaxsink.generate(model, [ids], jaxsink.sampler_for(model))
    np.testing.assert_array_equal(out.tokens, same.tokens)
    assert same.text == ANSWER  # also of prompts given as ids


def test_several_texts_of_different_lengths(model: jaxsink.Model) -> None:
    other = "Ben has 5 eggs. He gives 2 eggs to Tom. How many eggs does Ben have?"
    with pytest.warns(UserWarning, match="does not know these words") as seen:
        out = jaxsink.generate(model, [QUESTION, other + " Bananas"])
    assert (
        str(seen[0].message).endswith("reads <|unk|> instead: Bananas.")
        and Path(jaxsink.__file__).parent not in Path(seen[0].filename).parents
    )
    assert out.texts[0] == ANSWER and len(out.texts) == 2
    with pytest.raises(JaxsinkError, match="there are 2 texts"):
        _ = out.text


def test_an_autoregressive_model_stops_where_it_stops() -> None:
    llama = jaxsink.load("mini-llama", "float32")
    assert jaxsink.generate(llama, QUESTION).text == ANSWER
    free = jaxsink.generate(llama, QUESTION, ARSampler(32, stop_at_eos=False))
    assert free.text.startswith(ANSWER) and len(free.written()[0]) == 32


def test_filled_masks_of_the_prompt_are_part_of_the_text(model: jaxsink.Model) -> None:
    out = jaxsink.generate(model, QUESTION + "\nThe bags hold 2 *<|mask|> = 6 apples.", LLaDASampler(16, 16, 16))
    assert out.text.startswith(" 3 = 6 apples.")


def test_a_model_without_a_chat_template(model: jaxsink.Model) -> None:
    with pytest.raises(JaxsinkError, match="no chat template is known"):
        jaxsink.generate(model, QUESTION, chat=True)


def test_what_prompts_may_not_be(model: jaxsink.Model) -> None:
    cases = [
        (["Mia", [1, 2]], {}, "all text or all token ids"),
        ([[1, 2]], {"chat": True}, "chat=True needs prompts as text"),
        (["Mia"], {"mask": [[True]]}, "need no mask"),
    ]
    for prompts, options, message in cases:
        with pytest.raises(JaxsinkError, match=message):
            jaxsink.generate(model, prompts, **options)
    with pytest.raises(JaxsinkError, match="this model has no tokenizer, because it was not loaded"):
        jaxsink.generate(jaxsink.init(model.config), "Mia")
    with pytest.raises(JaxsinkError, match=r"llada_tiny has no tokenizer\.json"):
        jaxsink.generate(jaxsink.load(GOLDEN / "llada_tiny"), "Mia")


def test_texts_without_a_tokenizer() -> None:
    out = jaxsink.generate(jaxsink.load(GOLDEN / "llama_tiny"), [[1, 2, 3]], ARSampler(2))
    assert out.tokenizer is None
    with pytest.raises(JaxsinkError, match="the tokenizer of this model is not known"):
        _ = out.texts


def test_written_ids_leave_out_padding_and_what_follows_the_end() -> None:
    mask = np.array([[False, True, True, True, True, True, False]])
    out = Generation(
        tokens=np.array([[0, 5, 6, 7, 8, 2, 9]]),
        committed_at=np.array([[-1, -1, 1, 0, 2, 3, -1]]),
        record=None,
        mask=mask,
        steps=np.array([4]),
        prompt_length=3,
        recorded_steps=np.arange(4),
        end_ids=(2,),
    )
    assert out.written() == [[6, 7, 8]]
    assert Generation(**{**vars(out), "end_ids": ()}).written() == [[6, 7, 8, 2]]
    unwritten = Generation(**{**vars(out), "committed_at": np.full((1, 7), -1)})
    assert unwritten.written() == [[7, 8]]


def test_unknown_words_once_each(model: jaxsink.Model) -> None:
    text = "Mia likes bananas, and Ben likes <|unk|> 99 apples."
    assert unknown_words(model.tokenizer, text) == ["likes", "bananas", "99"]


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream", "mini-llama"])
def test_the_command_answers_with_the_models_own_sampler(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", name, QUESTION, "--dtype", "float32", "--no-compile-cache"]) == 0
    out, err = capsys.readouterr()
    assert out == ANSWER + "\n" and "note" not in err


def test_options_change_single_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "mini-llada", QUESTION, "--json", "--steps", "16", "--no-compile-cache"]) == 0
    found = json.loads(capsys.readouterr().out)["sampler"]
    assert (found["gen_length"], found["steps"], found["block_length"]) == (32, 16, 8)


def test_the_command_says_why_an_answer_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With another sampler recommended: blocks of 32, in which this model writes end tokens only."""
    jaxsink.save(jaxsink.load("mini-llada", "float32"), tmp_path / "long", sampler=LLaDASampler(128, 128, 32))
    assert main(["generate", str(tmp_path / "long"), SHORT, "--no-compile-cache"]) == 0
    out, err = capsys.readouterr()
    assert out == "\n" and "jaxsink: note: the answer is empty: " in err and "tokens are end tokens" in err
    assert main(["generate", str(tmp_path / "long"), SHORT, "--json", "--no-compile-cache"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == "" and re.fullmatch(r"\d+ of its 128 tokens are end tokens, .*", found["empty"])


def test_reasons_for_empty_answers() -> None:
    assert why_empty([2, 2, 2], (2,)) == "all 3 tokens are end tokens"
    assert why_empty([2], (2,)) == "its only token is an end token"
    assert why_empty([2, 7, 7], (2,)) == "1 of its 3 tokens are end tokens, the first one among them"
    assert why_empty([1, 1], (2,)).startswith("its tokens are special ones")


def test_the_command_names_unknown_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "mini-llama", "Mia has 4 bananas.", "--no-compile-cache"]) == 0
    assert "reads <|unk|> instead: bananas." in capsys.readouterr().err


def test_a_directory_loaded_directly_keeps_its_tokenizer_when_saved(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "llada_tiny", tmp_path / "source")
    folder = Path(jaxsink.load("mini-llada").origin.place or "")
    (tmp_path / "source" / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path / "source" / "tokenizer" / name)
    jaxsink.save(jaxsink.load(tmp_path / "source"), tmp_path / "saved")
    assert jaxsink.load(tmp_path / "saved").tokenizer.size == jaxsink.load("mini-llada").tokenizer.size
