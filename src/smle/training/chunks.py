"""Tables larger than memory as training data: a Parquet file, one row group at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smle.errors import DataError, MissingDependencyError
from smle.rules import Number, Specification
from smle.tables import encode_inputs, encode_numbers, require_in_domain

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ParquetBatches"]

Array = npt.NDArray[np.float64]


class ParquetBatches:
    """Batches (features, targets) of a Parquet file for `smle.training.train`; one row group is in memory at a time.

    Every pass visits the row groups, and the rows of each, in a new random order that `generator` fixes; a checkpoint
    holds its state. What is shuffled is never more than a row group, so a file that is sorted should be written in
    another order first. Labels are 0/1 columns; for choices give `targets`.

    Args:
        path: The file.
        spec: The rules; columns are matched by name.
        batch_size: Rows per batch.
        seed: Of the order; None: as in the file, for validation.
        groups: Numbers of the row groups to use; None: all. Disjoint ones make training and validation data.
        targets: (table) -> targets (rows, m), where they are not the columns of the rules' outputs.

    Raises:
        DataError: If the file is not Parquet, or lacks columns; in the pass, if rows do not fit the rules.
        MissingDependencyError: If pyarrow is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        spec: Specification,
        *,
        batch_size: int = 1024,
        seed: int | None = None,
        groups: list[int] | None = None,
        targets: Callable[[pd.DataFrame], Array] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"Expected batch_size > 0. Got {batch_size}.")
        if targets is None and not all(isinstance(item, Number) for item in spec.outputs):
            names = {item.name for item in spec.outputs}
            if names != set(spec.targets):
                raise DataError("Expected `targets` for choices: a function from a table to 0/1 columns. Got none.")
        self.path, self.spec, self.batch_size = Path(path), spec, batch_size
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._targets = targets
        self._columns = [item.name for item in (*spec.inputs, *(spec.outputs if targets is None else ()))]
        with self._open() as file:
            missing = [name for name in self._columns if name not in file.schema_arrow.names]
            count = file.num_row_groups
        if missing:
            raise DataError(f"{self.path}: expected the columns {', '.join(missing)}, which it lacks.")
        self.groups = list(range(count)) if groups is None else list(groups)
        if not self.groups or not all(0 <= group < count for group in self.groups):
            raise DataError(f"{self.path}: expected some of the row groups 0 to {count - 1}. Got {self.groups}.")

    def _open(self) -> Any:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise MissingDependencyError(
                "Reading Parquet needs the package pyarrow. Install it with: pip install 'smle[parquet]'"
            ) from error
        try:
            return parquet.ParquetFile(self.path)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: not readable as Parquet ({' '.join(str(error).split())}).") from None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        wanted = None if self._targets is not None else self._columns
        with self._open() as file:
            for place in self._order(len(self.groups)):
                group = self.groups[place]
                table = file.read_row_group(group, columns=wanted).to_pandas(integer_object_nulls=True)
                encoded = encode_inputs(self.spec, table)
                require_in_domain(self.spec, encoded, f"rows of row group {group}")
                targets = encode_numbers(self.spec, table) if self._targets is None else self._targets(table)
                X, y = torch.from_numpy(encoded), torch.from_numpy(np.asarray(targets, dtype=np.float32))
                rows = torch.tensor(self._order(len(X)))
                for start in range(0, len(X), self.batch_size):
                    chosen = rows[start : start + self.batch_size]
                    yield X[chosen], y[chosen]

    def _order(self, count: int) -> list[int]:
        if self.generator is None:
            return list(range(count))
        order: list[int] = torch.randperm(count, generator=self.generator).tolist()
        return order
