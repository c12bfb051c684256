"""Torch modules with a certified head behind them, and how to load them again."""

from __future__ import annotations

# isort: split
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.certificates.agreement import require_same_rules
from smle.errors import ModelFormatError, NotCertifiedError
from smle.heads.box.network.assurance import CertifiedNetwork
from smle.heads.table import certify_head
from smle.networks.backbones import Rescaled, as_module
from smle.networks.certified_head import CertifiedHead
from smle.networks.folders import backbone_state
from smle.networks.predicted import encoded_features, evaluating
from smle.networks.safe_network import SafeNetwork
from smle.rules import Specification
from smle.serving.fronts import typical
from smle.storage import ModelRecord

__all__ = ["correct_module", "load_network"]


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


def load_network(
    record: ModelRecord, backbone: nn.Module | Callable[..., Any], *, verify: bool = True
) -> SafeNetwork | CertifiedNetwork:
    """Load the network of a folder; the module gets the stored weights.

    Raises ModelFormatError if they are not those of such a module, CertificateError if the certificate does not fit the
    files, and NotCertifiedError if there is none.
    """
    certificate = record.certificate
    if record.rules is None or certificate is None:
        raise NotCertifiedError("The model folder has no certificate.json, or no rules.yaml.")
    spec = Specification.from_yaml(record.rules + "\n")
    if verify:
        certificate.check()
        require_same_rules(certificate, spec)
    own = backbone_state(record)
    try:
        if certificate.kind != "box":
            found = SafeNetwork.of(backbone, spec, certificate, embedding=record.description.get("embedding"))
            found.backbone.load_state_dict(own)
            found.is_fresh = False
            return found.eval()
        inner = as_module(backbone)
        inner = Rescaled(inner, len(own["rescale.scale"])) if "rescale.scale" in own else inner
        inner.load_state_dict(own)
        return CertifiedNetwork(inner, spec, certificate)
    except RuntimeError as error:
        raise ModelFormatError(
            f"Expected backbone= to be a module like the stored one ({record.description.get('backbone')}). Its "
            f"numbers do not fit: {error}"
        ) from None
