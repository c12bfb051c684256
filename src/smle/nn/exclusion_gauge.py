"""The gauge for long lists of exclusions: a step per label, one scale per label, no clause per pair.

The head of a label goes from its center, at `-room` below zero, toward its raw row by a step of its own. With
`rows` and `tops` such that the raw direction raises label h by at most `rows_h . e + tops_h`, |e_i| <= 1, and one scale
t_h = 1 / ||rows_h||_1 per label (0 where the center leaves no room),

    step_hk = (t_h room_h + t_k room_k) / ( ||t_h rows_h + t_k rows_k||_1 + t_h tops_h + t_k tops_k )

is a safe common step for the pair (h, k). Smaller steps for either label are safe, too: divided by its step, the
weight of a label pays for the same rise with more room. So each label takes the least step of its own pairs, at most
1; a tight pair holds back its two labels and no others. All pairs are one L1 distance matrix, in blocks. Gradients go
through the pair that binds each label.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["MANY_PAIRS", "ExclusionSteps", "l1_norms_of_sums"]

MANY_PAIRS = 1_000
"""Beyond this many exclusions of a cell they are gauged here; up to it each is a clause with weights of its own."""

_KEPT = 2.0**-10  # share of the room that stays: certificates store weights on a grid of 2^-23
_TINY = 1e-30
_BLOCK = 1 << 19  # numbers of a distance matrix, or of gathered rows, at a time


class ExclusionSteps(nn.Module):
    """The steps of one head's labels under its exclusions.

    Args:
        pairs: Labels that exclude each other (p, 2).
        room: How far below zero the center of each label is (m,), rounding of the center deducted, in the units of the
            raw parameters. Labels with no room carry no weight: the other label of each of their pairs stays off.
        tied: Outputs (m,) that other clauses mention: they take one step together.
    """

    first: Tensor
    second: Tensor
    room: Tensor
    tied: Tensor

    def __init__(
        self, pairs: npt.NDArray[np.int32], *, room: npt.NDArray[np.float64], tied: npt.NDArray[np.bool_]
    ) -> None:
        super().__init__()
        # Sorted by the first label, so that a block of rows of the distance matrix is a slice of the pairs.
        ordered = np.sort(pairs, axis=1).astype(np.int64)
        ordered = ordered[np.lexsort((ordered[:, 1], ordered[:, 0]))]
        for name, value in (("first", ordered[:, 0].copy()), ("second", ordered[:, 1].copy()), ("room", room.copy())):
            self.register_buffer(name, torch.from_numpy(value), persistent=False)
        self.register_buffer("tied", torch.from_numpy(tied.copy()), persistent=False)

    def forward(self, rows: Tensor, tops: Tensor, step: Tensor) -> Tensor:
        """Return the step of each output (m,), at most 1.

        Shapes: rows (m, f) and tops (m,) as in the module's formula, `step` () what the other clauses allow.
        """
        room = self.room.to(rows.dtype).clamp(min=0)
        scale = (room > 0) / rows.abs().sum(dim=1).clamp(min=_TINY)
        allowed, rise = (1 - _KEPT) * scale * room, scale * tops
        scaled = scale.unsqueeze(1) * rows
        h, k, binds = self._binding(scaled.detach(), allowed.detach(), rise.detach())
        have = allowed[h] + allowed[k]
        reach = (scaled[h] + scaled[k]).abs().sum(dim=1) + rise[h] + rise[k]
        steps = torch.where(binds, have / torch.maximum(reach, have).clamp(min=_TINY), 1.0)
        together = torch.minimum(step, torch.where(self.tied, steps, 1.0).amin())
        return torch.where(self.tied, together, steps)

    @torch.no_grad()
    def _binding(self, scaled: Tensor, allowed: Tensor, rise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pair (h, k) that allows each label least, (m,) each, and whether there is one."""
        first, second = self.first, self.second
        have = allowed[first] + allowed[second]
        reach = l1_norms_of_sums(scaled, first, second).add_(rise[first]).add_(rise[second])
        steps = have / torch.maximum(reach, have).clamp_(min=_TINY)
        least = torch.ones_like(allowed)
        binding = torch.zeros_like(allowed, dtype=torch.long)
        for end in (first, second):
            least.scatter_reduce_(0, end, steps, "amin")
        for end in (first, second):
            (hits,) = torch.nonzero(steps == least[end], as_tuple=True)
            binding[end[hits]] = hits
        # A label without room of its own is not part of what its pairs rest on: it may go all the way.
        return first[binding], second[binding], (least < 1) & (allowed > 0)


def l1_norms_of_sums(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return ||rows_h + rows_k||_1 for pairs h < k sorted by h, in blocks. Shapes: (m, f), (p,), (p,) -> (p,).

    Where pairs are many, a block is part of a distance matrix; where they are few, their rows are gathered.
    """
    m, p = len(rows), len(first)
    result = rows.new_empty(p)
    if 8 * p < m * m:
        chunk = max(1, _BLOCK // max(1, rows.shape[1]))
        for start in range(0, p, chunk):
            part = slice(start, start + chunk)
            result[part] = (rows[first[part]] + rows[second[part]]).abs_().sum(dim=1)
        return result
    height = max(1, _BLOCK // m)
    ends = torch.searchsorted(first, torch.arange(0, m + height, height, device=first.device)).tolist()
    negative = -rows
    for block, (start, stop) in enumerate(pairwise(ends)):
        if start == stop:
            continue
        top = block * height  # partners come later: the columns before the block are left out
        distances = torch.cdist(rows[top : top + height], negative[top:], p=1.0)
        result[start:stop] = distances[first[start:stop] - top, second[start:stop] - top]
    return result
