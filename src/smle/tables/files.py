"""Tables in files: CSV and Parquet, whole or in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_table"]


def read_table(path: Path) -> pd.DataFrame:
    """Return a table with its decimals read as the nearest floats."""
    import pandas as pd

    if not path.is_file():
        raise ValueError(f"Cannot read '{path}': no such file. Expected a CSV file.")
    try:
        table: pd.DataFrame = pd.read_csv(path, **_exact_digits())
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable as CSV ({error}).") from None
    if table.empty:
        raise ValueError(f"{path}: expected rows. Got an empty table.")
    return table


def _exact_digits() -> dict[str, Any]:
    """Ask pandas to read decimals as the nearest floats; from 3.1 on it does so by itself."""
    import pandas as pd

    version = tuple(int(part) for part in pd.__version__.split(".")[:2])
    return {} if version >= (3, 1) else {"float_precision": "round_trip"}
