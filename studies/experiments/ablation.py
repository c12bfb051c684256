"""Q3: which design choices matter. Each study changes one choice of a preset; only safe networks are trained.

| benchmark | factor | variants of the paper |
|---|---|---|
| synthetic | auxiliary complexity | constant or linear bounds, its small network |
| synthetic | embedding size | its small or large network, linear bounds |
| forecasting | auxiliary complexity | constant or linear bounds, its large network |
| forecasting | embedding size | its small or large network, constant bounds |
| forecasting | embedding type | its large network as it is, or with an LSTM first; constant bounds |

As in the paper, synthetic networks are trained on the original targets here, and none is trained without rules first.
Under the preset `paper` all keep the weights of their last epoch, as its authors do.
The preset `best` varies its own network instead: half or twice as wide, or with an LSTM first.
"""

from __future__ import annotations

from dataclasses import replace

from studies.experiments.networks import PaperLayers, Perceptron, Settings

__all__ = ["ABLATIONS", "vary"]

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
        ValueError: If the benchmark has no such study.
    """
    if study not in ABLATIONS.get(benchmark, {}).values():
        raise ValueError(f"Expected a study of {benchmark}: {_names(benchmark)}. Got '{study}'.")
    paper = isinstance(settings.backbone, PaperLayers)
    linear = study == "q3-linear" or (benchmark == "synthetic" and study == "q3-large")
    return replace(
        settings,
        backbone=_backbone(settings.backbone, study),
        bounds="affine" if linear else "fixed",
        enforced_share=0.0 if benchmark == "synthetic" else settings.enforced_share,
        options=replace(settings.options, warmup_epochs=0, keep="last" if paper else settings.options.keep),
    )


def _names(benchmark: str) -> str:
    return ", ".join(["main", *dict.fromkeys(ABLATIONS.get(benchmark, {}).values())])


def _backbone(backbone: Perceptron | PaperLayers, study: str) -> Perceptron | PaperLayers:
    if isinstance(backbone, PaperLayers):
        nm = backbone.embedding
        small, large = (nm, 2 * nm, nm), (nm, 2 * nm, 3 * nm, 2 * nm, nm)
        if study in ("q3-small", "q3-large"):
            return replace(backbone, widths=small if study == "q3-small" else large)
        return replace(backbone, recurrent=study == "q3-lstm")
    if study == "q3-lstm":
        return replace(backbone, recurrent=True)
    if study in ("q3-small", "q3-large"):
        factor = 0.5 if study == "q3-small" else 2.0
        hidden = tuple(int(factor * width) for width in backbone.hidden)
        return replace(backbone, hidden=hidden, embedding=int(factor * backbone.embedding))
    return backbone
