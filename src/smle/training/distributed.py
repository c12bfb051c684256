"""Averages gradients and losses over the processes of torch.distributed; does nothing with one process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["Group"]


class Group:
    """The processes that train together: those of torch.distributed if it is set up, else just this one."""

    def __init__(self) -> None:
        self.active = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.active else 0
        self.size = dist.get_world_size() if self.active else 1
        # nccl only moves numbers on a GPU.
        self._device = "cuda" if self.active and dist.get_backend() == "nccl" else "cpu"

    @property
    def is_first(self) -> bool:
        """Whether this process writes checkpoints and shows progress."""
        return self.rank == 0

    def sums(self, *values: float) -> tuple[float, ...]:
        """Return sums over all processes."""
        if not self.active:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(total)
        return tuple(total.tolist())

    def average_gradients(self, parameters: Iterable[nn.Parameter], share: float) -> None:
        """Replace gradients by their weighted sum over all processes; `share` is the weight of this one."""
        if not self.active:
            return
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in trained]) * share
        dist.all_reduce(flat)
        for p, part in zip(trained, torch.split(flat, [p.numel() for p in trained]), strict=True):
            p.grad = part.view_as(p).clone()

    @torch.no_grad()
    def broadcast(self, network: nn.Module) -> None:
        """Copy the parameters and buffers of the first process to all others."""
        if not self.active:
            return
        tensors: list[Tensor] = [*network.parameters(), *network.buffers()]
        for tensor in tensors:
            dist.broadcast(tensor.data, src=0)

    def of_first(self, value: Any) -> Any:
        """Return the first process's value."""
        if not self.active:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]
