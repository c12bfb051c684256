"""The most likely allowed set of labels: cross-entropy with epsilon, exact.

    maximize  sum over labels that are on of  w_l = log max(p_l, eps) - log max(1 - p_l, eps)

Exclusions alone: only labels with positive weight matter, and the answer is a heaviest independent set of the
conflict graph, found per connected component by branch and bound. With further clauses over few labels all patterns
are tried. Elsewhere, or where the graph grows too large: a MILP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.guarantees.answers.membership import excluded
from smle.solvers import MixedIntegerProgram, Status, solve

__all__ = ["EPSILON", "heaviest_independent_set", "most_likely_labels", "weights_of"]

Array = npt.NDArray[np.float64]
EPSILON = 1e-6
MAX_NODES = 20_000
_FEW = 10  # labels of which all patterns are tried
_AT_ONCE = 4096  # rows


def weights_of(probabilities: Array) -> Array:
    """Return what turning each label on gains in log-likelihood."""
    p = np.clip(probabilities, 0.0, 1.0)
    gains: Array = np.log(np.maximum(p, EPSILON)) - np.log(np.maximum(1 - p, EPSILON))
    return gains


def most_likely_labels(
    probabilities: Array, pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[tuple[int, bool]]] = ()
) -> Array:
    """Return the most likely allowed 0/1 patterns; NaN where no pattern is allowed.

    Shapes: probabilities (n, m), pairs (p, 2); clauses are lists of (label, on). Returns (n, m).
    """
    weights = weights_of(probabilities)
    result = (weights >= 0).astype(np.float64)
    bad = _broken(result > 0, pairs, clauses)
    if not bad.any():
        return result
    if clauses:
        tied = np.unique([label for clause in clauses for label, _ in clause] + pairs.reshape(-1).tolist()).astype(
            np.intp
        )
        if len(tied) <= _FEW:
            result[np.ix_(bad, tied)] = _by_trying(weights[np.ix_(bad, tied)], tied, pairs, clauses)
            return result
    known: dict[bytes, Array] = {}
    neighbors = _neighbors(pairs, probabilities.shape[1]) if not clauses else []
    for row in np.flatnonzero(bad):
        key = weights[row].tobytes()
        if key not in known:
            found = None if clauses else _by_graph(weights[row], neighbors)
            known[key] = _by_program(weights[row], pairs, clauses) if found is None else found
        result[row] = known[key]
    return result


def _broken(
    on: npt.NDArray[np.bool_], pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[tuple[int, bool]]]
) -> npt.NDArray[np.bool_]:
    bad = excluded(on, pairs)
    for clause in clauses:
        bad |= ~np.any([on[:, label] == value for label, value in clause], axis=0)
    return bad


def _by_trying(
    weights: Array,
    tied: npt.NDArray[np.intp],
    pairs: npt.NDArray[np.int32],
    clauses: Sequence[Sequence[tuple[int, bool]]],
) -> Array:
    """Return the most likely allowed patterns of the labels that rules tie together, NaN if there is none."""
    place = {int(label): p for p, label in enumerate(tied)}
    patterns = (np.arange(2 ** len(tied))[:, None] >> np.arange(len(tied))) & 1
    own = [[(place[label], value) for label, value in clause] for clause in clauses]
    allowed = patterns[~_broken(patterns > 0, np.searchsorted(tied, pairs).astype(np.int32), own)].astype(np.float64)
    if not len(allowed):
        return np.full_like(weights, np.nan)
    parts = range(0, len(weights), _AT_ONCE)
    best = np.concatenate([(weights[i : i + _AT_ONCE] @ allowed.T).argmax(axis=1) for i in parts])
    return np.asarray(allowed[best])


def _neighbors(pairs: npt.NDArray[np.int32], m: int) -> list[npt.NDArray[np.int32]]:
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    starts = np.searchsorted(both[:, 0], np.arange(m + 1))
    return [both[starts[i] : starts[i + 1], 1] for i in range(m)]


def _by_graph(weights: Array, neighbors: Sequence[npt.NDArray[np.int32]]) -> Array | None:
    """Return the pattern, or None if the search grew too large."""
    result = np.zeros(len(weights))
    wanted = np.flatnonzero(weights >= 0)
    place = {int(label): p for p, label in enumerate(wanted)}
    graph = [sum(1 << place[int(k)] for k in neighbors[label] if int(k) in place) for label in wanted.tolist()]
    try:
        chosen = heaviest_independent_set([float(weights[label]) for label in wanted], graph)
    except _TooLargeError:
        return None
    result[wanted[chosen]] = 1.0
    return result


def heaviest_independent_set(weights: Sequence[float], graph: Sequence[int]) -> list[int]:
    """Return a heaviest set of vertices without an edge inside. `graph[v]` is the bit mask of v's neighbors."""
    left = (1 << len(weights)) - 1
    chosen: list[int] = []
    while left:
        component = _component(left & -left, graph, left)
        chosen.extend(_Search(weights, graph).run(component))
        left &= ~component
    return sorted(chosen)


def _component(seed: int, graph: Sequence[int], within: int) -> int:
    found, fresh = seed, seed
    while fresh:
        reached = 0
        for v in _bits(fresh):
            reached |= graph[v]
        fresh = reached & within & ~found
        found |= fresh
    return found


class _TooLargeError(Exception):
    """The search took too many nodes."""


class _Search:
    """Branch and bound; the bound covers the rest by cliques and takes the heaviest vertex of each."""

    def __init__(self, weights: Sequence[float], graph: Sequence[int]) -> None:
        self.weights, self.graph = weights, graph
        self.best_value, self.best_set = -1.0, 0
        self.nodes = 0

    def run(self, vertices: int) -> list[int]:
        self._grow(vertices, 0, 0.0)
        return list(_bits(self.best_set))

    def _grow(self, left: int, chosen: int, value: float) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _TooLargeError
        while left:
            # a vertex without neighbors is always in
            free = next((v for v in _bits(left) if not self.graph[v] & left), None)
            if free is None:
                break
            left &= ~(1 << free)
            chosen |= 1 << free
            value += self.weights[free]
        if not left:
            if value > self.best_value:
                self.best_value, self.best_set = value, chosen
            return
        if value + self._bound(left) <= self.best_value:
            return
        v = max(_bits(left), key=lambda u: ((self.graph[u] & left).bit_count(), self.weights[u]))
        self._grow(left & ~(1 << v) & ~self.graph[v], chosen | 1 << v, value + self.weights[v])
        self._grow(left & ~(1 << v), chosen, value)

    def _bound(self, left: int) -> float:
        total = 0.0
        while left:
            v = max(_bits(left), key=lambda u: self.weights[u])
            total += self.weights[v]
            clique, candidates = 1 << v, left & self.graph[v]
            while candidates:
                u = (candidates & -candidates).bit_length() - 1
                clique |= 1 << u
                candidates &= self.graph[u]
            left &= ~clique
        return total


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _by_program(weights: Array, pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[tuple[int, bool]]]) -> Array:
    """Solve by MILP: exclusions y_h + y_k <= 1; clauses sum of literals >= 1."""
    m = len(weights)
    rows: list[int] = []
    cols: list[int] = []
    values: list[float] = []
    lower: list[float] = []
    for clause in clauses:
        need = 1.0
        for label, value in clause:
            rows.append(len(lower))
            cols.append(label)
            values.append(1.0 if value else -1.0)
            need -= 0.0 if value else 1.0
        lower.append(need)
    first = len(lower)
    count = len(pairs)
    A = sparse.csr_matrix(
        (
            np.concatenate([np.array(values, dtype=np.float64), np.full(2 * count, -1.0)]),
            (
                np.concatenate([np.array(rows, dtype=np.intp), np.repeat(np.arange(first, first + count), 2)]),
                np.concatenate([np.array(cols, dtype=np.intp), pairs.reshape(-1).astype(np.intp)]),
            ),
        ),
        (first + count, m),
    )
    found = solve(
        MixedIntegerProgram(
            -weights,
            A,
            np.array([*lower, *([-1.0] * count)]),
            np.full(first + count, np.inf),
            np.zeros(m),
            np.ones(m),
            integrality=np.ones(m, dtype=bool),
        )
    )
    if found.status is not Status.OPTIMAL or found.x is None:
        return np.full(m, np.nan)
    pattern: Array = np.round(found.x)
    bad = _broken((pattern > 0.5)[None], pairs, clauses)
    return np.full(m, np.nan) if bad[0] else pattern
