"""Real violations: inputs at which rules are most likely to break, and a search judged exactly."""

from smle.violations.search import Broken, Subject, excess_of, hunt

__all__ = ["Broken", "Subject", "excess_of", "hunt"]
