"""The scikit-learn interface: estimators whose fitted models are certified."""

from smle.estimators.base import SafeEstimator, without_rules
from smle.estimators.networks import NetworkClassifier, NetworkRegressor
from smle.estimators.quantiles import SafeQuantileRegressor
from smle.estimators.safe_estimators import SafeClassifier, SafeRegressor
from smle.estimators.scores import compare_models, quick_baseline

__all__ = [
    "NetworkClassifier",
    "NetworkRegressor",
    "SafeClassifier",
    "SafeEstimator",
    "SafeQuantileRegressor",
    "SafeRegressor",
    "compare_models",
    "quick_baseline",
    "without_rules",
]
