"""Head parameters: the gauge, which is safe for every value of its raw parameters, and plain ones for projections.

A gauged head is `center + alpha * direction`. With `slack_k` the room that the center leaves to clause k under
the weights lambda_k of its literals (rounding deducted), and `worst_k` the largest increase that the direction can
cause over the cell,

    alpha = min(1, min over k with worst_k > 0 of slack_k / worst_k)

is safe, differentiable almost everywhere, and needs no solver. The weights are trained too, inside the part of
the simplex where the center keeps a share of its room. Over a cell that is not a box, trained multipliers mu >= 0
for its oblique rows, with the residual priced over the bounding box, take the place of a solver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.nn.bounds import Box, Envelope

__all__ = ["CellNeeds", "DirectHeads", "Frame", "Gauge", "HeadParameters", "HeadTensors"]

Array = npt.NDArray[np.float64]
HeadTensors = tuple[Tensor, Tensor | None, Tensor]
"""W (heads, m, n), V (heads, m, d) or None, b (heads, m), in the user's units."""

_UNIT_ROUNDOFF = 2.0**-24
_SAFETY = 1.05  # on rounding terms: they are computed in floats themselves
_KEPT_ROOM = 0.1  # share of the center's room that any weights must leave


@dataclass(frozen=True, eq=False)
class Frame:
    """Units in which raw parameters live: x = x_shift + x_scale * x', y = y_shift + y_scale * y'."""

    x_shift: Array
    x_scale: Array
    y_shift: Array
    y_scale: Array

    @classmethod
    def identity(cls, inputs: int, outputs: int) -> Frame:
        """Return the frame of the user's units."""
        return cls(np.zeros(inputs), np.ones(inputs), np.zeros(outputs), np.ones(outputs))


@dataclass(frozen=True, eq=False)
class CellNeeds:
    """What one cell asks of its head, in the user's units. k clauses, at most j literals each.

    * `g` (k, j, m): output parts of the literals, zero where a clause has fewer.
    * `weights` (k, j): lambda of the center, each row summing to 1, zero where there is no literal.
    * `slack` (k, j): room that the center leaves to each literal by itself, over the clause's region.
    * `clause_slack` (k,): room under `weights`, positive.
    * `center` (m,), `center_slope` (m, d): the safe affine choice y0 + Y x.
    * `lower`, `upper` (k, d): bounding box of each clause's region; `A` (k, r, d), `a` (k, r): its oblique rows,
      zero-padded.
    """

    g: Array
    weights: Array
    slack: Array
    clause_slack: Array
    center: Array
    center_slope: Array
    lower: Array
    upper: Array
    A: Array
    a: Array


class HeadParameters(nn.Module):
    """Raw head parameters in a frame; `forward` gives heads in the user's units.

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

    def __init__(self, cells: list[CellNeeds], frame: Frame, *, units: int, passthrough: bool) -> None:
        super().__init__()
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

    def step(self, envelope: Envelope) -> Tensor | None:
        """Return how far (heads,) towards the raw head the head goes from the center; None: all the way."""
        return None

    def forward(self, envelope: Envelope) -> HeadTensors:
        """Return the heads in the user's units, in the envelope's precision."""
        dtype = envelope.center.dtype
        weight, bias = self.raw_weight.to(dtype), self.raw_bias.to(dtype)
        slope = None if self.raw_slope is None else self.raw_slope.to(dtype)
        alpha = None if self.relaxed else self.step(envelope)
        if alpha is not None:
            center = self.center.to(dtype)
            weight = alpha[:, None, None] * weight
            bias = center + alpha[:, None] * (bias - center)
            if slope is not None:
                center_slope = self.center_slope.to(dtype)
                slope = center_slope + alpha[:, None, None] * (slope - center_slope)
        y_shift, y_scale = self.y_shift.to(dtype), self.y_scale.to(dtype)
        weight, bias = weight * y_scale[:, None], y_shift + y_scale * bias
        if slope is None:
            return weight, None, bias
        slope = slope * y_scale[:, None] / self.x_scale.to(dtype)
        return weight, slope, bias - slope @ self.x_shift.to(dtype)

    @torch.no_grad()
    def assign(self, W: npt.ArrayLike, V: npt.ArrayLike | None, b: npt.ArrayLike) -> None:
        """Set the raw parameters to heads given in the user's units. Shapes as in `HeadTensors`."""
        weight, bias = (torch.as_tensor(np.asarray(p, dtype=np.float64)) for p in (W, b))
        if self.raw_slope is not None and V is not None:
            slope = torch.as_tensor(np.asarray(V, dtype=np.float64))
            bias = bias + slope @ self.x_shift
            self.raw_slope.copy_(slope * self.x_scale / self.y_scale[:, None])
        self.raw_weight.copy_(weight / self.y_scale[:, None])
        self.raw_bias.copy_((bias - self.y_shift) / self.y_scale)

    @torch.no_grad()
    def fallback(self) -> Tensor:
        """Return the center of each cell (heads, m): a safe constant where rules have no x-terms."""
        return self.y_shift + self.y_scale * (self.center - self.center_slope @ (self.x_shift / self.x_scale))


class DirectHeads(HeadParameters):
    """Heads without the gauge: an enforcement projects them."""


class Gauge(HeadParameters):
    """Heads that satisfy every clause for every value of the raw parameters."""

    g: Tensor
    literal_slack: Tensor
    clause_slack: Tensor
    weights: Tensor
    box_center: Tensor
    box_half: Tensor
    A: Tensor
    a: Tensor
    span: Tensor

    def __init__(
        self,
        cells: list[CellNeeds],
        frame: Frame,
        *,
        units: int,
        passthrough: bool,
        box: Box,
        domain: tuple[Array, Array],
    ) -> None:
        super().__init__(cells, frame, units=units, passthrough=passthrough)
        ends = [(np.asarray(end) - frame.x_shift) / frame.x_scale for end in domain]
        # Twice the shift pays for folding the frame into weights, before and after.
        self._constant("span", np.abs(ends).max(axis=0) + 2 * np.abs(frame.x_shift / frame.x_scale))
        stacked = _Stacked(cells, frame)
        for name, value in stacked.arrays.items():
            self._constant(name, value)
        multiple = (stacked.arrays["weights_present"].sum(axis=2) > 1).any()
        self.raw_lambda = nn.Parameter(torch.zeros(stacked.arrays["weights"].shape)) if multiple else None
        self.sees_inputs = passthrough or box.envelope().center_slope is not None
        rows = stacked.arrays["A"].shape[2]
        shape = (*stacked.arrays["clause_slack"].shape, rows)
        self.raw_mu = nn.Parameter(torch.full(shape, -4.0)) if self.sees_inputs and rows else None

    def clause_weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the combined clauses (heads, k, m) and the room (heads, k) that the center leaves them."""
        g, weights, slack = self.g.to(dtype), self.weights.to(dtype), self.clause_slack.to(dtype)
        if self.raw_lambda is None:
            return (weights.unsqueeze(-1) * g).sum(dim=2), slack
        masked = self.raw_lambda.to(dtype).masked_fill(self.get_buffer("weights_present") == 0, -torch.inf)
        masked = torch.where(self.get_buffer("weights_present").sum(dim=2, keepdim=True) > 0, masked, 0.0)
        free = torch.softmax(masked, dim=2)
        room = (free * self.literal_slack.to(dtype)).sum(dim=2)
        # Room is linear (or better) in the weights: mix so that the center keeps a share of its own.
        tau = ((1 - _KEPT_ROOM) * slack / (slack - room).clamp(min=1e-12)).clamp(max=1.0)
        tau = torch.where(room >= slack, torch.ones_like(tau), tau)
        mixed = (1 - tau).unsqueeze(-1) * weights + tau.unsqueeze(-1) * free
        return (mixed.unsqueeze(-1) * g).sum(dim=2), (1 - tau) * slack + tau * room

    def step(self, envelope: Envelope) -> Tensor:
        """Return alpha (heads,): the largest safe step from the center, at most 1."""
        dtype = envelope.center.dtype
        g, slack = self.clause_weights(dtype)
        W, db = self.raw_weight.to(dtype), self.raw_bias.to(dtype) - self.center.to(dtype)
        v = g @ W
        share = _SAFETY * (W.shape[-1] + len(self.x_shift) + 4) * _UNIT_ROUNDOFF
        half, reach = self._padded(envelope, share)
        worst = (g @ db.unsqueeze(-1)).squeeze(-1) + v @ envelope.center + v.abs() @ half
        size = W.abs() @ reach + db.abs()
        still = self.center.abs() + (self.y_shift / self.y_scale).abs()
        if self.sees_inputs:
            slope = self._slope(g, v, envelope)
            worst = worst + self._over_region(slope)
            still = still + self.center_slope.abs() @ self.span
            if self.raw_slope is not None:
                drift = self.raw_slope.to(dtype) - self.center_slope.to(dtype)
                size = size + drift.abs() @ self.span.to(dtype)
        # Rounding of the deployed head and of its stored weights, as a share of everything that it adds up.
        worst = worst + share * (g.abs() @ size.unsqueeze(-1)).squeeze(-1)
        room = slack - share * (g.abs() @ still.to(dtype).unsqueeze(-1)).squeeze(-1)
        ratio = torch.where(worst > 0, room.clamp(min=0) / worst.clamp(min=1e-30), torch.inf)
        return ratio.amin(dim=1).clamp(max=1.0)

    def _slope(self, g: Tensor, v: Tensor, envelope: Envelope) -> Tensor:
        """Return how the direction's worst case changes with x' (heads, k, d)."""
        slope = torch.zeros(*g.shape[:2], len(self.x_shift), dtype=g.dtype, device=g.device)
        if envelope.center_slope is not None and envelope.half_slope is not None:
            slope = slope + v @ envelope.center_slope + v.abs() @ envelope.half_slope
        if self.raw_slope is not None:
            slope = slope + g @ (self.raw_slope.to(g.dtype) - self.center_slope.to(g.dtype))
        return slope

    def _over_region(self, slope: Tensor) -> Tensor:
        """Bound max slope.x' over each clause's region (heads, k): trained mu, residual over the bounding box."""
        total: Tensor | float = 0.0
        if self.raw_mu is not None:
            A, a = self.A.to(slope.dtype), self.a.to(slope.dtype)
            mu = nn.functional.softplus(self.raw_mu.to(slope.dtype)) * slope.abs().amax(dim=2, keepdim=True).detach()
            total = (mu * a).sum(dim=2)
            slope = slope - (mu.unsqueeze(2) @ A).squeeze(2)
        middle, half = self.box_center.to(slope.dtype), self.box_half.to(slope.dtype)
        return total + (slope * middle + slope.abs() * half).sum(dim=2)

    def _padded(self, envelope: Envelope, share: float) -> tuple[Tensor, Tensor]:
        """Return the half-width at x' = 0, rounding of computed bounds added, and the largest |z|. Both (n,)."""
        if envelope.center_slope is None or envelope.half_slope is None:
            return envelope.half, envelope.center.abs() + envelope.half
        dtype = envelope.center.dtype
        slopes = envelope.center_slope.abs() + envelope.half_slope.abs()
        reach = envelope.center.abs() + envelope.half.abs() + slopes @ self.span.to(dtype)
        return envelope.half + 4 * share * reach, reach


class _Stacked:
    """The needs of all cells as arrays with one shape, in the frame's units; padding never binds."""

    def __init__(self, cells: list[CellNeeds], frame: Frame) -> None:
        heads, m, d = len(cells), len(frame.y_scale), len(frame.x_scale)
        k = max((len(c.g) for c in cells), default=1)
        j = max((c.g.shape[1] for c in cells), default=1)
        r = max((c.A.shape[1] for c in cells), default=0)
        g, weights, slack = np.zeros((heads, k, j, m)), np.zeros((heads, k, j)), np.zeros((heads, k, j))
        clause_slack, present = np.ones((heads, k)), np.zeros((heads, k, j))
        low, high = np.zeros((heads, k, d)), np.zeros((heads, k, d))
        A, a = np.zeros((heads, k, r, d)), np.zeros((heads, k, r))
        for i, c in enumerate(cells):
            count, width, rows = len(c.g), c.g.shape[1], c.A.shape[1]
            g[i, :count, :width], weights[i, :count, :width] = c.g * frame.y_scale, c.weights
            slack[i, :count, :width], clause_slack[i, :count] = c.slack, c.clause_slack
            present[i, :count, :width] = (c.g != 0).any(axis=2)
            low[i, :count] = (c.lower - frame.x_shift) / frame.x_scale
            high[i, :count] = (c.upper - frame.x_shift) / frame.x_scale
            A[i, :count, :rows] = c.A * frame.x_scale
            a[i, :count, :rows] = c.a - c.A @ frame.x_shift
        # Equal units for all clauses and rows; only ratios matter, so this conditions the numbers.
        norm = np.abs(g).sum(axis=3).max(axis=2)
        norm[norm == 0] = 1.0
        row_norm = np.abs(A).sum(axis=3)
        row_norm[row_norm == 0] = 1.0
        self.arrays: dict[str, Array] = {
            "g": g / norm[:, :, None, None],
            "weights": weights,
            "weights_present": present,
            "literal_slack": slack / norm[:, :, None],
            "clause_slack": clause_slack / norm,
            "box_center": (low + high) / 2,
            "box_half": (high - low) / 2,
            "A": A / row_norm[:, :, :, None],
            "a": a / row_norm,
        }
