"""The tests of the attention kernels notice a kernel with one wrong line."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax
import pytest
from support.attention_layers import KERNELS, Case, Kernel, check, check_reach

from jaxsink.nn import kernels
from jaxsink.nn.kernels import tiles

MODULES = {"tpu": ("arrays", "tpu_kernel", "tpu"), "gpu": ("arrays", "gpu_kernel", "gpu")}  # each imports those before
CASES = {
    "window": Case(pattern="window", drop="most"),
    "blocks": Case(pattern="blocks", drop="factors"),
    "all": Case(drop="every", padding="gaps"),
    "tiles": Case(queries=40, keys=140, kv_heads=1, pattern="causal", padding="gaps", drop="every", seed=3),
}


class Mutation(NamedTuple):
    """One line of a module, and what stands there instead; case: a layer to which it matters, or "reach"."""

    module: str
    right: str
    wrong: str
    case: str = "window"


SHARED = {
    "scale dropped": Mutation("arrays", "return self.q.shape[-1] ** -0.5", "return 1.0"),
    "drop ignored": Mutation("arrays", "jnp.where(real & ~lost, jnp.log", "jnp.where(real, jnp.log"),
    "factors not over the scale": Mutation("arrays", "jnp.log(factor) / x.scale", "jnp.log(factor)", "blocks"),
    "padding seen": Mutation("arrays", "real = x.mask[:, None]", "real = jnp.ones_like(x.mask[:, None])"),
    "a head that loses all keys": Mutation("arrays", "lost & (real & ~lost).any(axis=2, keepdims=True)", "lost", "all"),
    "causal, not by blocks": Mutation(
        "arrays", "token_position // see.block, queries.token_position // see.block",
        "token_position, queries.token_position", "blocks",
    ),
    "causal and strict": Mutation("arrays", "queries.position + 1,", "queries.position,"),
    "window one key longer": Mutation("arrays", "see.window + 1, 0", "see.window, 0"),
    "blind by keys before the window": Mutation("arrays", "if x.lower is None:\n        foll", "if True:\n        foll"),
    "uncounted queries counted": Mutation("arrays", "jnp.where(queries.counted, queries.kind, NOWHERE)", "queries.kind"),
}  # fmt: skip
TPU = {
    "bias dropped": ("scores = scores + on_keys", "scores = scores"),
    "lower bound off by one": ("index >= of_query", "index > of_query"),
    "upper bound off by one": ("index < of_query", "index <= of_query"),
    "kv head": ("key_tile(b, i, j, limits), h // group))", "key_tile(b, i, j, limits), 0))"),
    "blind queries ignored": ("x.bare[0, 0], on_keys", "on_keys, on_keys"),
    "blind queries in a tile that all see": ("inside & (x.anyone[b, i] == 0)", "inside", "tiles"),
    "normaliser": ("share = 1.0 / x.total", "share = 1.0 + 0.0 * x.total"),
    "sum of weights not rescaled": ("x.total[...] * shrink", "x.total[...]", "tiles"),
    "outputs not rescaled": ("x.mixed[...] * shrink", "x.mixed[...]", "tiles"),
    "statistics by an old maximum": ("share * jnp.exp2((maxima", "share + 0.0 * jnp.exp2((maxima", "tiles"),
    "a tile too few": ("jnp.maximum(highest - 1, 0) // tile", "jnp.maximum(highest - 1, 0) // tile - 1", "tiles"),
    "kinds mixed up": ("else kind == n", "else kind >= n"),
}
GPU = {
    "bias dropped": ("scores = scores + on_keys", "scores = scores"),
    "lower bound off by one": ("index >= lower", "index > lower"),
    "upper bound off by one": ("index < upper", "index <= upper"),
    "kv head": ('"g": h // group', '"g": 0'),
    "blind queries ignored": ("by_key(x.of_keys(x.bare, first_key, count)), on_keys", "on_keys, on_keys"),
    "normaliser": ("1.0 / jnp.where(total > 0, total, 1.0)", "1.0"),
    "sum of weights not rescaled": ("total * shrink", "total", "tiles"),
    "outputs not rescaled": ("mixed * shrink[:, None]", "mixed", "tiles"),
    "statistics without the maximum": ("x.of_queries(largest, start, count, 0.0)[None]", "0.0"),
    "a block of keys too few": ("x.keys_of[i, 1] + 1", "x.keys_of[i, 1]", "tiles"),
    "a block of queries too few": ("x.queries_of[j, 1] + 1", "x.queries_of[j, 1]", "tiles"),
    "keys beyond the last": ("other=HIDDEN", "other=0.0", "all"),
    "kinds mixed up": ("[kind == n for n", "[kind >= n for n"),
    "outputs beyond the head": ("mask=inside[:, None] & in_head", "mask=inside[:, None]", "reach"),
    "outputs beyond the last query": ("mask=inside[:, None] & in_head", "mask=in_head", "reach"),
    "softmax beyond the last query": ("plgpu.store(ref, value, mask=inside)", "plgpu.store(ref, value)", "reach"),
    "sums beyond the last key": ("value[None], mask=inside[None])", "value[None])", "reach"),
    "rows read beyond the last": (
        "inside = (start + jnp.arange(count) < length)[:, None] & (",
        "inside = (start + jnp.arange(count) >= 0)[:, None] & (", "reach",
    ),
    "rows read beyond the head": ("(jnp.arange(width) < self.lengths[2])", "(jnp.arange(width) >= 0)", "reach"),
}  # fmt: skip
OWN = {"tpu": TPU, "gpu": GPU}
MUTATIONS = {(which, what): one for which in OWN for what, one in SHARED.items()} | {
    (which, what): Mutation(f"{which}_kernel", *how) for which, own in OWN.items() for what, how in own.items()
}
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(autouse=True)
def narrow_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "PIECES", ((32, 128),))


def compiled_anew(which: str, mutation: Mutation | None) -> Kernel:
    """The kernel from fresh modules, of which one has the mutation."""
    with pytest.MonkeyPatch.context() as patch:
        fresh: dict[str, ModuleType] = {}
        for name in MODULES[which]:
            source = Path(str(getattr(kernels, name).__file__)).read_text(encoding="utf-8")
            if mutation is not None and name == mutation.module:
                assert source.count(mutation.right) == 1, "the mutation fits no line, or several"
                source = source.replace(mutation.right, mutation.wrong)
            fresh[name] = module = ModuleType(f"{kernels.__name__}.{name}")
            patch.setitem(sys.modules, module.__name__, module)
            exec(compile(source, f"mutated {name}.py", "exec"), module.__dict__)
            patch.setattr(kernels, name, module)
    on_device = getattr(fresh[which], f"on_{which}_device")
    run = jax.jit(partial(on_device, **KERNELS[which].keywords), static_argnames="kinds")
    return lambda x, kinds: run(fresh["arrays"].arrays_of(x), kinds=kinds)


def judge(case: str, kernel: Kernel) -> None:
    if case == "reach":
        check_reach(kernel)
    else:
        check(CASES[case], kernel)


@pytest.mark.parametrize(("which", "case"), [*((which, case) for which in MODULES for case in CASES), ("gpu", "reach")])
def test_the_kernel_passes(which: str, case: str) -> None:
    judge(case, compiled_anew(which, None))


@pytest.mark.slow
@pytest.mark.parametrize(("which", "what"), MUTATIONS)
def test_a_mutated_kernel_fails(which: str, what: str) -> None:
    mutation = MUTATIONS[which, what]
    kernel = compiled_anew(which, mutation)
    with pytest.raises(AssertionError):
        judge(mutation.case, kernel)
