"""Loads certified models once per process, and returns their answers as tables."""

from __future__ import annotations

from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smle.rules import Categorical, Choice, Label, NumericInput, Specification
from smle.tables import require_bad_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SET_ASIDE", "answer_table", "certified", "loaded", "output_types", "place_of", "read_columns"]


SET_ASIDE = "set_aside"
"""Name of the column with the reason why a row was set aside."""


def loaded(place: str) -> Any:
    """Return the model of a folder or an exported ONNX file, and check its certificate once per process.

    A folder or file that has been rewritten is loaded and checked again. Raises CertificateError or NotCertifiedError
    if the certificate is rejected or missing.
    """
    path = Path(place)
    files = sorted(path.iterdir()) if path.is_dir() else [path, Path(f"{place}.certificate.json")]
    found = [file.stat() for file in files if file.is_file()]
    return _loaded(place, tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found))


@lru_cache(maxsize=8)
def _loaded(folder: str, files: tuple[tuple[int, int, int], ...]) -> Any:
    return certified(folder)


def certified(folder: str) -> Any:
    """Load a model and check its certificate. Raises as `loaded` does."""
    if folder.lower().endswith(".onnx"):
        from smle.export import load_onnx

        return load_onnx(folder)
    from smle.doors.load import load

    return load(folder, require_certificate=True)


def answer_table(
    model: Any, table: pd.DataFrame, *, out_of_domain: str = "raise", bad_rows: str = "raise"
) -> pd.DataFrame:
    """Return one column per output of the rules, with the index of the table.

    If bad rows are set aside, a further column `set_aside` has the reason or None. Their outputs are NaN or None, so
    labels and integer options are floats, in every part of a table.
    """
    import pandas as pd

    names, types = [item.name for item in model.specification_.outputs], output_types(model, bad_rows=bad_rows)
    if not len(table):
        return pd.DataFrame({name: np.empty(0, dtype=kind) for name, kind in types.items()}, index=table.index)
    if bad_rows == "raise":
        values, more = model.predict(table, out_of_domain=out_of_domain), dict[str, Any]()
    else:
        require_bad_rows(bad_rows)
        good, aside = model.without_bad_rows(table)
        values = aside.aligned(model.predict(good, out_of_domain=out_of_domain)) if len(aside) < len(table) else None
        reasons = np.array([aside.reasons.get(row) for row in range(len(table))], dtype=object)
        more = {SET_ASIDE: reasons}
    if isinstance(values, pd.DataFrame):
        columns: Any = [values[name].to_numpy() for name in names]
    else:
        columns = np.full((len(names), len(table)), None) if values is None else np.asarray(values)
        columns = columns if values is None else columns.reshape(len(table), -1).T
    made = {**{n: column.astype(types[n]) for n, column in zip(names, columns, strict=True)}, **more}
    return pd.DataFrame({n: pd.Series(column, index=table.index, dtype=types[n]) for n, column in made.items()})


def output_types(model: Any, *, bad_rows: str = "raise") -> dict[str, np.dtype[Any]]:
    """Return the types of the columns of `answer_table`: float64, int64 for labels, and the type of the options.

    If bad rows are set aside, integers become float64, which has NaN, and a column `set_aside` is added.
    """
    kinds: dict[str, np.dtype[Any]] = {}
    for item in model.specification_.outputs:
        if isinstance(item, Choice):
            values = np.asarray(getattr(model, "classes_", item.options))
            kinds[item.name] = values.dtype if values.dtype.kind in "iub" else np.dtype(object)
        else:
            kinds[item.name] = np.dtype(np.int64 if isinstance(item, Label) else np.float64)
    if bad_rows == "raise":
        return kinds
    gaps = {name: np.dtype(np.float64) if kind.kind in "iu" else np.dtype(object) for name, kind in kinds.items()}
    return {**{n: k if k.kind == "f" else gaps[n] for n, k in kinds.items()}, SET_ASIDE: np.dtype(object)}


def read_columns(model: Any) -> dict[str, str]:
    """Return the kind (`number`, `whole` or `text`) of each column that a model reads, in order."""
    spec: Specification = model.specification_
    found = {item.name: _kind(item) for item in spec.inputs}
    inside = model.deployed_.front
    for name in inside.columns or ():
        found.setdefault(name, "text" if name in inside.texts else "number")
    return found


def _kind(item: NumericInput | Categorical) -> str:
    if isinstance(item, Categorical):
        return "text"
    return "whole" if item.integer and item.missing is None else "number"


def place_of(folder: str | PathLike[str]) -> str:
    """Return an absolute path, valid for workers with another working directory."""
    return fspath(Path(folder).resolve())
