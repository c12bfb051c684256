"""Hand-made models with network bounds, and an exact judge for them: the true worst case, without relaxation.

For single literals the worst case at a given x is closed form, and over x it is piecewise affine with kinks where a
hidden unit or a side of the region is zero: in two dimensions it is largest at a crossing of two such lines. With two
hidden layers the judge looks at a grid instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head, Layer
from smle.regions.cell_search import find_cells
from smle.rules import Specification

from .builder import Package, issued

EVERYWHERE = """\
inputs: {a: [-1, 1], b: [-1, 1]}
outputs: [y]
rules:
  - name: top
    then: y <= 1
  - name: follow
    then: y >= a - 3
"""
WEDGE = """\
inputs: {a: [-1, 1], b: [-1, 1]}
outputs: [y]
rules:
  - name: wedge
    when: a + b <= -0.5 and b >= -0.75
    then: y <= 1
"""
LABELS = """\
inputs: {a: [-1, 1], b: [-1, 1]}
labels: [cat, dog, cow]
rules:
  - name: one
    then: at_most_one(cat, dog, cow)
"""


def hat_bounds(n: int = 2) -> Bounds:
    """Bounds that rise and fall: a single box proves little about them."""
    weight = np.array([[1.0, 0.25], [-1.0, 0.5], [0.5, 1.0]], "f4")
    lower = np.array([[-0.5, -0.25, 0.0], [0.25, 0.5, -0.5]], "f4")[:n]
    ends = np.array([[-0.5, -0.75], [0.5, 0.25]], "f4")[:, :n]
    hidden = Layer(weight, np.array([0.0, 0.125, -0.25], "f4"))
    return Bounds(*ends, lower, lower + np.array([0.125, 0.25, 0.0], "f4"), (hidden,))


def everywhere(margin: float = 0.0078125) -> Package:
    """One head for the whole domain whose worst case misses the rule by `margin`, exactly; the proof needs cuts."""
    spec = Specification.from_yaml(EVERYWHERE)
    W, V = np.array([[1.0, 0.75]], "f4"), np.array([[0.25, 0.0]], "f4")
    reached = worst(hat_bounds(), W, V, square())
    assert reached is not None
    bias = 1 - reached - Fraction(margin)
    head = Head(W, np.array([float(bias)], "f4"), V=V)
    assert Fraction(float(head.b[0])) == bias
    cells = find_cells(spec)
    return issued(spec, cells, FrozenHeads(hat_bounds(), (head,) * len(cells)))


def wedge() -> Package:
    """A cell with an oblique side: some boxes of the proof lie outside of it."""
    spec = Specification.from_yaml(WEDGE)
    cells = find_cells(spec)
    W, V, one = np.array([[1.0, 0.75]], "f4"), np.array([[1.0, 0.75]], "f4"), Fraction(1)
    region = [*square(), ([one, one], Fraction(-1, 2)), ([0 * one, -one], Fraction(3, 4))]
    reached = worst(hat_bounds(), W, V, region)
    assert reached is not None
    head = Head(W, np.array([np.floor(float(1 - reached) * 512 - 1) / 512], "f4"), V=V)
    last = (None,) if cells.free_cell else ()
    return issued(spec, cells, FrozenHeads(hat_bounds(), (head,) * (len(cells) - 1) + last))


def labels() -> Package:
    """Exclusions: one proof per pair."""
    spec = Specification.from_yaml(LABELS)
    cells = find_cells(spec)
    W = np.array([[0.5, 0.25], [-0.5, -0.25], [0.5, -0.25]], "f4")
    head = Head(W, np.array([-0.75, -0.75, -1.0], "f4"))
    return issued(spec, cells, FrozenHeads(hat_bounds(), (head,) * len(cells)))


def tent() -> Package:
    """Two hidden layers: the box is wide in the middle and narrow on both sides."""
    spec = Specification.from_yaml(EVERYWHERE)
    cells = find_cells(spec)
    first = Layer(np.array([[1, 0], [-1, 0], [0, 1]], "f4"), np.array([0, 0, 0.5], "f4"))
    second = Layer(np.array([[-1, -1, 0], [-0.25, 0, 1]], "f4"), np.array([0.75, -0.25], "f4"))
    bounds = Bounds([-0.125], [0.125], [[-0.5, 0.25]], [[1.0, 0.5]], (first, second))
    W, V = np.array([[1.0]], "f4"), np.array([[0.25, 0.0]], "f4")
    reached = worst(bounds, W, V, square())
    assert reached is not None
    head = Head(W, np.array([np.floor(float(1 - reached) * 16 - 1) / 16], "f4"), V=V)
    return issued(spec, cells, FrozenHeads(bounds, (head,) * len(cells)))


MADE = {"everywhere": everywhere, "wedge": wedge, "labels": labels, "tent": tent}

# --- The judge ---------------------------------------------------------------------------------------------------

Line = tuple[list[Fraction], Fraction]  # coefficients . x <= bound, or = bound


def square() -> list[Line]:
    """The domain of all cases: [-1, 1] twice."""
    one = Fraction(1)
    return [([one, 0 * one], one), ([-one, 0 * one], one), ([0 * one, one], one), ([0 * one, -one], one)]


def fractions(array: np.ndarray) -> Any:
    return np.vectorize(lambda v: Fraction(float(v)), otypes=[object])(array)


def worst(bounds: Bounds, W: np.ndarray, V: np.ndarray | None, sides: list[Line]) -> Fraction | None:
    """Maximum of W z + V x (one output) over the polygon and the box of z; None if the polygon is empty."""
    stored = {name: fractions(value) for name, value in bounds.stored().items()}
    layers = [(layer.weight, layer.bias) for layer in bounds.hidden]
    v, direct = fractions(W)[0], fractions(np.zeros((1, 2)) if V is None else V)[0]
    best: Fraction | None = None
    for x in candidates(layers, sides):
        if any(sum(c * xi for c, xi in zip(side, x, strict=True)) > bound for side, bound in sides):
            continue
        h = x
        for A, a in layers:
            h = np.array([max(value, Fraction(0)) for value in A @ h + a], dtype=object)
        low, high = (stored[side] + stored[f"{side}_slope"] @ h for side in ("lower", "upper"))
        high = np.maximum(low, high)  # the clip gives l where l > u
        value = sum(c * (u if c > 0 else lo) for c, lo, u in zip(v, low, high, strict=True)) + direct @ x
        best = value if best is None else max(best, value)
    return best


def candidates(layers: list[tuple[Any, Any]], sides: list[Line]) -> Iterator[Any]:
    """Points among which the worst one is, or, with several hidden layers, a grid."""
    if len(layers) > 1:
        for i, j in itertools.product(range(-12, 13), repeat=2):
            yield np.array([Fraction(i, 12), Fraction(j, 12)], dtype=object)
        return
    ((A, a),) = layers
    lines = [*sides, *((list(row), -bias) for row, bias in zip(A, a, strict=True))]
    for (p, s), (q, t) in itertools.combinations(lines, 2):
        determinant = p[0] * q[1] - p[1] * q[0]
        if determinant:
            yield np.array([(s * q[1] - t * p[1]) / determinant, (t * p[0] - s * q[0]) / determinant], dtype=object)


def doubts(package: Package) -> str | None:
    """Return what is wrong with the claim of a package over single literals, by the exact worst case; None: nothing."""
    spec, weights = package.document["specification"], package.weights
    bounds = Bounds.of_stored(
        {name.removeprefix("bounds."): value for name, value in weights.items() if name.startswith("bounds.")}
    )
    regions = package.document["gate"]["regions"]
    for c in range(len(weights["heads.weight"])):
        cell = [regions[g] for g in np.flatnonzero(weights["gate.signatures"][c])]
        for rule in spec["rules"]:
            for region in rule["regions"]:
                if region in regions and region not in cell:
                    continue
                sides = square() + [side(spec["rows"][r]) for g in {*cell, region} for r in spec["regions"][g]]
                for (literal,) in rule["clauses"]:
                    g = np.zeros(len(spec["outputs"]))
                    s, h = np.zeros((1, 2)), Fraction(literal["bound"])
                    for j, value in literal["y"]:
                        g[j] = float(Fraction(value))
                    for j, value in literal["x"]:
                        s[0, j] = float(Fraction(value))
                    W, b = g @ weights["heads.weight"][c].astype(float), g @ weights["heads.bias"][c].astype(float)
                    V = s + (g @ weights["heads.passthrough"][c].astype(float) if "heads.passthrough" in weights else 0)
                    value = worst(bounds, W[None], V, sides)
                    if value is not None and value + Fraction(float(b)) > h:
                        return f"rule {rule['name']}: {float(value + Fraction(float(b)))} > {h}"
    return None


def side(row: dict[str, Any]) -> Line:
    terms = {k: Fraction(v) for k, v in row["terms"]}
    return [terms.get(k, Fraction(0)) for k in range(2)], Fraction(row["bound"])
