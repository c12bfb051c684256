"""Random rule sets that are consistent by construction: a hidden answer obeys every rule with a gap.

The hidden answer is affine in x, on each part of a tree of cuts: it jumps at cuts of one input, and has an edge at
oblique ones. So a single stored answer is often not enough. Rules hold on a part, or on a region within it: limits and
coupled rows, constant and moving, one-sided and as bands, strict and not, alternatives, outputs in units from 1e-3 to
1e6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.errors import RuleError
from smle.rules import Specification

Array = npt.NDArray[np.float64]
Generator = np.random.Generator


@dataclass(frozen=True, eq=False)
class RuleSet:
    """Rules as text, and the units of the outputs."""

    text: str
    units: Array

    @property
    def spec(self) -> Specification:
        """The rules, compiled."""
        return Specification.from_yaml(self.text)


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of the domain, by conditions, and the hidden answer there: slope (m, d), offset (m,)."""

    conditions: tuple[str, ...]
    slope: Array
    offset: Array


@dataclass(frozen=True, eq=False)
class _Problem:
    rng: Generator
    low: Array
    high: Array
    units: Array
    moves: npt.NDArray[np.bool_]

    def hidden(self, conditions: tuple[str, ...] = ()) -> _Part:
        """Return an answer of its own."""
        rng, (m, d) = self.rng, (len(self.units), len(self.low))
        moving = (rng.random((m, d)) < 0.5) & self.moves[:, None]
        slope = rng.normal(size=(m, d)) * moving * self.units[:, None] / (self.high - self.low)
        return _Part(conditions, slope, rng.normal(size=m) * self.units)

    def cut(self, part: _Part) -> list[_Part]:
        """Cut a part at a value of one input; one half keeps the answer, the other has its own."""
        k, (inside, outside) = int(self.rng.integers(len(self.low))), self.sides()
        at = _n(_short(self.rng.uniform(self.low[k], self.high[k])))
        kept = _Part((*part.conditions, f"x{k} {inside} {at}"), part.slope, part.offset)
        return [kept, self.hidden((*part.conditions, f"x{k} {outside} {at}"))]

    def bent(self, part: _Part) -> list[_Part]:
        """Cut a part at an oblique border, where the answers of both halves meet: floats do not tell them apart."""
        form, ratio, at = self.oblique()
        inside, outside = self.sides()
        bend = self.rng.normal(size=len(self.units)) * self.units * self.moves
        bend = bend / (np.abs(ratio) @ (self.high - self.low))
        return [
            _Part((*part.conditions, f"{form} {inside} {_n(at)}"), part.slope, part.offset),
            _Part(
                (*part.conditions, f"{form} {outside} {_n(at)}"),
                part.slope + bend[:, None] * ratio,
                part.offset - bend * at,
            ),
        ]

    def sides(self) -> tuple[str, str]:
        """Return comparisons of which exactly one holds."""
        return ("<", ">=") if self.rng.random() < 0.5 else ("<=", ">")

    def oblique(self) -> tuple[str, Array, float]:
        """Return a form over two inputs, its coefficients, and a value that it takes in the domain."""
        k, j = (int(v) for v in self.rng.choice(len(self.low), 2, replace=False))
        width = self.high - self.low
        ratio = np.zeros(len(width))
        ratio[k], ratio[j] = 1.0, _short(width[k] / width[j], 3) * (1 if self.rng.random() < 0.7 else -1)
        middle, half = ratio @ (self.low + self.high) / 2, np.abs(ratio) @ width / 2
        at = _short(float(middle + half * self.rng.uniform(-0.7, 0.7)))
        sign = "+" if ratio[j] > 0 else "-"
        return f"x{k} {sign} {_n(abs(ratio[j]))} * x{j}", ratio, at

    def condition(self) -> list[str]:
        """Return conditions of a rule, none in a third of the cases."""
        rng, parts = self.rng, []
        for _ in range(int(rng.choice(3, p=(0.35, 0.4, 0.25)))):
            operator = str(rng.choice(["<", "<=", "<=", ">", ">=", ">="]))
            if len(self.low) > 1 and rng.random() < 0.3:
                form, _, at = self.oblique()
                parts.append(f"{form} {operator} {_n(at)}")
            else:
                k = int(rng.integers(len(self.low)))
                parts.append(f"x{k} {operator} {_n(_short(rng.uniform(self.low[k], self.high[k])))}")
        return parts

    def requirement(self, part: _Part, *, coupled: bool) -> str:
        """Return what the hidden answer of a part satisfies with a gap of at least a twentieth of a unit."""
        rng, m = self.rng, len(self.units)
        several = coupled and rng.random() < 0.75
        own = [int(i) for i in rng.choice(m, min(m, int(rng.integers(2, 4))) if several else 1, replace=False)]
        upper = bool(rng.random() < 0.5)
        first = self.inequality(part, own, upper=upper)
        if coupled and rng.random() < 0.3:
            others = [self.inequality(part, [int(rng.integers(m))], upper=bool(rng.random() < 0.5), broken=True)]
            if rng.random() < 0.3:
                pair = [int(i) for i in rng.choice(m, min(m, 2), replace=False)]
                others.append(self.inequality(part, pair, upper=upper, broken=bool(rng.random() < 0.5)))
            return " or ".join([first, *others])
        if rng.random() < 0.5:  # a band
            return f"{first} and {self.inequality(part, own, upper=not upper)}"
        return first

    def inequality(self, part: _Part, own: list[int], *, upper: bool, broken: bool = False) -> str:
        """Return a row over some outputs that the hidden answer satisfies, or breaks."""
        rng = self.rng
        signs = np.where(rng.random(len(own)) < 0.5, -1.0, 1.0) if len(own) > 1 else np.ones(1)
        unit = self.units[own[0]]
        weights = np.array([_short(s * unit / self.units[i], 3) for s, i in zip(signs, own, strict=True)])
        slope, offset = weights @ part.slope[own], float(weights @ part.offset[own])
        gap = rng.uniform(0.05, rng.choice([0.1, 2.0])) * unit * (1 if upper != broken else -1)
        left = " ".join(f"{'-' if w < 0 else '+'} {_n(abs(w))} * y{i}" for w, i in zip(weights, own, strict=True))
        operator = ("<" if upper else ">") + ("" if rng.random() < 0.2 else "=")
        if np.any(slope) and rng.random() < 0.7:
            stated = np.array([_short(v, 9) for v in slope])
            drift = float(np.abs(stated - slope) @ np.maximum(np.abs(self.low), np.abs(self.high)))
            right = "".join(f" {'-' if v < 0 else '+'} {_n(abs(v))} * x{k}" for k, v in enumerate(stated) if v)
            return f"0 {left} {operator} {_n(offset + gap + np.sign(gap) * drift)}{right}"
        ends = np.sort(np.stack([slope * self.low, slope * self.high]), axis=0).sum(axis=1)
        return f"0 {left} {operator} {_n(offset + (ends[1] if gap > 0 else ends[0]) + gap)}"


def draw(seed: int) -> RuleSet:
    """Draw one rule set: 2 to 12 rules, 1 to 4 outputs, 1 to 5 inputs."""
    rng = np.random.default_rng(seed)
    d, m, count = int(rng.integers(1, 6)), int(rng.choice(4, p=(0.1, 0.3, 0.3, 0.3))) + 1, int(rng.integers(2, 13))
    width = 10.0 ** rng.uniform(-2, 4, d)
    low = np.where(rng.random(d) < 0.5, 0.0, -width * rng.uniform(0, 1, d))
    low, high = (np.array([_short(v) for v in ends]) for ends in (low, low + width))
    problem = _Problem(rng, low, high, 10.0 ** rng.uniform(-3, 6, m), rng.random(m) < 0.7)
    parts = [problem.hidden()]
    for _ in range(int(rng.choice(4, p=(0.4, 0.3, 0.2, 0.1)))):
        parts += problem.cut(parts.pop(int(rng.integers(len(parts)))))
    if d > 1 and rng.random() < 0.3:
        parts = [half for part in parts for half in (problem.bent(part) if rng.random() < 0.7 else [part])]
    coupled = m > 1 and rng.random() < 0.9
    lines = [f"inputs: {{{', '.join(f'x{k}: [{_n(low[k])}, {_n(high[k])}]' for k in range(d))}}}"]
    lines += [f"outputs: [{', '.join(f'y{i}' for i in range(m))}]", "rules:"]
    for r in range(count):
        part = parts[int(rng.integers(len(parts)))]
        when = " and ".join([*part.conditions, *problem.condition()])
        then = problem.requirement(part, coupled=coupled)
        lines.append(f"  - {{name: r{r}, {f'when: {when}, ' if when else ''}then: {then}}}")
    return RuleSet("\n".join(lines) + "\n", problem.units)


def alternatives(inputs: str, hidden: Array, count: tuple[int, int], rng: Generator) -> Specification:
    """Draw rules of two or three alternatives over one to three outputs; a hidden answer obeys the first of each.

    `count`: how many rules at least, and below which number.
    """
    m = len(hidden)
    outputs = ", ".join(f"y{i}" for i in range(m))
    while True:
        lines = []
        for r in range(int(rng.integers(*count))):
            literals = []
            for i in range(int(rng.integers(2, 4))):
                used = rng.choice(m, int(rng.integers(1, 4)), replace=False)
                w = rng.normal(0, 1, len(used))
                room = rng.exponential(0.5) + 0.05 if i == 0 else rng.normal()
                left = " + ".join(f"{v:.6g} * y{c}" for v, c in zip(w, used, strict=True))
                literals.append(f"{left} <= {w @ hidden[used] + room:.6g}")
            lines.append(f"  - {{name: r{r}, then: {' or '.join(literals)}}}\n")
        try:
            return Specification.from_yaml(f"{inputs}outputs: [{outputs}]\nrules:\n{''.join(lines)}")
        except RuleError:  # an alternative that is always true
            continue


def _short(value: float, digits: int = 4) -> float:
    """Round to a few digits, so that texts are as people write them."""
    return float(f"{value:.{digits}g}")


def _n(value: float) -> str:
    return f"{value:.12g}"
