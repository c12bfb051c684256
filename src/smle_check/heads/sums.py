"""Sums that the check compares: numbers for which "computed sum <= threshold" implies a literal (section 13).

A literal `g.y + s.x <= h` is compared as `sum64(G.y + K.|y| + S.x) <= H`, without any bound on the model's answers: K
covers, in proportion to each |y_i|, the rounding of coefficients and sums. With N products, `growth` = (N + 1) / (2^53
- N - 1), X the largest |x| of the domain and A the most that underflow may take away:

    K_i >= |g_i - G_i| + growth (|G_i| + K_i)
    H   <= h - sum |s - S| X - growth sum |S| X - A            (< where the literal is strict)

because the error of the sum is at most `growth (sum (|G| + K) |y| + sum |S| X) + A`. Exactly one column of a one-hot
group is 1: products with 0 are 0 and add nothing, so a group counts as one product. Each column pays for its own error,
so that a large number of one category takes nothing from the others:

    S_c >= s_c + growth |S_c|            (columns of groups; the sums of H are over the other inputs)
"""

from fractions import Fraction
from typing import NamedTuple

from smle_check.floats import BINARY64, TINY, OutOfRange, coefficient, threshold_above, threshold_below
from smle_check.reading import require
from smle_check.stated import StatedLiteral, StatedSpecification

WIDE = Fraction(2) ** 100  # no answer behind the clip list is larger
NO_UNDERFLOW = Fraction(2) ** -800  # least size of coefficients that rules out underflow
MOST_TERMS = 2**20


class DeployedSum(NamedTuple):
    """Deployed numbers of a literal: coefficients of outputs, of their sizes, of inputs, and the threshold.

    Outputs and inputs are in the order of `columns_of`; missing sizes are 0.
    """

    outputs: dict[int, Fraction]
    sizes: dict[int, Fraction]
    inputs: dict[int, Fraction]
    threshold: Fraction


def columns_of(spec: StatedSpecification, literal: StatedLiteral) -> tuple[list[int], list[int]]:
    """Return the outputs and inputs that the sum of a literal reads, in the order of its stored numbers."""
    group = table_of(spec, literal)
    return [*literal.y], [*literal.x] if group is None else spec.groups[group]


def sum_of(spec: StatedSpecification, literal: StatedLiteral) -> DeployedSum:
    """Return the numbers that section 13 prescribes for a literal."""
    return exact_sum(literal) or table_sum(spec, literal) or rounded_sum(spec, literal)


def exact_sum(literal: StatedLiteral) -> DeployedSum | None:
    """Return the numbers of a literal that is compared without rounding, or None.

    * One output: `+-y <= h / |g|`. Answers are 0 or normal in float32.
    * The order of two outputs, `y <= z`: the float64 difference of two such numbers has the sign of the exact one.
    """
    coefficients = [abs(v) for v in literal.y.values()]
    if literal.x or len(set(coefficients)) != 1 or len(coefficients) > 2 or (len(coefficients) == 2 and literal.bound):
        return None
    signs = {i: Fraction(1 if v > 0 else -1) for i, v in literal.y.items()}
    bound = max(-2 * WIDE, min(2 * WIDE, literal.bound / coefficients[0]))  # no answer is beyond
    return DeployedSum(signs, {}, {}, threshold_below(bound, strict=literal.strict))


def table_sum(spec: StatedSpecification, literal: StatedLiteral) -> DeployedSum | None:
    """Return the numbers of a literal of one output whose inputs are the columns of one group, or None.

    `+-y <= T_c` where member c is 1, with T_c = (h - s_c) / |g|, rounded down to a float64 number that is 0 or normal.
    The sum is `+-y - T_c`: the one product with 1 is exact, those with 0 are 0, and one rounding keeps the sign of a
    difference. It never underflows: if neither is 0, y is a multiple of 2^-149 of at least 2^-126 in size, and T_c is a
    multiple of 2^-179, or less than half as large as y.
    """
    group = table_of(spec, literal)
    if group is None:
        return None
    ((output, g),), inputs = literal.y.items(), {}
    for c in spec.groups[group]:
        bound = (literal.bound - literal.x.get(c, Fraction(0))) / abs(g)
        inputs[c] = -threshold_below(max(-2 * WIDE, min(2 * WIDE, bound)), strict=literal.strict)
    signs = {output: Fraction(1 if g > 0 else -1)}
    return DeployedSum(signs, {}, inputs, Fraction(0))


def table_of(spec: StatedSpecification, literal: StatedLiteral) -> int | None:
    """Return the group whose columns are all inputs of a literal of one output, or None."""
    groups = spec.groups_of(literal.x)
    return groups.pop() if len(literal.y) == 1 and len(groups) == 1 else None


def rounded_sum(spec: StatedSpecification, literal: StatedLiteral) -> DeployedSum:
    """Return the numbers of a literal whose coefficients and sums are rounded."""
    count = 2 * len(literal.y) + len(spec.summed(literal.x))
    require(count < MOST_TERMS, "check: sum too long")
    growth = Fraction(count + 1, 2**BINARY64.precision - count - 1)
    outputs = {i: coefficient(g) for i, g in literal.y.items()}
    inputs = {k: member(v, growth) if k in spec.group else coefficient(v) for k, v in literal.x.items()}
    sizes = {
        i: threshold_above((abs(g - outputs[i]) + growth * abs(outputs[i])) / (1 - growth))
        for i, g in literal.y.items()
    }
    products = spec.summed(inputs)
    deployed = sum((abs(v) * size for v, size in products), Fraction(0))
    numbers = {k: v for k, v in literal.x.items() if k not in spec.group}
    rounded = sum(
        ((abs(v - inputs[k]) + growth * abs(inputs[k])) * spec.sizes[k] for k, v in numbers.items()), Fraction(0)
    )
    lost = underflow([*outputs.values(), *sizes.values()], [v for v, _ in products], count) * (1 + growth)
    largest = WIDE * sum((abs(outputs[i]) + sizes[i] for i in outputs), Fraction(0)) + deployed
    if (1 + growth) * largest + lost >= BINARY64.largest:
        raise OutOfRange("check: may overflow float64")
    slack = rounded + lost
    return DeployedSum(outputs, sizes, inputs, threshold_below(literal.bound - slack, strict=literal.strict))


def member(value: Fraction, growth: Fraction) -> Fraction:
    """Return the number of a column of a group: the smallest S, 0 or normal, with S >= value + growth |S|."""
    return threshold_above(value / (1 - growth if value > 0 else 1 + growth))


def underflow(outputs: list[Fraction], inputs: list[Fraction], count: int) -> Fraction:
    """Bound what numbers that underflow, or are read as 0, take away from a sum before it is rounded further.

    Each of `count` products and sums may lose what is below the smallest normal number, and so may each input;
    subnormal float32 inputs may be read as 0. Answers and stored numbers are 0 or normal. Without inputs and tiny
    coefficients, every product is above 2^-926: the total loss, below count * 2^-1022, is less than the one rounding
    that `growth` counts too many.
    """
    if not inputs and all(not v or abs(v) >= NO_UNDERFLOW for v in outputs):
        return Fraction(0)
    total = sum(map(abs, inputs), Fraction(0))
    return BINARY64.smallest_normal * (2 * count + 1 + total) + 2 * TINY * total
