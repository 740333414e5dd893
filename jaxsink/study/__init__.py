"""A study: subjects (models with questions), measurements that are made once and kept, claims tested against nulls."""

from jaxsink.callable_package import make_callable
from jaxsink.plugins import study
from jaxsink.study import nulls
from jaxsink.study.experiments import Experiment, Measured, Outcome, experiment
from jaxsink.study.finding import Finding, Table
from jaxsink.study.gallery import Gallery
from jaxsink.study.measure import Scores, Study
from jaxsink.study.measurements import Hidden, Measurement, Recorded, Scored, Untrained
from jaxsink.study.predictions import Prediction
from jaxsink.study.subject import Subject, subject, trained
from jaxsink.study.verdicts import Tested, Verdict

__all__ = [
    "Experiment",
    "Finding",
    "Gallery",
    "Hidden",
    "Measured",
    "Measurement",
    "Outcome",
    "Prediction",
    "Recorded",
    "Scored",
    "Scores",
    "Study",
    "Subject",
    "Table",
    "Tested",
    "Untrained",
    "Verdict",
    "experiment",
    "nulls",
    "study",
    "subject",
    "trained",
]

make_callable(__name__, study)
