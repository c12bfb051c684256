"""Finds multipliers that prove a bound over what is known about the inputs, by the exact simplex method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from smle.regions.simplex import ExactInfeasible, ExactOptimal, maximize
from smle_check.floats import FORMATS, Binary
from smle_check.heads.known import Boxes, Facts, Form, Known
from smle_check.kernel import residual_of

__all__ = ["best_multipliers", "has_rows", "largest", "range_of"]

ZERO, ONE = Fraction(0), Fraction(1)
Row = tuple[Form, Fraction]


def best_multipliers(
    facts: Facts, form: Form, constant: Fraction, *, stated: int | None = None, seen: int | None = None
) -> Iterator[tuple[list[list[Any]], ExactOptimal | None]]:
    """Yield, by format, the multipliers that bound form.x + constant best, as certificates state them, and the optimum.

    A region `stated` holds as stated, a region `seen` as the gate sees it. If no input is left, the bound is below 0
    and there is no optimum.
    """
    for fmt in FORMATS:
        known = facts.known(stated, seen, fmt)
        if known is None:
            continue
        rows = {r: facts.row(r, as_stated, fmt) for r, as_stated in sorted(facts.rows(stated, seen).items())}
        rows = {r: row for r, row in rows.items() if len(row[0]) > 1}
        found = largest(facts.boxes, known, fmt, form, list(rows.values()))
        weights = {r: mu for r, mu in zip(rows, found.multipliers, strict=True) if mu > 0}
        if isinstance(found, ExactInfeasible):
            # They prove 0 < 0, so a multiple of them proves any bound.
            rest, least = residual_of({}, [rows[r] for r in weights], list(weights.values()))
            least += facts.boxes.most(rest, known, fmt)
            reach = abs(constant) + sum((abs(v) * facts.spec.sizes[k] for k, v in form.items()), ZERO)
            weights = {r: mu * (int(2 * reach / -least) + 1) for r, mu in weights.items()}
        yield [[r, str(mu)] for r, mu in weights.items()], found if isinstance(found, ExactOptimal) else None


def has_rows(facts: Facts, stated: int | None, seen: int | None) -> bool:
    """Return whether there are rows over several inputs; only these need multipliers."""
    return any(len(facts.row(r, True, FORMATS[0])[0]) > 1 for r in facts.rows(stated, seen))


def largest(boxes: Boxes, known: Known, fmt: Binary, form: Form, rows: Sequence[Row]) -> ExactOptimal | ExactInfeasible:
    """Return where form.x is largest over what is known, under some rows; `x` has all inputs.

    In a group that rows tie to other inputs, several members may have shares; in any other group, one member is 1.
    """
    spec = boxes.spec
    low, high = (list(side) for side in spec.passed[fmt])
    for k, (a, b) in known.ends.items():
        low[k], high[k] = a, b
    left = {g: [k for k in own if g not in known.members or k in known.members[g]] for g, own in enumerate(spec.groups)}
    tied = {boxes.group[k] for terms, _ in rows for k in terms if k in boxes.group}
    x = list(low)
    for g, own in left.items():
        best = max(own, key=lambda k: form.get(k, ZERO))
        for k in spec.groups[g]:
            x[k] = Fraction(int(k == best))
    for k, v in form.items():
        if k not in boxes.group:
            x[k] = high[k] if v > 0 else low[k]
    if not rows:
        value = sum((v * x[k] for k, v in form.items()), ZERO)
        return ExactOptimal(tuple(x), value, ())
    used = {k for terms in (form, *(terms for terms, _ in rows)) for k in terms if boxes.group.get(k) not in tied}
    used -= {k for k in used if k in boxes.group}  # their member is chosen, since no row reads it
    places = {k: i for i, k in enumerate([*sorted(used), *(k for g in sorted(tied) for k in left[g])])}
    program = [(_placed(terms, places), bound) for terms, bound in rows]
    for g in sorted(tied):
        ones = dict.fromkeys(left[g], ONE)
        program += [(_placed(ones, places), ONE), (_placed(dict.fromkeys(left[g], -ONE), places), -ONE)]
    ends = ([(ZERO, ONE)[side] if k in boxes.group else (low, high)[side][k] for k in places] for side in (0, 1))
    found = maximize(_placed(form, places), program, *ends)
    assert isinstance(found, ExactOptimal | ExactInfeasible)  # the box is finite
    multipliers = found.multipliers[: len(rows)]
    if isinstance(found, ExactInfeasible):
        return ExactInfeasible(multipliers)
    for g in tied:
        for k in spec.groups[g]:
            x[k] = ZERO
    for k, i in places.items():
        x[k] = found.x[i]
    return ExactOptimal(tuple(x), sum((v * x[k] for k, v in form.items()), ZERO), multipliers)


def range_of(boxes: Boxes, known: Known, fmt: Binary, k: int) -> tuple[Fraction, Fraction]:
    """Return the range that is left to an input; for a column of a group, the values it may have."""
    g = boxes.group.get(k)
    members = None if g is None else known.members.get(g)
    if g is None or members is None:
        low, high = boxes.spec.passed[fmt]
        return known.ends.get(k, (low[k], high[k]))
    return (Fraction(int(boxes.count(g, members) == 1)), ONE) if k in members else (ZERO, ZERO)


def _placed(form: Form, places: dict[int, int]) -> tuple[tuple[int, Fraction], ...]:
    return tuple((places[k], v) for k, v in form.items() if k in places)
