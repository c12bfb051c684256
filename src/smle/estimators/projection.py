"""Edited rules for a trained model: new heads by exact projection (and refit), a new certificate, no training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smle.assurance import CorrectedNetwork, DeployedNetwork, RulesHead, certify, project
from smle.certificates.document import arrays_of
from smle.certificates.issue import rebind
from smle.certificates.rules import certify_rules
from smle.corrected import CorrectedModel
from smle.errors import DataError, NotCertifiedError
from smle.estimators.base import SafeEstimator
from smle.estimators.inner import usage_of
from smle.guarantees import Cells, FrozenHeads, Head, find_cells
from smle.nn.box_network import BoxNetwork
from smle.rules import Choice, Specification
from smle.tables import encode_inputs, require_in_domain
from smle.training.batches import split_rows
from smle.training.refit import refit_network

__all__ = ["project_model"]

Array = npt.NDArray[np.float64]
_POINTS = 8192  # random inputs that tell which old head a new cell takes over


def project_model(
    model: SafeEstimator, spec: Specification, *, X: Any = None, y: Any = None, validation_share: float = 0.2
) -> SafeEstimator:
    """Return a copy of a model that obeys other rules; the backbone and the bounds stay as they are.

    Answers that are corrected are corrected by the new rules instead; an estimator inside may read other columns of the
    table. Of learned heads each cell of the new rules starts from the old one that serves most of it, and gets the
    nearest safe head. With data the heads are then fitted to them, where held-out rows improve.

    Args:
        model: A fitted or loaded model.
        spec: The edited rules, over the same inputs and outputs. Ranges of inputs may change.
        X: Table with the input columns, or None.
        y: Table with the output columns, or None.
        validation_share: Share of the rows that judge the refit.

    Raises:
        DataError: If inputs, outputs or the pick of a choice differ, or the table does not fit.
        ContradictionError: If the new rules cannot be satisfied together.
        NotCertifiedError: If no safe heads were found.
    """
    if not spec.rules:
        raise NotCertifiedError("The edited file states no rules, so there is nothing to prove.")
    if model.is_corrected:
        return _corrected_again(model, spec, X)
    _require_same("inputs", model.specification_, spec)
    _require_same("outputs", model.specification_, spec)
    result, old = model.with_specification(spec), model.network_
    encoded = targets = None
    if X is not None:
        encoded, targets = encode_inputs(spec, X), result._encode_targets(spec, y)
        result._restore(model.description_)  # whether predictions are flat is as it was in training
        require_in_domain(spec, encoded, "rows")
    if isinstance(old, CorrectedNetwork):
        head = _again(old.head, spec, None if targets is None else result._typical(targets))
        result._deploy_behind(old.backbone, head)
        result.description_ = _description(model, result, encoded)
        result._hold(result._bound(head))
        return result
    safe = project(_with_rules(model, old, spec))
    if encoded is not None and targets is not None:
        enforced = result._enforce(spec, encoded, targets)
        kept, held = split_rows(len(encoded), share=validation_share, seed=0)
        rows, wanted = torch.tensor(encoded), torch.tensor(enforced)
        refit_network(safe, rows[kept], wanted[kept], loss=result._refit_loss(), validation=(rows[held], wanted[held]))
    result._deploy(safe)
    result.description_ = _description(model, result, encoded)
    result._hold(certify(safe, files=result._bound_files()))
    return result


def _corrected_again(model: SafeEstimator, spec: Specification, X: Any) -> SafeEstimator:
    """Put the head of other rules behind the estimator of a model."""
    _require_same("outputs", model.specification_, spec)
    old = model.corrected_.certificate_
    default = None if old is None else arrays_of(old.tensors)["clips.default"]
    certificate = certify_rules(spec, default=default)
    corrected = CorrectedModel(model.corrected_.model, spec, certificate)
    result = type(model)(spec, estimator=model.estimator)
    result.specification_, result.n_features_in_, result.corrected_ = spec, model.n_features_in_, corrected
    result._read_outputs(spec, None)
    result._restore(model.description_)
    result.description_ = _description(model, result, None)
    if X is not None:
        require_in_domain(spec, encode_inputs(spec, X), "rows")
        result.description_["training"] = usage_of(corrected, X).to_json()
    result._hold(rebind(certificate, result._bound_files()))
    return result


def _require_same(what: str, old: Specification, new: Specification) -> None:
    ours, theirs = (spec.columns if what == "inputs" else spec.targets for spec in (old, new))
    if ours != theirs:
        raise DataError(
            f"Expected the same {what} as the model's rules ({', '.join(ours)}). Got {', '.join(theirs)}. "
            "Train a new model for other columns."
        )
    before, after = (spec.inputs if what == "inputs" else spec.outputs for spec in (old, new))
    if [type(item) for item in before] != [type(item) for item in after]:
        raise DataError(f"Expected the same kinds of {what} as in the model's rules. Train a new model for others.")
    if what == "inputs":
        return
    for was, now in zip(old.outputs, new.outputs, strict=True):
        if isinstance(was, Choice) and isinstance(now, Choice) and was.pick != now.pick:
            raise DataError(
                f"Choice '{was.name}': expected pick: {was.pick}, as in the model's rules. Got pick: {now.pick}, under "
                f"which the same scores mean opposite decisions. Write pick: {was.pick}, or train a new model."
            )


def _again(old: RulesHead, spec: Specification, known: tuple[Array, Array] | None) -> RulesHead:
    """Return the head of other rules; typical answers and their spread are those of data, or else the old ones."""
    if known is None:
        arrays = old.arrays()
        return RulesHead(certify_rules(spec, default=arrays["clips.default"], scale=arrays.get("check.scale")))
    return RulesHead(certify_rules(spec, default=known[0], scale=known[1]))


def _with_rules(model: SafeEstimator, deployed: DeployedNetwork, spec: Specification) -> BoxNetwork:
    """Return a network with the old backbone and bounds whose cells are those of the new rules."""
    head = deployed.head
    cells = find_cells(spec)
    single = head.gate.is_trivial and any(model._cells.regions)  # the model was made without a gate
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


def _sources(model: SafeEstimator, deployed: DeployedNetwork, network: BoxNetwork) -> list[int]:
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
    names = _rule_names(model.specification_, model._cells)
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


def _description(model: SafeEstimator, result: SafeEstimator, encoded: npt.NDArray[Any] | None) -> dict[str, Any]:
    """Return the old description with the origin noted; what was measured under the old rules is left out."""
    origin = model.certificate_
    measured = ("scores", "training")
    description = {key: value for key, value in model.description_.items() if key not in measured}
    provenance = {**description["provenance"], "projected_from": origin.document["digest"] if origin else None}
    description |= {"provenance": provenance, "scores": {}}
    if encoded is not None:
        description["training"] = result.usage_of(encoded).to_json()
    return description
