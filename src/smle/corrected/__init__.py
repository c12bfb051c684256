"""`smle.correct`: any model with a certified head behind it.

    y = enforce(x, model(x)): answers that the rules allow stay, others move to the nearest allowed one.

Nothing is assumed about the model: a fitted estimator, a pipeline, an ONNX file or any function of a table.
"""

from __future__ import annotations

import sys
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from smle.errors import ConversionError, ModelFormatError, SmleError
from smle.graphs.certified_files import write_onnx
from smle.graphs.convert import stored_form
from smle.graphs.rows import model_of_rows
from smle.heads.table import certify_head
from smle.rules import Specification
from smle.serving.fronts import PythonModel, StoredModel, decided, typical
from smle.serving.served import Front, Served
from smle.storage import ModelRecord, description_of, write_record
from smle.tables import encode_inputs
from smle.tables.frames import frame_of

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from smle.networks.safe_network import SafeNetwork

__all__ = ["CorrectedModel", "correct"]

_KINDS = {"numbers": "SafeRegressor", "labels": "SafeClassifier", "choice": "SafeClassifier"}


@overload
def correct(model: nn.Module, spec: Specification, examples: Any = None) -> SafeNetwork: ...  # type: ignore[overload-overlap]  # any module is also something that can be called


@overload
def correct(model: object, spec: Specification, examples: Any = None) -> CorrectedModel: ...


def correct(model: Any, spec: Specification, examples: Any = None) -> CorrectedModel | SafeNetwork:
    """Make a model obey rules without training: answers that the rules allow stay, others move to the nearest allowed.

    For a fitted estimator, a pipeline, an ONNX file or a function of a table, the result is a `CorrectedModel`. An ONNX
    file or a function answers with columns as the rules name them: numbers, log-odds of labels (on from 0 on), scores
    of options. For a torch module it is a `smle.nn.SafeNetwork` in eval mode, called as `network(features, *inputs)`:
    further inputs go to the module instead of the features.

    Args:
        model: Fitted estimator (with `predict`), path of an ONNX file, function of a table, or torch module.
        spec: The rules.
        examples: A table, or None. The median of the answers to it replaces answers that are NaN or infinite, and
            distances are measured in units of their spread. An estimator with an ONNX form that agrees on these rows is
            served in that form, and can be saved. For a torch module also features (n, d), or a tuple of features and
            further inputs.

    Raises:
        ContradictionError: If rules contradict each other; names an input where they do.
        NotCertifiedError: If they leave no float32 number somewhere, or no safe answer is proved; names the input.
        DataError: If the answers to the examples are not numbers, or have another shape.
        ModelFormatError: If there is no ONNX file, or it reads anything but the columns of the rules.
        NotFittedError: If an estimator of scikit-learn was not fitted.
    """
    if not isinstance(spec, Specification):
        raise TypeError(f"Expected a Specification. Got {type(spec).__name__}.")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from smle.corrected.torch_folders import correct_module

        return correct_module(model, spec, examples)
    if isinstance(model, str | PathLike):
        model = StoredModel(model_of_rows(_file(Path(model)), spec.columns))
        model.require_width(spec)
    elif not (callable(model) or hasattr(model, "predict")) or isinstance(model, type):
        raise TypeError(
            "Expected a fitted model with a method `predict`, a function, or the path of an ONNX file. Got "
            f"{f'the class {model.__name__}' if isinstance(model, type) else type(model).__name__}."
        )
    _require_fitted(model)
    front: Front = PythonModel(model, spec, "a function in Python has no form that can be stored")
    if hasattr(model, "predict"):
        front = _stored(model, spec, examples)
    elif isinstance(model, StoredModel):
        front = model
    certificate = default = scale = None
    if examples is not None:
        plain = CorrectedModel(front, spec, None)
        default, scale = typical(plain.answer(examples, "clip", count=False).answers)
    if spec.rules:
        files = {"rules": spec.to_yaml().encode()}
        certificate = certify_head(spec, default=default, scale=scale, files=files)
    corrected = CorrectedModel(front, spec, certificate)
    if isinstance(front, StoredModel):
        name = "ONNX file" if model is front else type(model).__name__
        architecture = {"backbone": "onnx", "estimator": name, "columns": list(front.columns or ())}
        kind = _KINDS.get(spec.output_kind, "CorrectedModel")
        facts = {"architecture": architecture, "history": {}, "flat": len(spec.targets) == 1, "classes": None}
        corrected.describe(description_of(kind, spec, **facts))
    return corrected


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFormatError(f"Cannot read '{path}': {error.strerror}. Expected an ONNX file.") from None


def _require_fitted(model: Any) -> None:
    if "sklearn.base" not in sys.modules:  # not an estimator, then; importing takes a second
        return
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted

    if isinstance(model, BaseEstimator):
        check_is_fitted(model)


def _stored(model: Any, spec: Specification, examples: Any) -> Front:
    """Return the ONNX form of an estimator, or the estimator plus the reason it cannot be converted."""
    if examples is None:
        reason = "pass examples, a table on which its stored form is compared with it"
        return PythonModel(model, spec, reason)
    if spec.output_kind == "mixed":
        return PythonModel(model, spec, "its outputs are of several kinds")
    encoded = encode_inputs(spec, examples)
    try:
        frame = frame_of(examples, spec)
        return stored_form(model, spec, frame, encoded, table=examples)
    except (SmleError, AttributeError, KeyError, TypeError, ValueError) as error:  # serve the estimator itself
        return PythonModel(model, spec, " ".join(str(error).split()))


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
