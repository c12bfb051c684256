"""Models that provably obey rules.

Public names are loaded on first use: importing smle loads neither torch nor NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "NetworkClassifier": "smle.estimators",
    "NetworkRegressor": "smle.estimators",
    "SMLEClassifier": "smle.estimators",
    "SMLERegressor": "smle.estimators",
    "SafeClassifier": "smle.estimators",
    "SafeQuantileRegressor": "smle.estimators",
    "SafeRegressor": "smle.estimators",
    "Specification": "smle.rules",
    "attack": "smle.attacks",
    "certify": "smle.estimators",
    "correct": "smle.corrected",
    "counterexample": "smle.attacks",
    "diagnose": "smle.heads.advice",
    "load": "smle.estimators",
    "project": "smle.estimators",
    "verify": "smle.estimators",
}

__all__ = [
    "NetworkClassifier",
    "NetworkRegressor",
    "SMLEClassifier",
    "SMLERegressor",
    "SafeClassifier",
    "SafeQuantileRegressor",
    "SafeRegressor",
    "Specification",
    "attack",
    "certify",
    "correct",
    "counterexample",
    "diagnose",
    "load",
    "project",
    "verify",
]

if TYPE_CHECKING:
    from smle.attacks import attack, counterexample
    from smle.corrected import correct
    from smle.estimators import (
        NetworkClassifier,
        NetworkRegressor,
        SafeClassifier,
        SafeQuantileRegressor,
        SafeRegressor,
        SMLEClassifier,
        SMLERegressor,
        certify,
        load,
        project,
        verify,
    )
    from smle.heads.advice import diagnose
    from smle.rules import Specification


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'smle' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
