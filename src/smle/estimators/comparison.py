"""A safe model beside its plain twin, the twin's post-processed predictions, and the best that obeying allows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import r2_score

from smle.estimators.base import SafeEstimator
from smle.guarantees import broken, label_columns, nearest_outputs, to_scores
from smle.rules import Choice, Number, Specification
from smle.tables import encode_choices, encode_inputs, encode_numbers

__all__ = ["compare_models", "encode_targets"]

Array = npt.NDArray[np.float64]


def encode_targets(spec: Specification, table: Any) -> Array:
    """Return targets (rows, m) as the nearest-outputs problem reads them; a chosen option has the winning score."""
    first = spec.outputs[0]
    if isinstance(first, Choice):
        return encode_choices(first, table) * (1.0 if first.pick == "max" else -1.0)
    return encode_numbers(spec, table)


def compare_models(safe: SafeEstimator, X: Any, y: Any, *, plain: SafeEstimator | None = None) -> dict[str, Any]:
    """Measure on rows that no model was trained on.

    Args:
        safe: The model with rules.
        X: Table with the input columns.
        y: Table with the output columns.
        plain: Its twin without rules, if there is one.

    Returns:
        `metric`, `rows`, and for each of plain, postprocess, safe and oracle (the nearest allowed true outputs) the
        `score` and the share of rows that break a rule (`violations`, exact); there also `data`: the true outputs.
        `seconds`: training, and for postprocess the time for these rows.
    """
    spec = safe.specification_
    encoded, truth = encode_inputs(spec, X), encode_targets(spec, y)
    answers: dict[str, Array] = {}
    seconds: dict[str, float] = {}
    if plain is not None:
        answers["plain"] = plain.raw_outputs(X)
        started = time.monotonic()
        answers["postprocess"] = _nearest(spec, encoded, _probable(spec, answers["plain"]))
        seconds = {"plain": plain.history_.seconds, "postprocess": time.monotonic() - started}
    answers["safe"] = safe.raw_outputs(X)
    answers["oracle"] = _nearest(spec, encoded, truth)
    seconds["safe"] = safe.history_.seconds
    violations = {name: _violations(spec, encoded, values) for name, values in answers.items()}
    violations["data"] = _violations(spec, encoded, to_scores(spec, truth))
    wanted = _decided(spec, to_scores(spec, truth))
    return {
        "metric": "R2" if isinstance(spec.outputs[0], Number) else "accuracy",
        "rows": len(encoded),
        "score": {name: _score(spec, wanted, _decided(spec, values)) for name, values in answers.items()},
        "violations": violations,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def _probable(spec: Specification, outputs: Array) -> Array:
    """Return logits of labels as probabilities; other outputs as they are."""
    labels = label_columns(spec)
    result = outputs.copy()
    result[:, labels] = 0.5 * (1.0 + np.tanh(outputs[:, labels] / 2))
    return result


def _nearest(spec: Specification, encoded: npt.NDArray[Any], outputs: Array) -> Array:
    return to_scores(spec, nearest_outputs(spec, encoded, outputs))


def _violations(spec: Specification, encoded: npt.NDArray[Any], outputs: Array) -> float:
    return float(broken(spec, encoded, outputs).any(axis=1).mean()) if spec.rules else 0.0


def _decided(spec: Specification, outputs: Array) -> Array:
    """Return what users read off the outputs: numbers, labels, or the number of the chosen option."""
    first = spec.outputs[0]
    if isinstance(first, Number):
        return outputs
    if isinstance(first, Choice):
        picked = outputs.argmax(axis=1) if first.pick == "max" else outputs.argmin(axis=1)
        return np.asarray(picked, dtype=np.float64)[:, None]
    return (outputs >= 0).astype(np.float64)


def _score(spec: Specification, wanted: Array, given: Array) -> float:
    if isinstance(spec.outputs[0], Number):
        return float(r2_score(wanted, given))
    return float((wanted == given).mean())
