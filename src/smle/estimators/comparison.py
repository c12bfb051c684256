"""A safe model beside a plain one, the plain one's post-processed predictions, and the best that obeying allows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.baselines import QuickModel
from smle.estimators.concerns import concern_about, cost_of_rules
from smle.estimators.scores import decided, losses, metric_of, output_entries, scale_of, total_score
from smle.guarantees import broken, nearest_outputs, to_scores
from smle.rules import Choice, Specification, label_columns
from smle.tables import encode_choices, encode_inputs, encode_numbers

if TYPE_CHECKING:
    from smle.estimators.base import SafeEstimator

__all__ = ["Compared", "compare", "compare_held_out", "compare_models", "encode_targets", "quick_baseline"]

Array = npt.NDArray[np.float64]
_ROWS = 500  # rows that `fit` compares on; nearest allowed answers may each be a small optimization


def encode_targets(spec: Specification, table: Any) -> Array:
    """Return targets (rows, m) as the nearest-outputs problem reads them; a chosen option has the winning score."""
    first = spec.outputs[0]
    if isinstance(first, Choice):
        return _winning(first, encode_choices(first, table))
    return encode_numbers(spec, table)


def _winning(choice: Choice, chosen: Array) -> Array:
    return chosen * (1.0 if choice.pick == "max" else -1.0)


@dataclass(frozen=True, eq=False)
class Compared:
    """Answers of several methods to the same rows, with their losses (rows, outputs) and broken rules (share of rows).

    * `answers`, `loss`, `violations`: by method, `safe`, `plain`, `postprocess` and `oracle`; `violations` also `data`.
    * `plain`: what the plain model is: `network`, `quick`, or `estimator`, the one inside.
    """

    spec: Specification
    X: npt.NDArray[Any]
    truth: Array
    answers: dict[str, Array]
    loss: dict[str, Array]
    violations: dict[str, float]
    weight: Array | None
    plain: str

    def scores(self) -> dict[str, float]:
        """Return the score by method."""
        return {name: total_score(rows, self.weight) for name, rows in self.loss.items()}

    def summary(self, where: str, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return what model.json records."""
        shown = {name: rows for name, rows in self.loss.items() if name != "oracle"}  # it is the best of the mean only
        return {
            "metric": metric_of(self.spec),
            "rows": len(self.X),
            "where": where,
            "plain": self.plain,
            "score": self.scores(),
            "violations": self.violations,
            "outputs": output_entries(self.spec, self.truth, shown, self.weight) if len(self.X) else [],
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }


def compare(
    spec: Specification,
    X: npt.NDArray[Any],
    truth: Array,
    outputs: Mapping[str, Array],
    *,
    weight: Array | None = None,
    plain: str = "network",
) -> Compared:
    """Compare what models compute, `safe` and maybe `plain`, with the truth, and with the nearest allowed answers.

    Nearest means the least loss in the score that is shown: errors of numbers count in units of their spread. Rows for
    which no allowed answer is found are left out.

    Args:
        spec: The rules.
        X: Encoded inputs (n, d).
        truth: Targets (n, m) as of `encode_targets`.
        outputs: By method: numbers, logits of labels, scores of options (n, m).
        weight: Weight of each row (n,).
        plain: What the plain model is: `network`, `quick` or `estimator`.
    """
    scale = scale_of(spec, truth, weight)
    found = {"oracle": nearest_outputs(spec, X, truth, scale=scale)}
    if "plain" in outputs:
        found["postprocess"] = nearest_outputs(spec, X, _probable(spec, outputs["plain"]), scale=scale)
    known = ~np.any([np.isnan(rows).any(axis=1) for rows in found.values()], axis=0)
    raw = {**outputs, **{name: to_scores(spec, rows) for name, rows in found.items()}, "data": to_scores(spec, truth)}
    violations = {name: _violations(spec, X[known], rows[known]) for name, rows in raw.items()}
    answers = {name: decided(spec, rows)[known] for name, rows in raw.items() if name != "data"}
    X, truth, weight = X[known], truth[known], None if weight is None else weight[known]
    loss = {name: losses(spec, truth, rows, weight) for name, rows in answers.items()} if len(X) else {}
    return Compared(spec, X, truth, answers, loss, violations, weight, plain)


def quick_baseline(spec: Specification, X: Any, y: Any, *, seed: int = 0, preprocess: bool = False) -> QuickModel:
    """Return a quick plain model of a table and its targets, for `compare_models` where no baseline was trained.

    `preprocess`: it learns the nearest targets that obey the rules.
    """
    encoded, targets = encode_inputs(spec, X), encode_targets(spec, y)
    if preprocess:
        targets = nearest_outputs(spec, encoded, targets)
    return QuickModel.fit(spec, encoded, targets, seed=seed)


def compare_models(
    safe: SafeEstimator,
    X: Any,
    y: Any,
    *,
    plain: SafeEstimator | QuickModel | None = None,
    preprocess: SafeEstimator | QuickModel | None = None,
) -> dict[str, Any]:
    """Measure on rows that no model was trained on.

    Args:
        safe: The model with rules.
        X: Table with the input columns.
        y: Table with the output columns.
        plain: A model without rules, or a `quick_baseline`, if there is one. Beside a model that corrects answers
            stands what is answered inside.
        preprocess: A model without rules that learned targets which obey them (`quick_baseline(..., preprocess=True)`).

    Returns:
        `metric`, `rows`, and for each of plain, preprocess, postprocess, safe and oracle (the allowed answers with the
        best score) the `score` and the share of rows that break a rule (`violations`, exact); there also `data`: the
        true outputs.
        `outputs`: scores per output, with recall and balanced accuracy where a side is rare. `seconds`: training, and
        for postprocess the time for these rows. `concern`: why the safe model is of little use, if it is, and what
        to do; `cost`: which rules forbid what the data show, if that costs much.
    """
    spec = safe.specification_
    encoded, truth = encode_inputs(spec, X), encode_targets(spec, y)
    outputs = {"safe": safe.raw_outputs(X)}
    seconds = {"safe": safe.history_.seconds} if hasattr(safe, "history_") else {}  # a loaded one has none
    kind = "quick" if isinstance(plain, QuickModel) else "network"
    if isinstance(plain, QuickModel):
        outputs["plain"] = plain.raw_outputs(encoded)
    elif plain is not None:
        outputs["plain"] = plain.raw_outputs(X)
        seconds["plain"] = plain.history_.seconds
    elif safe.has_head_of_rules:
        outputs["plain"], kind = safe.own_answers(X), safe.deployed_.front.kind
    if preprocess is not None:
        rows = encoded if isinstance(preprocess, QuickModel) else X
        outputs["preprocess"] = preprocess.raw_outputs(rows)
    started = time.monotonic()
    found = compare(spec, encoded, truth, outputs, plain=kind)
    if "plain" in outputs:
        seconds["postprocess"] = time.monotonic() - started
    return {**found.summary("test", seconds), **_remarks(found, safe, "test")}


def compare_held_out(
    safe: SafeEstimator,
    X: npt.NDArray[Any],
    targets: Array,
    weight: Array | None,
    *,
    held: npt.NDArray[np.int64],
    seed: int,
) -> dict[str, Any]:
    """Return what `compare_models` returns, for the rows that `fit` held out and a quick plain model.

    Early stopping and the refit have looked at these rows, and final epochs have learned from them.
    """
    spec = safe.specification_
    first = spec.outputs[0]
    truth = _winning(first, targets) if isinstance(first, Choice) else targets
    kept = np.setdiff1d(np.arange(len(X)), held)
    held = np.sort(held[:_ROWS])
    started = time.monotonic()
    quick = QuickModel.fit(spec, X[kept], truth[kept], weight=None if weight is None else weight[kept], seed=seed)
    served = safe.deployed_.explained(X[held], X[held]).served
    outputs = {"safe": served.astype(np.float64), "plain": quick.raw_outputs(X[held])}
    trained = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a search did not end: it only makes the comparison milder
        found = compare(
            spec, X[held], truth[held], outputs, weight=None if weight is None else weight[held], plain="quick"
        )
    seconds = {"safe": safe.history_.seconds, "plain": trained - started, "postprocess": time.monotonic() - trained}
    return {**found.summary("validation", seconds), **_remarks(found, safe, "validation")}


def _remarks(found: Compared, safe: SafeEstimator, where: str) -> dict[str, str]:
    return {"concern": concern_about(found, safe, where=where), "cost": cost_of_rules(found)}


def _probable(spec: Specification, outputs: Array) -> Array:
    """Return logits of labels as probabilities; other outputs as they are."""
    labels = label_columns(spec)
    result = outputs.copy()
    result[:, labels] = 0.5 * (1.0 + np.tanh(outputs[:, labels] / 2))
    return result


def _violations(spec: Specification, encoded: npt.NDArray[Any], outputs: Array) -> float:
    return float(broken(spec, encoded, outputs).any(axis=1).mean()) if spec.rules and len(encoded) else 0.0
