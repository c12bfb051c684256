"""Joins networks and certificates: verify(net), certify(net), and networks rebuilt from what was certified."""

from __future__ import annotations

import smle.nn  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import issue
from smle.errors import NotCertifiedError
from smle.guarantees import Verdicts
from smle.guarantees import project as project_heads
from smle.guarantees import verify as verify_frozen_heads
from smle.nn.box_network import BoxNetwork
from smle.nn.clip import eager
from smle.nn.head import DeployedHead
from smle.nn.network import SafeNetwork
from smle.nn.precision import Float32Only
from smle.nn.quick import Quick
from smle.nn.rules_head import RulesHead
from smle.programs import served_by
from smle_check.reading import BACKBONE

__all__ = ["CorrectedNetwork", "DeployedNetwork", "RulesHead", "Seal", "certify", "project", "state_of", "verify"]


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
    def of(cls, network: BoxNetwork) -> DeployedNetwork:
        """Return the deployed form of a trained network, as it is now."""
        network.eval()
        return cls(network.backbone, copy.deepcopy(network.deployed))

    def forward(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the outputs (batch, m)."""
        # Looking up parts as attributes takes longer than the arithmetic of one row.
        parts: dict[str, Any] = self._modules
        z = _computed(parts["backbone"], self._quick, features, backbone_inputs)
        outputs: Tensor = parts["head"].forward(features, z)
        return outputs

    @property
    def head_count(self) -> int:
        """How many heads there are, the free one included."""
        return len(self.head.gate.signatures)

    @torch.inference_mode()
    def cell_of(self, features: Tensor) -> npt.NDArray[np.int64]:
        """Return which head serves each row (batch,)."""
        if self.head.gate.is_trivial:
            return np.zeros(len(features), dtype=np.int64)
        return np.asarray(self.head.gate(self.head.domain(features)).numpy(), dtype=np.int64)

    @torch.inference_mode()
    def clipped(self, features: Tensor) -> npt.NDArray[np.float32]:
        """Return the share of each row's units that are clipped (batch,)."""
        z = self.backbone(features.to(torch.float32))
        lower, upper = self.head.limits(self.head.domain(features).to(torch.float32))
        return _share(~((z >= lower) & (z <= upper)))


class CorrectedNetwork(nn.Module):
    """A torch module with a certified head behind its answers, which obey the rules whatever the module computes.

    * features (..., d), in the order of the rules' inputs; the module maps them, or the further arguments of
      `forward`, to answers (..., m) in the order of their outputs.
    * The module is the given one, not a copy, and may be trained: the proof is about the head alone, and gradients
      pass where an answer is allowed.
    """

    def __init__(self, backbone: nn.Module, head: RulesHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self._quick = Quick.of(backbone)

    def forward(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return answers that obey the rules (..., m)."""
        parts: dict[str, Any] = self._modules
        answers = _computed(parts["backbone"], self._quick, features, backbone_inputs)
        outputs: Tensor = parts["head"].forward(features, answers)
        return outputs

    def answers(self, features: Tensor) -> Tensor:
        """Return what the module answers by itself (..., m)."""
        found: Tensor = _computed(self.backbone, self._quick, features, ())
        return found

    def cell_of(self, features: Tensor) -> npt.NDArray[np.int64]:
        """Return zeros (batch,)."""
        return np.zeros(len(features), dtype=np.int64)

    @torch.inference_mode()
    def explained(self, features: Tensor) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Return what the module answers, what is served (batch, m), and by what (batch,): see `served_by`."""
        answers = _computed(self.backbone, self._quick, features, ()).float().numpy()
        return answers, *served_by(self.head.program, features.numpy(), answers)


def _computed(backbone: nn.Module, quick: Quick | None, features: Tensor, others: tuple[Any, ...]) -> Any:
    """Return what a backbone makes of its further arguments, if there are any, or else of the features."""
    if others:
        return backbone(*others)
    x = features if features.dtype is torch.float32 else features.float()
    z = quick(x) if quick is not None and eager(x) else None
    return backbone(x) if z is None else z


def _share(touched: Tensor) -> npt.NDArray[np.float32]:
    share: npt.NDArray[np.float32] = touched.to(torch.float32).mean(dim=1).numpy()
    return share


def state_of(network: DeployedNetwork | CorrectedNetwork | SafeNetwork) -> dict[str, npt.NDArray[Any]]:
    """Return the weights by the names of the model file: `backbone.*`, and the head's own names."""
    state = {f"{BACKBONE}{name}": value for name, value in network.backbone.state_dict().items()}
    if isinstance(network, DeployedNetwork):
        state.update(network.head.state_dict())
    arrays = {name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in state.items()}
    return arrays if isinstance(network, DeployedNetwork) else {**arrays, **network.head.arrays()}


class Seal:
    """The numbers of a deployed network when it was certified: tells whether they were changed since.

    Contents are compared. torch's counters of changes miss writes through `.data` and through numpy, and comparing
    a head takes some ten microseconds.
    """

    def __init__(self, network: DeployedNetwork | CorrectedNetwork, tensors: dict[str, smle_check.Tensor]) -> None:
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
        if isinstance(head, RulesHead):
            held = head.certificate.tensors
            names = (name for name in self._tensors.keys() | held.keys() if not name.startswith(BACKBONE))
            return sorted(name for name in names if self._tensors.get(name) != held.get(name))
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


def _require_box(network: BoxNetwork) -> None:
    if not isinstance(network, BoxNetwork):
        raise TypeError(
            f"Expected a BoxNetwork. Got {type(network).__name__}. Estimators, SafeNetwork and models of smle.correct "
            "have a certificate already: model.certificate_.check()."
        )


def verify(network: BoxNetwork) -> Verdicts:
    """Judge every rule for the network as it would be deployed now."""
    _require_box(network)
    return verify_frozen_heads(network.frozen_heads(), network.spec, network.cells)


def certify(
    network: BoxNetwork, *, tensors: dict[str, smle_check.Tensor] | None = None, files: dict[str, bytes] | None = None
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
    _require_box(network)
    deployed = DeployedNetwork.of(network)
    if tensors is None:
        tensors = tensors_of(state_of(deployed))
    over = deployed.head.frozen_heads()
    return issue(network.spec, network.cells, over, tensors=tensors, files=files or {})


def project(network: BoxNetwork, *, margin: float = 0.0) -> BoxNetwork:
    """Return a copy with the nearest safe heads (in squared distance of their parameters); nothing is trained.

    Args:
        network: The network; it is not changed.
        margin: Extra room to keep in every clause, in the units of its left-hand side.

    Raises:
        NotCertifiedError: If no safe heads were found, or the exact checker does not accept them.
    """
    _require_box(network)
    safe = copy.deepcopy(network)
    safe.eval()
    result = project_heads(safe.frozen_heads(), safe.spec, safe.cells, margin=margin)
    if not result.succeeded:
        reasons = [head.reason for head in result.heads if head is not None and head.reason]
        raise NotCertifiedError(f"No safe heads were found near the given ones. {' '.join(reasons[:1])}".strip())
    safe.pin(result.over)
    return _accepted(safe)


def _accepted(network: BoxNetwork) -> BoxNetwork:
    """Hand over a network only if the exact checker accepts it; without rules there is nothing to prove."""
    if network.spec.rules:
        certify(network)
    return network
