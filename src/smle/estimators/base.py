"""The base of estimators with rules: reads rows, describes a fitted model, rebuilds it from its folder."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from smle.advice.unit_check import require_units
from smle.certificates.agreement import require_kind
from smle.errors import AccuracyWarning, CertificateError, DataError, ModelFormatError, NotCertifiedError
from smle.estimators.bases import BaseEstimator
from smle.estimators.fitted import FittedModel, plain_table
from smle.estimators.scores import compare_held_out
from smle.estimators.tasks import Held, Task, TrainingRows
from smle.heads.grid.reduction import reconciled
from smle.monitor import Usage
from smle.parameters import flag, named, plain_parameters, require_parameters, stated, stored_parameters
from smle.rules import Specification
from smle.serving.served import Served
from smle.storage import ModelRecord, description_of
from smle.tables import column_names, encode_inputs, require_in_domain, table_digest
from smle.tables.frames import frame_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from smle.training.options import History

__all__ = ["SafeEstimator", "short_history", "without_rules"]

Array = npt.NDArray[np.float64]
_POINTS = 200  # points kept of the training history


@dataclass(eq=False, repr=False)
class SafeEstimator(FittedModel, BaseEstimator):
    """An estimator that provably obeys rules. See `SafeRegressor`, `SafeClassifier`, `SMLERegressor` and others."""

    spec: Any = stated(
        None,
        lambda value: True,
        "rules",
        "The rules: a Specification, the path of a rules file, or YAML text.",
        stored=False,
    )
    _: KW_ONLY
    out_of_domain: str = stated(
        "raise",
        named("raise", "warn", "clip"),
        "'raise', 'warn' or 'clip'",
        """What `predict` and `score` do with rows outside the domain; `predict` can be called with another choice. The
        rules are guaranteed inside the domain; outside they hold at the clamped input.""",
    )
    compare: bool = stated(
        True,
        flag,
        "True or False",
        """Compare with a quick plain model on the rows that a network held out (`description_["scores"]`), and warn
        with an AccuracyWarning if the safe model is far behind, or if trees would do clearly better than the network.
        Other estimators hold out no rows, so they are not compared; nor are losses of numbers other than
        `squared_error`.""",
    )

    # --- what subclasses define

    if TYPE_CHECKING:  # only for type checkers: the mixins define them

        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
            """Fit to a table and its targets."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return R2 or accuracy."""

    def _plain_task(self, spec: Specification, y: Any = None) -> Task:
        """Return the task of a specification; y tells the type of answers. Raises DataError for other outputs."""
        raise NotImplementedError

    # --- fitting

    def _emptied(self) -> Self:
        """Return an unfitted copy, with its parameters checked."""
        empty = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            if name != "_task" and (name.startswith("_") or not name.endswith("_")):
                empty.__dict__[name] = value
        require_parameters(empty, empty.get_params(deep=False))
        return empty

    def _given(self) -> Specification:
        """Return the given specification, reading it if it is a file or text."""
        if self.spec is None:
            raise DataError(
                f"Expected rules: {type(self).__name__}(spec). Got none. Without rules use NetworkRegressor, "
                "NetworkClassifier or any other estimator."
            )
        return Specification.of(self.spec)

    def _read_rows(self, spec: Specification, task: Task, X: Any, y: Any, *, least: int = 2) -> TrainingRows:
        """Check a table and its targets, and encode them for the rules and the loss."""
        X = plain_table(X, spec)
        encoded, targets = encode_inputs(spec, X), task.encode(y)
        if len(encoded) != len(targets):
            raise DataError(f"Expected as many rows in X as in y. Got {len(encoded)} and {len(targets)}.")
        if len(encoded) < least:
            raise DataError(f"Expected at least {least} rows to train on. Got {len(encoded)} sample(s).")
        require_in_domain(spec, encoded, "training rows")
        require_units(spec, encoded, targets)
        moved, most = 0, 0.0
        if spec.grid is not None:
            targets, moved, most = reconciled(spec, encoded, targets)
        if moved:
            warnings.warn(
                f"The targets of {moved} of {len(targets)} rows do not add up as the rules ask. Before fitting, they "
                f"were moved as little as possible, by up to {most:.3g}, to targets that do.",
                AccuracyWarning,
                stacklevel=4,
            )
        frame = frame_of(X, spec)
        hidden = [name for name in task.target_columns if name in frame.columns]  # no model may learn from them
        return TrainingRows(X, frame.drop(columns=hidden), task, encoded, targets)

    def _serve(self, served: Served, rows: TrainingRows, task: Task, **facts: Any) -> Usage:
        """Adopt a model fitted to these rows, describe it, and return what it does to them.

        `task` reads its answers. `facts` go to model.json: the seed, the architecture, the history.
        """
        if rows.spec.rules and served.certificate_ is None:
            raise NotCertifiedError("There are rules, and no certificate for them.")
        self.deployed_, self._task = served, task
        self.n_features_in_ = len(rows.frame.columns)
        if column_names(rows.table) is not None:
            self.feature_names_in_ = np.asarray(rows.frame.columns, dtype=object)
        usage = served.usage(served.reader.opened(rows.frame, rows.encoded))
        provenance = {
            "data_sha256": table_digest(rows.encoded, rows.targets),
            "rows": len(rows.encoded),
            "seed": facts.pop("seed"),
            "command": " ".join(sys.argv)[:1000],
        }
        facts |= {"provenance": provenance, "training": usage.to_json(), "parameters": plain_parameters(self)}
        served.describe(description_of(type(self).__name__, rows.spec, **facts, **task.facts()))
        return usage

    def set_scores(self, scores: dict[str, Any]) -> None:
        """Add scores (of this model, its baseline, ...) to the description, and bind the certificate to it."""
        check_is_fitted(self, "description_")
        known = self.description_
        self.deployed_.describe({**known, "scores": {**known["scores"], **scores}})

    def _compared(self, rows: TrainingRows, weight: Array | None, held: Held | None, seed: int) -> None:
        """Compare with a quick plain model on the held-out rows, if requested, and record the scores."""
        if rows.spec.rules and self.compare and rows.task.is_scored and held is not None:
            self.set_scores(compare_held_out(self, rows, weight, held_out=held, seed=seed))

    def _taken_over(self, fitted: Self, usage: Usage) -> Self:
        """Take over a fitted model, and warn if it is of little use; `usage` is what it does to the rows of `fit`."""
        self.__dict__ = fitted.__dict__
        scores, head = self.deployed_.description_["scores"], usage.head
        for text in (scores.get("concern"), scores.get("advice"), "" if head is None else head.concern):
            if text:
                warnings.warn(text, AccuracyWarning, stacklevel=3)
        return self

    # --- loading

    @classmethod
    def from_record(cls, record: ModelRecord, *, verify: bool = True) -> Self:
        """Rebuild a model from its record, and check its certificate unless `verify=False`."""
        if record.rules is None:
            if record.certificate is not None:
                raise CertificateError("The model folder has a certificate.json, but no rules.yaml.")
            raise ModelFormatError("The model folder has no rules.yaml, which also states inputs and outputs.")
        spec = record.specification
        require_kind(record.description, spec)
        model = cls(spec, **stored_parameters(cls, record.description.get("parameters", {})))
        model._deploy(Served.from_record(record, spec, verify=verify))
        return model

    def _deploy(self, served: Served) -> None:
        """Adopt a model that was fitted elsewhere."""
        self.deployed_ = served
        spec = served.specification_
        self._task = self._plain_task(spec).restored(served.description_)
        self.n_features_in_ = len({*(item.name for item in spec.inputs), *(served.front.columns or ())})


def without_rules(spec: Specification) -> Specification:
    """Return the specification without its rules, for a baseline."""
    return replace(spec, rules=(), flags=())


def short_history(history: History) -> dict[str, Any]:
    """Return the history as JSON data, thinned out to about 200 epochs with the best and the last among them."""
    epochs = len(history.loss)
    chosen = {round(i) for i in np.linspace(0, epochs - 1, min(epochs, _POINTS))}
    kept = sorted(chosen | {history.best_epoch}) if epochs else []

    def values(name: str) -> list[float | None]:
        every = getattr(history, name)
        return [every[i] if math.isfinite(every[i]) else None for i in kept] if len(every) == epochs else []

    return {
        "epochs": epochs - history.final_epochs,
        "best_epoch": history.best_epoch + 1,
        "final_epochs": history.final_epochs,
        "stopped": history.stopped,
        "seconds": round(history.seconds, 3),
        "epoch": [i + 1 for i in kept],
        "loss": values("loss"),
        "validation_loss": values("validation_loss"),
        "learning_rate": values("learning_rate"),
        "safety_name": history.safety_name,
        "safety": values("safety"),
    }
