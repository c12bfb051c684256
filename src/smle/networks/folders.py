"""Folders of networks: arrays, rules and the certificate, but no code. To load one, bring the module."""

from __future__ import annotations

from os import PathLike
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.certificates.document import Certificate
from smle.errors import ModelFormatError
from smle.networks.backbones import Answers, Rescaled
from smle.rules import Specification
from smle.storage import ModelRecord, description_of, write_record
from smle_check.reading import BACKBONE

__all__ = ["CertifiedModule", "backbone_state", "save_network", "weights_of"]

Array = npt.NDArray[Any]


class CertifiedModule(Protocol):
    """A backbone and a head behind it, which can be certified and written: `SafeNetwork`, `BoxNetwork`."""

    spec: Specification

    @property
    def backbone(self) -> nn.Module:
        """The module in front of the head."""

    def head_arrays(self) -> dict[str, Array]:
        """Return the arrays of the head, named as in the model file."""

    def eval(self) -> Any:
        """Switch to eval mode."""

    def certified(self, files: dict[str, bytes] | None = None) -> Certificate | None:
        """Return a certificate for the network as it is, bound to files, or None if there are no rules."""

    def reading_features(self) -> nn.Module:
        """Return the module that maps features to what the head reads."""


def weights_of(network: CertifiedModule) -> dict[str, Array]:
    """Return the weights, named as in the model file: `backbone.*`, and the head's own names."""
    state = network.backbone.state_dict().items()
    own = {f"{BACKBONE}{name}": np.array(value.detach().cpu().numpy(), order="C") for name, value in state}
    return own | network.head_arrays()


def backbone_state(record: ModelRecord) -> dict[str, Tensor]:
    """Return the stored weights of the backbone, for `load_state_dict`."""
    own = {name.removeprefix(BACKBONE): value for name, value in record.weights.items() if name.startswith(BACKBONE)}
    return {name: torch.from_numpy(value.copy()) for name, value in own.items()}


def save_network(network: CertifiedModule, folder: str | PathLike[str], *, overwrite: bool = False) -> Certificate:
    """Write a model folder with backbone, head, rules and certificate; return the certificate.

    An existing certified model is replaced only with `overwrite=True`. Raises NotCertifiedError if a rule is not
    proved.
    """
    spec, module = network.spec, network.backbone
    backbone = module.backbone if isinstance(module, Rescaled | Answers) else module
    assert isinstance(backbone, nn.Module)
    description = description_of(type(network).__name__, spec, backbone=_name_of(backbone))
    rules = spec.to_yaml()
    if isinstance(module, Answers):
        description["embedding"] = module.last.in_features
    certificate = network.certified({"model": ModelRecord.description_bytes(description), "rules": rules.encode()})
    assert certificate is not None
    write_record(ModelRecord(weights_of(network), description, rules, certificate), folder, overwrite=overwrite)
    return certificate


def _name_of(backbone: nn.Module) -> str:
    """Return the class of a module, or raise ModelFormatError if its tensors cannot be stored."""
    for name, value in backbone.state_dict().items():
        if not isinstance(value, Tensor) or value.dtype is torch.bfloat16:
            what = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ModelFormatError(f"Expected tensors that can be stored. Got '{name}' as {what}. Call model.float().")
    return f"{type(backbone).__module__}.{type(backbone).__qualname__}"
