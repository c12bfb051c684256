"""A safe network around a given one that leaves its answers alone wherever the chosen part of the rules allows them.

Behind the original outputs comes one more linear layer, whose units are clipped and read by a certified head per cell;
the free cell's head passes the original outputs through. Two constructions say what layer and head are: coordinates in
which rules are a box (`smle.nn.limits`), and duels of labels that exclude each other (`smle.nn.duels`). The heads are
proved like any others. Where both apply, the one whose labels are nearer to the nearest allowed ones on the examples is
taken.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.errors import NotCertifiedError
from smle.guarantees import (
    Arrangement,
    Head,
    HeadProblem,
    Overapproximation,
    Polytopes,
    arrange,
    binding_rules,
    label_columns,
    nearest_outputs,
    point_text,
    requirement_of,
)
from smle.nn.correction import measured
from smle.nn.duels import Duels, duels, turned_pairs
from smle.nn.gate import Domain, Gate
from smle.nn.limits import Block, Limits, half_spaces, limits
from smle.nn.network import SafeNetwork
from smle.rules import Specification
from smle_check.floats import exact

__all__ = ["corrected", "inputs_like"]

Array = npt.NDArray[np.float64]
_CLOSE = 0.005  # share of labels: limits move logits less than duels, and are preferred if they decide as well
_NUMBERS = 20_000_000
_BETWEEN = 5
_INSTEAD = "(SafeNetwork.from_model, or an estimator with another enforcement)"
_ADVICE = f"Train it under these rules instead {_INSTEAD}, or state fewer rules."


def corrected(
    model: nn.Module,
    spec: Specification,
    examples: Tensor | npt.ArrayLike,
    *,
    fold: bool = False,
    measure: bool = False,
) -> SafeNetwork:
    """Return the corrected network, proved in floats; `smle.correct` has it checked exactly.

    `fold`: linear layers at the end become one in any case, although answers where no rule applies are then rounded
    in another way than the model's. `measure`: note what happened to the answers to the examples.
    """
    _require_outputs_only(spec)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model = copy.deepcopy(model).cpu().eval()
    features = _features(examples, spec)
    outputs = _outputs(model, features, spec)
    arrangement, m = arrange(spec), len(spec.targets)
    free, count = int(arrangement.free_cell), len(arrangement.cells) - arrangement.free_cell
    polytopes = Polytopes(spec, arrangement)
    cells = _cells(spec, arrangement, features)
    plans = []
    for cell in range(count):
        rows = _examples_of(cell, cells, polytopes)
        plans.append(_plans(cell, outputs[rows], features[rows], polytopes=polytopes))
    # Each plan is proved as part of an embedding that has room for any choice; the choice is then put together.
    widest = m * free + sum(max(plan.units for plan in candidates) for candidates in plans)
    trial = _network(nn.Linear(m, widest), spec, widest, arrangement).overapproximation()
    chosen = [_proved(cell, candidates, trial, polytopes=polytopes) for cell, candidates in enumerate(plans)]
    through = Block(np.eye(m), np.zeros(m), np.eye(m), np.zeros(m))
    blocks = [through] * free + chosen
    layer = nn.Linear(m, sum(len(block.c) for block in blocks))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.concatenate([np.zeros((0, m)), *(block.M for block in blocks)])))
        layer.bias.copy_(torch.from_numpy(np.concatenate([np.zeros(0), *(block.c for block in blocks)])))
    backbone = _folded(model, layer) if fold or not free else nn.Sequential(model, layer)
    network = _network(backbone, spec, layer.out_features, arrangement)
    over = network.overapproximation()
    heads: list[Head | None] = [None] * len(over.heads)
    first = m * free
    for cell, block in enumerate(chosen):
        heads[cell] = _head(over, cell, block, first)
        first += len(block.c)
    passed = torch.eye(m, layer.out_features), torch.zeros(m)
    network.hold(replace(over, heads=tuple(heads)), passed if free else None)
    if measure:
        network.correction = measured(network, features, outputs)
    return network.requires_grad_(False).to(device)


def inputs_like(X: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return inputs (N, d) and five times as many between two of them: more examples of what a model answers."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(len(X), size=(2, _BETWEEN * len(X)))
    share = rng.random((len(first), 1))
    return np.concatenate([X, share * X[first] + (1 - share) * X[second]])


def _network(backbone: nn.Module, spec: Specification, units: int, arrangement: Arrangement) -> SafeNetwork:
    return SafeNetwork(
        backbone, spec, embedding=units, bounds="fixed", gauge=False, passthrough=False, arrangement=arrangement
    ).eval()


def _cells(spec: Specification, arrangement: Arrangement, features: Tensor) -> npt.NDArray[np.int64]:
    """Return the cell of every example."""
    with torch.no_grad():
        found: npt.NDArray[np.int64] = Gate(spec, arrangement)(Domain(spec).clamp(features)).numpy()
    return found


def _head(over: Overapproximation, cell: int, block: Block, first: int) -> Head:
    """Return a cell's head that reads a block whose units begin at `first`."""
    old = over.heads[cell]
    assert old is not None
    W = np.zeros_like(old.W)
    W[:, first : first + len(block.c)] = block.W
    return replace(old, W=W, b=block.b.astype(np.float32))


def _folded(model: nn.Module, layer: nn.Linear) -> nn.Module:
    """Return the layers of a sequential model and one more, linear ones at the end as one: as quick as the model."""
    layers = [*_layers(model)]
    weight, bias = layer.weight.to(torch.float64), layer.bias.to(torch.float64)
    while layers and isinstance(last := layers[-1], nn.Linear) and type(last) is nn.Linear:
        layers.pop()
        if last.bias is not None:
            bias = bias + weight @ last.bias.to(torch.float64)
        weight = weight @ last.weight.to(torch.float64)
    folded = nn.Linear(weight.shape[1], len(weight))
    with torch.no_grad():
        folded.weight.copy_(weight)
        folded.bias.copy_(bias)
    return nn.Sequential(*layers, folded)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a sequential model, whatever it is nested in."""
    if type(module).forward is not nn.Sequential.forward:
        yield module
        return
    for child in module.children():
        yield from _layers(child)


# --- What is given


def _require_outputs_only(spec: Specification) -> None:
    for rule in spec.rules:
        if any(literal.inputs for clause in rule.requirement.clauses for literal in clause.literals):
            raise ValueError(
                f"Expected rules without inputs in 'then'. Got rule '{rule.name}', which has one: what it allows moves "
                f"with the input. Train under it instead {_INSTEAD}, or state a constant limit per region."
            )


def _features(examples: Tensor | npt.ArrayLike, spec: Specification) -> Tensor:
    if isinstance(examples, tuple):
        raise ValueError(
            f"Expected examples of shape (rows, {len(spec.columns)}). Got several arguments: only models of the "
            f"features alone can be corrected. Others are trained under the rules {_INSTEAD}."
        )
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


# --- Plans and heads


def _plans(cell: int, seen: Array, features: Tensor, *, polytopes: Polytopes) -> list[Limits | Duels]:
    """Return what may correct a cell's outputs, best first, from outputs (N, m) that occur in it and their inputs."""
    spec, m = polytopes.spec, seen.shape[1]
    clauses = requirement_of(polytopes, cell).without_pairs().clauses
    labels = label_columns(spec)
    turned = turned_pairs(clauses, labels) if clauses else None
    plans: list[Limits | Duels] = []
    if turned is None or len(turned[0]) <= m:  # more exclusions than outputs are no box in any coordinates
        stated = list(half_spaces(clauses, seen))
        # One of the orders chooses the directions; what is asked along no direction has to follow.
        broken_first = sorted(stated, key=lambda half: -float((seen @ half[0] - half[1]).max()))
        plans += [limits(halves, seen) for halves in (broken_first, stated)]
    if turned is None:
        return plans
    if len(turned[0]) * m > _NUMBERS:
        raise ValueError(
            f"Expected fewer exclusions. Got {len(turned[0])} among {m} outputs: the layer that decides them would "
            f"have more than {_NUMBERS:,} weights. {_ADVICE}"
        )
    answers = np.where(labels, 0.5 * (1 + np.tanh(seen / 2)), seen)
    wanted = (nearest_outputs(spec, features.numpy(), answers) > 0.5) & labels

    def misses(plan: Limits | Duels) -> float:
        block = next(plan.blocks(), None)
        return np.inf if block is None else float(((block(seen) >= 0) != wanted)[:, labels].mean())

    fought = duels(*turned, seen, wanted)
    if plans and misses(plans[0]) <= misses(fought) + _CLOSE:
        return [*plans, fought]
    return [fought, *plans]


def _proved(cell: int, plans: list[Limits | Duels], over: Overapproximation, *, polytopes: Polytopes) -> Block:
    """Return the first correction that is proved for a cell, with the least margin that is."""
    spec, arrangement = polytopes.spec, polytopes.arrangement
    problem = HeadProblem.of(over, spec, arrangement, cell)
    for plan in plans:
        for block in plan.blocks():
            if problem.safe(_head(over, cell, block, 0)):
                return block
    who = f"Rules {_names(arrangement, spec, cell)}"
    first = next((plan for plan in plans if isinstance(plan, Limits)), None)
    if first is not None and first.left:
        raise ValueError(
            f"Expected rules that limit independent combinations of the outputs. {who} apply together and limit "
            f"{first.asked + first.left} combinations, of which {first.asked} are independent: what they allow is no "
            f"box in any coordinates. {_ADVICE}"
        )
    if first is not None and first.boxed(0.0) is None:
        raise ValueError(f"{who} leave no room under the alternatives that suit the examples best. {_ADVICE}")
    raise NotCertifiedError(
        f"{who}: no margin that was tried covers the rounding of the head. Widen what the rules allow, or bring the "
        "outputs to a smaller scale."
    )
