"""Certified heads stay in float32: that is the arithmetic, with its unit round-off, that the proof speaks of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "FixedFormats",
    "Float32Only",
    "float32_by_default",
    "full_precision_on_cpu",
    "require_float32",
    "require_full_precision",
]

_FLOAT64 = ("_float64", "gate.coefficients", "gate.thresholds")
"""Constants for float64 inputs, which are compared in their own format, and for sums of the gate end like this."""


class Float32Only(nn.Module):
    """A module that refuses to be converted to another float format, before anything in it has changed.

    The round trip `network.half().float()` would leave rounded constants that nobody certified.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kind = fn(torch.zeros((), dtype=torch.float32)).dtype
        if kind is not torch.float32:
            raise TypeError(
                f"Expected a safe network to stay in float32, the format of its certificate. Got a conversion to "
                f"{kind}. Convert the backbone alone (network.backbone), or run it under torch.autocast: the head is "
                "then computed in float32 all the same."
            )
        return super()._apply(self._converter(fn), recurse)  # type: ignore[no-any-return, no-untyped-call]

    def _converter(self, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return what is applied to the tensors in place of `fn`."""
        return fn


class FixedFormats(Float32Only):
    """A module whose tensors may move to another device but keep their formats.

    It holds constants for float64 inputs, which `network.float()` would round.
    """

    def _converter(self, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype is tensor.dtype else tensor.to(result.device)

        return moved


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Make new tensors and layers float32, whatever torch.set_default_dtype was told."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def require_float32(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Require that the constants of a head are in float32 (those for float64 inputs and sums of the gate in float64).

    Raises:
        TypeError: If one is in another float format.
    """
    for name, tensor in tensors:
        expected = torch.float64 if name.endswith(_FLOAT64) else torch.float32
        if tensor.is_floating_point() and tensor.dtype is not expected:
            raise TypeError(
                f"Expected '{name}' of the certified head in {expected}. Got {tensor.dtype}. Other precisions have no "
                "certificate: convert the backbone alone, and train or load the head again."
            )


# What torch.backends.mkldnn.matmul.fp32_precision (cuda.matmul) reads, at a quarter of the time. Older versions of
# torch have one setting for all devices.
_PRECISION_OF = getattr(torch._C, "_get_fp32_precision_getter", None)


_FULL_PRECISION = frozenset({"none", "ieee", "highest"})

# oneDNN, which multiplies matrices on some CPUs, reads shortcuts from the environment, and torch does not know of it.
_SHORTCUTS = [
    f"{name}={os.environ[name]}"
    for name in ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
    if os.environ.get(name, "").upper() not in ("", "STRICT")
]


def _read_matmul_precision(device: str) -> str:
    if _PRECISION_OF is None:
        return torch.get_float32_matmul_precision()
    return str(_PRECISION_OF("mkldnn" if device == "cpu" else "cuda", "matmul"))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _compiled_matmul_precision(device: str) -> str:
    """Read the setting when a program is compiled (again)."""
    return _read_matmul_precision(device)


def _matmul_precision(device: str) -> str:
    return _compiled_matmul_precision(device) if torch.compiler.is_compiling() else _read_matmul_precision(device)


def full_precision_on_cpu() -> bool:
    """Whether the CPU multiplies matrices in full float32 precision, outside compilers; False is no verdict."""
    return _PRECISION_OF is not None and not _SHORTCUTS and _PRECISION_OF("mkldnn", "matmul") in _FULL_PRECISION


def require_full_precision(device: str) -> None:
    """Require float32 arithmetic without shortcuts (TF32, bfloat16) in matrix products.

    Raises:
        RuntimeError: If torch, or oneDNN by the environment, was told to use them.
    """
    if _SHORTCUTS and device == "cpu":
        raise RuntimeError(
            "Expected full float32 precision in matrix products: what was certified is float32 arithmetic. Got "
            f"{_SHORTCUTS[0]} in the environment, which allows shortcuts. Unset it."
        )
    precision = _matmul_precision(device)
    if precision not in _FULL_PRECISION:
        raise RuntimeError(
            f"Expected full float32 precision in matrix products: what was certified is float32 arithmetic. Got "
            f"'{precision}'. Call torch.set_float32_matmul_precision('highest')."
        )
