"""Reports: one HTML file that opens from disk, with a player of generations, and a GIF for slides.

`jaxsink.report(...)` (in write.py) makes both. `read_study` checks a study directory, `write_page` makes the page of it,
`draw_gif` the animation.
"""

from jaxsink.callable_package import make_callable
from jaxsink.report.gif import draw_gif
from jaxsink.report.own import show
from jaxsink.report.page import render, write_page
from jaxsink.report.study import StudyResults, read_study
from jaxsink.report.write import Page, report

__all__ = ["Page", "StudyResults", "draw_gif", "read_study", "render", "report", "show", "write_page"]

make_callable(__name__, report)
