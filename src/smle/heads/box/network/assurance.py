"""Verify, certify and project networks, and rebuild them from stored records."""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.errors import ModelFormatError, NotCertifiedError
from smle.heads.box.algorithms.projection import project as project_heads
from smle.heads.box.algorithms.replay import replayed
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.issue_box import issue, require_proved
from smle.heads.box.proof.verdict import Verdicts
from smle.heads.box.proof.verify import verify as verify_frozen_heads
from smle.networks.asked import AskedModule
from smle.networks.backbones import MLP, Quick, quickly
from smle.networks.certified_head import CertifiedHead
from smle.networks.features import plain_numbers
from smle.networks.folders import backbone_state, weights_of
from smle.networks.predicted import evaluating, predicted
from smle.networks.safe_network import SafeNetwork
from smle.rules import Specification
from smle.serving.perceptron import Perceptron

if TYPE_CHECKING:
    from smle.storage import ModelRecord

__all__ = ["CertifiedNetwork", "certify", "network_of", "project", "verify"]


class CertifiedNetwork(nn.Module):
    """A stored box network: a backbone with certified heads, not trainable.

    The head's numbers are those of the certificate and read-only. The proof does not depend on the backbone.
    """

    def __init__(self, backbone: nn.Module, spec: Specification, certificate: Certificate) -> None:
        super().__init__()
        self.backbone, self.spec, self.certificate_ = backbone, spec, certificate
        self.head = CertifiedHead(certificate)
        self._quick = Quick.of(backbone)
        self.requires_grad_(False)
        self.eval()

    def forward(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the outputs (batch, m)."""
        parts: dict[str, Any] = self._modules  # attribute access is slow
        backbone, head = parts["backbone"], parts["head"]
        numbers = plain_numbers(features)
        x = numbers if numbers.dtype is torch.float32 else numbers.to(torch.float32)
        z = None if backbone_inputs else quickly(self._quick, backbone, x)
        if z is None:
            features = features.clone()  # rules apply to what was passed, but a backbone may write to it
            z = backbone(*backbone_inputs) if backbone_inputs else backbone(x)
        outputs: Tensor = head.forward(features, z)  # skip global module hooks: nothing may change the output of a head
        return outputs

    def head_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the head, named as in the model file."""
        return self.head.arrays()

    def predict(
        self, X: Any, *inputs: Any, out_of_domain: str = "raise", bad_rows: str = "raise"
    ) -> npt.NDArray[np.float32]:
        """Answer a table or an array: (n,) for one output, else (n, m)."""
        return predicted(self, self.spec, X, inputs, out_of_domain, bad_rows)


def network_of(record: ModelRecord, spec: Specification) -> SafeNetwork | CertifiedNetwork | MLP:
    """Rebuild a stored network in torch, in eval mode; without rules it is the perceptron alone.

    Raises ModelFormatError if the record holds an ONNX model, or its arrays do not match.
    """
    if record.onnx is not None:
        raise ModelFormatError("Expected the record of a network. Got one of an estimator, which is stored as ONNX.")
    widths = Perceptron(tensors_of(record.weights)).widths
    zeros = np.zeros(widths[0])
    backbone = MLP(widths[1:-1], widths[-1], shift=zeros, scale=zeros).eval().requires_grad_(False)
    backbone.load_state_dict(backbone_state(record))
    certificate = record.certificate
    if certificate is None:
        return backbone
    if certificate.kind == "box":
        return CertifiedNetwork(backbone, spec, certificate)
    return SafeNetwork.of(backbone, spec, certificate).eval()


def _require_box(network: BoxNetwork) -> None:
    if not isinstance(network, BoxNetwork):
        raise TypeError(
            f"Expected an estimator, a corrected model or a network of smle.nn. Got {type(network).__name__}."
        )


def verify(network: BoxNetwork) -> Verdicts:
    """Judge every rule for the network as it would be deployed now.

    What is not proved is `NotProved`, with a corner of the box that breaks the rule, or `Violated`, with an input at
    which the network itself does. See `smle.attack` and `smle.counterexample`.
    """
    _require_box(network)
    verdicts = verify_frozen_heads(network.frozen_heads(), network.spec, network.cells)
    return verdicts if verdicts.hold else _replayed(verdicts, network)


def _replayed(verdicts: Verdicts, network: BoxNetwork) -> Verdicts:
    """Run the network itself where its heads are not proved."""
    asked = AskedModule(network, network.spec)
    with evaluating(network):
        try:
            asked.ask(np.array([network.spec.ends()[0]] * 2))
        except Exception:  # noqa: BLE001  # whatever a backbone raises that reads something else than the features
            return verdicts
        return replayed(verdicts, network.spec, asked, cell_of=network.deployed.cell_of)


def certify(
    network: BoxNetwork, *, tensors: dict[str, smle_check.Tensor] | None = None, files: dict[str, bytes] | None = None
) -> Certificate:
    """Return a certificate for the deployed form of the network, as it is now.

    It does not cover later changes: after training or loading weights, certify again.

    Args:
        network: The network; it is switched to eval mode.
        tensors: The weights as stored, if the certificate is for a file; by default those of the network.
        files: The files to bind, by role (`model`, `rules`).

    Raises:
        NotCertifiedError: If a rule cannot be proved.
    """
    _require_box(network)
    network.eval()
    if tensors is None:
        tensors = tensors_of(weights_of(network))
    try:
        return issue(network.spec, network.cells, network.frozen_heads(), tensors=tensors, files=files or {})
    except NotCertifiedError:
        # Names an input at which the network breaks a rule, if there is one.
        require_proved(verify(network), network.spec)
        raise


def project(network: BoxNetwork, *, margin: float = 0.0) -> BoxNetwork:
    """Return a copy with the nearest safe heads (in squared distance of their parameters), without training.

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
            "(SafeRegressor, SafeClassifier), which needs none."
        )
    safe.pin(result.over)
    certify(safe)
    return safe
