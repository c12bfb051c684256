"""The checker's own arithmetic and that of `smle.exact` and the guard are two ways to the same numbers."""

import struct
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from smle import exact
from smle.certificates import checker
from smle.guarantees.regions.guard import guard_row, threshold_above
from smle.rules import Number, NumericInput, Row, Specification

FORMATS = {"float32": exact.BINARY32, "float64": exact.BINARY64}
rationals = st.fractions(max_denominator=10**12) | st.builds(
    lambda m, e: Fraction(m) * Fraction(2) ** e, st.integers(-(2**60), 2**60), st.integers(-1150, 60)
)
singles = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=200, deadline=None)
@given(value=rationals, fmt=st.sampled_from(sorted(FORMATS)))
def test_nearest(value, fmt):
    assert checker.nearest(value, fmt) == exact.nearest(value, FORMATS[fmt])


@settings(max_examples=200, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False, min_value=-1e38, max_value=1e38))
def test_nearest_is_the_hardware_cast(value):
    assert checker.nearest(Fraction(value), "float32") == Fraction(float(np.float32(value)))
    assert checker.nearest(Fraction(value), "float64") == Fraction(value)


@settings(max_examples=200, deadline=None)
@given(low=singles)
def test_nearest_takes_ties_to_even(low):
    with np.errstate(over="ignore"):
        high = np.nextafter(np.float32(low), np.float32(np.inf))
    assume(np.isfinite(high))
    middle = (Fraction(low) + Fraction(float(high))) / 2
    (bits,) = struct.unpack("<I", struct.pack("<f", low))
    expected = Fraction(low) if bits % 2 == 0 else Fraction(float(high))
    assert checker.nearest(middle, "float32") == expected


@settings(max_examples=300, deadline=None)
@given(value=st.one_of(singles, st.floats(-(2.0**-120), 2.0**-120)), step=st.integers(-2, 2))
def test_a_threshold_is_the_least_number_above_that_is_zero_or_normal(value, step):
    value = Fraction(value) * (1 + step * Fraction(1, 2**30))
    try:
        found = checker.threshold_above(value)
    except checker.Rejected:
        assert value > checker.LARGEST
        return
    assert found >= value
    assert found == 0 or abs(found) >= checker.TINY
    assert checker.nearest(found, "float32") == found
    below = np.nextafter(np.float32(float(found)), np.float32(-np.inf))
    while 0 < abs(below) < float(checker.TINY):
        below = np.float32(0) if below > 0 else np.float32(-float(checker.TINY))
    assert not np.isfinite(below) or Fraction(float(below)) < value
    assert found == threshold_above(value)


@pytest.mark.parametrize("fmt", ["float32", "float64"])
def test_constants_too_close_to_zero_are_refused(fmt):
    smallest = Fraction(2) ** checker.FORMATS[fmt][1]
    assert checker.constant(smallest, fmt) == smallest
    assert checker.constant(Fraction(0), fmt) == 0
    with pytest.raises(checker.Rejected, match="too close to 0"):
        checker.constant(-smallest * Fraction(3, 4), fmt)


sums = st.integers(0, 12).flatmap(
    lambda n: st.tuples(
        st.lists(singles.filter(lambda v: abs(v) < 2.0**50), min_size=n, max_size=n),
        st.lists(st.floats(0, 2.0**50, width=32), min_size=n, max_size=n),
        singles.filter(lambda v: abs(v) < 2.0**50),
    )
)


@settings(max_examples=100, deadline=None)
@given(sums)
def test_affine_error(parts):
    weights, sizes, offset = parts
    fractions = [Fraction(v) for v in weights], [Fraction(v) for v in sizes], Fraction(offset)
    assert checker.affine_error(*fractions, "sum") == exact.affine_error(*fractions)


@settings(max_examples=80, deadline=None)
@given(parts=sums, seed=st.integers(0, 2**32 - 1))
def test_affine_error_bounds_float32_sums(parts, seed):
    """Any order of summation in float32 stays within the bound of the exact value."""
    weights, sizes, offset = parts
    rng = np.random.default_rng(seed)
    v = (np.array(sizes, "f4") * rng.uniform(-1, 1, len(sizes)).astype("f4")).astype("f4")
    bound = checker.affine_error([Fraction(w) for w in weights], [Fraction(s) for s in sizes], Fraction(offset), "sum")
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
    data = {
        "inputs": [{"name": f"x{i}", "lower": str(a), "upper": str(b)} for i, (a, b) in enumerate(ranges)],
        "one_hot": [],
        "outputs": [{"name": "y", "kind": "number"}],
        "rows": [{"terms": [[i, str(v)] for i, v in row.coefficients], "bound": str(row.bound), "strict": row.strict}],
        "regions": [],
        "rules": [],
    }
    compiled = checker.Specification(data, b"").rows[0]
    if guard.is_comparison:
        for position, fmt in enumerate(("float32", "float64")):
            assert compiled.compared[fmt] == (guard.constants[position], strict)
        singles = [exact.nearest(c, exact.BINARY32) for c in guard.constants]
        assert compiled.closed == max(singles)
    else:
        assert guard.threshold is not None
        assert compiled.closed == guard.threshold + guard.slack
        assert guard.threshold >= row.bound + guard.slack
        for fmt in FORMATS.values():
            assert guard.inside(fmt)[1] == compiled.closed
            assert guard.outside(fmt)[1] == -compiled.bound


@settings(max_examples=80, deadline=None)
@given(value=rationals)
def test_numbers_read_back(value):
    assert checker.number(str(value), "number") == value


@settings(max_examples=80, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_hexadecimal_floats_read_back(value):
    assert checker.number(value.hex(), "number") == Fraction(value)
