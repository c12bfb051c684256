"""Head parameters in units of the data: what a cell asks of its head, and heads made from raw parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.nn.bounds import BoxParameters
from smle.nn.constant_heads import Constants

__all__ = ["CellConstraints", "DataScale", "DirectHeads", "FreeTensors", "HeadParameters", "HeadTensors", "cast"]

Array = npt.NDArray[np.float64]
HeadTensors = tuple[Tensor, Tensor | None, Tensor]
"""W (heads, m, n), V (heads, m, d) or None, b (heads, m), in the user's units."""
FreeTensors = tuple[Tensor, Tensor]
"""W (m, n), b (m,) of the free cell, in the user's units."""


@dataclass(frozen=True, eq=False)
class DataScale:
    """Units in which raw parameters live: x = x_shift + x_scale * x', y = y_shift + y_scale * y'."""

    x_shift: Array
    x_scale: Array
    y_shift: Array
    y_scale: Array

    @classmethod
    def identity(cls, inputs: int, outputs: int) -> DataScale:
        """Return the frame of the user's units."""
        return cls(np.zeros(inputs), np.ones(inputs), np.zeros(outputs), np.ones(outputs))


@dataclass(frozen=True, eq=False)
class CellConstraints:
    """What one cell asks of its head, in the user's units. k clauses, at most j literals each.

    * `g` (k, j, m): output parts of the literals, zero where a clause has fewer.
    * `weights` (k, j): lambda of the center, each row summing to 1, zero where there is no literal.
    * `slack` (k, j): room that the center leaves to each literal by itself, over the clause's region.
    * `clause_slack` (k,): room under `weights`, positive.
    * `slack_offset` (k, j), `slack_slope` (k, j, d): that room as a function of x; `slack` is its least value.
    * `center` (m,), `center_slope` (m, d): the safe affine choice y0 + Y x.
    * `lower`, `upper` (k, d): bounding box of each clause's region; `A` (k, r, d), `a` (k, r): its oblique rows,
      zero-padded.
    * `pairs` (p, 2): exclusions that are not among the clauses, because they are many. The center has no slope then.
    """

    g: Array
    weights: Array
    slack: Array
    clause_slack: Array
    slack_offset: Array
    slack_slope: Array
    center: Array
    center_slope: Array
    lower: Array
    upper: Array
    A: Array
    a: Array
    pairs: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int32))

    @classmethod
    def none(cls, frame: DataScale) -> CellConstraints:
        """Return the needs of the free cell: no clauses, and the origin of the frame as center."""
        m, d = len(frame.y_scale), len(frame.x_scale)
        clauses, sides, rows = np.zeros((0, 1)), np.zeros((0, d)), np.zeros((0, 0))
        return cls(
            np.zeros((0, 1, m)), clauses, clauses, np.zeros(0), clauses, np.zeros((0, 1, d)), frame.y_shift,
            np.zeros((m, d)), sides, sides, np.zeros((0, 0, d)), rows,
        )  # fmt: skip


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a precision; asking first is quicker than `to`."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


class HeadParameters(nn.Module):
    """Raw head parameters in a frame; `forward` gives heads in the user's units.

    The head of the free cell, if there is one, comes last: it is one more slice of the same parameters, which costs an
    optimizer less than parameters of its own. Nothing binds it, and it does not see x.
    Shapes: raw_weight (heads, m, n), raw_bias (heads, m), raw_slope (heads, m, d) or None.
    `relaxed` switches the gauge off, for a first phase of training without rules; such heads are not safe.
    """

    relaxed: bool = False

    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    center: Tensor
    center_slope: Tensor

    def __init__(
        self, cells: list[CellConstraints], frame: DataScale, *, units: int, passthrough: bool, free: bool
    ) -> None:
        super().__init__()
        self._kept: dict[torch.dtype, dict[str, Tensor]] = {}
        self._closed_form: Constants | None = None
        self.certified, self.has_free = len(cells), free
        cells = [*cells, CellConstraints.none(frame)] if free else cells
        heads, m, d = len(cells), len(frame.y_scale), len(frame.x_scale)
        for name in ("x_shift", "x_scale", "y_shift", "y_scale"):
            self._constant(name, getattr(frame, name))
        y0 = np.array([c.center + c.center_slope @ frame.x_shift for c in cells]).reshape(heads, m)
        slope = np.array([c.center_slope * frame.x_scale for c in cells]).reshape(heads, m, d)
        self._constant("center", (y0 - frame.y_shift) / frame.y_scale)
        self._constant("center_slope", slope / frame.y_scale[:, None])
        bound = 1.0 / max(units, 1) ** 0.5
        self.raw_weight = nn.Parameter(torch.empty(heads, m, units).uniform_(-bound, bound))
        self.raw_bias = nn.Parameter(self.center.to(torch.float32).clone())
        self.raw_slope = nn.Parameter(self.center_slope.to(torch.float32).clone()) if passthrough else None

    def _constant(self, name: str, value: npt.ArrayLike) -> None:
        self.register_buffer(name, torch.as_tensor(np.array(value, dtype=np.float64)))

    def constants(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the constant tensors in a precision, and what follows from them alone. Kept between steps."""
        if torch.compiler.is_compiling():  # a compiler folds them, and has fewer inputs to guard
            return self._derive(dtype)
        if dtype in self._kept:
            return self._kept[dtype]
        with torch.inference_mode(False), torch.no_grad():
            self._kept[dtype] = self._derive(dtype)
        return self._kept[dtype]

    def _derive(self, dtype: torch.dtype) -> dict[str, Tensor]:
        known = {name: value.to(dtype) for name, value in self._buffers.items() if value is not None}
        known["resting"] = known["y_shift"] + known["y_scale"] * known["center"]
        known["slope_scale"] = known["y_scale"].unsqueeze(-1) / known["x_scale"]
        known["resting_slope"] = known["center_slope"] * known["slope_scale"]
        # x -> (1, x')
        pad = nn.functional.pad
        known["standard"] = pad(torch.diag(1 / known["x_scale"]), (1, 0))
        known["standard_offset"] = pad(-known["x_shift"] / known["x_scale"], (1, 0), value=1.0)
        return known

    def _forget(self) -> None:
        self._kept.clear()
        self._closed_form = None

    def _apply(self, fn: Any, recurse: bool = True) -> HeadParameters:
        self._forget()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*arguments, **options)

    def closed_form(self, envelope: BoxParameters) -> Constants | None:
        """Return what `smle.nn.constant_heads` needs to take over; None: it cannot."""
        return None

    def step(self, envelope: BoxParameters) -> Tensor | None:
        """Return how far towards the raw head the head goes from the center; None: all the way.

        Shape (heads,), or (heads, m) where outputs have steps of their own.
        """
        return self._step(envelope, self._offset(envelope.center.dtype))

    def _step(self, envelope: BoxParameters, offset: Tensor) -> Tensor | None:
        return None

    def _offset(self, dtype: torch.dtype) -> Tensor:
        """Return how far the raw bias is from the center (heads, m)."""
        return cast(self.raw_bias, dtype) - self.constants(dtype)["center"]

    def forward(self, envelope: BoxParameters) -> tuple[HeadTensors, FreeTensors | None]:
        """Return the certified heads and the free one in the user's units, in the envelope's precision."""
        dtype = envelope.center.dtype
        known = self.constants(dtype)
        offset = self._offset(dtype)
        alpha = None if self.relaxed or not self.certified else self._step(envelope, offset)
        factor = known["y_scale"] if alpha is None else alpha.reshape(len(alpha), -1) * known["y_scale"]
        weight = cast(self.raw_weight, dtype) * factor.unsqueeze(-1)
        bias = torch.addcmul(known["resting"], offset, factor)
        free: FreeTensors | None = None
        if self.has_free:
            weight, last_weight = torch.split(weight, [self.certified, 1])
            bias, last_bias = torch.split(bias, [self.certified, 1])
            free = last_weight.squeeze(0), last_bias.squeeze(0)
        if self.raw_slope is None:
            return (weight, None, bias), free
        drift = (self.raw_slope.to(dtype) - known["center_slope"]) * known["slope_scale"]
        slope = known["resting_slope"] + (drift if alpha is None else alpha.reshape(len(alpha), -1, 1) * drift)
        slope = slope[: self.certified]
        return (weight, slope, bias - slope @ known["x_shift"]), free

    @torch.no_grad()
    def assign(self, W: npt.ArrayLike, V: npt.ArrayLike | None, b: npt.ArrayLike) -> None:
        """Set the raw parameters to certified heads given in the user's units. Shapes as in `HeadTensors`."""
        count = self.certified
        weight, bias = (torch.as_tensor(np.asarray(p, dtype=np.float64)) for p in (W, b))
        if self.raw_slope is not None and V is not None:
            slope = torch.as_tensor(np.asarray(V, dtype=np.float64))
            bias = bias + slope @ self.x_shift
            self.raw_slope[:count].copy_(slope * self.x_scale / self.y_scale[:, None])
        self.raw_weight[:count].copy_(weight / self.y_scale[:, None])
        self.raw_bias[:count].copy_((bias - self.y_shift) / self.y_scale)

    @torch.no_grad()
    def assign_free(self, weight: Tensor, bias: Tensor) -> None:
        """Set the free head, if there is one, to one given in the user's units: weight (m, n), bias (m,)."""
        if self.has_free:
            self.raw_weight[-1].copy_(weight / self.y_scale.unsqueeze(-1))
            self.raw_bias[-1].copy_((bias - self.y_shift) / self.y_scale)

    @torch.no_grad()
    def fallback(self) -> Tensor:
        """Return the center of each certified cell (heads, m): a safe constant where rules have no x-terms."""
        centers = self.y_shift + self.y_scale * (self.center - self.center_slope @ (self.x_shift / self.x_scale))
        return centers[: self.certified]


class DirectHeads(HeadParameters):
    """Heads without the gauge: an enforcement projects them."""
