"""Inputs at which rules are most likely to break: corners, borders and the floats around them, inside regions.

All points lie in the domain, with one column of each category at 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from smle.regions.cells import regions_of
from smle.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import Row, Specification

__all__ = ["border_points", "corner_points", "finished", "region_boxes", "region_points", "stepped", "uniform_points"]

FloatArray = npt.NDArray[np.floating]
Doubles = npt.NDArray[np.float64]
Kind = type[np.floating]
_DIRECTIONS = 24


def uniform_points(
    spec: Specification, rng: np.random.Generator, count: int, *, dtype: Kind = np.float32
) -> FloatArray:
    """Return points (count, d) drawn uniformly from the domain."""
    lower, upper = spec.ends()
    return finished(spec, rng.uniform(lower, upper, (count, len(lower))), dtype)


def corner_points(spec: Specification, rng: np.random.Generator, count: int, *, dtype: Kind = np.float32) -> FloatArray:
    """Return corners of the domain; for each comparison, about half of them are moved to its constant."""
    return finished(spec, _snap(regions_of(spec).rows, _corners(*spec.ends(), rng, count), rng), dtype)


def border_points(
    spec: Specification, rng: np.random.Generator, count: int, *, row: Row, dtype: Kind = np.float32
) -> FloatArray:
    """Return points on the facet of a row, moved by up to three floats to either side."""
    lower, upper = spec.ends()
    inner = rng.uniform(lower, upper, (count, len(lower)))
    points = np.where(rng.random((count, 1)) < 0.5, inner, _corners(lower, upper, rng, count))
    others = [r for r in regions_of(spec).rows if r != row and r.is_comparison]
    cast = finished(spec, _onto(row, _snap(others, points, rng), rng, lower, upper), dtype)
    column = row.coefficients[0][0]
    for _ in range(3):
        cast[:, column] = stepped(cast[:, column], rng, 0.5)
    return finished(spec, cast, dtype)


def region_points(
    spec: Specification, rng: np.random.Generator, count: int, *, region: int, dtype: Kind = np.float32
) -> FloatArray:
    """Return points in a region of `regions_of(spec)`, including corners and edges.

    A region made of comparisons is a box. For any other, most points are mixtures of vertices in random directions; the
    rest lie in its box.
    """
    stated = regions_of(spec)
    polytope = Region.of(stated, spec, [region])
    low, high, _ = polytope.tight_box()
    inner = rng.uniform(low, high, (count, len(low)))
    corners = _corners(low, high, rng, count)
    points = np.where(rng.random((count, 1)) < 0.5, inner, np.where(rng.random(inner.shape) < 0.5, inner, corners))
    if any(not stated.rows[r].is_comparison for r in stated.regions[region]):
        _, _, vertices = RegionMaximum(polytope)(
            rng.standard_normal((_DIRECTIONS, len(low))) / np.maximum(high - low, 1e-9)
        )
        vertices = vertices[np.isfinite(vertices).all(axis=1)]
        if len(vertices):
            shares = rng.dirichlet(np.full(len(vertices), 0.2), count)
            points = np.where(rng.random((count, 1)) < 0.8, shares @ vertices, points)
    return finished(spec, points, dtype)


def finished(spec: Specification, points: FloatArray, dtype: Kind, *, whole: bool = False) -> FloatArray:
    """Cast points to a format and put them into the domain: clamped, with one column of each category at 1.

    With `whole`, integer inputs are rounded to whole numbers, and those with a step to its multiples.
    """
    cast = np.clip(points.astype(dtype), *spec.ends(dtype))
    for group in spec.one_hot:
        winner = cast[:, group].argmax(axis=1)
        cast[:, group] = np.eye(len(group), dtype=dtype)[winner]
    if whole:
        columns = sorted(spec.integral)
        cast[:, columns] = np.rint(cast[:, columns])
    for item, place, flag in spec.flagged:  # a missing input has its stand-in value
        cast[:, flag] = np.rint(cast[:, flag])
        cast[:, place] = np.where(cast[:, [flag]] == 1, np.array(item.stand_in, dtype=dtype), cast[:, place])
    if whole:
        for item, place in spec.input_slices:
            if item.step is not None:
                n, q = item.step.numerator, item.step.denominator
                k = np.rint(cast[:, place].astype(np.float64) * q / n)
                k = np.clip(k, math.ceil(item.lower / item.step), math.floor(item.upper / item.step))
                cast[:, place] = k * n / q
    return cast


def region_boxes(spec: Specification) -> list[tuple[Doubles, Doubles]]:
    """Return, for each region of `regions_of(spec)`, the box of its comparisons: (low, high), (d,) each."""
    stated, domain = regions_of(spec), Domain.of(spec)
    boxes = []
    for region in range(len(stated.regions)):
        low, high, _ = Region.of(stated, spec, [region], domain=domain).tight_box()
        boxes.append((low, high))
    return boxes


def stepped(values: FloatArray, rng: np.random.Generator, share: float) -> FloatArray:
    """Move a share of the values to a neighboring float."""
    side = np.where(rng.random(values.shape) < 0.5, -np.inf, np.inf).astype(values.dtype)
    moved = np.nextafter(values, side, dtype=values.dtype)
    return np.where(rng.random(values.shape) < share, moved, values)


def _corners(lower: Doubles, upper: Doubles, rng: np.random.Generator, count: int) -> Doubles:
    result: Doubles = np.where(rng.random((count, len(lower))) < 0.5, lower, upper)
    return result


def _snap(rows: Sequence[Row], points: Doubles, rng: np.random.Generator) -> Doubles:
    """Move a random half of the points onto each comparison's constant."""
    points = points.copy()
    for row in rows:
        if row.is_comparison:
            ((column, sign),) = row.coefficients
            chosen = rng.random(len(points)) < 0.5
            points[chosen, column] = float(row.bound * sign)
    return points


def _onto(row: Row, points: Doubles, rng: np.random.Generator, lower: Doubles, upper: Doubles) -> Doubles:
    """Move points onto the row's facet by changing one coordinate, where the domain allows it."""
    points = points.copy()
    columns = [c for c, _ in row.coefficients]
    weights = np.array([float(v) for _, v in row.coefficients])
    rest = points[:, columns] @ weights
    pick = rng.integers(len(columns), size=len(points))
    for k, column in enumerate(columns):
        moved = points[:, column] + (float(row.bound) - rest) / weights[k]
        use = (pick == k) & (moved >= lower[column]) & (moved <= upper[column])
        points[use, column] = moved[use]
    return points
