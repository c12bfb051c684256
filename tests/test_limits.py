"""What smle does not do: each limit of docs/limits.md, shown."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import smle
from smle import Specification
from smle.baselines import violation_rate
from smle.errors import ConversionError, DataError, RuleError
from smle.nn import BoxNetwork

ROOT = Path(__file__).parents[1]
HEAD = "inputs: {income: [0, 100], age: [18, 90]}\noutputs: [limit, rate]\nrules:\n"
RULES = HEAD + "  - {name: affordable, then: 0 <= limit <= 0.5 * income}\n"
X = pd.DataFrame({"income": [0.0, 50.0, 100.0], "age": [20.0, 40.0, 60.0]})


def nonsense(table):
    return np.full((len(table), 2), np.nan)


def greedy(table):
    return np.full((len(table), 2), 1000.0)


def test_accuracy_is_not_proved():
    model = smle.correct(nonsense, Specification.from_yaml(RULES))
    assert model.certificate_.check()
    with pytest.warns(UserWarning, match="NaN"):
        answers = model.predict(X)
    assert violation_rate(model.specification_, X, answers) == 0


def test_outside_the_domain_the_rules_hold_at_the_clamped_input():
    model = smle.correct(greedy, Specification.from_yaml(RULES))
    far = X.assign(income=300.0)
    with pytest.raises(DataError, match="outside the domain"):
        model.predict(far)
    limit = np.asarray(model.predict(far, out_of_domain="clip"))[:, 0]
    assert (limit <= 0.5 * 100).all()  # the border of the domain, not half of 300


def test_arithmetic_behind_the_model_is_not_covered():
    model = smle.correct(greedy, Specification.from_yaml(RULES))
    answers = np.asarray(model.predict(X))
    assert violation_rate(model.specification_, X, answers) == 0
    assert violation_rate(model.specification_, X, answers * 1.1) > 0


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("limit * rate <= 1", "product|linear"),
        ("abs(limit) == rate", "tolerance"),
        ("limit increases with income", "increases"),
        ("limit <= sqrt(income)", "sqrt"),
    ],
    ids=["products", "equalities", "relations", "functions"],
)
def test_rules_are_linear_and_about_one_row(then, message):
    with pytest.raises(RuleError, match=message):
        Specification.from_yaml(HEAD + f"  - {{name: r, then: {then}}}\n")


def test_conditions_are_about_inputs():
    with pytest.raises(RuleError, match="then"):
        Specification.from_yaml(HEAD + "  - {name: r, when: rate >= 5, then: limit <= 1}\n")


def test_ranges_are_finite():
    with pytest.raises(RuleError, match="finite"):
        Specification.from_yaml(RULES.replace("income: [0, 100]", "income: [0, .inf]"))


def test_estimators_take_one_kind_of_output():
    mixed = RULES.replace("rules:", "labels: [risky]\nrules:")
    for kind in (smle.SafeRegressor, smle.SafeClassifier):
        with pytest.raises(DataError, match="Expected `"):
            kind(mixed).fit(X, np.zeros((3, 3)))


def test_a_learned_box_serves_one_convex_part():
    spec = Specification.from_yaml("inputs: {x: [-1, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= 0 or y >= 10}]\n")
    rows = torch.linspace(-1, 1, 101).reshape(-1, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        box = smle.project(BoxNetwork(torch.nn.Linear(1, 4), spec, embedding=4)).eval()
    with torch.no_grad():
        served = box(rows)
    assert (served <= 0).all() or (served >= 10).all()
    both = smle.correct(lambda table: 20 * table["x"], spec).predict(pd.DataFrame({"x": [-1.0, 1.0]}))
    assert np.ravel(both).tolist() == [-20, 20]


def test_a_function_is_not_stored(tmp_path):
    model = smle.correct(greedy, Specification.from_yaml(RULES))
    assert model.certificate_.check()
    with pytest.raises(ConversionError, match="cannot be stored"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_people_and_plain_models_are_not_bound():
    """A certificate is about one model; `violation_rate` judges what others answer."""
    spec = Specification.from_yaml(RULES)
    assert violation_rate(spec, X, greedy(X)) == 1


def test_every_limit_of_the_page_has_a_test():
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (path, name)
    own = re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for path, name in named if path == "tests/test_limits.py"} == set(own) - {own[-1]}
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| limit")]
    assert all("`tests/" in line for line in rows), "a limit without a test"
