"""What model.json says about a fitted model: provenance, training history, and the rows that it was trained on."""

from __future__ import annotations

import math
import platform
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import smle
from smle.monitor import Usage
from smle.rules import Specification
from smle.storage import FORMAT, VERSION
from smle.tables import table_digest

if TYPE_CHECKING:
    from smle.training.options import History

__all__ = ["describe", "short_history"]

_POINTS = 200  # of the training history


def describe(
    spec: Specification,
    X: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    *,
    kind: str,
    architecture: dict[str, Any],
    seed: int | None,
    history: dict[str, Any],
    usage: Usage,
) -> dict[str, Any]:
    """Return the description of a model that was fitted to encoded rows and targets."""
    versions = {"smle": smle.__version__, "python": platform.python_version()}
    used = {name: str(sys.modules[name].__version__) for name in ("torch",) if name in sys.modules}
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "architecture": architecture,
        "inputs": [item.name for item in spec.inputs],
        "columns": list(spec.columns),
        "targets": list(spec.targets),
        "provenance": {
            "data_sha256": table_digest(X, targets),
            "rows": len(X),
            "seed": seed,
            "command": " ".join(sys.argv)[:1000],
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": {**versions, **used, "numpy": np.__version__},
        },
        "history": history,
        "training": usage.to_json(),
        "scores": {},
    }


def short_history(history: History) -> dict[str, Any]:
    """Return the history with at most some hundreds of epochs, evenly spaced; the best and the last are kept."""
    epochs = len(history.loss)
    chosen = {round(i) for i in np.linspace(0, epochs - 1, min(epochs, _POINTS))}
    kept = sorted(chosen | {history.best_epoch}) if epochs else []

    def values(name: str) -> list[float | None]:
        every = getattr(history, name)
        return [every[i] if math.isfinite(every[i]) else None for i in kept] if len(every) == epochs else []

    return {
        "epochs": epochs - history.final_epochs,
        "best_epoch": history.best_epoch + 1,
        "final_epochs": history.final_epochs,
        "stopped": history.stopped,
        "seconds": round(history.seconds, 3),
        "epoch": [i + 1 for i in kept],
        "loss": values("loss"),
        "validation_loss": values("validation_loss"),
        "learning_rate": values("learning_rate"),
        "safety_name": history.safety_name,
        "safety": values("safety"),
    }
