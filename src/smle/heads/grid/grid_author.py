"""Builds the grid head and its certificate from rules with steps and equalities."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import compiled, sealed
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.grid.reduction import NotSolved, reduce
from smle.heads.grid.safe_steps import NoGridAnswer, SafeSearch, feasible
from smle.regions.cells import regions_of
from smle.rules import Grid, Specification, number_text
from smle.rules.shown import point_text, quoted
from smle_check.heads.candidates import gated_regions
from smle_check.heads.grid import check_tensors, comparison_of, domain_tensors, listed_of
from smle_check.heads.steps import Lattice, reading_tensors

__all__ = ["certify_grid"]

Array = npt.NDArray[np.float64]
_WIDE = 16  # ranges of an output
_BEYOND = 2**40  # stands for "no limit"
_MOVED, _CORNERS = 6, 64  # inputs that are moved to corners, and points at which rules are tried


def certify_grid(
    spec: Specification,
    *,
    default: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    files: dict[str, bytes] | None = None,
) -> Certificate:
    """Return the certified grid head, which goes behind any model: whole numbers of steps that obey the rules exactly.

    Takes the arguments of `certify_rules`; units of distance are the spread or, by default, the ranges of the outputs.
    Raises RuleError if numbers do not fit or an equality cannot be solved in whole numbers, ContradictionError with an
    input if rules leave no whole number of steps, and NotCertifiedError if no safe answer is proved.
    """
    grid = spec.grid
    if grid is None:
        raise RuleError("Expected an output with a step, or an equality. Got none.")
    _require_ranges(spec, grid)
    block = bytearray()
    document_spec = compiled(spec, regions_of(spec), block)
    lattice, stated = _lattice(document_spec, bytes(block))
    listed = listed_of(lattice)
    _require_whole(lattice)
    try:
        reduction = reduce(lattice, listed)
    except NotSolved as failure:
        raise _unsolved(spec, failure) from None
    m = len(spec.targets)
    steps = np.array([float(step) for step in grid.steps])
    typical = np.zeros(m) if default is None else np.nan_to_num(np.asarray(default, dtype=np.float64))
    units = _units(grid, scale)
    low, high = (np.array(side, dtype=np.float64) for side in zip(*lattice.output_ranges, strict=True))
    near = np.clip(np.rint(typical / steps), low, high)
    search = SafeSearch(lattice, listed, reduction, near, steps / units)
    try:
        tree, slope, offset = search.answers()
    except NoGridAnswer as failure:
        raise _refusal(spec, grid, search, failure) from None
    gated = gated_regions(stated)
    tensors = domain_tensors(stated) | reading_tensors(lattice, gated) | check_tensors(lattice, listed)
    tensors |= tensors_of({"check.scale": units, "safe.slope": slope, "safe.offset": offset})
    document: dict[str, Any] = {
        "program": {"head": "grid", "tree": tree},
        "specification": document_spec,
        "gate": {"regions": gated},
        "proof": {"safe": search.proofs},
    }
    return sealed(document, bytes(block), tensors, files or {})


def _units(grid: Grid, scale: npt.ArrayLike | None) -> Array:
    """Return units of distances (m,): the spread of the outputs, or the ranges that the rules leave them."""
    ranges = np.array([float(max(b - a, s)) for a, b, s in zip(grid.lower, grid.upper, grid.steps, strict=True)])
    if scale is None:
        return ranges
    given = np.asarray(scale, dtype=np.float64)
    return np.where(np.isfinite(given) & (given > 0), given, ranges)


def _lattice(document: dict[str, Any], block: bytes) -> tuple[Lattice, smle_check.StatedSpecification]:
    try:
        stated = smle_check.StatedSpecification(document, block)
        return Lattice.read(stated), stated
    except (smle_check.Rejected, OverflowError) as reason:
        raise RuleError(
            f"The rules cannot be checked in whole numbers of steps: {reason}. Use coarser steps, or other units."
        ) from None


def _require_whole(lattice: Lattice) -> None:
    """Raise RuleError, with the name of the rule, if sums of whole numbers get too large."""
    for literal_rule, literal in ((r, a) for r in lattice.rules for clause in r.clauses for a in clause):
        try:
            comparison_of(lattice, literal._replace(y={k: v for k, v in literal.y.items() if v}))
        except (smle_check.Rejected, OverflowError) as reason:
            raise RuleError(
                f"Rule '{literal_rule.name}' cannot be checked in whole numbers of steps ({reason}). Use coarser "
                "steps, a narrower range, or coefficients with fewer digits."
            ) from None


def _unsolved(spec: Specification, failure: NotSolved) -> Exception:
    name = spec.rules[failure.rule].name
    if failure.why == "contradiction":
        return ContradictionError(
            f"Rule '{name}' contradicts the other equalities: no answer obeys all of them. Drop one of them."
        )
    return RuleError(
        f"Rule '{name}': beside the other equalities, no output of this one has the coefficient 1 or -1 in steps, so "
        "it cannot be solved in whole numbers. State it with such an output, or state a tolerance."
    )


# --- Refusals ----------------------------------------------------------------------------------------------------


def _require_ranges(spec: Specification, grid: Grid) -> None:
    for name, low, high, step in zip(spec.targets, grid.lower, grid.upper, grid.steps, strict=True):
        if not (-(-low // step)) * step <= high:
            raise ContradictionError(f"{_nothing_between(step, low, high)}, and rules leave '{name}' nothing else.")


def _nothing_between(step: Fraction, low: Fraction, high: Fraction) -> str:
    what = "No whole number" if step == 1 else f"No multiple of {number_text(step, 9)}"
    return f"{what} lies between {number_text(low, 9)} and {number_text(high, 9)}"


def _refusal(spec: Specification, grid: Grid, search: SafeSearch, failure: NoGridAnswer) -> Exception:
    """Return an error that names an input without a safe answer, the reason, and what to change."""
    stated = _stated_ranges(spec, grid, search)
    for x in ([] if failure.x is None else [failure.x]) + _inputs(search, failure):
        active = search.active(x)
        if not active or feasible(stated, x, active, whole=True):
            continue
        for rule in sorted(active):  # keep only rules that the conflict needs
            if not feasible(stated, x, active - {rule}, whole=True):
                active.discard(rule)
        return ContradictionError(_explained(spec, grid, stated, x, active))
    return NotCertifiedError(
        "The rules seem to agree, but no answer in whole numbers of steps was proved for all inputs. Split a rule, "
        "widen an alternative, or state `integer` or `step` for the inputs that limits move with."
    )


def _stated_ranges(spec: Specification, grid: Grid, search: SafeSearch) -> SafeSearch:
    """Return the same problem with the ranges that are stated for outputs, and very wide ones for the others."""
    wide = copy.copy(search.spec)
    wide.output_ranges = []
    for output, step, own in zip(spec.outputs, grid.steps, search.spec.output_ranges, strict=True):
        low, high = getattr(output, "lower", None), getattr(output, "upper", None)
        wide_enough = _WIDE * (1 + max(map(abs, own)))  # HiGHS does not end if whole numbers may be much larger
        ends = (-wide_enough, wide_enough)
        if low is not None and high is not None:
            ends = math.ceil(low / step), math.floor(high / step)
        wide.output_ranges.append(ends)
    listed = listed_of(wide)
    return SafeSearch(wide, listed, search.reduction, search.typical, search.weight)


def _explained(spec: Specification, grid: Grid, search: SafeSearch, x: Array, active: set[int]) -> str:
    exact, names = search.exact(x), quoted([spec.rules[r].name for r in sorted(active)])
    place = f"at {point_text(spec, exact, sorted(active))}"
    rules = f"Rule {names} leaves" if len(active) == 1 else f"Rules {names} leave"
    if not feasible(search, x, active, whole=False):
        return f"{rules} nothing {place}: no answer obeys. Relax one of them."
    limits = _limits(spec, grid, active, exact)
    if limits is not None:
        output, low, high = limits
        step = grid.steps[output]
        return f"{_nothing_between(step, low, high)} ({place}): {rules} '{spec.targets[output]}' nothing else."
    literals = [a for r in sorted(active) for c in spec.rules[r].requirement.clauses for a in c.literals]
    if any(grid.chosen[i] for literal in literals for i, _ in literal.outputs):
        text = f"{rules} nothing on the chosen grid {place}, though real numbers would obey"
        for literal in literals:
            ((i, g), *more) = literal.outputs
            value = literal.bound / g
            if not more and not literal.inputs and (value / grid.steps[i]).denominator != 1:
                whole = value // grid.steps[i] * grid.steps[i]
                return (
                    f"{text}: {number_text(value, 9)} becomes {number_text(whole, 9)}. State a decimal step, "
                    "such as 'step: 0.001'."
                )
        return f"{text}. State a step that fits the rules, such as 'step: 0.001'."
    return (
        f"{rules} no whole numbers of steps {place}, though real numbers would obey. Use finer steps, or a tolerance."
    )


def _limits(
    spec: Specification, grid: Grid, active: set[int], x: tuple[Fraction, ...]
) -> tuple[int, Fraction, Fraction] | None:
    """Return the one output that active rules limit, and its limits, or None if they say something else."""
    found: dict[int, list[Fraction]] = {}
    for r in active:
        for clause in spec.rules[r].requirement.clauses:
            if len(clause.literals) != 1 or len(clause.literals[0].outputs) != 1:
                return None
            literal = clause.literals[0]
            ((i, g),) = literal.outputs
            ends = found.setdefault(i, [grid.lower[i] - _BEYOND, grid.upper[i] + _BEYOND])
            value = (literal.bound - sum((v * x[j] for j, v in literal.inputs), Fraction(0))) / g
            ends[g > 0] = min(ends[1], value) if g > 0 else max(ends[0], value)
    for i, (low, high) in found.items():
        if not -(-low // grid.steps[i]) * grid.steps[i] <= high:
            return i, low, high
    return None


def _inputs(search: SafeSearch, failure: NoGridAnswer) -> list[Array]:
    """Return inputs of a leaf at which to try the rules: its middle, and corners."""
    part = search.part(failure.leaf, None)
    if part is None:
        return []
    moving = {j for row in (*search.rows, *search.ranges) for j in (*row.b, *row.s)}
    used = sorted(moving | {j for r in search.spec.rows for j in r.terms})[:_MOVED]
    middle, *_ = search.tried(part)
    found = [middle]
    for corner in product((0, 1), repeat=len(used)):
        x = middle.copy()
        for j, side in zip(used, corner, strict=True):
            x[j] = part.high[j] if side else part.low[j]
        found.append(search.sorted(x, part))
    return found[:_CORNERS]
