"""Where the benchmarks' data come from: a given folder, SMLE_DATA, the user's cache, or a download."""

from __future__ import annotations

import os
from pathlib import Path

from smle.errors import DataError

__all__ = ["data_file", "find_data"]


def find_data(given: str | None) -> Path | None:
    """Return the data folder that is given or named by SMLE_DATA, if any."""
    named = given or os.environ.get("SMLE_DATA")
    return Path(named) if named else None


def data_file(benchmark: str, name: str, given: str | None = None) -> Path:
    """Return the path of one data file.

    Raises:
        DataError: If it is not there.
    """
    folder = find_data(given)
    if folder is None:
        raise DataError("Expected the data. Point --data-dir or SMLE_DATA to the data.")
    path = folder / benchmark / name
    if not path.is_file():
        raise DataError(f"Expected '{path}'. Point --data-dir or SMLE_DATA to the data.")
    return path
