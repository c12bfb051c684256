"""Counts what a model sees and what its head does (`Usage`), and compares it with training (`compare`)."""

from smle.monitor.drift import Change, Changes, compare
from smle.monitor.usage import Edges, Usage, column_edges

__all__ = ["Change", "Changes", "Edges", "Usage", "column_edges", "compare"]
