"""Multipliers that prove a bound over what is known of the inputs, by the exact simplex method."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from smle.guarantees import ExactInfeasible, ExactOptimal, maximize
from smle_check.floats import FORMATS
from smle_check.heads.known import Facts, Form
from smle_check.kernel import bounded

__all__ = ["best_multipliers"]


def best_multipliers(
    facts: Facts, form: Form, constant: Fraction, *, stated: int | None = None, seen: int | None = None
) -> Iterator[tuple[list[list[Any]], ExactOptimal | None]]:
    """Yield multipliers that bound form.x + constant best, as certificates state them, and the optimum; by format.

    Where no input is left the bound is below 0, and there is no optimum.

    Args:
        facts: What is known of the inputs.
        form: What is bounded.
        constant: Added to it.
        stated: A region that holds as it is stated.
        seen: A region that holds as the gate sees it.
    """
    regions = sorted({*facts.leaf.on, *(g for g in (stated, seen) if g is not None)})
    for fmt in FORMATS:
        ends = facts.boxes.meeting(regions, fmt, facts.leaf.off)
        if ends is None:
            continue
        rows = {r: facts.row(r, as_stated, fmt) for r, as_stated in sorted(facts.rows(stated, seen).items())}
        rows = {r: row for r, row in rows.items() if len(row[0]) > 1}
        low, high = ([side[k] for k in range(len(facts.spec.inputs))] for side in facts.boxes.sides(ends, fmt))
        program = [(tuple(terms.items()), bound) for terms, bound in rows.values()]
        found = maximize(tuple(form.items()), program, low, high)
        assert isinstance(found, ExactOptimal | ExactInfeasible)  # the box is finite
        weights = {r: mu for r, mu in zip(rows, found.multipliers, strict=True) if mu > 0}
        if isinstance(found, ExactInfeasible):
            # They show 0 < 0, so a multiple of them shows any bound.
            least = bounded({}, [rows[r] for r in weights], list(weights.values()), low, high)
            reach = sum((abs(v) * max(abs(low[k]), abs(high[k])) for k, v in form.items()), abs(constant))
            weights = {r: mu * (int(2 * reach / -least) + 1) for r, mu in weights.items()}
        yield [[r, str(mu)] for r, mu in weights.items()], found if isinstance(found, ExactOptimal) else None
