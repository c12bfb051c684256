"""Turns what an estimator predicts into what a head reads: numbers, scores of options, log-odds of labels.

Each conversion exists twice, in NumPy and as graph nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import ConversionError, DataError
from smle.nearest.onnx.writer import Writer
from smle.rules import Choice, Specification
from smle.tables import option_of

__all__ = ["ChoiceScores", "LabelScores", "NumberScores", "Scores", "scores_of"]

Array = npt.NDArray[Any]
_LEAST = 1e-30  # least probability, before taking a logarithm
# Breaks ties as predict does: the first of equal probabilities wins, and a label with even odds is off.
_TIE = 2.0**-18


@dataclass(frozen=True, eq=False)
class NumberScores:
    """Numbers, unchanged."""

    def predicted(self, model: Any, X: Any) -> Any:
        """Return what an estimator predicts for a table."""
        return model.predict(X)

    def answers(self, predicted: Any) -> Any:
        """Return what a head reads."""
        return predicted

    def undone(self, answers: Array) -> Array:
        """Return what was predicted, for comparison."""
        return answers

    def written(self, w: Writer, graph: Any) -> str:
        """Write the nodes after those of a converted estimator; return the name of the answers."""
        return str(graph.output[0].name)


@dataclass(frozen=True, eq=False)
class ChoiceScores:
    """Logarithms of probabilities, in the order of the options; negated if the rules pick the smallest.

    `select` (classes, options) maps classes of the estimator to options.
    """

    select: Array
    sign: float

    def predicted(self, model: Any, X: Any) -> Any:
        """Return the probability of each option (n, options), from scores if the estimator has none."""
        if hasattr(model, "predict_proba"):
            return np.asarray(model.predict_proba(X), dtype=np.float64) @ self.select
        scores = np.asarray(model.decision_function(X), dtype=np.float64)
        scores = np.stack([np.zeros(len(scores)), scores], axis=1) if scores.ndim == 1 else scores
        return np.exp(scores - scores.max(axis=1, keepdims=True)) @ self.select

    def answers(self, predicted: Any) -> Any:
        """Return what a head reads."""
        return self.sign * np.log(np.maximum(predicted, _LEAST))

    def undone(self, answers: Array) -> Array:
        """Return the probabilities."""
        return np.asarray(np.exp(self.sign * answers))

    def written(self, w: Writer, graph: Any) -> str:
        """Write the nodes after those of a converted estimator; return the name of the answers."""
        chances = w.add("MatMul", [_single(graph), w.constant(self.select.astype(np.float32))])
        return w.add("Mul", [_logarithm(w, chances), w.constant(np.float32(self.sign))])


@dataclass(frozen=True, eq=False)
class LabelScores:
    """Log-odds of labels.

    * `places`: for each label, the column of the probability that it is on, or None if it never is.
    * `apart`: whether the estimator has a table of probabilities for each label.
    """

    places: tuple[int | None, ...]
    apart: bool

    def predicted(self, model: Any, X: Any) -> Any:
        """Return the probability of each label (n, m)."""
        if not hasattr(model, "predict_proba"):
            scores = np.asarray(model.decision_function(X), dtype=np.float64)
            return 0.5 * (1.0 + np.tanh(scores.reshape(len(scores), -1) / 2))
        found = model.predict_proba(X)
        if not isinstance(found, list):
            return np.asarray(found) if len(self.places) > 1 else self._column(np.asarray(found), 0)[:, None]
        return np.stack([self._column(np.asarray(part), i) for i, part in enumerate(found)], axis=1)

    def _column(self, chances: Array, label: int) -> Array:
        place = self.places[label]
        return np.zeros(len(chances)) if place is None else chances[:, place]

    def answers(self, predicted: Any) -> Any:
        """Return what a head reads."""
        return np.log(np.maximum(predicted, _LEAST)) - np.log(np.maximum(1.0 + _TIE - predicted, _LEAST))

    def undone(self, answers: Array) -> Array:
        """Return the probabilities."""
        return np.asarray(0.5 * (1.0 + np.tanh(answers / 2)))

    def written(self, w: Writer, graph: Any) -> str:
        """Write the nodes after those of a converted estimator; return the name of the answers."""
        on = self._on(w, graph)
        off = w.add("Sub", [w.constant(np.float32(1.0 + _TIE)), on])
        return w.add("Sub", [_logarithm(w, on), _logarithm(w, off)])

    def _on(self, w: Writer, graph: Any) -> str:
        last = graph.output[-1].name
        parts = next((node for node in graph.node if last in node.output), None)
        if parts is not None and parts.op_type == "SequenceConstruct":  # a table of probabilities per label
            sources = list(parts.input)
            graph.node.remove(parts)
            columns = []
            for source, place in zip(sources, self.places, strict=True):
                column = w.rows(source, [place or 0], 1)
                columns.append(column if place is not None else w.add("Mul", [column, w.constant(np.float32(0))]))
            return w.add("Concat", columns, axis=1)
        if len(self.places) == 1:
            return w.rows(last, [self.places[0] or 0], 1)
        if not self.apart:
            return str(last)
        column = w.add("Gather", [last, w.constant(np.int64(1))], axis=2)  # (labels, n)
        return w.add("Transpose", [column], perm=[1, 0])


Scores = NumberScores | ChoiceScores | LabelScores


def scores_of(spec: Specification, model: Any, classes: Sequence[Any] | None = None) -> Scores:
    """Return the conversion for a fitted estimator and the outputs of the rules.

    `classes` are the values of a choice's classes, if the estimator only numbers them. Raises DataError if labels or a
    choice need a classifier and it is none, or if its classes are not the options.
    """
    if spec.output_kind == "numbers":
        return NumberScores()
    if not (hasattr(model, "predict_proba") or hasattr(model, "decision_function")):
        raise DataError(
            f"Expected a classifier, with predict_proba or decision_function, for labels and choices. Got "
            f"{type(model).__name__}."
        )
    choice = spec.outputs[0]
    known = getattr(model, "classes_", None)
    if isinstance(choice, Choice):
        options = list(choice.options)
        names = [option_of(v, options) for v in (np.asarray(known).tolist() if classes is None else classes)]
        strange = [name for name in names if name not in options]
        if strange:
            raise DataError(
                f"Choice '{choice.name}': the model knows the class {strange[0]!r}. Expected classes out of "
                f"{', '.join(options)}."
            )
        select = np.zeros((len(names), len(options)))
        ranks = np.arange(len(names))
        select[ranks, [options.index(name) for name in names]] = 1.0 - _TIE * ranks / max(1, len(names))
        return ChoiceScores(select, 1.0 if choice.pick == "max" else -1.0)
    apart = isinstance(known, list)
    of_labels = known if apart else [known] if len(spec.outputs) == 1 else [np.array([0, 1])] * len(spec.outputs)
    if of_labels is None or len(of_labels) != len(spec.outputs):
        raise DataError(f"Expected a model of {len(spec.outputs)} labels: {', '.join(spec.targets)}.")
    places = [np.flatnonzero(np.asarray(values) == 1) for values in of_labels]
    return LabelScores(tuple(int(place[0]) if len(place) else None for place in places), apart)


def _logarithm(w: Writer, source: str) -> str:
    """Add the logarithm of probabilities, finite also for 0."""
    return w.add("Log", [w.add("Max", [source, w.constant(np.float32(_LEAST))])])


def _single(graph: Any) -> str:
    if len(graph.output) < 2:
        raise ConversionError("The converter of this classifier gives no probabilities.")
    return str(graph.output[-1].name)
