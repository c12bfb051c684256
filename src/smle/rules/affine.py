"""Linear expressions: trees to affine forms over input and output columns, with exact rational coefficients."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from smle.errors import RuleError
from smle.rules.expressions import Call, Name, Negative, Node, Num, Product, Sum, quote
from smle.rules.specification import Categorical, Choice, Label
from smle.rules.vocabulary import Vocabulary

__all__ = ["Affine", "affine", "number"]

_MAX_BITS = 8192


@dataclass
class Affine:
    """A sum under construction: constant + inputs . x + outputs . y + sum of k |inner|."""

    constant: Fraction = Fraction(0)
    inputs: dict[int, Fraction] = field(default_factory=dict)
    outputs: dict[int, Fraction] = field(default_factory=dict)
    absolutes: list[tuple[Fraction, Affine]] = field(default_factory=list)

    @property
    def is_constant(self) -> bool:
        """Whether no variable is left."""
        return not (any(self.inputs.values()) or any(self.outputs.values()) or self.absolutes)

    def add(self, other: Affine, scale: Fraction) -> None:
        """Add scale * other."""
        self.constant = _bounded(self.constant + scale * other.constant)
        for mine, theirs in ((self.inputs, other.inputs), (self.outputs, other.outputs)):
            for index, value in theirs.items():
                mine[index] = _bounded(mine.get(index, Fraction(0)) + scale * value)
        self.absolutes += [(_bounded(scale * k), inner) for k, inner in other.absolutes if scale * k]


def number(node: Node, constants: dict[str, Fraction] | None = None) -> Fraction:
    """Return the value of an expression without variables."""
    value = affine(node, Vocabulary((), (), constants or {}))
    return value.constant


def affine(node: Node, names: Vocabulary) -> Affine:
    """Return a node as an affine form (absolute values kept apart).

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
        case Name(name=name):
            _variable(total, name, scale, names)
        case Sum(terms=terms):
            for sign, term in terms:
                _accumulate(total, term, sign * scale, names)
        case Negative(operand=operand):
            _accumulate(total, operand, -scale, names)
        case Product():
            total.add(_product(node, names), scale)
        case Call(function="abs"):
            total.add(_absolute(node, names), scale)
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
        elif operator == "/":
            if not value.constant:
                raise RuleError(f"Division by zero in {quote(node)}.")
            scale = _bounded(scale / value.constant)
        else:
            scale = _bounded(scale * value.constant)
    result = Affine()
    result.add(variable or Affine(constant=Fraction(1)), scale)
    return result


def _absolute(node: Call, names: Vocabulary) -> Affine:
    if len(node.arguments) != 1:
        raise RuleError(f"Expected one argument of abs. Got {quote(node)}.")
    inner = affine(node.arguments[0], names)
    if inner.is_constant:
        return Affine(constant=abs(inner.constant))
    if inner.absolutes:
        raise RuleError(f"Expected no abs inside abs. Got {quote(node)}. Write the cases with 'and' and 'or'.")
    return Affine(absolutes=[(Fraction(1), inner)])


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise RuleError(f"Expected coefficients of at most {_MAX_BITS} bits. Got a longer one; round the numbers.")
    return value
