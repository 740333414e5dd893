"""The built-in task: problems, their split, the tokenizer, batches, and the TFDS dataset."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.tasks import batches, task, vocabulary
from jaxsink.tasks.word_tasks import SUMS

LENGTH, PROMPT, RESPONSE = SUMS.length, SUMS.prompt, SUMS.response

FIRST = """A bus has 12 people. Then 9 get off, 7 get on and 3 get off. How many people are on the bus?
First: 12 - 9 = 3.
Next: 3 + 7 = 10.
Last: 10 - 3 = 7.
#### 7"""
SAMPLE = {split: task.problems(split, 1500, seed=3) for split in ("train", "test")}


@pytest.mark.parametrize("template", task.TEMPLATES, ids=lambda t: t.name)
def test_every_sum_is_right_and_small(template):
    for split in ("train", "test"):
        for numbers in task.combinations(template.name, split):
            problem = task.render(template, numbers, ("Mia", "Tom", "Zoe"), "eggs", "bags")
            known = set(map(int, re.findall(r"\d+", problem.question)))
            for line in problem.steps:
                left, sign, right, result = re.search(r"(\d+) (.) (\d+) = (\d+)", line).groups()
                assert eval(f"{left} {sign} {right}") == int(result) <= task.LARGEST
                assert {int(left), int(right)} <= known  # from the question or an earlier line
                known.add(int(result))
            assert problem.result == int(result) == task.extract(problem.answer)


def test_the_splits_share_no_combination_and_both_have_every_template():
    for template in task.TEMPLATES:
        train, test = (set(task.combinations(template.name, split)) for split in ("train", "test"))
        assert train and test and not train & test
    seen = {split: {(p.template, p.numbers) for p in SAMPLE[split]} for split in SAMPLE}
    assert not seen["train"] & seen["test"]
    for split, pairs in seen.items():
        assert {name for name, _ in pairs} == {template.name for template in task.TEMPLATES}
        assert all(task.split_of(*pair) == split for pair in pairs)
    whole = sum(len(task.combinations(t.name, s)) for t in task.TEMPLATES for s in ("train", "test"))
    held = sum(len(task.combinations(t.name, "test")) for t in task.TEMPLATES)
    assert held / whole == pytest.approx(1 / task.TEST_SHARE, rel=0.1)


def test_problems_follow_from_the_seed():
    assert task.problems("test", 50, seed=3) == SAMPLE["test"][:50]
    assert task.problems("test", 50, seed=4) != SAMPLE["test"][:50]
    assert len({p.question for p in SAMPLE["test"]}) == len(SAMPLE["test"])
    first = task.make_problem("test", 0, 0)  # a model card's accuracy is on these very problems
    assert first.question + first.answer == FIRST


def test_numbers_of_steps_and_names_vary():
    steps = [len(p.steps) for p in SAMPLE["train"]]
    assert set(steps) == {1, 2, 3} and min(map(steps.count, (1, 2, 3))) > 300
    text = " ".join(p.question for p in SAMPLE["train"])
    assert all(word in text for word in (*task.NAMES, *task.THINGS, *task.BOXES))


def test_scoring_is_exact():
    problem = SAMPLE["test"][0]
    assert problem.score(problem.answer) and problem.score(f"#### {problem.result}\n#### 1")
    assert not problem.score(f"#### {problem.result}0") and not problem.score(f"The answer is {problem.result}.")
    assert task.extract("a\n####  -3") == -3 and task.extract("#### x") is None


@pytest.mark.parametrize("template", task.TEMPLATES, ids=lambda t: t.name)
def test_the_tokenizer_gives_the_text_back(template):
    tokenizer = vocabulary.tokenizer()
    for text in vocabulary.wordings(template):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.special["unk"] not in ids


def test_marks_line_breaks_and_numbers_are_tokens_of_their_own():
    tokenizer = vocabulary.tokenizer()
    pieces = [tokenizer.token(i) for i in tokenizer.encode("Mia has 3 + 9 = 12 eggs.\n#### 12")]
    assert pieces == ["Mia", "␣has", "␣3", "␣+", "␣9", "␣=", "␣12", "␣eggs", ".", "\\n", "####", "␣12"]
    assert sorted(tokenizer.special) == ["bos", "eos", "mask", "pad", "unk"] and tokenizer.declared == tokenizer.special
    assert tokenizer.encode("Mia", add_special_tokens=True)[0] == tokenizer.special["bos"]
    assert tokenizer.special["unk"] in tokenizer.encode("Mia has 31 zebras.")


def test_the_shipped_tokenizer_is_the_one_that_is_built(tmp_path):
    vocabulary.write(tmp_path)
    for name in vocabulary.FILES:
        assert (tmp_path / name).read_text() == (vocabulary.folder() / name).read_text()


def test_rows_hold_question_and_answer_at_fixed_places():
    tokenizer = vocabulary.tokenizer()
    chosen = SAMPLE["train"]
    batch = batches.encode(chosen)
    assert batch.tokens.shape == batch.real.shape == (len(chosen), LENGTH) == (1500, PROMPT + RESPONSE)
    for problem, tokens, real in zip(chosen, batch.tokens, batch.real, strict=True):
        assert tokens[PROMPT - real[:PROMPT].sum()] == tokenizer.special["bos"] and real[PROMPT:].all()
        assert tokenizer.decode(tokens[:PROMPT]) == problem.question
        assert tokenizer.decode(tokens[PROMPT:]) == problem.answer
        assert tokens[-1] == tokenizer.special["eos"] and (tokens[~real] == tokenizer.special["pad"]).all()
    assert batch.real[:, :PROMPT].mean() > 0.7  # little is wasted on padding


def test_training_batches_are_a_series():
    small, large = batches.training_batch(3, 4, seed=5), batches.training_batch(1, 8, seed=5)
    np.testing.assert_array_equal(small.tokens, large.tokens[4:])
    assert (batches.training_batch(3, 4, seed=6).tokens != small.tokens).any()


def test_what_does_not_fit_is_refused():
    long = task.Problem("x", (), "Mia has 3 eggs." * 10, ("a",), 1)
    with pytest.raises(JaxsinkError, match="does not fit"):
        batches.encode([long])


def test_tfds_has_the_same_problems_in_the_same_order(tmp_path: Path, monkeypatch):
    from jaxsink.tasks import builder

    monkeypatch.setattr(builder, "SIZES", {"train": 30, "test": 20})
    for split in ("train", "test"):
        source = builder.word_problems(tmp_path, split)
        made = task.problems(split, len(source))
        assert len(source) == builder.SIZES[split]
        for row, problem in zip(source, made, strict=True):
            assert row["question"].decode() == problem.question and "\n" + row["answer"].decode() == problem.answer
            assert row["template"].decode() == problem.template and row["result"] == problem.result
