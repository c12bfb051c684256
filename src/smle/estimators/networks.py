"""NetworkRegressor and NetworkClassifier: perceptrons as plain scikit-learn estimators, without rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d

from smle.errors import DataError
from smle.estimators.bases import BaseEstimator, ClassifierMixin, RegressorMixin
from smle.estimators.calibration import rescaled, temperature
from smle.estimators.class_tasks import LabelTask, Options
from smle.estimators.fitted import checked_numbers
from smle.estimators.tasks import Held, Numbers, Quantiles, Task, quantile_names
from smle.parameters import (
    ClassificationParameters,
    NetworkParameters,
    RegressionParameters,
    documented,
    flag,
    require_parameters,
    stated,
)
from smle.rules import Choice, Label, Number, Specification
from smle.serving.perceptron import Perceptron
from smle.tables import as_table, column_names, encode_inputs, plain_array
from smle.tables.days import with_days
from smle.tables.further import FurtherColumns

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Lesson", "NetworkClassifier", "NetworkEstimator", "NetworkRegressor", "counting_rows", "number_task"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a network learns from: rows as numbers (n, D), targets (n, m), weights (n,) or None.

    The first columns are the inputs of `spec`, if there is one; the others are `further` columns of the table.
    `columns` are the names of all columns of the table; `named` is False if it was an array, which has none.
    """

    task: Task
    spec: Specification | None
    further: FurtherColumns
    X: npt.NDArray[Any]
    targets: Array
    weight: Any
    columns: tuple[str, ...]
    named: bool


@dataclass(eq=False, repr=False)
class NetworkEstimator(NetworkParameters, BaseEstimator):
    """A perceptron that reads tables. See `NetworkRegressor` and `NetworkClassifier`."""

    _: KW_ONLY
    warm_start: bool = stated(
        False,
        flag,
        "True or False",
        "Let `fit` continue from the current weights instead of random ones, with a new optimizer.",
    )

    def _task_of(self, spec: Specification, y: Any = None) -> Any:
        """Return the task of a specification, with the loss of this network. Raises DataError for other outputs."""
        raise NotImplementedError

    def _outputs_of(self, y: Any) -> Specification:
        """Describe targets by a specification that has outputs only."""
        raise NotImplementedError

    # --- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on a table and its targets.

        Args:
            X: Table with columns of numbers or text, with missing values allowed; or an array. Text columns with more
                than 100 values are left out.
            y: Targets: a column, or several.
            sample_weight: Weight of each row (N,) in loss and early stopping. Rows of weight 0 are left out.

        Raises:
            ValueError: If a parameter has an invalid value.
            DataError: If the table or its targets cannot be read.
        """
        if not (self.warm_start and hasattr(self, "network_")):
            return self._learn(self._first_lesson(X, y, sample_weight))
        task = self._task_of(self._outputs_of(y), y)
        return self._learn(self._next_lesson(task, X, y, sample_weight), start=self.network_)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Self:
        """Train for one epoch on some rows, from the current weights. Arguments as in `fit`.

        No rows are held out: there is no early stopping, and no temperature is fitted. Columns and the values of text
        columns are those of the first call, which may list all options of a choice as `classes`.
        """
        if not hasattr(self, "network_"):
            return self._learn(self._first_lesson(X, y, sample_weight, classes), once=True)
        return self._learn(self._next_lesson(self.task_, X, y, sample_weight), start=self.network_, once=True)

    def _first_lesson(self, X: Any, y: Any, weight: Any, classes: Any = None) -> Lesson:
        X = as_table(X)
        table, named = named_table(X), column_names(X) is not None
        task = self._task_of(self._outputs_of(y if classes is None else classes), y)
        further, names = FurtherColumns.of(table), tuple(column_names(table) or ())
        if not further.width:
            raise DataError("Expected a column of numbers, or of text with at most 100 values. Got none to learn from.")
        return Lesson(task, None, further, further.read(table), task.encode(y), weight, names, named)

    def _next_lesson(self, task: Task, X: Any, y: Any, weight: Any) -> Lesson:
        features, named = self._features(X), hasattr(self, "feature_names_in_")
        return Lesson(task, self._spec, self._further, features, task.encode(y), weight, self._names, named)

    def _learn(self, lesson: Lesson, *, start: Perceptron | None = None, once: bool = False) -> Self:
        """Train on these rows. After an error the network is unchanged.

        Continues from the weights of `start`, if given. With `once`, takes one epoch and holds out no rows.
        """
        require_parameters(self, self.get_params(deep=False))
        X, targets = lesson.X, lesson.targets
        if len(X) != len(targets):
            raise DataError(f"Expected as many rows in X as in y. Got {len(X)} and {len(targets)}.")
        rows, weight = counting_rows(X, lesson.weight)
        X, targets = X[rows], targets[rows]
        if len(X) < (1 if once else 2):
            raise DataError(f"Expected at least 2 rows to train on. Got {len(X)} sample(s).")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        from smle.estimators.perceptrons import train_perceptron

        found = train_perceptron(self, lesson.task, X, targets, weight, seed, start=start, once=once)
        network, held = Perceptron(found.tensors, lesson.further), found.held
        if held is not None:
            held = held._replace(weight=None if weight is None else weight[held.rows])
            network, held = self._finished(network, lesson.task, targets[held.rows], held)
            held = held._replace(rows=rows[held.rows])
        self.history_, self.held_out_, self.seed_ = found.history, held, seed
        return self._adopt(lesson.task, lesson.spec, network, lesson.columns, named=lesson.named)

    def _finished(self, network: Perceptron, task: Any, targets: Array, held: Held) -> tuple[Perceptron, Held]:
        """Return the trained network as it is to be used; `targets` are those of the held-out rows."""
        return network, held

    def _adopt(
        self, task: Any, spec: Specification | None, network: Perceptron, columns: tuple[str, ...], *, named: bool
    ) -> Self:
        """Adopt a trained network of a table with these columns."""
        self.task_, self._spec, self.network_, self._names = task, spec, network, columns
        self._further = FurtherColumns({}, (), {}) if network.further is None else network.further
        self.n_features_in_ = len(columns)
        if named:
            self.feature_names_in_ = np.asarray(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    # --- using

    def _features(self, X: Any) -> npt.NDArray[Any]:
        """Return a table as the numbers that the network reads (rows, D)."""
        check_is_fitted(self, "network_")
        table = named_table(X, self._names, owner=type(self).__name__)
        if self._spec is None:
            return self._further.read(table)
        encoded = encode_inputs(self._spec, table)
        return self.network_.features(with_days(self._spec, table, column_names(table)), encoded)

    def raw_outputs(self, X: Any) -> Array:
        """Return the answers of the network (rows, m): numbers, logits of labels, scores of options."""
        features = self._features(X)
        return self.network_(features).astype(np.float64)

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether there is a network."""
        return hasattr(self, "network_")

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that missing values are supported."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@documented
@dataclass(eq=False, repr=False)
class NetworkRegressor(RegressorMixin, RegressionParameters, NetworkEstimator):
    """A perceptron for one number or several. It reads tables with text and missing values.

    It knows no rules; `SafeRegressor(spec, NetworkRegressor(...))` puts a certified head behind it.

    Its parameters are listed in docs/training.md, and by `help`.

    >>> import numpy as np
    >>> from smle import NetworkRegressor
    >>> X = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    >>> model = NetworkRegressor(max_epochs=60, random_state=0).fit(X, X[:, 0] * X[:, 1])
    >>> bool(model.score(X, X[:, 0] * X[:, 1]) > 0.9)
    True
    """

    def predict(self, X: Any) -> Array:
        """Return predictions: (rows,) if the targets were a column, (rows, m) otherwise."""
        answers = self.raw_outputs(X)
        return answers[:, 0] if self.task_.flat and answers.shape[1] == 1 else answers

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several outputs are supported."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _task_of(self, spec: Specification, y: Any = None) -> Numbers:
        """Return the numbers, or the quantiles, that a specification predicts."""
        if spec.output_kind != "numbers":
            raise DataError(f"{type(self).__name__} predicts numbers. Expected `outputs`. Got labels or choices.")
        require_parameters(self, self.get_params(deep=False))
        return number_task(self, spec, y)

    def _outputs_of(self, y: Any) -> Specification:
        if y is None:
            raise DataError(f"This {type(self).__name__} requires y to be passed, but the target y is None.")
        shape = np.asarray(y).shape
        names = column_names(y) or [f"y{i}" for i in range(1 if len(shape) == 1 else shape[1])]
        if isinstance(self.quantile, tuple | list):
            names = quantile_names(names[0], np.asarray(self.quantile))
        return Specification((), tuple(Number(name) for name in names), ())


def number_task(parameters: RegressionParameters, spec: Specification, y: Any) -> Numbers:
    """Return the numbers, or quantiles, that a network learns. Raises ValueError for a quantile with another loss."""
    loss, quantile = parameters.loss, parameters.quantile
    if loss != "quantile" and quantile != RegressionParameters.quantile:
        raise ValueError(f"Expected loss='quantile' with quantile={quantile!r}. Got loss={loss!r}.")
    if isinstance(quantile, tuple | list):
        return Quantiles(spec, tuple(quantile))
    return Numbers(spec, y, loss=loss, quantile=float(quantile))


@documented
@dataclass(eq=False, repr=False)
class NetworkClassifier(ClassifierMixin, ClassificationParameters, NetworkEstimator):
    """A perceptron for labels (y has several columns of 0 and 1) or one choice (y names an option per row).

    It reads tables with text and missing values, and knows no rules; `SafeClassifier(spec, NetworkClassifier(...))`
    puts a certified head behind it.

    Its parameters are listed in docs/training.md, and by `help`.

    >>> import numpy as np
    >>> from smle import NetworkClassifier
    >>> X = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    >>> y = np.where(X[:, 0] > 0, "right", "left")
    >>> bool(NetworkClassifier(max_epochs=60, random_state=0).fit(X, y).score(X, y) > 0.9)
    True
    """

    _: KW_ONLY
    calibrate: bool = stated(
        True,
        flag,
        "True or False",
        "Divide logits and scores by the temperature with the least loss on held-out rows. No decision changes.",
    )

    @property
    def classes_(self) -> Any:
        """The options in sorted order, in the type of y in `fit`; for labels, a list of 0 and 1 for each."""
        check_is_fitted(self, "network_")
        return self.task_.classes

    def decision_function(self, X: Any) -> Array:
        """Return logits or scores (rows, m), columns as in `classes_`; for two options, the lead of the second."""
        outputs = self.raw_outputs(X)
        return np.asarray(self.task_.decisions(outputs))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return labels as 0/1 (rows, m), or the chosen options (rows,)."""
        outputs = self.raw_outputs(X)
        return np.asarray(self.task_.predictions(outputs))

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities (rows, m), columns as in `classes_`. They always agree with `predict`."""
        outputs = self.raw_outputs(X)
        return np.asarray(self.task_.ordered(self.task_.chances(outputs)))

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several labels are supported."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _task_of(self, spec: Specification, y: Any = None) -> LabelTask | Options:
        """Return the labels or the choice that a specification predicts."""
        if spec.output_kind not in ("labels", "choice"):
            raise DataError(f"{type(self).__name__} predicts labels, or one choice. Got other outputs.")
        require_parameters(self, self.get_params(deep=False))
        kind = Options if spec.output_kind == "choice" else LabelTask
        return kind(spec, y, class_weight=self.class_weight)

    def _outputs_of(self, y: Any) -> Specification:
        if y is None:
            raise DataError(f"This {type(self).__name__} requires y to be passed, but the target y is None.")
        values = np.asarray(y)
        if values.ndim == 2 and values.shape[1] > 1:
            names = column_names(y) or [f"label{i}" for i in range(values.shape[1])]
            return Specification((), tuple(Label(name) for name in names), ())
        flat = column_or_1d(values, warn=True)
        check_classification_targets(flat)
        classes = np.unique(flat)
        if len(classes) < 2:
            raise DataError(f"Expected at least two classes. Got 1 class: {classes.tolist()}.")
        name = (column_names(y) or ["choice"])[0]
        return Specification((), (Choice(name, tuple(str(c) for c in classes.tolist())),), ())

    def _finished(self, network: Perceptron, task: Any, targets: Array, held: Held) -> tuple[Perceptron, Held]:
        """Fold a temperature into the last layer."""
        if not self.calibrate:
            return network, held
        slope = temperature(task, held.outputs, targets, held.weight)
        scaled = rescaled(network, slope, np.zeros(targets.shape[1]))
        assert isinstance(scaled, Perceptron)
        return scaled, held._replace(outputs=slope * held.outputs)


# --- rows


def named_table(X: Any, names: Sequence[str] | None = None, *, owner: str = "") -> Any:
    """Return a table unchanged, or an array as a table with given names, else `x0`, `x1`, ...

    Raises ValueError if an array is sparse, complex, empty or one-dimensional, or has infinities, and DataError if it
    has another number of columns.
    """
    import pandas as pd

    X = as_table(X)
    if column_names(X) is not None:
        if not len(X):
            raise DataError("Expected some rows. Got 0 sample(s).")
        return X
    X = plain_array(X)
    kind = getattr(getattr(X, "dtype", None), "kind", "")
    if kind in "OUS" and kind and any(isinstance(value, str) for value in X.ravel().tolist()):
        array = check_array(X, dtype=object, ensure_all_finite=False)
    else:
        array = checked_numbers(X, "allow-nan")
    if names is not None and array.shape[1] != len(names):
        raise DataError(f"X has {array.shape[1]} features, but {owner} is expecting {len(names)} features as input.")
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])] if names is None else list(names))


def counting_rows(X: npt.NDArray[Any], weight: Any) -> tuple[npt.NDArray[np.intp], Array | None]:
    """Return the indices of the rows with a weight above zero, and their weights, or None without weights.

    Raises ValueError if a weight is negative or their number is wrong, and DataError if all are zero.
    """
    if weight is None:
        return np.arange(len(X)), None
    weight = _check_sample_weight(weight, X, dtype=np.float64, ensure_non_negative=True)
    rows = np.flatnonzero(weight)
    if not len(rows):
        raise DataError("Expected some sample weights above zero. Got zeros only: there is nothing to learn.")
    return rows, weight[rows]
