"""Normal form: negations pushed down to comparisons, and `abs`, `max`, `min` and counts written out as cases, exactly.

Negating a comparison flips its strictness. At a tie of scores, neither `advice == left` nor `advice != left` holds, so
what a rule requires is true however the tie is broken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from smle.errors import RuleError
from smle.rules.affine import Affine, affine, bounded_cases, divisor_of
from smle.rules.expressions import (
    COUNTS,
    And,
    Call,
    Compare,
    Implies,
    Member,
    Missing,
    Name,
    Negative,
    Node,
    Not,
    Num,
    Or,
    Product,
    Sum,
    Truth,
    conjunction,
    disjunction,
    quote,
)
from smle.rules.formula import Literal, is_float32, linear
from smle.rules.specification import Categorical, Choice
from smle.rules.vocabulary import Vocabulary

__all__ = ["FALSE", "TRUE", "All", "Formula", "Some", "counted", "normal_form"]

_MAX_COUNTED = 300
_MAX_GROUPS = 10_000
_MAX_SIZE = 200_000
_OPPOSITE = {"<=": ">", "<": ">=", ">=": "<", ">": "<=", "==": "!=", "!=": "=="}


class All(NamedTuple):
    """An AND; true without parts. `size` counts the literals in it."""

    parts: tuple[Formula, ...]
    size: int = 1


class Some(NamedTuple):
    """An OR; false without parts. `size` counts the literals in it."""

    parts: tuple[Formula, ...]
    size: int = 1


Formula = Literal | All | Some
TRUE, FALSE = All(()), Some(())


def normal_form(node: Node, names: Vocabulary, *, conjunctive: bool = True) -> Formula:
    """Return a condition with negations pushed into its comparisons. Raises RuleError if it is not linear or too large.

    With `conjunctive`, counts are written as an AND of ORs, otherwise as an OR of ANDs. Choose the form that the result
    is distributed to next: it then costs nothing more.
    """
    return _Normalizer(names, conjunctive).normal_form(node, True)


def counted(node: Call, names: Vocabulary) -> tuple[int, int, tuple[Node, ...]]:
    """Return the least and most conditions of a count that may hold, and the conditions."""
    kind, count, conditions = node.function, 1, node.arguments
    if kind.endswith("_one"):
        kind = kind.removesuffix("_one")
    else:
        count, conditions = _count(node, names), conditions[1:]
    if len(conditions) < 2:
        raise RuleError(f"Expected at least two conditions in {node.function}(...). Got {quote(node)}.")
    return (0 if kind == "at_most" else count), (len(conditions) if kind == "at_least" else count), conditions


def _count(node: Call, names: Vocabulary) -> int:
    first = node.arguments[0]
    try:
        value = affine(first, names)
    except RuleError:
        value = None
    if value is None or not value.is_constant or value.constant < 0 or value.constant.denominator != 1:
        raise RuleError(
            f"Expected a whole number, 0 or more, in front of the conditions, as in {node.function}(2, a, b, c). "
            f"Got {quote(first)}."
        )
    return int(value.constant)


class _Normalizer:
    """Normal forms with a cache: `exactly_one` needs each argument and its negation, at every level."""

    def __init__(self, names: Vocabulary, conjunctive: bool) -> None:
        self._names = names
        self._conjunctive = conjunctive
        self._seen: dict[tuple[int, bool], Formula] = {}  # keyed by id, so nodes must stay alive
        self._kept: list[Node] = []

    def normal_form(self, node: Node, positive: bool) -> Formula:
        """Return the formula or, if not `positive`, its negation."""
        key = (id(node), positive)
        if key not in self._seen:
            self._seen[key] = self._made(node, positive)
        return self._seen[key]

    def _made(self, node: Node, positive: bool) -> Formula:
        names = self._names
        match node:
            case Truth(value=value):
                return TRUE if value == positive else FALSE
            case Not(operand=operand):
                return self.normal_form(operand, not positive)
            case And(parts=parts):
                return _joined([self.normal_form(p, positive) for p in parts], conjunctive=positive)
            case Or(parts=parts):
                return _joined([self.normal_form(p, positive) for p in parts], conjunctive=not positive)
            case Implies(condition=condition, conclusion=conclusion):
                pair = [self.normal_form(condition, not positive), self.normal_form(conclusion, positive)]
                return _joined(pair, conjunctive=not positive)
            case Compare():
                return _chain(node, names, positive)
            case Member(operand=operand, options=options):
                group = names.group(operand)
                if group is None:
                    written_out = _one_of(node, names, by_gaps=self._conjunctive == positive)
                    self._kept.append(written_out)
                    return self.normal_form(written_out, positive)
                return _among(group, {names.member(group, o) for o in options}, names, positive)
            case Missing(operand=operand):
                return self._missing(operand.name, positive)
            case Call(function=function) if function in COUNTS:
                return self._counted(node, positive)
            case Name(name=name) if name in names.labels:
                return Literal.of_sign(names.labels[name], positive)
        raise _not_a_condition(node, names)

    def _missing(self, name: str, positive: bool) -> Formula:
        """Return "the input is missing" or its negation, in whichever form gives small regions.

        A missing input always has its stand-in value, so it never meets rules about other values. A region states this;
        a clause states it where the rule does not apply.
        """
        flag, values = self._names.missing(name)
        if positive:
            return flag if self._conjunctive else _joined([flag, *values], conjunctive=True)
        known = [flag.negated, *([value.negated for value in values] if self._conjunctive else [])]
        return _joined(known, conjunctive=False)

    def _counted(self, node: Call, positive: bool) -> Formula:
        """Expand a count over all groups of one size.

        "At most k" is "of any k + 1, one fails" (an AND of ORs) or "some n - k fail" (an OR of ANDs). The negation of
        either has the other shape, with every argument negated.
        """
        least, most, conditions = counted(node, self._names)
        size = len(conditions)
        if size > _MAX_COUNTED:
            raise RuleError(
                f"Expected at most {_MAX_COUNTED} conditions in {node.function}(...) here. Got {size}. "
                "Longer groups of labels are possible as a rule of their own, for a count of one."
            )
        yes = [self.normal_form(c, positive) for c in conditions]
        no = [self.normal_form(c, not positive) for c in conditions]
        groups: Iterable[Sequence[Formula]]
        if self._conjunctive == positive:
            _refuse_groups(node, size, most + 1, size - least + 1)
            groups = [*_groups(no, most + 1), *_groups(yes, max(size - least + 1, 0))]
        elif least == most:
            _refuse_groups(node, size, most)
            chosen = [set(some) for some in _groups(range(size), most)]
            groups = [[(yes if i in some else no)[i] for i in range(size)] for some in chosen]
        else:
            some, many = (no, max(size - most, 0)) if least == 0 else (yes, least)
            _refuse_groups(node, size, many)
            groups = _groups(some, many)
        parts = [_joined(group, conjunctive=not self._conjunctive) for group in groups]
        return _joined(parts, conjunctive=self._conjunctive)


def _one_of(node: Member, names: Vocabulary, *, by_gaps: bool) -> Node:
    """Return "a number is one of these" as comparisons: an AND of ORs if `by_gaps`, else an OR of ANDs.

    Raises RuleError if the list could be meant as a range.
    """
    operand = node.operand
    if isinstance(operand, Name) and operand.name in names.labels:
        raise RuleError(f"'{operand.name}' is a label, true or false: write '{operand.name}' or 'not {operand.name}'.")
    # Raises for an unknown name first.
    affine(operand, names, divisor_of(Compare((operand, Num(Fraction(0))), ("==",)), names))
    stated = [(affine(option, names), option) for option in node.options]
    equal = [Compare((operand, option), ("==",)) for option in node.options]
    if not all(form.is_constant for form, _ in stated):
        return disjunction(equal)
    whole = isinstance(operand, Name) and names.columns.get(operand.name) in names.integral
    values = [form.constant for form, _ in stated]
    if len(values) == 2 and values[0] < values[1] and not (whole and values[1] - values[0] == 1):
        between = Compare((node.options[0], operand, node.options[1]), ("<=", "<="))
        raise RuleError(
            f"{quote(node)} may mean a range or two values. Write {quote(between)}, or {quote(disjunction(equal))}."
        )
    runs: list[list[tuple[Fraction, Node]]] = []  # neighboring whole numbers become one range
    for value, option in sorted(dict(zip(values, node.options, strict=True)).items()):
        if runs and whole and value - runs[-1][-1][0] == 1:
            runs[-1].append((value, option))
        else:
            runs.append([(value, option)])
    ends = [(run[0][1], run[-1][1]) for run in runs]
    if not by_gaps:
        return disjunction(
            Compare((operand, low), ("==",)) if low is high else Compare((low, operand, high), ("<=", "<="))
            for low, high in ends
        )
    for comparison in equal:
        _chain(comparison, names, True)  # refuses numbers that floats cannot hold
    outer = Compare((ends[0][0], operand, ends[-1][1]), ("<=", "<="))
    gaps = [
        disjunction([Compare((operand, low), ("<=",)), Compare((operand, high), (">=",))])
        for (_, low), (high, _) in pairwise(ends)
    ]
    return conjunction([outer, *gaps])


def _groups(parts: Sequence[Any], many: int) -> Iterable[tuple[Any, ...]]:
    """Return all groups of a size, without allocating memory for a size larger than the parts."""
    return combinations(parts, many) if many <= len(parts) else ()


def _refuse_groups(node: Call, size: int, *chosen: int) -> None:
    groups = sum(math.comb(size, many) for many in chosen if many >= 0)
    if groups > _MAX_GROUPS:
        raise RuleError(
            f"{quote(node)} expands to {groups:,} groups of its {size} conditions. Expected at most "
            f"{_MAX_GROUPS:,}. Count fewer conditions at a time."
        )


def _not_a_condition(node: Node, names: Vocabulary) -> RuleError:
    if isinstance(node, Name) and names.group(node) is not None:
        return RuleError(f"Expected a condition. Got {quote(node)} alone; compare it with '==', '!=' or 'in'.")
    if isinstance(node, Call) and node.function == "score":
        names.score(node.arguments)
    elif isinstance(node, Name | Sum | Product | Negative):
        # prefer the error about an unknown name or a product of variables
        affine(node, names, divisor_of(Compare((node, Num(Fraction(0))), (">=",)), names))
    return RuleError(f"Expected a condition. Got the number {quote(node)}; compare it, as in {quote(node)[:-1]} >= 0'.")


def _joined(parts: Sequence[Formula], *, conjunctive: bool) -> Formula:
    flat: list[Formula] = []
    for part in parts:
        if not isinstance(part, Literal) and not part.parts and isinstance(part, Some if conjunctive else All):
            return part
        if isinstance(part, All if conjunctive else Some):
            flat.extend(part.parts)
        else:
            flat.append(part)
    if len(flat) == 1:
        return flat[0]
    size = sum(1 if isinstance(part, Literal) else part.size for part in flat)
    if size > _MAX_SIZE:
        raise RuleError(f"The condition has more than {_MAX_SIZE:,} comparisons when written out. Split the rule.")
    return All(tuple(flat), size) if conjunctive else Some(tuple(flat), size)


def _chain(node: Compare, names: Vocabulary, positive: bool) -> Formula:
    links = [
        _link(node, left, operator if positive else _OPPOSITE[operator], right, names)
        for left, operator, right in zip(node.operands, node.operators, node.operands[1:], strict=False)
    ]
    return _joined(links, conjunctive=positive)


def _link(node: Compare, left: Node, operator: str, right: Node, names: Vocabulary) -> Formula:
    group, other = names.group(left), right
    if group is None:
        group, other = names.group(right), left  # only == and != remain, which are symmetric
    if group is not None:
        if operator not in ("==", "!="):
            raise RuleError(f"Expected '==', '!=' or 'in' with '{group.name}'. Got {quote(node)}.")
        return _among(group, {names.member(group, other)}, names, positive=operator == "==")
    for side in (left, right):
        if isinstance(side, Name) and side.name in names.labels:
            raise RuleError(
                f"'{side.name}' is a label, true or false: write '{side.name}' or 'not {side.name}' instead of "
                f"{quote(node)}, or compare logit({side.name})."
            )
        if isinstance(side, Truth | Not | And | Or | Implies | Compare | Member | Missing):
            raise RuleError(
                f"Expected numbers on both sides of '{operator}'. Got the condition {quote(side)}. "
                "For 'if and only if' write (a implies b) and (b implies a)."
            )
    times = divisor_of(Compare((left, right), (operator,)), names)
    difference = affine(left, names, times)
    difference.add(affine(right, names, times), Fraction(-1))
    if operator == "==" and difference.has_outputs and difference.largest:
        raise RuleError(
            f"{quote(node)} requires exact equality with a largest, smallest or absolute value, which is an equality "
            "under a condition. State a tolerance, or several rules."
        )
    if operator in ("==", "!="):
        parts = [_at_most(side, operator == "!=", node) for side in (difference, difference.scaled(Fraction(-1)))]
        if operator == "==":
            _refuse_no_float(node, difference, names)
            parts = [replace(part, equal=True) if isinstance(part, Literal) else part for part in parts]
        return _joined(parts, conjunctive=operator == "==")
    if operator in (">=", ">"):
        difference = difference.scaled(Fraction(-1))
    return _at_most(difference, operator in ("<", ">"), node)


def _refuse_no_float(node: Node, difference: Affine, names: Vocabulary) -> None:
    """Refuse equality of an output without a step with a number that float32 cannot hold."""
    outputs, inputs = linear(difference.outputs), linear(difference.inputs)
    if len(outputs) != 1 or inputs or difference.largest:
        return
    ((column, factor),) = outputs
    item = names.outputs.get(list(names.targets)[column])
    if getattr(item, "step", None) is None and not is_float32(-difference.constant / factor):
        raise RuleError(
            f"{quote(node)} requires exact equality with a number that float32 cannot hold. State a `step` for the "
            "output, such as 'step: 0.01', or a tolerance."
        )


def _at_most(form: Affine, strict: bool, node: Node) -> Formula:
    """Return `form <= 0`: k * max(forms) requires all of the forms if k > 0, one of them if k < 0."""
    if not form.largest:
        if form.dates:
            raise RuleError(
                f"{quote(node)} compares a date with a number. Write dates as 2020-01-31; a difference of two dates is "
                "a number of days, as in opened - 2020-01-31 >= 30."
            )
        return _literal(form, strict)
    bounded_cases(form.cases, node)
    first, *rest = form.largest
    cases = []
    for inner in first.forms:
        case = replace(form, largest=rest).scaled(Fraction(1))
        case.add(inner, first.factor)
        cases.append(_at_most(case, strict, node))
    return _joined(cases, conjunctive=first.factor > 0)


def _literal(form: Affine, strict: bool) -> Formula:
    outputs, inputs, bound = linear(form.outputs), linear(form.inputs), -form.constant
    if not outputs and not inputs:
        return TRUE if (bound > 0 if strict else bound >= 0) else FALSE
    scale = abs((outputs or inputs)[0][1])
    if scale != 1:
        outputs = tuple((i, v / scale) for i, v in outputs)
        inputs = tuple((i, v / scale) for i, v in inputs)
        bound /= scale
    return Literal(outputs, inputs, bound, strict, scale)


def _among(group: Categorical | Choice, chosen: set[int], names: Vocabulary, positive: bool) -> Formula:
    """Return "the category or pick is one of `chosen`"; its negation is the same over the others."""
    columns = names.members(group)
    one = Fraction(1)
    if isinstance(group, Categorical):
        if positive and len(chosen) == 1:
            return Literal((), ((min(chosen), -one),), -one, False)
        away = [c for c in columns if (c in chosen) != positive]
        return _joined([Literal((), ((c, one),), Fraction(0), False) for c in away], conjunctive=True)
    inside = [c for c in columns if (c in chosen) == positive]
    outside = [c for c in columns if (c in chosen) != positive]
    sign = one if group.pick == "max" else -one
    clauses = [
        _joined([Literal(linear(((j, sign), (k, -sign))), (), Fraction(0), True) for k in inside], conjunctive=False)
        for j in outside
    ]
    return _joined(clauses, conjunctive=True)
