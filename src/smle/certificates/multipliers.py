"""Multipliers that prove a bound over the part of a box that rows leave, by the exact simplex method."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from smle.guarantees import ExactInfeasible, ExactOptimal, maximize
from smle_check.heads.known import Form
from smle_check.kernel import bounded

__all__ = ["best_multipliers"]


def best_multipliers(
    form: Form,
    constant: Fraction,
    rows: dict[int, tuple[Form, Fraction]],
    low: Sequence[Fraction],
    high: Sequence[Fraction],
) -> tuple[dict[int, Fraction], ExactOptimal | None]:
    """Return multipliers > 0, by row, that bound form.x + constant best, and the optimum.

    Where the rows leave no point of the box the bound is below 0, and there is no optimum.

    Args:
        form: What is bounded.
        constant: Added to it.
        rows: Left sides and bounds, `terms.x <= bound`, by number.
        low: Lower ends of the box.
        high: Upper ends.
    """
    found = maximize(tuple(form.items()), [(tuple(terms.items()), bound) for terms, bound in rows.values()], low, high)
    if isinstance(found, ExactOptimal):
        return {r: mu for r, mu in zip(rows, found.multipliers, strict=True) if mu > 0}, found
    if not isinstance(found, ExactInfeasible):
        return {}, None
    weights = {r: mu for r, mu in zip(rows, found.multipliers, strict=True) if mu > 0}
    least = bounded({}, [rows[r] for r in weights], list(weights.values()), low, high)
    if least >= 0:
        return {}, None
    reach = sum((abs(v) * max(abs(low[k]), abs(high[k])) for k, v in form.items()), abs(constant))
    factor = Fraction(int(2 * reach / -least) + 1)  # a bound below 0 on 0, so multiples give any bound
    return {r: factor * mu for r, mu in weights.items()}, None
