"""Presets: `paper` follows the text, `published` its code, `best` is our default; one setting for a benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from smle.training.options import TrainingOptions
from studies.experiments.networks import PaperLayers, Perceptron, Settings
from studies.experiments.paper_network import PaperChoices

BENCHMARKS = ("synthetic", "forecasting", "classification")
PRESETS = ("paper", "published", "best")

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
    if preset == "best":
        return shortened(best(benchmark)) if quick else best(benchmark)
    found = chosen(benchmark, choices_of(preset, benchmark), inputs, outputs)
    return shortened(found) if quick else found


def shortened(settings: Settings) -> Settings:
    """Return settings of a few epochs, to see that everything works."""
    options = settings.options
    warmup, final = (min(count, _QUICK_EPOCHS) for count in (options.warmup_epochs, options.final_epochs))
    options = replace(options, max_epochs=_QUICK_EPOCHS, warmup_epochs=warmup, final_epochs=final)
    return replace(settings, options=options)


# --- the paper's


def choices_of(preset: str, benchmark: str) -> PaperChoices:
    """Return the choices of `paper` (the text) or `published` (its code) for a benchmark.

    Raises:
        ValueError: If the preset is another one.
    """
    if preset == "paper":
        return PaperChoices()
    if preset != "published":
        raise ValueError(f"Expected 'paper' or 'published'. Got {preset!r}.")
    return PaperChoices(
        gate=True, constant_bounds="fixed", first_phase="handed on" if benchmark == "synthetic" else "plain",
        keep_memory=True, queue="all", pairs="sum", tolerance="threshold", r2="averaged", lstm_layers=2,
    )  # fmt: skip


def _adam(kind: Any, **options: Any) -> Callable[..., torch.optim.Optimizer]:
    """Return how an optimizer is made of parameters and a learning rate."""
    return lambda parameters, rate: kind(list(parameters), lr=rate, fused=True, **options)


def widths(benchmark: str, n: int, m: int) -> tuple[int, ...]:
    """Return the widths of the paper's ReLU layers: h_1, h_2 and h_4 of its supplement."""
    nm = n * m
    if benchmark == "synthetic":
        return nm, 2 * nm, nm
    if benchmark == "forecasting":
        return nm, 2 * nm, 3 * nm, 2 * nm, nm
    narrow, wide = math.floor(4 * math.log2(nm)), math.floor(8 * math.log2(nm))
    return narrow, wide, narrow


def chosen(benchmark: str, choices: PaperChoices, n: int, m: int) -> Settings:
    """Return the paper's settings under given choices: its architectures and hyper-parameters, Adam as Keras has it."""
    return Settings(
        backbone=PaperLayers(widths(benchmark, n, m)),
        options=TrainingOptions(
            learning_rate=1e-3,
            batch_size=_BATCH[benchmark],
            max_epochs=1000,
            patience=_PATIENCE[benchmark],
            schedule=None,
            keep=choices.keep,
            optimizer=_adam(torch.optim.Adam, eps=1e-7),  # as Keras has it
            warmup_epochs=1000 if choices.first_phase == "plain" else 0,
            verbose=False,
        ),
        choices=choices,
        linear=benchmark == "synthetic",
        memory=10 if benchmark == "classification" else 1,
        scaled=False,
    )


# --- ours


def best(benchmark: str) -> Settings:
    """Return our default: a plain network on the targets as they are, and the head of rules behind it."""
    options = TrainingOptions(
        learning_rate=1e-2, batch_size=256, max_epochs=500, patience=30, schedule="plateau", verbose=False
    )
    if benchmark == "synthetic":
        # Without noise every row counts: the last epochs see those held out before.
        return Settings(backbone=Perceptron((64, 64, 64), 64), options=replace(options, patience=50, final_epochs=60))
    if benchmark == "forecasting":
        return Settings(backbone=Perceptron((64, 64, 64), 16), options=options)
    # Chosen on held-out training rows: smaller networks lose least there, and decay suits some hundred rows.
    decaying = _adam(torch.optim.AdamW, weight_decay=0.3)
    options = replace(options, learning_rate=3e-3, batch_size=64, optimizer=decaying)
    return Settings(backbone=Perceptron((32, 32), 32), options=options)


# --- Q3: which design choices matter. Each study changes one choice of a preset; only safe networks are trained.
#
# | benchmark | factor | variants of the paper |
# |---|---|---|
# | synthetic | auxiliary complexity | constant or linear bounds, its small network |
# | synthetic | embedding size | its small or large network, linear bounds |
# | forecasting | auxiliary complexity | constant or linear bounds, its large network |
# | forecasting | embedding size | its small or large network, constant bounds |
# | forecasting | embedding type | its large network as it is, or with LSTM layers first; constant bounds |
#
# As in the paper, synthetic networks are trained on the original targets here. All else is as in the preset, the first
# phase and the kept epoch included.

ABLATIONS: dict[str, dict[tuple[str, str], str]] = {
    "synthetic": {
        ("auxiliary complexity", "constant"): "q3-constant",
        ("auxiliary complexity", "linear"): "q3-linear",
        ("embedding size", "small"): "q3-linear",
        ("embedding size", "large"): "q3-large",
    },
    "forecasting": {
        ("auxiliary complexity", "constant"): "q3-constant",
        ("auxiliary complexity", "linear"): "q3-linear",
        ("embedding size", "small"): "q3-small",
        ("embedding size", "large"): "q3-constant",
        ("embedding type", "ReLU"): "q3-constant",
        ("embedding type", "LSTM"): "q3-lstm",
    },
}
"""The studies by benchmark, factor and variant. One study serves several variants where the networks are the same."""


def vary(settings: Settings, benchmark: str, study: str) -> Settings:
    """Return the settings of a study, from those of the main experiment.

    Raises:
        ValueError: If the benchmark has no such study, or the preset does not train the paper's network.
    """
    studies = ABLATIONS.get(benchmark, {}).values()
    if study not in studies:
        known = ", ".join(["main", *dict.fromkeys(studies)])
        raise ValueError(f"Expected a study of {benchmark}: {known}. Got '{study}'.")
    if not isinstance(settings.backbone, PaperLayers):
        raise ValueError("The ablation is about the paper's network. Expected the preset 'paper' or 'published'.")
    nm, backbone = settings.backbone.embedding, settings.backbone
    if study in ("q3-small", "q3-large"):
        backbone = replace(
            backbone, widths=(nm, 2 * nm, nm) if study == "q3-small" else (nm, 2 * nm, 3 * nm, 2 * nm, nm)
        )
    if study == "q3-lstm":
        backbone = replace(backbone, recurrent=settings.choices.lstm_layers if settings.choices else 1)
    return replace(
        settings,
        backbone=backbone,
        linear=study == "q3-linear" or (benchmark == "synthetic" and study == "q3-large"),
        enforced=benchmark != "synthetic",
    )
