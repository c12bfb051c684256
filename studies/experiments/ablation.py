"""Q3: which design choices matter. Each study changes one choice of a preset; only safe networks are trained.

| benchmark | factor | variants of the paper |
|---|---|---|
| synthetic | auxiliary complexity | constant or linear bounds, its small network |
| synthetic | embedding size | its small or large network, linear bounds |
| forecasting | auxiliary complexity | constant or linear bounds, its large network |
| forecasting | embedding size | its small or large network, constant bounds |
| forecasting | embedding type | its large network as it is, or with LSTM layers first; constant bounds |

As in the paper, synthetic networks are trained on the original targets here. All else is as in the preset, the first
phase and the kept epoch included.
"""

from __future__ import annotations

from dataclasses import replace

from studies.experiments.networks import PaperLayers, Settings

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
    if study not in ABLATIONS.get(benchmark, {}).values():
        raise ValueError(f"Expected a study of {benchmark}: {_names(benchmark)}. Got '{study}'.")
    if not isinstance(settings.backbone, PaperLayers):
        raise ValueError("The ablation is about the paper's network. Expected the preset 'paper' or 'published'.")
    return replace(
        settings,
        backbone=_backbone(settings.backbone, study, 1 if settings.choices is None else settings.choices.lstm_layers),
        linear=study == "q3-linear" or (benchmark == "synthetic" and study == "q3-large"),
        enforced=benchmark != "synthetic",
    )


def _names(benchmark: str) -> str:
    return ", ".join(["main", *dict.fromkeys(ABLATIONS.get(benchmark, {}).values())])


def _backbone(backbone: PaperLayers, study: str, lstm_layers: int) -> PaperLayers:
    nm = backbone.embedding
    if study in ("q3-small", "q3-large"):
        small, large = (nm, 2 * nm, nm), (nm, 2 * nm, 3 * nm, 2 * nm, nm)
        return replace(backbone, widths=small if study == "q3-small" else large)
    return replace(backbone, recurrent=lstm_layers if study == "q3-lstm" else 0)
