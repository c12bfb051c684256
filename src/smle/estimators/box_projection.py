"""Heads behind a box for edited rules: the nearest safe ones, in torch's form of the network."""

from __future__ import annotations

import smle.nn  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smle.assurance import DeployedNetwork, certify, network_of, project
from smle.certificates.document import Certificate
from smle.corrected import ServedModel
from smle.estimators.tasks import Task
from smle.guarantees import Cells, FrozenHeads, Head, find_cells
from smle.nn.box_network import BoxNetwork
from smle.rules import Specification
from smle.training.batches import split_rows
from smle.training.refit import refit_network

__all__ = ["projected"]

_POINTS = 8192  # random inputs that tell which old head a new cell takes over


def projected(
    old: ServedModel,
    task: Task,
    X: npt.NDArray[Any] | None,
    targets: npt.NDArray[np.float64] | None,
    validation_fraction: float,
) -> Certificate:
    """Return the certificate of the safe heads for other rules, those of the task."""
    spec = task.spec
    deployed = network_of(old.record(), old.specification_)
    assert isinstance(deployed, DeployedNetwork)
    safe = project(_with_rules(old, deployed, spec))
    if X is not None and targets is not None:
        enforced = task.nearest(X, targets)
        kept, held = split_rows(len(X), share=validation_fraction, seed=0)
        rows, wanted = torch.tensor(X), torch.tensor(enforced)
        refit_network(safe, rows[kept], wanted[kept], loss=task.refit_loss, validation=(rows[held], wanted[held]))
    return certify(safe)


def _with_rules(model: ServedModel, deployed: DeployedNetwork, spec: Specification) -> BoxNetwork:
    """Return a network with the old backbone and bounds whose cells are those of the new rules."""
    head = deployed.head
    cells = find_cells(spec)
    single = head.gate.is_trivial and any(model.cells.regions)  # the model was made without a gate
    network = BoxNetwork(
        deployed.backbone,
        spec,
        embedding=len(head.bounds.lower),
        bounds="network" if head.network else "affine" if head.affine else "fixed",
        gate=not single,
        passthrough=True if head.heads.passthrough is not None else None,
        cells=cells,
    )
    template = network.frozen_heads()
    old = head.frozen_heads()
    sources = _sources(model, deployed, network)
    heads = tuple(
        None if fresh is None else _taken_over(fresh, _old_head(deployed, old, source))
        for fresh, source in zip(template.heads, sources, strict=True)
    )
    free = None
    if network.cells.free_cell:
        taken = _old_head(deployed, old, sources[-1])
        free = (torch.from_numpy(taken.W.copy()), torch.from_numpy(taken.b.copy()))
    network.pin(FrozenHeads(old.bounds, heads), free)
    return network


def _old_head(deployed: DeployedNetwork, old: FrozenHeads, cell: int) -> Head:
    found = old.heads[cell]
    if found is not None:
        return found
    free = deployed.head.free
    assert free is not None
    return Head(free.weight.numpy(), free.bias.numpy())


def _taken_over(fresh: Head, old: Head) -> Head:
    """Return the old numbers in a head of the new program; its safe constant for NaN is that of the new rules."""
    V = fresh.V if fresh.V is None else (np.zeros_like(fresh.V) if old.V is None else old.V)
    return replace(fresh, W=old.W, b=old.b, V=V)


def _sources(model: ServedModel, deployed: DeployedNetwork, network: BoxNetwork) -> list[int]:
    """Return for every new cell the old cell that serves most of it, or shares most rules if it is too small."""
    rng = np.random.default_rng(0)
    spec, old_gate, new_gate = network.spec, deployed.head.gate, network.deployed.gate
    lower, upper = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    points = rng.uniform(lower, upper, (_POINTS, len(lower)))
    for group in spec.one_hot:
        points[:, list(group)] = np.eye(len(group))[rng.integers(len(group), size=_POINTS)]
    x = torch.from_numpy(points)
    before, after = (
        _cells(gate, head.domain(x)) for gate, head in ((old_gate, deployed.head), (new_gate, network.deployed))
    )
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


def _cells(gate: Any, x: torch.Tensor) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (torch.zeros(len(x), dtype=torch.long) if gate.is_trivial else gate(x)).numpy()
    return found


def _rule_names(spec: Specification, cells: Cells) -> list[set[str]]:
    """Return the names of the rules that are on in each cell."""
    return [{spec.rules[rule].name for region in cell for rule in cells.rules[region]} for cell in cells]
