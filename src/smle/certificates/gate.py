"""Domain and gate of rules as deployed programs see them: half-spaces, with the constants that the checker asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import arrays_of
from smle.certificates.issue import compiled
from smle.regions.cells import Cells, regions_of
from smle.rules import Specification
from smle_check.guard import guard_tensors
from smle_check.program import Gate, gate_of

__all__ = ["domain_arrays", "gate_and_arrays"]

Arrays = dict[str, npt.NDArray[Any]]


def domain_arrays(spec: Specification) -> Arrays:
    """Return the ends of the domain in both formats, named as in the model file."""
    return _prescribed(_stated(spec, regions_of(spec)), [], "domain.")


def gate_and_arrays(spec: Specification, cells: Cells) -> tuple[Gate, Arrays]:
    """Return the half-spaces of the gated regions, and their constants by name."""
    stated, regions = _stated(spec, cells), list(cells.gated)
    return gate_of(stated, regions), _prescribed(stated, regions, "gate.")


def _stated(spec: Specification, cells: Cells) -> smle_check.StatedSpecification:
    """Return domain, half-spaces and regions as the checker reads them."""
    return smle_check.StatedSpecification(compiled(spec, cells, bytearray()) | {"rules": []}, b"")


def _prescribed(stated: smle_check.StatedSpecification, regions: list[int], room: str) -> Arrays:
    arrays = arrays_of(guard_tensors(stated, regions))
    return {name: np.array(array) for name, array in arrays.items() if name.startswith(room)}
