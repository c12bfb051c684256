"""Counts what a model sees and what its head does (`Usage`), and compares it with training (`compare`)."""

from smle.monitor.drift import Change, Comparison, compare
from smle.monitor.usage import Edges, Observation, Usage, column_edges

__all__ = ["Change", "Comparison", "Edges", "Observation", "Usage", "column_edges", "compare"]
