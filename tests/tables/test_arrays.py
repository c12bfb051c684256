"""Arrays that NumPy reads in a way of its own: masks, and other orders of bytes."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from smle import SafeRegressor, Specification, correct
from smle.errors import DataError

RULES = """inputs: {x: [0, 1], z: [0, 1]}
outputs: [y]
rules:
  - {name: high, when: x >= 0.7, then: y >= 1}
  - {name: low, when: x < 0.7, then: y <= 0}
"""


def models():
    """A function behind a head of rules, and an estimator: two doors for arrays."""
    X = np.random.default_rng(0).uniform(size=(40, 2))
    spec = Specification.from_yaml(RULES)
    yield correct(lambda table: np.full(len(table), 0.5), spec)
    yield SafeRegressor(spec, estimator=Ridge(), compare=False).fit(X, np.where(X[:, 0] < 0.7, -1.0, 2.0))


@pytest.mark.parametrize("named", [False, True])
def test_float32_is_float32_in_every_order_of_bytes(named):
    """The float32 number 0.7 is not below 0.7 in float32, and is in float64."""
    rows = np.array([[0.7, 0.5]], dtype=np.float32)
    for model in models():
        for order in "<>":
            X = rows.astype(np.dtype(np.float32).newbyteorder(order))
            assert model.predict(pd.DataFrame(X, columns=["x", "z"]) if named else X)[0] >= 1


@pytest.mark.parametrize("kind", [np.float32, np.float64, object])
def test_what_is_masked_is_missing(kind):
    X = np.ma.MaskedArray(np.array([[0.9, 0.5], [0.1, 0.5]], dtype=kind), mask=[[True, False], [False, False]])
    for model in models():
        assert model.predict(np.ma.MaskedArray(X.data, mask=False))[0] >= 1
        with pytest.raises((DataError, ValueError), match=r"missing|NaN"):
            model.predict(X)
