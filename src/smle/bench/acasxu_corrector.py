"""A safe network around a given one that leaves its answers alone wherever the chosen part of the rules allows them.

In a cell whose clauses, under weights lambda, are the independent half-spaces `G y <= h`, write the outputs in the
coordinates

    t = C y,   C = (rows of G; an orthonormal basis of what is orthogonal to them)

Clipping t to a box with `t_k <= h_k - margin` for the rows of G keeps exactly the outputs that satisfy them, and moves
others within the span of G alone. So the embedding is t (for each cell, shifted and scaled to [-1, 1]) behind the
original outputs, the certified head is `C^-1`, and the free cell's head passes the original outputs through. The
weights lambda are fitted: one linear program per clause, the least mean violation over given outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.errors import NotCertifiedError
from smle.guarantees.cells import arrange
from smle.guarantees.head_problem import HeadProblem
from smle.guarantees.overapproximation import Head, Overapproximation
from smle.guarantees.requirement import PlainClause, Polytopes, requirement_of
from smle.nn.network import SafeNetwork
from smle.rules import Specification
from smle.solvers import LinearProgram, Status, solve

__all__ = ["corrector", "fit_weights"]

Array = npt.NDArray[np.float64]
_LP_ROWS = 2000
_ROOM = 1e-3  # price of room, against violations
_SPARE = 1.0  # the box reaches beyond the outputs seen by this share of their range, on either side
_FIRST_MARGIN, _DOUBLINGS = 2.0**-22, 24


@dataclass(frozen=True, eq=False)
class _Coordinates:
    """t = C y with the box lower <= t <= upper of what was seen; the first `limits` (k,) coordinates are rules.

    Shapes: C (m, m), lower, upper (m,), limits (k,).
    """

    C: Array
    lower: Array
    upper: Array
    limits: Array

    def boxed(self, margin: float) -> tuple[Array, Array]:
        """Return the box that keeps the rules with a margin."""
        upper, k = self.upper.copy(), len(self.limits)
        upper[:k] = np.minimum(upper[:k], self.limits - margin)
        return np.minimum(self.lower, upper - (self.upper - self.lower) / 4), upper


def corrector(model: nn.Module, spec: Specification, X: npt.NDArray[np.float32]) -> SafeNetwork:
    """Return a safe network that equals `model` in the free cell and corrects only violators elsewhere.

    Args:
        model: Maps inputs (batch, d) to outputs (batch, m).
        spec: The rules, without inputs in `then`.
        X: Inputs (N, d) that show which outputs occur, in every cell.

    Raises:
        ValueError: If a cell has no row in X, or clauses that are not independent.
        NotCertifiedError: If rounding leaves no room.
    """
    arrangement, m = arrange(spec), len(spec.targets)
    count = len(arrangement.cells) - arrangement.free_cell
    layer = nn.Linear(m, m * (1 + count))
    network = SafeNetwork(
        nn.Sequential(model, layer), spec, embedding=m * (1 + count), bounds="fixed", gauge=False,
        passthrough=False, arrangement=arrangement,
    ).eval()  # fmt: skip
    with torch.no_grad():
        features = torch.from_numpy(X)
        outputs = model(features).numpy().astype(np.float64)
        cells = network.deployed.gate(network.deployed.domain.clamp(features)).numpy()
    polytopes, over = Polytopes(spec, arrangement), network.overapproximation()
    weight, bias = np.zeros((1 + count, m, m)), np.zeros((1 + count, m))
    weight[0] = np.eye(m)
    heads: list[Head | None] = [None] * len(over.heads)
    for c in range(count):
        clauses = requirement_of(polytopes, c).without_pairs().clauses
        seen = outputs[cells == c]
        if not len(seen):
            raise ValueError(f"Expected points in every cell. Got none in cell {c} of {count}.")
        heads[c], lower, upper, C = _head(_coordinates(clauses, seen), over, c, spec=spec, network=network)
        half = (upper - lower) / 2
        weight[1 + c], bias[1 + c] = C / half[:, None], -(upper + lower) / (2 * half)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight.reshape(-1, m)))
        layer.bias.copy_(torch.from_numpy(bias.reshape(-1)))
    free = torch.cat([torch.eye(m), torch.zeros(m, m * count)], dim=1), torch.zeros(m)
    network.hold(replace(over, heads=tuple(heads)), free)
    return network.requires_grad_(False)


def _head(
    coordinates: _Coordinates, over: Overapproximation, cell: int, *, spec: Specification, network: SafeNetwork
) -> tuple[Head, Array, Array, Array]:
    """Return the head of a cell with the smallest margin (of those tried) that is proved, its box and C."""
    C, m = coordinates.C, len(coordinates.C)
    problem = HeadProblem.of(over, spec, network.arrangement, cell)
    inverse = np.linalg.inv(C)
    old = over.heads[cell]
    assert old is not None
    margin = _FIRST_MARGIN * float(np.abs([coordinates.lower, coordinates.upper]).max())
    for _ in range(_DOUBLINGS):
        lower, upper = coordinates.boxed(margin)
        W, b = np.zeros((m, network.embedding), dtype=np.float32), inverse @ ((upper + lower) / 2)
        W[:, m * (1 + cell) : m * (2 + cell)] = inverse * ((upper - lower) / 2)
        head = replace(old, W=W, b=b.astype(np.float32))
        if problem.safe(head):
            return head, lower, upper, C
        margin *= 2
    raise NotCertifiedError(f"Cell {cell}: no margin up to {margin:.3g} covers the rounding of its head.")


def _coordinates(clauses: tuple[PlainClause, ...], seen: Array) -> _Coordinates:
    """Return coordinates in which the clauses, under fitted weights, bound the first ones. Shape: seen (N, m)."""
    m = seen.shape[1]
    rows, limits = np.zeros((len(clauses), m)), np.zeros(len(clauses))
    for k, (g, h) in enumerate(_combined(clauses, seen)):
        norm = float(np.linalg.norm(g))
        if norm == 0:
            raise ValueError("Expected clauses whose literals do not cancel. Got one that does.")
        rows[k], limits[k] = g / norm, h / norm
    _, sizes, basis = np.linalg.svd(rows)
    if len(rows) > m or sizes.min() < 1e-6:
        raise ValueError(f"Expected independent clauses in a cell. Got {len(rows)} dependent ones for {m} outputs.")
    C = np.vstack([rows, basis[len(rows) :]])
    t = seen @ C.T
    lower, upper = t.min(axis=0), t.max(axis=0)
    spare = _SPARE * (upper - lower) + 1e-3 * float(np.abs(t).max())
    return _Coordinates(C, lower - spare, upper + spare, limits)


def _combined(clauses: tuple[PlainClause, ...], seen: Array) -> Iterator[tuple[Array, float]]:
    """Yield each clause as one half-space g.y <= h, the combination of literals that the outputs seen obey best."""
    for clause in clauses:
        g, h = np.zeros((len(clause.literals), seen.shape[1])), np.zeros(len(clause.literals))
        for j, literal in enumerate(clause.literals):
            if len(literal.inputs):
                raise ValueError("Expected rules without inputs in 'then'. Got one with an input.")
            g[j, literal.outputs], h[j] = literal.g, literal.h
        weights = fit_weights(seen @ g.T - h)
        yield weights @ g, float(weights @ h)


def fit_weights(excess: Array) -> Array:
    """Return the weights on the simplex (J,) that minimize the mean of max(0, excess . weights) over rows (N, J).

    A linear program in the weights and one violation per row; at most 2,000 rows, evenly spaced, take part. Among
    equals, weights that leave more room on average.
    """
    rows = excess[:: max(1, -(-len(excess) // _LP_ROWS))]
    N, J = rows.shape
    if J == 1:
        return np.ones(1)
    scale = float(np.abs(rows).max()) or 1.0
    A = np.vstack([np.hstack([rows / scale, -np.eye(N)]), np.concatenate([np.ones(J), np.zeros(N)])])
    problem = LinearProgram(
        np.concatenate([_ROOM * rows.mean(axis=0) / scale, np.full(N, 1.0 / N)]),
        A,
        np.append(np.full(N, -np.inf), 1.0),
        np.append(np.zeros(N), 1.0),
        np.zeros(J + N),
        np.full(J + N, np.inf),
    )
    found = solve(problem)
    if found.status is not Status.OPTIMAL or found.x is None:
        return np.full(J, 1.0 / J)  # any weights are safe; these treat the literals alike
    positive = np.maximum(found.x[:J], 0.0)
    weights: Array = positive / positive.sum()
    return weights
