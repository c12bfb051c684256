"""MLflow: model folders as a `pyfunc` model whose certificate is checked at every load. Nothing is pickled.

MLflow calls `_load_pyfunc` of this module. The signature comes from the rules, so that MLflow refuses tables with other
columns before the model sees them.
"""

from __future__ import annotations

import tempfile
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smle import __version__
from smle.errors import ModelFormatError, NotCertifiedError
from smle.export import OnnxModel
from smle.extras import require
from smle.platforms.answers import answer_table, certified, output_types, place_of, read_columns
from smle.rules import Categorical
from smle.serving.fronts import StoredModel

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["input_example", "load_model", "log_model", "requirement", "save_model", "signature"]

_DATA = "model"  # the folder inside a logged model


def save_model(model: Any, path: str | PathLike[str], **options: Any) -> None:
    """Write an MLflow model with a model folder inside.

    Args:
        model: A fitted or loaded model, or the path of its folder.
        path: Where to write.
        options: Further arguments of `mlflow.pyfunc.save_model`; `input_example` and `signature` replace those made
            from the rules.

    Raises:
        CertificateError: If the checker rejects the certificate.
        ModelFormatError: If the model is an exported ONNX file.
        NotCertifiedError: If there is none.
    """
    with tempfile.TemporaryDirectory() as place:
        _pyfunc().save_model(path, **_arguments(model, Path(place) / _DATA, options))


def log_model(model: Any, name: str = "model", **options: Any) -> Any:
    """Log a model in the current run; return the result of `mlflow.pyfunc.log_model`. See `save_model`."""
    with tempfile.TemporaryDirectory() as place:
        return _pyfunc().log_model(name=name, **_arguments(model, Path(place) / _DATA, options))


def load_model(uri: str) -> Any:
    """Load and check a logged model; return it with rules and certificate, without MLflow's wrapper."""
    return _pyfunc().load_model(uri).get_raw_model()


def _arguments(model: Any, place: Path, options: dict[str, Any]) -> dict[str, Any]:
    if isinstance(model, str | PathLike):
        model = certified(place_of(model))
    if isinstance(model, OnnxModel):
        raise ModelFormatError(
            "MLflow takes a model or its folder. Got an exported ONNX file: pass the folder that it was exported from."
        )
    if model.certificate_ is None:
        raise NotCertifiedError("MLflow takes certified models. Got one without rules, about which nothing is proved.")
    model.save(place)
    made = {"signature": signature(model), "pip_requirements": [requirement(model)]}
    options = {"input_example": input_example(model), **made, **options}
    return {"loader_module": __name__, "data_path": str(place), **options}


def requirement(model: Any) -> str:
    """Return the package that MLflow installs to serve a model: smle, with its ONNX extra if needed, never torch."""
    extra = "[onnx]" if isinstance(model.deployed_.front, StoredModel) else ""
    return f"smle{extra}=={__version__}"


def signature(model: Any) -> Any:
    """Return MLflow's signature of a model: inputs, outputs, and the parameters `out_of_domain` and `bad_rows`."""
    types = require("mlflow.types", "The signature of a model")
    kind_of, column = types.DataType, types.ColSpec
    kinds = {"number": kind_of.double, "whole": kind_of.long, "text": kind_of.string}
    inputs = [column(kinds[kind], name) for name, kind in read_columns(model).items()]
    stored = {"f": kind_of.double, "i": kind_of.long, "u": kind_of.long, "b": kind_of.boolean, "O": kind_of.string}
    outputs = [column(stored[kind.kind], name) for name, kind in output_types(model).items()]
    asked = ("out_of_domain", "bad_rows")
    params = types.ParamSchema([types.ParamSpec(name, kind_of.string, "raise") for name in asked])
    made = require("mlflow.models", "The signature of a model").ModelSignature
    return made(inputs=types.Schema(inputs), outputs=types.Schema(outputs), params=params)


def input_example(model: Any) -> pd.DataFrame | None:
    """Return one row from the middle of the domain, or None if the model reads columns outside the rules."""
    import pandas as pd

    kinds = read_columns(model)
    if len(kinds) > len(model.specification_.inputs):
        return None
    row: dict[str, Any] = {}
    for item in model.specification_.inputs:
        if isinstance(item, Categorical):
            row[item.name] = item.categories[0]
        else:
            middle, step = (item.lower + item.upper) / 2, Fraction(1) if item.integer else item.step
            value = middle if step is None else round(middle / step) * step
            row[item.name] = int(value) if item.integer else float(value)
    frame = pd.DataFrame([row])
    return frame.astype({name: float for name in frame.columns if kinds[name] == "number"})


def _pyfunc() -> Any:
    return require("mlflow.pyfunc", "A model for MLflow")


def _load_pyfunc(path: str) -> _Answers:
    """Load what `save_model` wrote, and check its certificate. MLflow calls this."""
    return _Answers(certified(path))


class _Answers:
    """The object that MLflow calls to predict."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return one column per output of the rules."""
        return answer_table(self.model, model_input, **(params or {}))

    def get_raw_model(self) -> Any:
        """Return the model itself."""
        return self.model
