"""Measures a table: rows per cell, rules broken by the data, the baseline and the safe model, and accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.estimators import SafeEstimator
from smle.estimators.concerns import concern_about
from smle.estimators.scores import ScoreTable, compare, encode_targets
from smle.monitor import Usage
from smle.nearest.oracle import to_scores
from smle.report.recorded import Scores, mapping_of, scores_of
from smle.rules import Literals, Specification
from smle.rules.membership import active, broken
from smle.tables import as_table, column_names, encode_inputs, in_domain, table_digest
from smle.tables.any_table import rows_at

__all__ = ["Measured", "measure"]

Array = npt.NDArray[np.float64]
_NEAREST_ROWS = 5000  # rows whose nearest allowed outputs are computed; each may be a small optimization
_CLAUSES = 500  # clauses of a rule that are compared with every row


@dataclass(frozen=True, eq=False)
class Measured:
    """Figures of one table. All but `rows` and `outside` are about the rows inside the domain.

    * `usage`: these rows, counted by rules that apply, by cells of a learned box, by what a head of rules did.
    * `closest`: the least room of the safe model on a row, per rule.
    * `broken`: rows that break each rule, by source of the outputs (`data`, `plain`, `safe`).
    * `scores`: as in model.json; `sampled`: rows behind the scores of oracle and post-processing.
    * `targets`, `outputs`: true and predicted values (inside, m); targets is None if the table has none.
    * `own`: the answers of the model in front of a head of rules (inside, m).
    * `chances`: probabilities (inside, m), as from `predict_proba`; None for numbers.
    * `ranges`: the smallest and largest value of each input column.
    * `trained`: how many rows the model was trained on; `is_training`: whether the table is exactly these.
    """

    rows: int
    outside: dict[str, int]
    usage: Usage
    closest: tuple[float | None, ...]
    broken: dict[str, tuple[int, ...]]
    scores: Scores
    sampled: int
    targets: Array | None
    outputs: Array
    medians: dict[str, float]
    own: Array | None = None
    chances: Array | None = None
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    trained: int | None = None
    is_training: bool = False

    @property
    def inside(self) -> int:
        """How many rows lie in the domain."""
        return self.usage.rows

    @property
    def trained_text(self) -> str:
        """A caveat about the table's score: whether the model was trained on its rows."""
        if self.is_training:
            return "These are the rows that the model was trained on: expect less on new ones."
        if self.trained is None:
            return ""
        return f"The model was trained on {self.trained:,} rows; if some are among these, expect less on new ones."


def measure(model: SafeEstimator, table: Any, *, plain: SafeEstimator | None = None) -> Measured:
    """Measure a model and its rules on a table.

    Raises DataError if columns are missing or no row lies in the domain.
    """
    spec = model.specification_
    X = encode_inputs(spec, table)
    inside = in_domain(spec, X)
    kept = inside.all(axis=1)
    if not kept.any():
        raise DataError(f"None of the {len(X)} rows of the table lies in the domain of the rules.")
    outside = {spec.columns[i]: int((~inside[:, i]).sum()) for i in np.flatnonzero(~inside.all(axis=0))}
    targets = _targets(spec, table)
    provenance = mapping_of(model.description_.get("provenance"))
    trained = provenance.get("rows")
    same = targets is not None and table_digest(X, targets) == provenance.get("data_sha256")
    rows = rows_at(as_table(table), np.flatnonzero(kept))
    X, targets = X[kept], None if targets is None else targets[kept]
    found = model.answer(rows, "raise", count=False)
    Y = found.served.astype(np.float64)
    own = found.answers.astype(np.float64) if model.has_head_of_rules else None
    answers, kind = {"safe": Y}, ""
    if plain is not None:
        answers["plain"], kind = plain.raw_outputs(rows), "network"
    elif own is not None and not found.replaced.any():  # NaN has no score
        answers["plain"], kind = own, "estimator"
    judged = {"data": to_scores(spec, targets)} if targets is not None else {}
    wrong = {name: broken(spec, X, values) for name, values in {**judged, **answers}.items()}
    scores, sampled = _scored(model, X, targets, answers, kind)
    return Measured(
        rows=len(inside),
        outside=outside,
        usage=found.usage({}, missing={}),
        closest=tuple(_closest(spec, rule, X, Y) for rule in range(len(spec.rules))),
        broken={name: tuple(int(v) for v in rows.sum(axis=0)) for name, rows in wrong.items()},
        scores=scores_of(scores, rules=bool(spec.rules)),
        sampled=sampled,
        targets=targets,
        outputs=Y,
        medians={name: float(np.median(X[:, i])) for i, name in enumerate(spec.columns)},
        own=own,
        chances=model.chances(found),
        ranges={name: (float(X[:, i].min()), float(X[:, i].max())) for i, name in enumerate(spec.columns)},
        trained=trained if isinstance(trained, int) else None,
        is_training=same,
    )


def _targets(spec: Specification, table: Any) -> Array | None:
    """Return the true outputs (rows, m), or None if a column is missing.

    The true option of a choice gets the best score.
    """
    names = column_names(table)
    known = names is not None and all(output.name in names for output in spec.outputs)
    return encode_targets(spec, table) if known else None


def _closest(spec: Specification, rule: int, X: npt.NDArray[Any], Y: Array) -> float | None:
    """Return the least room that outputs leave to a rule on the rows where it applies, or None if unknown."""
    requirement = spec.rules[rule].requirement
    rows = np.flatnonzero(active(spec.rules[rule], X))
    if not len(rows) or len(requirement) > _CLAUSES:
        return None
    least = np.inf
    for clause in requirement.expanded():
        literals = Literals.of_clauses(clause, Y.shape[1], X.shape[1])
        room = (literals.bounds(X[rows]) - Y[rows] @ literals.g.T).max(axis=1)
        least = min(least, float(room.min()))
    return least


def _scored(
    model: SafeEstimator, X: npt.NDArray[Any], targets: Array | None, outputs: dict[str, Array], kind: str
) -> tuple[dict[str, Any], int]:
    """Return scores as in model.json, and the number of rows behind those of the nearest allowed answers."""
    spec = model.specification_
    if targets is None:
        violations = {name: float(broken(spec, X, Y).any(axis=1).mean()) for name, Y in outputs.items()}
        return {"rows": len(X), "where": "table", "plain": kind, "violations": violations}, 0
    found = ScoreTable.of(spec, X, targets, outputs, plain=kind).summary("table", {})
    if not spec.rules:
        return found, 0
    rows = np.arange(len(X))
    if len(X) > _NEAREST_ROWS:
        rows = np.random.default_rng(0).choice(len(X), _NEAREST_ROWS, replace=False)
    near = compare(spec, X[rows], targets[rows], {name: Y[rows] for name, Y in outputs.items()})
    found["score"] = near.scores() | found["score"]
    found["violations"] = near.violations | found["violations"]
    return found | {"concern": concern_about(near, model, where="table")}, len(rows)
