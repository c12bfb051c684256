"""SafeRegressor: numeric outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import get_tags

from smle.errors import DataError
from smle.estimators.base import SafeEstimator
from smle.estimators.inputs import observed_inputs
from smle.estimators.tasks import Numbers
from smle.rules import Number, Specification
from smle.tables import column_names

if TYPE_CHECKING:
    from smle.training.options import Loss

__all__ = ["SafeRegressor"]


@dataclass(eq=False, repr=False)
class SafeRegressor(RegressorMixin, SafeEstimator):  # type: ignore[misc]
    r"""A multi-layer perceptron, or any estimator, that provably obeys rules, for numeric outputs.

    `fit` ends with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Args:
        loss: What a network learns: `squared_error`, `absolute_error`, `quantile`, `poisson`, or a function of
            (prediction, target), tensors (batch, m), with a value per row or number (it is not stored). `poisson` is
            for targets from 0 on: the Poisson deviance of the answer itself. There is no exponential behind the
            network, so rules are about the rate; below a hundredth of the mean target the deviance goes on as a
            straight line. With other losses than `squared_error` nothing is compared (`compare`) or refitted.
        quantile: Of `loss="quantile"`.

    Further parameters are those of `SafeEstimator`.

    >>> import numpy as np
    >>> from smle import SafeRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (400, 1))
    >>> y = X[:, 0] * rng.uniform(0.5, 1.5, 400)
    >>> rules = "inputs: {hours: [0, 10]}\noutputs: [cost]\nrules: [{name: affordable, then: 0 <= cost <= 12}]"
    >>> model = SafeRegressor(rules, loss="quantile", quantile=0.9, max_epochs=30, random_state=0).fit(X, y)
    >>> answers = model.predict(X)
    >>> bool(answers.max() <= 12), bool((y <= answers).mean() > 0.7)
    (True, True)
    """

    loss: str | Loss = "squared_error"
    quantile: float = 0.5

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several outputs are fine."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.estimator is None or get_tags(self.estimator).target_tags.multi_output
        return tags

    def predict(
        self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None, as_steps: bool = False
    ) -> Any:
        """Return predictions as float64 numbers that hold the certified float32 values exactly.

        Args:
            X: Table with the rules' input columns.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain` and `clipped_share`.
            as_steps: Return the whole numbers of steps (n, m), as integers, instead of the nearest float32 numbers.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; None: as the estimator
                was told. The rules are guaranteed inside; outside they hold at the clamped input.
        """
        found = self._outputs(X, out_of_domain, taps=return_info)
        result: Any = found.served.astype(np.float64)
        if as_steps:
            grid = self.specification_.grid
            if grid is None:
                raise ValueError("Expected outputs with steps for as_steps=True. Got rules without steps, or none.")
            result = grid.whole(result)
        result = result[:, 0] if self._task.flat and result.shape[1] == 1 else result
        return (result, found.information(self.specification_)) if return_info else result

    def _task_of(self, spec: Specification, y: Any = None) -> Numbers:
        if spec.output_kind != "numbers":
            raise DataError("SafeRegressor predicts numbers. Expected `outputs` in the rules. Got labels or choices.")
        return Numbers(spec, y, loss=self.loss, quantile=self.quantile)

    def _observed(self, X: Any, y: Any) -> Specification:
        if y is None:
            raise DataError("This SafeRegressor requires y to be passed, but the target y is None.")
        shape = np.asarray(y).shape
        names = column_names(y) or [f"y{i}" for i in range(1 if len(shape) == 1 else shape[1])]
        return Specification(observed_inputs(X), tuple(Number(name) for name in names), ())
