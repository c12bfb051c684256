"""Torch modules with a certified head behind them, and how to load them again."""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.certificates.agreement import require_same_rules
from smle.certificates.document import Certificate, tensors_of
from smle.errors import ModelFormatError, NotCertifiedError
from smle.heads.table import certify_head
from smle.networks.backbones import MLP, Rescaled, as_module
from smle.networks.certified_head import CertifiedHead
from smle.networks.folders import backbone_state
from smle.networks.predicted import encoded_features, evaluating
from smle.networks.safe_network import SafeNetwork
from smle.rules import Specification
from smle.serving.fronts import typical
from smle.serving.perceptron import Perceptron
from smle.storage import ModelRecord

__all__ = ["correct_module", "load_network", "network_of"]


def correct_module(model: nn.Module, spec: Specification, examples: Any = None) -> SafeNetwork:
    """Like `smle.correct`, for a torch module."""
    network = SafeNetwork(model, spec)
    if examples is not None:
        features, *inputs = examples if isinstance(examples, tuple) else (examples,)
        answers = _raw(network, encoded_features(spec, features), tuple(inputs))
        default, scale = typical(answers.reshape(-1, answers.shape[-1]))
        files = {"rules": spec.to_yaml().encode()}
        network.head = CertifiedHead(certify_head(spec, default=default, scale=scale, files=files))
    return network.eval()


def _raw(network: SafeNetwork, encoded: npt.NDArray[Any], inputs: tuple[Any, ...]) -> npt.NDArray[np.float64]:
    """Return the module's own answers (..., m)."""
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with evaluating(network), torch.no_grad():
        answers, _ = network.answers(torch.tensor(encoded, device=device), *inputs)
    return np.asarray(answers.to(torch.float64).cpu().numpy())


def load_network(record: ModelRecord, backbone: nn.Module | Callable[..., Any], *, verify: bool = True) -> SafeNetwork:
    """Load the network of a folder; the module gets the stored weights.

    Raises ModelFormatError if they are not those of such a module, CertificateError if the certificate does not fit the
    files, and NotCertifiedError if there is none.
    """
    certificate = record.certificate
    if record.rules is None or certificate is None:
        raise NotCertifiedError("The model folder has no certificate.json, or no rules.yaml.")
    spec = record.specification
    if verify:
        certificate.check()
        require_same_rules(certificate, spec)
    try:
        return _stored(record, spec, certificate, backbone)
    except RuntimeError as error:
        raise ModelFormatError(
            f"Expected backbone= to be a module like the stored one ({record.description.get('backbone')}). Its "
            f"numbers do not fit: {error}"
        ) from None


def network_of(record: ModelRecord, spec: Specification) -> SafeNetwork | MLP:
    """Rebuild the perceptron of an estimator in torch, with its head, in eval mode; without rules it is alone.

    Raises ModelFormatError if the record holds an ONNX model, or its arrays do not match.
    """
    if record.onnx is not None:
        raise ModelFormatError("Expected the record of a network. Got one of an estimator, which is stored as ONNX.")
    widths = Perceptron(tensors_of(record.weights)).widths
    zeros = np.zeros(widths[0])
    backbone = MLP(widths[1:-1], widths[-1], shift=zeros, scale=zeros).eval().requires_grad_(False)
    if record.certificate is not None:
        return _stored(record, spec, record.certificate, backbone)
    backbone.load_state_dict(backbone_state(record))
    return backbone


def _stored(
    record: ModelRecord, spec: Specification, certificate: Certificate, backbone: nn.Module | Callable[..., Any]
) -> SafeNetwork:
    """Return a network with the stored weights and head, in eval mode; one with a learned box is not trained again."""
    own, learned = backbone_state(record), certificate.kind == "box"
    if learned and "rescale.scale" in own:
        backbone = Rescaled(as_module(backbone), len(own["rescale.scale"]))
    network = SafeNetwork.of(backbone, spec, certificate, embedding=record.description.get("embedding"))
    network.backbone.load_state_dict(own)
    network.is_fresh = False
    if learned:
        network.requires_grad_(False)
    return network.eval()
