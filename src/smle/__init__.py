"""Models that provably obey rules.

Public names are loaded on first use: importing smle loads neither torch nor NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "NetworkClassifier": "smle.estimators",
    "NetworkRegressor": "smle.estimators",
    "SMLEClassifier": "smle.heads.box.estimators.learned_box",
    "SMLERegressor": "smle.heads.box.estimators.learned_box",
    "SafeClassifier": "smle.estimators",
    "SafeQuantileRegressor": "smle.estimators",
    "SafeRegressor": "smle.estimators",
    "Specification": "smle.rules",
    "attack": "smle.attacks",
    "certify": "smle.doors.assure",
    "correct": "smle.corrected",
    "counterexample": "smle.heads.box.algorithms.strongest",
    "diagnose": "smle.advice.examine",
    "load": "smle.doors.load",
    "project": "smle.doors.assure",
    "verify": "smle.doors.assure",
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
    from smle.advice.examine import diagnose
    from smle.attacks import attack
    from smle.corrected import correct
    from smle.doors.assure import certify, project, verify
    from smle.doors.load import load
    from smle.estimators import (
        NetworkClassifier,
        NetworkRegressor,
        SafeClassifier,
        SafeQuantileRegressor,
        SafeRegressor,
    )
    from smle.heads.box.algorithms.strongest import counterexample
    from smle.heads.box.estimators.learned_box import SMLEClassifier, SMLERegressor
    from smle.rules import Specification
else:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            found = globals()[name] = getattr(import_module(_HOME[name]), name)
            return found
        raise AttributeError(f"module 'smle' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
