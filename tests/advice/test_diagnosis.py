from __future__ import annotations

import pandas as pd
import pytest

from smle import diagnose

RULES = """
inputs: {{x: [0, 1]}}
choices: {{advice: {{options: [clear, left, right], pick: {pick}}}}}
rules:
  - name: not clear when high
    when: x >= 0.5
    then: advice != clear
"""


@pytest.mark.parametrize("pick", ["max", "min"])
def test_choices_are_judged_as_they_are_picked(pick: str) -> None:
    table = pd.DataFrame({"x": [0.1, 0.6, 0.7, 0.9], "advice": ["clear", "clear", "left", "right"]})
    found = diagnose(RULES.format(pick=pick), table, table)
    assert found.to_json()["data"]["broken"] == [1 / 4]


HEAD = "inputs: {income: [0, 1000]}\noutputs: [u, v]\nlabels: [cat, dog]\nrules:\n"


def kinds(*rules: str) -> list[str]:
    text = "".join(f"  - {{name: r{i}, then: '{rule}'}}\n" for i, rule in enumerate(rules))
    found = diagnose(HEAD + text)
    severe = any(f.severe for f in found.findings)
    assert found.contradictory + found.undecided == severe
    assert found.undecided == (severe and all(f.kind == "not proved" for f in found.findings if f.severe))
    assert all(cell.status in ("fine", "free") for cell in found.cells) != severe
    return [f.kind for f in found.findings]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["0 <= u <= 0.35 * income and u <= 300"], []),  # no room at income 0, and none is needed
        (["u >= 0 and v >= 0 and u + v <= 0.4 * income"], []),
        (["cat implies dog", "dog implies cat"], []),
        (["u >= 0", "u <= 0"], []),
        (["u <= v", "v <= u"], ["hidden equality"]),
        (["0.1 * income <= u <= 0.35 * income"], ["not proved"]),
        (["0 <= u <= 1"], []),
    ],
)
def test_only_what_no_model_can_obey_is_severe(rules: list[str], expected: list[str]) -> None:
    assert kinds(*rules) == expected


def test_a_refusal_names_the_input() -> None:
    (finding,) = diagnose(HEAD + "  - {name: share, then: 0.1 * income <= u <= 0.35 * income}\n").findings
    assert finding.severe
    assert "income=0" in finding.text


def test_a_conflict_names_the_inputs_that_matter_and_the_conditions_that_are_met() -> None:
    text = diagnose(
        """
inputs: {a: [0, 9], b: [0, 9], c: [0, 9], d: [0, 9], noise: [0, 9], kind: {categories: [one, two]}}
outputs: [y]
rules:
  - {name: low, when: a < 5 or b < 5 or c < 5 or kind == two, then: y <= 1}
  - {name: high, when: d > 3, then: y >= 2}
"""
    ).table()
    assert "noise" not in text
    assert "  contradictory: low (a < 5; b < 5; c < 5; kind == two), high\n" in text
    assert "15 contradictory" in text
    assert "  ... 5 more (--json lists all)\n" in text
    always = diagnose(
        "inputs: {a: [0, 9]}\noutputs: [y]\nrules:\n- {name: p, then: y <= 1}\n- {name: q, then: y >= 2}\n"
    )
    assert "'q' asks y >= 2, at every input." in always.table()
