"""Proposals: answers that obey the rules, as near to a model's answers as can be found. Nothing here is proved.

What is proposed is checked by the head before it is served (`smle_check.heads.candidates`), and the stored safe answer
serves where nothing passes. Clauses that share no output are separate problems (blocks):

* labels that only rules among labels tie together: `label_sets`;
* all others: the nearest points of the parts of what is allowed, in outputs divided by their scale: `alternatives`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import numpy.typing as npt

from smle.programs.alternatives import KEPT, Block, Found
from smle.programs.label_sets import Labels, Turned
from smle.programs.nearest_points import upward
from smle.rules import ClauseArrays
from smle_check.heads.sums import WIDE

__all__ = ["Proposals"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

TINY = 2.0**-126
_FIRST_MOVES = (2.0**-18, 2.0**-12, 2.0**-7)  # toward the safe answer, directly after a point
_LAST_MOVES = (2.0**-4, 0.25, 0.5, 1.0)  # after all points
_NEAR = float(WIDE) ** 2
_MOST_PAIRS = 20_000  # exclusions that become clauses where labels are tied to more


class Proposals:
    """Candidates for rows whose answers break an active clause, nearest first.

    Args:
        clauses: The rules' clauses.
        scale: Spread of each output, (m,); distances are counted in it.
        h_checked: What the head compares `g.y + s.x` with, (L,); None: `h`, and just below where a literal is strict.
        default: What stands for answers that are NaN, infinite or far beyond, (m,); None: 0.
    """

    def __init__(
        self, clauses: ClauseArrays, scale: Array, h_checked: Array | None = None, default: Array | None = None
    ) -> None:
        if h_checked is None:
            below = np.minimum(np.nextafter(clauses.h, -np.inf), clauses.h - TINY)
            h_checked = np.where(clauses.strict, below, clauses.h)
        scale = np.asarray(scale, dtype=np.float64)
        scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
        self._default = np.zeros(len(scale)) if default is None else default
        self.rules = clauses.parts
        self.parts: list[Block | Labels] = [_made(clauses, h_checked, scale, columns) for columns in _together(clauses)]
        self.reads_inputs = bool(clauses.s.any())
        self._is_quiet = all(isinstance(part, Block) and part.is_quiet for part in self.parts)

    def first(self, active: Mask, X: Array, t: Array) -> tuple[Array, list[Found | Turned]]:
        """Return candidates (n, m), and what was found. Shapes: active (n, parts), X (n, d), t (n, m).

        Columns of `active` are those of `ClauseArrays.parts`. A candidate without any hope is NaN.
        """
        if self._is_quiet:  # to ask for silence costs a tenth of a small repair
            return self._first(active, X, t)
        with np.errstate(all="ignore"):
            return self._first(active, X, t)

    def _first(self, active: Mask, X: Array, t: Array) -> tuple[Array, list[Found | Turned]]:
        flat, p = t.ravel(), t
        if not flat.dot(flat) <= _NEAR:  # no square is larger than their sum
            p = np.where(np.abs(t) <= float(WIDE), t, self._default)
        found = [part.solve(active, X, p) for part in self.parts]
        if len(found) == 1 and len(self.parts[0].outputs) == p.shape[1]:
            return found[0].first(), found
        y = p.copy()
        for part, own in zip(self.parts, found, strict=True):
            y[:, part.outputs] = own.first()
        return y, found

    def further(
        self, y: Array, solved: list[Found | Turned], safe: Array | Callable[[], Array]
    ) -> Generator[Array, Mask | None, None]:
        """Yield first candidates once more, and then others on the way to safe answers (n, m).

        Safe answers are rarely needed, so that a function may stand for them.

        Each array has one candidate per row, to be cast to float32. `send(open)` says which rows of the last array are
        still open, and the next array has these rows alone; after `next` all stay open. It ends when there is nothing
        left to propose.
        """
        open_ = yield y
        rows, goals = np.arange(len(y)), safe() if callable(safe) else safe
        steps = [(rank, move) for rank in range(KEPT) for move in (0.0, *_FIRST_MOVES)]
        steps += [(rank, move) for move in _LAST_MOVES for rank in range(KEPT) if move < 1 or rank == 0]
        for rank, move in steps:
            rows, y = (rows, y) if open_ is None else (rows[open_], y[open_])
            if not len(rows):
                return
            with np.errstate(all="ignore"):
                rounded = _rounded(y)
                held = np.stack([own.holds(rounded, rows) for own in solved])
                # Parts that obey stay; where all seem to, the head sees what we do not, and all move.
                for part, own, left in zip(self.parts, solved, ~held | held.all(axis=0), strict=True):
                    goal, point = goals[np.ix_(rows[left], part.outputs)], own.points(rank, rows[left])
                    y[np.ix_(left, part.outputs)] = point + move * (goal - point) if move < 1 else goal
            open_ = yield y


def _rounded(y: Array) -> Array:
    """Return float32 numbers as float64; what is nearer to 0 than normal numbers becomes 0."""
    result = y.astype(np.float32).astype(np.float64)
    result[np.abs(result) < TINY] = 0.0
    return result


def _together(clauses: ClauseArrays) -> list[Numbers]:
    """Return the outputs that clauses and exclusions tie together, group by group."""
    m = clauses.g.shape[1]
    literal, output = np.nonzero(clauses.g)
    first = np.full(len(clauses.rule), m)
    np.minimum.at(first, clauses.clause[literal], output)
    ties = [np.stack([first[clauses.clause[literal]], output], axis=1)]
    ties += [pairs.astype(np.intp) for _, pairs in clauses.exclusions]
    tied = np.concatenate(ties)
    group = np.arange(m)
    while True:
        least = np.minimum(group[tied[:, 0]], group[tied[:, 1]])
        before = group.copy()
        np.minimum.at(group, tied[:, 0], least)
        np.minimum.at(group, tied[:, 1], least)
        group = group[group]
        if (group == before).all():
            break
    return [np.flatnonzero(group == g) for g in np.unique(group[tied])]


def _made(clauses: ClauseArrays, h_checked: Array, scale: Array, columns: Numbers) -> Block | Labels:
    """Return the part for a group of outputs."""
    m, count = clauses.g.shape[1], len(clauses.rule)
    own = np.zeros(m, dtype=bool)
    own[columns] = True
    literals = np.flatnonzero(clauses.g[:, own].any(axis=1))
    numbers = np.unique(clauses.clause[literals])
    lists = [(count + e, pairs[own[pairs[:, 0]]]) for e, (_, pairs) in enumerate(clauses.exclusions)]
    lists = [(part, pairs) for part, pairs in lists if len(pairs)]
    # Distinct literals: rules often repeat them, and a label has two.
    rows = np.concatenate([clauses.g[literals], clauses.s[literals], h_checked[literals, None]], axis=1)
    tied = np.unique(np.concatenate([pairs.reshape(-1) for _, pairs in lists])) if lists else np.empty(0, dtype=np.intp)
    off = np.zeros((len(tied), rows.shape[1]))
    off[np.arange(len(tied)), tied] = 1.0
    off[:, -1] = -TINY
    distinct, first, place = np.unique(np.concatenate([rows, off]), axis=0, return_index=True, return_inverse=True)
    distinct, place = distinct[np.argsort(first)], np.argsort(np.argsort(first))[place.reshape(-1)]  # as stated
    listed = [place[: len(literals)][clauses.clause[literals] == c] for c in numbers]
    parts = [*numbers.tolist()]
    of_label = dict(zip(tied.tolist(), place[len(literals) :].tolist(), strict=True))
    pairs_fit = sum(len(pairs) for _, pairs in lists) <= _MOST_PAIRS
    if pairs_fit:
        for part, pairs in lists:
            listed += [np.array([of_label[a], of_label[b]]) for a, b in pairs.tolist()]
            parts += [part] * len(pairs)
    g, s, h = distinct[:, :m], distinct[:, m:-1], distinct[:, -1]
    block = Block(g, s, h, listed, np.array(parts, dtype=np.intp), scale, clauses.labels) if listed else None
    signs = [sign for i in literals.tolist() if (sign := clauses.sign(i)) is not None]
    if not clauses.labels[columns].all() or len(signs) < len(literals):
        assert block is not None
        return block
    position = np.full(m, -1)
    position[columns] = np.arange(len(columns))
    words: dict[int, list[tuple[int, bool]]] = {c: [] for c in numbers.tolist()}
    for (label, on), c in zip(signs, clauses.clause[literals].tolist(), strict=True):
        words[c].append((int(position[label]), on))
    least, most = np.zeros(len(columns)), np.full(len(columns), -TINY)
    for (label, on), bound in zip(signs, h_checked[literals], strict=True):
        at = position[label]
        if on:
            least[at] = max(least[at], -bound)
        else:
            most[at] = min(most[at], bound)
    shifted = [position[pairs].astype(np.int32) for _, pairs in lists]
    own_parts = np.array([*numbers.tolist(), *(part for part, _ in lists)], dtype=np.intp)
    return Labels(columns, list(words.values()), shifted, own_parts, upward(least), -upward(-most), block)
