"""The bench of corrected models: its nearness is that of exhaustive search."""

from __future__ import annotations

import numpy as np

from studies.bench.correction import _label_rules, _several, nearness


def test_nearness_is_measured_against_exhaustive_search() -> None:
    repaired, same, safe, excess = nearness(_several(np.random.default_rng(0)), np.ones(10), 10, 0)
    assert repaired == same > 5
    assert (safe, excess) == (0, 0)
    repaired, same, *_ = nearness(*_label_rules(4, ["a0 implies a1", "not (a1 and a2)"]), 30, 0)
    assert repaired == same > 5
