"""Stories: right sums, splits by wording and by numbers, and every word in the vocabulary."""

from __future__ import annotations

import re

import numpy as np
import pytest

from jaxsink.tasks import stories
from jaxsink.tasks.batches import encode, training_batch
from jaxsink.tasks.exam import task_exam
from jaxsink.tasks.word_tasks import STORIES, SUMS, task_of
from jaxsink.zoo.builtin import BUILTIN

SAMPLE = {split: stories.problems(split, 600, seed=3) for split in ("train", "test")}
EVERY = SAMPLE["train"] + SAMPLE["test"]
FIRST = (
    """A shop has 6 boxes with 2 cookies in each box. Sam buys 8 cookies. Then 9 cookies arrive. Sam buys 6 cookies."""
)


def test_every_sum_is_right_small_and_made_of_known_numbers() -> None:
    for problem in EVERY:
        known = set(map(int, re.findall(r"\d+", problem.question)))
        for line in problem.steps:
            left, sign, right, result = re.search(r"(\d+) (.) (\d+) = (\d+)", line).groups()  # type: ignore[union-attr]
            assert 1 <= eval(f"{left} {sign} {right}") == int(result) <= stories.LARGEST
            assert {int(left), int(right)} <= known
            known.add(int(result))
        assert problem.result == int(result)


def test_a_sentence_says_what_its_line_does() -> None:
    """The order of the lines is that of the sentences, and signs are those of the parts."""
    signs = {part.text: part.sign for world in stories.WORLDS for part in (*world.openings, *world.events)}
    for problem in EVERY:
        _, *texts = problem.template.split(" | ")
        expected = []
        for number, text in enumerate(texts):
            if signs[text] == "*":
                expected += ["*", "+"] if number else ["*"]
            elif number:
                expected.append(signs[text])
        assert [re.search(r"\d (.) \d", line)[1] for line in problem.steps] == expected  # type: ignore[index]


def test_no_problem_is_in_both_splits_and_half_of_the_test_has_new_wordings() -> None:
    names = {split: {problem.cluster for problem in SAMPLE[split]} for split in SAMPLE}
    assert not names["train"] & names["test"] and all(len(names[split]) == 600 for split in names)
    new = np.mean([stories.held_out(problem.template) for problem in SAMPLE["test"]])
    assert 0.42 < new < 0.58
    assert not any(stories.held_out(problem.template) for problem in SAMPLE["train"])
    assert not any(stories.held_out(problem.template, problem.numbers) for problem in SAMPLE["train"])
    rest = [problem for problem in SAMPLE["test"] if not stories.held_out(problem.template)]
    assert all(stories.held_out(problem.template, problem.numbers) for problem in rest)


def test_stories_differ() -> None:
    assert len({problem.template for problem in SAMPLE["train"]}) > 500
    assert {len(problem.steps) for problem in SAMPLE["train"]} == {2, 3, 4, 5}
    assert {problem.result for problem in EVERY} == set(range(1, stories.LARGEST + 1))


def test_problems_follow_from_the_seed() -> None:
    assert stories.problems("test", 20, seed=3) == SAMPLE["test"][:20] != stories.problems("test", 20, seed=4)


def test_every_word_has_a_token_and_everything_fits() -> None:
    tokenizer = STORIES.tokenizer()
    batch = encode(EVERY, STORIES)
    assert not (batch.tokens == tokenizer.special["unk"]).any()
    for tokens, real, problem in zip(batch.tokens, batch.real, EVERY, strict=True):
        assert tokens[STORIES.prompt - real[: STORIES.prompt].sum()] == tokenizer.special["bos"]
        assert tokenizer.decode(tokens[: STORIES.prompt]) == problem.question
        assert tokenizer.decode(tokens[STORIES.prompt :]) == problem.answer
        assert tokens[-1] == tokenizer.special["eos"]


def test_a_batch_follows_from_its_step() -> None:
    first, again, other = (training_batch(step, 4, 0, STORIES).tokens for step in (5, 5, 6))
    assert (first == again).all() and (first != other).any()


def test_a_model_is_asked_what_its_words_are_of() -> None:
    assert (
        task_of(SUMS.tokenizer().size) is SUMS and task_of(STORIES.tokenizer().size) is STORIES and task_of(7) is None
    )
    config = BUILTIN["mini-llama"].config.replace(vocab=STORIES.tokenizer().size)
    exam = task_exam(config, range(3))
    asked = [STORIES.tokenizer().decode(question.prompt) for question in exam.questions]
    assert asked == [problem.question for problem in stories.problems("test", 3)]
    assert exam.questions[0].grade(stories.problems("test", 1)[0].answer).correct


@pytest.mark.parametrize("world", stories.WORLDS, ids=lambda world: world.name)
def test_the_answer_by_hand(world: stories.World) -> None:
    by_text = {part.text: part for part in (*world.openings, *world.events)}
    boxes = next(part for part in world.events if part.sign == "*")
    fewer = next(part for part in world.events if part.sign == "-")
    template = stories.compose(world, (world.openings[0], boxes, fewer), world.questions[0])
    values = template.solve((3, 2, 4, 5))
    assert template.given == ("a", "b", "c", "d") and values is not None
    assert [values[letter] for letter in "pqr"] == [8, 11, 6] and boxes.text in by_text
    assert template.solve((13, 2, 4, 5)) is None  # 21 on the way
