"""SafeRegressor: numeric outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.utils import get_tags

from smle.errors import DataError
from smle.estimators.base import Array, SafeEstimator
from smle.estimators.inputs import observed_inputs, spread
from smle.guarantees import nearest_outputs
from smle.rules import Number, Specification
from smle.tables import column_names, encode_numbers

__all__ = ["SafeRegressor"]

# docs/networks.md has the measurements.
_NOISE = 0.1  # share of the variance
_LARGEST = 1e30  # of targets, and one over the least spread


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
        result = result[:, 0] if self._flat and result.shape[1] == 1 else result
        return (result, found.information(self.specification_)) if return_info else result

    def _read_outputs(self, spec: Specification, y: Any) -> None:
        if spec.output_kind != "numbers":
            raise DataError("SafeRegressor predicts numbers. Expected `outputs` in the rules. Got labels or choices.")

    def _observed(self, X: Any, y: Any) -> Specification:
        if y is None:
            raise DataError("This SafeRegressor requires y to be passed, but the target y is None.")
        shape = np.asarray(y).shape
        names = column_names(y) or [f"y{i}" for i in range(1 if len(shape) == 1 else shape[1])]
        return Specification(observed_inputs(X), tuple(Number(name) for name in names), ())

    def _encode_targets(self, spec: Specification, y: Any) -> Array:
        self._flat = np.asarray(y).ndim == 1
        targets = encode_numbers(spec, y)
        for name, largest, scale in zip(
            spec.targets, np.abs(targets).max(axis=0, initial=0), spread(targets), strict=True
        ):
            if largest > _LARGEST or scale < 1 / _LARGEST:
                raise DataError(
                    f"Output '{name}': values up to {largest:.3g} with a standard deviation of {scale:.3g} are beyond "
                    "what float32 arithmetic can tell apart. State it in another unit."
                )
        return targets

    def _enforce(self, spec: Specification, X: npt.NDArray[Any], targets: Array) -> Array:
        return nearest_outputs(spec, X, targets, scale=spread(targets))  # in the units of the loss

    def _frame(self, targets: Array) -> tuple[Array, Array]:
        return targets.mean(axis=0), spread(targets)

    def _as_outputs(self, targets: Array) -> Array:
        mean: Array = targets.mean(axis=0)
        return mean

    def _loss(self, targets: Array) -> Any:
        import torch

        scale = torch.as_tensor(spread(targets), dtype=torch.float32)

        def loss(predicted: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return ((predicted - wanted) / scale) ** 2

        return loss

    def _small_loss(self, targets: Array) -> float:
        return _NOISE * float((((targets.mean(axis=0) - targets) / spread(targets)) ** 2).mean())

    def _refit_loss(self) -> Any:
        return "squared"

    def _typical(self, targets: Array) -> tuple[Array, Array]:
        return np.median(targets, axis=0), spread(targets)

    def _inner_targets(self, targets: Array) -> npt.NDArray[Any]:
        return targets[:, 0] if targets.shape[1] == 1 else targets

    def _facts(self) -> dict[str, Any]:
        return {"flat": self._flat}

    def _restore(self, description: dict[str, Any]) -> None:
        self._flat = bool(description.get("flat")) and len(self.specification_.outputs) == 1
