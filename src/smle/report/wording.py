"""Rules for readers: in words, and as formulas over regions and clauses."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

from smle.certificates.checker import comparison_text, decimal
from smle.rules import Categorical, Clause, Rule, Specification

__all__ = ["domain_text", "formula", "margin_text", "number", "point", "requirement_lines", "share", "signs", "words"]

_SHOWN = 8
"""Clauses and regions that a formula lists; the others are counted."""

_BETWEEN = re.compile(r"(?<![\w<>=.])(-?[\w.]+) <= ([\w.=\[\]()]+) <= (-?[\w.]+)(?! *[-+*/(\w])")
_LONGEST = 400
_FUNCTIONS = (("at_most_one", "at most one"), ("at_least_one", "at least one"), ("exactly_one", "exactly one"))
_NEGATIVE = re.compile(r"(?<![\w.])-(?=[\w.])")
_PHRASES = (("<=", "is at most"), (">=", "is at least"), ("==", "is"), ("!=", "is not"), ("<", "is below"))
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SIGNS = (("<=", "≤"), (">=", "≥"), ("!=", "≠"), ("==", "="), (" * ", " · "), (" - ", " − "))


def words(rule: Rule, spec: Specification) -> str:
    """Return a rule as a sentence, with the values of constants behind their names."""
    then = _spoken(rule.then, spec)
    sentence = f"Always: {then}" if rule.when is None else f"When {_spoken(rule.when, spec)}, then {then}"
    return sentence + "."


def _spoken(text: str, spec: Specification) -> str:
    if len(text) > _LONGEST:
        text = text[:_LONGEST].rsplit(" ", 1)[0] + " … (shortened)"
    for function, phrase in _FUNCTIONS:
        text = text.replace(f"{function}(", f"{phrase} of (")
    text = _BETWEEN.sub(r"\2 is between \1 and \3", text)
    for sign, phrase in (*_PHRASES, (">", "is above")):
        text = text.replace(f" {sign} ", f" {phrase} ")
    for name, value in spec.constants:
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", lambda m, v=value: f"{m[0]} ({decimal(v)})", text)  # type: ignore[misc]
    return signs(text)


def formula(rule: Rule, spec: Specification) -> str:
    """Return the condition of a rule as a formula over its regions: `Q = {...} ∪ {...}`."""
    if any(not region.rows for region in rule.regions):
        return "every input of the domain"
    names = list(spec.columns)
    regions = []
    for region in rule.regions[:_SHOWN]:
        rows = [readable(comparison_text(dict(r.coefficients), r.bound, r.strict, names), spec) for r in region.rows]
        regions.append(" ∧ ".join(rows))
    more = f" ∨ … ({len(rule.regions) - _SHOWN:,} more regions)" if len(rule.regions) > _SHOWN else ""
    return (regions[0] if len(regions) == 1 else " ∨ ".join(f"({region})" for region in regions)) + more


def requirement_lines(rule: Rule, spec: Specification) -> list[str]:
    """Return what a rule requires, one clause a line; long lists and exclusions are summarised."""
    lines = [_clause(clause, spec) for clause in rule.requirement.clauses[:_SHOWN]]
    if len(rule.requirement.clauses) > _SHOWN:
        lines.append(f"… and {len(rule.requirement.clauses) - _SHOWN:,} more clauses")
    pairs = rule.requirement.exclusions
    for h, k in pairs[: 3 if len(pairs) > _SHOWN else _SHOWN].tolist():
        lines.append(f"¬({spec.targets[h]} ∧ {spec.targets[k]})")
    if len(pairs) > _SHOWN:
        labels = len(set(pairs.reshape(-1).tolist()))
        lines.append(f"… {len(pairs):,} pairs of {labels:,} labels in all that never occur together")
    return lines


def _clause(clause: Clause, spec: Specification) -> str:
    names, m = [*spec.targets, *spec.columns], len(spec.targets)
    parts = []
    for literal in clause.literals[:_SHOWN]:
        terms = {**dict(literal.outputs), **{m + k: v for k, v in literal.inputs}}
        parts.append(readable(comparison_text(terms, literal.bound, literal.strict, names), spec))
    more = f" ∨ … ({len(clause.literals) - _SHOWN:,} more)" if len(clause.literals) > _SHOWN else ""
    return " ∨ ".join(parts) + more


def readable(text: str, spec: Specification) -> str:
    """Return a formula of the checker for people: mathematical signs, `place = home` for 0/1 columns."""
    text = signs(text)
    for item in spec.inputs:
        if isinstance(item, Categorical) and f"{item.name}=" in text:
            for category in item.categories:
                column = f"{item.name}={category}"
                text = text.replace(f"{column} ≥ 1", f"{item.name} = {category}")
                text = text.replace(f"{column} ≤ 0", f"{item.name} ≠ {category}")
    return text


def signs(text: str) -> str:
    """Return a formula with mathematical signs."""
    for plain, sign in _SIGNS:
        text = text.replace(plain, sign)
    return _NEGATIVE.sub("−", text)


def number(value: float, digits: int = 4) -> str:
    """Return a number with few digits, in decimal where that is readable and with a power of ten elsewhere."""
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text.replace("-", "−")
    mantissa, exponent = text.split("e")
    if 0 < int(exponent) < 9:
        return f"{value:,.0f}".replace("-", "−")
    return f"{mantissa}·10{str(int(exponent)).translate(_RAISED)}".replace("-", "−")


def margin_text(margin: Fraction) -> str:
    """Return a margin with three digits, rounded down: never more than was proved."""
    if margin <= 0:
        return "0"
    power = math.floor(math.log10(margin)) if margin < 10**300 else 300
    step = Fraction(10) ** (power - 2)
    return number(float(margin // step * step), 3)


def share(value: float) -> str:
    """Return a share in percent; 0 % and 100 % are said only of exactly none and exactly all."""
    if value in (0.0, 1.0):
        return f"{value:.0%}"
    for digits in range(1, 6):
        text = f"{value * 100:.{digits}f}"
        if 0 < float(text) < 100:
            return text + "%"
    return "below 0.00001%" if value < 0.5 else "above 99.99999%"


def point(names: Sequence[str], values: Sequence[float]) -> str:
    """Return a point as `name = value, ...`; of a categorical input only the category that is on."""
    parts = []
    for name, value in zip(names, values, strict=True):
        if "=" not in name:
            parts.append(f"{name} = {number(value)}")
        elif value > 0.5:
            parts.append(name.replace("=", " = ", 1))
    return ", ".join(parts)


def domain_text(spec: Specification) -> list[tuple[str, str]]:
    """Return (input, range or categories) pairs."""
    rows = []
    for item in spec.inputs:
        if isinstance(item, Categorical):
            shown = ", ".join(item.categories[:12])
            more = f", … ({len(item.categories)} in all)" if len(item.categories) > 12 else ""
            rows.append((item.name, f"one of {shown}{more}"))
        else:
            kind = ", whole numbers" if item.integer else ""
            rows.append((item.name, f"{number(float(item.lower))} to {number(float(item.upper))}{kind}"))
    return rows


def short(text: str, size: int = 40) -> str:
    """Return text cut to a size."""
    return text if len(text) <= size else text[: size - 1] + "…"
