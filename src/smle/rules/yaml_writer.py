"""A Specification to a rules file that reads back as an equal one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from smle.errors import RuleError
from smle.rules.dates import date_text
from smle.rules.exclusions import is_summary, ranges_text
from smle.rules.expressions import decimal_text
from smle.rules.specification import Categorical, Choice, Label, Number, NumericInput, Rule, Specification

__all__ = ["number_text", "write_yaml"]

_LISTED_PAIRS = 2_000


def number_text(value: Fraction) -> str:
    """Return the exact text of a rational: a decimal if it has one, else numerator / denominator."""
    return decimal_text(value) or f"{value.numerator} / {value.denominator}"


def write_yaml(specification: Specification) -> str:
    """Print a rules file that reads back as an equal specification.

    Raises:
        RuleError: If outputs are not in the order numbers, labels, choices.

    """
    order = [(Number, Label, Choice).index(type(item)) for item in specification.outputs]
    if order != sorted(order):
        raise RuleError(
            "Expected outputs in the order numbers, labels, choices. Got another order; a file cannot say it."
        )
    lines = ["inputs:"]
    lines += [f"  {_scalar(item.name)}: {_stated_input(item)}" for item in specification.inputs]
    numbers = [o.name for o in specification.outputs if isinstance(o, Number)]
    labels = [o.name for o in specification.outputs if isinstance(o, Label)]
    choices = [o for o in specification.outputs if isinstance(o, Choice)]
    if numbers:
        lines.append(f"outputs: {_flow(numbers)}")
    if labels:
        lines.append(f"labels: {_flow(labels)}")
    if choices:
        lines.append("choices:")
        lines += [f"  {_scalar(item.name)}: {_stated_choice(item)}" for item in choices]
    if specification.constants:
        lines.append("constants:")
        lines += [f"  {_scalar(name)}: {number_text(value)}" for name, value in specification.constants]
    lines.append("rules:" if specification.rules else "rules: []")
    for rule in specification.rules:
        lines.append(f"  - name: {_scalar(rule.name)}")
        if rule.when is not None:
            lines.append(f"    when: {_scalar(rule.when)}")
        lines += _stated_pairs(rule, specification) if is_summary(rule.then) else [f"    then: {_scalar(rule.then)}"]
    return "\n".join(lines) + "\n"


def _stated_pairs(rule: Rule, specification: Specification) -> list[str]:
    """Print exclusions as pairs of names, or, if they are many, by label number (0 is the first label)."""
    labels = [o.name for o in specification.outputs if isinstance(o, Label)]
    position = np.full(len(specification.targets), -1, dtype=np.int32)
    position[[i for i, target in enumerate(specification.targets) if target in set(labels)]] = range(len(labels))
    pairs = position[rule.requirement.exclusions]
    lines = ["    never_together:"]
    if len(pairs) <= _LISTED_PAIRS:
        return lines + [f"      - {_flow([labels[h], labels[k]])}" for h, k in pairs.tolist()]
    return lines + [f"      {label}: {text}" for label, text in ranges_text(pairs).items()]


def _stated_input(item: NumericInput | Categorical) -> str:
    if isinstance(item, Categorical):
        missing = "" if item.missing is None else f", missing: {_scalar(item.missing, flow=True)}"
        return f"{{categories: {_flow(item.categories)}{missing}}}"
    if item.dates:
        ends = f"[{date_text(item.lower)}, {date_text(item.upper)}]"
        return ends if item.missing is None else f"{{range: {ends}, missing: {date_text(item.missing)}}}"
    ends = f"[{number_text(item.lower)}, {number_text(item.upper)}]"
    if not item.integer and item.missing is None:
        return ends
    integer = ", integer: true" if item.integer else ""
    missing = "" if item.missing is None else f", missing: {number_text(item.missing)}"
    return f"{{range: {ends}{integer}{missing}}}"


def _stated_choice(item: Choice) -> str:
    options = _flow(item.options)
    return options if item.pick == "max" else f"{{options: {options}, pick: {item.pick}}}"


def _flow(names: Iterable[str]) -> str:
    return f"[{', '.join(_scalar(name, flow=True) for name in names)}]"


_PLAIN_FLOW = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_ .=+-]*[A-Za-z0-9_])?")
_PLAIN_BLOCK = re.compile(r"[A-Za-z_0-9(](?:[A-Za-z0-9_ .=+*/<>!,()\[\]`-]*[A-Za-z0-9_)\]`])?")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def _scalar(text: str, *, flow: bool = False) -> str:
    """Return text as a YAML scalar that every YAML reader takes for text: bare if it can be, else in quotes."""
    if not text or not text.isprintable():
        raise RuleError(f"Expected printable names and texts. Got {text!r:.80}; a rules file cannot hold it.")
    pattern = _PLAIN_FLOW if flow else _PLAIN_BLOCK
    numeric = text[0] in "0123456789" and " " not in text
    if pattern.fullmatch(text) and text.lower() not in _YAML_WORDS and not numeric:
        return text
    return "'" + text.replace("'", "''") + "'"
