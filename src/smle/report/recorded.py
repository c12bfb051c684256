"""What model.json records, read without trust: a missing or odd entry is None, never an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smle.programs import Corrections

__all__ = [
    "INSIDE",
    "METHODS",
    "History",
    "OutputScores",
    "RecordedScores",
    "Training",
    "corrections_of",
    "history_of",
    "outputs_of",
    "scores_of",
    "text_of",
    "training_of",
]

METHODS = {
    "safe": "safe model",
    "plain": "plain model",
    "postprocess": "plain model, post-processed",
    "oracle": "best that obeys",
}
"""What is compared, in the order of the table."""
INSIDE = METHODS | {"plain": "model alone, without rules", "postprocess": "model alone, then nearest allowed"}
"""The same where the plain model is the one in front of a head of rules."""
_OUTPUTS = 100


@dataclass(frozen=True)
class RecordedScores:
    """Scores and violation rates by method, on `rows` rows that were held out of training (None: not known).

    `where`: which rows, `test` or `validation`; `plain`: what the plain model is, `network`, `quick` or `estimator`;
    `outputs`: scores by output; `concern`, `cost`: sentences about a model that is no good, and about rules that the
    data contradict.
    """

    metric: str
    rows: int | None
    score: dict[str, float]
    violations: dict[str, float]
    others: dict[str, float]
    where: str = ""
    plain: str = ""
    outputs: tuple[OutputScores, ...] = ()
    concern: str = ""
    cost: str = ""


@dataclass(frozen=True)
class OutputScores:
    """Scores of one output by method; of the rare side of a label or choice, its recall, and balanced accuracy."""

    name: str
    metric: str
    score: dict[str, float]
    side: str = ""
    recall: dict[str, float] = field(default_factory=dict)
    balanced: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """Losses by epoch; `best` is the epoch with the best validation loss, `final` counts the last ones on all rows."""

    epoch: tuple[float, ...]
    loss: tuple[float, ...]
    validation: tuple[float, ...]
    best: float | None
    epochs: int | None
    seconds: float | None
    stopped: str
    final: int = 0


@dataclass(frozen=True)
class Training:
    """The training rows: how many, their share in each cell, and the middle of each input column."""

    rows: int | None
    cells: tuple[float, ...]
    medians: dict[str, float]


def scores_of(description: Mapping[str, Any]) -> RecordedScores:
    """Return the recorded scores; those in another layout are listed by their names."""
    scores = _mapping(description.get("scores"))
    known = {"metric", "rows", "score", "violations", "seconds", "where", "plain", "outputs", "concern", "cost"}
    others = {str(k): v for k, value in scores.items() if k not in known and (v := _number(value)) is not None}
    return RecordedScores(
        text_of(scores.get("metric")) or "score",
        _whole(scores.get("rows")),
        _numbers(scores.get("score")),
        _numbers(scores.get("violations")),
        others,
        text_of(scores.get("where")),
        text_of(scores.get("plain")),
        outputs_of(scores.get("outputs")),
        _sentence(scores.get("concern")),
        _sentence(scores.get("cost")),
    )


def outputs_of(entries: Any) -> tuple[OutputScores, ...]:
    """Return scores by output, as `estimators.scores` writes them."""
    result = []
    for entry in entries[:_OUTPUTS] if isinstance(entries, list) else ():
        item = _mapping(entry)
        rare = _mapping(item.get("rare"))
        scores = [_numbers(part) for part in (item.get("score"), rare.get("recall"), rare.get("balanced_accuracy"))]
        side = text_of(rare.get("side"))
        result.append(
            OutputScores(text_of(item.get("name")), text_of(item.get("metric")), scores[0], side, *scores[1:])
        )
    return tuple(result)


def history_of(description: Mapping[str, Any]) -> History | None:
    """Return the training history, or None if none is recorded."""
    history = _mapping(description.get("history"))
    loss, validation = _series(history.get("loss")), _series(history.get("validation_loss"))
    epoch = _series(history.get("epoch"))
    length = max(len(loss), len(validation))
    if length < 2 or any(len(s) not in (0, length) for s in (loss, validation)):
        return None
    if len(epoch) != length:
        epoch = tuple(float(i + 1) for i in range(length))
    best, final = _number(history.get("best_epoch")), _whole(history.get("final_epochs")) or 0
    return History(
        epoch,
        loss,
        validation,
        best,
        _whole(history.get("epochs")),
        _number(history.get("seconds")),
        text_of(history.get("stopped")),
        final if 0 < final < epoch[-1] else 0,
    )


def corrections_of(description: Mapping[str, Any]) -> Corrections | None:
    """Return what a head of rules did to the answers to the training rows, if that is recorded."""
    try:
        return Corrections.from_json(_mapping(description.get("training"))["head"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def training_of(description: Mapping[str, Any]) -> Training:
    """Return what is recorded of the training rows."""
    training = _mapping(description.get("training"))
    rows = _whole(training.get("rows"))
    counts = _series(training.get("cells"))
    total = sum(counts)
    medians = {}
    for name, facts in _mapping(training.get("columns")).items():
        edges, bins = _series(_mapping(facts).get("edges")), _series(_mapping(facts).get("bins"))
        if len(edges) == 1 and len(bins) == 2 and sum(bins) > 0:
            medians[str(name)] = bins[1] / sum(bins)  # a 0/1 column: its share of ones
        elif edges:
            medians[str(name)] = edges[len(edges) // 2]
    return Training(rows, tuple(count / total for count in counts) if total > 0 else (), medians)


def text_of(value: Any) -> str:
    """Return text of at most 500 characters, or nothing."""
    return str(value)[:500] if isinstance(value, str | int | float) else ""


def _sentence(value: Any) -> str:
    return value[:2000] if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _numbers(value: Any) -> dict[str, float]:
    return {str(k): v for k, item in _mapping(value).items() if (v := _number(item)) is not None}


def _series(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > 10_000:
        return ()
    numbers = [_number(item) for item in value]
    return () if None in numbers else tuple(n for n in numbers if n is not None)
