"""The base classes of scikit-learn, with types.

scikit-learn itself is untyped, and under an untyped base a type checker would accept any parameter name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["BaseEstimator", "ClassifierMixin", "RegressorMixin"]

if TYPE_CHECKING:
    from typing_extensions import Self

    class BaseEstimator:
        """An estimator with parameters."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return the parameters by name."""

        def set_params(self, **params: Any) -> Self:
            """Change parameters."""

        def set_fit_request(self, **requested: bool | str | None) -> Self:
            """Choose the metadata that `fit` takes."""

        def set_score_request(self, **requested: bool | str | None) -> Self:
            """Choose the metadata that `score` takes."""

        def __sklearn_tags__(self) -> Any:
            """Tell scikit-learn what the estimator reads and returns."""

        def _get_metadata_request(self) -> Any: ...

    class RegressorMixin:
        """An estimator that predicts numbers."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return R2."""

    class ClassifierMixin:
        """An estimator that predicts classes."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return the accuracy."""

else:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
