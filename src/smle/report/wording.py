"""Rules and numbers for readers: formulas over regions and clauses, and numbers rounded to the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from smle.rules import Categorical, Clause, Row, Rule, Specification, date_text
from smle.rules.expressions import decimal_text, quote_name
from smle_check.digits import rounded_text
from smle_check.floats import exact
from smle_check.names import visible

__all__ = [
    "about",
    "clause_text",
    "domain_text",
    "exact_text",
    "exclusion_texts",
    "formula",
    "listed",
    "margin_text",
    "name_text",
    "number",
    "point",
    "range_text",
    "requirement_lines",
    "row_text",
    "share",
    "short",
]

_SHOWN = 8
"""Clauses and regions that a formula lists; the others are counted."""

_PHRASES = frozenset(
    {
        "above",
        "always",
        "and",
        "at",
        "below",
        "between",
        "exactly",
        "false",
        "implies",
        "in",
        "is",
        "least",
        "most",
        "not",
        "of",
        "one",
        "or",
        "then",
        "true",
        "when",
    }
)
"""Words of sentences."""
_RAISED = str.maketrans("+-0123456789", "⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def name_text(name: str) -> str:
    """Return a name as rules write it; one that could be read as a word of a sentence goes in backticks, too."""
    name = visible(name)
    text = quote_name(name)
    return f"`{name}`" if text == name and name.lower() in _PHRASES else text


def exact_text(value: Fraction) -> str:
    """Return a rational as it is: a decimal if it has one, else numerator/denominator."""
    return (decimal_text(value) or str(value)).replace("-", "−")


def formula(rule: Rule, spec: Specification) -> str:
    """Return the condition of a rule as a formula over its regions: `Q = {...} ∪ {...}`."""
    if any(not region.rows for region in rule.regions):
        return "every input of the domain"
    regions = [" ∧ ".join(row_text(row, spec) for row in region.rows) for region in rule.regions[:_SHOWN]]
    more = f" ∨ … ({len(rule.regions) - _SHOWN:,} more regions)" if len(rule.regions) > _SHOWN else ""
    return (regions[0] if len(regions) == 1 else " ∨ ".join(f"({region})" for region in regions)) + more


def requirement_lines(rule: Rule, spec: Specification) -> list[str]:
    """Return what a rule requires, one clause a line; long lists and exclusions are summarised."""
    lines = [clause_text(clause, spec) for clause in rule.requirement.clauses[:_SHOWN]]
    if len(rule.requirement.clauses) > _SHOWN:
        lines.append(f"… and {len(rule.requirement.clauses) - _SHOWN:,} more clauses")
    pairs = rule.requirement.exclusions
    lines += exclusion_texts(pairs[: 3 if len(pairs) > _SHOWN else _SHOWN].tolist(), spec)
    if len(pairs) > _SHOWN:
        labels = len(set(pairs.reshape(-1).tolist()))
        lines.append(f"… {len(pairs):,} pairs of {labels:,} labels in all that never occur together")
    return lines


def exclusion_texts(pairs: Sequence[Sequence[int]], spec: Specification) -> list[str]:
    """Return `¬(cat ∧ dog)` for pairs of output columns."""
    return [f"¬({name_text(spec.targets[h])} ∧ {name_text(spec.targets[k])})" for h, k in pairs]


def clause_text(clause: Clause, spec: Specification) -> str:
    """Return a clause as a formula; of long ones the first literals."""
    parts = []
    for literal in clause.literals[:_SHOWN]:
        terms = [(spec.targets[j], v) for j, v in literal.outputs] + [(spec.columns[k], v) for k, v in literal.inputs]
        parts.append(_comparison(terms, literal.bound, literal.strict))
    more = f" ∨ … ({len(clause.literals) - _SHOWN:,} more)" if len(clause.literals) > _SHOWN else ""
    return " ∨ ".join(parts) + more


def row_text(row: Row, spec: Specification) -> str:
    """Return a half-space over inputs as a formula; `road = icy` and `road ≠ icy` if it says just that."""
    if len(row.coefficients) == 1 and not row.strict:
        ((column, value),) = row.coefficients
        category = _category(column, spec)
        if column in spec.dates and abs(value) == 1:
            return f"{name_text(spec.columns[column])} {'≤' if value > 0 else '≥'} {date_text(row.bound * value)}"
        if category is not None and ((value == 1 and row.bound == 0) or value == row.bound == -1):
            return f"{name_text(category[0])} {'=' if value < 0 else '≠'} {name_text(category[1])}"
    return _comparison([(spec.columns[k], v) for k, v in row.coefficients], row.bound, row.strict)


def _category(column: int, spec: Specification) -> tuple[str, str] | None:
    """Return the categorical input and the category of a 0/1 column; None for a number."""
    for item in spec.inputs:
        width = len(item.categories) if isinstance(item, Categorical) else 1
        if column < width:
            return (item.name, item.categories[column]) if isinstance(item, Categorical) else None
        column -= width
    return None


def _comparison(terms: Sequence[tuple[str, Fraction]], bound: Fraction, strict: bool) -> str:
    """Return terms <= bound; a form that starts with a minus is turned around, as the checker does."""
    sign = -1 if terms and terms[0][1] < 0 else 1
    operator = {(1, False): "≤", (1, True): "<", (-1, False): "≥", (-1, True): ">"}[sign, strict]
    text = ""
    for name, value in terms:
        size = "" if abs(value) == 1 else f"{exact_text(abs(value))} · "
        text += f" {'−' if sign * value < 0 else '+'} {size}{name_text(name)}"
    return f"{text.removeprefix(' + ') or '0'} {operator} {exact_text(sign * bound)}"


def number(value: float, digits: int = 4) -> str:
    """Return a number with few digits, in decimal where that is readable and with a power of ten elsewhere."""
    text = f"{value:.{digits}g}"
    return _typeset(f"{value:.0f}" if "e" in text and 0 < int(text.split("e")[1]) < 9 else text)


def _typeset(text: str) -> str:
    """Return the text of a number with a minus sign, groups of three digits from 10,000 on, and a raised exponent."""
    mantissa, _, exponent = text.partition("e")
    whole, point, decimals = mantissa.partition(".")
    if len(whole.lstrip("-")) > 4:
        whole = f"{int(whole):,}"
    raised = f"·10{str(int(exponent)).translate(_RAISED)}" if exponent else ""
    return f"{whole}{point}{decimals}".replace("-", "−") + raised


def about(value: float) -> str:
    """Return `= 0.5`, or `≈ 0.3333` where digits were left out."""
    return f"{'=' if float(f'{value:.4g}') == value else '≈'} {number(value)}"


def margin_text(margin: Fraction) -> str:
    """Return a margin with three digits, rounded down: never more than was proved."""
    return _typeset(rounded_text(margin, 3, up=False))


def range_text(low: float, high: float, *, least: float = -math.inf, most: float = math.inf) -> str:
    """Return `low to high`, rounded outwards: with four digits, or as many as keep it inside [least, most].

    What can be reached is never more than the text says.
    """
    down = _outward(low, up=False, within=lambda v: v >= least)
    return f"{down} to {_outward(high, up=True, within=lambda v: v <= most)}"


def _outward(end: float, *, up: bool, within: Callable[[float], bool]) -> str:
    text = ""
    for digits in range(4, 18):
        text = rounded_text(exact(end), digits, up=up)
        if within(float(text)):
            break
    return _typeset(text)


def share(value: float) -> str:
    """Return a share in percent; 0 % and 100 % are said only of exactly none and exactly all."""
    if value in (0.0, 1.0):
        return f"{value:.0%}"
    for digits in range(1, 6):
        text = f"{value * 100:.{digits}f}"
        if 0 < float(text) < 100:
            return text + "%"
    return "below 0.00001%" if value < 0.5 else "above 99.99999%"


def point(spec: Specification, values: Sequence[float]) -> list[str]:
    """Return an input (one value per column) as `name = value` texts; of a categorical one the category that is on."""
    parts = []
    for column, value in enumerate(values):
        category = _category(column, spec)
        if column in spec.dates:
            parts.append(f"{name_text(spec.columns[column])} = {date_text(value)}")
        elif category is None:
            parts.append(f"{name_text(spec.columns[column])} {about(value)}")
        elif value > 0.5:
            parts.append(f"{name_text(category[0])} = {name_text(category[1])}")
    return parts


def domain_text(spec: Specification) -> list[tuple[str, str]]:
    """Return (input, range or categories, and what stands in for missing values) pairs; numbers exactly."""
    rows = []
    for item in spec.inputs:
        if isinstance(item, Categorical):
            shown = ", ".join(f"“{c}”" if "," in c else c for c in item.categories[:12])
            more = f", … ({len(item.categories)} in all)" if len(item.categories) > 12 else ""
            values, missing = f"one of {shown}{more}", item.missing
        elif item.dates:
            values = f"{date_text(item.lower)} to {date_text(item.upper)}"
            missing = None if item.missing is None else date_text(item.missing)
        else:
            kind = ", whole numbers" if item.integer else ""
            values = f"{exact_text(item.lower)} to {exact_text(item.upper)}{kind}"
            missing = None if item.missing is None else exact_text(item.missing)
        rows.append(
            (visible(item.name), values if missing is None else f"{values}; a missing value counts as {missing}")
        )
    return rows


def listed(parts: Iterable[str], size: int, separator: str = "; ") -> str:
    """Return as many whole parts as fit into a size, and `…` for the others: no part is cut."""
    text = ""
    for part in parts:
        longer = f"{text}{separator}{part}" if text else part
        if len(longer) > size:
            return f"{text}{separator}…" if text else "…"
        text = longer
    return text


def short(text: str, size: int = 40) -> str:
    """Return text cut to a size."""
    return text if len(text) <= size else text[: size - 1] + "…"
