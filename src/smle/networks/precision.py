"""Keeps certified heads in float32: the proof is about float32 arithmetic and its unit round-off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Float32Only", "float32_by_default"]


class Float32Only(nn.Module):
    """A module that refuses conversion to another float format, before anything has changed."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kind = fn(torch.zeros((), dtype=torch.float32)).dtype
        if kind is not torch.float32:
            raise TypeError(
                f"Expected a safe network to stay in float32, the format of its certificate. Got a conversion to "
                f"{kind}. Convert the backbone alone (network.backbone), or run it under torch.autocast, which does "
                "not reach the head."
            )
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Make new tensors and layers float32, whatever the default dtype of torch is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
