"""The checker's arithmetic against the hardware, against plain formulas, and against what the guard deploys."""

import struct
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

import smle_check
from smle.regions.guard_rows import guard_row
from smle.rules import Number, NumericInput, Row, Specification
from smle_check import BINARY32, BINARY64
from smle_check.floats import (
    FORMATS,
    affine_error,
    cast_error,
    constant,
    nearest,
    round_down,
    round_up,
    threshold_above,
)
from smle_check.reading import number

KINDS = {BINARY32: np.float32, BINARY64: np.float64}
rationals = st.fractions(max_denominator=10**12) | st.builds(
    lambda m, e: Fraction(m) * Fraction(2) ** e, st.integers(-(2**60), 2**60), st.integers(-1150, 60)
)
singles = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=200, deadline=None)
@given(value=rationals, fmt=st.sampled_from(FORMATS))
def test_rounding_gives_the_next_numbers_of_the_format(value, fmt):
    kind = KINDS[fmt]
    down, near, up = (rounded(value, fmt) for rounded in (round_down, nearest, round_up))
    assert down <= value <= up
    assert near in (down, up)
    assert abs(near - value) == min(value - down, up - value)
    for end in (down, up):
        assert Fraction(float(kind(float(end)))) == end
    assert down == up == value or Fraction(float(np.nextafter(kind(float(down)), kind(np.inf)))) == up


@settings(max_examples=200, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False, min_value=-1e38, max_value=1e38))
def test_nearest_is_the_hardware_cast(value):
    assert nearest(Fraction(value), BINARY32) == Fraction(float(np.float32(value)))
    assert nearest(Fraction(value), BINARY64) == Fraction(value)


@settings(max_examples=200, deadline=None)
@given(low=singles)
def test_nearest_takes_ties_to_even(low):
    with np.errstate(over="ignore"):
        high = np.nextafter(np.float32(low), np.float32(np.inf))
    assume(np.isfinite(high))
    middle = (Fraction(low) + Fraction(float(high))) / 2
    (bits,) = struct.unpack("<I", struct.pack("<f", low))
    expected = Fraction(low) if bits % 2 == 0 else Fraction(float(high))
    assert nearest(middle, BINARY32) == expected


@settings(max_examples=300, deadline=None)
@given(value=st.one_of(singles, st.floats(-(2.0**-1015), 2.0**-1015)), step=st.integers(-2, 2))
def test_a_threshold_is_the_least_number_above_that_is_zero_or_normal(value, step):
    value, tiny = Fraction(value) * (1 + step * Fraction(1, 2**60)), BINARY64.smallest_normal
    found = threshold_above(value)
    assert found >= value
    assert found == 0 or abs(found) >= tiny
    assert nearest(found, BINARY64) == found
    below = Fraction(float(np.nextafter(float(found), -np.inf)))
    if 0 < abs(below) < tiny:
        below = Fraction(0) if below > 0 else -tiny
    assert below < value


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_constants_too_close_to_zero_are_refused(fmt):
    smallest = Fraction(float(np.finfo(KINDS[fmt]).smallest_normal))
    assert constant(smallest, fmt) == smallest
    assert constant(Fraction(0), fmt) == 0
    with pytest.raises(smle_check.Rejected, match="too close to 0"):
        constant(-smallest * Fraction(3, 4), fmt)


sums = st.integers(0, 12).flatmap(
    lambda n: st.tuples(
        st.lists(singles.filter(lambda v: abs(v) < 2.0**50), min_size=n, max_size=n),
        st.lists(st.floats(0, 2.0**50, width=32), min_size=n, max_size=n),
        singles.filter(lambda v: abs(v) < 2.0**50),
    )
)


@settings(max_examples=100, deadline=None)
@given(sums)
def test_affine_error_is_the_formula_of_the_format(parts):
    weights, sizes, offset = [Fraction(v) for v in parts[0]], [Fraction(v) for v in parts[1]], Fraction(parts[2])
    n, tiny = len(weights), Fraction(1, 2**126)
    growth = Fraction(n + 1, 2**24 - n - 1)
    total = abs(offset) + sum(abs(w) * s for w, s in zip(weights, sizes, strict=True))
    spread = sum(abs(w) + s for w, s in zip(weights, sizes, strict=True))
    assert affine_error(weights, sizes, offset, "sum") == growth * total + tiny * (2 * n + 1 + spread) * (1 + growth)


@settings(max_examples=80, deadline=None)
@given(parts=sums, seed=st.integers(0, 2**32 - 1))
def test_affine_error_bounds_float32_sums(parts, seed):
    """Any order of summation in float32 stays within the bound of the exact value."""
    weights, sizes, offset = parts
    rng = np.random.default_rng(seed)
    v = (np.array(sizes, "f4") * rng.uniform(-1, 1, len(sizes)).astype("f4")).astype("f4")
    bound = affine_error([Fraction(w) for w in weights], [Fraction(s) for s in sizes], Fraction(offset), "sum")
    true = Fraction(offset) + sum(Fraction(w) * Fraction(float(a)) for w, a in zip(weights, v, strict=True))
    terms = [np.float32(w) * a for w, a in zip(np.array(weights, "f4"), v, strict=True)] + [np.float32(offset)]
    for _ in range(3):
        total = np.float32(0)
        for k in rng.permutation(len(terms)):
            total = np.float32(total + terms[k])
        assert abs(Fraction(float(total)) - true) <= bound
    product = np.array(weights, "f4") @ v + np.float32(offset)
    assert abs(Fraction(float(product)) - true) <= bound


coefficients = st.fractions(min_value=-100, max_value=100, max_denominator=1000).filter(bool)
ends = st.fractions(min_value=-1000, max_value=1000, max_denominator=100)


@settings(max_examples=80, deadline=None)
@given(
    terms=st.lists(coefficients, min_size=1, max_size=5),
    bound=st.fractions(min_value=-500, max_value=500, max_denominator=10**6),
    strict=st.booleans(),
    pairs=st.lists(st.tuples(ends, ends).filter(lambda p: p[0] != p[1]), min_size=5, max_size=5),
)
def test_guard_rows(terms, bound, strict, pairs):
    """Thresholds, constants and enlarged half-spaces of a row are the same on both sides."""
    d = len(terms)
    ranges = [(min(p), max(p)) for p in pairs[:d]]
    inputs = tuple(NumericInput(f"x{i}", low, high) for i, (low, high) in enumerate(ranges))
    spec = Specification(inputs, (Number("y"),), ())
    row = Row(tuple(enumerate(terms)), bound, strict)
    guard = guard_row(row, spec)
    sizes = [max(abs(nearest(end, fmt)) for fmt in FORMATS for end in pair) for pair in ranges]
    data = {
        "inputs": [{"name": f"x{i}", "lower": str(a), "upper": str(b)} for i, (a, b) in enumerate(ranges)],
        "one_hot": [],
        "outputs": [{"name": "y", "kind": "number"}],
        "rows": [{"terms": [[i, str(v)] for i, v in row.coefficients], "bound": str(row.bound), "strict": row.strict}],
        "regions": [],
        "rules": [],
    }
    compiled = smle_check.StatedSpecification(data, b"").rows[0]
    if guard.is_comparison:
        for position, fmt in enumerate(FORMATS):
            assert compiled.compared[fmt] == (guard.constants[position], strict)
        singles = [nearest(c, BINARY32) for c in guard.constants]
        assert compiled.closed == max(singles)
    else:
        assert guard.threshold is not None
        cast = sum(abs(v) * cast_error(sizes[i]) for i, v in row.coefficients)
        assert compiled.closed == guard.threshold + guard.slack + cast
        assert guard.threshold >= row.bound + guard.slack
        for fmt in FORMATS:
            assert guard.inside(fmt)[1] == compiled.compared[fmt][0] == guard.threshold + guard.slack
            assert guard.outside(fmt)[1] == -compiled.bound


@settings(max_examples=80, deadline=None)
@given(value=rationals)
def test_numbers_read_back(value):
    assert number(str(value), "number") == value


@settings(max_examples=80, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_hexadecimal_floats_read_back(value):
    assert number(value.hex(), "number") == Fraction(value)
