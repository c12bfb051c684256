"""Random specifications, cells and heads, small enough for brute force in rationals."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.regions.cells import Cells
from smle.rules import CNF, Clause, Literal, Number, NumericInput, Polytope, Row, Rule, Specification, linear


@dataclass(frozen=True)
class Instance:
    spec: Specification
    cells: Cells
    over: FrozenHeads


def fraction(rng: np.random.Generator, low: int = -8, high: int = 8, parts: int = 4) -> Fraction:
    return Fraction(int(rng.integers(low * parts, high * parts + 1)), parts)


def random_row(rng: np.random.Generator, d: int, *, oblique: bool) -> Row:
    """A half-space that contains the middle of [-1, 1]^d."""
    size = int(rng.integers(2, d + 1)) if oblique and d > 1 else 1
    columns = rng.choice(d, size=size, replace=False)
    coefficients = linear({int(i): Fraction(int(rng.choice([-3, -2, -1, 1, 2, 3]))) for i in columns})
    return Row(coefficients, Fraction(int(rng.integers(1, 8)), 8), strict=bool(rng.random() < 0.3))


def random_literal(rng: np.random.Generator, m: int, d: int, *, inputs: bool) -> Literal:
    outputs = {int(i): fraction(rng, -2, 2) or Fraction(1) for i in rng.choice(m, size=min(m, 2), replace=False)}
    terms = {int(rng.integers(d)): fraction(rng, -2, 2)} if inputs else {}
    return Literal(linear(outputs), linear(terms), fraction(rng, -4, 10), strict=bool(rng.random() < 0.5))


def random_instance(
    seed: int, *, affine: bool = False, oblique: bool = True, literals: int = 1, inputs: bool = True,
    passthrough: bool = True, d: int = 2, n: int = 3, m: int = 2, degenerate: bool = False,
) -> Instance:  # fmt: skip
    """One rule over one gated region and one rule over the whole domain."""
    rng = np.random.default_rng(seed)
    rows = tuple(dict.fromkeys(random_row(rng, d, oblique=oblique) for _ in range(int(rng.integers(1, 4)))))
    polytope = Polytope(rows)

    def clause() -> Clause:
        return Clause(tuple(random_literal(rng, m, d, inputs=inputs) for _ in range(literals)))

    cnfs = [CNF(tuple(clause() for _ in range(2))) for _ in range(2)]
    spec = Specification(
        tuple(NumericInput(f"x{i}", Fraction(-1), Fraction(1)) for i in range(d)),
        tuple(Number(f"y{i}") for i in range(m)),
        (Rule("inside", (polytope,), cnfs[0], "...", "..."), Rule("always", (Polytope(),), cnfs[1], None, "...")),
    )
    cells = Cells(
        rows=polytope.rows,
        regions=((), tuple(range(len(polytope.rows)))),
        rules=((1,), (0,)),
        gated=(1,),
        active=((1,), ()),
        conflicts=(),
        implications=(),
    )
    return Instance(
        spec, cells, random_over(rng, 2, affine=affine, passthrough=passthrough, d=d, n=n, m=m, degenerate=degenerate)
    )


def random_over(
    rng: np.random.Generator, heads: int, *, affine: bool, passthrough: bool, d: int, n: int, m: int,
    degenerate: bool = False,
) -> FrozenHeads:  # fmt: skip
    lower = rng.normal(size=n)
    width = rng.uniform(0, 2, size=n)
    if affine:
        slope = rng.normal(size=(n, d))
        opening = rng.normal(size=(n, d)) * 0.5
        room = 0 if degenerate else np.abs(opening).sum(axis=1)
        bounds = Bounds(lower, lower + width + room, slope, slope + opening)
    else:
        bounds = Bounds(lower, lower + width)
    return FrozenHeads(
        bounds,
        tuple(
            Head(
                rng.normal(size=(m, n)) * 0.7,
                rng.normal(size=m),
                V=rng.normal(size=(m, d)) * 0.3 if passthrough else None,
            )
            for _ in range(heads)
        ),
    )


def solve_exactly(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """Gauss elimination in rationals; None if singular."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = next((r for r in range(i, size) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        scale = rows[i][i]
        rows[i] = [value / scale for value in rows[i]]
        for r in range(size):
            if r != i and rows[r][i]:
                factor = rows[r][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]


def vertices(
    A: list[list[Fraction]], a: list[Fraction], low: list[Fraction], high: list[Fraction]
) -> list[list[Fraction]]:
    """All vertices of {x in [low, high] : A x <= a}, in rationals."""
    d = len(low)
    rows, right = [list(r) for r in A], list(a)
    for i in range(d):
        unit = [Fraction(int(i == j)) for j in range(d)]
        rows += [unit, [-u for u in unit]]
        right += [high[i], -low[i]]
    found = []
    for chosen in itertools.combinations(range(len(rows)), d):
        x = solve_exactly([rows[r] for r in chosen], [right[r] for r in chosen])
        if x is None:
            continue
        if all(sum(c * v for c, v in zip(row, x, strict=True)) <= b for row, b in zip(rows, right, strict=True)):
            found.append(x)
    return found
