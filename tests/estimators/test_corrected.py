"""A network behind a head of rules: trained without them, then made safe; an estimator like any other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from smle import NetworkClassifier, NetworkRegressor, SafeClassifier, SafeRegressor, Specification, load
from smle.doors.assure import project_model
from smle.errors import ContradictionError
from smle.report import write_report
from smle.rules.membership import broken

NAMES = ["l0", "l1", "l2", "l3", "l4"]
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (0, 2)]
TAGS = Specification.from_yaml(
    "inputs: {a: [-3, 3], b: [-3, 3]}\nlabels: [l0, l1, l2, l3, l4]\nrules:\n"
    f"  - {{name: apart, never_together: {[[NAMES[i], NAMES[k]] for i, k in PAIRS]}}}\n"
)
OPTIONS = {"hidden_layer_sizes": (16,), "max_epochs": 60, "patience": 20, "random_state": 0, "verbose": False}


def tagged(rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (rows, 2))
    return X, (X @ rng.normal(size=(2, 5)) + 0.3 > 0).astype(int)  # breaks the rules in many rows


def conflicts(on: np.ndarray) -> np.ndarray:
    return np.any([on[:, i] & on[:, k] for i, k in PAIRS], axis=0)


def test_labels_obey_and_the_rest_stays_as_without_rules(tmp_path: Path) -> None:
    X, y = tagged()
    assert conflicts(y == 1).mean() > 0.3
    model = SafeClassifier(TAGS, NetworkClassifier(**OPTIONS)).fit(X, y)
    plain = SafeClassifier(replace(TAGS, rules=()), NetworkClassifier(**OPTIONS)).fit(X, y)
    ours, before = np.asarray(model.predict(X)) == 1, np.asarray(plain.predict(X)) == 1
    broken = conflicts(before)
    assert broken.any()
    assert not conflicts(ours).any()
    assert (ours != before)[~broken].mean() < 0.01
    assert model.certificate_ is not None
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X))


CAPPED = Specification.from_yaml("""
inputs: {weight: [2, 250], severity: [0, 1]}
outputs: [dose]
rules:
  - {name: per kilogram, then: 0 <= dose <= 0.05 * weight}
  - {name: at most, then: dose <= 4}
""")


def doses(rows: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.stack([rng.uniform(2, 250, rows), rng.uniform(0, 1, rows)], axis=1)
    return X, np.minimum(0.05 * X[:, 0], 4) * (0.2 + 0.7 * X[:, 1])  # obeys


def test_the_answers_of_a_plain_network_pass_where_rules_allow_them(tmp_path: Path) -> None:
    X, y = doses()
    model = SafeRegressor(CAPPED, NetworkRegressor(**OPTIONS)).fit(X, y)
    own = model.deployed_.front(X)
    served = model.raw_outputs(X).astype(np.float32)
    allowed = ~broken(CAPPED, X, own.astype(np.float64)).any(axis=1)
    assert 0 < (~allowed).sum() < len(X) / 2
    np.testing.assert_array_equal(served[allowed], own[allowed])
    usage = model.usage(X)
    assert usage.head.ways == {"kept": allowed.sum(), "moved": (~allowed).sum(), "near": 0, "replaced": 0, "safe": 0}
    found = write_report(model, pd.DataFrame({"weight": X[:, 0], "severity": X[:, 1], "dose": y}), tmp_path / "r.html")
    assert found.verdict == "proved"
    assert "How answers are served" in found.path.read_text(encoding="utf-8")


def test_edited_rules_are_proved_behind_the_same_network() -> None:
    X, y = doses(600)
    model = SafeRegressor(CAPPED, NetworkRegressor(**OPTIONS)).fit(X, y)
    stricter = Specification.from_yaml(CAPPED.to_yaml().replace("dose <= 4", "dose <= 2.5"))
    other = project_model(model, stricter)
    np.testing.assert_array_equal(other.predict(X), np.minimum(model.predict(X), np.float32(2.5)))
    assert other.certificate_.check()


def test_rules_that_cannot_be_met_are_refused_before_training() -> None:
    X, y = doses(200)
    text = CAPPED.to_yaml() + "  - {name: enough, when: severity >= 0.9, then: dose >= 1}\n"
    model = SafeRegressor(Specification.from_yaml(text), NetworkRegressor(**OPTIONS))
    model._train = lambda *_: pytest.fail("Training began.")  # type: ignore[method-assign]
    with pytest.raises(ContradictionError, match=r"'per kilogram' and 'enough'.*weight="):
        model.fit(X, y)
