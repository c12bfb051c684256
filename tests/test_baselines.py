"""What models are compared with: the share of rows that break a rule."""

import numpy as np
import pandas as pd
import pytest

from smle.baselines import violation_rate
from smle.errors import DataError
from smle.rules import Specification

SPEC = Specification.build(
    inputs={"x": (0, 1), "w": (0, 1)},
    outputs=["y"],
    rules={"low": ("x < 0.7", "y <= 0.1"), "high": ("x >= 0.7", "y >= 0.1"), "oblique": ("x + w <= 0.5", "y <= 0")},
)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_constants_are_read_in_the_format_of_the_inputs(kind):
    """Neither float is seven tenths; both are what 0.7 means in their format, so `high` binds and `low` does not."""
    X = pd.DataFrame({"x": np.full(4, 0.7), "w": np.zeros(4)}).astype(kind)
    assert violation_rate(SPEC, X, np.full(4, 1.0)) == 0
    assert violation_rate(SPEC, X, np.full(4, 0.0)) == 1
    below = X.assign(x=np.nextafter(kind(0.7), kind(0)))
    assert violation_rate(SPEC, below, np.full(4, 1.0)) == 1


def test_outputs_are_judged_without_tolerance():
    X = pd.DataFrame({"x": [0.1, 0.1, 0.9, 0.9], "w": [0.0, 0.9, 0.0, 0.0]})
    tenth = 0.1  # this float is above one tenth
    assert violation_rate(SPEC, X, [0.0, tenth, tenth, 1.0]) == 0.25
    assert violation_rate(SPEC, X, [1e-300, np.nextafter(tenth, 0), tenth, np.nextafter(tenth, 0)]) == 0.5


def test_rows_must_match():
    X = pd.DataFrame({"x": [0.1, 0.2], "w": [0.0, 0.9]})
    with pytest.raises(DataError, match="as many rows"):
        violation_rate(SPEC, X, [0.0])
    assert violation_rate(SPEC, X[:0], np.zeros((0, 1))) == 0
