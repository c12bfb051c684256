"""scikit-learn door: estimators whose fitted models are certified, and `load`."""

from __future__ import annotations

from os import PathLike

from smle.errors import ModelFormatError
from smle.estimators.base import SafeEstimator, without_rules
from smle.estimators.classifier import SafeClassifier
from smle.estimators.comparison import compare_models, quick_twin
from smle.estimators.projection import project_model
from smle.estimators.regressor import SafeRegressor
from smle.storage import read_record

__all__ = [
    "SafeClassifier",
    "SafeEstimator",
    "SafeRegressor",
    "compare_models",
    "load",
    "project_model",
    "quick_twin",
    "without_rules",
]

_KINDS: dict[str, type[SafeEstimator]] = {"SafeClassifier": SafeClassifier, "SafeRegressor": SafeRegressor}


def load(folder: str | PathLike[str], *, verify: bool = True) -> SafeEstimator:
    """Load a model folder.

    The certificate is checked in exact arithmetic, and rules.yaml is compiled again and compared with it, unless
    `verify=False` is asked for.

    Raises:
        CertificateError: If the certificate does not fit the files.
        ModelFormatError: If the folder is not a model folder.
    """
    record = read_record(folder)
    kind = _KINDS.get(str(record.description.get("kind")))
    if kind is None:
        raise ModelFormatError(f"model.json: unknown kind of model {record.description.get('kind')!r}.")
    return kind.from_record(record, verify=verify)
