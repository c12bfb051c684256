"""Fits the heads of a box to edited rules: the nearest safe ones, without training."""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.certificates.document import Certificate
from smle.corrected.torch_folders import network_of
from smle.errors import DataError
from smle.estimators.tasks import Task
from smle.heads.box.box_program import Box
from smle.heads.box.estimators.box_training import read_by
from smle.heads.box.network.assurance import certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.heads.box.training.refit import refit_network
from smle.networks.safe_network import SafeNetwork
from smle.regions.cell_search import find_cells
from smle.regions.cells import Cells
from smle.rules import Specification
from smle.serving.perceptron import Perceptron
from smle.serving.served import Served
from smle.training.batches import split_rows

__all__ = ["projected"]

_POINTS = 8192  # random inputs that tell which old head each new cell starts from


def projected(
    old: Served,
    task: Task,
    table: Any,
    X: npt.NDArray[Any] | None,
    targets: npt.NDArray[np.float64] | None,
    validation_fraction: float,
) -> Certificate:
    """Return the certificate of the safe heads for the rules of a new task; X holds the inputs of `table`."""
    spec = task.spec
    deployed = network_of(old.record(), old.specification_)
    assert isinstance(deployed, SafeNetwork)
    assert isinstance(old.head, Box)
    box = FrozenHeads.of_stored(old.head.tensors)
    network = _with_rules(old, old.head, box, deployed.backbone, spec)
    if X is None and network.cells.free_cell and box.free is None:
        raise DataError(
            "Some inputs no longer fall under any rule, and the model has no head for them. Pass the training data, "
            "so that one is fitted, or keep a rule that always applies, such as a range of the outputs."
        )
    safe = project(network)
    if X is not None and targets is not None and task.refit_loss is not None:
        kept, held = split_rows(len(X), share=validation_fraction, seed=0)
        assert isinstance(old.front, Perceptron)
        rows, wanted = read_by(X, old.front.features(table, X)), torch.tensor(targets)
        fitted, judged = (tuple(part[some] for part in rows) for some in (kept, held))
        refit_network(safe, fitted, wanted[kept], loss=task.refit_loss, validation=(judged, wanted[held]))
    return certify(safe)


def _with_rules(model: Served, program: Box, old: FrozenHeads, backbone: nn.Module, spec: Specification) -> BoxNetwork:
    """Return a network with the old backbone and bounds, and the cells of the new rules."""
    kind, serving = old.bounds.kind, [head for head in old.serving if head is not None]
    single = len(serving) == 1 and any(model.cells.regions)  # the model has no gate
    network = BoxNetwork(
        backbone,
        spec,
        embedding=program.width,
        bounds="fixed" if kind == "constant" else kind,
        gate=not single,
        passthrough=True if "heads.passthrough" in program.tensors else None,
        cells=find_cells(spec),
    )
    taken = [serving[source] for source in _sources(model, program, network)]
    heads = tuple(
        None if fresh is None else _taken_over(fresh, head)
        for fresh, head in zip(network.frozen_heads().heads, taken, strict=True)
    )
    free = Head(taken[-1].W, taken[-1].b) if network.cells.free_cell else None
    network.pin(FrozenHeads(old.bounds, heads, free))
    return network


def _taken_over(fresh: Head, old: Head) -> Head:
    """Copy the old numbers into a new head, keeping its safe constant for NaN, which follows from the new rules."""
    V = fresh.V if fresh.V is None else (np.zeros_like(fresh.V) if old.V is None else old.V)
    return replace(fresh, W=old.W, b=old.b, V=V)


def _sources(model: Served, program: Box, network: BoxNetwork) -> list[int]:
    """Return, for each new cell, the old cell that covers most of it, or shares most rules if it is too small."""
    rng, spec = np.random.default_rng(0), network.spec
    lower, upper = spec.ends()
    points = rng.uniform(lower, upper, (_POINTS, len(lower)))
    for group in spec.one_hot:
        points[:, list(group)] = np.eye(len(group))[rng.integers(len(group), size=_POINTS)]
    before, after = program.cell_of(points), network.deployed.cell_of(points)
    names = _rule_names(model.specification_, model.cells)
    wanted = _rule_names(spec, network.cells)
    result = []
    for cell in range(len(network.cells)):
        mine = before[after == cell]
        if len(mine):
            result.append(int(np.bincount(mine).argmax()))
        else:
            shared = [len(wanted[cell] & known) / max(1, len(wanted[cell] | known)) for known in names]
            result.append(int(np.argmax(shared)))
    return result


def _rule_names(spec: Specification, cells: Cells) -> list[set[str]]:
    return [{spec.rules[rule].name for region in cell for rule in cells.rules[region]} for cell in cells]
