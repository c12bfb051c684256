"""Diagnosis of rules: what it says, and that it says it in words and in JSON."""

import json
from fractions import Fraction

import numpy as np
import pytest

from smle.advice.examine import diagnose_arrays as diagnose
from smle.regions.cell_search import find_cells
from smle.regions.decide import Undecided
from smle.rules import CNF, Label, NumericInput, Polytope, Rule, Specification, mutually_exclusive, rule

F = Fraction

BRAKING = """
inputs: {distance: [0, 200], speed: [0, 40], road: {categories: [dry, wet, icy]}}
outputs: [brake]
rules:
  - {name: emergency, when: distance <= 10 and speed >= 20, then: brake >= 0.8}
  - {name: range, then: 0 <= brake <= 1}
"""


def read(text, *rules):
    return Specification.from_yaml(text + "".join(f"  - {rule}\n" for rule in rules))


def kinds(diagnosis):
    return {(finding.kind, finding.rules) for finding in diagnosis.findings}


def test_nothing_to_mend():
    diagnosis = diagnose(read(BRAKING))
    assert diagnosis.findings == ()
    assert not diagnosis.contradictory
    assert [cell.status for cell in diagnosis.cells] == ["fine", "fine"]
    assert "No problems found" in diagnosis.table()


def test_contradiction_names_the_smallest_set_and_a_witness():
    spec = read(BRAKING, "{name: icy, when: road == icy, then: brake <= 0.5}")
    diagnosis = diagnose(spec)
    assert diagnosis.contradictory
    (finding,) = diagnosis.findings
    assert finding.rules == ("emergency", "icy")
    x = finding.witness
    assert spec.rules[0].regions[0].contains(x)
    assert spec.rules[2].regions[0].contains(x)
    assert x[2:] == (0, 0, 1)
    assert "cannot hold together" in diagnosis.table()
    assert "road=icy" in finding.text


def test_a_rule_that_contradicts_itself():
    diagnosis = diagnose(read(BRAKING, "{name: odd, when: speed > 30, then: brake <= 0.1 and brake >= 0.2}"))
    assert ("contradiction", ("odd",)) in kinds(diagnosis)


def test_contradiction_only_at_some_inputs():
    text = "inputs: {w: [0, 100]}\noutputs: [dose]\nrules:\n"
    spec = read(text, "{name: top, then: dose <= 0.5 * w + 1}", "{name: bottom, then: dose >= 0.6 * w - 2}")
    (finding,) = diagnose(spec).findings
    assert finding.rules == ("top", "bottom")
    assert finding.witness[0] > 30


def test_oblique_borders_that_rounding_blurs():
    text = "inputs: {a: [0, 1], b: [0, 1]}\noutputs: [u]\nrules:\n"
    spec = read(text, "{name: low, when: a + b <= 1, then: u <= 0}", "{name: high, when: a + b > 1, then: u >= 1}")
    (finding,) = diagnose(spec).findings
    assert finding.kind == "contradiction"
    assert finding.witness is None
    assert "Leave a gap" in finding.text


def test_comparisons_that_share_a_border_do_not_blur():
    text = "inputs: {a: [0, 1]}\noutputs: [u]\nrules:\n"
    spec = read(text, "{name: low, when: a <= 0.1, then: u <= 0}", "{name: high, when: a > 0.1, then: u >= 1}")
    assert not diagnose(spec).contradictory


def test_hidden_equality():
    text = "inputs: {a: [0, 1]}\noutputs: [u, v]\nrules:\n"
    spec = read(
        text, "{name: le, then: u <= v}", "{name: other, then: u >= 0}", "{name: ge, when: a > 0.5, then: v <= u}"
    )
    assert kinds(diagnose(spec)) == {("one answer", ("le", "ge"))}


def test_never_active_and_redundant():
    diagnosis = diagnose(
        read(
            BRAKING,
            "{name: fast, when: speed > 50, then: brake <= 0.5}",
            "{name: wide, then: brake <= 2}",
            "{name: near, when: distance <= 5 and speed >= 30, then: brake >= 0.7}",
            "{name: part, when: speed > 50 or speed > 39, then: brake >= 0.1}",
        )
    )
    assert kinds(diagnosis) == {
        ("never active", ("fast",)),
        ("partly empty", ("part",)),
        ("redundant", ("wide",)),
        ("redundant", ("near",)),
    }
    assert "rule 'emergency' already implies it" in diagnosis.table()


def test_of_two_equal_rules_one_is_redundant():
    diagnosis = diagnose(read(BRAKING, "{name: again, then: 0 <= brake <= 1}"))
    assert len(diagnosis.findings) == 1


def test_rules_left_untested_are_named(monkeypatch):
    spec = read(BRAKING, "{name: wide, then: brake <= 2}")
    assert diagnose(spec).untested == ()
    assert diagnose(spec).to_json()["untested"] == []
    monkeypatch.setattr("smle.advice.examine._SECONDS", -1.0)
    diagnosis = diagnose(spec)
    (item,) = diagnosis.untested
    assert (item.question, item.rules) == ("redundant", ("emergency", "range", "wide"))
    assert "no time was left" in diagnosis.table()
    assert "'wide'" in diagnosis.table()
    assert json.loads(json.dumps(diagnosis.to_json()))["untested"] == [
        {"question": "redundant", "rules": ["emergency", "range", "wide"], "reason": item.reason}
    ]


def test_a_search_that_was_cut_off_is_named(monkeypatch):
    def give_up(*_, **__):
        raise Undecided

    spec = read(BRAKING, "{name: near, when: distance + speed <= 30, then: brake >= 0.1}")  # a sum needs a search
    monkeypatch.setattr("smle.regions.consistency.Consistency.implied_by_others", give_up)
    monkeypatch.setattr("smle.regions.consistency.Consistency.point", give_up)
    monkeypatch.setattr("smle.regions.consistency.Consistency.clash", give_up)
    diagnosis = diagnose(spec)
    assert [item.question for item in diagnosis.untested] == ["never active", "redundant"]
    assert {item.reason for item in diagnosis.untested} == {"the search was cut off"}
    assert {cell.status for cell in diagnosis.cells} == {"unknown"}
    assert "No problems found" not in diagnosis.table()


def test_whole_numbers_are_whole_in_witnesses():
    text = "inputs: {n: {range: [0, 10], integer: true}}\noutputs: [u]\nrules:\n"
    spec = read(text, "{name: a, when: 3 * n >= 4, then: u <= 0}", "{name: b, when: 2 * n <= 7, then: u >= 1}")
    (finding,) = diagnose(spec).findings
    assert finding.witness == (2,)


def test_above_the_cap(monkeypatch):
    rules = [f"{{name: r{i}, when: speed >= {i} and distance >= {i}, then: brake >= 0.{i}}}" for i in range(1, 9)]
    monkeypatch.setattr("smle.advice.examine.find_cells", lambda spec: find_cells(spec, max_cells=4))
    diagnosis = diagnose(read(BRAKING, *rules))
    assert diagnosis.always_on
    assert "Always on" in diagnosis.table()


def test_against_data():
    generator = np.random.default_rng(0)
    n = 500
    X = np.column_stack(
        [generator.uniform(0, 210, n), generator.uniform(15, 40, n), np.eye(3)[generator.integers(0, 3, n)]]
    )
    X[:100, 0] = 5
    y = generator.uniform(0, 1.2, (n, 1))
    diagnosis = diagnose(read(BRAKING), X, y)
    data = diagnosis.data
    assert data.rows == n
    assert data.outside == {"distance": int((X[:, 0] > 200).sum())}
    near = (X[:, 0] <= 10) & (X[:, 1] >= 20)
    assert data.active == pytest.approx((near.mean(), 1))
    assert data.broken == pytest.approx(((near & (y[:, 0] < 0.8)).mean(), (y > 1).mean()))
    inside = X[:, 0] <= 200
    best = np.clip(y[:, 0], np.where(near, 0.8, 0), 1)[inside]
    given = y[inside, 0]
    assert data.price["brake"] == pytest.approx(1 - ((best - given) ** 2).sum() / ((given - given.mean()) ** 2).sum())
    text = diagnosis.table()
    count = int((X[:, 0] > 200).sum())
    assert data.outside_rows == count
    assert f"Rows outside the domain: {count} (distance {count})." in text
    assert f"{count} of 500 rows lie outside the domain of the rules: 'distance' {count} rows outside [0, 200]." in text
    assert "No problems found" not in text
    assert not diagnosis.contradictory
    assert "broken" in text


def test_a_single_row_outside_is_one_row():
    diagnosis = diagnose(read(BRAKING), np.array([[201.0, 2.0, 1.0, 0.0, 0.0]]))
    (finding,) = diagnosis.findings
    assert finding.kind == "outside the domain"
    assert finding.text.startswith("1 of 1 row lie")
    assert diagnosis.table().count("The rules can hold together") == 1


UNITS = """
inputs: {income: [0, 12000], age: [0, 100], kind: {categories: [a, b]}}
outputs: [y]
rules:
  - {name: range, then: 0 <= y <= 1}
"""


@pytest.mark.parametrize(
    ("income", "expected"),
    [
        ((0.3, 9.9), ["'income' ranges from 0.3 to 9.9, 0.08 % of [0, 12000]: different units?"]),
        ((7, 7), ["'income' is 7 in all rows, one value of [0, 12000]: is this intended?"]),
        ((0, 119.9), ["'income' ranges from 0 to 119.9, 1 % of [0, 12000]: different units?"]),
        ((0, 120), []),
        ((300, 9900), []),
    ],
)
def test_data_in_a_tiny_part_of_a_range(income, expected):
    X = np.column_stack([np.linspace(*income, 40), np.linspace(20, 80, 40), np.tile([1, 0], (40, 1))])
    diagnosis = diagnose(Specification.from_yaml(UNITS), X)
    assert [finding.text for finding in diagnosis.findings] == expected
    assert not diagnosis.contradictory
    assert ("No problems found" in diagnosis.table()) == (not expected)
    assert diagnose(Specification.from_yaml(UNITS), X[:5]).findings == ()  # so few may lie together by chance


def test_json_is_plain_and_exact():
    spec = read(BRAKING, "{name: icy, when: road == icy and speed > 21.7, then: brake <= 0.5}")
    diagnosis = diagnose(spec, np.array([[1.0, 2.0, 1.0, 0.0, 0.0]]), np.array([[0.5]]))
    data = json.loads(json.dumps(diagnosis.to_json()))
    assert data["contradictory"] is True
    (finding,) = data["findings"]
    assert F(finding["witness"]["speed"]["exact"]) == diagnosis.findings[0].witness[1]
    assert data["data"]["rows"] == 1


def test_a_million_exclusions_take_a_moment():
    generator = np.random.default_rng(1)
    pairs = generator.integers(0, 1500, (600_000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    labels = tuple(Label(f"l{i}") for i in range(1500))
    rules = (Rule("exclusions", (Polytope(),), CNF((), pairs), None, ""),)
    spec = Specification((NumericInput("x", F(0), F(1)),), labels, rules)
    diagnosis = diagnose(spec)
    assert diagnosis.findings == ()
    (item,) = diagnosis.untested
    assert (item.question, item.rules, item.reason) == ("redundant", ("exclusions",), "more than 300 exclusions")


def test_many_exclusions_under_a_condition_imply_one_of_them_there():
    """More than 300 are searched as an array, also where each category of a large input is searched apart."""
    pairs = np.array([[i, j] for i in range(20) for j in range(20, 40)])
    spec = Specification.build(
        inputs={"road": [f"r{i}" for i in range(12)], "x": (0, 1)},
        labels=[f"l{i}" for i in range(40)],
        rules=[
            rule("list", "road == r3", mutually_exclusive(pairs)),
            rule("there", "road == r3 and x > 0.5", "not (l0 and l30)"),
            rule("elsewhere", "road == r4", "not (l0 and l30)"),
            rule("another", "road == r3", "not (l0 and l1)"),
        ],
    )
    assert [f.rules for f in diagnose(spec).findings if f.kind == "redundant"] == [("there",)]
