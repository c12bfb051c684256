"""SafeRegressor: numeric outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from smle.errors import DataError
from smle.estimators.meta import MetaEstimator
from smle.estimators.networks import NetworkRegressor
from smle.estimators.tasks import Numbers
from smle.parameters import documented
from smle.rules import Specification

__all__ = ["NumberAnswers", "SafeRegressor"]


class NumberAnswers(RegressorMixin):  # type: ignore[misc]
    """How estimators with rules answer with numbers."""

    def predict(
        self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None, as_steps: bool = False
    ) -> Any:
        """Return predictions as float64 numbers that hold the certified float32 values exactly.

        Args:
            X: Table with the rules' input columns, and whatever else the model inside reads.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain`, and how each row was served
                (`served`, `moved`, `replaced`), or of a learned box `clipped_share`.
            as_steps: Return the whole numbers of steps (n, m), as integers, instead of the nearest float32 numbers.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; None: as the estimator
                was told. The rules are guaranteed inside; outside they hold at the clamped input.
        """
        found = self.answer(X, out_of_domain)
        result: Any = found.served.astype(np.float64)
        if as_steps:
            grid = self.specification_.grid
            if grid is None:
                raise ValueError("Expected outputs with steps for as_steps=True. Got rules without steps, or none.")
            result = grid.whole(result)
        result = result[:, 0] if self._task.flat and result.shape[1] == 1 else result
        return (result, found.information(self.specification_)) if return_info else result

    def _plain_task(self, spec: Specification, y: Any = None) -> Numbers:
        if spec.output_kind != "numbers":
            name = type(self).__name__
            raise DataError(f"{name} predicts numbers. Expected `outputs` in the rules. Got labels or choices.")
        return Numbers(spec, y)


@documented
@dataclass(eq=False, repr=False)
class SafeRegressor(NumberAnswers, MetaEstimator):
    r"""A regressor that provably obeys rules: any estimator, with a certified head behind it.

    `fit` ends with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Its parameters are listed in docs/training.md, and by `help`.

    >>> import numpy as np
    >>> from smle import NetworkRegressor, SafeRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (400, 1))
    >>> y = X[:, 0] * rng.uniform(0.5, 1.5, 400)
    >>> rules = "inputs: {hours: [0, 10]}\noutputs: [cost]\nrules: [{name: affordable, then: 0 <= cost <= 12}]"
    >>> network = NetworkRegressor(loss="quantile", quantile=0.9, max_epochs=30)
    >>> model = SafeRegressor(rules, network, random_state=0).fit(X, y)
    >>> answers = model.predict(X)
    >>> bool(answers.max() <= 12), bool((y <= answers).mean() > 0.7)
    (True, True)
    """

    network = NetworkRegressor

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn whether several outputs are fine."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._inner_tags().target_tags.multi_output
        return tags
