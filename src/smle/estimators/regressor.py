"""SafeRegressor: numeric outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import get_tags

from smle.errors import DataError
from smle.estimators.base import SafeEstimator
from smle.estimators.inputs import observed_inputs
from smle.estimators.tasks import Numbers
from smle.rules import Number, Specification
from smle.tables import column_names

__all__ = ["SafeRegressor"]


@dataclass(eq=False, repr=False)
class SafeRegressor(RegressorMixin, SafeEstimator):  # type: ignore[misc]
    """A multi-layer perceptron, or any estimator, that provably obeys rules, for numeric outputs.

    `fit` ends with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Arguments are those of `SafeEstimator`.
    """

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several outputs are fine."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.estimator is None or get_tags(self.estimator).target_tags.multi_output
        return tags

    def predict(self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None) -> Any:
        """Return predictions as float64 numbers that hold the certified float32 values exactly.

        Args:
            X: Table with the rules' input columns.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain` and `clipped_share`.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; None: as the estimator
                was told. The rules are guaranteed inside; outside they hold at the clamped input.
        """
        found = self._outputs(X, out_of_domain, taps=return_info)
        result = found.served.astype(np.float64)
        result = result[:, 0] if self._task.flat and result.shape[1] == 1 else result
        return (result, found.information(self.specification_)) if return_info else result

    def _task_of(self, spec: Specification, y: Any = None) -> Numbers:
        if spec.output_kind != "numbers":
            raise DataError("SafeRegressor predicts numbers. Expected `outputs` in the rules. Got labels or choices.")
        return Numbers(spec, y)

    def _observed(self, X: Any, y: Any) -> Specification:
        if y is None:
            raise DataError("This SafeRegressor requires y to be passed, but the target y is None.")
        shape = np.asarray(y).shape
        names = column_names(y) or [f"y{i}" for i in range(1 if len(shape) == 1 else shape[1])]
        return Specification(observed_inputs(X), tuple(Number(name) for name in names), ())
