"""Reads model.json defensively: a missing or malformed entry becomes None or empty, never an error.

Scores are shown in one table, on the page and on the command line: plain, trained on allowed targets, corrected
afterwards, safe, and the best that the rules allow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from smle.errors import ModelFormatError
from smle.monitor import Usage
from smle.rules import share_text

__all__ = [
    "OutputScores",
    "RecordedHistory",
    "ScoreRow",
    "Scores",
    "history_of",
    "mapping_of",
    "metric_title",
    "scores_of",
    "text_of",
    "training_of",
    "typeset",
    "typical_of",
]  # fmt: skip

_PLAIN = {"quick": "quick plain model", "estimator": "model alone"}
_HINTS = {
    "quick": "ridge regression and trees",
    "preprocess": "trained on the nearest allowed targets",
    "postprocess": "nearest allowed answer, by optimization when predicting",
    "oracle": "allowed answers with the best score, found by looking at the truth",
    "data": "the rows as they are",
}
_ROWS = {"validation": "validation rows", "test": "held-out rows", "table": "rows of the table"}
_OUTPUTS = 100


class ScoreRow(NamedTuple):
    """One line of the table as texts, empty if not measured."""

    method: str
    title: str
    hint: str
    score: str
    broken: str
    seconds: str


@dataclass(frozen=True)
class OutputScores:
    """Scores of one output by method; for the rare side of a label or choice also recall and balanced accuracy."""

    name: str
    metric: str
    score: dict[str, float]
    side: str = ""
    rows: int | None = None
    recall: dict[str, float] = field(default_factory=dict)
    balanced: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """Scores, and shares of rows that break a rule, by method.

    `where`: which rows (`test`, `validation` or `table`); `plain`: what the plain model is (`network`, `quick`,
    `estimator`, the one inside, or `none` if there are no rules); `concern`: a warning about a poor model; `cost`: a
    warning about rules that contradict the data.
    """

    metric: str
    rows: int | None
    where: str
    plain: str
    score: dict[str, float]
    violations: dict[str, float]
    seconds: dict[str, float]
    outputs: tuple[OutputScores, ...]
    concern: str
    cost: str

    @property
    def titles(self) -> dict[str, str]:
        """The titles of the methods, in the order of the table."""
        if self.plain == "none":
            return {"safe": "model"}
        plain = _PLAIN.get(self.plain, "plain model")
        return {
            "plain": plain,
            "preprocess": "plain, allowed targets",
            "postprocess": f"{plain}, nearest allowed",
            "safe": "safe model",
            "oracle": "best that obeys",
        }

    @property
    def place(self) -> str:
        """The rows that were measured, in words."""
        kind = _ROWS.get(self.where, "rows")
        return kind if self.rows is None else f"{self.rows:,} {kind}"

    def table(self) -> list[ScoreRow]:
        """Return one line per measured method, and one for the data."""
        lines = []
        for method, title in {**self.titles, "data": "data"}.items():
            if method in self.score or method in self.violations:
                hint = _HINTS.get(self.plain if method == "plain" else method, "")
                score = f"{self.score[method]:.4f}" if method in self.score else ""
                broken = share_text(self.violations[method]) if method in self.violations else ""
                seconds = f"{self.seconds[method]:.2f}" if method in self.seconds else ""
                lines.append(ScoreRow(method, title, hint, score, broken, seconds))
        return lines

    def by_output(self) -> tuple[list[str], list[list[str]]]:
        """Return titles and lines of scores by output, if there are several or one has a rare side."""
        lines: list[tuple[str, str, dict[str, float]]] = []
        for item in self.outputs:
            if len(self.outputs) > 1:
                lines.append((item.name, metric_title(item.metric), item.score))
            if item.side:
                count = "" if item.rows is None else f" ({item.rows:,} rows)"
                lines.append((item.name, f"Recall of {item.side}{count}", item.recall))
                lines.append((item.name, "Balanced accuracy", item.balanced))
        shown = [method for method in self.titles if any(method in values for _, _, values in lines)]
        cells = [[name, score, *(f"{v[m]:.4f}" if m in v else "–" for m in shown)] for name, score, v in lines]
        return ["Output", "Score", *(self.titles[method] for method in shown)], cells if shown else []


@dataclass(frozen=True)
class RecordedHistory:
    """Losses by epoch; `best` has the best validation loss, `final` counts the last epochs, trained on all rows."""

    epoch: tuple[float, ...]
    loss: tuple[float, ...]
    validation: tuple[float, ...]
    best: float | None
    epochs: int | None
    seconds: float | None
    stopped: str
    final: int = 0


def scores_of(entry: Any, *, rules: bool = True) -> Scores:
    """Read scores in the layout of `estimators.compare_models`; without rules, only those of the model itself."""
    scores = mapping_of(entry)
    if not rules:
        own = {"safe": mapping_of(scores.get("score")).get("safe")}
        scores = {**scores, "score": own, "violations": {}, "plain": "none"}
    return Scores(
        text_of(scores.get("metric")) or "score",
        _whole(scores.get("rows")),
        text_of(scores.get("where")),
        text_of(scores.get("plain")),
        _numbers(scores.get("score")),
        _numbers(scores.get("violations")),
        _numbers(scores.get("seconds")),
        tuple(_output(item) for item in _list(scores.get("outputs"))[:_OUTPUTS]),
        _sentence(scores.get("concern")),
        _sentence(scores.get("cost")),
    )


def _output(entry: Any) -> OutputScores:
    item = mapping_of(entry)
    rare = mapping_of(item.get("rare"))
    return OutputScores(
        text_of(item.get("name")),
        text_of(item.get("metric")),
        _numbers(item.get("score")),
        text_of(rare.get("side")),
        _whole(rare.get("rows")),
        _numbers(rare.get("recall")),
        _numbers(rare.get("balanced_accuracy")),
    )


def metric_title(name: str) -> str:
    """Return the heading of a score."""
    return {"R2": "R²", "accuracy": "Accuracy"}.get(name, name)


def typeset(text: str) -> str:
    """Typeset the scores in a sentence for a page."""
    return re.sub(r"\bR2\b", "R²", text)


def history_of(description: Mapping[str, Any]) -> RecordedHistory | None:
    """Return the training history, or None if none is recorded."""
    history = mapping_of(description.get("history"))
    loss, validation = _series(history.get("loss")), _series(history.get("validation_loss"))
    epoch = _series(history.get("epoch"))
    length = max(len(loss), len(validation))
    if length < 2 or any(len(s) not in (0, length) for s in (loss, validation)):
        return None
    if len(epoch) != length:
        epoch = tuple(float(i + 1) for i in range(length))
    best, final = _number(history.get("best_epoch")), _whole(history.get("final_epochs")) or 0
    return RecordedHistory(
        epoch,
        loss,
        validation,
        best,
        _whole(history.get("epochs")),
        _number(history.get("seconds")),
        text_of(history.get("stopped")),
        final if 0 < final < epoch[-1] else 0,
    )


def training_of(description: Mapping[str, Any]) -> Usage | None:
    """Return the counts of the training rows, or None if none are recorded."""
    try:
        return Usage.from_json(description.get("training"))
    except ModelFormatError:
        return None


def typical_of(training: Usage | None) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Return the median of each input column (of a 0/1 column, its share of ones), and where most values lie."""
    medians, ranges = {}, {}
    for name, edges in ({} if training is None else training.edges).items():
        bins = () if training is None else training.bins[name]
        if len(edges) == 1 and len(bins) == 2 and min(bins) >= 0 < sum(bins):
            medians[name] = bins[1] / sum(bins)
        elif edges:
            medians[name] = edges[len(edges) // 2]
            ranges[name] = (min(edges), max(edges))
    return medians, ranges


def text_of(value: Any) -> str:
    """Return at most 500 characters of text, or "" for anything else."""
    return str(value)[:500] if isinstance(value, str | int | float) else ""


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return a mapping, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def _sentence(value: Any) -> str:
    return value[:2000] if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _numbers(value: Any) -> dict[str, float]:
    return {str(k): v for k, item in mapping_of(value).items() if (v := _number(item)) is not None}


def _series(value: Any) -> tuple[float, ...]:
    numbers = [_number(item) for item in _list(value)]
    return () if None in numbers or len(numbers) > 10_000 else tuple(n for n in numbers if n is not None)
