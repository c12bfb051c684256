"""Random rule sets with steps and equalities, hard points for them, and a judge that knows nothing of the checker.

Rule sets are not built around a known answer: some contradict themselves, and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.rules import Literal, Row, Specification

__all__ = ["FAMILIES", "GridJudge", "draw_grid", "hard_answers", "hard_inputs"]

Array = npt.NDArray[Any]
Generator = np.random.Generator
_STEPS = ("1", "5", "100", "0.25", "0.5", "0.1", "0.01", "0.05", "0.001", "3")


# --- rule sets


def _inputs(rng: Generator, *, demand: int = 0) -> list[str]:
    lines = ["  t: [-10, 10]", "  income: [0, 5000]", "  site: {categories: [a, b, c]}"]
    lines.append("  weight: {range: [0, 40], step: 0.1}")
    high = demand or int(rng.integers(5, 60))
    return [*lines, f"  demand: {{range: [0, {high}], integer: true}}"]


def _condition(rng: Generator) -> str:
    """Return a `when`, or none."""
    return str(
        rng.choice(
            [
                "",
                "t >= 2",
                "t < -1",
                "demand >= 7",
                "site == a",
                "weight > 12.3",
                "t + 0.3 * weight <= 4",
                "demand - weight >= 1",
                "income > 800 and demand <= 20",
                "0.7 * t + 0.001 * income >= 1",
            ]
        )
    )


def _rule(name: str, then: str, when: str = "") -> str:
    condition = f"when: '{when}', " if when else ""
    return f"  - {{name: {name}, {condition}then: '{then}'}}"


def steps(rng: Generator) -> str:
    """Single outputs in steps, with constant and moving limits, some under conditions."""
    m = int(rng.integers(1, 4))
    outputs, rules = [], []
    for i in range(m):
        step = str(rng.choice(_STEPS))
        high = int(rng.integers(20, 120)) * float(step)
        outputs.append(f"  y{i}: {{step: {step}}}")
        rules.append(_rule(f"range{i}", f"0 <= y{i} <= {high:.6g}"))
        for k in range(int(rng.integers(1, 4))):
            slope = float(f"{rng.uniform(0.05, 0.9) * high:.3g}")
            limit = str(
                rng.choice(
                    [
                        f"y{i} <= {slope:g} + 0.01 * income",
                        f"y{i} >= {slope / 8:g} * weight / 40",
                        f"y{i} <= {slope:g} + {high / 100:g} * demand - {high / 200:g} * t",
                        f"y{i} < {slope:g}",
                        f"y{i} >= {slope / 20:g} * (t + 10)",
                        f"y{i} > {slope / 9:g}",
                    ]
                )
            )
            rules.append(_rule(f"limit{i}{k}", limit, _condition(rng)))
    return _text(rng, outputs, rules)


def demand(rng: Generator) -> str:
    """Whole pieces that add up to a stepped input, with limits of parts."""
    m = int(rng.integers(2, 7))
    high = int(rng.integers(8, 60))
    caps = rng.integers(high // m + 1, high + 2, m)
    outputs = [f"  w{i}: {{integer: true}}" for i in range(m)]
    total = " + ".join(f"w{i}" for i in range(m))
    rules = [_rule("parts", f"{total} == demand")]
    rules += [_rule(f"cap{i}", f"0 <= w{i} <= {caps[i]}") for i in range(m)]
    if rng.random() < 0.4:
        rules.append(_rule("least", f"w0 >= {max(0, high // (2 * m) - 2)}", "demand >= " + str(high // 2)))
    if rng.random() < 0.3:
        rules.append(_rule("order", "w0 >= w1", _condition(rng)))
    if rng.random() < 0.3:
        rules.append(_rule("pair", f"w0 + w1 <= {high - m}", "t >= 0" if rng.random() < 0.5 else ""))
    return _text(rng, outputs, rules, demand=high)


def shares(rng: Generator) -> str:
    """Shares of 1 on a chosen grid, with sectors and limits."""
    m = int(rng.choice([2, 3, 5, 8, 20, 60]))
    outputs = [f"  s{i}: {{}}" for i in range(m)]
    rules = [_rule("one", " + ".join(f"s{i}" for i in range(m)) + " == 1")]
    cap = round(float(rng.uniform(1.2 / m, min(6 / m, 1.0))), 3)
    rules += [_rule(f"cap{i}", f"0 <= s{i} <= {cap if i % 3 else min(1.0, cap * 1.5):g}") for i in range(m)]
    if m >= 5:
        half = m // 2
        first = " + ".join(f"s{i}" for i in range(half))
        rules.append(_rule("sector", f"{first} <= {min(0.9, half * cap):g}", _condition(rng)))
    if rng.random() < 0.4:
        rules.append(_rule("moving", f"s0 <= {cap / 2:g} + 0.00002 * income"))
    return _text(rng, outputs, rules)


def hierarchy(rng: Generator) -> str:
    """A tree of sums: a total, nodes and leaves, with limits on all levels."""
    nodes, width = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    step = str(rng.choice(["1", "0.01", "0.5", ""]))
    own = f"step: {step}, " if step else ""
    outputs = [f"  total: {{{own}range: [0, 900]}}"]
    rules = [_rule("total", "total == " + " + ".join(f"n{a}" for a in range(nodes)))]
    for a in range(nodes):
        outputs.append(f"  n{a}: {{{own}range: [0, 300]}}")
        rules.append(_rule(f"node{a}", f"n{a} == " + " + ".join(f"l{a}{b}" for b in range(width))))
        for b in range(width):
            outputs.append(f"  l{a}{b}: {{{own}range: [0, 90]}}")
            rules.append(_rule(f"leaf{a}{b}", f"l{a}{b} >= 0"))
    if rng.random() < 0.6:
        rules.append(_rule("capacity", f"total <= {int(rng.integers(100, 300))}", _condition(rng)))
    if rng.random() < 0.5:
        rules.append(_rule("node cap", "n0 <= 40 + demand"))
    return _text(rng, outputs, rules)


def invoice(rng: Generator) -> str:
    """Net, tax and total in cents."""
    rate = rng.choice(["0.19", "0.07", "0.2", "0.055"])
    outputs = ["  net: {step: 0.01}", "  vat: {step: 0.01}", "  total: {step: 0.01}"]
    rules = [
        _rule("range", f"0 <= net <= {int(rng.integers(100, 90000))}"),
        _rule("tax", f"abs(vat - {rate} * net) <= {rng.choice(['0.005', '0.01', '0.02'])}"),
        _rule("total", "total == net + vat"),
    ]
    if rng.random() < 0.5:
        rules.append(_rule("most", "total <= 50 + 10 * demand", _condition(rng)))
    return _text(rng, outputs, rules)


def coupled(rng: Generator) -> str:
    """Inequalities between outputs of several steps."""
    m = int(rng.integers(2, 5))
    chosen = [str(rng.choice(("1", "0.5", "0.25", "0.1", "2"))) for _ in range(m)]
    outputs = [f"  y{i}: {{step: {step}}}" for i, step in enumerate(chosen)]
    rules = [_rule(f"range{i}", f"{-int(rng.integers(0, 6))} <= y{i} <= {int(rng.integers(6, 14))}") for i in range(m)]
    for k in range(int(rng.integers(1, 4))):
        weights = [int(v) for v in rng.integers(-3, 4, m)]
        terms = " + ".join(f"{w} * y{i}" for i, w in enumerate(weights) if w) or "y0"
        moving = str(rng.choice(["", "", " + 0.5 * t", " - 0.1 * weight", " + 0.002 * income", " - demand / 5"]))
        rules.append(
            _rule(f"row{k}", f"{terms}{moving} {rng.choice(['<=', '<'])} {rng.integers(1, 15)}", _condition(rng))
        )
    return _text(rng, outputs, rules)


def alternatives(rng: Generator) -> str:
    """Coupled rules with alternatives."""
    text = coupled(rng)
    first, second = rng.integers(1, 5, 2)
    lines = [
        _rule("either", f"y0 <= {first} or y1 >= {second}"),
        _rule("jump", f"y0 + y1 <= {first} or y0 - y1 >= {second} or y1 >= 5", _condition(rng)),
    ]
    return text + "\n".join(lines[: int(rng.integers(1, 3))]) + "\n"


def large(rng: Generator) -> str:
    """Hundreds of shares, with a few sectors."""
    m = int(rng.choice([100, 250, 625]))
    outputs = [f"  s{i}: {{}}" for i in range(m)]
    rules = [_rule("one", " + ".join(f"s{i}" for i in range(m)) + " == 1"), _rule("least", _all(m, "s{i} >= 0"))]
    rules.append(_rule("sector", " + ".join(f"s{i}" for i in range(m // 5)) + " <= 0.4"))
    return _text(rng, outputs, rules)


def _all(m: int, text: str) -> str:
    return " and ".join(text.format(i=i) for i in range(m))


def _text(rng: Generator, outputs: list[str], rules: list[str], *, demand: int = 0) -> str:
    return "\n".join(["inputs:", *_inputs(rng, demand=demand), "outputs:", *outputs, "rules:", *rules]) + "\n"


FAMILIES: dict[str, Callable[[Generator], str]] = {
    "steps": steps,
    "demand": demand,
    "shares": shares,
    "hierarchy": hierarchy,
    "invoice": invoice,
    "coupled": coupled,
    "alternatives": alternatives,
    "large": large,
}


def draw_grid(rng: Generator, family: str | None = None) -> tuple[str, str]:
    """Return the family and the text of a random rule set."""
    name = family or str(rng.choice(list(FAMILIES)[:-1]))
    return name, FAMILIES[name](rng)


# --- points


def hard_inputs(rng: Generator, spec: Specification, n: int, dtype: Any) -> Array:
    """Return inputs of the domain (n, d): corners, borders of conditions and a few floats around them, tiny numbers."""
    grid = spec.grid
    assert grid is not None
    columns = []
    for j, step in enumerate(grid.input_steps):
        low, high = spec.lower[j], spec.upper[j]
        if step is not None:
            first, last = math.ceil(low / step), math.floor(high / step)
            k = rng.integers(first, last + 1, n)
            k = np.where(rng.random(n) < 0.15, rng.choice([first, last], n), k)
            columns.append(_nearest_multiples(k, step, dtype))
            continue
        x = rng.uniform(float(low), float(high), n)
        x = np.where(rng.random(n) < 0.2, np.round(x, int(rng.integers(0, 3))), x)
        x = np.where(rng.random(n) < 0.1, rng.choice([float(low), float(high), 0.0, 1e-40, -1e-40, 2.0**-99], n), x)
        x = x.astype(dtype)
        near = rng.random(n) < 0.15
        x[near] = np.nextafter(x[near], x[near].dtype.type(rng.choice([-np.inf, np.inf])))
        columns.append(np.clip(x, x.dtype.type(float(low)), x.dtype.type(float(high))))
    X = np.stack(columns, axis=1).astype(dtype)
    for group in spec.one_hot:
        X[:, list(group)] = np.eye(len(group))[rng.integers(0, len(group), n)]
    return X


def _nearest_multiples(k: Array, step: Fraction, dtype: Any) -> Array:
    """Return the nearest numbers of a format: one division of whole numbers in float64, then a cast."""
    return (k * float(step.numerator) / float(step.denominator)).astype(dtype)


def hard_answers(rng: Generator, spec: Specification, n: int) -> Array:
    """Return answers of a model (n, m): near and far from what is allowed, on steps and between, NaN and infinite."""
    grid = spec.grid
    assert grid is not None
    low, high, step = (np.array([float(v) for v in side]) for side in (grid.lower, grid.upper, grid.steps))
    span = np.maximum(high - low, step)
    y = rng.uniform(low - 0.2 * span, high + 0.2 * span, (n, len(low)))
    total = rng.random((n, 1))
    y = np.where(total < 0.3, np.rint(y / step) * step, y)
    y = np.where((total > 0.3) & (total < 0.45), (np.floor(y / step) + 0.5) * step, y)
    if grid.equalities:  # nearly balanced ones
        share = np.abs(rng.dirichlet(np.ones(len(low)), n)) * (high.max() - low.min())
        y = np.where((total > 0.5) & (total < 0.75), share, y)
    odd = rng.choice([np.nan, np.inf, -np.inf, 1e30, -3e38, 1e-42, -0.0], (n, len(low)))
    return np.where(rng.random((n, len(low))) < 0.02, odd, y).astype(np.float32)


# --- the judge


@dataclass(frozen=True, eq=False)
class GridJudge:
    """Whether served floats stand for whole numbers of steps in range that obey every rule. In whole numbers.

    Where real inputs leave it open in floats, and wherever `exact` is asked for, in Fractions.
    """

    spec: Specification

    def wrong(self, X: Array, y: Array, *, exact: bool = False) -> Array:
        """Return the rows that are wrong. Shapes X (n, d), y (n, m) in float32."""
        spec, grid = self.spec, self.spec.grid
        assert grid is not None
        n = len(X)
        bad = np.zeros(n, dtype=bool)
        k = np.zeros((n, len(grid.steps)), dtype=object)
        for i, step in enumerate(grid.steps):
            with np.errstate(invalid="ignore"):
                own = np.rint(y[:, i].astype(np.float64) / float(step))
            off = ~(np.abs(own) < 2**53)
            bad |= off
            whole = np.where(off, 0, own).astype(np.int64)
            value = (whole * float(step.numerator) / float(step.denominator)).astype(np.float32)
            bad |= ~off & (value != y[:, i])
            bad |= (whole < math.ceil(grid.lower[i] / step)) | (whole > math.floor(grid.upper[i] / step))
            k[:, i] = whole.astype(object)
        kx = np.zeros(X.shape, dtype=object)
        read = X.astype(np.float64)
        for j, own_step in enumerate(grid.input_steps):
            if own_step is not None:
                kx[:, j] = np.rint(read[:, j] / float(own_step)).astype(np.int64).astype(object)
            else:
                read[:, j] = np.where(np.abs(read[:, j]) < 2.0**-100, 0.0, read[:, j])
        for rule in spec.rules:
            on = np.zeros(n, dtype=bool)
            for region in rule.regions:
                inside = np.ones(n, dtype=bool)
                for row in region.rows:
                    inside &= self._row(row, kx, read, X.dtype, exact)
                on |= inside
            rows = np.flatnonzero(on & ~bad)
            for clause in rule.requirement.clauses:
                met = np.zeros(len(rows), dtype=bool)
                for literal in clause.literals:
                    met |= self._literal(literal, k[rows], kx[rows], read[rows], exact)
                bad[rows[~met]] = True
        return np.flatnonzero(bad)

    def _row(self, row: Row, kx: Array, read: Array, dtype: Any, exact: bool) -> Array:
        grid = self.spec.grid
        assert grid is not None
        ((j, sign), *more) = row.coefficients
        if not more and grid.input_steps[j] is None:
            x, c = read[:, j] * float(sign), float(dtype.type(float(row.bound * sign))) * float(sign)
            return np.asarray(x < c if row.strict else x <= c)
        return self._at_most((), row.coefficients, row.bound, row.strict, kx[:, :0], kx, read, exact)

    def _literal(self, literal: Literal, k: Array, kx: Array, read: Array, exact: bool) -> Array:
        return self._at_most(literal.outputs, literal.inputs, literal.bound, literal.strict, k, kx, read, exact)

    def _at_most(
        self, outputs: Any, inputs: Any, bound: Fraction, strict: bool, k: Array, kx: Array, read: Array, exact: bool
    ) -> Array:
        grid = self.spec.grid
        assert grid is not None
        total: Any = np.zeros(len(kx), dtype=object)
        scale = math.lcm(*((g * grid.steps[i]).denominator for i, g in outputs), bound.denominator)
        steps = grid.input_steps
        scale = math.lcm(scale, *((v * steps[j]).denominator for j, v in inputs if steps[j] is not None))
        for i, g in outputs:
            total = total + k[:, i] * int(g * grid.steps[i] * scale)
        for j, v in inputs:
            if steps[j] is not None:
                total = total + kx[:, j] * int(v * steps[j] * scale)
        left = int(bound * scale) - total  # whole; real inputs may take at most so much
        real = [(j, v * scale) for j, v in inputs if steps[j] is None]
        if not real:
            return np.asarray(left > 0 if strict else left >= 0, dtype=bool)
        moved = sum((read[:, j] * float(v) for j, v in real), np.zeros(len(kx)))
        size = sum((np.abs(read[:, j] * float(v)) for j, v in real), np.zeros(len(kx)))
        gap = left.astype(np.float64) - moved
        sure = np.abs(gap) > 1e-9 * (size + np.abs(left.astype(np.float64)) + 1e-300)
        result = gap > 0
        for n in range(len(kx)) if exact else np.flatnonzero(~sure).tolist():
            value = sum((v * Fraction(float(read[n, j])) for j, v in real), Fraction(0))
            result[n] = value < left[n] if strict else value <= left[n]
        return np.asarray(result)
