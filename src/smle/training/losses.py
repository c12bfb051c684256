"""Losses under scikit-learn's names; each gives a value per row and output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smle.training.options import Loss

__all__ = ["LOSSES", "loss_of", "quantile_loss"]


def quantile_loss(level: float) -> Loss:
    """Return the loss that a quantile minimizes; nine tenths of the targets lie below the quantile 0.9."""
    if not 0 < level < 1:
        raise ValueError(f"Expected a quantile between 0 and 1. Got {level}.")

    def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
        gap = wanted - predicted
        return torch.maximum(level * gap, (level - 1) * gap)

    return loss


def _squared(predicted: Tensor, wanted: Tensor) -> Tensor:
    return (predicted - wanted) ** 2


def _absolute(predicted: Tensor, wanted: Tensor) -> Tensor:
    return (predicted - wanted).abs()


def _poisson(predicted: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.poisson_nll_loss(predicted, wanted, reduction="none")


LOSSES: dict[str, Loss] = {
    "squared_error": _squared,
    "absolute_error": _absolute,
    "quantile": quantile_loss(0.5),
    "poisson": _poisson,
}


def loss_of(choice: str | Loss) -> Loss:
    """Return a loss given by name or as a function.

    Raises ValueError for an unknown name, TypeError for anything else.
    """
    if isinstance(choice, str):
        if choice not in LOSSES:
            raise ValueError(f"Expected a loss: {', '.join(map(repr, LOSSES))} or a function. Got {choice!r}.")
        return LOSSES[choice]
    if not callable(choice):
        raise TypeError(f"Expected loss to be a function of (predicted, wanted), or a name. Got {choice!r}.")
    return choice
