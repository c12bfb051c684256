"""The gauge: heads that are safe for every value of their raw parameters.

A gauged head is `center + alpha * direction`. With `slack_k` the room that the center leaves to clause k under
the weights lambda_k of its literals (rounding deducted), and `worst_k` the largest increase that the direction can
cause over the cell,

    alpha = min(1, min over k with worst_k > 0 of slack_k / worst_k)

is safe, differentiable almost everywhere, and needs no solver. Where rules move with x, so do slack and increase, and
alpha is the largest step with `alpha * increase_k(x) <= slack_k(x)` for every x of the cell. The weights are trained
too, inside the part of the simplex where the center keeps a share of its room. Over a cell that is not a box, trained
multipliers mu >= 0 for its oblique rows, with the residual priced over the bounding box, take the place of a solver.
Long lists of exclusions have a step per label (`smle.nn.exclusion_gauge`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.guarantees import bisected
from smle.nn.bounds import Box, BoxParameters
from smle.nn.constant_heads import Constants
from smle.nn.exclusion_gauge import ExclusionSteps
from smle.nn.head_parameters import CellConstraints, DataScale, HeadParameters, cast
from smle.nn.network_bounds import over_boxes
from smle.nn.shapes import fitness

__all__ = ["Gauge"]

Array = npt.NDArray[np.float64]

_UNIT_ROUNDOFF = 2.0**-24
_SAFETY = 1.05  # on rounding terms: they are computed in floats themselves
_TINY = 1e-30
_KEPT_ROOM = 0.1  # share of the center's room that any weights must leave
_NEWTON = 3  # steps of Newton's method for rules that move with x


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
        cells: list[CellConstraints],
        frame: DataScale,
        *,
        units: int,
        passthrough: bool,
        free: bool,
        box: Box,
        domain: tuple[Array, Array],
    ) -> None:
        super().__init__(cells, frame, units=units, passthrough=passthrough, free=free)
        ends = [(np.asarray(end) - frame.x_shift) / frame.x_scale for end in domain]
        # Twice the shift pays for folding the frame into weights, before and after.
        self._constant("span", np.abs(ends).max(axis=0) + 2 * np.abs(frame.x_shift / frame.x_scale))
        stacked = _Stacked([*cells, CellConstraints.none(frame)] if free else cells, frame)
        if box.cuts:
            stacked.cut(cells, frame, domain[1] - domain[0], box.cuts)
        for name, value in stacked.arrays.items():
            self._constant(name, value)
        multiple = (stacked.arrays["weights_present"].sum(axis=2) > 1).any()
        self.raw_lambda = nn.Parameter(torch.zeros(stacked.arrays["weights"].shape)) if multiple else None
        self.sees_inputs = passthrough or box.envelope().is_sloped
        # A bounds' network is priced box by box, against the least room.
        self.is_sloped = bool(stacked.arrays["slack_slope"].any()) and not box.cuts
        rows = stacked.arrays["A"].shape[2]
        shape = (*stacked.arrays["clause_slack"].shape, *((2**box.cuts,) if box.cuts else ()), rows)
        self.raw_mu = nn.Parameter(torch.full(shape, -4.0)) if self.sees_inputs and rows else None
        self.register_buffer("middle", torch.from_numpy((ends[0] + ends[1]) / 2), persistent=False)
        self.register_buffer("side", torch.from_numpy((ends[1] - ends[0]) / 2), persistent=False)
        if box.envelope().is_sloped and not box.cuts:
            self._suit(cells, frame, box)
        self.exclusions = nn.ModuleDict(
            {str(i): self._exclusion_steps(i, cell, frame) for i, cell in enumerate(cells) if len(cell.pairs)}
        )

    @torch.no_grad()
    def _suit(self, cells: list[CellConstraints], frame: DataScale, box: Box) -> None:
        """Let each head start with the units whose width suits its cell."""
        half = box.envelope(torch.float64).half.numpy()
        for raw, cell in zip(self.raw_weight, cells, strict=False):  # the free head takes all
            if len(cell.g):
                raw.mul_(torch.from_numpy(fitness(cell, frame, half)).to(raw.dtype))

    def _exclusion_steps(self, head: int, cell: CellConstraints, frame: DataScale) -> ExclusionSteps:
        zero = frame.y_shift / frame.y_scale
        center = self.center[head].numpy()
        room = -(center + zero) - self._share * (np.abs(center) + np.abs(zero))
        return ExclusionSteps(cell.pairs, room=room, tied=(cell.g != 0).any(axis=(0, 1)))

    def _derive(self, dtype: torch.dtype) -> dict[str, Tensor]:
        known = super()._derive(dtype)
        known["present"] = self.get_buffer("weights_present") > 0
        known["some"] = known["present"].any(dim=2, keepdim=True)
        still = known["center"].abs() + (known["y_shift"] / known["y_scale"]).abs()
        if self.sees_inputs:
            still = still + known["center_slope"].abs() @ known["span"]
        known["still"] = still.unsqueeze(-1)
        known["reach_at"] = nn.functional.pad(known["span"], (1, 0), value=1.0)
        known["box_center_at"] = nn.functional.pad(known["box_center"], (1, 0), value=1.0)
        known["box_half_at"] = nn.functional.pad(known["box_half"], (1, 0))
        if self.raw_lambda is None:
            known["combined"] = (known["weights"].unsqueeze(-1) * known["g"]).sum(dim=2)
            known["size"] = self._share * known["combined"].abs()
            known["room"] = self._room(known["clause_slack"], known["size"], known["still"])
            known["floor"] = known["room"].clamp(min=_TINY)
        return known

    def closed_form(self, envelope: BoxParameters) -> Constants | None:
        """Return what `smle.nn.constant_heads` needs to take over; None: it cannot.

        It can in eager mode on a CPU, between constant bounds, with one literal per clause and no long exclusions.
        """
        simple = envelope.unit and self.raw_lambda is None and not self.sees_inputs and not self.exclusions
        if not simple or not self.certified or self.relaxed or not self.raw_weight.is_cpu:
            return None
        if torch.compiler.is_compiling() or self.raw_weight.dtype is not torch.float32:
            return None
        if self._closed_form is None:
            known = self.constants(torch.float32)
            g = known["combined"]
            self._closed_form = Constants(
                g=g.numpy(),
                g_size=torch.cat([g, known["size"]], dim=2).numpy(),
                **{name: known[name].numpy() for name in ("room", "floor", "center", "resting", "y_scale")},
                certified=self.certified,
            )
        return self._closed_form

    @staticmethod
    def _room(slack: Tensor, size: Tensor, still: Tensor) -> Tensor:
        """Return the room (heads, k) that is left when the rounding of the center's own terms is deducted."""
        return (slack - (size @ still).squeeze(-1)).clamp(min=0)

    @property
    def _share(self) -> float:
        """Rounding of the deployed head and of its stored weights, as a share of everything that it adds up."""
        return _SAFETY * (self.raw_weight.shape[-1] + len(self.x_shift) + 4) * _UNIT_ROUNDOFF

    def clause_weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the combined clauses, what rounding costs them, the center's room, and the weights of the literals.

        Shapes: (heads, k, m), (heads, k, m), (heads, k), (heads, k, j). The room is the least that the center leaves to
        each clause, rounding of its own terms deducted.
        """
        known = self.constants(dtype)
        if self.raw_lambda is None:
            return known["combined"], known["size"], known["room"], known["weights"]
        weights, slack = known["weights"], known["clause_slack"]
        masked = self.raw_lambda.to(dtype).masked_fill(~known["present"], -torch.inf)
        masked = torch.where(known["some"], masked, 0.0)
        free = torch.softmax(masked, dim=2)
        room = (free * known["literal_slack"]).sum(dim=2)
        # Room is linear (or better) in the weights: mix so that the center keeps a share of its own.
        tau = ((1 - _KEPT_ROOM) * slack / (slack - room).clamp(min=1e-12)).clamp(max=1.0)
        tau = torch.where(room >= slack, 1.0, tau)
        mixed = torch.lerp(weights, free, tau.unsqueeze(-1))
        combined = (mixed.unsqueeze(-1) * known["g"]).sum(dim=2)
        size = self._share * combined.detach().abs()
        return combined, size, self._room(torch.lerp(slack, room, tau), size, known["still"]), mixed

    def _step(self, envelope: BoxParameters, offset: Tensor) -> Tensor:
        """Return alpha (heads,): the largest safe step from the center, at most 1; (heads, m) with many exclusions."""
        alpha = self._clause_step(envelope, offset)
        if not self.exclusions:
            return alpha
        rows, tops = self._label_rise(envelope, offset)
        steps = list(alpha.unsqueeze(1).expand(-1, offset.shape[1]).unbind())
        for head, exclusions in self.exclusions.items():
            i = int(head)
            steps[i] = exclusions(rows[i], tops[i], alpha[i])
        return torch.stack(steps)

    def _label_rise(self, envelope: BoxParameters, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Bound how much the direction raises each output over the domain: rows (heads, m, f) and tops (heads, m).

        At most rows.e + tops for some |e_i| <= 1, rounding included. Widths count with their largest value.
        """
        dtype = envelope.center.dtype
        known, W = self.constants(dtype), cast(self.raw_weight, dtype)
        half, (pad, reach) = envelope.half[:, 0], self._rounded(envelope)
        half = half if pad is None else half + pad
        terms = W.detach().abs() @ reach + offset.detach().abs()
        tops = offset + W @ envelope.center[:, 0]
        slope: Tensor | None = None
        if envelope.is_sloped:
            opening = envelope.half[:, 1:]
            half = half + opening @ known["middle"] + opening.abs() @ known["side"]
            slope = W @ envelope.center[:, 1:]
        if self.raw_slope is not None:
            drift = cast(self.raw_slope, dtype) - known["center_slope"]
            terms = terms + drift.detach().abs() @ known["span"]
            slope = drift if slope is None else slope + drift
        rows = W * half
        if slope is not None:
            tops, rows = tops + slope @ known["middle"], torch.cat([rows, slope * known["side"]], dim=2)
        return rows, tops + self._share * terms

    def _clause_step(self, envelope: BoxParameters, offset: Tensor) -> Tensor:
        """Return the step that the clauses allow (heads,)."""
        dtype = envelope.center.dtype
        known = self.constants(dtype)
        g, size, room, weights = self.clause_weights(dtype)
        W = cast(self.raw_weight, dtype)
        v = torch.bmm(g, W)
        # How rounding depends on the parameters does not matter for training, only how large it is.
        terms, rest = W.detach().abs(), offset.detach().abs()
        size_v, pad = v.abs(), None
        if envelope.unit:
            increase, terms = size_v.sum(dim=2, keepdim=True), terms.sum(dim=2) + rest
        else:
            pad, reach = self._rounded(envelope)
            increase, terms = v @ envelope.center + size_v @ envelope.half, terms @ reach + rest
        spread, slope = self._over(g, increase, envelope)
        if pad is not None:
            spread = spread + size_v.detach() @ pad
        if self.raw_slope is not None:
            terms = terms + (cast(self.raw_slope.detach(), dtype) - known["center_slope"]).abs() @ known["span"]
        rounding = torch.baddbmm(spread.unsqueeze(-1), size, terms.unsqueeze(-1))
        worst = torch.baddbmm(rounding, g, offset.unsqueeze(-1)).squeeze(-1)
        if slope is not None:
            own = (size @ known["still"]).squeeze(-1)
            room_at = (weights * known["slack_offset"]).sum(dim=2) - own
            room_slope = (weights.unsqueeze(-1) * known["slack_slope"]).sum(dim=2)
            return self._joint((worst, slope), (room_at, room_slope), room).amin(dim=1)
        floor = known["floor"] if self.raw_lambda is None else room.clamp(min=_TINY)
        return (room / torch.maximum(worst, floor)).amin(dim=1)

    def _over(self, g: Tensor, increase: Tensor, envelope: BoxParameters) -> tuple[Tensor, Tensor | None]:
        """Bound the increase (offset first, then slopes; heads, k, 1 + d) over each clause's region: (heads, k).

        Where rules move with x, it is not to be bounded yet: returns the offset and the slope (heads, k, d).
        """
        direct = self._direct(g)
        if not self.sees_inputs:
            return increase.squeeze(2), None
        if envelope.hidden:
            return increase[..., 0] + self._over_boxes(increase[..., 1:], direct, envelope), None
        if direct is not None:
            if envelope.is_sloped:
                increase = increase + nn.functional.pad(direct, (1, 0))
            else:
                increase = torch.cat([increase, direct], dim=2)
        if self.is_sloped:
            return increase[..., 0], increase[..., 1:]
        if self.raw_mu is not None:
            return increase[..., 0] + self._priced(increase[..., 1:])[0], None
        known = self.constants(g.dtype)
        return torch.addcmul(increase * known["box_center_at"], increase.abs(), known["box_half_at"]).sum(dim=2), None

    def _direct(self, g: Tensor) -> Tensor | None:
        """Return the part of the slope that comes through the pass-through."""
        if self.raw_slope is None:
            return None
        return g @ (self.raw_slope.to(g.dtype) - self.constants(g.dtype)["center_slope"])

    def _over_boxes(self, q: Tensor, direct: Tensor | None, envelope: BoxParameters) -> Tensor:
        """Bound what the bounds' network and the pass-through add over each clause's region (heads, k)."""
        known = self.constants(q.dtype)
        boxes, rows = (known["part_center"], known["part_half"]), (known["A"], known["a"])
        return over_boxes(q, direct, envelope.hidden, boxes=boxes, rows=rows, raw_mu=self.raw_mu)

    def _joint(self, increase: tuple[Tensor, Tensor], room: tuple[Tensor, Tensor], least: Tensor) -> Tensor:
        """Return the largest step, at most 1, with `step * increase(x') <= room(x')` over each clause's region.

        Both are affine in x': offsets (heads, k), slopes (heads, k, d). The step that an input x* allows is
        room(x*) / increase(x*); Newton's method looks for the x* that allows least. It comes from above, so what is
        still missing is made good with the least room: if `step * increase <= room + v`, then
        `least / (least + v)` times the step is safe.
        """
        (d0, d1), (s0, s1) = increase, room
        step, price, chosen = torch.ones_like(least), torch.zeros_like(least), torch.zeros_like(d1)
        bound = torch.zeros_like(least, dtype=torch.bool)
        with torch.no_grad():
            for _ in range(_NEWTON):
                most, priced, x = self._priced(step.unsqueeze(-1) * d1 - s1)
                top, below = s0 + (s1 * x).sum(dim=2) - priced, d0 + (d1 * x).sum(dim=2)
                binds = (step * d0 - s0 + most > 0) & (below > _TINY) & (top > 0)
                chosen, price = torch.where(binds.unsqueeze(-1), x, chosen), torch.where(binds, priced, price)
                step = torch.where(binds, top / below.clamp(min=_TINY), step).clamp(max=1.0)
                bound = bound | binds
        # The same ratio with x* held: this is the gradient of the least one.
        top, below = s0 + (s1 * chosen).sum(dim=2) - price, d0 + (d1 * chosen).sum(dim=2)
        step = torch.where(bound, top.clamp(min=0) / below.clamp(min=_TINY), 1.0).clamp(max=1.0)
        with torch.no_grad():
            excess = (step * d0 - s0 + self._priced(step.unsqueeze(-1) * d1 - s1)[0]).clamp(min=0)
            made_good = least / (least + excess).clamp(min=_TINY)
        return step * made_good

    def _priced(self, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bound max slope.x' over each clause's region: trained mu, residual over the bounding box.

        Returns the bound (heads, k), the part of it that is the rows' `mu (a - A x)` at x, and the corner x of the
        bounding box (heads, k, d) at which it is attained.
        """
        known = self.constants(slope.dtype)
        residual, total, mu = slope, torch.zeros_like(slope[..., 0]), None
        if self.raw_mu is not None:
            mu = nn.functional.softplus(self.raw_mu.to(slope.dtype)) * slope.abs().amax(dim=2, keepdim=True).detach()
            total = (mu * known["a"]).sum(dim=2)
            residual = slope - (mu.unsqueeze(2) @ known["A"]).squeeze(2)
        x = known["box_center"] + residual.sign() * known["box_half"]
        bound = total + (residual * known["box_center"] + residual.abs() * known["box_half"]).sum(dim=2)
        rows = total if mu is None else total - (mu * (known["A"] @ x.unsqueeze(-1)).squeeze(-1)).sum(dim=2)
        return bound, rows, x

    def _rounded(self, envelope: BoxParameters) -> tuple[Tensor | None, Tensor]:
        """Return the rounding of computed bounds (n,), None if they are stored, and the largest |z| (n,)."""
        reach = envelope.center.detach().abs() + envelope.half.detach().abs()
        if not envelope.is_sloped:
            return None, reach.squeeze(1)
        at, share = self.constants(envelope.center.dtype)["reach_at"], 4 * self._share
        for weight, bias in envelope.hidden:
            inner = weight.detach().abs() @ at[1:] + bias.detach().abs()
            at = nn.functional.pad(inner, (1, 0), value=1.0)
            share = share + 4 * _SAFETY * _UNIT_ROUNDOFF * (len(bias) + 2)
        reach = reach @ at
        return share * reach, reach


class _Stacked:
    """The needs of all cells as arrays with one shape, in the frame's units; padding never binds."""

    def __init__(self, cells: list[CellConstraints], frame: DataScale) -> None:
        heads, m, d = len(cells), len(frame.y_scale), len(frame.x_scale)
        k = max((len(c.g) for c in cells), default=1) or 1
        j = max((c.g.shape[1] for c in cells), default=1)
        r = max((c.A.shape[1] for c in cells), default=0)
        g, weights, slack = np.zeros((heads, k, j, m)), np.zeros((heads, k, j)), np.zeros((heads, k, j))
        clause_slack, present = np.ones((heads, k)), np.zeros((heads, k, j))
        slack_offset, slack_slope = np.zeros((heads, k, j)), np.zeros((heads, k, j, d))
        slack_offset[..., 0], weights[..., 0] = 1.0, 1.0  # padding: a room of 1 that nothing uses
        low, high = np.zeros((heads, k, d)), np.zeros((heads, k, d))
        A, a = np.zeros((heads, k, r, d)), np.zeros((heads, k, r))
        for i, c in enumerate(cells):
            count, width, rows = len(c.g), c.g.shape[1], c.A.shape[1]
            g[i, :count, :width], weights[i, :count, :width] = c.g * frame.y_scale, c.weights
            weights[i, :count, width:] = 0.0
            slack[i, :count, :width], clause_slack[i, :count] = c.slack, c.clause_slack
            slack_offset[i, :count, :width] = c.slack_offset + c.slack_slope @ frame.x_shift
            slack_slope[i, :count, :width] = c.slack_slope * frame.x_scale
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
            "slack_offset": slack_offset / norm[:, :, None],
            "slack_slope": slack_slope / norm[:, :, None, None],
            "box_center": (low + high) / 2,
            "box_half": (high - low) / 2,
            "A": A / row_norm[:, :, :, None],
            "a": a / row_norm,
        }

    def cut(self, cells: list[CellConstraints], frame: DataScale, span: Array, cuts: int) -> None:
        """Add the boxes that each clause's box is cut into, as `smle.guarantees.proof.network_boxes` cuts it."""
        shape = (*self.arrays["clause_slack"].shape, 2**cuts, len(span))
        ends = np.zeros(shape), np.zeros(shape)
        for i, c in enumerate(cells):
            for k in range(len(c.g)):
                for p, box in enumerate(bisected(c.lower[k], c.upper[k], span, depth=cuts)):
                    for end, value in zip(ends, box, strict=True):
                        end[i, k, p] = (value - frame.x_shift) / frame.x_scale
        self.arrays |= {"part_center": (ends[0] + ends[1]) / 2, "part_half": (ends[1] - ends[0]) / 2}
