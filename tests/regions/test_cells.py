"""Cells of small specifications, by hand."""

import time
from fractions import Fraction

import numpy as np
import pytest

from smle.advice.examine import diagnose_arrays as diagnose
from smle.errors import NotCertifiedError, RuleError
from smle.heads.box.algorithms.center import find_center
from smle.regions.cell_search import find_cells
from smle.regions.guard_rows import guard_row
from smle.rules import CNF, Clause, Literal, Number, NumericInput, Polytope, Row, Rule, Specification, linear

F = Fraction


def at_most(bound):
    return CNF((Clause((Literal(((0, F(1)),), (), F(bound)),)),))


def at_least(bound):
    return CNF((Clause((Literal(((0, F(-1)),), (), -F(bound)),)),))


def when(*rows):
    return Polytope(tuple(Row(linear(form), F(bound), strict) for form, bound, strict in rows))


def below(i, bound, *, strict=False):
    return ({i: F(1)}, F(bound), strict)


def above(i, bound, *, strict=False):
    return ({i: F(-1)}, -F(bound), strict)


def specification(*regions, d=2, low=0, high=40, requirement=None):
    inputs = tuple(NumericInput(f"x{i}", F(low), F(high)) for i in range(d))
    rules = tuple(
        Rule(f"r{i}", (region,) if isinstance(region, Polytope) else region, requirement or at_most(1), "", "")
        for i, region in enumerate(regions)
    )
    return Specification(inputs, (Number("y"),), rules)


TENTH, SLOPE, OPPOSITE = F(1, 10), {0: F(1), 1: F(3, 10)}, {0: F(-1), 1: F(-3, 10)}
OBLIQUE = (SLOPE, F(7), False)
CELLS = {
    "no rules": ([], {()}),
    "the whole domain is not gated": ([Polytope(), when(above(0, 20))], {(1,), ()}),
    "equal regions are merged, rules with or have several": (
        [when(above(0, 20)), (when(above(0, 20)), when(below(0, 5)))], {(0,), (1,), ()}),
    "a shared border, one side strict": ([when(below(0, TENTH, strict=True)), when(above(0, TENTH))], {(0,), (1,), ()}),
    "a shared border": ([when(below(0, TENTH)), when(above(0, TENTH))], {(0, 1), (0,), (1,), ()}),
    # In float32 both constants are the same number: the guard reports both regions there.
    "a hair apart": ([when(below(0, TENTH)), when(above(0, TENTH + F(1, 10**10)))], {(0, 1), (0,), (1,), ()}),
    "less than a hair apart": ([when(below(0, TENTH)), when(above(0, TENTH + F(1, 10**18)))], {(0, 1), (0,), (1,), ()}),
    "apart": ([when(below(0, TENTH)), when(above(0, TENTH + F(1, 10**6)))], {(0,), (1,), ()}),
    "complements at an oblique border": ([when(OBLIQUE), when((OPPOSITE, F(-7), True))], {(0, 1), (0,), (1,), ()}),
    "oblique and apart": ([when(OBLIQUE), when((OPPOSITE, F(-7) - F(1, 10**3), True))], {(0,), (1,), ()}),
    "one inside of the other": ([when(above(0, 20)), when(above(0, 10))], {(0, 1), (1,), ()}),
    "always active": ([when(above(0, 0)), when(above(0, 10))], {(0, 1), (0,)}),
    "empty": ([when(above(0, 20), below(0, 10)), when(above(1, 3))], {(1,), ()}),
    "a shared oblique row is one bit": ([when(OBLIQUE), when(OBLIQUE, above(0, 3))], {(0, 1), (0,), ()}),
    "three that meet in pairs only": (
        [when(below(0, 25)), when(below(1, 25)), when(({0: F(-1), 1: F(-1)}, F(-60), False))],
        {(0, 1), (0, 2), (1, 2), (0,), (1,), (2,), ()}),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_what_the_guard_can_report(name):
    regions, expected = CELLS[name]
    cells = find_cells(specification(*regions))
    assert set(cells) == expected
    assert cells.free_cell == (() in expected and len(cells.gated) == len(cells.regions))


def test_regions_rules_and_proofs_of_cells():
    def found(name):
        return find_cells(specification(*CELLS[name][0]))

    assert found("the whole domain is not gated").regions == ((), (0,))
    assert found("equal regions are merged, rules with or have several").rules == ((0, 1), (1,))
    (implication,) = found("one inside of the other").implications
    assert (implication.regions, implication.implied) == ((0,), 1)
    assert found("empty").conflicts[0].regions == (0,)
    assert [c.regions for c in found("three that meet in pairs only").conflicts] == [(0, 1, 2)]


def test_above_the_cap_the_widest_rules_lose_their_bit():
    regions = [when(above(0, 4 * i + 1), below(0, 4 * i + 6)) for i in range(8)]
    spec = specification(*regions, when(above(1, 1)), when(above(1, 39)))
    full = find_cells(spec)
    capped = find_cells(spec, max_cells=len(full) - 1)
    assert 8 not in capped.gated
    assert 9 in capped.gated
    assert len(capped) < len(full)
    assert all(8 not in (*c.regions,) for c in capped.conflicts)


def test_above_the_cap_rules_that_cannot_be_always_on_are_named(monkeypatch):
    inputs = (NumericInput("x", F(0), F(40)),)
    rules = tuple(
        Rule(name, (region,), requirement, "", "")
        for name, region, requirement in [
            ("wide", when(below(0, 30)), at_most(1)),
            ("narrow", when(below(0, 1)), at_least(0)),
            ("opposite", when(above(0, 31)), at_least(2)),
        ]
    )
    spec = Specification(inputs, (Number("y"),), rules)
    find_center(spec, find_cells(spec), 0)
    capped = find_cells(spec, max_cells=2)
    assert len(capped.gated) == 1
    with pytest.raises(NotCertifiedError, match="every head obeys 'opposite', 'wide': merge or relax"):
        find_center(spec, capped, len(capped) - 1)
    assert not any(finding.severe for finding in diagnose(spec).findings)
    # The head of rules serves them: that a learned box cannot is no finding.
    monkeypatch.setattr("smle.advice.examine.find_cells", lambda _: capped)
    assert not any(finding.severe for finding in diagnose(spec).findings)


def test_constants_beyond_float32_are_refused():
    spec = specification(high=F(10) ** 39)
    with pytest.raises(RuleError, match="x0, x1 needs numbers beyond the range of float32"):
        guard_row(Row(((0, F(1)), (1, F(1))), F(1)), spec)
    with pytest.raises(RuleError, match="range of an input is beyond float32"):
        find_cells(specification(when(below(0, 3)), high=F(10) ** 39))


def test_max_cells_must_be_positive():
    with pytest.raises(ValueError, match="max_cells >= 1"):
        find_cells(specification(), max_cells=0)


def test_thirty_overlapping_rules_take_seconds():
    generator = np.random.default_rng(3)
    regions = []
    for _ in range(30):
        rows = []
        for i in generator.choice(4, 3, replace=False):
            a, b = sorted(generator.integers(0, 400, 2))
            rows += [above(int(i), F(int(a), 10), strict=True), below(int(i), F(int(b) + 20, 10))]
        rows.append(({int(i): F(int(v), 10) for i, v in enumerate(generator.integers(1, 9, 4))}, F(60), False))
        regions.append(when(*rows))
    start = time.process_time()
    cells = find_cells(specification(*regions, d=4))
    assert time.process_time() - start < 120
    assert len(cells) <= 256
