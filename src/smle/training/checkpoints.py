"""Checkpoints: one file with everything a run needs to continue, written atomically and without pickle.

Tensors are stored as safetensors, everything else as JSON in the header of the same file. A kill at any moment leaves
either the old file or the new one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from smle.errors import TrainingError
from smle.files import replacing

__all__ = ["Checkpoint", "is_checkpoint", "load_optimizer", "optimizer_state", "read_checkpoint", "write_checkpoint"]

_KIND = "smle-checkpoint-"
_FORMAT = f"{_KIND}1"
Tensors = dict[str, Tensor]


@dataclass
class Checkpoint:
    """Named groups of tensors, and plain JSON data."""

    tensors: dict[str, Tensors] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint to a temporary file and move it into place."""
    flat = {
        f"{group}/{name}": value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for group, members in checkpoint.tensors.items()
        for name, value in members.items()
    }
    header = json.dumps({"groups": list(checkpoint.tensors), "data": checkpoint.data})
    with replacing(path) as (fresh,):
        save_file(flat, fresh, metadata={"format": _FORMAT, "checkpoint": header})


def is_checkpoint(path: Path) -> bool:
    """Return whether a file is a complete checkpoint of smle, of any version."""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("format")).startswith(_KIND)
    except (SafetensorError, ValueError, OSError):
        return False


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises TrainingError if the file is not one."""
    if not is_checkpoint(path):
        raise TrainingError(f"'{path}' is not a checkpoint of smle, or it is damaged. Choose another file.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.get("format") != _FORMAT:
            raise ValueError("unknown format")
        header = json.loads(metadata["checkpoint"])
        tensors: dict[str, Tensors] = {group: {} for group in header["groups"]}
        for name, value in flat.items():
            group, _, rest = name.partition("/")
            tensors[group][rest] = value
        return Checkpoint(tensors, header["data"])
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise TrainingError(
            f"'{path}' is not a checkpoint of this version of smle ({error}). Delete it, or choose another file."
        ) from None


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """Return the state of an optimizer as named tensors and plain data.

    Raises TrainingError if it holds anything else.
    """
    state = optimizer.state_dict()
    tensors: Tensors = {}
    numbers: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            elif value is None or isinstance(value, bool | int | float | str):
                numbers[f"{index}.{name}"] = value
            else:
                raise TrainingError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} ('{name}'), which a checkpoint cannot "
                    "hold. Train without a checkpoint, or use another optimizer."
                )
    groups = [{k: v for k, v in group.items() if not isinstance(v, Tensor)} for group in state["param_groups"]]
    return tensors, {"numbers": numbers, "groups": groups}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors, data: dict[str, Any]) -> None:
    """Restore the state of an optimizer of the same kind."""
    current = optimizer.state_dict()["param_groups"]
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *data["numbers"].items()]:
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    groups = []
    for fresh, stored in zip(current, data["groups"], strict=True):
        # JSON has no tuples.
        restored = {k: tuple(v) if isinstance(fresh.get(k), tuple) else v for k, v in stored.items()}
        groups.append({**fresh, **restored})
    optimizer.load_state_dict({"state": state, "param_groups": groups})
