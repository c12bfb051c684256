"""Quotients in comparisons: `debt / income >= 0.4` is multiplied by its divisor, exactly.

The ranges of the inputs decide the sign of the divisor, and keep it where the ends are rounded to float32 or float64,
as in tables.
"""

from __future__ import annotations

from fractions import Fraction

from smle.errors import RuleError
from smle.rules.affine import Affine, affine, divisors
from smle.rules.expressions import Compare, Node, Num, Product, Sum, multiply, quote
from smle.rules.vocabulary import Vocabulary

__all__ = ["divisor_of"]


def divisor_of(node: Compare, names: Vocabulary) -> Affine | None:
    """Return the factor for both sides of a comparison: a form that is positive in the ranges of its inputs.

    Returns None if nothing is divided by a variable. Raises RuleError if a divisor may be 0 or is not linear in the
    inputs, or if divisors differ.
    """
    found: Affine | None = None
    for quotient, factor in (pair for side in node.operands for pair in divisors(side, names)):
        form = _positive(node, quotient, factor, names)
        if found is not None and form != found:
            raise RuleError(
                f"Not linear: {quote(node)} divides by different expressions. Multiply out what you can, or put the "
                "quotient into a column of the table."
            )
        found = form
    return found


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
        return Compare((top, _times(right, factor)), node.operators)
    if right is quotient and not isinstance(left, Product | Sum):
        return Compare((_times(left, factor), top), node.operators)
    return None


def _times(number: Node, factor: Node) -> Node:
    return factor if number == Num(Fraction(1)) else multiply(number, [("*", factor)])
