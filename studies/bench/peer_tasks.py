"""What the methods are compared on: tasks of the paper and one whose limits depend on the inputs, as floats for layers.

Most peers know only constraints that hold everywhere. Each is given the requirement of one cell (a set of rules that
are active together), and a gate in float32 that its users would write: `(x @ A.T <= a).all()`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.regions.cell_search import find_cells
from smle.rules import Literals, Row, Specification
from studies.bench.table_tasks import example
from studies.experiments.methods import Job, load_task
from studies.experiments.networks import Settings
from studies.experiments.presets import settings_of
from studies.experiments.tasks import Array, Task
from tests.support.sampling import half_spaces

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
    pairs: npt.NDArray[np.int32] | None


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


def task_names(*, quick: bool) -> list[str]:
    """Return the tasks of a run: the data sets if SMLE_DATA names their folder, else generated stand-ins."""
    if quick:
        return ["quick"]
    labels = _CLASSIFICATION if os.environ.get("SMLE_DATA") else _STANDINS
    return [*_SYNTHETIC, *labels, "insulin"]


def load_case(name: str) -> Case:
    """Return a case by its task's name."""
    if name in ("insulin", "quick"):
        task = _doses(1500 if name == "quick" else 4000)
        return _case("input-dependent", task, settings_of("synthetic", "best", inputs=4, outputs=1))
    task = load_task(Job("synthetic" if name in _SYNTHETIC else "classification", name, "best", "main", 0))
    settings = settings_of(task.benchmark, "best", inputs=task.X.shape[1], outputs=task.y.shape[1])
    return _case(task.benchmark, task, settings)


def _case(kind: str, task: Task, settings: Settings) -> Case:
    if task.has_labels:
        pairs = np.concatenate([rule.requirement.exclusions for rule in task.specification.rules])
        return Case(kind, task, settings, None, pairs)
    return Case(kind, task, settings, _cells(task.specification), None)


def _doses(rows: int) -> Task:
    """Return the rules and the simulated patients of examples/insulin_dosing.py; some doses break the rules."""
    insulin = example("insulin_dosing")
    spec = Specification.from_yaml(insulin.RULES)
    table = insulin.patients(rows + 1000)
    X, y = table[list(spec.columns)].to_numpy(), table[["dose"]].to_numpy()

    def unused(X: Array, outputs: Array) -> npt.NDArray[np.bool_]:
        raise NotImplementedError("Judged exactly, by tests.support.sampling.")

    return Task("input-dependent", "insulin", "", spec, X[:rows], y[:rows], X[rows:], y[rows:], unused)


def _cells(spec: Specification) -> tuple[LinearCell, ...]:
    cells = find_cells(spec)
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
