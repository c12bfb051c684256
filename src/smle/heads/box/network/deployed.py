"""From torch to the deployed program: gates, starting points, and heads frozen as they are deployed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from smle.certificates.gate import domain_arrays, gate_and_arrays
from smle.heads.box.algorithms.center import find_center
from smle.heads.box.box_program import Box as BoxProgram
from smle.heads.box.network.bounds import BoxModule
from smle.heads.box.network.head_parameters import HeadParameters
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.regions.cells import Cells
from smle.rules import Specification
from smle_check.program import Gate, Op, gated

__all__ = ["centers_of", "frozen", "gate_of", "gate_program", "ungated"]

Array = npt.NDArray[np.float64]


def gate_of(spec: Specification, cells: Cells) -> tuple[Gate, dict[str, npt.NDArray[np.generic]]]:
    """Return the gate, and the arrays of domain and gate named as in the model file. Both follow from the rules."""
    gate, arrays = gate_and_arrays(spec, cells)
    bits = [[region in cell for region in cells.gated] for cell in cells]
    signatures = np.array(bits, dtype=np.uint8).reshape(len(cells), len(cells.gated))
    return gate, domain_arrays(spec) | arrays | {"gate.signatures": signatures}


def gate_program(spec: Specification, cells: Cells) -> BoxProgram:
    """Return the deployed gate alone; `cell_of` and `bits_of` say in which cell and regions an input lies."""
    gate, arrays = gate_of(spec, cells)
    last = [Op("cell", "cell", ("bits", "gate.signatures"))] if gate.members else []
    return BoxProgram([*gated(gate), *last], arrays)


def ungated(cells: Cells) -> Cells:
    """Return the cells with one head for the whole domain: no gate, each rule proved over its own region."""
    return Cells(cells.rows, cells.regions, cells.rules, (), ((),), (), ())


def centers_of(spec: Specification, cells: Cells, *, prefer: Array | None) -> list[tuple[Array, Array]]:
    """Return a safe affine answer y0 + Y x of each certified cell, (m,) and (m, d), or raise NotCertifiedError.

    `prefer` (cells, m) has outputs to stay near; NaN rows are ignored.
    """
    result = []
    for index in range(len(cells) - cells.free_cell):
        wish = None if prefer is None or not np.isfinite(prefer[index]).all() else prefer[index]
        y0, slope = find_center(spec, cells, index, prefer=wish)
        result.append((y0, np.zeros((len(spec.targets), len(spec.columns))) if slope is None else slope))
    return result


@torch.no_grad()
def frozen(parameters: HeadParameters, box: BoxModule) -> FrozenHeads:
    """Compute heads and bounds in float64 and round them to float32, as deployed.

    With constant bounds and heads that do not see x, heads carry a safe answer for NaN embeddings. Other heads need
    none, because their clip replaces NaN.
    """
    certified, free = parameters(torch.float64)
    weight, slope, bias = (None if part is None else part.cpu().numpy() for part in certified)
    assert weight is not None
    assert bias is not None
    numbers = box.deployed(parameters.x_shift, parameters.x_scale, torch.float64)
    bounds = Bounds.of_stored({name: value.cpu().numpy().astype(np.float32) for name, value in numbers.items()})
    safe = None if slope is not None or bounds.kind != "constant" else parameters.fallback().cpu().numpy()
    heads: list[Head | None] = [
        Head(weight[c], bias[c], V=None if slope is None else slope[c], fallback=None if safe is None else safe[c])
        for c in range(len(weight))
    ]
    if free is None:
        return FrozenHeads(bounds, tuple(heads))
    return FrozenHeads(bounds, (*heads, None), Head(*(part.cpu().float().numpy() for part in free)))
