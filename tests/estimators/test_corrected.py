"""A network behind a head of rules: what it answers itself passes where rules allow it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from smle import NetworkRegressor, SafeRegressor, Specification
from smle.errors import ContradictionError
from smle.report import write_report
from smle.rules.membership import broken

OPTIONS = {"hidden_layer_sizes": (16,), "max_epochs": 60, "patience": 20, "random_state": 0, "verbose": False}


CAPPED = Specification.from_yaml("""
inputs: {weight: [2, 250], severity: [0, 1]}
outputs: [dose]
rules:
  - {name: per kilogram, then: 0 <= dose <= 0.05 * weight}
  - {name: at most, then: dose <= 4}
""")


@pytest.fixture(scope="module")
def doses() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.stack([rng.uniform(2, 250, 1500), rng.uniform(0, 1, 1500)], axis=1)
    return X, np.minimum(0.05 * X[:, 0], 4) * (0.2 + 0.7 * X[:, 1])  # obeys


@pytest.fixture(scope="module")
def model(doses: tuple[np.ndarray, np.ndarray]) -> SafeRegressor:
    return SafeRegressor(CAPPED, NetworkRegressor(**OPTIONS)).fit(*doses)


def test_the_answers_of_a_plain_network_pass_where_rules_allow_them(doses, model, tmp_path: Path) -> None:
    X, y = doses
    own = model.deployed_.front(X)
    served = model.raw_outputs(X).astype(np.float32)
    allowed = ~broken(CAPPED, X, own.astype(np.float64)).any(axis=1)
    assert 0 < (~allowed).sum() < len(X) / 2
    np.testing.assert_array_equal(served[allowed], own[allowed])
    assert not broken(CAPPED, X, served.astype(np.float64)).any()
    usage = model.usage(X)
    assert usage.head.ways == {"kept": allowed.sum(), "moved": (~allowed).sum(), "near": 0, "replaced": 0, "safe": 0}
    found = write_report(model, pd.DataFrame({"weight": X[:, 0], "severity": X[:, 1], "dose": y}), tmp_path / "r.html")
    assert found.verdict == "proved"
    assert "How answers are served" in found.path.read_text(encoding="utf-8")


def test_rules_that_cannot_be_met_are_refused_before_training(doses) -> None:
    text = CAPPED.to_yaml() + "  - {name: enough, when: severity >= 0.9, then: dose >= 1}\n"
    network = NetworkRegressor(**OPTIONS, callbacks=[lambda info: pytest.fail("Training began.")])
    with pytest.raises(pytest.fail.Exception, match="began"):
        SafeRegressor(CAPPED, network).fit(*doses)
    with pytest.raises(ContradictionError, match=r"'per kilogram' and 'enough'.*weight="):
        SafeRegressor(text, network).fit(*doses)
