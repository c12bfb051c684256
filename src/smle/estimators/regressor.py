"""SafeRegressor: numeric outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.estimators.bases import RegressorMixin
from smle.estimators.fitted import FittedModel
from smle.estimators.meta import MetaEstimator
from smle.estimators.networks import NetworkRegressor
from smle.estimators.tasks import Numbers
from smle.parameters import documented
from smle.rules import Specification

__all__ = ["NumberAnswers", "SafeRegressor"]


class NumberAnswers(RegressorMixin, FittedModel):
    """Answers of estimators with rules, as numbers."""

    @overload
    def predict(
        self,
        X: Any,
        *,
        return_info: Literal[False] = False,
        out_of_domain: str | None = None,
        bad_rows: str = "raise",
        as_steps: Literal[False] = False,
    ) -> npt.NDArray[np.float64]: ...

    @overload
    def predict(
        self,
        X: Any,
        *,
        return_info: Literal[False] = False,
        out_of_domain: str | None = None,
        bad_rows: str = "raise",
        as_steps: bool,
    ) -> npt.NDArray[Any]: ...

    @overload
    def predict(
        self,
        X: Any,
        *,
        return_info: Literal[True],
        out_of_domain: str | None = None,
        bad_rows: str = "raise",
        as_steps: bool = False,
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]: ...

    def predict(
        self,
        X: Any,
        *,
        return_info: bool = False,
        out_of_domain: str | None = None,
        bad_rows: str = "raise",
        as_steps: bool = False,
    ) -> Any:
        """Return predictions as float64 numbers that hold the certified float32 values exactly.

        Args:
            X: Table with the rules' input columns, and any others the model inside reads.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain`, and how each row was served
                (`served`, `moved`, `replaced`), or for a learned box `clipped_share`.
            as_steps: Return the whole numbers of steps (n, m), as integers, instead of the nearest float32 numbers.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; by default as the
                estimator was told. The rules are guaranteed inside; outside they hold at the clamped input.
            bad_rows: What to do with rows that cannot be read (an unknown category, a missing value, text instead of a
                number): `raise`, or `set aside`: they get NaN where answers are floats, else None, and the other rows
                are answered in place. `set_aside` of the dict has the reason for each such row, by its number from 0.
                `served_` counts them.
        """
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        result: Any = found.served.astype(np.float64)
        if as_steps:
            grid = self.specification_.grid
            if grid is None:
                raise ValueError("Expected outputs with steps for as_steps=True. Got rules without steps, or none.")
            result = grid.whole(result)
        result = result[:, 0] if self._task.flat and result.shape[1] == 1 else result
        return found.returned(result, return_info)

    def _plain_task(self, spec: Specification, y: Any = None) -> Numbers:
        if spec.output_kind != "numbers":
            name = type(self).__name__
            raise DataError(f"{name} predicts numbers. Expected `outputs` in the rules. Got labels or choices.")
        return Numbers(spec, y)


@documented
@dataclass(eq=False, repr=False)
class SafeRegressor(NumberAnswers, MetaEstimator):
    r"""A regressor that provably obeys rules: any estimator, followed by a certified head.

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
        """Tell scikit-learn whether several outputs are supported."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._inner_tags().target_tags.multi_output
        return tags
