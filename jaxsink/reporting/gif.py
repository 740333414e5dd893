"""An animation for slides: text being unmasked while received attention glows, above a growing map of tokens and steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.reporting.runs import Run

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

    Font = ImageFont.FreeTypeFont

WIDTH, HEIGHT, EDGE = 1280, 720, 36  # 16:9
TITLE, TEXT_TOP, MAP_TOP, MAP_BOTTOM, AXIS = 26, 92, 420, 668, 46
INK, ASKED, DIM, LINE, PAGE, MASK, FRESH = (
    "#1c1d21",
    "#44474f",
    "#5d6069",
    "#d4d6db",
    "#ffffff",
    (130, 134, 142),
    "#0b5cad",
)
POWER = 1.7
FRAME, HOLD = 120, 2500  # milliseconds per step, and for the last one
MOST = 96  # frames; longer runs skip some
SIZES = (22, 20, 18, 16, 14, 12, 11, 10, 9, 8)  # of the text, the largest that fits


@dataclass(frozen=True)
class Panel:
    """One run in its part of the picture; scores f32[T, S] averaged over layers and heads."""

    run: Run
    left: int
    width: int
    scores: np.ndarray
    boxes: list[tuple[float, float, float, float]]  # of each token's text
    font: Font


def draw_gif(runs: list[Run], path: Path) -> int:
    """Write the animation of one or two runs to a file; returns the number of frames."""
    from PIL import Image

    if not runs:
        raise JaxsinkError("this study recorded no generations, so there is nothing to animate.")
    if len(runs) > 2:
        raise JaxsinkError("an animation shows at most two generations.")
    width = (WIDTH - EDGE * (len(runs) + 1)) // len(runs)
    panels = [make_panel(run, EDGE + number * (width + EDGE), width) for number, run in enumerate(runs)]
    limit = max(float(panel.scores.max()) for panel in panels) or 1.0
    steps = sorted({int(step) for run in runs for step in run.steps})
    shown = [steps[int(index)] for index in np.unique(np.linspace(0, len(steps) - 1, min(MOST, len(steps))).round())]
    frames = [draw_frame(panels, step, limit) for step in shown]
    palette = common_palette(frames)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    with open(path, "wb") as file:
        frames[0].save(
            file,
            format="GIF",
            save_all=True,
            append_images=frames[1:],
            duration=[FRAME] * (len(frames) - 1) + [HOLD],
            loop=0,
            optimize=False,
        )
    return len(frames)


def common_palette(frames: list[Image.Image]) -> Image.Image:
    """256 colours of the last frames, which hold all the others' colours; one palette keeps steps from flickering."""
    from PIL import Image

    some = [frames[len(frames) * part // 4] for part in range(4)] + [frames[-1]]
    sheet = Image.new("RGB", (WIDTH, HEIGHT * len(some)))
    for number, frame in enumerate(some):
        sheet.paste(frame, (0, HEIGHT * number))
    sheet = sheet.quantize(256)
    colours = np.array(sheet.getpalette()).reshape(-1, 3)
    white = Image.new("RGB", (1, 1), PAGE)
    while True:  # averaging has tinted the page; whatever stands for white becomes white
        index = int(np.asarray(white.quantize(palette=sheet, dither=Image.Dither.NONE))[0, 0])
        if (colours[index] == 255).all():
            return sheet
        colours[index] = 255
        sheet.putpalette(colours.ravel().tolist())


def make_panel(run: Run, left: int, width: int) -> Panel:
    scores = run.parts["scores"].astype(np.float32).mean((1, 2))
    for size in SIZES:
        font = load_font(size, mono=True)
        boxes = lay_out(run, font, left, width)
        if boxes[-1][3] <= MAP_TOP - 44 or size == SIZES[-1]:
            return Panel(run, left, width, scores, boxes, font)
    raise AssertionError("the last size is always taken")


@lru_cache
def load_font(size: int, mono: bool = False) -> Font:
    """matplotlib brings these fonts, so that the animation looks the same everywhere."""
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSansMono.ttf" if mono else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def lay_out(run: Run, font: Font, left: int, width: int) -> list[tuple[float, float, float, float]]:
    """A box for each token, line by line; new lines after newlines and where a line is full."""
    height = font.size * 1.45
    x, y, boxes = float(left), float(TEXT_TOP), []
    for token in run.tokens:
        wide = max(font.getlength(visible(token)), font.size * 0.6) + 2
        if x + wide > left + width and x > left:
            x, y = float(left), y + height
        boxes.append((x, y, min(x + wide, left + width), y + height - 2))
        x += wide + 1
        if "\n" in token:
            x, y = float(left), y + height
    return boxes


def visible(token: str) -> str:
    text = token.replace("\n", "↵").replace("\t", " ")
    return "".join(char if char.isprintable() else "·" for char in text)


def draw_frame(panels: list[Panel], step: int, limit: float) -> Image.Image:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH, HEIGHT), PAGE)
    pen = ImageDraw.Draw(image)
    for panel in panels:
        frame = max(0, int(np.searchsorted(panel.run.steps, step, side="right")) - 1)
        draw_text(pen, panel, frame, limit)
        draw_map(image, pen, panel, frame, limit)
    return image


def strength(scores: np.ndarray, limit: float) -> np.ndarray:
    """0…1 on a logarithmic scale, with ordinary tokens pale; the page does the same."""
    return np.clip(np.log1p(scores) / np.log1p(limit), 0, 1) ** POWER


def colours(share: np.ndarray) -> np.ndarray:
    """uint8[..., 3]; white for nothing."""
    import matplotlib

    return (matplotlib.colormaps["YlOrRd"](share)[..., :3] * 255 * share[..., None] ** 0.35
            + 255 * (1 - share[..., None] ** 0.35)).astype(np.uint8)  # fmt: skip


def draw_text(pen: ImageDraw.ImageDraw, panel: Panel, frame: int, limit: float) -> None:
    run, small = panel.run, load_font(16)
    pen.text((panel.left, TITLE), clipped(run.label, load_font(22), panel.width), INK, load_font(22))
    known, fresh = run.shown_at(frame), run.fresh_at(frame)
    note = f"step {run.steps[frame]} of {run.steps[-1]}"
    pen.text((panel.left, TITLE + 32), note, DIM, small)
    shades = colours(strength(panel.scores[frame], limit))
    for place, box in enumerate(panel.boxes):
        if not known[place] and run.kind == "arm":
            continue
        shade = tuple(int(value) for value in shades[place])
        if known[place]:
            pen.rectangle(box, fill=shade)
            light = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2]
            ink = "#ffffff" if light < 130 else ASKED if place < run.prompt_length else INK
            middle = (box[1] + box[3]) / 2
            pen.text((box[0] + 1, middle), visible(run.tokens[place]), ink, panel.font, anchor="lm")
        else:
            pen.rectangle(
                box, fill=tuple((3 * value + grey) // 4 for value, grey in zip(shade, MASK, strict=True)), outline=LINE
            )
        if fresh[place]:
            pen.rectangle(box, outline=FRESH)


def draw_map(image: Image.Image, pen: ImageDraw.ImageDraw, panel: Panel, frame: int, limit: float) -> None:
    """Steps across, positions down; what is still to come stays empty."""
    from PIL import Image

    run, small = panel.run, load_font(14)
    left, right = panel.left + AXIS, panel.left + panel.width
    shades = colours(strength(panel.scores, limit))
    shades[frame + 1 :] = 255
    picture = Image.fromarray(np.ascontiguousarray(shades.transpose(1, 0, 2)))
    image.paste(picture.resize((right - left, MAP_BOTTOM - MAP_TOP), Image.Resampling.NEAREST), (left, MAP_TOP))
    pen.rectangle((left, MAP_TOP, right, MAP_BOTTOM), outline=LINE)
    across, down = (right - left) / len(run.steps), (MAP_BOTTOM - MAP_TOP) / len(run.tokens)
    for place in np.flatnonzero((run.committed_at >= 0) & run.shown_at(frame)):
        born = min(int(np.searchsorted(run.steps, run.committed_at[place])), len(run.steps) - 1)
        x, y = left + (born + 0.5) * across, MAP_TOP + (place + 0.5) * down
        pen.rectangle((x - 1, y - 1, x + 1, y + 1), fill=FRESH)
    pen.text((panel.left, MAP_TOP - 24), "attention each token receives (blue: where it was filled in)", DIM, small)
    for value, y in ((0, MAP_TOP + 8), (len(run.tokens) - 1, MAP_BOTTOM - 8)):
        pen.text((left - 8, y), str(value), DIM, small, anchor="rm")
    pen.text((left - 8, (MAP_TOP + MAP_BOTTOM) / 2), "token", DIM, small, anchor="rm")
    pen.text((left, MAP_BOTTOM + 6), str(run.steps[0]), DIM, small)
    pen.text(((left + right) / 2, MAP_BOTTOM + 6), "step", DIM, small, anchor="ma")
    pen.text((right, MAP_BOTTOM + 6), str(run.steps[-1]), DIM, small, anchor="ra")


def clipped(text: str, font: Font, width: int) -> str:
    """The text, or as much of it as fits with an ellipsis."""
    text = visible(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
