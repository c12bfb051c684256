"""Whole numbers that obey rules over a part of the inputs, by mixed-integer programs. Nothing here is proved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.heads.grid.reduction import Reduction
from smle.solvers import MixedIntegerProgram, Status, solve
from smle_check.heads.candidates import without_zeros
from smle_check.heads.steps import Lattice, whole_form
from smle_check.stated import StatedLiteral

if TYPE_CHECKING:
    from smle.heads.grid.safe_steps import SafeSearch

__all__ = ["Part", "Problem", "WholeRow", "whole_row"]

Array = npt.NDArray[np.float64]
_SECONDS = 20.0


class WholeRow(NamedTuple):
    """A literal over free outputs and inputs in floats: `a.u + b.kx + s.x <= h`, with b and s by input column."""

    a: Array
    b: dict[int, float]
    s: dict[int, float]
    h: float
    size: float


def whole_row(spec: Lattice, reduction: Reduction, literal: StatedLiteral) -> WholeRow:
    """Return a literal in the free outputs, divided by its largest coefficient."""
    literal = without_zeros(literal)
    own = {i: g * spec.output_steps[i].step for i, g in literal.y.items()}
    stepped = spec.in_steps({j: v for j, v in literal.x.items() if spec.input_steps[j] is not None})
    whole = whole_form(own, stepped, "rule")
    a = np.zeros(reduction.B.shape[1])
    b = {j: float(v) for j, v in whole.inputs.items()}
    h = whole.factor * literal.bound
    for i, c in whole.outputs.items():
        a += float(c) * reduction.B[i]
        h -= c * int(reduction.t[i])
        for j in np.flatnonzero(reduction.T[i]).tolist():
            b[j] = b.get(j, 0.0) + float(c) * int(reduction.T[i, j])
    s = {j: float(whole.factor * v) for j, v in literal.x.items() if spec.input_steps[j] is None}
    size = float(max(np.abs(a).max(initial=0.0), 1.0))
    return WholeRow(
        a / size,
        {j: v / size for j, v in b.items() if v},
        {j: v / size for j, v in s.items()},
        (float(h) - 0.5 * literal.strict) / size if not s else float(h) / size,
        size,
    )


class Part(NamedTuple):
    """Ends of inputs, in steps or as numbers: low and high (d,) each."""

    low: Array
    high: Array


class Problem:
    """A mixed-integer program over free outputs u, their slopes, one literal per clause, and distances.

    Answers lie in range for all inputs of a part, and obey the clauses of each rule in the parts where it applies, with
    some room. They move with stepped inputs if `affine`.
    """

    def __init__(
        self,
        search: SafeSearch,
        whole: Part,
        parts_of: Callable[[int], Iterable[Part]],
        *,
        affine: bool = False,
        room: float = 0.0,
    ) -> None:
        self.search = search
        self.f, self.moving = search.reduction.B.shape[1], search.stepped if affine else []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.cost: list[float] = []
        self.whole: list[bool] = []
        self.entries: list[tuple[int, int, float]] = []
        self.sides: list[float] = []
        ranges = [search.spec.output_ranges[i] for i in search.reduction.free]
        for low, high in ranges:
            self.column(low, high, 0.0, whole=True)
        for low, high in ranges:
            for j in self.moving:
                most = np.ceil((high - low) / max(whole.high[j] - whole.low[j], 1.0))
                self.column(-most, most, 1e-6, whole=True)
        if affine:  # offsets may lie outside the range: they are the answer at kx = 0
            for place, (low, high) in enumerate(ranges):
                far = sum(
                    max(abs(self.lower[self.f + place * len(self.moving) + i]), 1.0)
                    * max(abs(whole.low[j]), abs(whole.high[j]))
                    for i, j in enumerate(self.moving)
                )
                self.lower[place], self.upper[place] = low - far, high + far
        self.distances((whole.low + whole.high) / 2)
        for own in search.ranges:
            self.require([own], whole, 0.0)
        for rule, _, literals in search.listed.clauses:
            for part in parts_of(rule):
                self.require([search.rows[k] for k in literals], part, room)

    def column(self, low: float, high: float, cost: float, *, whole: bool) -> int:
        """Add a variable; return its number."""
        self.lower.append(low)
        self.upper.append(high)
        self.cost.append(cost)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, entries: dict[int, float], most: float) -> None:
        """Require a sum to be at most a number."""
        self.entries += [(len(self.sides), k, v) for k, v in entries.items() if v]
        self.sides.append(most)

    def distances(self, center: Array) -> None:
        """Charge for the distance of every output from its typical value, in the middle of the leaf."""
        search = self.search
        moved = search.reduction.T[:, search.stepped] @ np.floor(center[search.stepped]) + search.reduction.t
        for i in range(len(search.typical)):
            far = self.column(0.0, np.inf, search.weight[i] / len(search.typical), whole=False)
            own = self.at(search.reduction.B[i], center)
            gap = float(search.typical[i] - moved[i])
            self.row({**own, far: -1.0}, gap)
            self.row({**{k: -v for k, v in own.items()}, far: -1.0}, -gap)
        self.charged = len(self.entries)  # rows up to here only define the cost

    def at(self, a: Array, x: Array) -> dict[int, float]:
        """Return the entries of a . u at an input."""
        own = {int(p): float(a[p]) for p in np.flatnonzero(a)}
        for p in list(own):
            for i, j in enumerate(self.moving):
                own[self.f + p * len(self.moving) + i] = float(a[p]) * float(np.floor(x[j]))
        return own

    def require(self, rows: list[WholeRow], part: Part, room: float) -> None:
        """Require that one of some literals holds for all inputs of a part."""
        chosen = []
        for row in rows:
            fixed = 0.0
            entries = {int(p): float(row.a[p]) for p in np.flatnonzero(row.a)}
            for j, v in row.s.items():
                fixed += max(v * part.low[j], v * part.high[j])
            for j, v in row.b.items():
                if j not in self.moving:
                    fixed += max(v * part.low[j], v * part.high[j])
            for i, j in enumerate(self.moving):
                own = {self.f + p * len(self.moving) + i: float(row.a[p]) for p in np.flatnonzero(row.a)}
                v = row.b.get(j, 0.0)
                if not own:
                    fixed += max(v * part.low[j], v * part.high[j])
                    continue
                worst = self.column(-np.inf, np.inf, 0.0, whole=False)
                for end in (part.low[j], part.high[j]):
                    self.row({**{k: c * end for k, c in own.items()}, worst: -1.0}, -v * end)
                entries[worst] = 1.0
            spare = min(room, 1.0) if entries and any(row.a) else 0.0
            chosen.append((entries, row.h - fixed - spare))
        if len(chosen) == 1:
            self.row(*chosen[0])
            return
        switches = [self.column(0.0, 1.0, 0.0, whole=True) for _ in chosen]
        self.row(dict.fromkeys(switches, -1.0), -1.0)
        for switch, (entries, most) in zip(switches, chosen, strict=True):
            reach = sum(
                max(v * self.lower[k], v * self.upper[k]) for k, v in entries.items() if np.isfinite(self.upper[k])
            )
            far = max(reach - most, 0.0) + 1.0 + 1e6 * any(not np.isfinite(self.upper[k]) for k in entries)
            self.row({**entries, switch: far}, most + far)

    def solved(self) -> tuple[Array, Array] | None:
        """Return offsets and slopes of the free outputs, or None if there seem to be none."""
        x = self.solution()
        if x is None:
            return None
        base, slopes = np.rint(x[: self.f]), np.zeros((self.f, len(self.search.spec.inputs)))
        if self.moving:
            count = len(self.moving)
            slopes[:, self.moving] = np.rint(x[self.f : self.f + self.f * count]).reshape(self.f, count)
        return base, slopes

    def missed(self) -> float:
        """Return the least by which rules are missed, in steps; offsets may be real."""
        asked = {row for row, *_ in self.entries[: self.charged]}
        slack = self.column(0.0, np.inf, 1.0, whole=False)
        self.entries += [(row, slack, -1.0) for row in range(len(self.sides)) if row not in asked]
        self.cost = [0.0] * slack + [1.0]
        self.whole = [False] * self.f + self.whole[self.f :]
        x = self.solution()
        return np.inf if x is None else float(x[slack])

    def solution(self) -> Array | None:
        """Return all variables, or None if no answer seems to obey."""
        if not self.cost:
            return np.zeros(0)
        rows, columns, values = (np.array(part) for part in zip(*self.entries, strict=True))
        most = np.array(self.sides)
        found = solve(
            MixedIntegerProgram(
                np.array(self.cost),
                sparse.csr_matrix((values, (rows, columns)), shape=(len(most), len(self.cost))),
                np.full(len(most), -np.inf),
                most,
                np.array(self.lower),
                np.array(self.upper),
                integrality=np.array(self.whole),
            ),
            time_limit=_SECONDS,
        )
        return found.x if found.status in (Status.OPTIMAL, Status.LIMIT) else None
