"""What model.json says about a fitted model: provenance, training history, and the rows that it was trained on."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.monitor import Usage
from smle.rules import Specification
from smle.storage import description_of
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
    **further: Any,
) -> dict[str, Any]:
    """Return the description of a model that was fitted to encoded rows and targets."""
    provenance = {
        "data_sha256": table_digest(X, targets),
        "rows": len(X),
        "seed": seed,
        "command": " ".join(sys.argv)[:1000],
    }
    facts = {"architecture": architecture, "provenance": provenance, "history": history, **further}
    return description_of(kind, spec, training=usage.to_json(), **facts)


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
