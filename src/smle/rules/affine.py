"""Expression trees to affine forms over input and output columns, with exact rational coefficients.

`abs`, `max` and `min` are kept as `Largest` parts; `normalize.py` writes them out as cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from smle.errors import RuleError
from smle.rules.expressions import CASES, MAX_BITS, Call, Day, Lookup, Name, Negative, Node, Num, Product, Sum, quote
from smle.rules.specification import Categorical, Choice, Label, Specification
from smle.rules.vocabulary import Vocabulary

__all__ = ["Affine", "Largest", "affine", "bounded_cases", "divisors", "number"]

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
    total = Affine()
    _accumulate(total, node, Fraction(1), names, times)
    return total


def _accumulate(total: Affine, node: Node, scale: Fraction, names: Vocabulary, times: Affine | None) -> None:
    match node:
        case Sum(terms=terms):
            for sign, term in terms:
                _accumulate(total, term, sign * scale, names, times)
        case Negative(operand=operand):
            _accumulate(total, operand, -scale, names, times)
        case Product():
            total.add(_product(node, names, times), scale)
        case Call(function=function) if function in CASES:
            total.add(_largest(node, names, times), scale)
        case _ if times is not None:
            total.add(_multiplied(affine(node, names), times, node), scale)
        case Num(value=value):
            total.constant = _bounded(total.constant + scale * value)
        case Day(value=day):
            total.add(Affine(constant=Fraction(day), dates=Fraction(1)), scale)
        case Lookup():
            inputs, constant = names.looked_up(node)
            total.add(Affine(constant, inputs), scale)
        case Name(name=name):
            _variable(total, name, scale, names)
        case Call(function="score", arguments=arguments):
            total.add(Affine(outputs={names.score(arguments): Fraction(1)}), scale)
        case Call(function="logit", arguments=arguments):
            total.add(Affine(outputs={names.logit(arguments): Fraction(1)}), scale)
        case _:
            raise RuleError(f"Expected a number. Got the condition {quote(node)}.")


def _multiplied(form: Affine, times: Affine, node: Node) -> Affine:
    """Return form * times; one of the two must be constant."""
    if not form.is_constant:
        raise RuleError(
            f"Not linear: with its divisor multiplied out, {quote(node)} is multiplied by a variable. Compare a "
            "quotient with constants, or with quotients by the same divisor."
        )
    if form.dates:
        raise RuleError(f"{quote(node)} is a date beside a quotient, which is a number.")
    return times.scaled(form.constant)


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


def divisors(node: Node, names: Vocabulary) -> Iterator[tuple[Product, Node]]:
    """Yield each quotient with a non-constant divisor, and that divisor."""
    match node:
        case Product(factors=factors):
            for operator, factor in factors:
                if operator == "*":
                    yield from divisors(factor, names)
                elif not affine(factor, names).is_constant:
                    yield node, factor
        case Sum() | Negative():
            for part in node.children():
                yield from divisors(part, names)
        case Call(function=function, arguments=arguments) if function in CASES:
            for part in arguments:
                yield from divisors(part, names)


def _product(node: Product, names: Vocabulary, times: Affine | None) -> Affine:
    """Return product * times. A factor that divides by a multiple of `times` cancels it."""
    scale, variable = Fraction(1), None
    for operator, factor in node.factors:
        taken = operator == "*" and times is not None and any(divisors(factor, names))
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
    return made if times is None else _multiplied(made, times, node)


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
