"""A safe network around a given one that leaves its answers alone wherever the chosen part of the rules allows them.

In a cell whose clauses, under weights lambda, are half-spaces along independent directions `low <= G y <= high`, write
the outputs in the coordinates

    t = C y,   C = (rows of G; a basis of the rest, the outputs themselves where G does not mention them)

Clipping t to a box with `low + margin <= t_k <= high - margin` for the rows of G keeps exactly the outputs that satisfy
them, and moves others within the span of G alone. So the embedding is t (for each cell, shifted and scaled to [-1, 1])
behind the original outputs, the certified head is `C^-1`, and the free cell's head passes the original outputs through.
The weights lambda are fitted: one linear program per clause, the least mean violation over given outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.errors import NotCertifiedError
from smle.exact import exact
from smle.guarantees.arrangement import Arrangement
from smle.guarantees.cells import arrange
from smle.guarantees.head_problem import HeadProblem
from smle.guarantees.obligations import binding_rules
from smle.guarantees.overapproximation import Head, Overapproximation
from smle.guarantees.requirement import PlainClause, Polytopes, requirement_of
from smle.guarantees.wording import point_text
from smle.nn.network import SafeNetwork
from smle.rules import Specification
from smle.solvers import LinearProgram, Status, solve

__all__ = ["corrected", "fit_weights"]

Array = npt.NDArray[np.float64]
HalfSpace = tuple[Array, float]
_LP_ROWS = 2000
_ROOM = 1e-3  # price of room, against violations
_SPARE = 1.0  # the box reaches beyond the outputs seen by this share of their range, on either side
_FIRST_MARGIN, _DOUBLINGS = 2.0**-22, 14
_SAME = 1e-9  # unit vectors nearer than this are one direction
_INDEPENDENT = 1e-3  # distance of a unit vector from the span of others; below it float32 would lose too much
_CANCELED = 0.1  # a mixture of literals that is shorter than this share of them has lost what they ask
_ADVICE = "Train it under these rules instead (SafeNetwork.from_model), or state fewer rules."


@dataclass(frozen=True, eq=False)
class _Coordinates:
    """t = C y with the box lower <= t <= upper of what was seen; the rules ask low <= t <= high.

    Shapes: C (m, m), the arrays (m,); low and high are infinite where nothing is asked: behind the first `asked`
    coordinates. `left` counts what is asked along none of them.
    """

    C: Array
    lower: Array
    upper: Array
    low: Array
    high: Array
    asked: int
    left: int

    def boxes(self) -> Iterator[tuple[Array, Array]]:
        """Yield boxes that keep the rules with growing margins."""
        box = self.boxed(0.0)
        margin = 0.0 if box is None else _FIRST_MARGIN * float(np.abs(box).max())
        for _ in range(_DOUBLINGS):
            box = self.boxed(margin)
            if box is None:
                return
            yield box
            margin *= 2

    def boxed(self, margin: float) -> tuple[Array, Array] | None:
        """Return the box that keeps the rules with a margin, None if it is empty.

        Where a rule excludes nearly all that was seen, a quarter of that range remains beside its limit.
        """
        low, high = self.low + margin, self.high - margin
        quarter = (self.upper - self.lower) / 4
        lower = np.minimum(np.maximum(self.lower, low), np.maximum(high - quarter, low))
        upper = np.maximum(np.minimum(self.upper, high), np.minimum(low + quarter, high))
        return (lower, upper) if (lower < upper).all() else None


def corrected(model: nn.Module, spec: Specification, examples: Tensor | npt.ArrayLike) -> SafeNetwork:
    """Return the corrected network, proved in floats; `smle.correct` has it checked exactly."""
    _require_outputs_only(spec)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model = copy.deepcopy(model).cpu().eval()
    features = _features(examples, spec)
    outputs = _outputs(model, features, spec)
    arrangement, m = arrange(spec), len(spec.targets)
    free, count = int(arrangement.free_cell), len(arrangement.cells) - arrangement.free_cell
    layer = nn.Linear(m, m * (free + count))
    network = SafeNetwork(
        nn.Sequential(model, layer), spec, embedding=m * (free + count), bounds="fixed", gauge=False,
        passthrough=False, arrangement=arrangement,
    ).eval()  # fmt: skip
    gate = network.deployed.gate
    with torch.no_grad():
        cells = gate(network.deployed.domain.clamp(features)).numpy()
    polytopes, over = Polytopes(spec, arrangement), network.overapproximation()
    weight, bias = np.zeros((free + count, m, m)), np.zeros((free + count, m))
    weight[:free] = np.eye(m)
    heads: list[Head | None] = [None] * len(over.heads)
    for c in range(count):
        seen = outputs[_examples_of(c, cells, polytopes)]
        heads[c], (C, lower, upper) = _certified(c, seen, over, polytopes=polytopes, first=m * (free + c))
        half = (upper - lower) / 2
        weight[free + c], bias[free + c] = C / half[:, None], -(upper + lower) / (2 * half)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight.reshape(-1, m)))
        layer.bias.copy_(torch.from_numpy(bias.reshape(-1)))
    through = torch.eye(m, m * (free + count)), torch.zeros(m)
    network.hold(replace(over, heads=tuple(heads)), through if free else None)
    return network.requires_grad_(False).to(device)


# --- What is given


def _require_outputs_only(spec: Specification) -> None:
    for rule in spec.rules:
        if any(literal.inputs for clause in rule.requirement.clauses for literal in clause.literals):
            raise ValueError(
                f"Expected rules without inputs in 'then'. Got rule '{rule.name}', which has one: what it allows moves "
                "with the input. Train under it instead (SafeNetwork.from_model), or state a constant limit per region."
            )


def _features(examples: Tensor | npt.ArrayLike, spec: Specification) -> Tensor:
    array = examples.detach().cpu() if isinstance(examples, Tensor) else torch.from_numpy(np.array(examples, float))
    if array.ndim != 2 or array.shape[1] != len(spec.columns) or not len(array):
        raise ValueError(
            f"Expected examples of shape (rows, {len(spec.columns)}), the columns {', '.join(spec.columns)}. "
            f"Got {tuple(array.shape)}."
        )
    return array.to(torch.float32)


def _outputs(model: nn.Module, features: Tensor, spec: Specification) -> Array:
    """Return what the model answers (N, m) in float64."""
    other = next((p.dtype for p in model.parameters() if p.is_floating_point() and p.dtype is not torch.float32), None)
    if other is not None:
        raise TypeError(f"Expected a model in float32, the format that is certified. Got {other}. Call model.float().")
    with torch.no_grad():
        y = model(features)
    expected = (len(features), len(spec.targets))
    if not isinstance(y, Tensor) or tuple(y.shape) != expected:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(
            f"Expected the model to return {expected[1]} numbers per row, shape {expected}, in the order of the rules' "
            f"outputs: {', '.join(spec.targets)}. Got {got}. Wrap the model, or state its outputs in the rules."
        )
    if y.dtype is not torch.float32:
        raise TypeError(f"Expected the model to return float32. Got {y.dtype}. Call model.float().")
    bad = (~torch.isfinite(y)).any(dim=1).nonzero()
    if len(bad):
        raise ValueError(
            f"Expected finite outputs. Got NaN or infinity in {len(bad)} of {len(y)} rows, first in row {int(bad[0])} "
            "of the examples. Leave such rows out, or fill in missing inputs before the model sees them."
        )
    return y.numpy().astype(np.float64)


def _examples_of(cell: int, cells: npt.NDArray[np.int64], polytopes: Polytopes) -> npt.NDArray[np.bool_]:
    """Return which examples show what occurs in a cell: those in it, otherwise those that share a region with it.

    Cells where regions merely touch are so thin that no data lie in them.
    """
    arrangement, spec = polytopes.arrangement, polytopes.spec
    own: npt.NDArray[np.bool_] = cells == cell
    if own.any():
        return own
    regions = set(arrangement.cells[cell])
    near: npt.NDArray[np.bool_] = np.isin(cells, [i for i, c in enumerate(arrangement.cells) if regions & set(c)])
    if not regions or near.any():
        return near if regions else np.ones(len(cells), dtype=bool)
    point = polytopes.intersection(arrangement.cells[cell]).locate()[0]
    place = "" if point is None else f", for example at {point_text(spec.columns, [exact(float(v)) for v in point])}"
    raise ValueError(
        f"Expected examples wherever rules apply. Got none where {_names(arrangement, spec, cell)} applies{place}. "
        "Add rows there: only inputs are needed, no targets."
    )


def _names(arrangement: Arrangement, spec: Specification, cell: int) -> str:
    numbers = sorted({rule for rule, _ in binding_rules(arrangement, spec, cell)})
    return ", ".join(f"'{spec.rules[i].name}'" for i in numbers)


# --- Coordinates and heads


def _certified(
    cell: int, seen: Array, over: Overapproximation, *, polytopes: Polytopes, first: int
) -> tuple[Head, tuple[Array, Array, Array]]:
    """Return a proved head for a cell, with the coordinates C (m, m) that it reads and their box lower, upper (m,).

    Args:
        cell: Which cell.
        seen: Outputs that occur in it (N, m).
        over: Bounds and heads as they are.
        polytopes: The regions.
        first: Position of the cell's coordinates in the embedding.
    """
    spec, arrangement, m = polytopes.spec, polytopes.arrangement, seen.shape[1]
    stated = list(_half_spaces(requirement_of(polytopes, cell).without_pairs().clauses, seen))
    # One of the orders chooses the directions; what is asked along no direction has to follow.
    broken_first = sorted(stated, key=lambda half: -float((seen @ half[0] - half[1]).max()))
    problem, old = HeadProblem.of(over, spec, arrangement, cell), over.heads[cell]
    assert old is not None
    choices = [_coordinates(halves, seen) for halves in (broken_first, stated)]
    for coordinates in choices:
        inverse = np.linalg.inv(coordinates.C)
        for lower, upper in coordinates.boxes():
            W, b = np.zeros_like(old.W), inverse @ ((upper + lower) / 2)
            W[:, first : first + m] = inverse * ((upper - lower) / 2)
            head = replace(old, W=W, b=b.astype(np.float32))
            if problem.safe(head):
                return head, (coordinates.C, lower, upper)
    who = f"Rules {_names(arrangement, spec, cell)}"
    if choices[0].left:
        raise ValueError(
            f"Expected rules that limit independent combinations of the outputs. {who} apply together and limit "
            f"{choices[0].asked + choices[0].left} combinations, of which {choices[0].asked} are independent: what "
            f"they allow is no box in any coordinates. {_ADVICE}"
        )
    if choices[0].boxed(0.0) is None:
        raise ValueError(f"{who} leave no room under the alternatives that suit the examples best. {_ADVICE}")
    raise NotCertifiedError(
        f"{who}: no margin that was tried covers the rounding of the head. Widen what the rules allow, or bring the "
        "outputs to a smaller scale."
    )


def _coordinates(halves: Iterable[HalfSpace], seen: Array) -> _Coordinates:
    """Return coordinates of which the first are limited by half-spaces. Shape: seen (N, m)."""
    rows, low, high, left = _directions(halves, seen.shape[1])
    C = _completed(rows)
    t = seen @ C.T
    lower, upper = t.min(axis=0), t.max(axis=0)
    spare = _SPARE * (upper - lower) + 1e-3 * (float(np.abs(t).max()) or 1.0)
    more = np.full(len(C) - len(rows), np.inf)
    return _Coordinates(
        C, lower - spare, upper + spare, np.append(low, -more), np.append(high, more), asked=len(rows), left=left
    )


def _half_spaces(clauses: Iterable[PlainClause], seen: Array) -> Iterator[HalfSpace]:
    """Yield half-spaces g.y <= h, ||g|| = 1, that imply the clauses: plain limits first, then alternatives.

    Of alternatives the combination of literals that is obeyed best is asked, and nothing if one is asked already.
    """
    known: list[HalfSpace] = []
    for clause in sorted(clauses, key=lambda clause: len(clause.literals)):
        g, h = np.zeros((len(clause.literals), seen.shape[1])), np.zeros(len(clause.literals))
        for j, literal in enumerate(clause.literals):
            g[j, literal.outputs], h[j] = literal.g / literal.norm, literal.h / literal.norm
        if any(limit <= h[j] and np.linalg.norm(row - g[j]) < _SAME for row, limit in known for j in range(len(g))):
            continue
        excess = seen @ g.T - h
        weights = fit_weights(excess)
        if np.linalg.norm(weights @ g) < _CANCELED:
            weights = np.eye(len(g))[np.argmin(np.maximum(excess, 0).mean(axis=0))]
        norm = float(np.linalg.norm(weights @ g))
        known.append((weights @ g / norm, float(weights @ h) / norm))
        yield known[-1]


def _directions(halves: Iterable[HalfSpace], m: int) -> tuple[Array, Array, Array, int]:
    """Return independent rows (k, m) with limits low, high (k,), and how many half-spaces lie along none."""
    rows, low, high = np.zeros((0, m)), np.zeros(0), np.zeros(0)
    left = 0
    for g, h in halves:
        same = np.flatnonzero(np.linalg.norm(rows - g, axis=1) < _SAME)
        opposite = np.flatnonzero(np.linalg.norm(rows + g, axis=1) < _SAME)
        high[same], low[opposite] = np.minimum(high[same], h), np.maximum(low[opposite], -h)
        if len(same) or len(opposite):
            continue
        within = rows.T @ np.linalg.lstsq(rows.T, g, rcond=None)[0]
        if np.linalg.norm(g - within) < _INDEPENDENT:
            left += 1
            continue
        rows, low, high = np.vstack([rows, g]), np.append(low, -np.inf), np.append(high, h)
    return rows, low, high, left


def _completed(rows: Array) -> Array:
    """Return an invertible matrix (m, m) that begins with the rows (k, m); outputs they leave out stay as they are."""
    m = rows.shape[1]
    used = np.flatnonzero(rows.any(axis=0))
    basis = np.zeros((len(used) - len(rows), m))
    if len(basis):
        basis[:, used] = np.linalg.svd(rows[:, used])[2][len(rows) :]
    return np.vstack([rows, basis, np.delete(np.eye(m), used, axis=0)])


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
