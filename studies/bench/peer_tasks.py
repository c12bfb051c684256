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

from smle.regions.search import find_cells
from smle.rules import Clause, Row, Specification
from studies.experiments import classification, data, synthetic
from studies.experiments.networks import Settings
from studies.experiments.presets import settings_of
from studies.experiments.tasks import Array, Task

_SYNTHETIC = ("n2-medium-P3", "n2-hard-P5", "n4-medium-P4", "n4-hard-P6", "n8-easy-P4", "n8-hard-P6")
_CLASSIFICATION = ("CHD-49-0.3", "Flags-0.3", "Yeast-0.3")
_STANDINS = ("Standin-0.3", "Standin-0.6")

DOSES = """
inputs:
  glucose: [40, 400]
  carbohydrates: [0, 150]
  weight: [40, 150]
  active insulin: [0, 7]
outputs: [dose]
rules:
  - name: weight limit
    then: dose <= 0.2 * weight - `active insulin`
  - name: low glucose
    when: glucose <= 80
    then: dose <= 0.5
  - name: never negative
    then: dose >= 0
  - name: high glucose is treated
    when: glucose >= 300 and `active insulin` <= 1
    then: dose >= 2
"""
"""The rules of examples/insulin_dosing.py, on the same kind of simulated patients."""


@dataclass(frozen=True, eq=False)
class LinearCell:
    """Where some rules are active together, and what they ask: A y + S x <= c, shapes (k, m), (k, d), (k,).

    `rows`: the half-spaces that define the cell, none: everywhere.
    """

    rows: tuple[Row, ...]
    A: Array
    S: Array
    c: Array


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
        A, a = np.zeros((len(rows), inputs)), np.array([float(row.bound) for row in rows])
        for k, row in enumerate(rows):
            for column, value in row.coefficients:
                A[k, column] = float(value)
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
    if name in _SYNTHETIC:
        task = synthetic.load(name)
    elif name in _STANDINS:
        task = classification.load(name, data.standin_table(), standin=True)
    else:
        task = classification.load(name, data.label_table(name.rsplit("-", 1)[0]))
    settings = settings_of(task.benchmark, "best", inputs=task.X.shape[1], outputs=task.y.shape[1])
    return _case(task.benchmark, task, settings)


def _case(kind: str, task: Task, settings: Settings) -> Case:
    if task.has_labels:
        pairs = np.concatenate([rule.requirement.exclusions for rule in task.specification.rules])
        return Case(kind, task, settings, None, pairs)
    return Case(kind, task, settings, _cells(task.specification), None)


def _doses(rows: int) -> Task:
    """Simulate doses by a common formula, with the scatter of prescriptions; some break the rules."""
    rng = np.random.default_rng(0)
    count = rows + 1000
    glucose, carbohydrates = rng.uniform(40, 400, count).round(), rng.uniform(0, 150, count).round()
    weight, active = rng.uniform(40, 150, count).round(1), rng.exponential(1.5, count).clip(0, 7).round(1)
    correction = (glucose - 110) * 0.55 * weight / 1700
    dose = (correction + carbohydrates / 12 - active + rng.normal(0, 0.7, count)).clip(min=-1).round(2)
    X, y = np.stack([glucose, carbohydrates, weight, active], axis=1), dose[:, None]
    spec = Specification.from_yaml(DOSES)

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
            found.append(_cell(rows, clauses, len(spec.columns), len(spec.targets)))
    # Where more rules are active the cell comes first in `cells`; gates are tried from the general to the
    # special, so that the special one has the last word.
    return tuple(sorted(found, key=lambda cell: len(cell.rows)))


def _cell(rows: tuple[Row, ...], clauses: list[Clause], d: int, m: int) -> LinearCell:
    A, S, c = np.zeros((len(clauses), m)), np.zeros((len(clauses), d)), np.zeros(len(clauses))
    for k, clause in enumerate(clauses):
        (literal,) = clause.literals
        for column, value in literal.outputs:
            A[k, column] = float(value)
        for column, value in literal.inputs:
            S[k, column] = float(value)
        c[k] = float(literal.bound)
    return LinearCell(rows, A, S, c)
