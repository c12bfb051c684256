"""What a table says: rows per cell, rules broken by the data, the baseline and the safe model, and accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.estimators import SafeEstimator
from smle.estimators.concerns import concern_about
from smle.estimators.scores import ScoreTable, compare
from smle.estimators.tasks import task_of
from smle.guarantees import active, broken, to_scores
from smle.programs import Corrections
from smle.rules import Choice, Literals, Specification
from smle.tables import column_names, encode_choices, encode_inputs, in_domain

__all__ = ["Measured", "measure"]

Array = npt.NDArray[np.float64]
_NEAREST_ROWS = 5000  # rows for which nearest allowed outputs are computed; each may be a small optimization
_CLAUSES = 500  # clauses of a rule that are held against every row


@dataclass(frozen=True, eq=False)
class Measured:
    """Figures of one table; everything but `rows` and `outside` is about the rows inside the domain.

    * `cells`: rows per cell; `cell_of` (inside,): the cell of each row.
    * `active`: rows on which each rule is active; `closest`: the least room of the safe model on a row, per rule.
    * `broken`: rows that break each rule, by whose outputs (`data`, `plain`, `safe`); `any_broken`: any rule.
    * `scores`, `violations` (shares of rows that break any rule): by method; `by_output`: entries as in model.json.
    * `sampled`: rows behind the scores of oracle and post-processing.
    * `concern`: why the safe model is of little use, if it is far behind the post-processed plain one.
    * `targets`, `outputs`: true and predicted values (inside, m); targets None where the table has none.
    * `head`, `own`: what a head of rules did, and what the model in front of it answers (inside, m); `alone`: that
      model is the plain one that the safe one is compared with.
    """

    rows: int
    outside: dict[str, int]
    inside: int
    cells: tuple[int, ...]
    cell_of: npt.NDArray[np.int64]
    active: tuple[int, ...]
    closest: tuple[float | None, ...]
    broken: dict[str, tuple[int, ...]]
    any_broken: dict[str, int]
    violations: dict[str, float]
    metric: str
    scores: dict[str, float]
    by_output: list[dict[str, Any]]
    concern: str
    sampled: int
    targets: Array | None
    outputs: Array
    medians: dict[str, float]
    head: Corrections | None = None
    own: Array | None = None
    alone: bool = False


def measure(model: SafeEstimator, table: Any, *, plain: SafeEstimator | None = None) -> Measured:
    """Hold a table against a model and its rules.

    Raises:
        DataError: If input columns are missing or no row lies in the domain.
    """
    spec = model.specification_
    X = encode_inputs(spec, table)
    inside = in_domain(spec, X)
    kept = inside.all(axis=1)
    if not kept.any():
        raise DataError(f"None of the {len(X)} rows of the table lies in the domain of the rules.")
    outside = {spec.columns[i]: int((~inside[:, i]).sum()) for i in np.flatnonzero(~inside.all(axis=0))}
    targets = _targets(spec, table)
    rows = _rows(table, np.asarray(kept))
    X, targets = X[kept], None if targets is None else targets[kept]
    found = model.answered(rows, taps=True)
    Y = found.served.astype(np.float64)
    head, own = None, None
    if model.has_head_of_rules:
        head = Corrections.of(spec, found.encoded, found.answers, found.served, found.by)
        own = found.answers.astype(np.float64)
    answers = {"safe": Y}
    if plain is not None:
        if plain.specification_.columns != spec.columns or plain.specification_.targets != spec.targets:
            raise DataError("Expected a baseline with the inputs and outputs of the model. Got other ones.")
        answers["plain"] = plain.raw_outputs(rows)
    elif own is not None and not found.replaced.any():  # NaN has no score
        answers["plain"] = own
    judged = {"data": to_scores(spec, targets)} if targets is not None else {}
    wrong = {name: broken(spec, X, values) for name, values in {**judged, **answers}.items()}
    cell_of, heads = np.zeros(len(X), dtype=np.intp), 0
    if found.cell is not None:
        cell_of, heads = found.cell, len(model.deployed_.cells)
    scored = _scored(model, X, targets, answers)
    return Measured(
        rows=len(inside),
        outside=outside,
        inside=len(X),
        cells=tuple(np.bincount(cell_of, minlength=heads).tolist()) if heads else (),
        cell_of=cell_of,
        active=tuple(int(active(rule, X).sum()) for rule in spec.rules),
        closest=tuple(_closest(spec, rule, X, Y) for rule in range(len(spec.rules))),
        broken={name: tuple(int(v) for v in rows.sum(axis=0)) for name, rows in wrong.items()},
        any_broken={name: int(rows.any(axis=1).sum()) for name, rows in wrong.items()},
        violations={**{name: float(rows.any(axis=1).mean()) for name, rows in wrong.items()}, **scored.nearest},
        metric=task_of(spec).metric,
        scores=scored.scores,
        by_output=scored.by_output,
        concern=scored.concern,
        sampled=scored.sampled,
        targets=targets,
        outputs=Y,
        medians={name: float(np.median(X[:, i])) for i, name in enumerate(spec.columns)},
        head=head,
        own=own,
        alone=plain is None and "plain" in answers,
    )


def _targets(spec: Specification, table: Any) -> Array | None:
    """Return the true outputs (rows, m), choices as scores that the true option wins; None if a column is missing."""
    names = column_names(table)
    if names is None or any(output.name not in names for output in spec.outputs):
        return None
    parts = []
    for output in spec.outputs:
        if isinstance(output, Choice):
            parts.append(encode_choices(output, table) * (1.0 if output.pick == "max" else -1.0))
            continue
        column = np.asarray(table[output.name], dtype=np.float64)[:, None]
        if not np.isfinite(column).all():
            raise DataError(f"Output '{output.name}': expected finite numbers. Drop or fill these rows.")
        parts.append(column)
    return np.concatenate(parts, axis=1)


def _rows(table: Any, kept: npt.NDArray[np.bool_]) -> Any:
    """Return some rows of a table of any kind."""
    if kept.all():
        return table
    return (
        table.loc[kept] if hasattr(table, "loc") else table[kept] if column_names(table) is None else table.filter(kept)
    )


def _closest(spec: Specification, rule: int, X: npt.NDArray[Any], Y: Array) -> float | None:
    """Return the least room that outputs leave to a rule on the rows where it is active; None if unknown."""
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


class _Scored(NamedTuple):
    """Scores by method and output, violations of the nearest allowed answers, the rows behind those, and a concern."""

    scores: dict[str, float]
    by_output: list[dict[str, Any]]
    nearest: dict[str, float]
    sampled: int = 0
    concern: str = ""


def _scored(model: SafeEstimator, X: npt.NDArray[Any], targets: Array | None, outputs: dict[str, Array]) -> _Scored:
    if targets is None:
        return _Scored({}, [], {})
    spec = model.specification_
    table = ScoreTable.of(spec, X, targets, outputs)
    scores, by_output = table.scores(), table.entries()
    if not spec.rules:
        return _Scored(scores, by_output, {})
    rows = np.arange(len(X))
    if len(X) > _NEAREST_ROWS:
        rows = np.random.default_rng(0).choice(len(X), _NEAREST_ROWS, replace=False)
    found = compare(spec, X[rows], targets[rows], {name: Y[rows] for name, Y in outputs.items()})
    nearest = {name: score for name, score in found.scores().items() if name not in scores}
    violations = {name: found.violations[name] for name in nearest}
    concern = concern_about(found, model, where="table")
    return _Scored({**scores, **nearest}, by_output, violations, len(rows), concern)
