"""Draws the pictures of docs/concepts/ from the built-in models, and keeps the figures behind them.

    python docs/pictures.py          draw them anew
    python docs/pictures.py --check  say whether the models still give the figures that are drawn

Everything is greedy and has one question, so it comes out the same every time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

import jaxsink
from jaxsink.sinks import MaskSinks, Threshold, track

FOLDER = Path(__file__).resolve().parent / "concepts"
FIGURES = FOLDER / "pictures.json"
QUESTION = "Mia has 4 apples. She buys 3 more apples. How many apples does Mia have now?"
MOVING, STILL = (3, 2), (1, 2)  # (layer, head): of mini-llada, whose sink moves; of mini-dream, whose sink is strong
LENGTH = 32  # tokens of an answer, as the models' own samplers have it
INK, ACCENT, MASK = "#1f2933", "#c2410c", "#e4e7eb"
HEAT = "magma"
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 150,
    "savefig.facecolor": "white",
    "text.color": INK,
    "axes.labelcolor": INK,
}


class Drawn(NamedTuple):
    """One answer of a model, and the attention behind it."""

    tokens: list[str]  # prompt and response
    prompt: int  # tokens of the prompt
    committed_at: np.ndarray  # int[S]
    received: np.ndarray  # f32[T,S], of one head
    map: np.ndarray  # f32[T,S,S], of the same head
    sink: np.ndarray  # int[T], its largest sink, -1 where there is none
    text: str


def drawn(
    name: str, at: tuple[int, int], sampler: jaxsink.Sampler | None = None, policy: MaskSinks | None = None
) -> Drawn:
    """The answer of a model by its own sampler, or by another one, and what one head did."""
    model, (layer, head) = jaxsink.load(name, dtype="float32"), at
    record = {"received": jaxsink.record.received(), "map": jaxsink.record.maps(layers=[layer], heads=[head])}
    out = jaxsink.generate(model, QUESTION, sampler, record=record, intervene=policy)
    assert out.tokenizer is not None
    texts = [out.tokenizer.decode([token], skip_special=False) for token in np.asarray(out.tokens)[0].tolist()]
    received = np.asarray(out.record["received"])
    found = track(received, Threshold(eps=3.0), out.mask)
    return Drawn(
        texts,
        out.prompt_length,
        np.asarray(out.committed_at)[0],
        received[:, layer, 0, head],
        np.asarray(out.record["map"])[:, 0, 0, 0],
        np.asarray(found.position)[:, layer, 0, head],
        out.text,
    )


def answers() -> dict[str, Drawn]:
    one_block = jaxsink.LLaDASampler(gen_length=LENGTH, steps=LENGTH, block_length=LENGTH)
    left_to_right = jaxsink.ARSampler(max_new_tokens=LENGTH, whole_map=True, stop_at_eos=False)
    return {
        "llada": drawn("mini-llada", MOVING),
        "one block": drawn("mini-llada", MOVING, one_block),
        "llama": drawn("mini-llama", MOVING, left_to_right),
        "dream": drawn("mini-dream", STILL),
        "top": drawn("mini-dream", STILL, policy=MaskSinks(k=2)),
        "random": drawn("mini-dream", STILL, policy=MaskSinks(k=2, select="random")),
    }


def figures(found: dict[str, Drawn]) -> dict[str, Any]:
    """What the pictures show, in numbers."""
    return {
        name: {
            "tokens": one.tokens,
            "committed_at": one.committed_at.tolist(),
            "received": np.round(one.received.mean(axis=0), 3).tolist(),
            "sink": one.sink.tolist(),
        }
        for name, one in found.items()
    }


def shown(token: str) -> str:
    """A token as a label."""
    return token.replace("\n", "⏎").replace("<|eos|>", "end").replace("<|bos|>", "start").strip()


def label_tokens(axes: Axes, one: Drawn, side: str = "y") -> None:
    places = range(len(one.tokens))
    setter = axes.set_yticks if side == "y" else axes.set_xticks
    setter(places, [shown(token) for token in one.tokens], fontsize=6.5, rotation=0 if side == "y" else 90)
    axes.tick_params(length=0)


def sink_picture(found: dict[str, Drawn]) -> Figure:
    """One head's map, and the sums of its columns."""
    one, step = found["dream"], 16
    figure, (top, below) = plt.subplots(
        2, 1, figsize=(6.4, 7.4), height_ratios=(1, 4), sharex=True, layout="constrained"
    )
    sums, sink = one.map[step].sum(axis=0), one.map[step].sum(axis=0).argmax()
    top.bar(range(len(sums)), sums, color=[ACCENT if key == sink else "#9aa5b1" for key in range(len(sums))])
    top.axhline(1, color=INK, lw=0.6, ls=":")
    top.set_ylabel("received")
    top.set_title(f"Sum of each column: the sink is {shown(one.tokens[sink])}", fontsize=10, loc="left")
    below.imshow(one.map[step], cmap=HEAT, aspect="auto", interpolation="nearest")
    below.set(xlabel="key: the token that is looked at", ylabel="query: the token that looks")
    label_tokens(below, one, "x")
    below.set_yticks([])
    return figure


def unmasking_picture(found: dict[str, Drawn]) -> Figure:
    """The response of a diffusion model after each of some steps."""
    one, steps = found["one block"], (0, 4, 8, 16, 24, 28, LENGTH)
    response = slice(one.prompt, one.prompt + LENGTH)
    figure, axes = plt.subplots(figsize=(11.5, 2.9), layout="constrained")
    for row, step in enumerate(steps):
        for column, (token, at) in enumerate(zip(one.tokens[response], one.committed_at[response], strict=True)):
            filled, new = at < step, at >= steps[row - 1] and row > 0 and at < step
            color = "#fed7aa" if new else "#dbeafe" if filled else MASK
            axes.add_patch(Rectangle((column, -row), 0.94, 0.82, facecolor=color, edgecolor="none"))
            if filled:
                axes.text(column + 0.47, -row + 0.41, shown(token), ha="center", va="center", fontsize=6)
    axes.set(xlim=(-0.1, LENGTH), ylim=(-len(steps) + 0.9, 1.0), xticks=[])
    axes.set_yticks([0.41 - row for row in range(len(steps))], [f"after {step} steps" for step in steps], fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def sampler_picture(found: dict[str, Drawn]) -> Figure:
    """When each position is filled, by sampler."""
    names = {
        "llama": "ARSampler: left to right",
        "dream": "DreamSampler: surest first",
        "one block": "LLaDASampler: surest first",
        "llada": "LLaDASampler in four blocks",
    }
    figure, panels = plt.subplots(1, 4, figsize=(9.6, 2.7), sharey=True, layout="constrained")
    for axes, (name, title) in zip(panels, names.items(), strict=True):
        one = found[name]
        at = one.committed_at[one.prompt : one.prompt + LENGTH]
        there = at >= 0
        axes.plot(at[there], np.flatnonzero(there), "s", ms=4, color=ACCENT, mec="none")
        axes.set_title(title, fontsize=8, loc="left")
        axes.set_xlabel("step")
    panels[0].set_ylabel("position in the response")
    panels[0].invert_yaxis()
    return figure


def moving_picture(found: dict[str, Drawn]) -> Figure:
    """The attention that each position receives at each step, in one head; and where its largest sink is."""
    one = found["llada"]
    figure, axes = plt.subplots(figsize=(7.2, 6.2), layout="constrained")
    image = axes.imshow(one.received.T, cmap=HEAT, vmin=0, vmax=8, aspect="auto", interpolation="nearest")
    steps = np.arange(len(one.sink))
    axes.plot(steps[one.sink >= 0], one.sink[one.sink >= 0], "o", ms=4, mfc="none", mec="#7dd3fc", label="largest sink")
    axes.axhline(one.prompt - 0.5, color="white", lw=0.8, ls=":")
    label_tokens(axes, one)
    axes.set_xlabel("step")
    axes.legend(loc="lower left", fontsize=8, labelcolor="white", facecolor="#333333", edgecolor="none")
    figure.colorbar(image, ax=axes, label="attention received (its mean over tokens is 1)")
    return figure


def hiding_picture(found: dict[str, Drawn]) -> Figure:
    """One head as it is, and when two keys of every head are hidden in each step: the strongest, or random ones."""
    titles = {"dream": "as it is", "top": "MaskSinks(k=2)", "random": 'MaskSinks(k=2, select="random")'}
    figure, panels = plt.subplots(1, 3, figsize=(10.4, 6.0), layout="constrained")
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        one = found[name]
        image = axes.imshow(one.received.T, cmap=HEAT, vmin=0, vmax=8, aspect="auto", interpolation="nearest")
        axes.axhline(one.prompt - 0.5, color="white", lw=0.8, ls=":")
        label_tokens(axes, one)
        answer = " ".join(one.text.split())
        axes.set_title(f"{title}\n“{answer}”", fontsize=8.5, loc="left")
        axes.set_xlabel("step")
    figure.colorbar(image, ax=panels, label="attention received", shrink=0.8)
    return figure


BOXES = (  # text, x, y, tap
    ("tokens", 0.0, 0, None),
    ("embedding", 1.6, 0, None),
    ("norm", 3.2, 0, None),
    ("attention", 4.8, 0, "attention"),
    ("mlp", 6.4, 0, "mlp"),
    ("residual\nstream", 8.0, 0, "residual"),
    ("logits", 9.6, 0, None),
)


def tap_picture(found: dict[str, Drawn]) -> Figure:
    """Where in a layer recorders may read, and where an intervention acts."""
    figure, axes = plt.subplots(figsize=(9.6, 2.6), layout="constrained")
    for text, x, y, tap in BOXES:
        face = "#ffedd5" if tap else "#f1f5f9"
        axes.add_patch(FancyBboxPatch((x, y), 1.2, 0.8, boxstyle="round,pad=0.02,rounding_size=0.1", fc=face, ec=INK))
        axes.text(x + 0.6, y + 0.4, text, ha="center", va="center", fontsize=9)
        if x:
            axes.add_patch(
                FancyArrowPatch((x - 0.36, y + 0.4), (x - 0.04, y + 0.4), arrowstyle="-|>", mutation_scale=9)
            )
        if tap:
            axes.add_patch(
                FancyArrowPatch(
                    (x + 0.6, y - 0.05), (x + 0.6, y - 0.75), arrowstyle="-|>", mutation_scale=9, color=ACCENT
                )
            )
            axes.text(x + 0.6, y - 0.98, "recorders", ha="center", va="center", fontsize=8, color=ACCENT)
    axes.add_patch(Rectangle((3.05, -0.18), 6.3, 1.2, fill=False, ls="--", lw=0.8, ec="#7b8794"))
    axes.text(6.2, 1.16, "once per layer, every step", ha="center", fontsize=8, color="#7b8794")
    axes.annotate(
        "drop: keys that an\nintervention hides",
        (5.2, 0.82),
        (3.3, 1.5),
        fontsize=8,
        ha="center",
        arrowprops={"arrowstyle": "-|>", "color": "#2563eb"},
        color="#2563eb",
    )
    axes.set(xlim=(-0.1, 11), ylim=(-1.2, 1.95))
    axes.axis("off")
    return figure


PICTURES = {
    "sink": sink_picture,
    "unmasking": unmasking_picture,
    "samplers": sampler_picture,
    "moving": moving_picture,
    "hiding": hiding_picture,
    "taps": tap_picture,
}


def draw(found: dict[str, Drawn], folder: Path) -> None:
    with matplotlib.rc_context(STYLE):
        for name, picture in PICTURES.items():
            figure = picture(found)
            figure.savefig(folder / f"{name}.png", metadata={"Software": None})
            plt.close(figure)


def same(kept: dict[str, Any], now: dict[str, Any]) -> bool:
    """Tokens and steps exactly, attention to what another machine's rounding may change."""
    exact = all(kept[name][key] == now[name][key] for name in kept for key in ("tokens", "committed_at", "sink"))
    return exact and all(np.allclose(kept[name]["received"], now[name]["received"], atol=0.01) for name in kept)


if __name__ == "__main__":
    found = answers()
    if "--check" in sys.argv:
        kept = json.loads(FIGURES.read_text(encoding="utf-8"))
        sys.exit(None if same(kept, figures(found)) else "the pictures are of other figures: python docs/pictures.py")
    FOLDER.mkdir(exist_ok=True)
    draw(found, FOLDER)
    FIGURES.write_text(json.dumps(figures(found)) + "\n", encoding="utf-8")
