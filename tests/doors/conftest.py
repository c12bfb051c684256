"""Tables that several doors read."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="session")
def bank():
    """Strings, a stand-in and missing values, columns that the rules do not know."""
    rng = np.random.default_rng(0)
    n = 500
    X = pd.DataFrame({
        "income": rng.lognormal(10.3, 0.6, n).clip(0, 1e6), "age": rng.integers(18, 100, n).astype(float),
        "job": rng.choice(["none", "employee", "self-employed"], n), "town": rng.choice(["x", "y", None], n),
        "undeclared": rng.normal(size=n),
    })  # fmt: skip
    X.loc[rng.random(n) < 0.05, ["age", "job"]] = None
    X.loc[rng.random(n) < 0.1, "undeclared"] = np.nan
    limit = np.minimum(0.3 * X["income"] * rng.uniform(0.6, 1.3, n), 60000) + 500 * (X["town"] == "x")
    return X, pd.DataFrame({"limit": limit, "rate": 8 + 4 * (X["job"] == "none") + rng.normal(0, 1, n)})


@pytest.fixture(scope="session")
def doses():
    rng = np.random.default_rng(1)
    X = pd.DataFrame({"weight": rng.uniform(2, 250, 400), "age": rng.uniform(0, 110, 400)})
    return X, pd.Series(np.minimum(0.04 * X["weight"] * rng.uniform(0.7, 1.3, 400), 4.2), name="dose")
