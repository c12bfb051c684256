"""Grids: which outputs are whole numbers of a step, their steps, and their ranges.

If an output has a step, or a rule states an equality that limits cannot hold (see `is_held`), all outputs are on a
grid. An output without a step takes that of the outputs that equalities tie it to, or the smallest power of two at
which float32 still holds its range. Ranges come from limits that hold everywhere, from what these imply through sums,
and from a stated `range:`, never from data.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd, lcm
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smle.errors import RuleError
from smle.rules.formula import Literal, Polytope, is_held
from smle.rules.shown import number_text, quoted
from smle_check.heads.steps import SINGLE, require_step
from smle_check.reading import Rejected

if TYPE_CHECKING:
    from smle.rules.specification import Rule, Specification

__all__ = ["Equality", "Grid", "equalities_of", "grid_of", "largest_multiple"]

Ends = tuple[Fraction | None, Fraction | None]


@dataclass(frozen=True)
class Equality:
    """`outputs . y + inputs . x == bound`, stated by a rule; `everywhere` if it has no condition."""

    rule: int
    literal: Literal
    everywhere: bool


@dataclass(frozen=True)
class Grid:
    """Steps and ranges of all outputs (m,), which steps were chosen for the user (m,), and steps of the inputs (d,)."""

    steps: tuple[Fraction, ...]
    chosen: tuple[bool, ...]
    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    input_steps: tuple[Fraction | None, ...]
    equalities: tuple[Equality, ...]

    def whole(self, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the whole numbers of steps (n, m) that served floats stand for, computed in float64."""
        return self.nearest(y).astype(int)

    def nearest(self, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the nearest whole numbers of steps (n, m), rounded as the head rounds; NaN stays NaN."""
        values = np.asarray(y, dtype=np.float64).reshape(-1, len(self.steps))
        numerator, denominator = np.array([[s.numerator, s.denominator] for s in self.steps], dtype=np.float64).T
        return np.asarray(np.floor(values * denominator / numerator + 0.5))

    def bound_on_sums(self, literal: Literal) -> Fraction:
        """Bound |g . y - g . float32(y)| over all answers; 0 if float32 holds all multiples exactly."""
        total = Fraction(0)
        for i, g in literal.outputs:
            if self.steps[i].denominator & (self.steps[i].denominator - 1):
                total += abs(g) * max(abs(self.lower[i]), abs(self.upper[i]))
        return total / SINGLE


def largest_multiple(step: Fraction) -> Fraction | None:
    """Return the multiple of a step up to which float32 tells all multiples apart, or None if there is none."""
    most = bisect_left(range(1, SINGLE + 1), True, key=lambda number: not _fits(step, number))
    return most * step if most else None


def _fits(step: Fraction, most: int) -> bool:
    """Return whether float32 tells all multiples of a step up to `most` apart."""
    try:
        require_step(step, most, "")
    except Rejected:
        return False
    return True


def always(rule: Rule) -> bool:
    """Return whether a rule has no condition."""
    return Polytope() in rule.regions


def equalities_of(spec: Specification) -> list[Equality]:
    """Find the equalities that rules state: two opposite one-literal clauses in one rule."""
    found = []
    for r, rule in enumerate(spec.rules):
        clauses = rule.requirement.clauses
        singles = {c.literals[0]: None for c in clauses if len(c.literals) == 1 and not c.literals[0].strict}
        for literal in singles:
            if literal.opposite in singles and literal.outputs[0][1] > 0:
                found.append(Equality(r, literal, always(rule)))
    return found


def grid_of(spec: Specification) -> Grid | None:
    """Return steps and ranges, or None if no output has a step and limits hold every equality (see `is_held`).

    If a step does not fit, or a range is missing, a RuleError says what to state.
    """
    from smle.rules.specification import Number

    equalities = equalities_of(spec)
    numbers = [item for item in spec.outputs if isinstance(item, Number)]
    tied = any(not is_held(equality.literal) for equality in equalities)
    if not tied and not any(item.step is not None for item in numbers):
        return None
    if len(numbers) < len(spec.outputs):
        which = f"Rule '{spec.rules[equalities[0].rule].name}' states an equality. " if equalities else ""
        raise RuleError(
            f"{which}Steps and equalities do not go together with labels and choices yet. State a tolerance, for "
            "example 'abs(y1 - y2) <= 0.01', or put them into rules of their own."
        )
    input_steps = tuple(_input_steps(spec))
    _refuse_equalities(spec, equalities, input_steps)
    ends = _ranges(spec, [(item.lower, item.upper) for item in numbers])
    for item, (low, high) in zip(numbers, ends, strict=True):
        if low is None or high is None:
            stated = "" if item.step is None else f", step: {number_text(item.step)}"
            raise RuleError(
                f"Output '{item.name}' is served in steps, and nothing says how large it may get. State its range, as "
                f"in '{item.name}: {{range: [0, 1000]{stated}}}', or a limit that holds everywhere."
            )
    bounds = [(low or Fraction(0), high or Fraction(0)) for low, high in ends]
    steps, chosen = _steps(spec, [item.step for item in numbers], bounds, equalities)
    _refuse_fractions(spec, equalities, steps, chosen)
    lower, upper = [], []
    for item, step, (low, high) in zip(numbers, steps, bounds, strict=True):
        first, last = ceil(low / step), floor(high / step)
        if first <= last:
            low, high = first * step, last * step
            _require_apart(f"Output '{item.name}'", step, max(abs(low), abs(high)))
        lower.append(low)
        upper.append(high)
    return Grid(tuple(steps), tuple(chosen), tuple(lower), tuple(upper), input_steps, tuple(equalities))


def _input_steps(spec: Specification) -> Iterator[Fraction | None]:
    """Yield the step of each input column, or None for real numbers and for integers that float32 cannot hold."""
    for item, _ in spec.column_slices:
        step: Fraction | None = item.step if item.step is not None else Fraction(1) if item.integer else None
        if step is not None and not _fits(step, max(abs(ceil(item.lower / step)), abs(floor(item.upper / step)))):
            if item.step is not None:
                _require_apart(f"Input '{item.name}'", step, max(abs(item.lower), abs(item.upper)))
            step = None
        yield from [step] * len(item.columns)


def _require_apart(what: str, step: Fraction, reach: Fraction) -> None:
    most = largest_multiple(step)
    if most is None or reach > most:
        above = "" if most is None else f" above {number_text(most, 9, grouped=True)}"
        raise RuleError(
            f"{what} may reach {number_text(reach, 9, grouped=True)}. float32 cannot tell multiples of "
            f"{number_text(step, 9)} apart{above}. Use a coarser step, or a narrower range."
        )


def _refuse_equalities(
    spec: Specification, equalities: list[Equality], input_steps: tuple[Fraction | None, ...]
) -> None:
    for equality in equalities:
        name = spec.rules[equality.rule].name
        real = [spec.columns[j] for j, _ in equality.literal.inputs if input_steps[j] is None]
        if real:
            raise RuleError(
                f"Rule '{name}' states an equality with '{real[0]}', which may be any real number. State `integer` or "
                f"`step` for '{real[0]}', or a tolerance."
            )
        if not equality.everywhere and len(equality.literal.outputs) > 1:
            raise RuleError(
                f"Rule '{name}' states an equality of several outputs under a condition, which is not supported yet. "
                "State it without 'when', or state a tolerance."
            )


def _ranges(spec: Specification, stated: list[Ends]) -> list[Ends]:
    """Return the ranges of outputs: from limits that hold everywhere, else from sums that hold everywhere."""
    ends = [list(own) for own in stated]
    literals = [
        clause.literals[0]
        for rule in spec.rules
        if always(rule)
        for clause in rule.requirement.clauses
        if len(clause.literals) == 1
    ]
    for literal in literals:
        if len(literal.outputs) == 1 and not literal.inputs:
            ((i, g),) = literal.outputs
            pick, stated_ends = (min if g > 0 else max), (ends[i][g > 0], literal.bound / g)
            ends[i][g > 0] = pick(end for end in stated_ends if end is not None)
    for _ in range(2 * len(ends)):
        found: dict[tuple[int, bool], Fraction] = {}
        for literal in literals:
            for i, upper, value in _left(spec, literal, ends):
                key = i, upper
                old = found.get(key, value)
                found[key] = min(old, value) if upper else max(old, value)
        if not found:
            break
        for (i, upper), value in found.items():
            ends[i][upper] = value
    return [(low, high) for low, high in ends]


def _left(
    spec: Specification, literal: Literal, ends: list[list[Fraction | None]]
) -> Iterator[tuple[int, bool, Fraction]]:
    """Yield the missing ends that a sum implies: (output, whether it is the upper end, value)."""
    least: list[Fraction | None] = [ends[i][0 if g > 0 else 1] for i, g in literal.outputs]
    open_ = [place for place, end in enumerate(least) if end is None]
    if len(open_) > 1:
        return
    inputs = sum((min(v * spec.lower[j], v * spec.upper[j]) for j, v in literal.inputs), Fraction(0))
    parts = [g * end if end is not None else Fraction(0) for (_, g), end in zip(literal.outputs, least, strict=True)]
    total = sum(parts, inputs)
    for place, (i, g) in enumerate(literal.outputs):
        if open_ in ([], [place]) and ends[i][g > 0] is None:
            yield i, g > 0, (literal.bound - total + parts[place]) / g


def _steps(
    spec: Specification,
    stated: list[Fraction | None],
    ends: list[tuple[Fraction, Fraction]],
    equalities: list[Equality],
) -> tuple[list[Fraction], list[bool]]:
    """Return the step of each output, shared by all that equalities connect, and whether it was chosen."""
    group = list(range(len(stated)))
    for equality in equalities:
        own = {group[i] for i, _ in equality.literal.outputs}
        group = [min(own) if g in own else g for g in group]
    steps = list(stated)
    for number in sorted(set(group)):
        members = [i for i, g in enumerate(group) if g == number]
        known = {stated[i] for i in members} - {None}
        if len(known) > 1:
            names = " and ".join(f"'{spec.targets[i]}'" for i in members if stated[i] is not None)
            raise RuleError(
                f"An equality ties {names} together, but their steps differ, which is not supported yet. Give them one "
                "step."
            )
        reach = max(abs(end) for i in members for end in ends[i])
        step = next(iter(known), None) or _power(reach)
        for i in members:
            steps[i] = step
    return [step or Fraction(1) for step in steps], [own is None for own in stated]


def _power(reach: Fraction) -> Fraction:
    """Return the finest power of two whose multiples up to `reach` float32 holds."""
    exponent = 0
    if reach:
        exponent = reach.numerator.bit_length() - reach.denominator.bit_length() - 1
        while Fraction(2) ** exponent < reach:
            exponent += 1
    return Fraction(2) ** (exponent - 24)


def _refuse_fractions(
    spec: Specification, equalities: list[Equality], steps: list[Fraction], chosen: list[bool]
) -> None:
    """Refuse equalities that no whole numbers of steps satisfy, such as `a + b == 0.3` on a power-of-two grid."""
    for equality in equalities:
        literal = equality.literal
        sizes = [g * steps[i] for i, g in literal.outputs]
        scale = lcm(*(v.denominator for v in sizes))
        unit = Fraction(gcd(*(int(v * scale) for v in sizes)), scale)
        if (literal.bound / unit).denominator == 1:
            continue
        shown = number_text(literal.bound * literal.scale, 9)
        listed = quoted([spec.targets[i] for i, _ in literal.outputs], len(literal.outputs))
        if any(chosen[i] for i, _ in literal.outputs):
            raise RuleError(
                f"Rule '{spec.rules[equality.rule].name}': no power-of-two grid holds {shown}. Give "
                f"{listed} a decimal step, such as 'step: 0.01', or state a tolerance."
            )
        raise RuleError(
            f"Rule '{spec.rules[equality.rule].name}': no whole numbers of steps of {listed} give "
            f"{shown}. Change the steps, or state a tolerance."
        )
