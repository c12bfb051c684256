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
    with pytest.raises(DataError, match="as many outputs"):
        violation_rate(SPEC, X, [0.0])
    assert violation_rate(SPEC, X[:0], np.zeros((0, 1))) == 0


def test_labels_and_options_are_read_as_people_write_them():
    """0 and 1 as whole numbers are labels; as floats they are logits, and a logit of 0 means the label."""
    X = pd.DataFrame({"x": [0.1, 0.2, 0.3, 0.4]})
    labels = Specification.build(inputs={"x": (0, 1)}, labels=["cat", "dog"], rules={"one": "not (cat and dog)"})
    given = pd.DataFrame({"cat": [0, 1, 0, 1], "dog": [0, 0, 1, 1]})
    assert violation_rate(labels, X, given) == violation_rate(labels, X, given.to_numpy(dtype=bool)) == 0.25
    assert violation_rate(labels, X, given.astype(float)) == 1
    for pick in ("max", "min"):
        choice = {"advice": {"options": ["keep", "left", "right"], "pick": pick}}
        spec = Specification.build(inputs={"x": (0, 1)}, choices=choice, rules={"straight": "advice != left"})
        names = ["keep", "left", "right", "keep"]
        assert violation_rate(spec, X, names) == violation_rate(spec, X, pd.DataFrame({"advice": names})) == 0.25
        scores = np.eye(3)[[0, 1, 2, 0]] * (1 if pick == "max" else -1)
        assert violation_rate(spec, X, scores) == 0.25
