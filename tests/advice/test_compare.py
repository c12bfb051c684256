"""Comparisons of rules files, held against a judge that evaluates the rules' own text on points, in plain Python."""

import itertools
import json
import operator
import random
from fractions import Fraction

import numpy as np
import pytest

from smle.advice.compare import RuleChange, compare
from smle.errors import RuleError
from smle.rules import CNF, Label, NumericInput, Polytope, Row, Rule, Specification

F = Fraction
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}


class Files:
    """Random rules files. A condition is a pair: its text, and what it says of a point (x, k, road, y, cat, dog)."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def pick(self, *options):
        return self.rng.choice(options)

    def compared(self, term, value, signs, bounds):
        sign, bound = self.pick(*signs), self.pick(*bounds)
        return f"{term} {sign} {bound}", lambda p: SIGNS[sign](value(p), float(bound))  # all bounds are dyadic

    def joined(self, part):
        (left, says), (right, also), word = part(), part(), self.pick("and", "or")
        if word == "and":
            return f"({left}) and ({right})", lambda p: says(p) & also(p)
        return f"({left}) or ({right})", lambda p: says(p) | also(p)

    def when(self):
        kind = self.rng.random()
        if kind < 0.35:
            return self.compared("x", lambda p: p[0], ("<", "<=", ">", ">="), ("0", "0.5", "1", "1.5", "2"))
        if kind < 0.55:
            return self.compared("k", lambda p: p[1], SIGNS, ("0", "1", "2", "0.5"))
        if kind < 0.7:
            return self.compared("`road=b`", lambda p: p[2], ("==", "!="), ("0", "1"))
        if kind < 0.8:
            return self.compared("x + k", lambda p: p[0] + p[1], ("<=", ">="), ("1", "2"))
        return self.joined(self.when)

    def then(self):
        kind = self.rng.random()
        if kind < 0.4:
            return self.compared("y", lambda p: p[3], ("<", "<=", ">", ">="), ("0", "1", "0.5", "2", "1.5", "-1"))
        if kind < 0.55:
            sign, by = self.pick("<=", ">="), self.pick("x", "k")
            value = (lambda p: p[0]) if by == "x" else (lambda p: p[1])
            return f"y {sign} {by}", lambda p: SIGNS[sign](p[3], value(p))
        if kind < 0.75:
            return self.pick(
                ("cat", lambda p: p[4] >= 0),
                ("not dog", lambda p: p[5] < 0),
                ("cat implies dog", lambda p: (p[4] < 0) | (p[5] >= 0)),
                ("not (cat and dog)", lambda p: (p[4] < 0) | (p[5] < 0)),
            )
        return self.joined(self.then)

    def rule(self):
        return (self.when() if self.rng.random() < 0.7 else None), self.then()

    def edited(self, rules):
        changed = [list(rule) for rule in rules]
        part = self.rng.randrange(3)
        chosen = self.rng.randrange(len(changed))
        if part < 2:
            changed[chosen][part] = self.rule()[part]
        elif self.rng.random() < 0.5:
            changed.append(list(self.rule()))
        return changed


class File:
    """One rules file: its text, and which rows and outputs it forbids, by the text alone."""

    def __init__(self, rules, *, upper="2", integer=False, missing=(None, None)):
        self.rules, self.upper, self.integer, self.missing = rules, float(upper), integer, missing
        k = ", integer: true" * integer + (f", missing: {missing[0]}" if missing[0] is not None else "")
        road = f", missing: {missing[1]}" if missing[1] is not None else ""
        lines = [
            f"inputs:\n  x: [0, {upper}]\n  k: {{range: [0, 2]{k}}}\n  road: {{categories: [a, b]{road}}}",
            "outputs: [y]\nlabels: [cat, dog]\nrules:",
        ]
        for i, (when, then) in enumerate(rules):
            lines.append(f"  - name: r{i}" + (f"\n    when: '{when[0]}'" if when else "") + f"\n    then: '{then[0]}'")
        self.text = "\n".join(lines) + "\n"

    def forbids(self, x, k, road, outputs):
        """Say whether an output is forbidden for a row; k and road may be None, that is missing."""
        k = k if k is not None else None if self.missing[0] is None else float(self.missing[0])
        road = road if road is not None else {None: None, "a": 0.0, "b": 1.0}[self.missing[1]]
        if k is None or road is None or x > self.upper or (self.integer and k % 1 != 0):
            return np.zeros(np.shape(outputs[0]), dtype=bool)
        point = (x, k, road, *outputs)
        result = np.zeros(np.shape(outputs[0]), dtype=bool)
        for when, then in self.rules:
            if when is None or when[1](point):
                result = result | np.logical_not(then[1](point))
        return result


OUTPUTS = tuple(
    np.array(column)
    for column in zip(*itertools.product([v / 4 for v in range(-6, 11)], [-1.0, 0.0], [-1.0, 0.0]), strict=True)
)
ROWS = list(
    itertools.product(
        [v / 4 for v in (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)], [0.0, 0.5, 1.0, 1.5, 2.0, None], [0.0, 1.0, None]
    )
)


def judged(old, new):
    """Return whether there are points that only the old file forbids, and that only the new one does."""
    only_old = only_new = False
    for row in ROWS:
        before, after = old.forbids(*row, OUTPUTS), new.forbids(*row, OUTPUTS)
        only_old |= bool((before & ~after).any())
        only_new |= bool((after & ~before).any())
    return only_old, only_new


def is_witness(item, forbids, allows):
    x, k, a, b = item.x
    assert a + b == 1
    row = (x, None if "k" in item.missing else k, None if "road" in item.missing else b)
    return bool(forbids.forbids(*row, item.y)) and not allows.forbids(*row, item.y)


READINGS = {
    "as before": lambda f: ({}, {}),
    "integer": lambda f: f.pick(({}, {"integer": True}), ({"integer": True}, {})),
    "ranges": lambda f: ({"upper": f.pick("2", "3"), "integer": True}, {"upper": f.pick("2", "3")}),
    "missing": lambda f: tuple({"missing": (f.pick(None, 0, 1, 2), f.pick(None, "a", "b"))} for _ in "on"),
    "all": lambda f: tuple(
        {
            "upper": f.pick("2", "3"),
            "integer": f.pick(True, False),
            "missing": (f.pick(None, 0, 2), f.pick(None, "a", "b")),
        }
        for _ in "on"
    ),
}


@pytest.mark.parametrize("reading", READINGS)
def test_verdicts_agree_with_points(reading):
    files = Files(f"{reading} 7")
    seen = {}
    while sum(seen.values()) < 45:
        rules = [files.rule() for _ in range(files.pick(1, 2))]
        first, second = READINGS[reading](files)
        old, new = File(rules, **first), File(files.edited(rules) if files.pick(0, 1, 1) else rules, **second)
        try:
            before, after = Specification.from_yaml(old.text), Specification.from_yaml(new.text)
        except RuleError:  # a rule that asks nothing, or cannot hold
            continue
        found = compare(before, after)
        seen[found.verdict] = seen.get(found.verdict, 0) + 1
        only_old, only_new = judged(old, new)
        said = found.verdict, old.text, new.text
        assert found.verdict != "unknown", said
        assert not (only_old and found.verdict in ("equal", "stricter")), said
        assert not (only_new and found.verdict in ("equal", "weaker")), said
        assert (found.newly_allowed is not None) == (found.verdict in ("weaker", "neither")), said
        assert (found.newly_forbidden is not None) == (found.verdict in ("stricter", "neither")), said
        assert found.newly_allowed is None or is_witness(found.newly_allowed, old, new), said
        assert found.newly_forbidden is None or is_witness(found.newly_forbidden, new, old), said
    assert {"stricter", "weaker", "neither"} <= set(seen), seen


def numbers(k, then="y >= 2", when="k > 2"):
    rule = f"{{name: r, when: '{when}', then: '{then}'}}"
    return Specification.from_yaml(f"inputs:\n  k: {{range: [0, 9]{k}}}\noutputs: [y]\nrules:\n  - {rule}\n")


@pytest.mark.parametrize("when", ["k > 2", "k >= 0", "k > 2 and k < 3.5"])
def test_whole_numbers_leave_fractions_out(when):
    real, whole = numbers("", when=when), numbers(", integer: true", when=when)
    found = compare(real, whole)
    assert found.verdict == "weaker"
    assert found.newly_allowed.x[0].denominator != 1
    assert found.changes == (RuleChange("k", "integer", False, True),)
    assert "changed: input 'k' takes whole numbers only (before: any number)" in found.table()
    assert compare(whole, real).verdict == "stricter"


def test_a_rule_about_whole_numbers_alone_stays_as_it_was():
    """Where only whole numbers are bound, leaving fractions out forbids nothing less."""
    when = "k == 3 or k == 7"
    found = compare(numbers("", when=when), numbers(", integer: true", when=when))
    assert found.verdict == "equal"
    assert found.to_json()["changes"] == [{"input": "k", "what": "integer", "old": False, "new": True}]


def test_fractions_are_found_between_many_whole_numbers():
    """Where j is whole, k is a fraction for j = 7 only; before, the search meets whole numbers."""
    text = (
        "inputs:\n  k: {{range: [0, 900]{flag}}}\n  j: {{range: [0, 9], integer: true}}\noutputs: [y]\nrules:\n"
        "  - {{name: r, when: 'k >= 100 * j and 14 * k <= 1401 * j - 7', then: 'y >= 0'}}\n"
        "  - {{name: s, when: 'k >= 100 * j and k <= 100 * j', then: 'y >= 0'}}\n"
    )
    real, whole = (Specification.from_yaml(text.format(flag=flag)) for flag in ("", ", integer: true"))
    found = compare(real, whole)
    assert found.verdict == "weaker"
    assert found.newly_allowed.x[0].denominator != 1
    assert compare(whole, real).verdict == "stricter"


@pytest.mark.parametrize(
    ("old", "new", "verdict", "says"),
    [
        ("5", "0", "weaker", "read as 0 (before: read as 5)"),
        ("0", "5", "stricter", "read as 5 (before: read as 0)"),
        ("5", "6", "equal", "read as 6 (before: read as 5)"),
        ("5", "refuse", "weaker", "refused (before: read as 5)"),
        ("refuse", "5", "stricter", "read as 5 (before: refused)"),
        ("refuse", "0", "equal", "read as 0 (before: refused)"),
    ],
)
def test_missing_values_are_told(old, new, verdict, says):
    found = compare(numbers(f", missing: {old}"), numbers(f", missing: {new}"))
    assert found.verdict == verdict
    assert f"changed: a missing value of input 'k' is {says}" in found.table()
    assert ("at k=missing" in found.table()) == (verdict != "equal")
    data = json.loads(json.dumps(found.to_json()))
    assert data["changes"][0]["what"] == "missing"
    for item in (data["newly_allowed"], data["newly_forbidden"]):
        assert item is None or item["inputs"] == {"k": None}


def test_too_many_missing_inputs_are_not_decided():
    def spec(value):
        names = [f"a{i}" for i in range(8)]
        return Specification.build(
            inputs={name: {"range": (0, 1), "missing": value} for name in names}, outputs=["y"], rules={"r": "y >= 0"}
        )

    found = compare(spec(0), spec(1))
    assert found.verdict == "unknown"
    assert len(found.changes) == 8
    assert "Not decided" in found.table()


CHOICE = """
inputs:
  k: [0, 9]
  road: {categories: [dry, icy]}
choices:
  adv: {options: [keep, left], pick: max}
rules:
  - {name: r, when: k > 2, then: adv == keep}
"""


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"pick: max": "pick: min"}, "'adv' picks the largest score in the old file and the smallest in the new one"),
        ({"pick: max": "pick: min", "adv == keep": "adv == left"}, "the smallest in the new one"),
        ({"[keep, left]": "[left, keep]"}, "the options of 'adv' differ in their order"),
        ({"[keep, left]": "[keep, left, right]"}, "the options of 'adv' differ in right"),
        ({"[dry, icy]": "[dry, wet]"}, "the categories of 'road' differ in icy, wet"),
        ({"{categories: [dry, icy]}": "[0, 1]"}, "'road' is a category in the old file and a number in the new one"),
        ({"  k:": "  speed:", "k > 2": "speed > 2"}, "input 'k' is in the old file only; input 'speed' is in the new"),
        (
            {
                "choices:\n  adv: {options: [keep, left], pick: max}": "outputs: ['adv=keep', adv]",
                "adv == keep": "adv > 1",
            },
            "'adv' is a choice in the old file and a number in the new one",
        ),
    ],
)
def test_what_does_not_mean_the_same_is_not_compared(edits, reason):
    changed = CHOICE
    for old, new in edits.items():
        assert old in changed
        changed = changed.replace(old, new)
    with pytest.raises(RuleError) as refused:
        compare(Specification.from_yaml(CHOICE), Specification.from_yaml(changed))
    assert reason in str(refused.value)


def test_kinds_order_and_long_lists_are_named():
    def spec(**parts):
        return Specification.build(inputs={"k": (0, 9)}, **parts)

    label, number = spec(labels=["y"], rules={"r": "y"}), spec(outputs=["y"], rules={"r": "y >= 0"})
    with pytest.raises(RuleError, match="'y' is a number in the old file and a label in the new one"):
        compare(number, label)
    with pytest.raises(RuleError, match="the order of the outputs"):
        compare(spec(labels=["a", "b"], rules={"r": "a"}), spec(labels=["b", "a"], rules={"r": "a"}))
    many = [f"l{i}" for i in range(20)]
    with pytest.raises(RuleError, match="; and 15 more"):
        compare(spec(labels=["y"], rules={"r": "y"}), spec(labels=["y", *many], rules={"r": "y"}))


def test_scores_of_choices_are_shown():
    looser = CHOICE.replace("k > 2", "k > 3")
    text = compare(Specification.from_yaml(CHOICE), Specification.from_yaml(looser)).table()
    assert "newly allowed: score(adv, keep)=" in text
    assert ", score(adv, left)=" in text
    assert "road=" in text


def test_many_exclusions_in_a_region():
    """More than 300 exclusions in a region are not stated to the search one by one; nothing may be lost by that."""
    names = [f"l{i}" for i in range(60)]
    pairs = np.array([[i, j] for i in range(30) for j in range(30, 60)])
    inputs = (NumericInput("x", F(0), F(1)),)

    def spec(*bounds):
        rules = [
            Rule(f"r{i}", (Polytope((Row(((0, F(1)),), F(bound)),)),), CNF((), pairs), None, "")
            for i, bound in enumerate(bounds)
        ]
        return Specification(inputs, tuple(Label(name) for name in names), tuple(rules))

    assert compare(spec("0.5"), spec("0.5")).verdict == "equal"
    assert compare(spec("0.5"), spec("0.75")).verdict == "stricter"
    assert compare(spec("0.75"), spec("0.5")).verdict == "weaker"
    assert compare(spec("0.5"), spec("0.5", "0.25")).verdict == "equal"
    assert compare(spec("0.5", "0.25"), spec("0.25")).verdict == "weaker"


def test_exclusions_everywhere():
    def with_pairs(pairs):
        rule = Rule("exclusions", (Polytope(),), CNF((), np.array(pairs)), None, "")
        labels = tuple(Label(name) for name in "abcd")
        return Specification((NumericInput("x", F(0), F(1)),), labels, (rule,))

    assert compare(with_pairs([[0, 1], [1, 2]]), with_pairs([[0, 1]])).verdict == "weaker"
    assert compare(with_pairs([[0, 1]]), with_pairs([[0, 1], [2, 3]])).verdict == "stricter"
    assert compare(with_pairs([[0, 1]]), with_pairs([[2, 3]])).verdict == "neither"
