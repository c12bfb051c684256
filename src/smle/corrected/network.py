"""The torch door: modules with a certified head behind them, their folders, and how they are loaded again.

A folder holds numbers, rules and the certificate, no code: whoever loads it brings the module.
"""

from __future__ import annotations

# isort: split
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.assurance import CertifiedNetwork, backbone_state, certify, weights_of
from smle.certificates.agreement import require_same_rules
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import rebind
from smle.corrected.answers import typical
from smle.errors import ModelFormatError, NotCertifiedError
from smle.heads import certify_head
from smle.nn.backbones import Rescaled
from smle.nn.box_network import BoxNetwork
from smle.nn.certified_head import CertifiedHead
from smle.nn.network import Answers, SafeNetwork, encoded_features, evaluating
from smle.rules import Specification
from smle.storage import ModelRecord, description_of, write_record
from smle_check.reading import BACKBONE

__all__ = ["KINDS", "CertifiedNetwork", "correct_module", "export_network", "load_network", "save_network"]

KINDS = ("SafeNetwork", "BoxNetwork")


def correct_module(model: nn.Module, spec: Specification, examples: Any = None) -> SafeNetwork:
    """Do what `smle.correct` does, for a torch module."""
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


# --- folders


def save_network(
    network: SafeNetwork | BoxNetwork, folder: str | PathLike[str], *, overwrite: bool = False
) -> Certificate:
    """Write a model folder: the backbone's numbers, the head, rules and certificate; return the certificate.

    A certified model that is there is replaced with `overwrite=True`.

    Raises:
        NotCertifiedError: If a rule cannot be proved.
    """
    spec = network.spec
    wrapped = isinstance(network.backbone, Rescaled | Answers)
    backbone = network.backbone.backbone if wrapped else network.backbone
    assert isinstance(backbone, nn.Module)
    description = description_of(type(network).__name__, spec, backbone=_name_of(backbone))
    rules = spec.to_yaml()
    if isinstance(network.backbone, Answers):
        description["embedding"] = network.backbone.last.in_features
    files = {"model": ModelRecord.description_bytes(description), "rules": rules.encode()}
    weights = weights_of(network)
    if isinstance(network, BoxNetwork):
        certificate = certify(network, files=files)
    else:
        own = {name: value for name, value in weights.items() if name.startswith(BACKBONE)}
        certificate = rebind(network.certificate_, files, backbone=tensors_of(own))
    write_record(ModelRecord(weights, description, rules, certificate), folder, overwrite=overwrite)
    return certificate


def export_network(
    network: SafeNetwork, path: str | PathLike[str], *, example: Tensor | tuple[Tensor, ...] | None, monitor: bool
) -> None:
    """Do what `SafeNetwork.to_onnx` does."""
    from smle.export.network import write_network

    with evaluating(network):
        write_network(network, path, example=example, monitor=monitor)


def load_network(record: ModelRecord, backbone: nn.Module, *, verify: bool = True) -> SafeNetwork | CertifiedNetwork:
    """Return the network of a folder; the module gets the stored numbers.

    Raises:
        ModelFormatError: If the numbers are not those of such a module.
        CertificateError: If the certificate does not fit the files.
        NotCertifiedError: If there is none.
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
        if certificate.document["program"]["head"] != "box":
            found = SafeNetwork.of(backbone, spec, certificate, embedding=record.description.get("embedding"))
            found.backbone.load_state_dict(own)
            found.is_fresh = False
            return found.eval()
        inner = Rescaled(backbone, len(own["rescale.scale"])) if "rescale.scale" in own else backbone
        inner.load_state_dict(own)
        return CertifiedNetwork(inner, spec, certificate)
    except RuntimeError as error:
        raise ModelFormatError(
            f"Expected backbone= to be a module like the stored one ({record.description.get('backbone')}). Its "
            f"numbers do not fit: {error}"
        ) from None


def _name_of(backbone: nn.Module) -> str:
    """Return the class of a module whose numbers can be stored."""
    for name, value in backbone.state_dict().items():
        if not isinstance(value, Tensor) or value.dtype is torch.bfloat16:
            what = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ModelFormatError(f"Expected tensors that can be stored. Got '{name}' as {what}. Call model.float().")
    return f"{type(backbone).__module__}.{type(backbone).__qualname__}"
