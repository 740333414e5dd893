"""A study: subjects (models with questions), measurements that are made once and kept, findings with verdicts."""

from jaxsink.callable_package import make_callable
from jaxsink.plugins import study
from jaxsink.study.experiments import Experiment, Measured, Outcome, experiment
from jaxsink.study.finding import Finding, Table
from jaxsink.study.gallery import Gallery
from jaxsink.study.measure import Measurement, Recorded, Scored, Scores, Study
from jaxsink.study.subject import Subject, subject, trained

__all__ = [
    "Experiment",
    "Finding",
    "Gallery",
    "Measured",
    "Measurement",
    "Outcome",
    "Recorded",
    "Scored",
    "Scores",
    "Study",
    "Subject",
    "Table",
    "experiment",
    "study",
    "subject",
    "trained",
]

make_callable(__name__, study)
