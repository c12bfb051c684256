"""SafeClassifier: labels (several may apply) or one choice (exactly one applies)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from smle.errors import DataError
from smle.estimators.base import Array, SafeEstimator
from smle.estimators.inputs import observed_inputs
from smle.guarantees import nearest_outputs
from smle.rules import Choice, Label, Specification
from smle.tables import column_names, encode_choices, encode_numbers, option_values

__all__ = ["SafeClassifier"]

_PRIOR = 4.0  # typical logits are kept within this distance of zero


class SafeClassifier(ClassifierMixin, SafeEstimator):  # type: ignore[misc]
    """A multi-layer perceptron, or any classifier, that provably obeys rules, for labels or one choice.

    * `labels` in the rules: y is a 0/1 table (rows, labels); a label is predicted where its logit is >= 0.
    * one of `choices` in the rules: y holds the names of the options; the largest score wins (`pick: min`: the
      smallest).

    `classes_` holds the options in sorted order, as scikit-learn's scorers expect, in the type that y had in `fit`.
    Labels and choices are read off the certified logits and scores; `predict_proba` always agrees with them.
    `fit` ends with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Arguments are those of `SafeEstimator`; choices are trained on as they are, labels on the nearest allowed ones.
    """

    classes_: Any
    _choice: Choice | None
    _sign: float
    _values: npt.NDArray[Any]
    _order: npt.NDArray[np.intp]

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several labels are fine."""
        tags = super().__sklearn_tags__()
        inner = None if self.estimator is None else get_tags(self.estimator).classifier_tags
        tags.classifier_tags.multi_label = inner is None or inner.multi_label
        return tags

    # --- using

    def decision_function(self, X: Any, *, out_of_domain: str | None = None) -> npt.NDArray[np.float64]:
        """Return the certified logits or scores (rows, m), as float64 numbers that hold them exactly.

        Columns are those of `classes_`. For a choice between two options: the advantage of the second (rows,).
        """
        scores = self._outputs(X, out_of_domain).served.astype(np.float64)
        if self._choice is None:
            return scores
        scores = scores[:, self._order] * self._sign
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None) -> Any:
        """Return labels as 0/1 (rows, m), or the chosen options (rows,).

        Args:
            X: Table with the rules' input columns.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain` and `clipped_share`.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; None: as the estimator
                was told.
        """
        found = self._outputs(X, out_of_domain, taps=return_info)
        outputs = found.served
        if self._choice is None:
            result: npt.NDArray[Any] = (outputs >= 0).astype(np.int64)
        else:
            result = self._values[(outputs * self._sign).argmax(axis=1)]
        return (result, found.information(self.specification_)) if return_info else result

    def predict_proba(self, X: Any, *, out_of_domain: str | None = None) -> npt.NDArray[np.float64]:
        """Return probabilities (rows, m), columns as in `classes_`. `>= 0.5` and argmax always agree with `predict`."""
        outputs = self._outputs(X, out_of_domain).served.astype(np.float64)
        below = np.nextafter(0.5, 0.0)
        if self._choice is None:
            chance = 0.5 * (1.0 + np.tanh(outputs / 2))
            return np.where(outputs >= 0, np.maximum(chance, 0.5), np.minimum(chance, below))
        scores = outputs * self._sign
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        chance = weights / weights.sum(axis=1, keepdims=True)
        rows, best = np.arange(len(scores)), scores.argmax(axis=1)
        others = chance.copy()
        others[rows, best] = -1.0
        chance[rows, best] = np.maximum(chance[rows, best], np.nextafter(others.max(axis=1, initial=-1.0), 2.0))
        return np.asarray(chance[:, self._order])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, as scikit-learn defines it: of several labels the share of rows where all are right."""
        check_is_fitted(self, "description_")
        if self._choice is not None:
            return float(super().score(X, y, sample_weight))
        return float(np.average(self._right(X, y).all(axis=1), weights=sample_weight))

    def label_accuracy(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of single labels that are right, averaged over labels and rows; of a choice its accuracy."""
        check_is_fitted(self, "description_")
        if self._choice is not None:
            return self.score(X, y, sample_weight)
        return float(np.average(self._right(X, y).mean(axis=1), weights=sample_weight))

    def _right(self, X: Any, y: Any) -> npt.NDArray[np.bool_]:
        return np.asarray(self.predict(X) == encode_numbers(self.specification_, y))

    # --- what labels and choices add to fitting

    def _read_outputs(self, spec: Specification, y: Any) -> None:
        if spec.output_kind not in ("labels", "choice"):
            raise DataError(
                "SafeClassifier predicts labels, or one choice. Expected `labels` or one of `choices` in the rules. "
                "For mixed kinds of outputs use smle.nn.SafeNetwork."
            )
        first = spec.outputs[0]
        if isinstance(first, Choice):
            self._choose(first, option_values(first, y))
        else:
            self._choice, self._sign = None, 1.0
            self.classes_ = [np.array([0, 1]) for _ in spec.outputs]

    def _choose(self, choice: Choice, values: npt.NDArray[Any]) -> None:
        """Read outputs as scores of options, which are predicted as these values."""
        self._choice, self._sign = choice, 1.0 if choice.pick == "max" else -1.0
        self._values, self._order = values, np.argsort(values)
        self.classes_ = values[self._order]

    def _observed(self, X: Any, y: Any) -> Specification:
        if y is None:
            raise DataError("This SafeClassifier requires y to be passed, but the target y is None.")
        inputs = observed_inputs(X)
        values = np.asarray(y)
        if values.ndim == 2 and values.shape[1] > 1:
            names = column_names(y) or [f"label{i}" for i in range(values.shape[1])]
            return Specification(inputs, tuple(Label(name) for name in names), ())
        flat = column_or_1d(values, warn=True)
        check_classification_targets(flat)
        classes = np.unique(flat)
        if len(classes) < 2:
            raise DataError(f"Expected at least two classes. Got 1 class: {classes.tolist()}.")
        name = (column_names(y) or ["choice"])[0]
        return Specification(inputs, (Choice(name, tuple(str(c) for c in classes.tolist())),), ())

    def _encode_targets(self, spec: Specification, y: Any) -> Array:
        if self._choice is None:
            labels = encode_numbers(spec, y)
            if not np.isin(labels, (0.0, 1.0)).all():
                raise DataError("Expected 0 or 1 for every label. Got other numbers.")
            return labels
        return encode_choices(self._choice, y)

    def _enforce(self, spec: Specification, X: npt.NDArray[Any], targets: Array) -> Array:
        return nearest_outputs(spec, X, targets) if self._choice is None else targets

    def _frame(self, targets: Array) -> tuple[Array, Array]:
        m = targets.shape[1]
        return np.zeros(m), np.ones(m)

    def _as_outputs(self, targets: Array) -> Array:
        chance = (targets.sum(axis=0) + 0.5) / (len(targets) + 1.0)
        logits = np.log(chance / (1 - chance)) if self._choice is None else np.log(chance) * self._sign
        return np.asarray(np.clip(logits, -_PRIOR, _PRIOR))

    def _loss(self, targets: Array) -> Any:
        import torch

        if self._choice is None:
            return partial(torch.nn.functional.binary_cross_entropy_with_logits, reduction="none")
        sign = self._sign

        def loss(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(sign * scores, wanted, reduction="none")

        return loss

    def _refit_loss(self) -> str:
        if self._choice is None:
            return "logistic"
        return "softmax" if self._sign > 0 else "softmin"

    def _typical(self, targets: Array) -> tuple[Array, Array]:
        return self._as_outputs(targets), np.ones(targets.shape[1])

    def _inner_targets(self, targets: Array) -> npt.NDArray[Any]:
        if self._choice is not None:
            return np.asarray(self._values[targets.argmax(axis=1)])
        labels = targets.astype(np.int64)
        return labels[:, 0] if labels.shape[1] == 1 else labels

    def _facts(self) -> dict[str, Any]:
        return {"classes": None if self._choice is None else self._values.tolist()}

    def _restore(self, description: dict[str, Any]) -> None:
        classes = description.get("classes")
        self._read_outputs(self.specification_, classes if isinstance(classes, list) else None)
