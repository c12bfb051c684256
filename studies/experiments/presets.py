"""Presets: `paper` trains as the paper does, `best` as this package does best; one setting for all of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from smle.training.options import TrainingOptions
from studies.experiments.networks import PaperLayers, Perceptron, Settings
from studies.experiments.pdcg import CountedPDCG

__all__ = ["BENCHMARKS", "PRESETS", "settings_of"]

BENCHMARKS = ("synthetic", "forecasting", "classification")
PRESETS = ("paper", "best")

_QUICK_EPOCHS = 8
_PATIENCE = {"synthetic": 5, "forecasting": 15, "classification": 30}
_BATCH = {"synthetic": 128, "forecasting": 32, "classification": 32}


def settings_of(benchmark: str, preset: str, *, inputs: int, outputs: int, quick: bool = False) -> Settings:
    """Return how a preset trains a benchmark's networks for n inputs and m outputs.

    Raises:
        ValueError: If there is no such preset or benchmark.
    """
    if benchmark not in BENCHMARKS or preset not in PRESETS:
        raise ValueError(
            f"Expected a benchmark ({', '.join(BENCHMARKS)}) and a preset ({', '.join(PRESETS)}). "
            f"Got '{benchmark}' and '{preset}'."
        )
    found = paper(benchmark, inputs, outputs) if preset == "paper" else best(benchmark)
    if not quick:
        return found
    warmup = min(found.options.warmup_epochs, _QUICK_EPOCHS)
    final = min(found.options.final_epochs, _QUICK_EPOCHS)
    options = replace(found.options, max_epochs=_QUICK_EPOCHS, warmup_epochs=warmup, final_epochs=final)
    return replace(found, options=options)


# --- the paper's


def keras_adam(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Return Adam with the defaults of Keras."""
    return torch.optim.Adam(list(parameters), lr=rate, eps=1e-7, fused=True)


def widths(benchmark: str, n: int, m: int) -> tuple[int, ...]:
    """Return the widths of the paper's ReLU layers: h_1, h_2 and h_4 of its supplement."""
    nm = n * m
    if benchmark == "synthetic":
        return nm, 2 * nm, nm
    if benchmark == "forecasting":
        return nm, 2 * nm, 3 * nm, 2 * nm, nm
    narrow, wide = math.floor(4 * math.log2(nm)), math.floor(8 * math.log2(nm))
    return narrow, wide, narrow


def paper(benchmark: str, n: int, m: int) -> Settings:
    """Return the paper's settings: training without projection, then Algorithm 2 with PDCG from those weights.

    The authors do so on real data. Their synthetic backbones are passed on from property to property instead, which
    independent jobs cannot; training without projection first takes its place. They keep the weights of the last epoch.
    So does this, but on synthetic data, where the bounds drift against the projection until patience ends.
    """
    options = TrainingOptions(
        learning_rate=1e-3,
        batch_size=_BATCH[benchmark],
        max_epochs=1000,
        patience=_PATIENCE[benchmark],
        keep="best" if benchmark == "synthetic" else "last",
        optimizer=keras_adam,
        warmup_epochs=1000,
        progress=False,
    )
    return Settings(
        backbone=PaperLayers(widths(benchmark, n, m)),
        bounds="affine" if benchmark == "synthetic" else "fixed",
        enforcement=partial(CountedPDCG, memory=10 if benchmark == "classification" else 1),
        options=options,
        refit=False,
        scaled=False,
    )


# --- ours


def best(benchmark: str) -> Settings:
    """Return our settings: a plain network that is corrected when trained, as estimators do by default."""
    options = TrainingOptions(
        learning_rate=1e-2, batch_size=256, max_epochs=500, patience=30, schedule="plateau", progress=False
    )
    if benchmark == "synthetic":
        # Without noise every row counts: the last epochs see those held out before.
        return Settings(
            backbone=Perceptron((64, 64, 64), 64), options=replace(options, patience=50, final_epochs=60), corrects=True
        )
    if benchmark == "forecasting":
        return Settings(backbone=Perceptron((64, 64, 64), 16), options=options, corrects=True)
    # Chosen on held-out training rows: smaller networks lose least there. Made safe at the end, they decide as their
    # post-processed answers do; trained under exclusions they lose up to two percent of the labels.
    options = replace(options, learning_rate=3e-3, batch_size=64, optimizer=decaying_adam)
    return Settings(backbone=Perceptron((32, 32), 32), options=options, corrects=True)


def decaying_adam(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Return Adam with weight decay, for data sets of a few hundred rows."""
    return torch.optim.AdamW(list(parameters), lr=rate, weight_decay=0.3, fused=True)
