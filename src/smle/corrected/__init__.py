"""Any model, corrected exactly: rules are proved behind whatever the model answers.

    y = enforce(x, model(x)): answers that the rules allow stay, others move to the nearest allowed one.

Nothing is assumed about the model: a fitted estimator, a pipeline, an ONNX file or any function of a table.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from smle.corrected.model import CorrectedModel
from smle.corrected.stored_form import stored_form
from smle.errors import ModelFormatError, SmleError
from smle.graphs.rows import model_of_rows
from smle.heads.table import certify_head, program_of
from smle.rules import Specification
from smle.serving.answers import PythonModel, answers_of, typical
from smle.serving.served import Answered, Front, Served
from smle.serving.stored import StoredModel
from smle.storage import description_of
from smle.tables import encode_inputs
from smle.tables.frames import frame_of

if TYPE_CHECKING:
    from torch import nn

    from smle.networks.safe_network import SafeNetwork

__all__ = ["Answered", "CorrectedModel", "Served", "answers_of", "correct", "program_of", "stored_form"]

_KINDS = {"numbers": "SafeRegressor", "labels": "SafeClassifier", "choice": "SafeClassifier"}


@overload
def correct(model: nn.Module, spec: Specification, examples: Any = None) -> SafeNetwork: ...  # type: ignore[overload-overlap]  # any module is also something that can be called


@overload
def correct(model: object, spec: Specification, examples: Any = None) -> CorrectedModel: ...


def correct(model: Any, spec: Specification, examples: Any = None) -> CorrectedModel | SafeNetwork:
    """Make a model obey rules without training: answers that the rules allow stay, others move to the nearest allowed.

    A fitted estimator, a pipeline, an ONNX file or a function of a table is taken with rules of any kind, and the
    result is a `CorrectedModel`. Answers of an ONNX file or a function are columns as the rules name them: numbers,
    log-odds of labels (on from 0 on), scores of options. Around a torch module it is a `smle.nn.SafeNetwork` in eval
    mode, called as `network(features, *inputs)`: further inputs go to the module in the place of the features.

    Args:
        model: Fitted estimator (with `predict`), path of an ONNX file, function of a table, or torch module.
        spec: The rules.
        examples: A table, or None; the median of the answers to it takes the place of answers that are NaN or
            infinite, and distances are measured in units of their spread. An estimator that has an ONNX form which
            agrees on these rows is served in that form, and can be saved. For a torch module also features (n, d), or a
            tuple of features and further inputs.

    Raises:
        ContradictionError: If rules contradict each other; names an input where they do.
        NotCertifiedError: If they leave no float32 number somewhere, or no safe answer is proved; names the input.
        DataError: If the answers to the examples are no numbers, or have another shape.
        ModelFormatError: If there is no ONNX file, or it reads something else than the columns of the rules.
        NotFittedError: If an estimator of scikit-learn was not fitted.
    """
    if not isinstance(spec, Specification):
        raise TypeError(f"Expected a Specification. Got {type(spec).__name__}.")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from smle.corrected.torch_folders import correct_module

        return correct_module(model, spec, examples)
    if isinstance(model, str | os.PathLike):
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
    if "sklearn.base" not in sys.modules:  # then it is no estimator; to import it takes a second
        return
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted

    if isinstance(model, BaseEstimator):
        check_is_fitted(model)


def _stored(model: Any, spec: Specification, examples: Any) -> Front:
    """Return the form of an estimator to serve: its stored one, or it itself, with the reason why it has none."""
    if examples is None:
        reason = "pass examples, a table on which its stored form is compared with it"
        return PythonModel(model, spec, reason)
    if spec.output_kind == "mixed":
        return PythonModel(model, spec, "its outputs are of several kinds")
    encoded = encode_inputs(spec, examples)
    try:
        frame = frame_of(examples, spec)
        return stored_form(model, spec, frame, encoded, table=examples)
    except (SmleError, AttributeError, KeyError, TypeError, ValueError) as error:  # it is served as it is
        return PythonModel(model, spec, " ".join(str(error).split()))
