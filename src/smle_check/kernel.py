"""The kernel: bounds the maximum of an affine function over a polytope by multipliers (section 4)."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from smle_check.floats import FORMATS
from smle_check.reading import require, sparse
from smle_check.stated import StatedRow, StatedSpecification
from smle_check.work import Work


def bounded(
    slope: dict[int, Fraction],
    rows: list[tuple[dict[int, Fraction], Fraction]],
    multipliers: list[Fraction],
    low: Sequence[Fraction] | Mapping[int, Fraction],
    high: Sequence[Fraction] | Mapping[int, Fraction],
) -> Fraction:
    """Bound max slope.x over {x in [low, high] : terms.x <= bound for all rows}, by weak duality.

    slope.x <= mu.a + (slope - A'mu).x, and the residual is bounded over the box.
    """
    residual, total = residual_of(slope, rows, multipliers)
    return total + sum(max(e * low[i], e * high[i]) for i, e in residual.items())


def residual_of(
    slope: dict[int, Fraction], rows: list[tuple[dict[int, Fraction], Fraction]], multipliers: list[Fraction]
) -> tuple[dict[int, Fraction], Fraction]:
    """Return slope - A'mu, which remains to be bounded, and mu.a, which covers the rows."""
    residual, total = dict(slope), Fraction(0)
    for (terms, bound), mu in zip(rows, multipliers, strict=True):
        total += mu * bound
        for key, value in terms.items():
            residual[key] = residual.get(key, Fraction(0)) - mu * value
    return residual, total


def multipliers_of(value: Any, allowed: set[int], what: str, work: Work) -> dict[int, Fraction]:
    """Read multipliers >= 0 for allowed rows."""
    result = sparse(value, max(allowed, default=-1) + 1, what)
    work.use(result.values(), what)
    require(set(result) <= allowed, f"{what}: multiplier for a row that does not bind here")
    require(all(mu >= 0 for mu in result.values()), f"{what}: negative multiplier")
    return result


def refuted(spec: StatedSpecification, mu: dict[int, Fraction], complement: StatedRow | None, weight: Fraction) -> bool:
    """Return whether multipliers prove that no input as passed lies in the rows (and in the complement of one more)."""
    for fmt in FORMATS:
        rows = [(spec.rows[r].terms, spec.rows[r].compared[fmt][0]) for r in mu]
        weights = list(mu.values())
        strict = any(w > 0 and spec.rows[r].compared[fmt][1] for r, w in mu.items())
        if complement is not None:
            # Outside a comparison: its exact negation. Outside an oblique row: the stated half-space.
            bound, is_strict = complement.compared[fmt] if len(complement.terms) == 1 else (complement.bound, False)
            rows.append(({k: -v for k, v in complement.terms.items()}, -bound))
            weights.append(weight)
            strict = strict or (weight > 0 and not is_strict)
        total = bounded({}, rows, weights, *spec.passed[fmt])
        if not (total < 0 or (total == 0 and strict)):
            return False
    return True
