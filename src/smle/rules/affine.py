"""Turns expression trees into affine forms over input and output columns, with exact rational coefficients.

`abs`, `max` and `min` are kept as `Largest` parts; `normalize.py` writes them out as cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from smle.errors import RuleError
from smle.rules.expressions import (
    CASES,
    MAX_BITS,
    Call,
    Compare,
    Day,
    Lookup,
    Name,
    Negative,
    Node,
    Num,
    Product,
    Sum,
    multiply,
    quote,
)
from smle.rules.specification import Categorical, Choice, Label, Specification
from smle.rules.vocabulary import Vocabulary

__all__ = ["Affine", "Largest", "affine", "bounded_cases", "divisor_of", "number"]

_MAX_CASES = 1024


class Largest(NamedTuple):
    """factor * max(forms). `cases` counts the plain forms it expands to."""

    factor: Fraction
    forms: tuple[Affine, ...]
    cases: int


@dataclass
class Affine:
    """A sum under construction: constant + inputs . x + outputs . y + the `Largest` parts."""

    constant: Fraction = Fraction(0)
    inputs: dict[int, Fraction] = field(default_factory=dict)
    outputs: dict[int, Fraction] = field(default_factory=dict)
    largest: list[Largest] = field(default_factory=list)
    dates: Fraction = Fraction(0)  # how much the value would grow if days were counted from one day earlier

    @property
    def is_constant(self) -> bool:
        """Whether no variable is left."""
        return not (any(self.inputs.values()) or any(self.outputs.values()) or self.largest)

    @property
    def has_outputs(self) -> bool:
        """Whether an output is mentioned."""
        return any(self.outputs.values()) or any(form.has_outputs for part in self.largest for form in part.forms)

    @property
    def cases(self) -> int:
        """How many plain forms the cases expand to."""
        return math.prod(part.cases for part in self.largest)

    def unit(self, *, negative: bool) -> Affine:
        """Scale so that the first input coefficient is 1 or -1; with `negative`, scale by a factor below 0."""
        first = min(index for index, value in self.inputs.items() if value)
        made = self.scaled(Fraction(-1 if negative else 1) / abs(self.inputs[first]))
        made.inputs = {index: value for index, value in sorted(made.inputs.items()) if value}
        return made

    def scaled(self, scale: Fraction) -> Affine:
        """Return scale * self."""
        result = Affine()
        result.add(self, scale)
        return result

    def add(self, other: Affine, scale: Fraction) -> None:
        """Add scale * other."""
        self.constant = _bounded(self.constant + scale * other.constant)
        self.dates = _bounded(self.dates + scale * other.dates)
        for mine, theirs in ((self.inputs, other.inputs), (self.outputs, other.outputs)):
            for index, value in theirs.items():
                mine[index] = _bounded(mine.get(index, Fraction(0)) + scale * value)
        if scale:
            self.largest += [part._replace(factor=_bounded(scale * part.factor)) for part in other.largest]


def number(node: Node, constants: dict[str, Fraction] | None = None) -> Fraction:
    """Return the value of an expression without variables."""
    value = affine(node, Vocabulary(Specification((), (), (), tuple((constants or {}).items()))))
    if value.dates:
        raise RuleError(f"Expected a number. Got the date {quote(node)}.")
    return value.constant


def affine(node: Node, names: Vocabulary, times: Affine | None = None) -> Affine:
    """Return a node as an affine form. Raises RuleError if it is a condition or not linear, or a name is unknown.

    `times`: a form over the inputs, positive in their ranges, to multiply the node by; the node may divide by its
    multiples.
    """
    match node:
        case Sum(terms=terms):
            total = Affine()
            for sign, term in terms:
                total.add(affine(term, names, times), Fraction(sign))
            return total
        case Negative(operand=operand):
            return affine(operand, names, times).scaled(Fraction(-1))
        case Product():
            return _product(node, names, times)
        case Call(function=function) if function in CASES:
            return _largest(node, names, times)
        case _ if times is not None:
            return _times(affine(node, names), times, node)
        case Num(value=value):
            return Affine(value)
        case Day(value=day):
            return Affine(Fraction(day), dates=Fraction(1))
        case Lookup():
            inputs, constant = names.looked_up(node)
            return Affine(constant, inputs)
        case Name(name=name):
            return _variable(name, names)
        case Call(function="score", arguments=arguments):
            return Affine(outputs={names.score(arguments): Fraction(1)})
        case Call(function="logit", arguments=arguments):
            return Affine(outputs={names.logit(arguments): Fraction(1)})
    raise RuleError(f"Expected a number. Got the condition {quote(node)}.")


def _times(form: Affine, times: Affine, node: Node) -> Affine:
    """Return form * times; one of the two must be constant."""
    if not form.is_constant:
        raise RuleError(
            f"Not linear: with its divisor multiplied out, {quote(node)} is multiplied by a variable. Compare a "
            "quotient with constants, or with quotients by the same divisor."
        )
    if form.dates:
        raise RuleError(f"{quote(node)} is a date, but the quotient beside it is a number.")
    return times.scaled(form.constant)


def _variable(name: str, names: Vocabulary) -> Affine:
    if name in names.constants:
        return Affine(names.constants[name])
    if name in names.columns:
        index = names.columns[name]
        return Affine(inputs={index: Fraction(1)}, dates=Fraction(index in names.dates))
    if isinstance(names.inputs.get(name), Categorical):
        raise RuleError(f"'{name}' is a category, not a number. Compare it with '==', '!=' or 'in'.")
    if isinstance(names.outputs.get(name), Label):
        raise RuleError(f"'{name}' is a label, true or false, not a number. Write logit({name}) for its logit.")
    if isinstance(names.outputs.get(name), Choice):
        raise RuleError(f"'{name}' is a choice, not a number. Compare it with '==', '!=' or 'in', or use score(...).")
    if name in names.outputs:
        return Affine(outputs={names.targets[name]: Fraction(1)})
    raise names.unknown(name)


def _product(node: Product, names: Vocabulary, times: Affine | None) -> Affine:
    """Return product * times. A factor that divides by a multiple of `times` cancels it."""
    scale, variable = Fraction(1), None
    for operator, factor in node.factors:
        taken = operator == "*" and times is not None and any(_divisors(factor, names))
        value = affine(factor, names, times if taken else None)
        times = None if taken else times
        if operator == "/" and not value.is_constant:
            if times is None or value.unit(negative=_ratio(value, times) < 0) != times:
                raise RuleError(f"Not linear: {quote(node)} divides by {quote(factor)}, which is not a constant.")
            scale, times = _bounded(scale / _ratio(value, times)), None
        elif not value.is_constant:
            if variable is not None:
                raise RuleError(f"Not linear: {quote(node)} multiplies variables. Rules are linear.")
            variable = value
        elif value.dates:
            raise RuleError(
                f"{quote(node)} multiplies or divides by a date. A difference of two dates is a number of days."
            )
        elif operator == "/":
            if not value.constant:
                raise RuleError(f"Division by zero in {quote(node)}.")
            scale = _bounded(scale / value.constant)
        else:
            scale = _bounded(scale * value.constant)
    made = (variable or Affine(constant=Fraction(1))).scaled(scale)
    return made if times is None else _times(made, times, node)


def _ratio(form: Affine, times: Affine) -> Fraction:
    """Return the factor between a form and `times`, of which the form is a multiple."""
    return form.inputs.get(min(times.inputs), Fraction(0)) / times.inputs[min(times.inputs)] or Fraction(1)


def _largest(node: Call, names: Vocabulary, times: Affine | None) -> Affine:
    """Return `|e|` as the larger of e and -e, and `min(a, b)` as minus the larger of -a and -b."""
    forms = [affine(argument, names, times) for argument in node.arguments]
    sign = Fraction(-1 if node.function == "min" else 1)
    if node.function == "abs":
        if len(forms) != 1:
            raise RuleError(f"Expected one argument of abs. Got {quote(node)}.")
        forms.append(forms[0].scaled(Fraction(-1)))
    elif len(forms) < 2:
        raise RuleError(f"Expected two numbers or more in {node.function}(...). Got {quote(node)}.")
    elif sign < 0:
        forms = [form.scaled(sign) for form in forms]
    if len({form.dates for form in forms}) > 1:
        raise RuleError(f"{quote(node)} mixes dates and numbers. A difference of two dates is a number of days.")
    fixed = [form for form in forms if form.is_constant]
    forms = [form for form in forms if not form.is_constant]
    if fixed:
        forms.append(max(fixed, key=lambda form: form.constant))
    if len(forms) == 1:
        return forms[0].scaled(sign)
    return Affine(largest=[Largest(sign, tuple(forms), bounded_cases(sum(form.cases for form in forms), node))])


def bounded_cases(cases: int, node: Node) -> int:
    """Return the number of cases, or raise RuleError if there are too many to write out."""
    if cases > _MAX_CASES:
        raise RuleError(
            f"Expected at most {_MAX_CASES:,} cases of abs, max and min in one comparison. Got "
            f"{cases if cases < 10**9 else 'more than a billion'} in {quote(node)}. Split the rule."
        )
    return cases


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise RuleError(f"Expected coefficients of at most {MAX_BITS} bits. Got a longer one; round the numbers.")
    return value


# --- Quotients: `debt / income >= 0.4` is multiplied by its divisor, whose sign the ranges of the inputs decide, also
# where their ends are rounded to float32 or float64, as in tables.


def divisor_of(node: Compare, names: Vocabulary) -> Affine | None:
    """Return the factor for both sides of a comparison: a form that is positive in the ranges of its inputs.

    Returns None if nothing is divided by a variable. Raises RuleError if a divisor may be 0 or is not linear in the
    inputs, or if divisors differ.
    """
    found: Affine | None = None
    for quotient, factor in (pair for side in node.operands for pair in _divisors(side, names)):
        form = _positive(node, quotient, factor, names)
        if found is not None and form != found:
            raise RuleError(
                f"Not linear: {quote(node)} divides by different expressions. Multiply out what you can, or put the "
                "quotient into a column of the table."
            )
        found = form
    return found


def _divisors(node: Node, names: Vocabulary) -> Iterator[tuple[Product, Node]]:
    """Yield each quotient with a non-constant divisor, and that divisor."""
    match node:
        case Product(factors=factors):
            for operator, factor in factors:
                if operator == "*":
                    yield from _divisors(factor, names)
                elif not affine(factor, names).is_constant:
                    yield node, factor
        case Call(function=function) if function not in CASES:
            return
        case Sum() | Negative() | Call():
            for part in node.children():
                yield from _divisors(part, names)


def _positive(node: Compare, quotient: Product, factor: Node, names: Vocabulary) -> Affine:
    """Scale the divisor to be positive in the ranges, and the same for all its multiples."""
    form = affine(factor, names)
    if form.has_outputs or form.largest:
        example = None if form.largest else _multiplied(node, quotient, factor)
        advice = "Multiply it out." if example is None else f"If that is above 0, write {quote(example)}."
        what = "which has cases" if form.largest else "an output, which has no range"
        raise RuleError(f"Not linear: {quote(quotient)} divides by {quote(factor)}, {what}. {advice}")
    if form.dates:
        raise RuleError(f"{quote(quotient)} divides by a date. A difference of two dates is a number of days.")
    low, high = names.extent(form.inputs)
    low, high = low + form.constant, high + form.constant
    if low <= 0 <= high:
        raise _may_be_zero(node, quotient, factor, form, names, above=low >= 0)
    return form.unit(negative=high < 0)


def _may_be_zero(
    node: Compare, quotient: Product, factor: Node, form: Affine, names: Vocabulary, *, above: bool
) -> RuleError:
    used = [i for i, value in form.inputs.items() if value]
    ranges = " and ".join(names.range_text(i) for i in used[:4])
    one = len(used) == 1
    advice = (
        "Change the range so that it leaves out 0" if one else f"Change the ranges so that {quote(factor)} is never 0"
    )
    example = _multiplied(node, quotient, factor) if above else None
    hint = "" if example is None else f", or write {quote(example)}, which means the same above 0"
    return RuleError(f"{quote(quotient)} divides by {quote(factor)}, which may be 0: {ranges}. {advice}{hint}.")


def _multiplied(node: Compare, quotient: Product, factor: Node) -> Compare | None:
    """Rewrite `a / b >= c` as `a >= c * b`."""
    if len(node.operands) != 2 or quotient.factors[-1] != ("/", factor) or len(quotient.factors) != 2:
        return None
    (_, top), _ = quotient.factors
    left, right = node.operands
    if left is quotient and not isinstance(right, Product | Sum):
        return Compare((top, _scaled(right, factor)), node.operators)
    if right is quotient and not isinstance(left, Product | Sum):
        return Compare((_scaled(left, factor), top), node.operators)
    return None


def _scaled(number: Node, factor: Node) -> Node:
    return factor if number == Num(Fraction(1)) else multiply(number, [("*", factor)])
