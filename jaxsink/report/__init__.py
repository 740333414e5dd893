"""Reports: one HTML file that opens from disk, with a player of generations, and a GIF for slides.

`read_study` checks a study directory, `write_page` makes the page, `draw_gif` the animation; `jaxsink.report(...)` (`own`)
makes the page of one's own generations.
"""

from jaxsink.callable_package import make_callable
from jaxsink.report.gif import draw_gif
from jaxsink.report.own import report, show
from jaxsink.report.page import render, write_page
from jaxsink.report.study import StudyResults, read_study

__all__ = ["StudyResults", "draw_gif", "read_study", "render", "report", "show", "write_page"]

make_callable(__name__, report)
