"""What the page says: figures, numbers, words."""

import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from smle import SafeRegressor
from smle.report import svg, write_report
from smle.report.data_view import accuracy_view
from smle.report.measured import measure
from smle.report.recorded import history_of, scores_of, training_of, typical_of
from smle.report.view import history_view
from smle.report.wording import domain_text, listed, margin_text, number
from smle.rules import Specification, share_text
from smle.tables import encode_inputs


@pytest.mark.parametrize("kind", ["braking", "labels", "choice", "dose"])
def test_measured_violations_are_the_definition(kind, braking_model, braking_table, labels, choice, dose):
    model, table = {"braking": (braking_model, braking_table), "labels": labels, "choice": choice, "dose": dose}[kind]
    spec, table = model.specification_, table.head(60)
    figures = measure(model, table)
    X = encode_inputs(spec, table)
    assert figures.scores.violations["safe"] == 0
    assert sum(figures.usage.cells) == figures.inside == len(table)
    truth = figures.targets - (0.5 if kind == "labels" else 0.0)  # a label is on from 0
    for r, rule in enumerate(spec.rules):
        broken = sum(
            rule.name in spec.violated([Fraction(float(v)) for v in x], [Fraction(float(v)) for v in y])
            for x, y in zip(X.tolist(), truth.tolist(), strict=True)
        )
        assert figures.broken["data"][r] == broken
    if kind == "choice":
        chosen = model.predict(table)
        assert figures.scores.score["safe"] == pytest.approx((chosen == table["advice"].to_numpy()).mean())
    if kind == "braking":
        assert figures.scores.score["safe"] == pytest.approx(model.score(table, table["brake"]))


def test_rows_outside_the_domain_are_left_out(braking_model, braking_table):
    table = braking_table.head(10).copy()
    table.loc[table.index[:3], "speed"] = 99.0
    figures = measure(braking_model, table)
    assert (figures.rows, figures.inside, figures.outside) == (10, 7, {"speed": 3})


def _value(text):
    """Return the number that the page shows."""
    raised = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")
    return Fraction(text.replace(",", "").replace("·10", "e").translate(raised))


@given(st.fractions(min_value=Fraction(1, 10**40), max_value=10**30))
@settings(max_examples=100, deadline=None)
def test_margins_are_rounded_down(margin):
    value = _value(margin_text(margin))
    assert value <= margin <= value * Fraction(102, 100)


def test_the_domain_is_shown_exactly():
    spec = Specification.from_yaml(
        "inputs:\n  d: [0, 0.99996]\n  s: [-0.00001234567, 12345.6]\n  t: [1 / 3, 1e12]\n"
        "  n: {range: [0, 123456], integer: true, missing: 7}\n  c: {categories: [x, 'y, z'], missing: x}\n"
        "outputs: [y]\nrules: []\n"
    )
    assert dict(domain_text(spec)) == {
        "d": "0 to 0.99996",
        "s": "−0.00001234567 to 12,345.6",
        "t": "1/3 to 1,000,000,000,000",
        "n": "0 to 123,456, whole numbers; a missing value counts as 7",
        "c": "one of x, “y, z”; a missing value counts as x",
    }
    assert listed(["speed 0 to 12345.6", "distance 0 to 7"], 30, "; ") == "speed 0 to 12345.6; …"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "0.25"), (-4.0, "−4"), (123456.0, "123,456"), (3.51e-7, "3.51·10⁻⁷"), (0.0, "0"), (1e12, "1·10¹²")],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0%"), (1.0, "100%"), (0.999999, "99.9999%"), (1e-9, "below 0.00001%"), (0.245, "24.5%")]
)
def test_shares_round_to_nothing_and_everything_only_if_they_are(value, text):
    assert share_text(value) == text


_KEYS = ["rows", "cells", "loss", "score", "columns", "edges", "bins", "validation_loss", "best_epoch", "outputs"]
_KEYS += ["name", "rare", "recall", "side", "concern", "where", "plain"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["scores", "history", "training"]), _JSON))
@settings(max_examples=60, deadline=None)
def test_whatever_model_json_records_is_no_error(description):
    scores = scores_of(description.get("scores"))
    scores.table(), scores.by_output()
    accuracy_view(description, None)
    typical_of(training_of(description))
    history = history_of(description)
    if history is not None:
        svg.history(history)


def test_a_recorded_history_is_drawn():
    description = {"history": {"epoch": [1, 2, 3], "loss": [3.0, 2.0, 1.0], "validation_loss": [4.0, 2.0, 3.0]}}
    record = history_of({"history": {**description["history"], "best_epoch": 2}})
    assert record.best == 2
    drawing = str(svg.history(record))
    assert drawing.count("<polyline") == 2
    assert "marker" in drawing


def test_final_epochs_are_told_and_have_no_validation_line():
    series = {"epoch": [1, 2, 3, 5], "loss": [3.0, 2.0, 1.0, 0.5], "validation_loss": [4.0, 2.0, 3.0, 0.1]}
    recorded = {**series, "best_epoch": 2, "epochs": 5, "stopped": "patience"}
    searched = history_view({"history": recorded})
    assert "epoch 2, which was kept" in searched["history_caption"]
    both = history_view({"history": {**recorded, "final_epochs": 2}})
    assert "epoch 2, the best" in both["history_caption"]
    assert "the last 2 are final epochs" in both["history_caption"]
    lines = [re.findall(r'<polyline[^>]*points="([^"]*)"', str(view["history"])) for view in (searched, both)]
    assert [[len(points.split()) for points in found] for found in lines] == [[4, 4], [4, 3]]
    for odd in (-3, 99, "many", None, 1e9):
        assert history_view({"history": {**recorded, "final_epochs": odd}}) == searched


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.lists(st.floats(0, 1), min_size=2, max_size=30))
@example([1.0, 1.0], [0.0, 0.0])
@example([0.0, 0.0], [1.0, 1.0])
@example([1e6, 1e6 - 1e-9], [0.5, 0.5])
@settings(max_examples=50, deadline=None)
def test_drawings_have_finite_coordinates(values, chances):
    array, chance = np.array(values), np.array(chances)
    for drawing in (
        svg.scatter(array, array[::-1], "y"),
        svg.histogram(array, "y", "title"),
        svg.calibration(chance, (chance > 0.5).astype(float)),
        svg.range_bar((min(values), max(values)), (values[0], values[0]), (0.0, 1.0), title=""),
    ):
        assert "nan" not in drawing
        assert "inf" not in drawing


def test_the_page_says_which_rows_were_trained_on(tmp_path):
    rules = "inputs: {x: [0, 100000]}\noutputs: [y]\nrules: [{name: cap, then: 0 <= y <= 60000}]\n"
    table = pd.DataFrame({"x": np.linspace(0, 1000, 200)}).assign(y=lambda t: 3 * t["x"])
    model = SafeRegressor(rules, estimator=Ridge(), compare=False).fit(table[["x"]], table["y"])
    same = write_report(model, table, tmp_path / "same.html").path.read_text(encoding="utf-8")
    assert "These are the rows that the model was trained on" in same
    assert "y is between 0 and 60,000" in same  # as ranges are written: 0 to 100,000
    other = write_report(model, table.tail(50), tmp_path / "other.html").path.read_text(encoding="utf-8")
    assert "The model was trained on 200 rows; if some are among these" in other
    assert '"seen": [' in same or '"seen":[' in same  # the explorer draws where data lie
