"""Converts tables and arrays to features, and runs a network on them in eval mode."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.errors import DataError
from smle.rules import Specification
from smle.tables import (
    Reader,
    SetAside,
    apply_domain_policy,
    as_table,
    column_names,
    encode_columns,
    encode_numbers,
    require_bad_rows,
)

__all__ = ["encoded_features", "encoded_targets", "evaluating", "plain_tensor", "predicted", "readable"]


def encoded_features(spec: Specification, X: Any) -> npt.NDArray[Any]:
    """Return encoded inputs (..., d) of a table by column name, or of an array or tensor by position."""
    return encode_columns(spec, plain_tensor(X) if isinstance(X, Tensor) else X)


def plain_tensor(X: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an unchanged NumPy array; formats that NumPy lacks become float32."""
    if X.is_floating_point() and X.dtype is not torch.float64:
        X = X.to(torch.float32)
    return X.numpy(force=True)


def encoded_targets(spec: Specification, y: Any) -> npt.NDArray[np.float64]:
    """Return targets (n, m) of a table, or of a tensor or array (..., m)."""
    if isinstance(y, Tensor):
        y = plain_tensor(y)
    if isinstance(y, np.ndarray) and y.ndim > 2:
        y = y.reshape(-1, y.shape[-1])
    return encode_numbers(spec, y)


def readable(spec: Specification, X: Any) -> tuple[Any, SetAside]:
    """Return the readable rows of a table or an array (n, d), and what is wrong with the others.

    Raises DataError if columns are missing, or an array has another shape.
    """
    table, reader = as_table(X), Reader(spec)
    if column_names(table) is None:
        rows = reader.examine_encoded(table)
        if rows.table.ndim != 2:
            raise DataError(f"Expected a table or an array (rows, columns). Got an array of shape {rows.table.shape}.")
    else:
        rows = reader.examine(table)
    aside = SetAside.of(rows, rows.faults)
    return (aside.others(rows) if len(aside) else X), aside


def predicted(
    network: nn.Module,
    spec: Specification,
    X: Any,
    inputs: tuple[Any, ...],
    out_of_domain: str,
    bad_rows: str = "raise",
    named: dict[str, Any] | None = None,
) -> npt.NDArray[np.float32]:
    """Return a network's answers to a table or an array, in eval mode."""
    named, aside = named or {}, None
    if bad_rows != "raise":
        require_bad_rows(bad_rows)
        if named:
            raise ValueError("Expected no mask and no arguments by name with bad_rows='set aside': rows are left out.")
        X, aside = readable(spec, X)
        if len(aside):
            warnings.warn(aside.text("without_bad_rows"), stacklevel=3)
        inputs = tuple(part[aside.kept] for part in inputs)
    encoded, rows = _features_at(spec, X, named.get("mask"))
    apply_domain_policy(spec, rows, out_of_domain, numbers=None if aside is None else aside.kept)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with evaluating(network), torch.no_grad():  # not inference_mode: a module may compute gradients itself
        served = network(torch.tensor(encoded, device=device), *inputs, **named)
    result: npt.NDArray[np.float32] = served.cpu().numpy()
    result = result[..., 0] if len(spec.targets) == 1 and result.ndim >= encoded.ndim else result
    return result if aside is None else aside.aligned(result)


def _features_at(spec: Specification, X: Any, mask: Tensor | None) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return encoded features (..., d), and the rows that rules read; padding is left alone."""
    values = plain_tensor(X) if isinstance(X, Tensor) else X
    if mask is None or not isinstance(values, np.ndarray) or tuple(mask.shape) != values.shape[:-1]:
        encoded = encoded_features(spec, values)
        return encoded, encoded.reshape(-1, encoded.shape[-1])
    chosen = mask.numpy(force=True).astype(bool)
    rows = encoded_features(spec, values[chosen])
    encoded = values.astype(rows.dtype)
    encoded[chosen] = rows
    return encoded, rows


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put every module into eval mode for a while, then restore its own mode."""
    modes = [(module, module.training) for module in network.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
