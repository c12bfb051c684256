"""The numbers that bounds are made of."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from smle.heads.box.proof.float_errors import affine_errors
from smle.heads.box.proof.frozen_heads import Bounds, Head
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox
from smle.regions.cells import Cells
from smle.regions.geometry import Domain, Region, RegionMaximum, enlarged_rows
from smle.rules import Categorical, Number, NumericInput, Row, Specification
from smle_check.floats import affine_error


def test_float_errors_are_just_above_the_exact_ones() -> None:
    rng = np.random.default_rng(0)
    weights, sizes, offsets = rng.normal(size=(20, 7)), rng.uniform(0, 3, size=7), rng.normal(size=20)
    for row, offset, error in zip(weights, offsets, affine_errors(weights, sizes, offsets), strict=True):
        truth = affine_error(
            [Fraction(float(w)) for w in row], [Fraction(float(s)) for s in sizes], Fraction(float(offset)), "sum"
        )
        assert truth <= Fraction(float(error)) <= truth * Fraction(1001, 1000)


def test_a_sum_that_may_overflow_has_no_error_bound() -> None:
    assert np.isinf(affine_errors(np.array([[3e38, 3e38]]), np.ones(2), np.zeros(1))[0])


def test_constant_bounds_that_cross_are_what_the_clip_gives() -> None:
    domain = Domain(np.zeros(1), np.ones(1), np.ones(1))
    envelope = WidenedBox.of(Bounds([2.0, 0.0], [1.0, 1.0]), domain)
    assert envelope.lower[0] == envelope.upper[0] == 2.0
    assert (envelope.lower[1], envelope.upper[1]) == pytest.approx((0.0, 1.0), abs=1e-30)


def test_affine_bounds_are_widened_by_their_own_rounding() -> None:
    domain = Domain(np.zeros(1), np.full(1, 100.0), np.full(1, 100.0))
    envelope = WidenedBox.of(Bounds([0.1], [0.2], [[0.3]], [[0.3]]), domain)
    assert 1e-7 < (envelope.upper - envelope.lower)[0] - (np.float32(0.2) - np.float32(0.1)) < 1e-4
    head = HeadNumbers.of(Head([[1.0]], [0.0], V=[[2.0]]), envelope, domain)
    assert head.errors[0] > 0


def test_rows_are_enlarged_as_the_guard_sees_them() -> None:
    spec = Specification(
        (
            NumericInput("a", Fraction(0), Fraction(10)),
            NumericInput("b", Fraction(0), Fraction(10)),
            Categorical("c", ("p", "q")),
        ),
        (Number("y"),),
        (),
    )
    rows = (Row(((0, Fraction(1)),), Fraction(1, 10)), Row(((0, Fraction(1)), (1, Fraction(1, 3))), Fraction(1)))
    cells = Cells(rows, ((0,), (1,)), ((), ()), (), ((),), (), ())
    A, a = enlarged_rows(cells, spec)
    assert A.shape == (4, 4)
    assert Fraction(a[0]) == Fraction(float(np.float32(0.1)))  # x = float32(0.1) satisfies x <= 0.1
    assert 1.0 < a[1] < 1.0001
    assert A[2:].tolist() == [[0, 0, 1, 1], [0, 0, -1, -1]]
    assert a[2:].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("oblique", [False, True])
def test_support_prices_what_it_maximizes(oblique: bool) -> None:
    rng = np.random.default_rng(0)
    domain = Domain(-np.ones(3), np.ones(3), np.ones(3))
    A = rng.normal(size=(4, 3)) if oblique else np.array([[1.0, 0, 0], [-1, 0, 0], [0, 2, 0], [0, 0, -1]])
    a = np.array([0.5, 0.25, 0.8, 0.1])
    region = Region(domain, (3, 5, 7, 9), A, a)
    slopes = rng.normal(size=(20, 3))
    bounds, mu, x = RegionMaximum(region)(slopes)
    assert (mu >= 0).all()
    assert (x @ A.T <= a + 1e-7).all()
    assert bounds == pytest.approx((slopes * x).sum(axis=1), abs=1e-7)
    assert all(number in (3, 5, 7, 9) for number, _ in region.pairs(mu[0]))


def test_an_empty_region_is_proved_empty_and_others_are_not() -> None:
    domain = Domain(-np.ones(2), np.ones(2), np.ones(2))
    rows = np.array([[1.0, 1.0], [-1.0, -1.0]])
    assert Region(domain, (0, 1), rows, np.array([0.5, -0.6])).empty() is not None
    assert Region(domain, (0, 1), rows, np.array([0.5, -0.5])).empty() is None
    assert Region.whole(domain).empty() is None
