"""Reports: one HTML file that opens from disk, with a player of generations, and a GIF for slides.

`read_study` checks a study directory, `write_page` makes the page, `draw_gif` the animation; `jaxsink.report` (in `own`)
makes the page of one's own runs.
"""

from jaxsink.reporting.gif import draw_gif
from jaxsink.reporting.page import render, write_page
from jaxsink.reporting.study import StudyResults, read_study

__all__ = ["StudyResults", "draw_gif", "read_study", "render", "write_page"]
