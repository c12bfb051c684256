"""Whatever the deployed guard reports, for any float input, is a cell; what was left out is left out by a proof."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smle_check
from smle.certificates.issue import compiled
from smle.heads.box.proof.issue_box import _coverage
from smle.regions.cell_search import find_cells
from smle.regions.guard_rows import domain_box, guard_rows
from smle.rules import CNF, Categorical, Clause, Literal, Number, NumericInput, Polytope, Row, Rule, Specification
from smle_check.floats import BINARY32, BINARY64, nearest
from smle_check.guard import check_coverage

F = Fraction
ANY = CNF((Clause((Literal(((0, F(1)),), (), F(1)),)),))
tenths = st.integers(-3, 13).map(lambda v: F(v, 10))


@st.composite
def rows(draw, d):
    if draw(st.integers(0, 2)):
        return Row(
            ((draw(st.integers(0, d - 1)), draw(st.sampled_from([F(1), F(-1)]))),), draw(tenths), draw(st.booleans())
        )
    form = tuple((i, v) for i in range(d) if (v := F(draw(st.integers(-7, 7)), 10)))
    return Row(form or ((0, F(1)),), draw(tenths), draw(st.booleans()))


@st.composite
def specifications(draw):
    """Rules whose borders often coincide, or nearly so: complements of rows, and rows a hair apart."""
    d = draw(st.integers(1, 3))
    inputs = tuple(
        NumericInput(f"x{i}", F(draw(st.integers(-2, 0)), 10), F(draw(st.integers(5, 12)), 10)) for i in range(d)
    )
    stated = draw(st.lists(rows(d), min_size=1, max_size=4))
    for row in list(stated):
        hair = draw(st.sampled_from([F(0), F(0), F(1, 10**10), F(-1, 10**10), F(1, 10**18)]))
        opposite = tuple((i, -q) for i, q in row.coefficients)
        stated.append(Row(opposite, -row.bound + hair, draw(st.sampled_from([row.strict, not row.strict]))))
    regions = draw(st.lists(st.sets(st.sampled_from(stated), min_size=1, max_size=3), min_size=1, max_size=6))
    rules = tuple(Rule(f"r{i}", (Polytope(tuple(region)),), ANY, "", "") for i, region in enumerate(regions))
    return Specification(inputs, (Number("y"),), rules)


def guard_signature(cells, guard, x, fmt, generator):
    """Evaluate the gate as deployed: comparisons in the input's own format, oblique rows in float32, any order."""
    dtype = np.float32 if fmt is BINARY32 else np.float64
    bits = []
    for row in guard:
        if row.is_comparison:
            ((i, sign),) = row.coefficients
            constant = dtype(float(nearest(row.bound * sign, fmt)))
            value = x[i]
            inside = (
                (value < constant if row.strict else value <= constant)
                if sign > 0
                else (value > constant if row.strict else value >= constant)
            )
        else:
            terms = [float(q) * float(x[i]) for q, (i, _) in zip(row.stored, row.coefficients, strict=True)]
            total = 0.0
            for k in generator.permutation(len(terms)):
                total += terms[k]
            inside = total <= float(row.threshold)
        bits.append(bool(inside))
    return tuple(r for r in cells.gated if all(bits[k] for k in cells.regions[r]))


def points(spec, guard, fmt, generator, count):
    """Draw inputs of the domain: anywhere, on and next to comparisons, on and next to oblique borders."""
    dtype = np.float32 if fmt is BINARY32 else np.float64
    low, high = (np.array([dtype(float(v)) for v in ends]) for ends in domain_box(spec, fmt))
    for _ in range(count):
        x = generator.uniform(low, high).astype(dtype)
        for row in generator.permutation(len(guard))[:2]:
            form = guard[row].coefficients
            i, q = form[generator.integers(len(form))]
            rest = sum(float(v) * float(x[j]) for j, v in form if j != i)
            value = dtype((float(guard[row].bound) - rest) / float(q))
            for _ in range(generator.integers(0, 4)):
                value = np.nextafter(value, dtype(generator.choice([-np.inf, np.inf])))
            x[i] = value
        yield np.clip(x, low, high)


@settings(max_examples=120, deadline=None)
@given(specifications(), st.integers(0, 2**32 - 1))
def test_every_signature_is_a_cell(spec, seed):
    cells = find_cells(spec, max_cells=64)
    guard = guard_rows(cells, spec)
    generator = np.random.default_rng(seed)
    for fmt in (BINARY32, BINARY64):
        for x in points(spec, guard, fmt, generator, 60):
            assert guard_signature(cells, guard, x, fmt, generator) in cells


def bound_of(multipliers, guard, spec, fmt, complement=None):
    """Recompute a proof's bound from its definition."""
    low, high = domain_box(spec, fmt)
    total, slope, strict = F(0), [F(0)] * len(low), False
    for number, m in multipliers:
        assert m >= 0
        if number == -1:
            row = complement
            form = [(i, -q) for i, q in row.coefficients]
            a, open_ = (-row.constants[fmt is BINARY64], not row.strict) if row.is_comparison else (-row.bound, True)
        elif number < len(guard):
            row = guard[number]
            form = row.coefficients
            a, open_ = (
                (row.constants[fmt is BINARY64], row.strict)
                if row.is_comparison
                else (row.threshold + row.slack, False)
            )
        else:
            group, side = divmod(number - len(guard), 2)
            sign = F(1 - 2 * side)
            form, a, open_ = [(i, sign) for i in spec.one_hot[group]], sign, False
        total += m * a
        strict |= open_ and m > 0
        for i, q in form:
            slope[i] -= m * q
    total += sum(max(e * lo, e * hi) for e, lo, hi in zip(slope, low, high, strict=True))
    return total, strict


@settings(max_examples=80, deadline=None)
@given(specifications())
def test_every_proof_is_one(spec):
    cells = find_cells(spec)
    guard = guard_rows(cells, spec)

    def proves(multipliers, complement=None):
        for fmt in (BINARY32, BINARY64):
            bound, strict = bound_of(multipliers, guard, spec, fmt, complement)
            assert bound < 0 or (bound == 0 and strict)

    for conflict in cells.conflicts:
        own = {r for region in conflict.regions for r in cells.regions[region]}
        assert {r for r, _ in conflict.multipliers} <= own
        proves(conflict.multipliers)
    for implication in cells.implications:
        own = {r for region in implication.regions for r in cells.regions[region]}
        numbers = cells.regions[implication.implied]
        for r, multipliers in zip(numbers, implication.multipliers, strict=True):
            assert {k for k, _ in multipliers} <= own | {-1}
            if multipliers:
                proves(multipliers, guard[r])
            else:
                assert r in own


@settings(max_examples=60, deadline=None)
@given(specifications())
def test_the_exact_checker_accepts_the_cells(spec):
    cells = find_cells(spec)
    stated = smle_check.StatedSpecification(compiled(spec, cells, block := bytearray()), bytes(block))
    coverage = _coverage(cells)
    check_coverage(stated, coverage, list(cells.gated), list(cells))
    for left_out in range(min(len(cells), 3)):
        fewer = [cell for c, cell in enumerate(cells) if c != left_out]
        with pytest.raises(smle_check.Rejected, match="no head for the regions"):
            check_coverage(stated, coverage, list(cells.gated), fewer)


@settings(max_examples=60, deadline=None)
@given(specifications())
def test_cells_are_what_conflicts_and_implications_leave(spec):
    cells = find_cells(spec)
    left = set()
    for mask in range(2 ** len(cells.gated)):
        active = {r for p, r in enumerate(cells.gated) if mask >> p & 1}
        refuted = any(set(c.regions) <= active for c in cells.conflicts)
        forced = any(set(i.regions) <= active and i.implied not in active for i in cells.implications)
        if not refuted and not forced:
            left.add(tuple(sorted(active)))
    assert left <= set(cells)
    if () in cells:
        assert cells[-1] == ()


@pytest.mark.parametrize("kind", ["with", "without"])
def test_one_hot_groups(kind):
    groups = (Categorical("road", ("dry", "wet", "icy")),)
    inputs = (*groups, NumericInput("speed", F(0), F(40)))
    regions = [Polytope((Row(((i, F(-1)),), F(-1)),)) for i in range(3)]
    if kind == "without":
        regions.append(Polytope((Row(((2, F(1)),), F(0)),)))
    rules = tuple(Rule(f"r{i}", (region,), ANY, "", "") for i, region in enumerate(regions))
    cells = find_cells(Specification(inputs, (Number("y"),), rules))
    guard = guard_rows(cells, spec := Specification(inputs, (Number("y"),), rules))
    assert all(bound_of(c.multipliers, guard, spec, BINARY64)[0] < 0 for c in cells.conflicts)
    if kind == "with":
        assert set(cells) == {(0,), (1,), (2,), ()}
    else:
        assert set(cells) == {(0, 3), (1, 3), (2,), (3,), ()}
