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


def test_no_rules_is_one_free_cell():
    cells = find_cells(specification())
    assert tuple(cells) == ((),)
    assert cells.free_cell


def test_the_whole_domain_is_not_gated():
    cells = find_cells(specification(Polytope(), when(above(0, 20))))
    assert cells.regions == ((), (0,))
    assert cells.gated == (1,)
    assert tuple(cells) == ((1,), ())
    assert not cells.free_cell


def test_equal_regions_are_merged_and_rules_with_or_have_several():
    either = (when(above(0, 20)), when(below(0, 5)))
    cells = find_cells(specification(when(above(0, 20)), either))
    assert cells.rules == ((0, 1), (1,))
    assert set(cells) == {(0,), (1,), ()}


def test_a_shared_border_is_not_an_overlap_if_one_side_is_strict():
    tenth = F(1, 10)
    assert (0, 1) not in find_cells(specification(when(below(0, tenth, strict=True)), when(above(0, tenth))))
    assert (0, 1) in find_cells(specification(when(below(0, tenth)), when(above(0, tenth))))


@pytest.mark.parametrize("hair", [F(1, 10**10), F(1, 10**18)])
def test_borders_that_floats_cannot_tell_apart_overlap(hair):
    # In float32 both constants are the same number: the guard reports both regions there.
    tenth = F(1, 10)
    assert (0, 1) in find_cells(specification(when(below(0, tenth)), when(above(0, tenth + hair))))
    assert (0, 1) not in find_cells(specification(when(below(0, tenth)), when(above(0, tenth + F(1, 10**6)))))


def test_oblique_borders_overlap_by_the_slack_of_the_guard():
    slope = {0: F(1), 1: F(3, 10)}
    opposite = {0: F(-1), 1: F(-3, 10)}
    complement = when((opposite, F(-7), True))
    assert (0, 1) in find_cells(specification(when((slope, F(7), False)), complement))
    gap = when((opposite, F(-7) - F(1, 10**3), True))
    assert (0, 1) not in find_cells(specification(when((slope, F(7), False)), gap))


def test_implications_remove_signatures():
    cells = find_cells(specification(when(above(0, 20)), when(above(0, 10))))
    assert set(cells) == {(0, 1), (1,), ()}
    (implication,) = cells.implications
    assert (implication.regions, implication.implied) == ((0,), 1)


def test_a_region_that_is_the_whole_domain_is_always_active():
    cells = find_cells(specification(when(above(0, 0)), when(above(0, 10))))
    assert set(cells) == {(0, 1), (0,)}


def test_an_empty_region_is_in_no_cell():
    cells = find_cells(specification(when(above(0, 20), below(0, 10)), when(above(1, 3))))
    assert all(0 not in cell for cell in cells)
    assert cells.conflicts[0].regions == (0,)


def test_a_shared_oblique_row_is_one_bit():
    slope = ({0: F(1), 1: F(3, 10)}, F(7), False)
    cells = find_cells(specification(when(slope), when(slope, above(0, 3))))
    assert set(cells) == {(0, 1), (0,), ()}


def test_three_regions_that_meet_in_pairs_only():
    corner = when(({0: F(-1), 1: F(-1)}, F(-60), False))
    cells = find_cells(specification(when(below(0, 25)), when(below(1, 25)), corner))
    assert (0, 1, 2) not in cells
    assert {(0, 1), (0, 2), (1, 2)} <= set(cells)
    assert [c.regions for c in cells.conflicts] == [(0, 1, 2)]


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
