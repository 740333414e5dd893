"""Pictures of a generation, as matplotlib axes: step to the right, position down, in all of them.

    out = jaxsink.generate(model, prompts, sampler, record=jaxsink.record.received())
    out.plot_received()                       # the head whose sink moves most
    out.plot_received(layer=2, head="mean")
    out.plot_trajectory(layer=2, head=0)
    out.plot_layers()

Each takes a `Generation` or a record f32[T,L,B,H,S], the last two `sinks.Tracks` as well, and draws into `ax=` if it is
given. What `reduce.top` or `reduce.head_mean` left of a record is drawn as far as it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.report.views import Canvas, Largest, Source, canvas_of, largest_of, received_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jaxsink.sinks.rules import Rule
    from jaxsink.text.tokenizer import Tokenizer

HEAT = "magma_r"  # nothing is pale, so that it prints; equal steps look equal, also to the colour-blind
COMMITTED = "#56B4E9"
OTHERS = "0.82"
WIDTH, HEIGHT = 7.0, 4.2  # inches, of a figure that a plot opens itself
PER_TEXT = 0.13  # inches for the text of a token
TALLEST = 14.0
SMALLEST, LARGEST_TEXT = 4.5, 8.0  # points, of the tokens' texts
LONGEST_TEXT = 16  # characters
MOST_TICKS = 16

Chosen = int | Literal["mean"] | None


@checked(sequence=at_least(0))
def plot_received(
    source: Source,
    *,
    layer: Chosen = None,
    head: Chosen = None,
    sequence: int = 0,
    record: str | None = None,
    rule: Rule | None = None,
    tokenizer: Tokenizer | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
    **options: Any,
) -> Axes:
    """A heat map of the attention that each position receives at each step.

    Blue ticks show where a position's token was filled in, the dotted line where the response begins.

    Args:
        source: what `generate` returned, or a record with its canvas
        layer: a number as the model counts them, or "mean"; without layer and head the head whose sink moves most is shown
        head: a number as the model counts them, or "mean"
        sequence: of the batch
        record: name of the recorder, where several were given
        rule: what a sink is, for the choice of the head; None: `sinks.Threshold()`
        tokenizer: writes tokens on the axis; None: the generation's own
        colorbar: draw it
        ax: draw into these axes; None: new ones
        **options: for matplotlib's `imshow`, such as vmax or cmap

    Examples:
        >>> ax = jaxsink.plots.plot_received(out, layer=1, head=0)
        >>> ax.get_title()
        'layer 1, head 0'
    """
    canvas = canvas_of(source, sequence, tokenizer)
    shown = received_of(source, canvas, sequence, record)
    if shown.heads is None:
        if isinstance(head, int):
            raise JaxsinkError(f"head {head}: only the mean over heads was recorded.")
        head = "mean"
    if layer == "mean" or head == "mean":
        layer, head = "mean" if layer is None else layer, "mean" if head is None else head
    elif layer is None or head is None:
        layer, head = busiest(largest_of(source, sequence, record, rule), layer, head)
    picture = _pick(shown.values, 1, "layer", layer, shown.layers)
    picture = _pick(picture, 1, "head", head, shown.heads)

    own, axes = ax is None, ax or _new_axes(*_size(canvas))
    settings = {"cmap": HEAT, "vmin": 0, "interpolation": "nearest", "aspect": "auto"} | options
    half = canvas.stride / 2
    edges = (canvas.steps[0] - half, canvas.steps[-1] + half, picture.shape[1] - 0.5, -0.5)
    image = axes.imshow(picture.T, extent=edges, **settings)
    if colorbar:
        axes.figure.colorbar(image, ax=axes, label="attention received (column sum)")
    _mark_tokens(axes, canvas)
    axes.set_title(_title(layer, head))
    _finish(axes, canvas, canvas.position_label, own)
    return axes


@checked(layer=at_least(0), head=at_least(0), sequence=at_least(0))
def plot_trajectory(
    source: Source,
    *,
    layer: int | None = None,
    head: int | None = None,
    sequence: int = 0,
    record: str | None = None,
    rule: Rule | None = None,
    tokenizer: Tokenizer | None = None,
    others: bool = True,
    ax: Axes | None = None,
    **options: Any,
) -> Axes:
    """The position of a head's largest sink, step by step; there is a gap where the head has none.

    The marks are those of `plot_received`.

    Args:
        source: as for `plot_received`
        layer: a number as the model counts them; without layer and head the head whose sink moves most is shown
        head: a number as the model counts them
        sequence: as for `plot_received`
        record: as for `plot_received`
        rule: what a sink is; None: `sinks.Threshold()`; a record of `reduce.top` shows the largest key instead
        tokenizer: as for `plot_received`
        others: the other heads too, in grey
        ax: draw into these axes; None: new ones
        **options: for matplotlib's `plot`, such as color or label

    Examples:
        >>> ax = jaxsink.plots.plot_trajectory(out, rule=jaxsink.sinks.Threshold(eps=2.0))
        >>> ax.figure.savefig("trajectory.svg")
    """
    if "mean" in (layer, head):
        raise JaxsinkError("positions have no mean that means something; choose a layer and a head by number.")
    canvas = canvas_of(source, sequence, tokenizer)
    found = largest_of(source, sequence, record, rule)
    layer, head = busiest(found, layer, head)
    shown_at = np.full(int(canvas.real.max()) + 2, np.nan)  # one more: -1, no sink, is the last
    shown_at[canvas.real] = np.arange(len(canvas.real))
    lines = shown_at[found.position[: canvas.taken, :, 0]]  # [T,L,H]
    chosen = _index("layer", layer, found.layers), _index("head", head, found.heads)

    own, axes = ax is None, ax or _new_axes(*_size(canvas))
    _mark_tokens(axes, canvas)
    style: dict[str, Any] = {"drawstyle": "steps-mid", "solid_joinstyle": "miter"}
    if others:
        rest = np.delete(lines.reshape(len(lines), -1), np.ravel_multi_index(chosen, lines.shape[1:]), axis=1)
        for line in axes.plot(canvas.steps, rest, color=OTHERS, lw=0.8, zorder=1.5, **style)[:1]:
            line.set_label("other heads")
    label = f"layer {layer}, head {head}"
    axes.plot(canvas.steps, lines[:, *chosen], **({"marker": ".", "label": label, "zorder": 2.5} | style | options))
    axes.set_ylim(len(canvas.real) - 0.5, -0.5)
    axes.set_title(label)
    _finish(axes, canvas, f"largest {found.what} ({canvas.position_label})", own)
    return axes


@checked(sequence=at_least(0))
def plot_layers(
    source: Source,
    *,
    sequence: int | None = None,
    record: str | None = None,
    rule: Rule | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
    **options: Any,
) -> Axes:
    """A heat map of how strong the largest sink of each head is, layers down: its score, 0 without one, mean over steps.

    Args:
        source: as for `plot_received`
        sequence: one of the batch; None: the mean over all
        record: as for `plot_received`
        rule: what a sink is; None: `sinks.Threshold()`; a record of `reduce.top` shows the largest key instead
        colorbar: draw it
        ax: draw into these axes; None: new ones
        **options: for matplotlib's `imshow`, such as vmax or cmap

    Examples:
        >>> ax = jaxsink.plots.plot_layers(out)
        >>> ax.get_ylabel(), ax.get_xlabel()
        ('layer', 'head')
    """
    found = largest_of(source, sequence, record, rule)
    picture = found.mean_score.mean(axis=1)
    axes = ax or _new_axes(WIDTH / 2, HEIGHT * 0.75)
    settings = {"cmap": HEAT, "vmin": 0, "interpolation": "nearest", "aspect": "auto"} | options
    image = axes.imshow(picture, **settings)
    if colorbar:
        axes.figure.colorbar(image, ax=axes, label=f"largest {found.what} (column sum)")
    axes.set(xlabel="head", ylabel="layer")
    for axis, labels in ((axes.xaxis, found.heads), (axes.yaxis, found.layers)):
        shown = np.arange(0, len(labels), -(-len(labels) // MOST_TICKS))
        axis.set_ticks(shown, [str(labels[index]) for index in shown])
    return axes


def busiest(found: Largest, layer: int | None = None, head: int | None = None) -> tuple[int, int]:
    """(layer, head) of the first sequence's head whose sink moves most; of several, the one with the strongest sink.

    Args:
        found: largest sinks, from `jaxsink.report.views.largest_of`
        layer: only heads of this layer
        head: only heads of this number

    Examples:
        >>> from jaxsink.report.views import largest_of
        >>> layer, head = jaxsink.plots.busiest(largest_of(out, 0, None, None))
        >>> layer in range(4) and head in range(4)
        True
    """
    jumps, score = found.jumps[:, 0], found.mean_score[:, 0]
    rank = jumps + score / (1 + score.max())
    if layer is not None:
        rank[np.arange(len(rank)) != _index("layer", layer, found.layers)] = -1
    if head is not None:
        rank[:, np.arange(rank.shape[1]) != _index("head", head, found.heads)] = -1
    best_layer, best_head = np.unravel_index(np.argmax(rank), rank.shape)
    return int(found.layers[best_layer]), int(found.heads[best_head])


def _index(what: str, number: int, labels: np.ndarray) -> int:
    where = np.flatnonzero(labels == number)
    if not where.size:
        ends = f"{labels[0]} to {labels[-1]}" if len(labels) > 4 else ", ".join(map(str, labels))
        raise JaxsinkError(f"{what} {number} was not recorded; there is {ends}.")
    return int(where[0])


def _pick(values: np.ndarray, axis: int, what: str, number: Chosen, labels: np.ndarray | None) -> np.ndarray:
    """One layer or head of an array, or the mean of them."""
    if number == "mean" or labels is None:
        return values.mean(axis=axis)
    if not isinstance(number, int | np.integer):
        raise JaxsinkError(f'{what} must be a number or "mean", not {number!r}.')
    return values.take(_index(what, number, labels), axis=axis)


def _title(layer: Chosen, head: Chosen) -> str:
    if layer == head == "mean":
        return "mean of all layers and heads"
    return ", ".join(
        f"mean of {what}s" if n == "mean" else f"{what} {n}" for what, n in (("layer", layer), ("head", head))
    )


def _new_axes(width: float, height: float) -> Axes:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def _size(canvas: Canvas) -> tuple[float, float]:
    """Of a new figure: high enough for the tokens' texts."""
    texts = 0 if canvas.texts is None else PER_TEXT * len(canvas.texts)
    return WIDTH, min(max(HEIGHT, texts + 1), TALLEST)


def _mark_tokens(ax: Axes, canvas: Canvas) -> None:
    """Where tokens are filled in, and where the response begins."""
    if canvas.committed_at is None:
        return
    filled = np.flatnonzero((canvas.committed_at >= 0) & (canvas.committed_at <= canvas.steps[-1]))
    ax.vlines(canvas.committed_at[filled] + 0.5, filled - 0.5, filled + 0.5, color=COMMITTED, lw=1.2, label="filled in")
    if canvas.prompt:
        ax.axhline(canvas.prompt - 0.5, color=COMMITTED, lw=0.8, ls=":", label="response begins")


def _finish(ax: Axes, canvas: Canvas, label: str, own: bool) -> None:
    """Steps to the right; positions down: the tokens' texts where there is room for them, numbers otherwise.

    own: the figure is the plot's own, and gets a legend.
    """
    half = canvas.stride / 2
    ax.set(xlabel="step", xlim=(canvas.steps[0] - half, canvas.steps[-1] + half), ylabel=label)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if own and ax.get_legend_handles_labels()[0]:
        ax.figure.legend(loc="outside lower right", ncols=4, frameon=False, fontsize="small")
    if canvas.texts is None:
        return
    room = ax.bbox.height * 72 / ax.figure.dpi / len(canvas.texts)  # points for each
    size = min(0.95 * room, LARGEST_TEXT)
    if size >= SMALLEST:
        font = get_font(findfont(FontProperties()))
        labels = [f"{number}  {_drawable(text, font)}" for number, text in enumerate(canvas.texts)]
        ax.set_yticks(np.arange(len(labels)), labels, fontsize=size, parse_math=False)


def _drawable(text: str, font: Any) -> str:
    """Without the characters that the font lacks, and not too long."""
    shown = "".join(char if font.get_char_index(ord(char)) else "□" for char in text)
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"
