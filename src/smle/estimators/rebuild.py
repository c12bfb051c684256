"""Networks from stored weights: which program runs is what the certificate states."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.assurance import CorrectedNetwork, DeployedNetwork, RulesHead
from smle.errors import ModelFormatError
from smle.guarantees import Cells
from smle.nn.backbones import MLP, Standardize
from smle.nn.box_network import BoxNetwork
from smle.nn.head import DeployedHead
from smle.rules import Specification
from smle.storage import ModelRecord
from smle_check.reading import BACKBONE

__all__ = ["architecture_of", "folded", "rebuild"]


@torch.no_grad()
def folded(network: BoxNetwork) -> MLP:
    """Return a trained network without rules as one perceptron: its head is folded into the last layer."""
    free = network.eval().deployed.free
    standardize, *others, last = network.backbone.children()
    assert free is not None
    assert isinstance(standardize, Standardize)
    assert isinstance(last, nn.Linear)
    hidden = [layer.out_features for layer in others if isinstance(layer, nn.Linear)]
    result = MLP(hidden, len(free.bias), shift=standardize.shift.numpy(), scale=standardize.scale.numpy())
    weight, bias = (part.to(torch.float64) for part in (free.weight, free.bias))
    state = {k: v for k, v in network.backbone.state_dict().items() if not k.startswith(f"{len(others) + 1}.")}
    state[f"{len(others) + 1}.weight"] = weight @ last.weight.to(torch.float64)
    state[f"{len(others) + 1}.bias"] = weight @ last.bias.to(torch.float64) + bias
    result.load_state_dict(state)
    return result


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
    spec: Specification, cells: Cells, architecture: dict[str, Any], record: ModelRecord
) -> DeployedNetwork | CorrectedNetwork:
    """Rebuild the network; which program runs is what the certificate states, not what the weights suggest."""
    weights, certificate = record.weights, record.certificate
    program = {} if certificate is None else certificate.document["program"]
    try:
        zeros = np.zeros(len(spec.columns))
        backbone = MLP(architecture["hidden"], architecture["embedding"], shift=zeros, scale=zeros)
        state = {name: torch.from_numpy(value) for name, value in weights.items()}
        backbone.load_state_dict({k.removeprefix(BACKBONE): v for k, v in state.items() if k.startswith(BACKBONE)})
        if certificate is not None and program["head"] == "rules":
            return CorrectedNetwork(backbone, RulesHead(certificate)).eval().requires_grad_(False)
        head = DeployedHead(
            spec,
            cells,
            embedding=architecture["embedding"],
            affine=program.get("bounds") == "affine",
            hidden=hidden_widths(weights) if program.get("bounds") == "network" else (),
            passthrough="heads.passthrough" in weights,
            nan_safe_clip=program.get("clip") == "where",
        )
        head.load_state_dict({k: v for k, v in state.items() if not k.startswith(BACKBONE)})
    except (KeyError, TypeError, RuntimeError) as error:
        raise ModelFormatError(f"The weights do not fit the architecture in model.json: {error}") from None
    return DeployedNetwork(backbone, head)
