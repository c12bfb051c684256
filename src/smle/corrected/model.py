"""CorrectedModel, the result of `smle.correct`."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from smle.errors import ConversionError
from smle.graphs.certified_files import write_onnx
from smle.serving.fronts import PythonModel, decided
from smle.serving.served import Served
from smle.storage import ModelRecord, write_record

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CorrectedModel"]


class CorrectedModel(Served):
    """A model with a certified head behind it. See `correct`.

    Attributes:
        specification_: The rules.
        certificate_: The proof, for whatever the model answers; None without rules.
        description_: The contents of model.json, if it can be stored.
        served_: How many rows were served so far, by how: `kept`, `moved`, `replaced` (an answer was NaN, infinite or
            beyond 1e30) or `safe` (the stored safe answer). Rows that were not served are `set aside`.
    """

    @property
    def model(self) -> Any:
        """The given model, called with tables as passed, or its stored form."""
        return self.front.model if isinstance(self.front, PythonModel) else self.front

    @overload
    def predict(
        self,
        X: Any,
        *,
        return_info: Literal[False] = False,
        out_of_domain: str = "raise",
        bad_rows: str = "raise",
        as_steps: bool = False,
    ) -> npt.NDArray[Any] | pd.DataFrame: ...

    @overload
    def predict(
        self,
        X: Any,
        *,
        return_info: Literal[True],
        out_of_domain: str = "raise",
        bad_rows: str = "raise",
        as_steps: bool = False,
    ) -> tuple[npt.NDArray[Any] | pd.DataFrame, dict[str, Any]]: ...

    def predict(
        self,
        X: Any,
        *,
        return_info: bool = False,
        out_of_domain: str = "raise",
        bad_rows: str = "raise",
        as_steps: bool = False,
    ) -> Any:
        """Return answers that obey the rules: (n,) for one output, else (n, m).

        Numbers are float32, labels 0 or 1, a choice the name of the option. Outputs of several kinds, or several
        choices, are a pandas table.

        Args:
            X: A table with the inputs that the rules name, and any others the model reads.
            return_info: Also return a dict: `served` (n,), how each row was served (see `served_`); `moved` (n, m), how
                far each answer was moved; `replaced` (n, m); `active_rules` and `in_domain` per row.
            as_steps: Return the whole numbers of steps (n, m) instead of the floats nearest to their multiples.
            out_of_domain: "raise"; or "clip": rows outside the domain are answered, and the rules hold at the clamped
                input; or "warn": the same with a warning.
            bad_rows: What to do with rows that cannot be read (an unknown category, a missing value, text instead of a
                number): `raise`, or `set aside`: they get NaN where answers are floats, else None, and the other rows
                are answered in place. `set_aside` of the dict has the reason for each such row, by its number from 0.
                `served_` counts them.

        Raises:
            DataError: If the table does not fit the rules, or the model's answers have another shape.
            ValueError: If `as_steps` is set, and outputs have no steps.
        """
        grid = self.specification_.grid
        if as_steps and grid is None:
            raise ValueError("Expected outputs with steps for as_steps=True. Got rules without steps and equalities.")
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        result = (
            decided(self.specification_, found.served) if not as_steps or grid is None else grid.whole(found.served)
        )
        return found.returned(result, return_info)

    def raw_outputs(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the logits, scores or numbers behind the predictions (rows, m), exactly in float64.

        Rows are not counted.
        """
        return self.answer(X, count=False).served.astype(np.float64)

    def record(self) -> ModelRecord:
        """Return the model as plain data. Raises ConversionError if it exists only in Python."""
        if isinstance(self.front, PythonModel):
            raise ConversionError(
                f"This model cannot be stored: {self.front.unstored}. Only ONNX is stored, and nothing is pickled. Fit "
                "SafeRegressor(spec, estimator=...), or correct an ONNX file."
            )
        if self.specification_.output_kind == "mixed":
            raise ConversionError(
                "Models with outputs of several kinds cannot be stored yet. State rules for each kind."
            )
        return super().record()

    def to_onnx(self, path: str | PathLike[str], *, monitor: bool = True, stacked: bool = False) -> None:
        """Write the model and its head as one ONNX file, with `<path>.certificate.json` beside it.

        `write_onnx` explains the options. Raises ConversionError if the model exists only in Python.
        """
        write_onnx(self.record(), path, monitor=monitor, stacked=stacked)

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write a model folder: the model as ONNX, the head, description, rules, certificate.

        `overwrite` replaces a certified model. Raises ConversionError if the model exists only in Python.
        """
        write_record(self.record(), folder, overwrite=overwrite)

    def __repr__(self) -> str:
        model = self.model
        name = type(model).__name__ if hasattr(model, "predict") else getattr(model, "__name__", type(model).__name__)
        proved = 0 if self.certificate_ is None else len(self.certificate_.proved)
        return f"CorrectedModel({name}, {proved} statements proved)"
