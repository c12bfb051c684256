"""What methods are compared on, and the peers as layers behind the same network.

Tasks are those of the paper and one whose limits depend on the inputs. Most peers know only constraints that hold
everywhere: each is given the requirement of one cell (a set of rules that are active together), and a gate in float32
that its users would write: `(x @ A.T <= a).all()`. A layer maps (embedding z, plain outputs f, inputs x) to outputs
that obey the requirement of one cell, in real arithmetic. `NotStatableError`: the peer cannot express the requirement.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from smle.nearest.oracle import nearest_outputs
from smle.regions.cell_search import find_cells
from smle.rules import Literals, Row, Specification
from studies.bench.table_tasks import example
from studies.experiments.methods import Job, load_task
from studies.experiments.networks import Settings
from studies.experiments.presets import settings_of
from studies.experiments.tasks import Task
from studies.harness import Array, quietly, within
from tests.support.sampling import Judge, half_spaces

_SYNTHETIC = ("n2-medium-P3", "n2-hard-P5", "n4-medium-P4", "n4-hard-P6", "n8-easy-P4", "n8-hard-P6")
_CLASSIFICATION = ("CHD-49-0.3", "Flags-0.3", "Yeast-0.3")
_STANDINS = ("Standin-0.3", "Standin-0.6")


@dataclass(frozen=True, eq=False)
class LinearCell:
    """Where some rules are active together, and what they ask: literals g.y + s.x <= h.

    `rows`: the half-spaces that define the cell, none: everywhere.
    """

    rows: tuple[Row, ...]
    asked: Literals


@dataclass(frozen=True, eq=False)
class Case:
    """A task with the kind it is listed under and the settings that all methods share.

    `cells`: the cells where something is required, as linear inequalities; None where rules are clauses on labels.
    `pairs`: labels that exclude each other (p, 2); None where rules are linear.
    """

    kind: str
    task: Task
    settings: Settings
    cells: tuple[LinearCell, ...] | None
    pairs: Array | None


class FloatGate(nn.Module):
    """Membership of a cell as a user of torch writes it: one comparison in float32, exact nowhere near the border."""

    def __init__(self, rows: tuple[Row, ...], inputs: int) -> None:
        super().__init__()
        A, a = half_spaces(rows, inputs)
        self.register_buffer("A", torch.tensor(A, dtype=torch.float32))
        self.register_buffer("a", torch.tensor(a, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Return which rows are inside. Shapes: (batch, d) -> (batch, 1)."""
        matrix, bound = self.get_buffer("A"), self.get_buffer("a")
        inside: Tensor = (x @ matrix.T <= bound).all(dim=1, keepdim=True)
        return inside


def task_names() -> list[str]:
    """Return the tasks of a run: the data sets if SMLE_DATA names their folder, else generated stand-ins."""
    labels = _CLASSIFICATION if os.environ.get("SMLE_DATA") else _STANDINS
    return [*_SYNTHETIC, *labels, "insulin"]


def load_case(name: str) -> Case:
    """Return a case by its task's name."""
    if name in ("insulin", "quick"):
        task = _doses(1500 if name == "quick" else 4000)
        return Case(task.benchmark, task, settings_of("synthetic", "best", inputs=4, outputs=1), _cells(task), None)
    task = load_task(Job("synthetic" if name in _SYNTHETIC else "classification", name, "best", "main", 0))
    settings = settings_of(task.benchmark, "best", inputs=task.X.shape[1], outputs=task.y.shape[1])
    if not task.has_labels:
        return Case(task.benchmark, task, settings, _cells(task), None)
    pairs = np.concatenate([rule.requirement.exclusions for rule in task.specification.rules])
    return Case(task.benchmark, task, settings, None, pairs)


def _doses(rows: int) -> Task:
    """Return the rules and the simulated patients of examples/insulin_dosing.py; some doses break the rules."""
    insulin = example("insulin_dosing")
    spec = Specification.from_yaml(insulin.RULES)
    table = insulin.patients(rows + 1000)
    X, y = table[list(spec.columns)].to_numpy(), table[["dose"]].to_numpy()
    return Task(
        "input-dependent", "insulin", "", spec, X[:rows], y[:rows], X[rows:], y[rows:],
        lambda X, outputs: np.isin(np.arange(len(X)), Judge(spec).judge(X, outputs).rows),
    )  # fmt: skip


def _cells(task: Task) -> tuple[LinearCell, ...]:
    spec, cells = task.specification, find_cells(task.specification)
    always = [r for r in range(len(cells.regions)) if r not in cells.gated]
    found = []
    for gated in cells:
        regions = [*always, *gated]
        clauses = [
            clause
            for region in regions
            for rule in cells.rules[region]
            for clause in spec.rules[rule].requirement.clauses
        ]
        if clauses:
            rows = tuple(cells.rows[i] for region in gated for i in cells.regions[region])
            found.append(LinearCell(rows, Literals.of_clauses(clauses, len(spec.targets), len(spec.columns))))
    # Where more rules are active the cell comes first in `cells`; gates are tried from the general to the
    # special, so that the special one has the last word.
    return tuple(sorted(found, key=lambda cell: len(cell.rows)))


# --- layers

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
        layers: Sequence[tuple[FloatGate, nn.Module]],
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


class _Bounded(nn.Module):
    """A layer for A y <= b(x), b(x) = c - S x."""

    def __init__(self, cell: LinearCell) -> None:
        super().__init__()
        self.register_buffer("S", torch.tensor(cell.asked.s, dtype=torch.float32))
        self.register_buffer("c", torch.tensor(cell.asked.h, dtype=torch.float32))

    def bound(self, x: Tensor) -> Tensor:
        return self.get_buffer("c") - x @ self.get_buffer("S").T


class _Wrapped(nn.Module):
    """A layer of a package, and how it is asked."""

    def __init__(self, layer: Any, ask: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.ask = layer, ask

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        return self.ask(self.layer, z, f, x)


# --- HardNet


class HardNet(_Bounded):
    """HardNet's closed form for affine constraints b_l(x) <= A y <= b_u(x) with A of full row rank.

    y = f + A^+ (relu(b_l(x) - A f) - relu(A f - b_u(x))).

    Parallel rows become one row with the tightest bounds.

    Raises:
        NotStatableError: If rows that are not parallel depend on each other.
    """

    def __init__(self, cell: LinearCell) -> None:
        super().__init__(cell)
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
        self.register_buffer("A", torch.tensor(A, dtype=torch.float32))
        self.register_buffer("inverse", torch.tensor(np.linalg.pinv(A), dtype=torch.float32))

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        """Return the corrected outputs (batch, m)."""
        bound = self.bound(x)
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
        layer = modules.ConstraintModule(limits, input_dim=case.settings.backbone.embedding, create_map=True)
    return _Wrapped(layer, lambda layer, z, f, x: layer(z)[:, :, 0])


def _typical(cell: LinearCell, case: Case) -> Array:
    """Return the mean (m,) of the nearest allowed targets of the training rows in a cell."""
    X, y = case.task.X, case.task.y
    inside = FloatGate(cell.rows, X.shape[1])(torch.tensor(X, dtype=torch.float32))[:, 0].numpy()
    mean: Array = nearest_outputs(case.task.specification, X[inside], y[inside]).mean(axis=0)
    return mean


# --- PiShield


def _linear_shield(cell: LinearCell, case: Case) -> nn.Module:
    """Return PiShield's layer for linear requirements; inputs that they mention are passed along as variables."""
    columns = [int(j) for j in np.flatnonzero(cell.asked.s.any(axis=0))]
    table = np.concatenate([cell.asked.s[:, columns], cell.asked.g], axis=1)
    lines = linear_lines(table, cell.asked.h)  # inputs come first: they are what the outputs are corrected to
    shield = _shield(lines, table.shape[1], "linear")
    return _Wrapped(shield, lambda layer, z, f, x: layer(torch.cat([x[:, columns], f], dim=1))[:, len(columns) :])


def linear_lines(table: Array, bounds: Array) -> list[str]:
    """Return requirements table @ y <= bounds as PiShield reads them, with its variables in order."""
    names = [f"y_{j}" for j in range(table.shape[1])]
    lines = [f"ordering {' '.join(names)}"]
    for row, bound in zip(table, bounds, strict=True):
        terms = "".join(f"{-v:+.12f}{name}" for v, name in zip(row, names, strict=True) if v)
        lines.append(f"{terms} >= {-bound:.12f}")
    return lines


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


def shield_of(lines: list[str], variables: int, *, labels: bool) -> Callable[[Tensor], Tensor]:
    """Return PiShield's layer for requirements that hold everywhere: answers or scores (batch, m) to allowed ones."""
    shield = _shield(lines, variables, "propositional" if labels else "linear")
    if not labels:
        return cast("Callable[[Tensor], Tensor]", shield)
    layer = _LabelShield(shield).eval()
    return lambda scores: cast(Tensor, layer(scores, scores, scores))


def _shield(lines: list[str], variables: int, kind: str) -> Any:
    build = importlib.import_module("pishield.shield_layer").build_shield_layer
    with tempfile.TemporaryDirectory() as folder, quietly(), within(_BUILD):
        path = Path(folder) / "requirements.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        order = {"linear": "given", "propositional": "degree"}[kind]
        return build(variables, str(path), requirements_type=kind, ordering_choice=order)


# --- cvxpylayers


class _Projection(_Bounded):
    """y = argmin |y - f|^2 subject to A y <= b(x), by a differentiable cone solver."""

    def __init__(self, cell: LinearCell) -> None:
        super().__init__(cell)
        cp = importlib.import_module("cvxpy")
        layer = importlib.import_module("cvxpylayers.torch").CvxpyLayer
        k, m = cell.asked.g.shape
        y, wanted, bound = cp.Variable(m), cp.Parameter(m), cp.Parameter(k)
        problem = cp.Problem(cp.Minimize(cp.sum_squares(y - wanted)), [cell.asked.g @ y <= bound])
        # In a tuple torch does not see it: its sparse buffers cannot be copied with the weights of the best epoch.
        self.hidden = (layer(problem, parameters=[wanted, bound], variables=[y]),)

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        # An interior point: the accurate one.
        (y,) = self.hidden[0](f, self.bound(x), solver_args={"solve_method": "Clarabel"})
        corrected: Tensor = y.to(f.dtype)  # the solver works in float64
        return corrected


# --- Pi-net

_STEPS, _STEPS_BACK = 200, 25  # of operator splitting, and of the linear solve behind its gradient


class _PiNet(_Bounded):
    """The same projection by a stated number of Douglas-Rachford steps, with implicit derivatives, in JAX."""

    def __init__(self, cell: LinearCell) -> None:
        super().__init__(cell)
        jax, pinet = (importlib.import_module(name) for name in ("jax", "pinet"))
        g, h = (np.asarray(part, dtype=np.float32)[None] for part in (cell.asked.g, cell.asked.h[:, None]))
        free = np.full_like(h, -np.inf)
        project = pinet.Project(ineq_constraint=pinet.AffineInequalityConstraint(c_mat=g, lb=free, ub=h))

        def answer(f: Any, bound: Any) -> Any:
            box = pinet.BoxConstraintSpecification(
                lb=jax.numpy.full_like(bound, -np.inf)[..., None], ub=bound[..., None]
            )
            raw = pinet.ProjectionInstance(x=f[..., None], box=box)
            start = project.initialize(raw)
            return project.call(s0=start, y_raw=raw, n_iter=_STEPS, n_iter_bwd=_STEPS_BACK)[0].x[..., 0]

        def pull(f: Any, bound: Any, gradient: Any) -> Any:
            return jax.vjp(answer, f, bound)[1](gradient)

        forward, backward = jax.jit(answer), jax.jit(pull)

        class Bridge(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, f: Tensor, bound: Tensor) -> Tensor:
                ctx.save_for_backward(f, bound)
                return torch.from_numpy(np.array(forward(f.numpy(), bound.numpy())))

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
                f, bound = (part.numpy() for part in ctx.saved_tensors)
                pulled = backward(f, bound, gradient.numpy())
                return torch.from_numpy(np.array(pulled[0])), torch.from_numpy(np.array(pulled[1]))

        self.bridge: Any = Bridge

    def forward(self, z: Tensor, f: Tensor, x: Tensor) -> Tensor:
        corrected: Tensor = self.bridge.apply(f.contiguous(), self.bound(x))
        return corrected


# --- all of them

LAYERS: dict[str, Callable[[LinearCell, Case], nn.Module]] = {
    "projection layer (cvxpylayers)": lambda cell, case: _Projection(cell),
    "Pi-net": lambda cell, case: _PiNet(cell),
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
        lines = [f"not y_{h} or not y_{k}" for h, k in case.pairs.tolist()]
        shield = _LabelShield(_shield(lines, case.task.y.shape[1], "propositional"))
        layers: list[tuple[FloatGate, nn.Module]] = [(FloatGate((), inputs), shield)]
    else:
        layers = [(FloatGate(cell.rows, inputs), LAYERS[method](cell, case)) for cell in case.cells]
    sparse = method.startswith("projection")  # an optimization per row: nobody runs it for rows that need none
    return Guarded(backbone, last, shift=shift, size=size, layers=layers, sparse=sparse)
