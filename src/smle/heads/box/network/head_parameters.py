"""Trainable head parameters, scaled to the data, and the heads they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.networks.units import DataScale

__all__ = ["FreeTensors", "HeadParameters", "HeadTensors"]

Array = npt.NDArray[np.float64]
HeadTensors = tuple[Tensor, Tensor | None, Tensor]
"""W (heads, m, n), V (heads, m, d) or None, b (heads, m), in the user's units."""
FreeTensors = tuple[Tensor, Tensor]
"""W (m, n), b (m,) of the free cell, in the user's units."""


class HeadParameters(nn.Module):
    """Raw head parameters in a frame; `forward` returns heads in the user's units.

    The head of the free cell, if there is one, comes last, as one more slice of the same parameters, which is cheaper
    for an optimizer than separate ones. No rule binds it, and it does not see x. Other heads start from centers: affine
    outputs y0 + Y x that obey the rules of a cell, (m,) and (m, d). Shapes: raw_weight (heads, m, n), raw_bias (heads,
    m), raw_slope (heads, m, d) or None.
    """

    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    center: Tensor
    center_slope: Tensor

    def __init__(
        self, centers: Sequence[tuple[Array, Array]], frame: DataScale, *, units: int, passthrough: bool, free: bool
    ) -> None:
        super().__init__()
        self._kept: dict[torch.dtype, dict[str, Tensor]] = {}
        self.certified, self.has_free = len(centers), free
        m, d = len(frame.y_scale), len(frame.x_scale)
        centers = [*centers, (frame.y_shift, np.zeros((m, d)))] if free else centers
        heads = len(centers)
        for name in ("x_shift", "x_scale", "y_shift", "y_scale"):
            self._constant(name, getattr(frame, name))
        y0 = np.array([y0 + Y @ frame.x_shift for y0, Y in centers]).reshape(heads, m)
        slope = np.array([Y * frame.x_scale for _, Y in centers]).reshape(heads, m, d)
        self._constant("center", (y0 - frame.y_shift) / frame.y_scale)
        self._constant("center_slope", slope / frame.y_scale[:, None])
        bound = 1.0 / max(units, 1) ** 0.5
        self.raw_weight = nn.Parameter(torch.empty(heads, m, units).uniform_(-bound, bound))
        self.raw_bias = nn.Parameter(self.center.to(torch.float32).clone())
        self.raw_slope = nn.Parameter(self.center_slope.to(torch.float32).clone()) if passthrough else None

    def _constant(self, name: str, value: npt.ArrayLike) -> None:
        self.register_buffer(name, torch.as_tensor(np.array(value, dtype=np.float64)))

    def constants(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the constant tensors in a precision, and what derives from them alone. Cached between steps."""
        if torch.compiler.is_compiling():  # a compiler folds constants, and then guards fewer inputs
            return self._derive(dtype)
        if dtype in self._kept:
            return self._kept[dtype]
        with torch.inference_mode(False), torch.no_grad():
            self._kept[dtype] = self._derive(dtype)
        return self._kept[dtype]

    def _derive(self, dtype: torch.dtype) -> dict[str, Tensor]:
        known = {name: value.to(dtype) for name, value in self._buffers.items() if value is not None}
        known["slope_scale"] = known["y_scale"].unsqueeze(-1) / known["x_scale"]
        # maps x to (1, x')
        pad = nn.functional.pad
        known["standard"] = pad(torch.diag(1 / known["x_scale"]), (1, 0))
        known["standard_offset"] = pad(-known["x_shift"] / known["x_scale"], (1, 0), value=1.0)
        return known

    def _apply(self, fn: Any, recurse: bool = True) -> HeadParameters:
        self._kept.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self._kept.clear()
        super()._load_from_state_dict(*arguments, **options)

    def forward(self, dtype: torch.dtype) -> tuple[HeadTensors, FreeTensors | None]:
        """Return the certified heads and the free one, in the user's units."""
        known = self.constants(dtype)
        weight = self.raw_weight.to(dtype) * known["y_scale"].unsqueeze(-1)
        bias = torch.addcmul(known["y_shift"], self.raw_bias.to(dtype), known["y_scale"])
        free: FreeTensors | None = None
        if self.has_free:
            weight, last_weight = torch.split(weight, [self.certified, 1])
            bias, last_bias = torch.split(bias, [self.certified, 1])
            free = last_weight.squeeze(0), last_bias.squeeze(0)
        if self.raw_slope is None:
            return (weight, None, bias), free
        slope = self.raw_slope[: self.certified].to(dtype) * known["slope_scale"]
        return (weight, slope, bias - slope @ known["x_shift"]), free

    @torch.no_grad()
    def assign(self, W: npt.ArrayLike, V: npt.ArrayLike | None, b: npt.ArrayLike) -> None:
        """Set the raw parameters to certified heads in the user's units. Shapes as in `HeadTensors`."""
        count = self.certified
        weight, bias = (torch.as_tensor(np.asarray(p, dtype=np.float64)) for p in (W, b))
        if self.raw_slope is not None and V is not None:
            slope = torch.as_tensor(np.asarray(V, dtype=np.float64))
            bias = bias + slope @ self.x_shift
            self.raw_slope[:count].copy_(slope * self.x_scale / self.y_scale[:, None])
        self.raw_weight[:count].copy_(weight / self.y_scale[:, None])
        self.raw_bias[:count].copy_((bias - self.y_shift) / self.y_scale)

    @torch.no_grad()
    def assign_free(self, weight: npt.ArrayLike, bias: npt.ArrayLike) -> None:
        """Set the free head, given in the user's units: weight (m, n), bias (m,)."""
        weight, bias = (torch.as_tensor(np.asarray(p, dtype=np.float64)) for p in (weight, bias))
        self.raw_weight[-1].copy_(weight / self.y_scale.unsqueeze(-1))
        self.raw_bias[-1].copy_((bias - self.y_shift) / self.y_scale)

    @torch.no_grad()
    def fallback(self) -> Tensor:
        """Return the center of each certified cell (heads, m): a safe constant where rules have no x-terms."""
        centers = self.y_shift + self.y_scale * (self.center - self.center_slope @ (self.x_shift / self.x_scale))
        return centers[: self.certified]
