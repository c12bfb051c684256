"""Predicts with an exported ONNX file by column names, with onnxruntime and without torch."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from smle.errors import CertificateError, DataError, ModelFormatError
from smle.graphs.certified_files import FilePath, read_checked
from smle.rules import Categorical, Choice, Label, Specification
from smle.serving.fronts import NUMBERS, TEXT, columns_of, faults_in, runtime_errors, session_of
from smle.tables import (
    Reader,
    ReadTable,
    SetAside,
    apply_domain_policy,
    as_table,
    column_names,
    in_domain,
    option_values,
    require_bad_rows,
)
from smle.tables.values import Fault, rounded_numbers
from smle_check.onnx.nodes import LABELS, STACKED

if TYPE_CHECKING:
    import pandas as pd

    from smle_check import OnnxResult

__all__ = ["OnnxModel", "load_onnx"]

_CHUNK = 65536  # rows per call, so that memory stays flat


def load_onnx(path: FilePath) -> OnnxModel:
    """Load an exported ONNX file for tables, after checking the certificate beside it.

    Raises:
        CertificateError: If there is no certificate, it is rejected, or it lacks the text of the rules.
        ModelFormatError: If the model inside reads anything but columns, or onnxruntime cannot load the file.
        MissingDependencyError: If onnxruntime is not installed.
    """
    file = read_checked(path)
    if file.spec is None:
        raise CertificateError(
            f"The certificate of '{path}' does not have the text of the rules, which says how to read a table. Certify "
            "the network with it before exporting: certify(network, files={'rules': spec.to_yaml().encode()})."
        )
    session = session_of(file.data)
    known = {item.name for item in file.spec.inputs}
    own = [item for item in session.get_inputs() if item.name not in known]
    strange = [
        item.name for item in own if len(item.shape) != 2 or item.shape[1] != 1 or item.type not in (TEXT, *NUMBERS)
    ]
    if strange:
        raise ModelFormatError(
            f"The model in '{path}' has inputs of its own ({', '.join(strange)}) that are not columns of a table. Run "
            "it in onnxruntime."
        )
    return OnnxModel(file.spec, file.result, session, _classes(file.model), {item.name: item.type for item in own})


class OnnxModel:
    """An exported model whose certificate was accepted. It runs the very bytes that were checked. See `load_onnx`.

    The file reads numbers as float32. Fractions are rounded, and the rules hold at the rounded numbers; whole numbers
    that float32 cannot hold are refused. A model inside may read further columns of the table.
    """

    def __init__(
        self,
        spec: Specification,
        result: OnnxResult,
        session: Any,
        classes: list[Any] | None,
        columns: dict[str, str] | None = None,
    ) -> None:
        self.specification_ = spec
        self.result_ = result
        self._reader = Reader(spec)
        self._session = session
        self._classes = classes
        self._further = columns or {}

    @property
    def text_inputs(self) -> tuple[str, ...]:
        """Columns, other than the inputs of the rules, that the model inside reads as text."""
        return tuple(name for name, kind in self._further.items() if kind == TEXT)

    @property
    def columns_read(self) -> frozenset[str]:
        """Columns of a table that the rules name or the model inside reads."""
        return frozenset(item.name for item in self.specification_.inputs) | frozenset(self._further)

    def without_bad_rows(self, X: Any) -> tuple[Any, SetAside]:
        """Return the readable rows, as a table of the same kind, and what is wrong with the others.

        Raises:
            DataError: If columns are missing.
        """
        rows = self._reader.examine(self._table(X))
        own = [*faults_in(rows, self._further), *self._float32(rows)[1]]
        aside = SetAside.of(rows, [*rows.faults, *own])
        return (aside.others(rows) if len(aside) else X), aside

    @overload
    def predict(
        self, X: Any, *, return_info: Literal[False] = False, out_of_domain: str = "raise", bad_rows: str = "raise"
    ) -> pd.DataFrame: ...

    @overload
    def predict(
        self, X: Any, *, return_info: Literal[True], out_of_domain: str = "raise", bad_rows: str = "raise"
    ) -> tuple[pd.DataFrame, dict[str, Any]]: ...

    def predict(
        self, X: Any, *, return_info: bool = False, out_of_domain: str = "raise", bad_rows: str = "raise"
    ) -> Any:
        """Return a table with one column per output of the rules: numbers, labels as 0/1, chosen options.

        Args:
            X: Table with the rules' input columns, and those that the model inside reads.
            return_info: Also return a dict: `active_rules` (names per row) and `in_domain`.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`.
            bad_rows: `raise`, or `set aside`: unreadable rows get NaN or None, and `info["set_aside"]` (or a warning)
                says why. The other rows are unaffected.

        Raises:
            DataError: If the table does not fit the rules, or rows lie outside the domain.
            ModelFormatError: If `return_info` is set for a file exported with `monitor=False`, or the backbone fails.
        """
        import pandas as pd

        if return_info and not self.result_.interface.monitored:
            raise ModelFormatError(
                "This ONNX file does not say which rules are active: it was exported with monitor=False."
            )
        aside, index = None, X.index if isinstance(X, pd.DataFrame) else None
        if bad_rows != "raise":
            require_bad_rows(bad_rows)
            X, aside = self.without_bad_rows(X)
        rows = self._named(X)
        encoded = self._encoded(rows)
        numbers = None if aside is None else aside.kept
        apply_domain_policy(self.specification_, encoded, out_of_domain, numbers=numbers, stacklevel=3)
        starts, feed = range(0, max(len(encoded), 1), _CHUNK), self._feed(rows, encoded)
        chunks = [{name: column[i : i + _CHUNK] for name, column in feed.items()} for i in starts]
        parts = [self._answers(chunk, return_info) for chunk in chunks]
        answers = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        table = pd.DataFrame(self._columns(answers))
        facts = self._information(encoded, answers) if return_info else {}
        if aside is not None:
            table, facts = aside.aligned(table), aside.information(facts)
            if len(aside) and not return_info:
                warnings.warn(aside.text(), stacklevel=2)
        table = table if index is None else table.set_axis(index)
        return (table, facts) if return_info else table

    def encode(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the input columns of a table (rows, d) as the file reads them, in float32.

        Raises:
            DataError: If the table does not fit the rules, or a whole number in the domain would be rounded.
        """
        return self._encoded(self._named(X))

    def _named(self, X: Any) -> ReadTable:
        return self._reader.read(self._table(X))

    def _table(self, X: Any) -> Any:
        table = as_table(X)
        if column_names(table) is None:
            wanted = ", ".join(item.name for item in self.specification_.inputs)
            raise DataError(f"Expected a table with named columns ({wanted}). Got {type(X).__name__}.")
        return table

    def _encoded(self, rows: ReadTable) -> npt.NDArray[np.float32]:
        encoded, faults = self._float32(rows)
        if faults:
            raise DataError(faults[0].message)
        return encoded

    def _float32(self, rows: ReadTable) -> tuple[npt.NDArray[np.float32], list[Fault]]:
        """Return the inputs in float32, and the whole numbers it cannot hold."""
        exact = rows.encoded
        with np.errstate(over="ignore"):
            encoded = exact.astype(np.float32)
        inside = in_domain(self.specification_, encoded)  # numbers outside are clamped anyway
        faults = []
        for place, name in enumerate(self.specification_.columns):
            within = inside[:, place]
            read = np.where(within, encoded[:, place], np.float32(0))
            faults += rounded_numbers((name, "Input"), np.where(within, exact[:, place], 0), read)
        return encoded, faults

    def _feed(self, rows: ReadTable, encoded: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
        """Return the columns (rows, 1) that the graph reads.

        Missing values stay missing, so that a model inside sees them.
        """
        feed, column = columns_of(rows, self._further), 0
        for item in self.specification_.inputs:
            missing = rows.missing.get(item.name, False)
            if isinstance(item, Categorical):
                width = len(item.categories)
                chosen = encoded[:, column : column + width].argmax(axis=1)
                values = np.where(missing, "", np.array(item.categories, dtype=object)[chosen])
            else:
                width = 1
                values = np.where(missing, np.float32(np.nan), encoded[:, column])
            feed[item.name] = values[:, None]
            column += width
        return feed

    def _answers(self, feed: dict[str, npt.NDArray[Any]], info: bool) -> dict[str, npt.NDArray[Any]]:
        """Run the graph; return its outputs by name."""
        items, more = self.specification_.outputs, ["active_rules"] if info else []
        if not len(next(iter(feed.values()))):  # models inside may fail on no rows
            return dict.fromkeys([*(item.name for item in items), *more], np.empty((0, 1)))
        labels = [item.name for item in items if isinstance(item, Label)]
        stacked = self.result_.interface.stacked
        tensors = [STACKED, *([LABELS] if labels else [])] if stacked else [item.name for item in items]
        with runtime_errors():
            answers = dict(zip(tensors + more, self._session.run(tensors + more, feed), strict=True))
        if stacked:
            table, flags = answers[STACKED], answers.get(LABELS)
            answers |= {item.name: table[:, i : i + 1] for i, item in enumerate(items)}
            answers |= {name: flags[:, i : i + 1] for i, name in enumerate(labels) if flags is not None}
        return answers

    def _columns(self, answers: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return outputs (rows,) by name, in the types that a model folder predicts."""
        result: dict[str, npt.NDArray[Any]] = {}
        for item in self.specification_.outputs:
            values = answers[item.name][:, 0]
            if isinstance(item, Choice):
                places = {option: i for i, option in enumerate(item.options)}
                result[item.name] = option_values(item, self._classes)[[places[option] for option in values]]
            else:
                result[item.name] = values.astype(np.int64 if isinstance(item, Label) else np.float64)
        return result

    def _information(self, encoded: npt.NDArray[np.float32], answers: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
        titles = np.asarray([rule.name for rule in self.specification_.rules], dtype=object)
        names = [tuple(titles[row].tolist()) for row in answers["active_rules"]]
        return {"active_rules": names, "in_domain": in_domain(self.specification_, encoded).all(axis=1)}


def _classes(model: str | None) -> list[Any] | None:
    """Return the classes behind the options of a choice, from the text of model.json."""
    try:
        classes = json.loads(model or "null")["classes"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return classes if isinstance(classes, list) else None
