"""The deployed gate and exact membership: inside exactly implies that the bit is on, at borders above all."""

from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from smle.heads.box.network.deployed import gate_program
from smle.regions.cell_search import find_cells
from smle.rules import Specification
from smle_check.floats import BINARY32, BINARY64, nearest

SPEC = Specification.from_yaml("""
inputs: {a: [-1, 3], b: [0, 0.7], c: [-100, 100]}
outputs: [y]
rules:
  - {name: oblique, when: 0.3 * a + 0.7 * b <= 0.1 * c, then: y <= 1}
  - {name: plain, when: a <= 0.1 and c > -0.7, then: y <= 1}
  - {name: strict, when: b < 0.3, then: y <= 1}
  - {name: mixed, when: a + b + c < 1 and b >= 0.7, then: y <= 1}
""")
SINGLE = Specification.from_yaml("""
inputs: {a: [-1, 3], b: [0, 0.7], c: [-100, 100]}
outputs: [y]
rules: [{name: one, when: 0.3 * a + 0.7 * b <= 0.1 * c and a < 0.7 and b >= 0.3, then: y <= 1}]
""")
FORMATS = {torch.float32: BINARY32, torch.float64: BINARY64}


class Setup:
    """A specification with its gate; `check` compares bits with exact membership."""

    def __init__(self, spec: Specification) -> None:
        self.cells = find_cells(spec)
        self.gate = gate_program(spec, self.cells)

    def member(self, region: int, x: list[Fraction], dtype: torch.dtype, *, slack: Fraction = Fraction(0)) -> bool:
        """Membership; the constant of a comparison is the nearest number of the input's own format."""
        for index in self.cells.regions[region]:
            row = self.cells.rows[index]
            value = sum(q * x[i] for i, q in row.coefficients)
            comparison = len(row.coefficients) == 1
            bound = nearest(row.bound, FORMATS[dtype]) if comparison else row.bound + slack
            if not (value < bound if row.strict else value <= bound):
                return False
        return True

    def check(self, points: torch.Tensor) -> tuple[int, int]:
        """Return how many bits were on, and how many of them without membership."""
        seen = self.gate.values(points.numpy(), np.zeros((len(points), 0)))
        clamped, bits, cells = seen["x"], seen["bits"], seen["cell"]
        on = enlarged = 0
        for row, values in enumerate(clamped.tolist()):
            x = [Fraction(v) for v in values]
            chosen = self.cells[cells[row]]
            for position, region in enumerate(self.cells.gated):
                inside = self.member(region, x, points.dtype)
                assert bool(bits[row, position]) == (region in chosen), "the cell is not that of the bits"
                if inside:
                    assert bits[row, position], f"{values} lies in region {region}, but its bit is off"
                if bits[row, position]:
                    near = self.member(region, x, points.dtype, slack=Fraction(1, 1000))
                    assert near, f"{values} is far from region {region}, but its bit is on"
                    on, enlarged = on + 1, enlarged + (not inside)
        return on, enlarged


SETUPS = {"several regions": Setup(SPEC), "one region": Setup(SINGLE)}
setups = pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@setups
@dtypes
def test_random_points(setup, dtype):
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor([-1.5, -0.1, -120.0]), torch.tensor([3.5, 0.8, 120.0])
    points = (low + (high - low) * torch.rand(300, 3, generator=generator)).to(dtype)
    on, _ = setup.check(points)
    assert on > 20


@setups
@dtypes
def test_one_step_around_oblique_facets(setup, dtype):
    """Points on the facet, one and two numbers to either side: where a plain float32 guard is wrong."""
    kind = np.float32 if dtype == torch.float32 else np.float64
    rng = np.random.default_rng(1)
    points = []
    for _ in range(120):
        a, b = kind(rng.uniform(-1, 0.5)), kind(rng.uniform(0.35, 0.7))
        c = kind((Fraction(3, 10) * Fraction(float(a)) + Fraction(7, 10) * Fraction(float(b))) * 10)
        options = [c]
        for direction in (kind(np.inf), kind(-np.inf)):
            step = np.nextafter(c, direction)
            options += [step, np.nextafter(step, direction)]
        points += [[a, b, option] for option in options]
    on, enlarged = setup.check(torch.tensor(np.array(points, dtype=kind)))
    assert on > 300
    if kind is np.float32:
        assert enlarged == 0, "sums in float64 tell neighboring float32 numbers apart"
    else:
        assert enlarged > 20, "no point was a hair outside: the borders were not tried"


@setups
@dtypes
def test_one_step_around_comparisons(setup, dtype):
    kind = np.float32 if dtype == torch.float32 else np.float64
    points = []
    for column, constant in ((0, 0.1), (0, 0.7), (1, 0.3), (1, 0.7), (2, -0.7)):
        center = kind(constant)
        for value in (np.nextafter(center, kind(-9)), center, np.nextafter(center, kind(9))):
            point = [kind(0), kind(0.5), kind(50)]
            point[column] = value
            points.append(point)
    _, enlarged = setup.check(torch.tensor(np.array(points, dtype=kind)))
    assert enlarged == 0, "comparisons are exact"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.floats(-200, 200, width=32) | st.sampled_from([0.1, 0.3, 0.7, -0.7, 1.0]) for _ in range(3)]),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_points(points, dtype):
    for setup in SETUPS.values():
        setup.check(torch.tensor(points, dtype=dtype))


@setups
@dtypes
def test_nan_and_infinities_are_clamped_first(setup, dtype):
    special = [float("nan"), float("inf"), float("-inf"), 1e-45, -0.0]
    points = torch.tensor([[a, b, c] for a in special for b in special for c in special], dtype=dtype)
    gate = setup.gate
    clamped = gate.values(points.numpy(), np.zeros((len(points), 0)))["x"]
    low, high = (gate.tensors[f"domain.{end}_{clamped.dtype.name}"] for end in ("lower", "upper"))
    assert ((low <= clamped) & (clamped <= high)).all()
    setup.check(points)


@setups
def test_every_batch_size_gives_certified_cells(setup):
    """Each point picks a cell that was certified, whatever it is batched with."""
    generator = torch.Generator().manual_seed(2)
    points = torch.rand(200, 3, generator=generator) * 4 - 1
    for batch in (points, *points.split(1)[:50], *points.split(7)):
        setup.check(batch)
