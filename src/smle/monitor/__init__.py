"""What a model sees and what its head does, counted (`Usage`), and compared with training (`compare`)."""

from smle.monitor.drift import Change, Comparison, compare
from smle.monitor.usage import Edges, Observation, Usage, column_edges

__all__ = ["Change", "Comparison", "Edges", "Observation", "Usage", "column_edges", "compare"]
