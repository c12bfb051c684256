"""Between torch and mathematics: where heads start, and heads as plain arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from smle.guarantees import Bounds, Cells, FrozenHeads, Head, NetworkBounds, find_center
from smle.nn.bounds import Box
from smle.nn.head_parameters import FreeTensors, HeadParameters
from smle.rules import Specification

__all__ = ["centers_of", "frozen", "ungated"]

Array = npt.NDArray[np.float64]


def ungated(cells: Cells) -> Cells:
    """Return the cells with one head for the whole domain: no gate, each rule proved over its own region."""
    return Cells(cells.rows, cells.regions, cells.rules, (), ((),), (), ())


def centers_of(spec: Specification, cells: Cells, *, prefer: Array | None) -> list[tuple[Array, Array]]:
    """Return a safe affine answer y0 + Y x of each certified cell, (m,) and (m, d).

    `prefer` (cells, m): outputs to stay near; NaN rows: none.

    Raises:
        NotCertifiedError: If none is found.
    """
    result = []
    for index in range(len(cells) - cells.free_cell):
        wish = None if prefer is None or not np.isfinite(prefer[index]).all() else prefer[index]
        y0, slope = find_center(spec, cells, index, prefer=wish)
        result.append((y0, np.zeros((len(spec.targets), len(spec.columns))) if slope is None else slope))
    return result


@torch.no_grad()
def frozen(parameters: HeadParameters, box: Box, *, fallback: bool) -> tuple[FrozenHeads, FreeTensors | None]:
    """Compute heads and bounds in float64: rounded to float32 what will be deployed, and the free head."""
    certified, free = parameters(torch.float64)
    weight, slope, bias = (None if part is None else part.cpu().numpy() for part in certified)
    safe = parameters.fallback().cpu().numpy()
    assert weight is not None
    assert bias is not None
    heads: list[Head | None] = [
        Head(weight[c], bias[c], V=None if slope is None else slope[c], fallback=safe[c] if fallback else None)
        for c in range(len(weight))
    ]
    numbers = box.deployed(parameters.x_shift, parameters.x_scale, torch.float64)
    arrays = {name: value.cpu().numpy().astype(np.float32) for name, value in numbers.items()}
    bounds = NetworkBounds.of_stored(arrays) if "hidden.0.weight" in arrays else Bounds(**arrays)
    return FrozenHeads(bounds, tuple(heads + ([] if free is None else [None]))), free
