"""Small models of every kind that a report has to show."""

import numpy as np
import pandas as pd
import pytest

from smle import NetworkRegressor, SafeRegressor, SMLEClassifier, SMLERegressor, Specification
from smle.errors import AccuracyWarning
from support.chromium import Chromium, find_browser
from support.fitted import fitted_once
from support.report_rules import CHOICE, DOSE, LABELS
from support.safe_networks import AtTheEnd

_SMALL = {"hidden_layer_sizes": (12,), "embedding": 8, "max_epochs": 3, "random_state": 0, "verbose": False}
_BOX = {**_SMALL, "enforcement": AtTheEnd(), "compare": False}  # heads of rules have tests of their own


@pytest.fixture(scope="session")
def labels(tmp_path_factory):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"length": rng.uniform(0, 3, 200), "weight": rng.uniform(0, 100, 200)})
    table["place"] = rng.choice(["home", "farm", "<wild> & free"], 200)
    table["cat"], table["dog"] = (table.length < 1).astype(int), (table.length > 0.8).astype(int)
    table["animal"] = table.dog
    model = SMLEClassifier(Specification.from_yaml(LABELS), **_BOX)
    return fitted_once("labels", lambda: model.fit(table, table[["cat", "dog", "animal"]]), tmp_path_factory), table


@pytest.fixture(scope="session")
def choice(tmp_path_factory):
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"distance": rng.uniform(0, 100, 200), "angle": rng.uniform(-180, 180, 200)})
    table["speed"] = rng.integers(0, 11, 200)
    table["advice"] = np.where(table.distance > 60, "clear", np.where(table.angle > 0, "left", "right"))
    model = SMLEClassifier(Specification.from_yaml(CHOICE), **_BOX)
    return fitted_once("choice", lambda: model.fit(table, table["advice"]), tmp_path_factory), table


@pytest.fixture(scope="session")
def dose(tmp_path_factory):
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"weight": rng.uniform(3, 120, 200), "sugar": rng.uniform(40, 400, 200)})
    table["dose"] = 0.3 * table.weight + rng.normal(0, 6, 200)
    table["second"] = 0.4 * table.dose
    model = SMLERegressor(Specification.from_yaml(DOSE), bounds="affine", **_BOX)
    return fitted_once("dose", lambda: model.fit(table, table[["dose", "second"]]), tmp_path_factory), table


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    rng = np.random.default_rng(3)
    table = pd.DataFrame(rng.uniform(0, 1, (100, 2)), columns=["a", "b"])
    table["y"] = 2 * table.a
    nothing = "inputs: {a: [0, 1], b: [0, 1]}\noutputs: [y]\nrules: []"
    model = SafeRegressor(nothing, NetworkRegressor(**_SMALL))
    return fitted_once("plain", lambda: model.fit(table[["a", "b"]], table["y"]), tmp_path_factory), table


@pytest.fixture(scope="session")
def poor(tmp_path_factory):
    """A model that obeys and is no good: two epochs are too few."""
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"weight": rng.uniform(3, 120, 400), "sugar": rng.uniform(40, 400, 400)})
    table["dose"] = 0.4 * table.weight
    table["second"] = 0.001 * table.sugar
    model = SMLERegressor(
        Specification.from_yaml(DOSE), **{**_BOX, "max_epochs": 2, "compare": True}, refit_heads=False
    )

    def fit():
        with pytest.warns(AccuracyWarning):
            return model.fit(table, table[["dose", "second"]])

    return fitted_once("poor", fit, tmp_path_factory), table


@pytest.fixture(scope="session")
def browser():
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    driver = Chromium(path)
    yield driver
    driver.close()
