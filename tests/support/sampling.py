"""Points where rules are most likely to break, and an exact judge of outputs; the studies have them too."""

from studies.bench.sampling import Judge, hard_points

__all__ = ["Judge", "hard_points"]
