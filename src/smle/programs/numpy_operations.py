"""The operations of `smle_check/program.py` in NumPy, whole columns at a time (certificate format, section 0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from smle_check.program import Gate, Op, Table

__all__ = ["TABLE"]

Array = npt.NDArray[Any]
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
Made = Callable[..., Any]
_ZERO = np.float32(0)
_FEW_HEADS = 2  # compute up to this many heads for all rows, then pick
_MOST_BITS = 62  # bits that fit into one integer


def _clamp(op: Op, x: None, lower: Array, upper: Array) -> Made:
    # fmax and fmin ignore NaN.
    return lambda x: np.fmin(np.fmax(x, lower), upper)


def _cast(op: Op, x: None) -> Made:
    kind = _FLOAT32 if op.kind == "single" else _FLOAT64
    return lambda x: x.astype(kind, copy=False)


def _active(
    op: Op, x: None, wide: None, constants: Array | None, coefficients: Array | None, thresholds: Array | None
) -> Made:
    gate: Gate = op.fixed
    tests = []
    for comparison, constant in zip(gate.comparisons, () if constants is None else constants, strict=True):
        column, negative, strict = comparison
        signs = (np.greater, np.greater_equal) if negative else (np.less, np.less_equal)
        # The sign goes into the constant: a product may flush a small input to zero.
        tests.append((column, signs[not strict], -constant if negative else constant))

    def active(x: Array, wide: Array | None = None) -> Array:
        holds = [compare(x[:, column], constant) for column, compare, constant in tests]
        if wide is not None and coefficients is not None:
            holds += list(~(wide @ coefficients.T > thresholds).T)
        bits = np.ones((len(x), len(gate.members)), dtype=bool)
        for region, rows in enumerate(gate.members):
            for row in rows:
                bits[:, region] &= holds[row]
        return bits

    return active


def _cell(op: Op, bits: None, signatures: Array) -> Made:
    regions = signatures.shape[1]
    strictest = int(signatures.sum(axis=1).argmax())
    if regions <= _MOST_BITS:
        powers = 1 << np.arange(regions)
        codes = signatures.astype(np.int64) @ powers
        order = codes.argsort()
        known = codes[order]

        def searched(bits: Array) -> Array:
            code = bits @ powers
            place = np.minimum(known.searchsorted(code), len(known) - 1)
            return np.where(known[place] == code, order[place], strictest)

        return searched
    table = {row.tobytes(): number for number, row in enumerate(signatures.astype(bool))}
    return lambda bits: np.array([table.get(row.tobytes(), strictest) for row in bits], dtype=np.intp)


def _hidden(op: Op, v: None, weight: Array, bias: Array) -> Made:
    return lambda v: np.maximum(v @ weight.T + bias, _ZERO)


def _affine(op: Op, v: None, slope: Array, offset: Array) -> Made:
    return lambda v: v @ slope.T + offset


def _clip(op: Op, z: None, lower: Array | None, upper: Array | None) -> Made:
    low, high = (np.fmax, np.fmin) if op.fixed == "where" else (np.maximum, np.minimum)  # the latter keep NaN

    def clip(z: Array, lower: Any = lower, upper: Any = upper) -> Array:
        inside: Array = high(z, upper)
        low(inside, lower, out=inside)
        return inside

    return clip


def _affine_at(
    op: Op, place: None, v: None, weight: Array, bias: Array, x: None, slope: Array | None,
    z: None, free_weight: Array | None, free_bias: Array | None,
) -> Made:  # fmt: skip
    names = [
        name for name, given in zip(("c", "v", "x", "z"), (op.args[i] for i in (0, 1, 4, 6)), strict=True) if given
    ]

    def served(head: int, values: dict[str, Array], rows: Any) -> Any:
        """Return the answer of one head to some rows."""
        if head == len(weight):
            return values["z"][rows] @ free_weight.T + free_bias  # type: ignore[union-attr]
        y = values["v"][rows] @ weight[head].T + bias[head]
        return y if slope is None else y + values["x"][rows] @ slope[head].T

    def affine_at(*arguments: Array) -> Any:
        values = dict(zip(names, arguments, strict=True))
        everything = slice(None)
        if "c" not in values:
            return served(0, values, everything)
        cell, heads = values["c"], len(weight) + (free_weight is not None)
        if heads <= _FEW_HEADS:
            y = served(0, values, everything)
            return y if heads == 1 else np.where((cell == 0)[:, None], y, served(1, values, everything))
        result = np.empty((len(cell), bias.shape[1]), dtype=_FLOAT32)
        for head in np.unique(cell):
            rows = np.flatnonzero(cell == head)
            result[rows] = served(head, values, rows)
        return result

    return affine_at


def _or_fallback(op: Op, y: None, place: None, fallback: Array) -> Made:
    def or_fallback(y: Array, cell: Array | None = None) -> Array:
        lost = np.asarray(np.isnan(y).any(axis=1))
        if not lost.any():
            return y
        if cell is None:
            return np.where(lost[:, None], fallback, y)
        free = np.full((1, y.shape[1]), np.nan, dtype=y.dtype)  # nothing is claimed here
        return np.where(lost[:, None], np.concatenate([fallback, free])[cell], y)

    return or_fallback


TABLE: Table = {
    "clamp": _clamp,
    "single": _cast,
    "wide": _cast,
    "active": _active,
    "cell": _cell,
    "hidden": _hidden,
    "affine": _affine,
    "clip": _clip,
    "affine_at": _affine_at,
    "or_fallback": _or_fallback,
}
