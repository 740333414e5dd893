"""Problems that differ in names and things alone are one cluster, and a study asks as many clusters as it can."""

from __future__ import annotations

from collections import Counter

from support.miniatures import random_subject

from jaxsink.tasks.task import POOL, problems, spread_out


def test_problems_of_a_cluster_have_the_same_sums_in_the_same_setting() -> None:
    made = problems("test", 300)
    for one in made:
        assert one.cluster == " ".join([one.template, *map(str, one.numbers)])
    by_cluster = {one.cluster: one for one in made}
    assert all(by_cluster[one.cluster].result == one.result for one in made) and len(by_cluster) < 150


def test_clusters_occur_as_evenly_as_can_be() -> None:
    made = problems("test", POOL)
    every = len({one.cluster for one in made})
    numbers = spread_out("test", every)
    assert len({made[number].cluster for number in numbers}) == every == len(set(numbers))  # each once
    often = Counter(one.cluster for one in made)
    again = sum(count > 1 for count in often.values())
    found = Counter(made[number].cluster for number in spread_out("test", every + again))
    assert all(found[cluster] == min(count, 2) for cluster, count in often.items())  # then each twice that can be
    plain = len({one.cluster for one in made[:every]})
    assert plain < 0.8 * every  # the series itself repeats some


def test_more_numbers_begin_with_the_same_and_follow_from_the_seed() -> None:
    few, many = spread_out("test", 20), spread_out("test", 120)
    assert few == many[:20] and few != spread_out("test", 20, seed=1)
    assert len(set(spread_out("test", POOL + 1))) == POOL + 1  # a larger pool


def test_subjects_are_asked_these_with_their_clusters() -> None:
    made, numbers = problems("test", POOL), spread_out("test", 7)
    for name in ("mini-llada", "mini-llama"):
        questions = random_subject(name).exam(7, seed=0).questions
        assert [question.index for question in questions] == numbers
        assert [question.cluster for question in questions] == [made[number].cluster for number in numbers]
