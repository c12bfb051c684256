"""Joins networks and certificates: verify(net), certify(net), and networks rebuilt from what was certified."""

from __future__ import annotations

import smle.nn  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import smle_check
from smle.certificates.agreement import cells_of
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import issue, require_proved
from smle.errors import ModelFormatError, NotCertifiedError
from smle.guarantees import Verdicts
from smle.guarantees import project as project_heads
from smle.guarantees import verify as verify_frozen_heads
from smle.nn.asked import AskedModule
from smle.nn.backbones import MLP
from smle.nn.box_network import BoxNetwork
from smle.nn.clip import eager
from smle.nn.head import DeployedHead
from smle.nn.network import SafeNetwork
from smle.nn.precision import Float32Only
from smle.nn.quick import Quick
from smle.nn.rules_head import RulesHead
from smle.programs import Perceptron
from smle.rules import Specification
from smle.violations import replayed
from smle_check.reading import BACKBONE

if TYPE_CHECKING:
    from smle.storage import ModelRecord

__all__ = [
    "CorrectedNetwork",
    "DeployedNetwork",
    "RulesHead",
    "Seal",
    "certify",
    "deployed_head",
    "network_of",
    "project",
    "state_of",
    "verify",
]


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


def _computed(backbone: nn.Module, quick: Quick | None, features: Tensor, others: tuple[Any, ...]) -> Any:
    """Return what a backbone makes of its further arguments, if there are any, or else of the features."""
    if others:
        return backbone(*others)
    x = features if features.dtype is torch.float32 else features.float()
    z = quick(x) if quick is not None and eager(x) else None
    return backbone(x) if z is None else z


def state_of(network: DeployedNetwork | CorrectedNetwork | SafeNetwork) -> dict[str, npt.NDArray[Any]]:
    """Return the weights by the names of the model file: `backbone.*`, and the head's own names."""
    state = {f"{BACKBONE}{name}": value for name, value in network.backbone.state_dict().items()}
    if isinstance(network, DeployedNetwork):
        state.update(network.head.state_dict())
    arrays = {name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in state.items()}
    return arrays if isinstance(network, DeployedNetwork) else {**arrays, **network.head.arrays()}


def network_of(record: ModelRecord, spec: Specification) -> DeployedNetwork | CorrectedNetwork | MLP:
    """Return a stored network in torch, in eval mode; without rules it is the perceptron alone.

    Raises:
        ModelFormatError: If there is no network, but an ONNX model, or its numbers do not fit together.
    """
    if record.onnx is not None:
        raise ModelFormatError("Expected the record of a network. Got one of an estimator, which is stored as ONNX.")
    certificate = record.certificate
    state = {name: torch.from_numpy(value.copy()) for name, value in record.weights.items()}
    widths = Perceptron(tensors_of(record.weights)).widths
    zeros = np.zeros(widths[0])
    backbone = MLP(widths[1:-1], widths[-1], shift=zeros, scale=zeros).eval().requires_grad_(False)
    backbone.load_state_dict({k.removeprefix(BACKBONE): v for k, v in state.items() if k.startswith(BACKBONE)})
    if certificate is None:
        return backbone
    if certificate.document["program"]["head"] == "rules":
        return CorrectedNetwork(backbone, RulesHead(certificate)).eval()
    return DeployedNetwork(backbone, deployed_head(certificate, spec, state))


def deployed_head(certificate: Certificate, spec: Specification, state: dict[str, Tensor]) -> DeployedHead:
    """Return the box that a certificate states, with the numbers of a model file.

    Raises:
        ModelFormatError: If these are not the numbers of such a box.
    """
    program = certificate.document["program"]
    try:
        hidden = sum(name.startswith("bounds.hidden.") and name.endswith(".bias") for name in state)
        head = DeployedHead(
            spec,
            cells_of(certificate, spec),
            embedding=len(state["bounds.lower"]),
            affine=program["bounds"] == "affine",
            hidden=[len(state[f"bounds.hidden.{i}.bias"]) for i in range(hidden)],
            passthrough="heads.passthrough" in state,
            nan_safe_clip=program["clip"] == "where",
        )
        head.load_state_dict({name: value for name, value in state.items() if not name.startswith(BACKBONE)})
    except (KeyError, RuntimeError) as error:
        raise ModelFormatError(f"The numbers of the head do not fit its certificate: {error}") from None
    return head


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
            f"Expected an estimator, a corrected model or a network of smle.nn. Got {type(network).__name__}."
        )


def verify(network: BoxNetwork) -> Verdicts:
    """Judge every rule for the network as it would be deployed now.

    What is not proved is `NotProved`, with a corner of the box that breaks it; or `Violated`, with an input at which
    the network itself does. See `smle.attack` and `smle.counterexample`.
    """
    _require_box(network)
    verdicts = verify_frozen_heads(network.frozen_heads(), network.spec, network.cells)
    return verdicts if verdicts.hold else _replayed(verdicts, network)


def _replayed(verdicts: Verdicts, network: BoxNetwork) -> Verdicts:
    """Ask the network itself where its heads are not proved."""
    training = network.training
    deployed = DeployedNetwork.of(network)
    if training:
        network.train()

    def cell_of(X: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
        return np.asarray(deployed.head.cells(torch.tensor(X)).cpu().numpy(), dtype=np.int64)

    asked = AskedModule(deployed, network.spec)
    try:
        asked.ask(np.array([[float(end) for end in network.spec.lower]] * 2))
    except Exception:  # noqa: BLE001  # whatever a backbone raises that reads something else than the features
        return verdicts
    return replayed(verdicts, network.spec, asked, cell_of=cell_of)


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
    try:
        return issue(network.spec, network.cells, over, tensors=tensors, files=files or {})
    except NotCertifiedError:
        require_proved(verify(network), network.spec)  # names an input at which the network breaks a rule, if any
        raise


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
        reason = f": {reasons[0]}" if reasons and reasons[0] else ""
        raise NotCertifiedError(
            f"No safe heads were found for this box{reason}. Leave more room in the rules, or use the head of rules "
            "(enforcement='correct'), which needs none."
        )
    safe.pin(result.over)
    return _accepted(safe)


def _accepted(network: BoxNetwork) -> BoxNetwork:
    """Hand over a network only if the exact checker accepts it; without rules there is nothing to prove."""
    if network.spec.rules:
        certify(network)
    return network
