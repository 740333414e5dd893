"""An animation for slides: text being unmasked while received attention glows, above a growing map of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.report.played import PlayedGeneration
from jaxsink.report.view import View

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

    Font: TypeAlias = ImageFont.FreeTypeFont

WIDTH, HEIGHT, EDGE = 1280, 720, 36  # 16:9
TITLE, TEXT_TOP, MAP_TOP, MAP_BOTTOM, AXIS = 26, 92, 420, 668, 68
INK, DIM, LINE, PAGE, MASK, FRESH = "#1c1d21", "#5d6069", "#d4d6db", "#ffffff", (130, 134, 142), "#0b5cad"
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
SLOT = 1.6  # width of a masked slot, in sizes of the font, whatever token it will get
POWER = 1.7
FRAME, HOLD = 120, 2500  # milliseconds per step, and for the last one
MOST = 96  # frames; longer generations skip some
SIZES = (34, 30, 26, 22, 20, 18, 16, 14, 12, 11, 10, 9, 8)  # of the text, the largest that fits


@dataclass(frozen=True)
class Panel:
    """One generation in its part of the picture; scores f32[T, S]."""

    view: View
    left: int
    width: int
    scores: np.ndarray
    font: Font

    @property
    def generation(self) -> PlayedGeneration:
        return self.view.generation


@checked()
def draw_gif(views: list[View], path: Path) -> int:
    """Write the animation of one or two generations to a file; returns the number of frames.

    Args:
        views: what is shown, side by side
        path: of the file

    Examples:
        >>> page = jaxsink.report(out, out="run.html")
        >>> jaxsink.report.draw_gif(list(page.shown), Path("run.gif")) > 1  # frames
        True
    """
    from PIL import Image

    if not views:
        raise JaxsinkError("this study recorded no generations, so there is nothing to animate.")
    if len(views) > 2:
        raise JaxsinkError("an animation shows at most two generations.")
    width = (WIDTH - EDGE * (len(views) + 1)) // len(views)
    panels = [make_panel(view, EDGE + number * (width + EDGE), width) for number, view in enumerate(views)]
    limit = max(float(panel.scores.max()) for panel in panels) or 1.0
    steps = sorted({int(step) for view in views for step in view.generation.steps})
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
    while True:  # averaging has tinted the page; what was white becomes white again
        index = int(np.asarray(white.quantize(palette=sheet, dither=Image.Dither.NONE))[0, 0])
        if (colours[index] == 255).all():
            return sheet
        colours[index] = 255
        sheet.putpalette(colours.ravel().tolist())


def make_panel(view: View, left: int, width: int) -> Panel:
    """With the largest font at which every frame's text fits."""
    frames = range(0, len(view.generation.steps), max(1, len(view.generation.steps) // 8))
    for size in SIZES:
        panel = Panel(view, left, width, view.scores, load_font(size, mono=True))
        lowest = max(box[3] for frame in (*frames, len(view.generation.steps) - 1) for box in lay_out(panel, frame))
        if lowest <= MAP_TOP - 44 or size == SIZES[-1]:
            return panel
    raise AssertionError("the last size is always taken")


@lru_cache
def load_font(size: int, mono: bool = False) -> Font:
    """matplotlib brings these fonts, so that the animation looks the same everywhere."""
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSansMono.ttf" if mono else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def lay_out(panel: Panel, frame: int) -> list[tuple[float, float, float, float]]:
    """A box for each token, line by line; new lines after newlines that are known, and where a line is full."""
    font, left, end = panel.font, float(panel.left), panel.left + panel.width
    height = font.size * 1.45
    x, y, boxes = left, float(TEXT_TOP), []
    for token, known in zip(panel.generation.tokens, panel.generation.shown_at(frame), strict=True):
        wide = max(font.getlength(visible(token)), font.size * 0.6) + 2 if known else font.size * SLOT
        if x + wide > end and x > left:
            x, y = left, y + height
        boxes.append((x, y, min(x + wide, end), y + height - 2))
        x += wide + 1
        if known and "\n" in token:
            x, y = left, y + height
    return boxes


def visible(token: str) -> str:
    text = token.replace("\n", "↵").replace("\t", " ")
    return "".join(char if char.isprintable() else "·" for char in text)


def draw_frame(panels: list[Panel], step: int, limit: float) -> Image.Image:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH, HEIGHT), PAGE)
    pen = ImageDraw.Draw(image)
    for panel in panels:
        frame = max(0, int(np.searchsorted(panel.generation.steps, step, side="right")) - 1)
        draw_text(pen, panel, frame, limit)
        draw_map(image, pen, panel, frame, limit)
    return image


def strength(scores: np.ndarray, limit: float) -> np.ndarray:
    """0…1 on a logarithmic scale, with ordinary tokens pale; the page does the same."""
    return np.clip(np.log1p(scores) / np.log1p(limit), 0, 1) ** POWER


def colours(share: np.ndarray) -> np.ndarray:
    """uint8[..., 3]; white for nothing."""
    import matplotlib

    ink = share[..., None] ** 0.35
    return (matplotlib.colormaps["YlOrRd"](share)[..., :3] * 255 * ink + 255 * (1 - ink)).astype(np.uint8)


def luminance(colour: tuple[int, ...]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    share = np.asarray(colour) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def ink_on(colour: tuple[int, ...]) -> tuple[int, int, int]:
    """Black or white, whichever has more contrast; at least 4.58 : 1 on any colour."""
    return BLACK if (luminance(colour) + 0.05) ** 2 >= 1.05 * 0.05 else WHITE


def draw_text(pen: ImageDraw.ImageDraw, panel: Panel, frame: int, limit: float) -> None:
    generation, small = panel.generation, load_font(16)
    pen.text((panel.left, TITLE), clipped(panel.view.label, load_font(22), panel.width), INK, load_font(22))
    known, fresh = generation.shown_at(frame), generation.fresh_at(frame)
    pen.text((panel.left, TITLE + 32), f"step {generation.steps[frame]} of {generation.steps[-1]}", DIM, small)
    shades = colours(strength(panel.scores[frame], limit))
    for position, box in enumerate(lay_out(panel, frame)):
        if not known[position] and generation.kind == "arm":
            continue
        shade = tuple(int(value) for value in shades[position])
        if known[position]:
            pen.rectangle(box, fill=shade)
            middle = (box[1] + box[3]) / 2
            pen.text((box[0] + 1, middle), visible(generation.tokens[position]), ink_on(shade), panel.font, anchor="lm")
        else:
            mixed = tuple((3 * value + grey) // 4 for value, grey in zip(shade, MASK, strict=True))
            pen.rectangle(box, fill=mixed, outline=LINE)
        if fresh[position]:
            pen.rectangle(box, outline=FRESH)


def draw_map(image: Image.Image, pen: ImageDraw.ImageDraw, panel: Panel, frame: int, limit: float) -> None:
    """Steps to the right, positions down; what is still to come stays empty."""
    from PIL import Image

    generation, small = panel.generation, load_font(14)
    left, right = panel.left + AXIS, panel.left + panel.width
    shades = colours(strength(panel.scores, limit))
    shades[frame + 1 :] = 255
    picture = Image.fromarray(np.ascontiguousarray(shades.transpose(1, 0, 2)))
    image.paste(picture.resize((right - left, MAP_BOTTOM - MAP_TOP), Image.Resampling.NEAREST), (left, MAP_TOP))
    pen.rectangle((left, MAP_TOP, right, MAP_BOTTOM), outline=LINE)
    across, down = (right - left) / len(generation.steps), (MAP_BOTTOM - MAP_TOP) / len(generation.tokens)
    for position in np.flatnonzero((generation.committed_at >= 0) & generation.shown_at(frame)):
        born = min(int(np.searchsorted(generation.steps, generation.committed_at[position])), len(generation.steps) - 1)
        x, y = left + (born + 0.5) * across, MAP_TOP + (position + 0.5) * down
        pen.rectangle((x - 1, y - 1, x + 1, y + 1), fill=FRESH)
    pen.text((panel.left, MAP_TOP - 24), "attention each position receives (blue: where it was filled in)", DIM, small)
    for value, y in ((0, MAP_TOP + 8), (len(generation.tokens) - 1, MAP_BOTTOM - 8)):
        pen.text((left - 8, y), str(value), DIM, small, anchor="rm")
    pen.text((left - 8, (MAP_TOP + MAP_BOTTOM) / 2), "position", DIM, small, anchor="rm")
    pen.text((left, MAP_BOTTOM + 6), str(generation.steps[0]), DIM, small)
    pen.text(((left + right) / 2, MAP_BOTTOM + 6), "step", DIM, small, anchor="ma")
    pen.text((right, MAP_BOTTOM + 6), str(generation.steps[-1]), DIM, small, anchor="ra")


def clipped(text: str, font: Font, width: int) -> str:
    """The text, or as much of it as fits with an ellipsis."""
    text = visible(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
