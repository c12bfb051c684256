"""Domain and gate of rules as deployed programs see them: half-spaces and their constants, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.guarantees import Cells, domain_box, guard_rows
from smle.rules import Specification
from smle_check.floats import FORMATS
from smle_check.program import Comparison, Gate

__all__ = ["domain_arrays", "gate_and_arrays"]

Arrays = dict[str, npt.NDArray[Any]]


def domain_arrays(spec: Specification) -> Arrays:
    """Return the ends of the domain in both formats, by their names in the model file."""
    found = {}
    for fmt in FORMATS:
        for side, ends in zip(("lower", "upper"), domain_box(spec, fmt), strict=True):
            found[f"domain.{side}_{fmt.name}"] = np.array([float(v) for v in ends], dtype=fmt.name)
    return found


def gate_and_arrays(spec: Specification, cells: Cells, regions: Sequence[int] | None = None) -> tuple[Gate, Arrays]:
    """Return the half-spaces of some regions, by default those that are gated, and their constants by name."""
    regions = cells.gated if regions is None else regions
    guard = guard_rows(cells, spec)
    used = sorted({row for region in regions for row in cells.regions[region]})
    comparisons = [row for row in used if guard[row].is_comparison]
    oblique = [row for row in used if not guard[row].is_comparison]
    arrays: Arrays = {}
    for position, fmt in enumerate(FORMATS):
        constants = [float(guard[row].constants[position]) for row in comparisons]
        arrays[f"gate.constants_{fmt.name}"] = np.array(constants, dtype=fmt.name)
    coefficients = np.zeros((len(oblique), len(spec.columns)))
    for position, row in enumerate(oblique):
        for (column, _), value in zip(guard[row].coefficients, guard[row].stored, strict=True):
            coefficients[position, column] = float(value)
    arrays["gate.coefficients"] = coefficients
    arrays["gate.thresholds"] = np.array([float(guard[row].threshold or Fraction(0)) for row in oblique])
    place = {row: i for i, row in enumerate(comparisons + oblique)}
    single = [(guard[row].coefficients[0], guard[row].strict) for row in comparisons]
    members = tuple(tuple(sorted(place[row] for row in cells.regions[region])) for region in regions)
    rows = tuple(Comparison(column, sign < 0, strict) for (column, sign), strict in single)
    return Gate(rows, len(oblique), members), arrays
