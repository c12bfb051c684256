"""Searches for a real violation: hard points first, then climbing, by gradient where there is one.

The excess in float64 only guides the search. Whether a rule is broken is decided exactly, at the floats as passed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from smle.regions.cells import regions_of
from smle.rules import CNF, Clause, Literals, NumericInput, Specification, exclusion
from smle.rules.membership import active_rules, broken, meant
from smle.violations.points import (
    border_points,
    corner_points,
    finished,
    region_boxes,
    region_points,
    stepped,
    uniform_points,
)

__all__ = ["Broken", "Subject", "excess_of", "hunt"]

FloatArray = npt.NDArray[np.floating]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]
_CLIMBED = 48  # clauses climbed at once
_KEPT = 6  # points kept per clause
_CHILDREN = 6  # trials per point and round
_PAIRS = 512  # exclusions that guide the search; all of them are judged
_BATCH = 4096


class Subject(Protocol):
    """The program under attack, from encoded inputs (n, d) to outputs (n, m)."""

    dtype: type[np.floating[Any]]

    def ask(self, X: FloatArray) -> tuple[FloatArray, Doubles]:
        """Return the inputs as the rules read them (n, d), and the outputs (n, m)."""
        ...

    def pull(self, X: FloatArray, weights: Doubles) -> Doubles | None:
        """Return the gradients (n, d) of weights . outputs, or None if the subject has none."""
        ...


class Broken(NamedTuple):
    """A pair of floats that breaks a rule, and by how much exactly; None if an output is not finite."""

    x: FloatArray
    y: Doubles
    rule: int
    excess: Fraction | None

    @property
    def strength(self) -> Fraction | float:
        """The excess; infinite if an output is not finite."""
        return math.inf if self.excess is None else self.excess


def hunt(
    subject: Subject, spec: Specification, *, tries: int, rng: np.random.Generator, starts: FloatArray | None = None
) -> tuple[Broken | None, int, tuple[int, ...]]:
    """Look for an input at which the subject breaks a rule, with about `tries` inputs, starting at `starts` (n, d).

    Returns the strongest violation of the first round that has one, how many inputs were tried, and the rules that
    apply to none of them.
    """
    state = _Hunt(subject, spec, rng)
    rounds = state.first(max(1, tries // 2), starts)
    for X in rounds:
        state.ask(X)
    while state.found is None and state.tried < tries and state.best:
        for X in state.climbed():
            state.ask(X)
    return state.found, state.tried, tuple(np.flatnonzero(~state.reached).tolist())


def excess_of(
    requirement: CNF, x: FloatArray, y: Doubles, spec: Specification | None = None
) -> tuple[Fraction | None, tuple[int, ...]]:
    """Return by how much floats (d,), (m,) break a requirement, exactly, and the outputs that matter.

    A clause counts by its literal nearest to holding, a requirement by its worst clause, whose outputs matter. Below 0
    nothing is broken. None if an output that matters is not finite. If the specification has steps, floats count as the
    multiples they stand for.
    """
    point, values = meant(spec, x, y)
    cases: list[tuple[bool, Fraction, tuple[int, ...]]] = []  # whether it is broken, by how much, outputs
    for clause in requirement.clauses:
        used = tuple(sorted({i for literal in clause.literals for i, _ in literal.outputs}))
        if not all(math.isfinite(y[i]) for i in used):
            return None, used
        excess = min(literal.excess(values, point) * literal.scale for literal in clause.literals)
        cases.append((not clause.holds(values, point), excess, used))
    pairs = requirement.exclusions
    if len(pairs):
        both = np.nan_to_num(np.minimum(y[pairs[:, 0]], y[pairs[:, 1]]), nan=-1.0, posinf=np.inf, neginf=-1.0)
        k = int(both.argmax())
        if np.isinf(both[k]):
            return None, tuple(pairs[k].tolist())
        cases.append((bool(both[k] >= 0), Fraction(float(both[k])), tuple(pairs[k].tolist())))
    _, excess, used = max(cases, key=lambda case: case[:2], default=(False, Fraction(-1), ()))
    return excess, used


@dataclass(eq=False)
class _Hunt:
    """The state of a search: the best points of each clause, and the strongest violation."""

    subject: Subject
    spec: Specification
    rng: np.random.Generator
    tried: int = 0
    found: Broken | None = None
    best: dict[int, tuple[FloatArray, Doubles, Doubles]] = field(default_factory=dict)
    reached: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.reached = np.zeros(len(self.spec.rules), dtype=bool)

    @cached_property
    def clauses(self) -> list[tuple[int, Clause]]:
        """What each rule asks, clause by clause, including some exclusions."""
        stated = [(r, clause) for r, rule in enumerate(self.spec.rules) for clause in rule.requirement.clauses]
        for r, rule in enumerate(self.spec.rules):
            pairs = rule.requirement.exclusions
            if len(pairs) > _PAIRS:
                pairs = pairs[self.rng.choice(len(pairs), _PAIRS, replace=False)]
            stated += [(r, exclusion(h, k)) for h, k in pairs.tolist()]
        return stated

    @cached_property
    def literals(self) -> Literals:
        """The literals of these clauses in float64, one after the other."""
        clauses = [clause for _, clause in self.clauses]
        return Literals.of_clauses(clauses, len(self.spec.targets), len(self.spec.columns))

    @cached_property
    def rule(self) -> Numbers:
        """The rule of each clause."""
        return np.array([rule for rule, _ in self.clauses], dtype=np.intp)

    @cached_property
    def ends(self) -> Numbers:
        """Where the literals of each clause begin, and where the last ones end."""
        return np.cumsum([0, *(len(clause.literals) for _, clause in self.clauses)])

    @cached_property
    def boxes(self) -> list[tuple[Doubles, Doubles]]:
        """The box of each region."""
        return region_boxes(self.spec)

    # --- asking

    def ask(self, X: FloatArray) -> None:
        """Ask the subject, judge exactly, and keep the points nearest to breaking a clause."""
        X, Y = self.subject.ask(X)
        self.tried += len(X)
        on = active_rules(self.spec, X)
        self.reached |= on.any(axis=0)
        with np.errstate(invalid="ignore", over="ignore"):
            excess = self._excess(X, Y)
        wrong = broken(self.spec, X, Y, on)
        if wrong.any():
            self._note(X, Y, wrong, excess)
        excess[~on[:, self.rule]] = -np.inf
        excess[np.isnan(excess)] = -np.inf
        for c in np.flatnonzero(np.isfinite(excess).any(axis=0)).tolist():
            rows = np.argsort(-excess[:, c], kind="stable")[:_KEPT]
            rows = rows[np.isfinite(excess[rows, c])]
            fresh = X[rows], Y[rows], excess[rows, c]
            if c in self.best:
                fresh = tuple(np.concatenate(pair) for pair in zip(self.best[c], fresh, strict=True))  # type: ignore[assignment]
                _, first = np.unique(fresh[0], axis=0, return_index=True)
                order = first[np.argsort(-fresh[2][first], kind="stable")][:_KEPT]
                fresh = fresh[0][order], fresh[1][order], fresh[2][order]
            self.best[c] = fresh

    def _excess(self, X: FloatArray, Y: Doubles) -> Doubles:
        """Return the excess of each clause (n, clauses), the smallest of its literals."""
        known = self.literals
        values = Y @ known.g.T + X.astype(np.float64) @ known.s.T - known.h
        return np.asarray(np.minimum.reduceat(values, self.ends[:-1], axis=1))

    def _note(self, X: FloatArray, Y: Doubles, wrong: npt.NDArray[np.bool_], excess: Doubles) -> None:
        """Keep the strongest violation; only the rows of each rule that look worst are evaluated exactly."""
        for r in np.flatnonzero(wrong.any(axis=0)):
            rows = np.flatnonzero(wrong[:, r])
            own = excess[np.ix_(rows, np.flatnonzero(self.rule == r))].max(axis=1, initial=-np.inf)
            for row in rows[np.argsort(-np.where(np.isfinite(own), own, -np.inf), kind="stable")[:8]]:
                much, _ = excess_of(self.spec.rules[r].requirement, X[row], Y[row], self.spec)
                case = Broken(X[row], Y[row], int(r), much)
                # A number is more informative than NaN.
                if self.found is None or (self.found.excess is None, case.strength) > (
                    case.excess is None, self.found.strength
                ):  # fmt: skip
                    self.found = case

    # --- points to begin with

    def first(self, count: int, starts: FloatArray | None) -> Iterator[FloatArray]:
        """Yield starting points: those given, then inside every region, corners, borders, and the whole domain."""
        spec, rng, dtype = self.spec, self.rng, self.subject.dtype
        if starts is not None and len(starts):
            yield from _chunks(finished(spec, starts, dtype, whole=True)[: max(1, count // 2)])
        stated = regions_of(spec)
        parts = len(stated.regions) + len(stated.rows) + 2
        share = max(8, count // parts)
        made = [uniform_points(spec, rng, share, dtype=dtype), corner_points(spec, rng, share, dtype=dtype)]
        regions = rng.permutation(len(stated.regions))[: max(1, count // share)]
        made += [region_points(spec, rng, share, region=int(region), dtype=dtype) for region in regions]
        rows = rng.permutation(len(stated.rows))[: max(1, count // share)]
        made += [border_points(spec, rng, share, row=stated.rows[int(row)], dtype=dtype) for row in rows]
        yield from _chunks(self._finished(np.concatenate(made)))

    def _finished(self, points: FloatArray) -> FloatArray:
        """Put points into the domain, with some values at the stand-ins for missing ones."""
        for column, value in self._stand_ins:
            points[self.rng.random(len(points)) < 0.05, column] = value
        return finished(self.spec, points, self.subject.dtype, whole=True)

    @cached_property
    def _stand_ins(self) -> list[tuple[int, float]]:
        inputs = [(item, place) for item, place in self.spec.input_slices if isinstance(item, NumericInput)]
        return [(place.start, float(item.missing)) for item, place in inputs if item.missing is not None]

    # --- climbing

    def climbed(self) -> Iterator[FloatArray]:
        """Yield trials around the best points: steps along the gradient, and steps of many sizes and kinds."""
        order = sorted(self.best, key=lambda c: -self._promise(c))[:_CLIMBED]
        X = np.concatenate([self.best[c][0] for c in order])
        Y = np.concatenate([self.best[c][1] for c in order])
        clause = np.repeat(order, [len(self.best[c][0]) for c in order])
        low, high = self._homes(X, clause)
        steps = [self._varied(X, low, high) for _ in range(_CHILDREN)]
        slopes = self._slopes(X, Y, clause)
        if slopes is not None:
            for size in (0.3, 0.03, 0.003):
                move = np.sign(slopes) * (high - low) * size * self.rng.random((len(X), 1))
                steps.append(np.clip(X + move, low, high))
            steps.append(np.where(slopes > 0, high, np.where(slopes < 0, low, X)))
        yield from _chunks(self._finished(np.concatenate(steps).astype(self.subject.dtype)))

    def _promise(self, clause: int) -> float:
        """Return how near a clause is to breaking, relative to the spread of its excess."""
        values = self.best[clause][2]
        spread = max(float(values.max() - values.min()), 1e-12 * (1 + abs(float(values.max()))))
        return float(values.max()) / spread + self.rng.random()

    def _homes(self, X: FloatArray, clause: Sequence[int] | npt.NDArray[Any]) -> tuple[Doubles, Doubles]:
        """Return the box of a region of its clause's rule around each point, else the domain: (n, d) each."""
        stated = regions_of(self.spec)
        low, high = (np.tile(ends, (len(X), 1)) for ends in self.spec.ends())
        for region, rules in enumerate(stated.rules):
            chosen = np.isin(self.rule[clause], rules)
            start, end = self.boxes[region]
            inside = chosen & ((start <= X) & (end >= X)).all(axis=1)
            low[inside], high[inside] = start, end
        return low, high

    def _slopes(self, X: FloatArray, Y: Doubles, clause: npt.NDArray[Any]) -> Doubles | None:
        """Return the gradient (n, d) of the literal nearest to holding."""
        known = self.literals
        weights, direct = np.zeros((len(X), known.g.shape[1])), np.zeros((len(X), known.s.shape[1]))
        for i, c in enumerate(clause):
            own = slice(self.ends[c], self.ends[c + 1])
            values = known.g[own] @ np.nan_to_num(Y[i]) + known.s[own] @ X[i].astype(np.float64)
            nearest = own.start + int((values - known.h[own]).argmin())
            weights[i], direct[i] = known.g[nearest], known.s[nearest]
        pulled = self.subject.pull(X, weights)
        return None if pulled is None else np.nan_to_num(pulled) + direct

    def _varied(self, X: FloatArray, low: Doubles, high: Doubles) -> Doubles:
        """Vary some coordinates of points: a step of any size, an end, another point's value, a neighboring float."""
        rng, (n, d) = self.rng, X.shape
        size = 10.0 ** rng.uniform(-7, -0.3, (n, 1))
        near = X + rng.standard_normal((n, d)) * (high - low) * size
        ends = np.where(rng.random((n, d)) < 0.5, low, high)
        other = X[rng.permutation(n)]
        kind = rng.integers(0, 5, (n, 1))
        moved = np.select([kind == 0, kind == 1, kind == 2], [near, ends, other], rng.uniform(low, high))
        moved = np.where(kind == 4, stepped(X, rng, 0.5), moved)
        share = rng.choice([1.0 / d, 0.3, 1.0], size=(n, 1))
        mixed = np.clip(np.where(rng.random((n, d)) < share, moved, X), low, high)
        for group in self.spec.one_hot:  # another category, if the region allows one
            flip = np.flatnonzero(rng.random(n) < 0.2)[:, None]
            mixed[flip, group] = rng.uniform(low[flip, group], high[flip, group])
        return mixed


def _chunks(points: FloatArray) -> Iterator[FloatArray]:
    for i in range(0, len(points), _BATCH):
        yield points[i : i + _BATCH]
