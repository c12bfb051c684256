"""`smle.attack`: what it finds is real, it finds what can be found, and nothing found is no proof."""

from fractions import Fraction

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor
from torch import nn

import smle
from smle.attacks import attack
from smle.errors import DataError, ModelFormatError, RuleError
from smle.rules import Specification
from smle.violations.search import excess_of

BRAKES = Specification.from_yaml("""
inputs: {distance: [0, 200], speed: [0, 40], friction: [0.1, 1]}
outputs: [brake]
rules:
  - {name: emergency, when: distance <= 10 and speed >= 20, then: brake >= 0.8}
  - {name: range, then: 0 <= brake <= 1}
""")
TABLE = Specification.from_yaml("""
inputs:
  income: {range: [0, 1000], missing: 200}
  lanes: {range: [1, 8], integer: true}
  road: {categories: [dry, wet, icy], missing: dry}
outputs: [limit]
labels: [cat, dog]
choices: {advice: [keep, left, right], lane: {options: [a, b], pick: min}}
rules:
  - {name: limit, when: road == icy and lanes >= 3, then: limit <= 0.35 * income + 10}
  - {name: pair, then: not (cat and dog)}
  - {name: keep, when: lanes == 8, then: advice == keep}
  - {name: lane, when: income >= 900, then: lane == a}
""")


def confirmed(found, spec):
    """Judge a violation again: by the specification itself, from the row and the outputs that are reported."""
    violation = found.violation
    x = []
    for item in spec.inputs:
        value = violation.row[item.name]
        if hasattr(item, "categories"):
            value = item.missing if value is None else value
            x += [Fraction(value == category) for category in item.categories]
        else:
            x.append(item.missing if value is None else Fraction(value))
    y = [Fraction(violation.outputs[name]) for name in spec.targets]
    assert violation.rule in spec.violated(x, y)
    return violation


def obedient(table):
    """Answer as all rules of TABLE ask."""
    n = len(table)
    return pd.DataFrame(
        {"limit": np.zeros(n), "cat": np.zeros(n, int), "dog": np.ones(n, int), "advice": "keep", "lane": "a"}
    )


def test_a_violation_is_real_and_told_in_the_users_words():
    found = attack(lambda t: np.where(t["distance"] == 10, 0.5, 0.9), BRAKES)
    violation = confirmed(found, BRAKES)
    assert violation.rule == "emergency"
    assert list(violation.inputs) == ["distance", "speed"], "friction plays no part"
    assert violation.inputs["distance"] == 10
    assert violation.inputs["speed"] >= 20
    assert violation.row["friction"] == pytest.approx(0.55), "what plays no part has a usual value"
    assert violation.answer == {"brake": 0.5}
    assert violation.excess == Fraction("0.8") - Fraction(0.5)
    assert "off by 0.3" in repr(found)
    assert "distance=10" in repr(found)


def test_an_input_that_only_the_model_reads_matters():
    found = attack(lambda t: np.where(t["friction"] < 0.3, 1.5, 0.9), BRAKES)
    assert list(confirmed(found, BRAKES).inputs) == ["friction"]


def test_nothing_found_is_no_proof():
    found = attack(lambda t: np.full(len(t), 0.9), BRAKES, tries=500)
    assert not found.found
    assert found.violation is None
    assert found.tried >= 500
    assert "not a proof" in repr(found)
    with pytest.raises(TypeError, match="no truth value"):
        bool(found)


def test_a_rule_that_no_input_switches_on_is_named():
    spec = Specification.build(
        inputs={"a": (0, 1), "n": {"range": (0, 9), "integer": True}},
        outputs=["y"],
        rules={"never": ("a + n >= 3.5 and a + n <= 3.6 and a >= 0.7", "y <= 1"), "always": "y <= 2"},
    )
    found = attack(lambda t: np.zeros(len(t)), spec, tries=300)
    assert found.unreached == ("never",)
    assert "These rules apply at none of them: never" in repr(found)


@pytest.mark.parametrize(
    ("column", "wrong", "rule", "where"),
    [
        ("limit", lambda t: np.where((t["lanes"] == 3) & (t["road"] == "icy"), 500.0, 0.0), "limit", "road"),
        ("limit", lambda t: np.where(t["income"].isna(), 100.0, 0.0), "limit", "income"),
        ("cat", lambda t: (t["lanes"] == 5).astype(int), "pair", "lanes"),
        ("advice", lambda t: np.where(t["road"].isna(), "left", "keep"), "keep", "lanes"),
        ("lane", lambda t: np.where(t["income"] > 990, "b", "a"), "lane", "income"),
    ],
)
def test_categories_missing_values_whole_numbers_labels_and_choices(column, wrong, rule, where):
    found = attack(lambda t: obedient(t).assign(**{column: wrong(t)}), TABLE)
    violation = confirmed(found, TABLE)
    assert violation.rule == rule
    assert where in violation.inputs
    assert violation.row["lanes"] == int(violation.row["lanes"])


def test_the_table_is_one_that_a_user_could_pass():
    seen = []
    attack(lambda t: seen.append(t) or obedient(t), TABLE, tries=400)
    table = pd.concat(seen)
    assert set(table["road"].dropna()) == {"wet", "icy"}, "dry stands in for missing"
    assert table["road"].isna().any()
    assert table["income"].isna().any()
    assert (table["lanes"] == table["lanes"].round()).all()


def test_decisions_do_not_do_where_rules_compare_scores():
    spec = Specification.build(inputs={"a": (0, 1)}, labels=["cat"], rules={"sure": "logit(cat) >= 1"})
    with pytest.raises(DataError, match="compares raw scores of 'cat'"):
        attack(lambda t: np.ones(len(t), dtype=int), spec)
    assert attack(lambda t: np.full(len(t), 0.5), spec).found
    assert not attack(lambda t: np.full(len(t), 1.5), spec, tries=100).found


def test_ties_of_scores_break_a_choice():
    spec = Specification.build(inputs={"a": (0, 1)}, choices={"c": ["x", "y"]}, rules={"r": "c == x"})
    found = attack(lambda t: np.zeros((len(t), 2)), spec)
    assert found.violation.answer == {"c": "x = y"}
    assert found.violation.excess == 0
    assert "it reaches a limit that the rule excludes" in repr(found)


def test_nan_is_a_violation_and_a_number_tells_more():
    found = attack(lambda t: np.full(len(t), np.nan), BRAKES)
    assert found.violation.excess is None
    assert "not a finite number" in repr(found)
    mixed = attack(lambda t: np.where(t["speed"] > 20, np.nan, 7.0), BRAKES)
    assert mixed.violation.excess == 6


def test_a_single_float_too_high_is_found_at_the_border():
    above = float(np.nextafter(np.float64(0.8), 0))
    found = attack(lambda t: np.where(t["speed"] == 20.0, above, 0.9), BRAKES)
    violation = confirmed(found, BRAKES)
    assert violation.row["speed"] == 20
    assert violation.excess == Fraction("0.8") - Fraction(above)


class Hill(nn.Module):
    """A flat hill in 30 inputs that rises above 1 near its top alone."""

    def __init__(self):
        super().__init__()
        self.top = torch.rand(30, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        return 1.003 - ((x - self.top) ** 2).mean(dim=-1)


def test_gradients_lead_where_points_and_steps_do_not():
    spec = Specification.build(inputs={f"x{i}": (0, 1) for i in range(30)}, outputs=["y"], rules={"r": "y <= 1"})
    hill = Hill()
    assert confirmed(attack(hill, spec, tries=4000), spec).excess < Fraction(3, 1000)
    assert hill.training, "it is left in its own mode"

    def blind(table):
        return hill(torch.tensor(table.to_numpy(dtype=np.float32))).numpy()

    assert not attack(blind, spec, tries=4000).found, "the test needs no gradient, so it tests none"


def test_estimators_are_asked_as_they_were_fitted():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"distance": rng.uniform(0, 200, 300), "speed": rng.uniform(0, 40, 300), "friction": 0.5})
    y = X["speed"] / 40
    for table in (X, X.to_numpy()):
        found = attack(DecisionTreeRegressor().fit(table, y), BRAKES)
        assert confirmed(found, BRAKES).rule == "emergency"
    wide = X.assign(driver=["ann", "bob", "eve"] * 100)
    model = LinearRegression().fit(wide[["distance", "speed"]], y)

    def asked(table):
        assert set(table["driver"]) <= {"ann", "bob", "eve"}
        return model.predict(table[["distance", "speed"]])

    assert attack(asked, BRAKES, examples=wide).found


def test_classifiers_answer_by_their_probabilities():
    spec = Specification.build(
        inputs={"a": (0, 1), "b": (0, 1)}, choices={"c": ["x", "y"]}, rules={"r": ("a >= 0.9", "c == x")}
    )
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.random((200, 2)), columns=["a", "b"])
    model = RandomForestClassifier(5, random_state=0).fit(X, np.where(X["b"] > 0.5, "y", "x"))
    found = attack(model, spec)
    assert confirmed(found, spec).answer == {"c": "y"}
    assert not attack(smle.correct(model, spec), tries=2000).found


def test_onnx_files_are_run(tmp_path):
    constant = onnx.helper.make_graph(
        [onnx.helper.make_node("Gemm", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, 1])],
        [onnx.numpy_helper.from_array(np.array([[0.0], [0.02], [0.0]], dtype=np.float32), "w")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(constant, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    found = attack(path, BRAKES)
    assert confirmed(found, BRAKES).rule == "emergency"
    safe = smle.correct(str(path), BRAKES)
    safe.to_onnx(tmp_path / "safe.onnx")
    assert not attack(tmp_path / "safe.onnx", BRAKES, tries=2000).found
    with pytest.raises(ModelFormatError, match="is a folder"):
        attack(tmp_path, BRAKES)
    with pytest.raises(ModelFormatError, match="Cannot read"):
        attack(tmp_path / "none.onnx", BRAKES)


def test_a_file_is_judged_at_the_numbers_that_it_reads(tmp_path):
    """The float64 just above 0.1 is 0.1 in float32, which a file reads, and there the rule does not bind."""
    spec = Specification.build(inputs={"b": (-1, 1)}, outputs=["z"], rules={"c": ("b > 0.1", "z <= 0")})
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"b": rng.uniform(-1, 1, 300)})
    model = smle.SafeRegressor(spec, estimator=DecisionTreeRegressor(max_depth=2)).fit(X, np.ones(300))
    model.to_onnx(tmp_path / "m.onnx")
    assert not attack(tmp_path / "m.onnx", spec, tries=1500).found
    assert not attack(model, tries=1500).found


def test_an_exported_file_with_categories_and_missing_values_stands(tmp_path):
    spec = Specification.build(
        inputs={
            "income": {"range": (0, 1000), "missing": 200},
            "road": {"categories": ["dry", "icy"], "missing": "dry"},
        },
        outputs=["limit"],
        rules={"icy": ("road == icy", "limit <= 0.35 * income"), "range": "0 <= limit <= 400"},
    )
    X = pd.DataFrame({"income": [1.0, 500.0, 900.0, 30.0] * 10, "road": ["dry", "icy"] * 20})
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    inner = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), ["road"]), ("passthrough", ["income"])
        ), DecisionTreeRegressor(max_depth=3)
    )  # fmt: skip
    model = smle.SafeRegressor(spec, estimator=inner).fit(X, X["income"])
    model.to_onnx(tmp_path / "m.onnx")
    for target in (model, tmp_path / "m.onnx"):
        found = attack(target, spec, tries=1500)
        assert not found.found
        assert found.unreached == ()


def test_own_models_bring_their_rules_and_count_nothing():
    safe = smle.correct(lambda t: np.full(len(t), 5.0), BRAKES)
    found = attack(safe, tries=1000)
    assert not found.found
    assert not any(safe.served_.values())


def test_the_order_of_random_numbers_is_the_callers():
    model = DecisionTreeRegressor(random_state=0).fit([[0.0, 0, 0.1], [1, 9, 0.2], [2, 3, 0.3]], [0.1, 0.9, 3])
    one, two = (attack(model, BRAKES, seed=7).violation for _ in range(2))
    assert one.row == two.row


def test_what_is_wrong_is_said():
    with pytest.raises(TypeError, match="the model has none"):
        attack(lambda t: t)
    with pytest.raises(RuleError, match="rules to attack"):
        attack(lambda t: t, Specification.build(inputs={"a": (0, 1)}, outputs=["y"]))
    with pytest.raises(RuleError, match=r"Got \['no'\]"):
        attack(lambda t: t, BRAKES, rules=["no"])
    with pytest.raises(ValueError, match="at least one try"):
        attack(lambda t: t, BRAKES, tries=0)
    with pytest.raises(TypeError, match="the class LinearRegression"):
        attack(LinearRegression, BRAKES)
    with pytest.raises(DataError, match=r"answers of shape \(\d+, 1\)"):
        attack(lambda t: np.zeros((len(t), 2)), BRAKES)
    for reads_more in (lambda t: t["extra"], smle.correct(lambda t: t["extra"].to_numpy(), BRAKES)):
        with pytest.raises(DataError, match=r"'extra'.* pass examples=TABLE"):
            attack(reads_more, BRAKES)
    with pytest.raises(DataError, match="examples do not fit"):
        attack(lambda t: np.zeros(len(t)), BRAKES, examples=pd.DataFrame({"speed": [1.0]}))


def test_the_excess_of_a_rule_is_that_of_its_worst_clause():
    spec = Specification.build(
        inputs={"a": (0, 1)},
        outputs=["y", "z"],
        labels=["p", "q"],
        rules={"r": "y <= 1 and (z <= 2 or y <= z) and not (p and q)"},
    )
    rule = spec.rules[0].requirement
    assert excess_of(rule, np.array([0.5]), np.array([1.5, 3.0, -1.0, 1.0])) == (Fraction(1, 2), (0,))
    assert excess_of(rule, np.array([0.5]), np.array([5.0, 3.0, -1.0, 1.0])) == (Fraction(4), (0,))
    assert excess_of(rule, np.array([0.5]), np.array([0.0, 3.0, 7.0, 6.0])) == (Fraction(6), (2, 3))
    assert excess_of(rule, np.array([0.5]), np.array([np.nan, 3.0, 7.0, 6.0]))[0] is None
    assert excess_of(rule, np.array([0.5]), np.array([0.0, 3.0, np.inf, np.inf])) == (None, (2, 3))
    assert excess_of(rule, np.array([0.5]), np.array([0.0, 3.0, np.inf, np.nan])) == (Fraction(-1), (0,))
