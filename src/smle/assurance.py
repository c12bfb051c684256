"""Joins networks and certificates: verify(net), certify(net), and networks rebuilt from what was certified."""

from __future__ import annotations

import smle.nn  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
import copy
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import issue
from smle.errors import NotCertifiedError
from smle.guarantees import Verdicts, conflicts_explained
from smle.guarantees import project as project_heads
from smle.guarantees import verify as verify_overapproximation
from smle.nn.clip import eager
from smle.nn.corrector import corrected
from smle.nn.head import DeployedHead
from smle.nn.network import SafeNetwork
from smle.nn.precision import Float32Only
from smle.nn.quick import Quick
from smle.rules import Specification
from smle.tables import column_names, encode_inputs

__all__ = ["DeployedNetwork", "Seal", "certify", "correct", "project", "state_of", "verify"]


class DeployedNetwork(Float32Only):
    """A backbone and a frozen head: what is certified, stored and served. It has nothing left to train.

    The head is its own: training the network that it was made of goes on elsewhere. The backbone is shared, since the
    proof does not depend on it.
    """

    def __init__(self, backbone: nn.Module, head: DeployedHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self._quick = Quick.of(backbone)
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def of(cls, network: SafeNetwork) -> DeployedNetwork:
        """Return the deployed form of a trained network, as it is now."""
        network.eval()
        return cls(network.backbone, copy.deepcopy(network.deployed))

    def forward(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the outputs (batch, m)."""
        # Looking up parts as attributes takes longer than the arithmetic of one row.
        parts: dict[str, Any] = self._modules
        if backbone_inputs:
            z = parts["backbone"](*backbone_inputs)
        else:
            x = features if features.dtype is torch.float32 else features.float()
            z = self._quick(x) if self._quick is not None and eager(x) else None
            if z is None:
                z = parts["backbone"](x)
        outputs: Tensor = parts["head"].forward(features, z)
        return outputs


def state_of(network: DeployedNetwork) -> dict[str, npt.NDArray[Any]]:
    """Return the weights by the names of the model file: `backbone.*`, and the head's own names."""
    state = {f"backbone.{name}": value for name, value in network.backbone.state_dict().items()}
    state.update(network.head.state_dict())
    return {name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in state.items()}


class Seal:
    """The numbers of a deployed network when it was certified: tells whether they were changed since.

    Contents are compared. torch's counters of changes miss writes through `.data` and through numpy, and comparing
    a head takes some ten microseconds.
    """

    def __init__(self, network: DeployedNetwork, tensors: dict[str, smle_check.Tensor]) -> None:
        self._network, self._tensors = network, tensors
        self._parts = [
            (name.split(".") if name else [], {key: _copied(value) for key, value in part._buffers.items()})
            for name, part in network.head.named_modules()
        ]

    def changed(self) -> list[str]:
        """Return the names of all tensors, those of the backbone included, that are others now."""
        now = tensors_of(state_of(self._network))
        names = {name for name in self._tensors.keys() | now.keys() if self._tensors.get(name) != now.get(name)}
        return sorted(names | set(self.changed_in(self._network.head)))

    def changed_in(self, head: nn.Module) -> list[str]:
        """Return the names of the tensors in a head that are not the certified ones."""
        found = []
        for path, known in self._parts:
            part: nn.Module | None = head
            for name in path:
                part = None if part is None else part._modules.get(name)
            now = {} if part is None else part._buffers
            for name, value in known.items():
                other = now.get(name)
                if other is not value and not _same(other, value):
                    found.append(".".join([*path, name]))
        return found


def _copied(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach().cpu().clone()


def _same(now: Tensor | None, known: Tensor | None) -> bool:
    if now is None or known is None or now.dtype is not known.dtype:
        return False
    now = now if now.is_cpu else now.cpu()
    # Bit by bit only where it matters: NaN is not equal to itself.
    return torch.equal(now, known) or (now.shape == known.shape and now.numpy().tobytes() == known.numpy().tobytes())


def _require_safe_network(network: SafeNetwork) -> None:
    if not isinstance(network, SafeNetwork):
        raise TypeError(
            f"Expected a SafeNetwork. Got {type(network).__name__}. SafeNetwork.from_model and smle.correct make one "
            "of a torch model. An estimator or a model folder is checked by smle.load(folder).certificate_.check()."
        )


def verify(network: SafeNetwork) -> Verdicts:
    """Judge every rule for the network as it would be deployed now."""
    _require_safe_network(network)
    return verify_overapproximation(network.overapproximation(), network.spec, network.arrangement)


def certify(
    network: SafeNetwork, *, tensors: dict[str, smle_check.Tensor] | None = None, files: dict[str, bytes] | None = None
) -> Certificate:
    """Return a certificate for the deployed form of the network, as it is now.

    What is trained, loaded or written into the network later is not covered: certify it again.

    Args:
        network: The network; it is switched to eval mode.
        tensors: The weights as stored, if the certificate is for a file; those of the network by default.
        files: The files to bind, by role (`model`, `rules`).

    Raises:
        NotCertifiedError: If a rule cannot be proved.
    """
    _require_safe_network(network)
    deployed = DeployedNetwork.of(network)
    if tensors is None:
        tensors = tensors_of(state_of(deployed))
    over = deployed.head.overapproximation()
    return issue(network.spec, network.arrangement, over, tensors=tensors, files=files or {})


def project(network: SafeNetwork, *, margin: float = 0.0) -> SafeNetwork:
    """Return a copy with the nearest safe heads (in squared distance of their parameters); nothing is trained.

    Args:
        network: The network; it is not changed.
        margin: Extra room to keep in every clause, in the units of its left-hand side.

    Raises:
        NotCertifiedError: If no safe heads were found, or the exact checker does not accept them.
    """
    _require_safe_network(network)
    safe = copy.deepcopy(network)
    safe.eval()
    result = project_heads(safe.overapproximation(), safe.spec, safe.arrangement, margin=margin)
    if not result.succeeded:
        reasons = [head.reason for head in result.heads if head is not None and head.reason]
        raise NotCertifiedError(f"No safe heads were found near the given ones. {' '.join(reasons[:1])}".strip())
    safe.hold(result.over)
    return _accepted(safe)


def correct(model: nn.Module, spec: Specification, examples: Tensor | npt.ArrayLike) -> SafeNetwork:
    """Make a model obey rules without training: a network that answers as the model, corrected where rules ask it.

    Where no rule applies the answers are the model's, bit for bit (but a zero may change its sign, and beside an output
    that is NaN, infinite or near the end of float32 the others may become NaN). Outside a border with several inputs,
    such as `a + b <= 1`, a band of the width of float64 rounding counts as inside. Where rules apply, answers that they
    allow stay within float32 rounding, others move to the border. Labels that exclude or imply each other: those that
    lose are pushed far below zero, as the nearest allowed answers to the examples say. Of other rules with alternatives
    (`or`, `!=`) one convex part is kept, fitted to the examples: answers outside it move although the rule allows them.
    There, too, answers are limited to the range seen in `examples`, widened by its own width on either side. NaN from
    the model becomes a safe constant there. The model is copied, in eval mode, and not changed.

    Args:
        model: Maps inputs (batch, d) to outputs (batch, m) in float32, in the order of `spec.columns` and
            `spec.targets` (logits for labels, scores for choices).
        spec: The rules, without inputs in `then`.
        examples: Inputs (rows, d) that show which outputs occur, at least 30 wherever a rule applies; a table is
            read by the names of its columns. No targets.

    Returns:
        The network in eval mode, accepted by the exact checker; nothing in it is left to train. Its `correction`,
        which `print(network)` shows, counts the answers to the examples that moved although the rules allow them.

    Warns:
        UserWarning: If few examples lie where a rule applies, or many allowed answers moved.

    Raises:
        ValueError: If rules mention inputs in `then`, or limit more combinations of the outputs at once than are
            independent; if examples, or the model's answers to them, have the wrong shape or are not finite; if a
            rule applies to no example.
        TypeError: If the model is not in float32.
        ContradictionError: If rules leave no room together; names the fewest that clash, and where.
        NotCertifiedError: If they leave no room for rounding, or the exact checker does not accept the network.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected a torch module. Got {type(model).__name__}.")
    if column_names(examples) is not None:
        examples = encode_inputs(spec, examples)
    with conflicts_explained(spec):
        network = _accepted(corrected(model, spec, examples, measure=True))
    for warning in () if network.correction is None else network.correction.warnings():
        warnings.warn(warning, stacklevel=2)
    return network


def _accepted(network: SafeNetwork) -> SafeNetwork:
    """Hand over a network only if the exact checker accepts it; without rules there is nothing to prove."""
    if network.spec.rules:
        certify(network)
    return network
