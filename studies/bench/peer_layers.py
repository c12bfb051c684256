"""The peers as layers behind the same network: what each makes of a cell's requirement.

A layer maps (embedding z, plain outputs f, inputs x) to outputs that obey the requirement of one cell, in real
arithmetic. `NotStatableError` says that a peer has no words for a requirement.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.nearest.oracle import nearest_outputs
from studies.bench.peer_env import quietly, within
from studies.bench.peer_tasks import Case, FloatGate, LinearCell
from studies.experiments.tasks import Array

_FAR = 10.0  # RAYEN's set is cut off at so many times the largest target: its gradient is NaN along unbounded rays

_BUILD = 30.0  # processor seconds to build a shield; its resolution of clauses does not end for some sets


class NotStatableError(ValueError):
    """A requirement that a peer cannot express."""


class Guarded(nn.Module):
    """f(x) = size * last(backbone(x)) + shift, and in each cell the layer of that cell.

    With `sparse`, layers see the rows inside only; otherwise all rows, and `where` picks.
    """

    def __init__(
        self,
        backbone: nn.Module,
        last: nn.Linear,
        *,
        shift: Array,
        size: float,
        layers: Sequence[tuple[FloatGate, nn.Module]] = (),
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.last, self.sparse, self.size, self.folded = backbone, last, sparse, size, False
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float32))
        self.gates = nn.ModuleList(gate for gate, _ in layers)
        self.layers = nn.ModuleList(layer for _, layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs. Shapes: (batch, d) -> (batch, m)."""
        z = self.backbone(x)
        f: Tensor = self.last(z)
        if not self.folded:
            f = f * self.size + self.get_buffer("shift")
        y = f
        for gate, layer in zip(self.gates, self.layers, strict=True):
            inside = gate(x)
            if self.sparse:
                rows = inside[:, 0].nonzero()[:, 0]
                if len(rows):
                    y = y.index_copy(0, rows, layer(z[rows], f[rows], x[rows]))
            else:
                y = torch.where(inside, layer(z, f, x), y)
        return y

    @torch.no_grad()
    def fold(self) -> None:
        """Fold size and shift into the last layer, as one would before deployment."""
        self.last.weight.mul_(self.size)
        self.last.bias.mul_(self.size).add_(self.get_buffer("shift"))
        self.folded = True


# --- HardNet


class HardNet(nn.Module):
    """HardNet's closed form for affine constraints b_l(x) <= A y <= b_u(x) with A of full row rank.

    y = f + A^+ (relu(b_l(x) - A f) - relu(A f - b_u(x))).

    Parallel rows become one row with the tightest bounds.

    Raises:
        NotStatableError: If rows that are not parallel depend on each other.
    """

    def __init__(self, cell: LinearCell) -> None:
        super().__init__()
        directions: list[Array] = []
        sides: list[tuple[list[int], list[float]]] = []
        for k, row in enumerate(cell.asked.g):
            length = float(np.linalg.norm(row))
            for known, (numbers, factors) in zip(directions, sides, strict=True):
                along = float(known @ row) / length
                if abs(abs(along) - 1) < 1e-12:
                    numbers.append(k)
                    factors.append(length * along)
                    break
            else:
                directions.append(row / length)
                sides.append(([k], [length]))
        A = np.stack(directions)
        if np.linalg.matrix_rank(A) < len(A):
            raise NotStatableError(f"{len(A)} rows for {A.shape[1]} outputs: A has no full row rank")
        self.sides = sides
        for name, values in (("A", A), ("inverse", np.linalg.pinv(A)), ("S", cell.asked.s), ("c", cell.asked.h)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32))

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        """Return the corrected outputs (batch, m)."""
        bound = self.get_buffer("c") - x @ self.get_buffer("S").T
        value = f @ self.get_buffer("A").T
        moves = []
        for k, (numbers, factors) in enumerate(self.sides):
            move = torch.zeros_like(value[:, k])
            upper = [bound[:, i] / t for i, t in zip(numbers, factors, strict=True) if t > 0]
            lower = [bound[:, i] / t for i, t in zip(numbers, factors, strict=True) if t < 0]
            if lower:
                move = move + torch.relu(torch.stack(lower).amax(dim=0) - value[:, k])
            if upper:
                move = move - torch.relu(value[:, k] - torch.stack(upper).amin(dim=0))
            moves.append(move)
        y: Tensor = f + torch.stack(moves, dim=1) @ self.get_buffer("inverse").T
        return y


# --- RAYEN


class _Rayen(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.module(z)[:, :, 0]
        return y


def _rayen(cell: LinearCell, case: Case) -> nn.Module:
    """Return RAYEN's module with its own linear map of the embedding, as its users build it.

    Rays start from an interior point; the one it finds itself may be far from all data, so it is given one that is
    80 % of the way to the mean of the nearest allowed targets.
    """
    g, s, h = cell.asked.g, cell.asked.s, cell.asked.h
    if s.any():
        raise NotStatableError("the set must be the same for all inputs")
    constraints, modules = (importlib.import_module(f"rayen.{name}") for name in ("constraints", "constraint_module"))
    m = g.shape[1]
    far = _FAR * float(np.abs(case.task.y).max())
    A = np.concatenate([g, np.eye(m), -np.eye(m)])
    c = np.concatenate([h, np.full(2 * m, far)])[:, None]
    with quietly():
        linear = constraints.LinearConstraint(A, c, None, None)
        own = constraints.ConvexConstraints(lc=linear).y0
        typical = _typical(cell, case)[:, None]
        limits = constraints.ConvexConstraints(lc=linear, y0=0.8 * typical + 0.2 * own)
        return _Rayen(modules.ConstraintModule(limits, input_dim=case.settings.backbone.embedding, create_map=True))


def _typical(cell: LinearCell, case: Case) -> Array:
    """Return the mean (m,) of the nearest allowed targets of the training rows in a cell."""
    X, y = case.task.X, case.task.y
    inside = FloatGate(cell.rows, X.shape[1])(torch.tensor(X, dtype=torch.float32))[:, 0].numpy()
    mean: Array = nearest_outputs(case.task.specification, X[inside], y[inside]).mean(axis=0)
    return mean


# --- PiShield


class _LinearShield(nn.Module):
    """PiShield's layer for linear requirements; inputs that requirements mention are passed along as variables."""

    def __init__(self, shield: Callable[[Tensor], Tensor], columns: list[int]) -> None:
        super().__init__()
        self.shield, self.columns = shield, columns

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        corrected = self.shield(torch.cat([x[:, self.columns], f], dim=1))
        return corrected[:, len(self.columns) :]


def _linear_shield(cell: LinearCell, case: Case) -> nn.Module:
    columns = [int(j) for j in np.flatnonzero(cell.asked.s.any(axis=0))]
    table = np.concatenate([cell.asked.s[:, columns], cell.asked.g], axis=1)
    names = [f"y_{j}" for j in range(table.shape[1])]
    lines = [f"ordering {' '.join(names)}"]  # inputs come first: they are what the outputs are corrected to
    for row, bound in zip(table, cell.asked.h, strict=True):
        terms = "".join(f"{-v:+.12f}{name}" for v, name in zip(row, names, strict=True) if v)
        lines.append(f"{terms} >= {-bound:.12f}")
    return _LinearShield(_shield(lines, len(names), "linear"), columns)


class _LabelShield(nn.Module):
    """PiShield's layer for propositional requirements, between sigmoid and threshold.

    Labels are on where the corrected probability is above 1/2; in eval mode the outputs are scores with that sign.
    """

    def __init__(self, shield: nn.Module) -> None:
        super().__init__()
        self.shield = shield

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        p = self.shield(torch.sigmoid(f))
        if self.training:
            return torch.logit(p, eps=1e-6)
        return torch.where(p > 0.5, p - 0.5, torch.clamp(p - 0.5, max=-1e-9))


def _label_shield(pairs: npt.NDArray[np.int32], labels: int) -> nn.Module:
    lines = [f"not y_{h} or not y_{k}" for h, k in pairs.tolist()]
    return _LabelShield(_shield(lines, labels, "propositional"))


def _shield(lines: list[str], variables: int, kind: str) -> Any:
    build = importlib.import_module("pishield.shield_layer").build_shield_layer
    with tempfile.TemporaryDirectory() as folder, quietly(), within(_BUILD):
        path = Path(folder) / "requirements.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        order = {"linear": "given", "propositional": "degree"}[kind]
        return build(variables, str(path), requirements_type=kind, ordering_choice=order)


# --- cvxpylayers


class _Projection(nn.Module):
    """y = argmin |y - f|^2 subject to A y <= b(x), by a differentiable cone solver."""

    def __init__(self, cell: LinearCell) -> None:
        super().__init__()
        cp = importlib.import_module("cvxpy")
        layer = importlib.import_module("cvxpylayers.torch").CvxpyLayer
        k, m = cell.asked.g.shape
        y, wanted, bound = cp.Variable(m), cp.Parameter(m), cp.Parameter(k)
        problem = cp.Problem(cp.Minimize(cp.sum_squares(y - wanted)), [cell.asked.g @ y <= bound])
        # In a tuple torch does not see it: its sparse buffers cannot be copied with the weights of the best epoch.
        self.hidden = (layer(problem, parameters=[wanted, bound], variables=[y]),)
        self.register_buffer("S", torch.tensor(cell.asked.s, dtype=torch.float32))
        self.register_buffer("c", torch.tensor(cell.asked.h, dtype=torch.float32))

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        bound = self.get_buffer("c") - x @ self.get_buffer("S").T
        (y,) = self.hidden[0](f, bound, solver_args={"solve_method": "Clarabel"})  # an interior point: the accurate one
        corrected: Tensor = y.to(f.dtype)  # the solver works in float64
        return corrected


# --- all of them

LAYERS: dict[str, Callable[[LinearCell, Case], nn.Module]] = {
    "projection layer (cvxpylayers)": lambda cell, case: _Projection(cell),
    "RAYEN": _rayen,
    "PiShield": _linear_shield,
    "HardNet-style": lambda cell, case: HardNet(cell),
}
"""Layers for linear requirements; PiShield has one for labels too."""


def guarded(method: str, case: Case, backbone: nn.Module, last: nn.Linear, *, shift: Array, size: float) -> Guarded:
    """Return the network with the layers of a method.

    Raises:
        NotStatableError: If the method cannot express the requirement.
        ImportError: If the method's package is not there.
    """
    inputs = case.task.X.shape[1]
    if case.cells is None:
        assert case.pairs is not None
        if method != "PiShield":
            raise NotStatableError("'never together' is a disjunction, not a convex set")
        layers = [(FloatGate((), inputs), _label_shield(case.pairs, case.task.y.shape[1]))]
    else:
        layers = [(FloatGate(cell.rows, inputs), LAYERS[method](cell, case)) for cell in case.cells]
    sparse = method.startswith("projection")  # an optimization per row: nobody runs it for rows that need none
    return Guarded(backbone, last, shift=shift, size=size, layers=layers, sparse=sparse)
