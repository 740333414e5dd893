"""Nulls: each leaves to chance what it names, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace

import jax
import numpy as np
import pytest
from support.made_gallery import made_gallery
from support.miniatures import random_subject

from jaxsink.errors import JaxsinkError
from jaxsink.parallel.mesh import make_mesh, shard
from jaxsink.study import Gallery, nulls
from jaxsink.study.subject import OWN_SEED, subject, with_random_weights
from jaxsink.training.start import small_model

T, L, B, H, S = 12, 2, 3, 2, 9
TAKEN = np.array([12, 7, 1])


@pytest.fixture
def gallery() -> Gallery:
    draw = np.random.default_rng(0)
    real = np.arange(S) >= np.array([0, 2, 3])[:, None]
    there = np.broadcast_to(real, (T, B, S)) & (np.arange(S) <= 5 + np.arange(T)[:, None, None])
    scores = draw.random((T, L, B, H, S), np.float32)
    return made_gallery(
        scores,
        shuffled=scores + 1,
        masked=scores / 2,
        random_split=scores / 3,
        canvas=np.where(there, draw.integers(0, 50, (T, B, S)), -1),
        mask=real,
        real=there,
        taken=TAKEN,
    )


def changed(before: Gallery, after: Gallery) -> set[str]:
    parts = (part.name for part in fields(Gallery))
    return {name for name in parts if getattr(before, name) is not getattr(after, name)}


def test_queries_and_splits_are_those_that_were_recorded(gallery: Gallery) -> None:
    draw = np.random.default_rng(0)
    queries, split = nulls.QUERIES.of(gallery, draw), nulls.SPLIT.of(gallery, draw)
    assert changed(gallery, queries) == {"scores"} and queries.scores is gallery.shuffled
    assert changed(gallery, split) == {"masked"} and split.masked is gallery.random_split


def test_steps_in_another_order_are_the_same_steps(gallery: Gallery) -> None:
    found = nulls.STEPS.of(gallery, np.random.default_rng(0))
    assert changed(gallery, found) == {"scores", "real"}
    orders = []
    for row, taken in enumerate(TAKEN):
        maps = {gallery.scores[step, :, row].tobytes(): step for step in range(T)}  # all layers and heads together
        order = [maps[found.scores[step, :, row].tobytes()] for step in range(T)]
        assert sorted(order[:taken]) == list(range(taken)) and sorted(order[taken:]) == list(range(taken, T))
        np.testing.assert_array_equal(found.real[:, row], gallery.real[order, row])  # tokens that exist go with them
        orders.append(order)
    assert orders[0] != list(range(T)) and orders[0][:7] != orders[1][:7]
    again = nulls.STEPS.of(gallery, np.random.default_rng(1))
    assert (again.scores != found.scores).any()


def test_the_canvas_in_another_order_has_the_same_tokens(gallery: Gallery) -> None:
    found = nulls.TOKENS.of(gallery, np.random.default_rng(0))
    assert changed(gallery, found) == {"canvas"}
    moved = 0
    for step, row in np.ndindex(T, B):
        there = gallery.real[step, row]
        before, after = gallery.canvas[step, row], found.canvas[step, row]
        np.testing.assert_array_equal(after[~there], before[~there])
        if step >= TAKEN[row]:
            np.testing.assert_array_equal(after, before)
        assert sorted(after[there]) == sorted(before[there])
        moved += (after != before).sum()
    assert moved > 50


def test_a_null_of_the_same_draw_is_the_same(gallery: Gallery) -> None:
    for shuffle in (nulls.STEPS, nulls.TOKENS):
        one, two = (shuffle.of(gallery, np.random.default_rng(5)) for _ in range(2))
        np.testing.assert_array_equal(one.scores, two.scores)
        np.testing.assert_array_equal(one.canvas, two.canvas)


@pytest.mark.slow
def test_untrained_models_have_other_weights_than_the_subject_and_than_each_other() -> None:
    trained = random_subject("mini-llada")
    own = with_random_weights(trained, OWN_SEED, "own")  # as "untrained:NAME" has them
    drawn = [nulls.untrained(trained, number) for number in range(4)]
    assert len({one.fingerprint for one in (trained, own, *drawn)}) == 6
    for one in drawn:
        assert one.model.config == trained.model.config and one.sampler == trained.sampler
        assert one.name == "mini-llada untrained"
    assert nulls.untrained(trained, 2).fingerprint == drawn[2].fingerprint
    expected = small_model(trained.model.config, nulls.FIRST_SEED + 3)
    jax.tree.map(np.testing.assert_array_equal, drawn[3].model, expected)
    unrolled = nulls.untrained(replace(trained, model=trained.model.unrolled()), 3).model
    jax.tree.map(np.testing.assert_array_equal, unrolled, expected.unrolled())


@pytest.mark.slow
def test_the_seeds_of_nulls_are_never_that_of_a_subject() -> None:
    assert OWN_SEED not in range(nulls.FIRST_SEED, nulls.FIRST_SEED + 1000)
    named = subject("untrained:mini-llada")
    null = nulls.untrained(replace(named, name="x"), 0)
    assert named.name == "untrained:mini-llada" and named.fingerprint != null.fingerprint
    assert named.fingerprint != subject("mini-llada").fingerprint


@pytest.mark.slow
def test_an_untrained_model_lies_where_its_subject_lies() -> None:
    """Cut over a mesh and in its type, so that a model that fits has untrained ones that fit; and the same numbers."""
    one = random_subject("mini-llada")
    model = one.model.stacked().astype("bfloat16")
    mesh = make_mesh()
    cut = replace(one, model=shard(model, mesh))
    drawn = nulls.untrained(cut, 2)
    for new, old in zip(jax.tree.leaves(drawn.model), jax.tree.leaves(cut.model), strict=True):
        assert new.sharding.is_equivalent_to(old.sharding, new.ndim) and new.dtype == old.dtype
    whole = nulls.untrained(replace(one, model=model), 2)
    for new, old in zip(jax.tree.leaves(drawn.model), jax.tree.leaves(whole.model), strict=True):
        np.testing.assert_array_equal(np.asarray(new, np.float32), np.asarray(old, np.float32))


def test_int8_weights_have_no_random_ones() -> None:
    one = random_subject("mini-llada")
    with pytest.raises(JaxsinkError, match="--untrained 0"):
        nulls.untrained(replace(one, model=one.model.stacked().astype("int8")), 0)
