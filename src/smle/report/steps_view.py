"""Outputs in steps: the size of each, which are computed from others, and how far sums of floats may be off."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from smle.heads.grid.reduction import Reduction
from smle.report.tables import PageTable, numbers
from smle.report.wording import number
from smle.rules import Grid, Rule, Specification, number_text
from smle_check.digits import rounded_text
from smle_check.names import visible
from smle_check.words import linear_text

__all__ = ["steps_view", "sums_text"]


def steps_view(spec: Specification, grid: Grid, reduction: Reduction | None) -> dict[str, Any]:
    """Return the table of outputs; without a reduction, derived outputs are not marked."""
    rows = []
    for i, name in enumerate(spec.targets):
        step, chosen = grid.steps[i], " (chosen)" if grid.chosen[i] else ""
        ends = f"{number(float(grid.lower[i]))} to {number(float(grid.upper[i]))}"
        power_of_two = step.denominator & (step.denominator - 1) == 0
        kind = "the number itself" if power_of_two else "the nearest to it"
        rows.append((visible(name), f"{number_text(step, 9)}{chosen}", ends, kind, _formula(spec, grid, reduction, i)))
    columns = [("Output", ""), *numbers(["Step", "Range"]), ("The float32 is", ""), ("Computed from", "long")]
    return {"steps": PageTable(columns, rows, label="Outputs in steps", rows_are="outputs")}


def _formula(spec: Specification, grid: Grid, reduction: Reduction | None, i: int) -> str:
    """Write a derived output as a sum of others and of inputs; "" for one that follows the model."""
    if reduction is None or i not in reduction.derived:
        return ""
    names = [visible(name) for name in (*spec.targets, *spec.columns)]
    own, m = grid.steps[i], len(spec.targets)
    terms = {
        int(k): Fraction(int(c)) * own / grid.steps[k] for k, c in zip(reduction.free, reduction.B[i], strict=True) if c
    }
    for j, (c, step) in enumerate(zip(reduction.T[i], grid.input_steps, strict=True)):
        if c and step is not None:
            terms[m + j] = Fraction(int(c)) * own / step
    terms = dict(sorted(terms.items(), key=lambda term: term[1] < 0))  # positive terms first: demand - w1 - w2
    constant = int(reduction.t[i]) * own
    text = linear_text(terms, names) if terms else ""
    if not constant and terms:
        return text
    shown = number_text(abs(constant) if terms else constant, 9)
    return f"{text} {'-' if constant < 0 else '+'} {shown}" if terms else shown


def sums_text(grid: Grid, rule: Rule) -> str:
    """Say how far sums of served floats may be off in a rule about several outputs; "" for other rules."""
    tied = [literal for clause in rule.requirement.clauses for literal in clause.literals if len(literal.outputs) > 1]
    if not tied:
        return ""
    most = max(grid.bound_on_sums(literal) * abs(literal.scale) for literal in tied)
    return (
        f"sums of its floats: off by at most {rounded_text(most, 2, up=True)}"
        if most
        else "sums of its floats are exact"
    )
