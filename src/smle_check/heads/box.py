"""Heads behind a box: worst case over the clipped embedding (section 6), also under bounds by a network (6.1)."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import repeat
from operator import add, mul
from typing import Any

from smle_check.floats import TINY, affine_error, cast_error, on_grid, upward
from smle_check.kernel import bounded
from smle_check.reading import Tensor, read_block, require, values
from smle_check.stated import StatedLiteral, StatedSpecification, exclusion

Box = tuple[list[Fraction], list[Fraction]]  # low and high ends
Halfspace = tuple[dict[int, Fraction], Fraction]  # terms.x <= bound


def over_box(slope: list[Fraction], box: Box) -> Fraction:
    """Return the maximum of slope.x over a box; an empty slope is zero."""
    ends = zip(slope, *box, strict=False)
    return sum((max(s * low, s * high) for s, low, high in ends), Fraction(0))


def root_box(spec: StatedSpecification, active: set[int]) -> Box:
    """Return the smallest box given by the active rows over one input; an empty one shrinks to a point."""
    low, high = list(spec.low), list(spec.high)
    for row in (spec.rows[r] for r in active if len(spec.rows[r].terms) == 1):
        ((k, sign),) = row.terms.items()
        if sign > 0:
            high[k] = min(high[k], row.closed)
        else:
            low[k] = max(low[k], -row.closed)
    return [min(ends) for ends in zip(low, high, strict=True)], high


class Hidden:
    """A hidden layer of bounds by a network over one box of inputs: h = relu(p), p = A v + a, between lines (6.1).

    v is the input or the previous layer. Any slopes in [0, 1] are valid: below * p <= relu(p), and relu(p) - above * p
    is convex, hence largest at an end.
    """

    def __init__(
        self, layer: tuple[list[list[Fraction]], list[Fraction]], box: Box, slopes: Sequence[float],
        previous: "Hidden | None" = None,
    ) -> None:  # fmt: skip
        self.weight, self.bias = layer
        self.box, self.previous = box, previous
        self.errors: list[Fraction] = []
        self.reach: list[Fraction] = []
        self.below, self.above, self.lift, self.bottom, self.top = [], [], [], [], []
        sizes, errors = [max(abs(a), abs(b)) for a, b in zip(*box, strict=True)], [Fraction(0)] * len(box[0])
        if previous is not None:
            sizes, errors = previous.reach, previous.errors
        for j, (row, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            below, above = slopes[2 * j], slopes[2 * j + 1]
            require(0 <= below <= 1 and 0 <= above <= 1, "slopes: expected numbers in 0 .. 1")
            ends = [bias - self.highest([-w for w in row]), bias + self.highest(row)]
            self.below.append(Fraction(below))
            self.above.append(Fraction(above))
            self.lift.append(max(max(end, Fraction(0)) - self.above[j] * end for end in ends))
            self.bottom.append(max(ends[0], Fraction(0)))
            self.top.append(max(ends[1], Fraction(0)))
            inherited = sum((abs(w) * e for w, e in zip(row, errors, strict=True)), Fraction(0))
            error = affine_error(row, sizes, bias, "hidden layer of the bounds")
            self.errors.append(upward(error + inherited + TINY))
            self.reach.append(self.top[j] + self.errors[j])

    def highest(self, row: list[Fraction]) -> Fraction:
        """Bound row.v over the box from above, ignoring rounding errors."""
        if self.previous is None:
            return over_box(row, self.box)
        constant, slope = self.previous.back(row)
        return constant + over_box(slope, self.box)

    def back(self, q: list[Fraction]) -> tuple[Fraction, list[Fraction]]:
        """Return (d, c) with q.h <= d + c.x on the box, ignoring rounding errors."""
        constant, slope = Fraction(0), [Fraction(0)] * len(self.weight[0])
        for j, value in enumerate(q):
            through = value * (self.above[j] if value > 0 else self.below[j])
            constant += through * self.bias[j] + max(value, Fraction(0)) * self.lift[j]
            slope = [s + through * w for s, w in zip(slope, self.weight[j], strict=True)]
        if self.previous is None:
            return constant, slope
        more, slope = self.previous.back(slope)
        return constant + more, slope


Line = tuple[
    Fraction, Fraction
]  # slope and lift: relu(g) <= slope g + lift for g = l - u, and so max(l, u) <= u + that


class ExactBounds:
    """Center and half-width of the clipped embedding, affine in x (or in h): any float evaluation lies inside.

    The clip gives l where l > u, so units lie in [l, max(l, u)]. Center and half-width are those of [l, u]; for every
    unit whose bounds may cross, `tops` has a line above max(l, u) = u + relu(l - u).
    """

    def __init__(
        self, spec: StatedSpecification, tensors: dict[str, Tensor], kind: str, hidden: Hidden | None = None
    ) -> None:
        require("bounds.lower" in tensors, "weights: tensor 'bounds.lower' is missing")
        self.hidden, self.box, span = hidden, (spec.low, spec.high), (spec.low, spec.high)
        reach, errors = spec.reach, [Fraction(0)] * len(spec.inputs)
        if hidden is not None:
            self.box, span, reach, errors = hidden.box, (hidden.bottom, hidden.top), hidden.reach, hidden.errors
        n, d = math.prod(tensors["bounds.lower"].shape), len(reach)
        self.width, self.affine, self.arguments = n, kind != "constant", d
        lower, upper = (values(tensors, f"bounds.{side}", "F32", (n,)) for side in ("lower", "upper"))
        slopes: list[list[Fraction]] = [[], []]
        if self.affine:
            slopes = [values(tensors, f"bounds.{side}_slope", "F32", (n, d)) for side in ("lower", "upper")]
        center, half, self.sizes = [], [], []
        self.gaps: list[tuple[Fraction, list[Fraction]]] = []  # l - u: offset and slope
        self.tops: dict[int, Line] = {}
        for i in range(n):
            low_slope, high_slope = (s[i * d : (i + 1) * d] for s in slopes)  # empty if constant
            extra = Fraction(0) if min(abs(lower[i]), abs(upper[i])) >= TINY else TINY
            if self.affine:
                inherited = [
                    sum(abs(s) * e for s, e in zip(part, errors, strict=True)) for part in (low_slope, high_slope)
                ]
                low_error = affine_error(low_slope, reach, lower[i], "bounds") + inherited[0]
                high_error = affine_error(high_slope, reach, upper[i], "bounds") + inherited[1]
                extra = upward(TINY + max(low_error, high_error))
            gap = [a - b for a, b in zip(low_slope, high_slope, strict=True)]
            self.gaps.append((lower[i] - upper[i], gap))
            crossing = lower[i] - upper[i] + over_box(gap, span)
            require(self.affine or crossing <= 0, "bounds: a constant lower bound above its upper one")
            if crossing > 0:
                self.tops[i] = Fraction(0), crossing
            center.append((lower[i] + upper[i]) / 2)
            half.append((upper[i] - lower[i]) / 2 + extra)
            highest = upper[i] + over_box(high_slope, span)
            ends = [over_box(low_slope, span) + lower[i], over_box([-s for s in low_slope], span) - lower[i]]
            self.sizes.append(max(highest, *ends) + extra)
        self.center, self.center_grid = on_grid(center)
        self.half, self.half_grid = on_grid(half)
        center_slope, self.center_slope_grid = on_grid([(a + b) / 2 for a, b in zip(*slopes, strict=True)])
        half_slope, self.half_slope_grid = on_grid([(b - a) / 2 for a, b in zip(*slopes, strict=True)])
        # One column per argument; none if the bounds are constant.
        self.center_slope = [center_slope[k::d] for k in range(d if self.affine else 0)]
        self.half_slope = [half_slope[k::d] for k in range(d if self.affine else 0)]


class ExactHead:
    """One head y = W z + V x + b: outputs at the center of the box, and the rounding error of each."""

    def __init__(
        self, spec: StatedSpecification, bounds: ExactBounds, W: list[Fraction], V: list[Fraction], b: list[Fraction]
    ):
        self.width = n = bounds.width
        d, m = len(spec.inputs), len(b)
        self.spec, self.bounds = spec, bounds
        flat, self.grid = on_grid(W)
        self.W = [flat[i * n : (i + 1) * n] for i in range(m)]
        self.V = [V[i * d : (i + 1) * d] for i in range(m)] if V else []
        self.errors, self.middle, self.tilt = [], [], []
        sizes = bounds.sizes + (spec.reach if V else [])
        for i, row in enumerate(self.W):
            weights = W[i * n : (i + 1) * n] + V[i * d : (i + 1) * d]
            self.errors.append(upward(affine_error(weights, sizes, b[i], f"output {spec.outputs[i]!r}")))
            self.middle.append(b[i] + self.dot(row, bounds.center, bounds.center_grid))
            self.tilt.append([self.dot(row, column, bounds.center_slope_grid) for column in bounds.center_slope])

    def dot(self, v: list[int], column: list[int], grid: int) -> Fraction:
        """Return the inner product of a combination of rows with a vector on its own grid."""
        return Fraction(sum(map(mul, v, column)), 1 << (self.grid + grid))

    def worst(self, g: dict[int, Fraction], tops: dict[int, Line]) -> tuple[Fraction, dict[int, Fraction]]:
        """Bound g.y over the box: return (d, c) with g.y <= d + c.x, ignoring rounding errors."""
        box, scale = self.bounds, math.lcm(*(v.denominator for v in g.values()))
        v = [0] * box.width
        for j, value in g.items():
            v = list(map(add, v, map(mul, repeat(int(value * scale)), self.W[j])))
        size = list(map(abs, v))
        constant = sum((value * self.middle[j] for j, value in g.items()), Fraction(0))
        constant += self.dot(size, box.half, box.half_grid) / scale
        q = [self.dot(size, column, box.half_slope_grid) / scale for column in box.half_slope]
        for j, value in g.items():
            q = [total + value * tilt for total, tilt in zip(q, self.tilt[j], strict=True)]
        for i, (share, lift) in tops.items():
            if v[i] > 0:
                (gap, slopes), size_i = box.gaps[i], Fraction(v[i], scale << self.grid)
                constant += size_i * (share * gap + lift)
                q = [total + size_i * share * slope for total, slope in zip(q, slopes, strict=True)]
        if box.hidden is not None:  # so far q combines hidden units
            more, q = box.hidden.back(q)
            constant += more
        slope = dict(enumerate(q))
        for k in range(len(self.spec.inputs) if self.V else 0):
            slope[k] = slope.get(k, Fraction(0)) + sum(value * self.V[j][k] for j, value in g.items())
        return constant, {k: value for k, value in slope.items() if value}

    def clause_bound(
        self, clause: list[StatedLiteral], weights: list[Fraction], rows: list[Halfspace], mu: list[Fraction],
        tops: dict[int, Line], box: Box,
    ) -> Fraction:  # fmt: skip
        """Bound sum_j lambda_j (g_j.y + s_j.x - h_j) over the polytope, rounding errors included (section 7)."""
        g: dict[int, Fraction] = {}
        s: dict[int, Fraction] = {}
        for literal, weight in zip(clause, weights, strict=True):
            for target, form in ((g, literal.y), (s, literal.x)):
                for key, value in form.items():
                    target[key] = target.get(key, Fraction(0)) + weight * value
        constant, slope = self.worst(g, tops)
        constant -= sum(weight * literal.bound for literal, weight in zip(clause, weights, strict=True))
        constant += sum(abs(value) * self.errors[j] for j, value in g.items())
        constant += sum(abs(value) * cast_error(self.spec.sizes[k]) for k, value in s.items())
        for key, value in s.items():
            slope[key] = slope.get(key, Fraction(0)) + value
        return constant + bounded(slope, rows, mu, *box)

    def exclusion_margin(
        self, pairs: Iterable[tuple[int, int]], weights: Sequence[float], tops: dict[int, Line]
    ) -> Fraction:
        """Prove y_h < 0 or y_k < 0 for all pairs with weights (lambda_h, lambda_k); return the least margin.

        With constant bounds and no pass-through, `clause_bound` is evaluated in integers, since there may be many
        pairs.
        """
        constant, unit = not (self.bounds.affine or self.V), Fraction(1, 1 << (self.grid + self.bounds.half_grid))
        reach = [list(map(mul, row, self.bounds.half)) for row in self.W] if constant else []
        (one, *ends), grid = on_grid([unit, *(y + e for y, e in zip(self.middle, self.errors, strict=True))])
        least: list[Fraction] = []
        for (h, k), first, second in zip(pairs, weights[::2], weights[1::2], strict=True):
            require(0 <= first < math.inf and 0 <= second < math.inf and first + second > 0, "exclusions: multipliers")
            (p, a), (q, b) = first.as_integer_ratio(), second.as_integer_ratio()
            p, q = p * (max(a, b) // a), q * (max(a, b) // b)  # denominators are powers of two
            if constant:
                size = sum(map(abs, map(add, map(mul, repeat(p), reach[h]), map(mul, repeat(q), reach[k]))))
                bound = Fraction(size * one + p * ends[h] + q * ends[k], (p + q) << grid)
            else:
                lam = [Fraction(p), Fraction(q)]
                bound = self.clause_bound(exclusion((h, k)), lam, [], [], tops, self.bounds.box) / (p + q)
            require(bound < 0, f"exclusion of {self.spec.outputs[h]!r} and {self.spec.outputs[k]!r} is not proved")
            least = [min([-bound, *least])]
        return min(least, default=Fraction(0))


def hidden_layers(tensors: dict[str, Tensor]) -> int:
    """Count the hidden layers of bounds by a network."""
    count = 0
    while f"bounds.hidden.{count}.bias" in tensors:
        count += 1
    return count


class Relaxed:
    """A head under bounds by a network: one `ExactHead` for every box and slopes that a proof uses."""

    def __init__(
        self, spec: StatedSpecification, tensors: dict[str, Tensor], block: bytes, weights: tuple[list[Fraction], ...]
    ) -> None:
        self.spec, self.tensors, self.block, self.weights = spec, tensors, block, weights
        self.layers, d = [], len(spec.inputs)
        self.width = math.prod(tensors["bounds.lower"].shape)
        for i in range(hidden_layers(tensors)):
            k = math.prod(tensors[f"bounds.hidden.{i}.bias"].shape)
            require(k > 0, "bounds: a hidden layer without units")
            flat = values(tensors, f"bounds.hidden.{i}.weight", "F32", (k, d))
            bias = values(tensors, f"bounds.hidden.{i}.bias", "F32", (k,))
            self.layers.append(([flat[j * d : (j + 1) * d] for j in range(k)], bias))
            d = k
        self.units = sum(len(bias) for _, bias in self.layers)
        self.known: dict[tuple[Any, ...], ExactHead] = {}

    def over(self, box: Box, offset: Any) -> ExactHead:
        """Return the head over a box, with the slopes at an offset of certificate.bin."""
        slopes = read_block(self.block, offset, self.units, "f", "slopes")
        key = (offset, *box[0], *box[1])
        if key not in self.known:
            hidden: Hidden | None = None
            for layer in self.layers:
                hidden = Hidden(layer, box, slopes, hidden)
                slopes = slopes[2 * len(layer[1]) :]
            bounds = ExactBounds(self.spec, self.tensors, "network", hidden)
            self.known[key] = ExactHead(self.spec, bounds, *self.weights)
        return self.known[key]
