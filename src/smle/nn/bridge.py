"""Between torch and mathematics: what the rules ask of the gauge, and the gauge's heads as plain arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from smle.guarantees.cells import Arrangement
from smle.guarantees.center import find_center
from smle.guarantees.geometry import Region, Support
from smle.guarantees.overapproximation import ConstantBounds, Head, Overapproximation
from smle.nn.gauge import Gauge, GaugeRows
from smle.rules import Specification

__all__ = ["frozen_heads", "gauge_rows"]

Array = npt.NDArray[np.float64]


def gauge_rows(spec: Specification, arrangement: Arrangement, *, prefer: Array | None) -> list[GaugeRows]:
    """Return what each certified cell asks of its head.

    Raises:
        ContradictionError: If a cell's requirement has no safe center.
    """
    result = []
    d = len(spec.columns)
    for index, cell in enumerate(arrangement.cells):
        if arrangement.free_cell and index == len(arrangement.cells) - 1:
            continue
        wish = None if prefer is None or not np.isfinite(prefer[index]).all() else prefer[index]
        center = find_center(spec, arrangement, index, prefer=wish)
        lower, upper = bounding_box(spec, arrangement, cell)
        result.append(
            GaugeRows(
                g=center.g,
                slack=center.slacks,
                center=center.y0,
                center_slope=np.zeros((len(spec.targets), d)) if center.Y is None else center.Y,
                lower=lower,
                upper=upper,
            )
        )
    return result


def bounding_box(spec: Specification, arrangement: Arrangement, cell: tuple[int, ...]) -> tuple[Array, Array]:
    """Return a box that contains the cell as the guard sees it. Shapes: (d,), (d,)."""
    region = Region.of(arrangement, spec, cell)
    support = Support(region)
    d = len(spec.columns)
    highest, _, _ = support(np.eye(d))
    lowest, _, _ = support(-np.eye(d))
    domain = region.domain
    return np.maximum(-lowest, domain.low), np.minimum(highest, domain.high)


@torch.no_grad()
def frozen_heads(gauge: Gauge, *, free_cell: bool, fallback: bool) -> Overapproximation:
    """Compute the heads in float64 and round them to float32."""
    weight, slope, bias = (None if part is None else part.cpu().numpy() for part in gauge(torch.float64))
    safe = gauge.fallback().cpu().numpy()
    assert weight is not None
    assert bias is not None
    heads: list[Head | None] = [
        Head(weight[c], bias[c], V=None if slope is None else slope[c], fallback=safe[c] if fallback else None)
        for c in range(len(weight))
    ]
    n = weight.shape[-1]
    return Overapproximation(
        ConstantBounds(-np.ones(n, np.float32), np.ones(n, np.float32)), tuple(heads + ([None] if free_cell else []))
    )
