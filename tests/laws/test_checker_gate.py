"""The deployed gate and exact membership: inside exactly implies that the bit is on, at borders above all."""

from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from smle.exact import BINARY32, BINARY64, nearest
from smle.guarantees.cells import arrange
from smle.nn.head import Domain, Gate
from smle.rules import Specification

SPEC = Specification.from_yaml("""
inputs: {a: [-1, 3], b: [0, 0.7], c: [-100, 100]}
outputs: [y]
rules:
  - {name: oblique, when: 0.3 * a + 0.7 * b <= 0.1 * c, then: y <= 1}
  - {name: plain, when: a <= 0.1 and c > -0.7, then: y <= 1}
  - {name: strict, when: b < 0.3, then: y <= 1}
  - {name: mixed, when: a + b + c < 1 and b >= 0.7, then: y <= 1}
""")
ARRANGEMENT = arrange(SPEC)
GATE, DOMAIN = Gate(SPEC, ARRANGEMENT), Domain(SPEC)
FORMATS = {torch.float32: BINARY32, torch.float64: BINARY64}


def member(region: int, x: list[Fraction], dtype: torch.dtype) -> bool:
    """Exact membership; the constant of a comparison is the nearest number of the input's own format."""
    for index in ARRANGEMENT.regions[region]:
        row = ARRANGEMENT.rows[index]
        value = sum(q * x[i] for i, q in row.coefficients)
        bound = nearest(row.bound, FORMATS[dtype]) if len(row.coefficients) == 1 else row.bound
        if not (value < bound if row.strict else value <= bound):
            return False
    return True


def near(region: int, x: list[Fraction], dtype: torch.dtype) -> bool:
    """Membership of the region enlarged by the guard's slack, generously; comparisons are exact."""
    for index in ARRANGEMENT.regions[region]:
        row = ARRANGEMENT.rows[index]
        value = sum(q * x[i] for i, q in row.coefficients)
        if len(row.coefficients) == 1:
            bound = nearest(row.bound, FORMATS[dtype])
            if not (value < bound if row.strict else value <= bound):
                return False
        elif value > row.bound + Fraction(1, 10**3):
            return False
    return True


def check(points: torch.Tensor) -> tuple[int, int]:
    """Compare bits with exact membership; return how many bits were on, and how many without membership."""
    clamped = DOMAIN(points)
    bits = GATE.active(clamped).numpy()
    on = enlarged = 0
    for row, values in enumerate(clamped.tolist()):
        x = [Fraction(v) for v in values]
        for position, region in enumerate(ARRANGEMENT.gated):
            inside = member(region, x, points.dtype)
            if inside:
                assert bits[row, position], f"{values} lies in region {region}, but its bit is off"
            if bits[row, position]:
                assert near(region, x, points.dtype), f"{values} is far from region {region}, but its bit is on"
                on, enlarged = on + 1, enlarged + (not inside)
    return on, enlarged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_points(dtype):
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor([-1.5, -0.1, -120.0]), torch.tensor([3.5, 0.8, 120.0])
    points = (low + (high - low) * torch.rand(400, 3, generator=generator)).to(dtype)
    on, _ = check(points)
    assert on > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_around_oblique_facets(dtype):
    """Points on the facet, one and two numbers to either side: where a plain float32 guard is wrong."""
    kind = np.float32 if dtype == torch.float32 else np.float64
    rng = np.random.default_rng(1)
    points = []
    for _ in range(150):
        a, b = kind(rng.uniform(-1, 3)), kind(rng.uniform(0, 0.7))
        c = kind((Fraction(3, 10) * Fraction(float(a)) + Fraction(7, 10) * Fraction(float(b))) * 10)
        options = [c]
        for direction in (kind(np.inf), kind(-np.inf)):
            step = np.nextafter(c, direction)
            options += [step, np.nextafter(step, direction)]
        points += [[a, b, option] for option in options]
    on, enlarged = check(torch.tensor(np.array(points, dtype=kind)))
    assert on > 400
    assert enlarged > 20, "no point was a hair outside: the borders were not tried"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_around_comparisons(dtype):
    kind = np.float32 if dtype == torch.float32 else np.float64
    points = []
    for column, constant in ((0, 0.1), (1, 0.3), (1, 0.7), (2, -0.7)):
        center = kind(constant)
        for value in (np.nextafter(center, kind(-9)), center, np.nextafter(center, kind(9))):
            point = [kind(0), kind(0.5), kind(0)]
            point[column] = value
            points.append(point)
    _, enlarged = check(torch.tensor(np.array(points, dtype=kind)))
    assert enlarged == 0, "comparisons are exact"


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.floats(-200, 200, width=32) | st.sampled_from([0.1, 0.3, 0.7, -0.7, 1.0]) for _ in range(3)]),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_points(points, dtype):
    check(torch.tensor(points, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_and_infinities_are_clamped_first(dtype):
    special = [float("nan"), float("inf"), float("-inf"), 1e-45, -0.0]
    points = torch.tensor([[a, b, c] for a in special for b in special for c in special], dtype=dtype)
    clamped = DOMAIN(points)
    assert torch.isfinite(clamped).all()
    assert DOMAIN.contains(clamped).all()
    check(points)


def test_bits_do_not_depend_on_the_batch():
    """Each point picks a cell that was certified, whatever it is batched with."""
    generator = torch.Generator().manual_seed(2)
    points = DOMAIN(torch.rand(300, 3, generator=generator) * 4 - 1)
    known = {tuple(cell) for cell in ARRANGEMENT.cells}
    for batch in (points, *points.split(1), *points.split(7)):
        for bits, cell in zip(GATE.active(batch).tolist(), GATE(batch).tolist(), strict=True):
            active = tuple(g for g, bit in zip(ARRANGEMENT.gated, bits, strict=True) if bit)
            assert active in known
            assert ARRANGEMENT.cells[cell] == active
