"""SMLERegressor and SMLEClassifier: the paper's learned box, y = g(clip(h(x), l(x), u(x)))."""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from smle.advice.examine import conflicts_explained
from smle.errors import NotCertifiedError
from smle.estimators.base import SafeEstimator, short_history
from smle.estimators.class_tasks import LabelTask, Options
from smle.estimators.fitted import ClassAnswers, NumberAnswers
from smle.estimators.networks import counting_rows, number_task
from smle.estimators.tasks import Numbers, Quantiles, Task
from smle.monitor import Usage
from smle.parameters import (
    ClassificationParameters,
    NetworkParameters,
    RegressionParameters,
    documented,
    flag,
    named,
    or_none,
    stated,
)
from smle.rules import Specification
from smle.serving.perceptron import Perceptron
from smle.serving.served import Served
from smle.tables.further import FurtherColumns

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LearnedBox", "SMLEClassifier", "SMLERegressor"]


def _is_enforcement(value: Any) -> bool:
    training = sys.modules.get("smle.heads.box.training.enforcement")  # if it is not loaded, no such object exists
    return value == "pdcg" or (training is not None and isinstance(value, training.Enforcement))


@dataclass(eq=False, repr=False)
class LearnedBox(SafeEstimator, NetworkParameters):
    """A network with a box, learned under rules. See `SMLERegressor` and `SMLEClassifier`."""

    _: KW_ONLY
    bounds: str = stated(
        "auto",
        named("auto", "fixed", "affine", "network"),
        "'auto', 'fixed', 'affine' or 'network'",
        """Bounds of the box: `fixed` (after the linear layer of the embedding as general as any constants), `affine`,
        or `network` (a small ReLU network of the inputs; no ONNX export). `auto`: affine if rules mention inputs in
        `then`, so that the room for the outputs can move with the inputs; else fixed.""",
    )
    enforcement: Any = stated(
        "pdcg",
        _is_enforcement,
        "'pdcg' or an Enforcement",
        "What keeps the heads safe: `pdcg`, or an object such as `smle.training.PDCG(memory=10)`.",
    )
    gate: bool = stated(
        True,
        flag,
        "True or False",
        "Use one head per cell. False: one head for all inputs, and no refit, as in Algorithm 2 of the paper.",
    )
    refit_heads: bool | None = stated(
        None,
        or_none(flag),
        "True, False or None",
        """After training, replace the heads by the safe ones that fit best, if validation improves. None: if there is
        a gate.""",
    )

    def _loss_task(self, spec: Specification, y: Any) -> Task:
        """Return the task with its loss."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a network with a box, and certify it.

        Args:
            X: Table with the rules' input columns, and any others that the network should read; or an array of the
                rules' inputs in their order.
            y: Targets: a table with the rules' output columns, or an array in their order.
            sample_weight: Weight of each row (N,) in loss, early stopping and refit. Rows of weight 0 are left out.

        Raises:
            ValueError: If a parameter has an invalid value.
            DataError: If the data do not fit the rules' columns and ranges.
            ContradictionError: If the rules cannot be satisfied together.
            NotCertifiedError: If no proof was found. After any error the model is unchanged.
        """
        fitted = self._emptied()
        return self._taken_over(fitted, fitted._fit(X, y, sample_weight))

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Usage:
        """Fit in place; return what the model does to the rows. On failure the object may be half-fitted."""
        from smle.heads.box.estimators.box_training import train_box

        spec = self._given()
        if not spec.rules:
            raise NotCertifiedError(
                f"{type(self).__name__} learns a box under rules, and there are none. Without rules use "
                "NetworkRegressor or NetworkClassifier."
            )
        rows = self._read_rows(spec, self._loss_task(spec, y), X, y)
        counting, weight = counting_rows(rows.encoded, sample_weight)
        inputs = [item.name for item in spec.inputs]
        further = FurtherColumns.of(rows.frame, spec, without=inputs)
        rows = rows._replace(
            frame=rows.frame.iloc[counting], encoded=rows.encoded[counting], targets=rows.targets[counting]
        )
        wide = rows.encoded if not further.width else np.hstack([rows.encoded, further.read(rows.frame)])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with conflicts_explained(spec):
            trained, certificate = train_box(self, rows.task, rows.encoded, wide, rows.targets, weight, seed)
        self.history_ = trained.history
        front = Perceptron(trained.tensors, further)
        served, task = Served(front, spec, certificate), self._plain_task(spec, y)
        facts = {"architecture": front.architecture, "seed": seed, "history": short_history(trained.history)}
        usage = self._serve(served, rows, task, **facts)
        self._compared(rows, weight, trained.held, seed)
        return usage


@documented
@dataclass(eq=False, repr=False)
class SMLERegressor(NumberAnswers, RegressionParameters, LearnedBox):
    r"""A network with a learned box for numeric outputs, by the paper's algorithm; `fit` ends with a certificate.

    Its parameters are listed in docs/training.md, and by `help`.

    >>> import numpy as np
    >>> from smle import SMLERegressor
    >>> X = np.random.default_rng(0).uniform(0, 10, (200, 1))
    >>> rules = "inputs: {hours: [0, 10]}\noutputs: [cost]\nrules: [{name: affordable, then: 0 <= cost <= 7}]"
    >>> model = SMLERegressor(rules, hidden_layer_sizes=(8,), embedding=4, max_epochs=40, random_state=0)
    >>> bool(model.fit(X, X[:, 0]).predict(X).max() <= 7)
    True
    """

    def _loss_task(self, spec: Specification, y: Any) -> Numbers:
        self._plain_task(spec)
        task = number_task(self, spec, y)
        if isinstance(task, Quantiles):
            raise ValueError(f"Expected quantile to be one number here. Got {self.quantile!r}.")
        return task


@documented
@dataclass(eq=False, repr=False)
class SMLEClassifier(ClassAnswers, ClassificationParameters, LearnedBox):
    """A network with a learned box for labels or one choice, by the paper's algorithm; `fit` ends with a certificate.

    Its parameters are listed in docs/training.md, and by `help`.
    """

    def _loss_task(self, spec: Specification, y: Any) -> LabelTask | Options:
        task = self._plain_task(spec, y)
        task.class_weight = self.class_weight
        return task
