"""Rules that never meet, told by ranges and categories: nothing that meets is left out."""

import itertools
import random
from fractions import Fraction

import pytest

from smle import Specification
from smle.advice.meeting import Meeting

HEAD = "inputs: {x: [0, 4], n: {range: [0, 4], integer: true}, k: {categories: [a, b, c]}}\noutputs: [y]\nrules:\n"
CONDITIONS = [
    "x < 1", "x <= 1", "x >= 1", "x > 1", "1 <= x <= 2", "n >= 2", "k == a", "k != a", "k == b", "x + n <= 3",
    "x < 0", "k == c and x > 3", "k == a or x == 4", "n <= 1 or k == b",
]  # fmt: skip


def points() -> list[tuple[Fraction, ...]]:
    numbers = [Fraction(v, 2) for v in range(9)]
    units = [tuple(Fraction(int(i == j)) for i in range(3)) for j in range(3)]
    return [(x, Fraction(n), *one) for x, n, one in itertools.product(numbers, range(5), units)]


@pytest.mark.parametrize("seed", range(12))
def test_rules_that_meet_somewhere_are_not_left_out(seed):
    chosen = random.Random(seed).sample(CONDITIONS, 8)
    lines = [f"  - {{name: r{i}, when: {when}, then: y <= {i}}}\n" for i, when in enumerate(chosen)]
    spec = Specification.from_yaml(HEAD + "".join(lines))
    meeting = Meeting(spec)
    on = [{x for x in points() if any(part.contains(x) for part in rule.regions)} for rule in spec.rules]
    for r in range(len(chosen)):
        found = meeting.others(r, range(len(chosen)))
        assert r not in found
        assert {k for k in range(len(chosen)) if k != r and on[r] & on[k]} <= set(found)
        for region in spec.rules[r].regions:
            if meeting.is_open(region):
                assert any(region.contains(x) for x in points())


def test_rules_on_different_categories_and_ranges_are_told_apart():
    conditions = ["k == a", "k == b", "k == a and x <= 1", "k == a and x > 1", "x < 1"]
    lines = [f"  - {{name: r{i}, when: {when}, then: y <= {i}}}\n" for i, when in enumerate(conditions)]
    meeting = Meeting(Specification.from_yaml(HEAD + "".join(lines)))
    assert [meeting.others(r, range(5)) for r in range(5)] == [[2, 3, 4], [4], [0, 4], [0], [0, 1, 2]]


def test_rules_about_outputs_that_nothing_ties_are_told_apart():
    lines = ["a <= 1", "b <= a + c", "d <= 1", "c >= 0", "d <= 2 and e >= d"]
    text = "".join(f"  - {{name: r{i}, then: {then}}}\n" for i, then in enumerate(lines))
    meeting = Meeting(Specification.from_yaml(f"inputs: {{x: [0, 1]}}\noutputs: [a, b, c, d, e]\nrules:\n{text}"))
    assert [meeting.others(r, range(5)) for r in range(5)] == [[1, 3], [0, 3], [4], [0, 1], [2]]
