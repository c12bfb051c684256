"""SafeClassifier: labels (several may apply) or one choice (exactly one applies)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from smle.defaults import CLASSES
from smle.errors import DataError
from smle.estimators.base import SafeEstimator
from smle.estimators.calibration import rescaled, temperature, thresholds_of
from smle.estimators.inputs import observed_inputs
from smle.estimators.tasks import Held, Labels, Options, Rows
from smle.rules import Choice, Label, Specification
from smle.tables import column_names, encode_numbers

__all__ = ["SafeClassifier"]


@dataclass(eq=False, repr=False)
class SafeClassifier(ClassifierMixin, SafeEstimator):  # type: ignore[misc]
    r"""A multi-layer perceptron, or any classifier, that provably obeys rules, for labels or one choice.

    * `labels` in the rules: y is a 0/1 table (rows, labels); a label is predicted where its logit is >= 0.
    * one of `choices` in the rules: y holds the names of the options; the largest score wins (`pick: min`: the
      smallest).

    Labels and choices are read off the certified logits and scores; `predict_proba` always agrees with them.
    `fit` ends with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Args:
        class_weight: Weights in the loss of a network: `balanced`, so that the sides of a label and the options of a
            choice count the same; or a dict: of a choice by option, of labels for the rows where the label is on.
        calibrate: Divide logits and scores of a network by a temperature with the least loss on the rows held out. No
            decision changes. Learned boxes have none.
        thresholds: The probability from which on a label is predicted: a number, a dict by label (0.5 for others), or
            `balanced_accuracy` or `f1`, tuned on the rows that a network holds out. Logits are shifted in front of the
            head, so that rules about labels are proved for the labels that are predicted. `thresholds_` has them.

    Further parameters are those of `SafeEstimator`.

    >>> import numpy as np
    >>> from smle import SafeClassifier
    >>> X = np.random.default_rng(0).uniform(0, 100, (400, 1))
    >>> rules = "inputs: {age: [0, 100]}\nlabels: [adult, minor]\nrules: [{name: one, then: not (adult and minor)}]"
    >>> y = np.hstack([X >= 18, X < 18]).astype(int)
    >>> model = SafeClassifier(rules, max_epochs=20, thresholds={"minor": 0.2}, class_weight="balanced", random_state=0)
    >>> bool(model.fit(X, y).predict(X).all(axis=1).any())
    False
    """

    hidden_layer_sizes: tuple[int, ...] = CLASSES.hidden_layer_sizes
    learning_rate: float = CLASSES.learning_rate
    weight_decay: float | None = CLASSES.weight_decay
    class_weight: str | Mapping[Any, float] | None = None
    calibrate: bool = True
    thresholds: float | str | Mapping[str, float] | None = None

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several labels are fine."""
        tags = super().__sklearn_tags__()
        inner = None if self.estimator is None else get_tags(self.estimator).classifier_tags
        tags.classifier_tags.multi_label = inner is None or inner.multi_label
        return tags

    # --- using

    @property
    def classes_(self) -> Any:
        """The options in sorted order, in the type that y had in `fit`; of labels a list of 0 and 1 for each."""
        return self._task.classes

    @property
    def thresholds_(self) -> dict[str, float] | None:
        """The probability from which on each label is predicted; None: one half."""
        found = getattr(self._task, "thresholds", None)
        return None if found is None else dict(zip(self.specification_.targets, found.tolist(), strict=True))

    def decision_function(self, X: Any, *, out_of_domain: str | None = None) -> npt.NDArray[np.float64]:
        """Return the certified logits or scores (rows, m), as float64 numbers that hold them exactly.

        Columns are those of `classes_`. For a choice between two options: the advantage of the second (rows,).
        """
        scores = self._outputs(X, out_of_domain).served.astype(np.float64)
        task = self._task
        if isinstance(task, Labels):
            return scores
        scores = scores[:, task.order] * task.sign
        return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)

    def predict(self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None) -> Any:
        """Return labels as 0/1 (rows, m), or the chosen options (rows,).

        Args:
            X: Table with the rules' input columns.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain` and `clipped_share`.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; None: as the estimator
                was told.
        """
        found = self._outputs(X, out_of_domain, taps=return_info)
        result = self._task.predictions(found.served)
        return (result, found.information(self.specification_)) if return_info else result

    def predict_proba(self, X: Any, *, out_of_domain: str | None = None) -> npt.NDArray[np.float64]:
        """Return probabilities (rows, m), columns as in `classes_`. They always agree with `predict`.

        A label is on where its probability is at least 0.5, or its threshold; the chosen option has the largest. An
        option that the rules forbid at this input has 0, and the others share the rest as they would without it. A
        label that the rules force or forbid there has 1 or 0. Relations between labels that are open move decisions,
        not the probabilities of single labels. Nothing else is claimed of them: the proof is about what is predicted.
        """
        chances, task = self.chances(self._outputs(X, out_of_domain)), self._task
        assert chances is not None
        return chances[:, task.order] if isinstance(task, Options) else chances

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, as scikit-learn defines it: of several labels the share of rows where all are right."""
        check_is_fitted(self, "description_")
        if isinstance(self._task, Options):
            return float(super().score(X, y, sample_weight))
        return float(np.average(self._right(X, y).all(axis=1), weights=sample_weight))

    def label_accuracy(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of single labels that are right, averaged over labels and rows; of a choice its accuracy."""
        check_is_fitted(self, "description_")
        if isinstance(self._task, Options):
            return self.score(X, y, sample_weight)
        return float(np.average(self._right(X, y).mean(axis=1), weights=sample_weight))

    def _right(self, X: Any, y: Any) -> npt.NDArray[np.bool_]:
        return np.asarray(self.predict(X) == encode_numbers(self.specification_, y))

    # --- fitting

    def _task_of(self, spec: Specification, y: Any = None) -> Labels | Options:
        if spec.output_kind not in ("labels", "choice"):
            raise DataError(
                "SafeClassifier predicts labels, or one choice. Expected `labels` or one of `choices` in the rules. "
                "For mixed kinds of outputs use smle.nn.SafeNetwork."
            )
        kind = Options if spec.output_kind == "choice" else Labels
        return kind(spec, y, class_weight=self.class_weight)

    def _start(self) -> Any:
        """Return the perceptron to go on from, without thresholds."""
        front = super()._start()
        if front is None or self.thresholds_ is None:
            return front
        least = np.array(list(self.thresholds_.values()))
        return rescaled(front, 1.0, np.log(least / (1 - least)))

    def _finished(self, front: Any, rows: Rows, held: Held | None) -> Any:
        """Fold a temperature and thresholds into the model in front of the head."""
        task, learned = rows.task, self.enforcement != "correct" and self.estimator is None
        assert isinstance(task, Labels | Options)
        if self.thresholds is not None and (learned or isinstance(task, Options)):
            why = "they shift what is in front of a head of rules, and a learned box has none" if learned else (
                "of a choice the best option wins. class_weight moves the balance"
            )  # fmt: skip
            raise ValueError(f"Expected thresholds to be None here: {why}. Got {self.thresholds!r}.")
        if learned:
            return front
        slope, logits, targets, weight = 1.0, None, rows.targets, rows.weight
        if held is not None:
            logits, targets = held.outputs, targets[held.rows]
            weight = None if weight is None else weight[held.rows]
            slope = temperature(task, logits, targets, weight) if self.calibrate else 1.0
        shift = np.zeros(len(rows.spec.targets))
        if self.thresholds is not None and isinstance(task, Labels):
            logits = None if logits is None else slope * logits
            task.thresholds = thresholds_of(self.thresholds, task, logits, targets, weight)
            shift = np.log(1 / task.thresholds - 1)
        return front if slope == 1.0 and not shift.any() else rescaled(front, slope, shift)

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
