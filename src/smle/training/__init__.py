"""Training: the loop, enforcement of the rules, checkpoints."""

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install
from smle.heads.box.training.adversarial import Adversarial
from smle.heads.box.training.enforcement import PDCG, Enforcement
from smle.heads.box.training.refit import RefitResult, refit_network
from smle.training.batches import split_rows
from smle.training.loop import train
from smle.training.losses import quantile_loss
from smle.training.options import EpochInfo, History, TrainingOptions

__all__ = [
    "PDCG",
    "Adversarial",
    "Enforcement",
    "EpochInfo",
    "History",
    "RefitResult",
    "TrainingOptions",
    "quantile_loss",
    "refit_network",
    "split_rows",
    "train",
]
