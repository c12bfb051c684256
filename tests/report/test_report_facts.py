"""What the page says: margins, corners, ranges, figures, words."""

import re
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smle.certificates.agreement import cells_of
from smle.programs import frozen_heads_of
from smle.report import svg
from smle.report.data_view import accuracy_view
from smle.report.measured import measure
from smle.report.ranges import output_ranges
from smle.report.recorded import history_of, scores_of, training_of
from smle.report.sentences import words
from smle.report.statements import Reader, Witnesses, rule_verdicts
from smle.report.view import history_view
from smle.report.wording import (
    clause_text,
    domain_text,
    formula,
    listed,
    margin_text,
    number,
    point,
    range_text,
    requirement_lines,
    row_text,
    share,
)
from smle.rules import Specification
from smle.tables import encode_inputs
from smle_check.floats import exact

MODELS = ["braking", "labels", "dose", "choice"]


@pytest.fixture
def case(request, braking_model, labels, dose, choice):
    model = {"braking": braking_model, "labels": labels[0], "dose": dose[0], "choice": choice[0]}[request.param]
    certificate, spec = model.certificate_, model.specification_
    cells = cells_of(certificate, spec)
    over = frozen_heads_of(model.record().weights)
    witnesses = Witnesses(certificate, spec, cells=cells, over=over)
    return SimpleNamespace(model=model, certificate=certificate, spec=spec, cells=cells, over=over, witnesses=witnesses)


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_each_statement_of_the_checker_has_its_obligation(case):
    for item in case.certificate.proved:
        key = item.obligation
        assert (key.head, case.spec.rules[key.rule].name) == (item.head, item.rule)
        regions = (*case.cells[key.head], *(() if key.region is None else (key.region,)))
        assert set(key.rows) == {row for region in regions for row in case.cells.regions[region]}
        assert key.clause is None or key.clause < len(case.spec.rules[key.rule].requirement.clauses)


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_the_smallest_margin_is_the_checkers(case):
    verdicts = rule_verdicts(case.certificate.proved, case.certificate, case.spec, cells=case.cells, over=case.over)
    for verdict in verdicts:
        margins = [p.margin for p in case.certificate.proved if p.rule == case.spec.rules[verdict.rule].name]
        assert verdict.worst.margin == min(margins)
        assert verdict.statements == len(margins)


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_corners_lie_in_the_region_and_attain_the_margin(case):
    """The corner's room is the margin up to what rounding takes, and never below it."""
    for item in case.certificate.proved:
        key, margin = item.obligation, float(item.margin)
        corner = case.witnesses.corner(item)
        if corner.pair is not None:
            assert list(corner.pair) in case.spec.rules[key.rule].requirement.exclusions.tolist()
            continue
        x = case.witnesses.support(key.head, key.region)(np.zeros((1, len(case.spec.columns))))[2][0]
        x = corner.x if corner.x is not None else x
        region = case.witnesses.support(key.head, key.region).region
        assert (region.A @ x <= region.a + 1e-6 * (1 + np.abs(region.a))).all()
        y = dict(corner.outputs)
        clause = case.spec.rules[key.rule].requirement.clauses[key.clause]
        weights = np.array(
            [float.fromhex(w) for w in case.witnesses._weights[key.head, key.rule, key.region, key.clause]]
        )
        rooms = [
            float(literal.bound)
            - sum(float(g) * y[j] for j, g in literal.outputs)
            - sum(float(s) * x[k] for k, s in literal.inputs)
            for literal in clause.literals
        ]
        room = float(weights @ rooms / weights.sum())
        size = 1 + max(abs(v) for v in (*y.values(), *rooms))
        assert margin - 1e-9 * size <= room <= margin + 1e-3 * size
        assert corner.low <= corner.high
        assert corner.high <= corner.limit if corner.upward else corner.low >= corner.limit


@pytest.mark.parametrize("case", ["braking", "dose", "labels"], indirect=True)
def test_ranges_hold_what_the_model_outputs(case):
    """Random inputs and random embeddings stay inside the reach of their cell, and the reach inside the limits."""
    ranges, _ = output_ranges(case.witnesses)
    rng = np.random.default_rng(0)
    low, high = (np.array([float(v) for v in ends]) for ends in (case.spec.lower, case.spec.upper))
    X = rng.uniform(low, high, (400, len(low)))
    for group in case.spec.one_hot:
        X[:, list(group)] = np.eye(len(group))[rng.integers(0, len(group), len(X))]
    served = case.model.deployed_
    cells = served.head.cell_of(X)
    z = rng.normal(0, 50, (400, served.head.units)).astype(np.float32)
    for y in (served.explained(X, X).served, served.head(X, z)):
        for item in ranges:
            for part in item.ranges:
                values = y[cells == part.cell, item.output]
                if part.reach is not None and len(values):
                    assert part.reach[0] <= values.min()
                    assert values.max() <= part.reach[1]
    for item in ranges:
        for part in item.ranges:
            for limit in part.limits:
                if limit.low == limit.high:
                    assert part.reach[1] <= limit.high if limit.upward else part.reach[0] >= limit.low


@pytest.mark.parametrize("kind", ["braking", "labels", "choice", "dose"])
def test_measured_violations_are_the_definition(kind, braking_model, braking_table, labels, choice, dose):
    model, table = {"braking": (braking_model, braking_table), "labels": labels, "choice": choice, "dose": dose}[kind]
    spec, table = model.specification_, table.head(60)
    figures = measure(model, table)
    X = encode_inputs(spec, table)
    assert figures.any_broken["safe"] == 0
    assert sum(figures.cells) == figures.inside == len(table)
    truth = figures.targets - (0.5 if kind == "labels" else 0.0)  # a label is on from 0
    for r, rule in enumerate(spec.rules):
        broken = sum(
            rule.name in spec.violated([exact(v) for v in x], [exact(v) for v in y])
            for x, y in zip(X.tolist(), truth.tolist(), strict=True)
        )
        assert figures.broken["data"][r] == broken
    if kind == "choice":
        chosen = model.predict(table)
        assert figures.scores["safe"] == pytest.approx((chosen == table["advice"].to_numpy()).mean())
    if kind == "braking":
        assert figures.scores["safe"] == pytest.approx(model.score(table, table["brake"]))


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


@given(st.floats(-1e12, 1e12), st.floats(0, 1e6), st.floats(0, 1), st.booleans())
@example(0.99996, 0.0, 0.0, False)
@example(-12345.6, 1e-9, 0.0, False)
@settings(max_examples=100, deadline=None)
def test_ranges_are_rounded_outwards_and_stay_inside_their_limits(low, size, room, limited):
    high = low + size
    limits = {"least": low - room, "most": high + room} if limited else {}
    shown = [_value(end) for end in range_text(low, high, **limits).split(" to ")]
    assert shown[0] <= Fraction(low)
    assert shown[1] >= Fraction(high)
    if limited:
        assert float(shown[0]) >= limits["least"]
        assert float(shown[1]) <= limits["most"]
    else:
        assert all(abs(float(s) - v) <= 1e-3 * abs(v) for s, v in zip(shown, (low, high), strict=True))


def test_the_domain_is_shown_exactly():
    spec = Specification.from_yaml(
        "inputs:\n  d: [0, 0.99996]\n  s: [-0.00001234567, 12345.6]\n  t: [1 / 3, 1e12]\n"
        "  n: {range: [0, 123456], integer: true, missing: 7}\n  c: {categories: [x, 'y, z'], missing: x}\n"
        "outputs: [y]\nrules: []\n"
    )
    assert dict(domain_text(spec)) == {
        "d": "0 to 0.99996",
        "s": "−0.00001234567 to 12345.6",
        "t": "1/3 to 1000000000000",
        "n": "0 to 123456, whole numbers; a missing value counts as 7",
        "c": "one of x, “y, z”; a missing value counts as x",
    }
    assert point(spec, [0.99996, 5.0, 0.5, 3.0, 0.0, 1.0]) == ["d ≈ 1", "s = 5", "t = 0.5", "n = 3", "c = `y, z`"]
    assert listed(["speed 0 to 12345.6", "distance 0 to 7"], 30) == "speed 0 to 12345.6; …"


@pytest.mark.parametrize("case", MODELS, indirect=True)
def test_statements_are_printed_from_the_rules_that_the_checker_printed(case):
    reader = Reader(case.spec, case.cells)
    for item in case.certificate.proved:
        key, where, sentence = item.obligation, reader.where(item), reader.sentence(item)
        rows = [
            row_text(row, case.spec) for region in case.cells.regions for row in (case.cells.rows[r] for r in region)
        ]
        assert where == "everywhere" or set(where.removeprefix("where ").split(" ∧ ")) <= set(rows)
        if key.clause is not None:
            assert sentence == clause_text(case.spec.rules[key.rule].requirement.clauses[key.clause], case.spec)


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
    assert share(value) == text


def test_words_and_formulas():
    spec = Specification.from_yaml(
        "inputs: {a: [0, 9], b: [0, 9], place: {categories: [home, farm]}}\noutputs: [u, v]\nconstants: {near: 2.5}\n"
        "rules:\n"
        "  - {name: one, when: a <= near or place == home, then: -1 <= u <= 1}\n"
        "  - {name: two, then: u <= 2 * a - 3 or v > 4}\n"
    )
    one, two = spec.rules
    assert words(one, spec) == "When a is at most near (2.5) or place is home, then u is between −1 and 1."
    assert words(two, spec) == "Always: u is at most 2 · a − 3 or v is above 4."
    assert formula(one, spec) == "(a ≤ 2.5) ∨ (place = home)"
    assert requirement_lines(one, spec) == ["u ≥ −1", "u ≤ 1"]
    assert formula(two, spec) == "every input of the domain"
    assert requirement_lines(two, spec) == ["u − 2 · a ≤ −3 ∨ v > 4"]
    other = Specification.from_yaml(
        "inputs: {a: [0, 9], place: {categories: [home, farm]}}\noutputs: [u]\n"
        "rules: [{name: one, when: place != farm and `place=home` > 0.5 * a, then: u <= 1}]\n"
    )
    assert formula(other.rules[0], other) == "a − 2 · `place=home` < 0 ∧ place ≠ farm"


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
    scores_of(description)
    accuracy_view(description, None)
    training_of(description)
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
    assert "2 final epochs went on from the best, on all rows" in both["history_caption"]
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
        svg.residual_bars(array, "y"),
        svg.calibration(chance, (chance > 0.5).astype(float)),
        svg.reach_bar(min(values), max(values), max(values) + 1, upward=True, title=""),
        svg.range_bar((min(values), max(values)), [(0.0, 1.0, True)], (min(values), max(values)), seen=None, title=""),
    ):
        assert "nan" not in drawing
        assert "inf" not in drawing
