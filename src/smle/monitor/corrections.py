"""What a head of rules does to a model's answers: keep, move or replace them, and which alternatives they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.rules import Choice, Clause, Label, Specification
from smle.rules.membership import active_rules, broken, clause_holds
from smle_check.heads import sums

__all__ = [
    "MUCH", "WAYS", "WIDE", "Corrections", "Moves", "Parts", "alternatives_of", "bound_by", "paired", "summed",
    "ways_of",
]  # fmt: skip

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
WAYS = ("kept", "moved", "near", "replaced", "safe")
"""How a row is served:

* kept: the model's own answer, with scores and logits unchanged; with steps, the nearest whole numbers of them;
* moved: the nearest allowed answer;
* near: a nearby one, because the search for the nearest was cut short;
* replaced: a default took the place of an answer that is NaN, infinite or beyond 1e30;
* safe: the stored safe answer.
"""
WIDE = float(sums.WIDE)
"""A head replaces answers beyond this."""
MUCH = 0.001
"""The share of rows above which serving the stored safe answer is a concern."""
_CLAUSES, _LITERALS = 50, 12  # clauses with alternatives to count, and alternatives of each


class Parts(NamedTuple):
    """A clause with alternatives: `on` counts the rows to which its rule applies, `served` those that meet each.

    A row may meet several alternatives. `own` counts the model's own answers by alternative, `outside` those that meet
    none; answers that are replaced do not count.
    """

    rule: str
    clause: int
    on: int
    served: tuple[int, ...]
    own: tuple[int, ...]
    outside: int


class Moves(NamedTuple):
    """Rows in which an output changed; for numbers also the sum and the largest of the distances."""

    rows: int
    total: float
    largest: float


@dataclass(frozen=True)
class Corrections:
    """Counts over rows; counts of chunks can be added.

    * `ways`: rows by how they were served, each counted once. An answer is kept only if all its outputs are; for labels
      and choices, the logits and scores, since probabilities follow them.
    * `broken`: rows whose own answer breaks each rule; answers that are replaced are not judged.
    * `moves`: by output; `parts`: of clauses with alternatives.
    * `entries`: rows whose own answer breaks a rule, by the table entry it breaks, such as `cap[art017]`.
    """

    rows: int
    ways: dict[str, int]
    broken: dict[str, int]
    moves: dict[str, Moves]
    parts: tuple[Parts, ...]
    entries: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, spec: Specification, X: Array, answers: Array, served: Array, by: Array, on: Mask | None = None
    ) -> Corrections:
        """Count over rows. Shapes: X (n, d), answers and served (n, m), by (n,): see `smle.heads.contract.Outcome`.

        `on` (n, rules) marks the rules that apply at X clamped to the domain, if known.
        """
        X = np.clip(X, *spec.ends(X.dtype))
        on = active_rules(spec, X) if on is None else on
        usable = _usable(answers)
        ways = np.bincount(ways_of(spec, answers, served, by), minlength=len(WAYS))
        own, final = (values.astype(np.float64) for values in (answers[usable], served))
        wrong = broken(spec, X[usable], own, on[usable]).sum(axis=0)
        changed = _changed(spec, answers, served)
        moves = {}
        for j, (output, place) in enumerate(spec.output_slices):
            rows = np.flatnonzero(changed[:, j] & usable)
            numeric = not isinstance(output, Label | Choice)
            far = np.abs(final[rows, place.start] - answers[rows, place.start]) if numeric else np.zeros(0)
            moves[output.name] = Moves(len(rows), float(far.sum()), float(far.max(initial=0.0)))
        return cls(
            len(X),
            dict(zip(WAYS, ways.tolist(), strict=True)),
            {rule.name: int(count) for rule, count in zip(spec.rules, wrong, strict=True)},
            moves,
            tuple(_parts(spec, X, on, final, own, usable)),
            dict(Counter(name for row in _broken_entries(spec, X[usable], own, on[usable]) for name in set(row))),
        )

    @property
    def safe_share(self) -> float:
        """The share of rows that the stored safe answer served."""
        return self.ways["safe"] / self.rows if self.rows else 0.0

    @property
    def concern(self) -> str:
        """A warning if the stored safe answer served too often, else ""."""
        if self.safe_share <= MUCH:
            return ""
        return (
            f"The stored safe answer served {self.ways['safe']:,} of {self.rows:,} rows ({self.safe_share:.2%}), more "
            "than a tenth of a percent. It obeys the rules, but says little about the row. Relax rules that together "
            "leave little room, or narrow the ranges of the inputs to what occurs."
        )

    def __add__(self, other: Corrections) -> Corrections:
        moves, parts = {}, []
        for name, one in self.moves.items():
            two = other.moves[name]
            moves[name] = Moves(one.rows + two.rows, one.total + two.total, max(one.largest, two.largest))
        for a, b in zip(self.parts, other.parts, strict=True):
            served, own = paired(a.served, b.served), paired(a.own, b.own)
            parts.append(a._replace(on=a.on + b.on, served=served, own=own, outside=a.outside + b.outside))
        return Corrections(
            self.rows + other.rows,
            summed(self.ways, other.ways),
            summed(self.broken, other.broken),
            moves,
            tuple(parts),
            dict(Counter(self.entries) + Counter(other.entries)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as model.json holds it."""
        return {
            "rows": self.rows,
            "ways": self.ways,
            "broken": self.broken,
            "moves": {name: moves._asdict() for name, moves in self.moves.items()},
            "parts": [{**part._asdict(), "served": list(part.served), "own": list(part.own)} for part in self.parts],
            **({"entries": self.entries} if self.entries else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Corrections:
        """Read the result of `to_json`; malformed data raise KeyError, TypeError, ValueError or AttributeError."""
        return cls(
            int(data["rows"]),
            {way: int(data["ways"][way]) for way in WAYS},
            {str(name): int(count) for name, count in data["broken"].items()},
            {
                str(name): Moves(int(v["rows"]), float(v["total"]), float(v["largest"]))
                for name, v in data["moves"].items()
            },
            tuple(
                Parts(
                    str(v["rule"]),
                    int(v["clause"]),
                    int(v["on"]),
                    _counts(v["served"]),
                    _counts(v["own"]),
                    int(v["outside"]),
                )
                for v in data["parts"]
            ),
            {str(name): int(count) for name, count in data.get("entries", {}).items()},
        )


def ways_of(spec: Specification, answers: Array, served: Array, by: Array) -> npt.NDArray[np.int8]:
    """Return how each row was served, as an index into `WAYS`: (n,)."""
    ways = np.zeros(len(answers), dtype=np.int8)
    ways[_changed(spec, answers, served).any(axis=1)] = 1
    ways[by == 3] = 2
    ways[~_usable(answers)] = 3
    ways[by == 2] = 4
    return ways


def bound_by(spec: Specification, X: Array, answers: Array, on: Mask) -> list[tuple[str, ...]]:
    """Return the names of rules and table entries (`cap[art017]`) that the model's own answer to each row breaks.

    Answers that are replaced are not judged, so they break nothing. `on` (n, rules) marks the rules that apply at X
    clamped to the domain.
    """
    X, usable = np.clip(X, *spec.ends(X.dtype)), np.flatnonzero(_usable(answers))
    own = answers[usable].astype(np.float64)
    found: list[tuple[str, ...]] = [()] * len(answers)
    named = [any(entries) for entries in spec.entries]
    wrong = broken(spec, X[usable], own, on[usable])
    entries = _broken_entries(spec, X[usable], own, on[usable])
    for row, breaks, looked_up in zip(usable.tolist(), wrong, entries, strict=True):
        rules = [spec.rules[r].name for r in np.flatnonzero(breaks) if not named[r]]
        found[row] = tuple(dict.fromkeys((*rules, *looked_up)))
    return found


def _broken_entries(spec: Specification, X: Array, Y: Array, active: Mask) -> list[list[str]]:
    """Return, for every row, the table entries whose clauses it breaks."""
    found: list[list[str]] = [[] for _ in range(len(X))]
    for r, (rule, looked_up) in enumerate(zip(spec.rules, spec.entries, strict=True)):
        for clause, entries in zip(rule.requirement.clauses, looked_up, strict=True):
            if not entries:
                continue
            on = np.flatnonzero(active[:, r])
            rows = on[~clause_holds(clause, X[on], Y[on])]
            for entry in entries:
                places = X[rows, entry.columns].argmax(axis=1)
                for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                    found[row].append(entry.names[place])
    return found


def alternatives_of(spec: Specification) -> list[tuple[int, int, Clause]]:
    """Return the clauses with alternatives to count: (rule, position in it, clause).

    Clauses over scores of options are left out: their alternatives only say which option beats which.
    """
    choices = [place for output, place in spec.output_slices if isinstance(output, Choice)]
    scores = {k for place in choices for k in range(place.start, place.stop)}
    found = []
    for r, rule in enumerate(spec.rules):
        for c, clause in enumerate(rule.requirement.clauses):
            read = {k for literal in clause.literals for k, _ in literal.outputs}
            if 2 <= len(clause.literals) <= _LITERALS and not read & scores:
                found.append((r, c, clause))
    return found[:_CLAUSES]


def _parts(spec: Specification, X: Array, active: Mask, served: Array, own: Array, usable: Mask) -> list[Parts]:
    found = []
    for r, c, clause in alternatives_of(spec):
        on = active[:, r]
        final, first = (
            np.stack([clause_holds(Clause((literal,)), x, y) for literal in clause.literals])
            for x, y in ((X[on], served[on]), (X[on & usable], own[on[usable]]))
        )
        counts, own_counts = (tuple(held.sum(axis=1).tolist()) for held in (final, first))
        outside = int((~first.any(axis=0)).sum())
        found.append(Parts(spec.rules[r].name, c, int(on.sum()), counts, own_counts, outside))
    return found


def _usable(answers: Array) -> Mask:
    """Return a mask of the rows whose answers are not replaced: (n,)."""
    return np.asarray((np.abs(answers) <= WIDE).all(axis=1))


def _changed(spec: Specification, answers: Array, served: Array) -> Mask:
    """Return a mask of the outputs that a rule moved, by more than rounding to a step: (n, outputs)."""
    if spec.grid is not None:
        return np.asarray(spec.grid.nearest(answers) != spec.grid.nearest(served))
    changed: Mask = answers != served
    if len(spec.outputs) == changed.shape[1]:
        return changed
    return np.asarray(np.logical_or.reduceat(changed, [place.start for _, place in spec.output_slices], axis=1))


def summed(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    """Add counts by name."""
    return {name: count + b[name] for name, count in a.items()}


def paired(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Add counts by place."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _counts(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)
