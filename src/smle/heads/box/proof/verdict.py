"""Verdicts: what is known about one clause over one cell. No verdict has a truth value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from smle.rules import html_table, text_table

__all__ = [
    "Cut",
    "ExclusionVerdicts",
    "Holds",
    "Multipliers",
    "NotProved",
    "Obligation",
    "ProvedCase",
    "RegionGaps",
    "Tree",
    "UnitCut",
    "Unknown",
    "Verdict",
    "Verdicts",
    "Violated",
]

Array = npt.NDArray[np.float64]
Mu = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class Multipliers:
    """A convex combination of literals, and weights >= 0 for rows of the region.

    * `weights` (literals,): lambda, on the simplex; all zero if `empty`.
    * `rows`: (row number, mu > 0) pairs; numbers as in `Cells.rows`, one-hot rows after them.
    * `empty`: the rows alone prove that the region is empty, so nothing has to hold there.
    * `cases`: the parts of the region that were proved one by one, as a tree of cuts in preorder; the other fields then
      describe the worst part. Empty if the region was proved as a whole.
    """

    weights: Array
    rows: Mu = ()
    empty: bool = False
    cases: Tree = ()


@dataclass(frozen=True)
class Cut:
    """A cut into two boxes, which follow: x[input] <= at, then x[input] >= at."""

    input: int
    at: float


@dataclass(frozen=True)
class UnitCut:
    """A cut into two cases, which follow: l <= u for a unit of the embedding, then l >= u."""

    unit: int


@dataclass(frozen=True, eq=False)
class ProvedCase:
    """One case with its own multipliers. `slopes` (units, 2): lines around the ReLUs of bounds by networks."""

    multipliers: Multipliers
    slopes: npt.NDArray[np.float32] | None


Tree = tuple[Cut | UnitCut | ProvedCase, ...]
"""Cuts in preorder, each followed by its two parts."""


@dataclass(frozen=True, eq=False)
class RegionGaps:
    """How far bounds cross in the region of a head: (unit, share, rows for the least l - u, rows for the largest).

    max(l, u) - u = relu(l - u) <= share (l - u) + lift, where the range of l - u gives lift.
    """

    head: int
    region: int | None
    units: tuple[tuple[int, float, Mu, Mu], ...]


class _NoTruth:
    def __bool__(self) -> bool:
        raise TypeError(f"{type(self).__name__} has no truth value; use isinstance(verdict, Holds).")


@dataclass(frozen=True, eq=False)
class Holds(_NoTruth):
    """Proved with a margin > 0, after rounding, in the units of the clause's left-hand sides."""

    margin: float
    multipliers: Multipliers


@dataclass(frozen=True, eq=False)
class NotProved(_NoTruth):
    """The over-approximation reaches (x, z), where the clause is broken by -margin (margin <= 0).

    The deployed program may still obey.
    """

    x: Array
    z: Array
    margin: float
    multipliers: Multipliers | None = None


@dataclass(frozen=True, eq=False)
class Violated(_NoTruth):
    """The deployed program outputs y at x and breaks the clause by `excess` (exact, rounded to float)."""

    x: Array
    y: Array
    excess: float
    margin: ClassVar[float] = -np.inf


@dataclass(frozen=True, eq=False)
class Unknown(_NoTruth):
    """Neither proved nor refuted, for the given reason."""

    reason: str
    margin: ClassVar[float] = -np.inf


Verdict = Holds | NotProved | Violated | Unknown


@dataclass(frozen=True)
class Obligation:
    """One thing to prove: `clause` of `rule` for `head` over its cell (and over `region`, if not None).

    Clauses are numbered as in `requirement.expanded()`: the exclusions of a rule follow its clauses.
    """

    head: int
    rule: int
    clause: int
    region: int | None


@dataclass(frozen=True, eq=False)
class ExclusionVerdicts(_NoTruth):
    """Verdicts for the exclusions of one rule, as arrays.

    Pair i says `y_h < 0 or y_k < 0` with (h, k) = pairs[i]. It is proved by weights[i] (for h and k, float32, adding up
    to about 1) if margins[i] > 0. Shapes: pairs (p, 2), weights (p, 2), margins (p,). `cases` has the proofs of pairs
    that no weights prove, by position. `unproved` has verdicts with inputs for the worst unproved pairs, by clause.
    """

    head: int
    rule: int
    region: int | None
    pairs: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    margins: Array
    cases: Mapping[int, Tree] = field(default_factory=dict)
    unproved: tuple[tuple[int, Verdict], ...] = ()

    @property
    def proved(self) -> npt.NDArray[np.bool_]:
        """Which pairs are proved."""
        return self.margins > 0


@dataclass(frozen=True, eq=False)
class Verdicts(_NoTruth):
    """All verdicts for one over-approximation: one per obligation, and arrays for exclusions.

    `rules`: their names. `gaps`: how far affine bounds cross, region by region.
    """

    items: tuple[tuple[Obligation, Verdict], ...]
    exclusions: tuple[ExclusionVerdicts, ...] = field(default=())
    rules: tuple[str, ...] = ()
    gaps: tuple[RegionGaps, ...] = ()

    def __repr__(self) -> str:
        """Say how many obligations are proved."""
        proved = sum(isinstance(verdict, Holds) for _, verdict in self.items)
        proved += sum(int(block.proved.sum()) for block in self.exclusions)
        return f"Verdicts({proved} of {len(self)} proved, smallest margin {self.margin:.3g})"

    def __str__(self) -> str:
        return f"{self!r}\n\n{text_table(self._rows())}"

    def _repr_html_(self) -> str:
        return html_table(repr(self), self._rows())

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return, for each rule, what is proved and its smallest margin, or why it is not proved."""
        found: dict[int, list[float]] = {}
        worse: dict[int, str] = {}
        for obligation, verdict in self.items:
            found.setdefault(obligation.rule, []).append(verdict.margin)
            if isinstance(verdict, Violated):
                worse[obligation.rule] = "broken"
            elif isinstance(verdict, Unknown):
                worse.setdefault(obligation.rule, "unknown")
        for block in self.exclusions:
            found.setdefault(block.rule, []).extend(block.margins.tolist())
        rows = [
            (
                self.rules[rule] if self.rules else str(rule),
                f"{sum(m > 0 for m in margins)} of {len(margins)}",
                worse.get(rule, f"{min(margins):.3g}"),
            )
            for rule, margins in sorted(found.items())
        ]
        return [("rule", "proved", "smallest margin"), *rows]

    def __iter__(self) -> Iterator[tuple[Obligation, Verdict]]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items) + sum(len(block.margins) for block in self.exclusions)

    @property
    def hold(self) -> bool:
        """Whether every obligation is proved."""
        return all(isinstance(verdict, Holds) for _, verdict in self.items) and all(
            bool(block.proved.all()) for block in self.exclusions
        )

    @property
    def margin(self) -> float:
        """Smallest margin over all obligations; -inf if one of them is violated or unknown."""
        blocks = [float(block.margins.min(initial=np.inf)) for block in self.exclusions]
        return float(min([verdict.margin for _, verdict in self.items] + blocks, default=np.inf))

    def failures(self) -> tuple[tuple[Obligation, Verdict], ...]:
        """Return the obligations that are not proved, worst first; many exclusions are cut to the worst ones."""
        found = [item for item in self.items if not isinstance(item[1], Holds)]
        for block in self.exclusions:
            found += [(Obligation(block.head, block.rule, clause, block.region), v) for clause, v in block.unproved]
        return tuple(sorted(found, key=lambda item: item[1].margin))
