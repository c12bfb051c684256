"""Networks from stored weights: which program runs is what the certificate states."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smle.assurance import DeployedNetwork
from smle.errors import ModelFormatError
from smle.guarantees import Arrangement
from smle.nn.backbones import MLP
from smle.nn.head import DeployedHead
from smle.rules import Specification

__all__ = ["architecture_of", "rebuild"]


def architecture_of(description: dict[str, Any]) -> dict[str, Any]:
    """Return the widths in model.json.

    Raises:
        ModelFormatError: If they are not those of an MLP.
    """
    try:
        architecture = description["architecture"]
        hidden, embedding = list(architecture["hidden"]), architecture["embedding"]
        if architecture["backbone"] == "mlp" and all(type(w) is int and w > 0 for w in [*hidden, embedding]):
            return {"hidden": hidden, "embedding": embedding}
    except (KeyError, TypeError):
        pass
    raise ModelFormatError("model.json: expected the architecture of an MLP backbone.")


def hidden_widths(weights: dict[str, npt.NDArray[Any]]) -> tuple[int, ...]:
    """Return the widths of the hidden layers of bounds by a network."""
    names = sorted(name for name in weights if name.startswith("bounds.hidden.") and name.endswith(".bias"))
    return tuple(len(weights[f"bounds.hidden.{i}.bias"]) for i in range(len(names)))


def rebuild(
    spec: Specification,
    arrangement: Arrangement,
    architecture: dict[str, Any],
    program: dict[str, Any] | None,
    weights: dict[str, npt.NDArray[Any]],
) -> DeployedNetwork:
    """Rebuild the network; which program runs is what the certificate states, not what the weights suggest."""
    try:
        zeros = np.zeros(len(spec.columns))
        backbone = MLP(architecture["hidden"], architecture["embedding"], shift=zeros, scale=zeros)
        head = DeployedHead(
            spec,
            arrangement,
            embedding=architecture["embedding"],
            affine=program is not None and program["bounds"] == "affine",
            hidden=hidden_widths(weights) if program is not None and program["bounds"] == "network" else (),
            passthrough="heads.passthrough" in weights,
            nan_safe_clip=program is not None and program["clip"] == "where",
        )
        state = {name: torch.from_numpy(value) for name, value in weights.items()}
        prefix = "backbone."
        backbone.load_state_dict({k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)})
        head.load_state_dict({k: v for k, v in state.items() if not k.startswith(prefix)})
    except (KeyError, TypeError, RuntimeError) as error:
        raise ModelFormatError(f"The weights do not fit the architecture in model.json: {error}") from None
    return DeployedNetwork(backbone, head)
