"""How networks are trained unless something else is asked for: one place for estimators and the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["CLASSES", "NETWORK"]


@dataclass(frozen=True)
class _Network:
    """Names and meanings are those of the parameters of `SafeRegressor`; docs/networks.md has the measurements."""

    hidden_layer_sizes: tuple[int, ...] = (64, 64, 64)
    embedding: int = 64
    bounds: str = "auto"
    learning_rate: float = 1e-2
    weight_decay: float | None = None
    batch_size: int = 256
    max_epochs: int = 500
    patience: int = 50
    validation_fraction: float = 0.2
    schedule: str | None = "plateau"
    final_epochs: int | None = None
    enforcement: str = "correct"
    refit_heads: bool = True
    gate: bool = True


NETWORK = _Network()
CLASSES = replace(NETWORK, hidden_layer_sizes=(100,), learning_rate=3e-3, weight_decay=1.0)
"""Of `SafeClassifier`: labels and choices."""
