"""Linear expressions: trees to affine forms over input and output columns, with exact rational coefficients.

`abs`, `max` and `min` stay as the largest of several forms; the normal form writes them out as cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from smle.errors import RuleError
from smle.rules.expressions import CASES, MAX_BITS, Call, Day, Name, Negative, Node, Num, Product, Sum, quote
from smle.rules.specification import Categorical, Choice, Label, Specification
from smle.rules.vocabulary import Vocabulary

__all__ = ["Affine", "Largest", "affine", "bounded_cases", "number"]

_MAX_CASES = 1024


class Largest(NamedTuple):
    """factor * (the largest of several forms). `cases` counts the plain forms that writing it out gives."""

    factor: Fraction
    forms: tuple[Affine, ...]
    cases: int


@dataclass
class Affine:
    """A sum under construction: constant + inputs . x + outputs . y + multiples of largest forms."""

    constant: Fraction = Fraction(0)
    inputs: dict[int, Fraction] = field(default_factory=dict)
    outputs: dict[int, Fraction] = field(default_factory=dict)
    largest: list[Largest] = field(default_factory=list)
    dates: Fraction = Fraction(0)  # by how much it would grow if days were counted from one day earlier

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
        """How many plain forms there are when all cases are written out."""
        return math.prod(part.cases for part in self.largest)

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


def affine(node: Node, names: Vocabulary) -> Affine:
    """Return a node as an affine form, with what has cases kept apart.

    Raises:
        RuleError: If the node is not linear, is a condition, or uses an unknown name.

    """
    total = Affine()
    _accumulate(total, node, Fraction(1), names)
    return total


def _accumulate(total: Affine, node: Node, scale: Fraction, names: Vocabulary) -> None:
    match node:
        case Num(value=value):
            total.constant = _bounded(total.constant + scale * value)
        case Day(value=day):
            total.add(Affine(constant=Fraction(day), dates=Fraction(1)), scale)
        case Name(name=name):
            _variable(total, name, scale, names)
        case Sum(terms=terms):
            for sign, term in terms:
                _accumulate(total, term, sign * scale, names)
        case Negative(operand=operand):
            _accumulate(total, operand, -scale, names)
        case Product():
            total.add(_product(node, names), scale)
        case Call(function=function) if function in CASES:
            total.add(_largest(node, names), scale)
        case Call(function="score", arguments=arguments):
            total.add(Affine(outputs={names.score(arguments): Fraction(1)}), scale)
        case Call(function="logit", arguments=arguments):
            total.add(Affine(outputs={names.logit(arguments): Fraction(1)}), scale)
        case _:
            raise RuleError(f"Expected a number. Got the condition {quote(node)}.")


def _variable(total: Affine, name: str, scale: Fraction, names: Vocabulary) -> None:
    if name in names.constants:
        total.constant = _bounded(total.constant + scale * names.constants[name])
    elif name in names.columns:
        index = names.columns[name]
        total.inputs[index] = _bounded(total.inputs.get(index, Fraction(0)) + scale)
        if index in names.dates:
            total.dates = _bounded(total.dates + scale)
    elif isinstance(names.inputs.get(name), Categorical):
        raise RuleError(f"'{name}' is a category, not a number. Compare it with '==', '!=' or 'in'.")
    elif isinstance(names.outputs.get(name), Label):
        raise RuleError(f"'{name}' is a label, true or false, not a number. Write logit({name}) for its logit.")
    elif isinstance(names.outputs.get(name), Choice):
        raise RuleError(f"'{name}' is a choice, not a number. Compare it with '==', '!=' or 'in', or use score(...).")
    elif name in names.outputs:
        index = names.targets[name]
        total.outputs[index] = _bounded(total.outputs.get(index, Fraction(0)) + scale)
    else:
        raise names.unknown(name)


def _product(node: Product, names: Vocabulary) -> Affine:
    scale, variable = Fraction(1), None
    for operator, factor in node.factors:
        value = affine(factor, names)
        if not value.is_constant:
            if operator == "/":
                raise RuleError(f"Not linear: {quote(node)} divides by {quote(factor)}, which is not a constant.")
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
    return (variable or Affine(constant=Fraction(1))).scaled(scale)


def _largest(node: Call, names: Vocabulary) -> Affine:
    """Return `|e|` as the larger of e and -e, and `min(a, b)` as minus the larger of -a and -b."""
    forms = [affine(argument, names) for argument in node.arguments]
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
    """Return how many cases there are, unless they are too many to be written out."""
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
