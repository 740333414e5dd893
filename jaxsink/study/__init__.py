"""A study: subjects (models with questions), measurements that are made once and kept, findings with verdicts."""

from jaxsink.study.finding import Finding, Table
from jaxsink.study.measure import Gallery, Study
from jaxsink.study.subject import Subject, subject

__all__ = ["Finding", "Gallery", "Study", "Subject", "Table", "subject"]
