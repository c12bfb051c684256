"""Tests what changed since training, with SciPy, at one false-alarm rate for all tests together.

* Shares of rows (a rule applies, a value is missing, a row is outside): Fisher's exact test.
* Numeric inputs: the Kolmogorov-Smirnov test of the whole distribution, at the ends of the stored bins.
* Categories, cells, and numbers with few distinct values: the chi-squared test of homogeneity.
* Clipped units of a learned box: Welch's t-test.

Holm's procedure makes the rate hold for all tests together, however they depend on each other; rows must be
independent. How answers were served is shown but not tested: it follows from the inputs, and the model has learned the
training rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from smle.errors import DataError
from smle.monitor.corrections import WAYS
from smle.monitor.usage import Usage
from smle.rules import Categorical, Specification

__all__ = ["Change", "Changes", "compare"]

_FEW = 20  # up to this many bins, values are compared one by one
_EXPECTED = 5  # rows that a bin needs for the chi-squared test; rarer bins are joined
_POWER = 0.9
_CAUSES = ("aside", "input", "missing", "domain")  # the other changes follow from these


class Change(NamedTuple):
    """Something counted in training and now.

    * `kind`: `aside` (rows that cannot be read), `domain`, `missing`, `rule`, `input`, `cell`, `clip`, or, without a
      test, `served` and `broken`.
    * `training`, `now`: shares of rows; medians of a numeric input; for categories, the shares of `part`.
    * `size`: the difference of shares; for a distribution, the largest difference of shares up to a value, or of all
      categories together.
    * `p`: how likely chance alone makes such a difference, for all tests together; None if not tested.
    * `verdict`: `changed`, `small` (more than chance, but within the tolerance), `same` (chance explains it) or `shown`
      (not tested).
    """

    kind: str
    name: str
    training: float
    now: float
    size: float
    p: float | None
    verdict: str
    part: str = ""


@dataclass(frozen=True)
class Changes:
    """All changes: causes first, then what follows from them.

    `detectable`: by how much a share of 10 % must move to be found 9 times in 10.
    """

    changes: tuple[Change, ...]
    false_alarms: float
    tolerance: float
    tests: int
    detectable: float

    @property
    def moved(self) -> tuple[Change, ...]:
        """The changes beyond chance and tolerance: inputs, then what follows from them, clearest first."""
        return tuple(change for change in self.changes if change.verdict == "changed")


def compare(
    training: Usage, now: Usage, spec: Specification, *, tolerance: float = 0.005, false_alarms: float = 0.01
) -> Changes:
    """Find what changed from the counts in training to those now.

    Differences of shares up to `tolerance` are called `small`. Without any change, something is called changed at most
    with probability `false_alarms`.

    Raises:
        DataError: If either counted no rows.
    """
    for when, usage in (("in training", training), ("now", now)):
        if not usage.rows:
            aside = f" ({usage.set_aside:,} were set aside: model.without_bad_rows(table) says why)"
            raise DataError(f"Expected rows to compare. Got none {when}{aside if usage.set_aside else ''}.")
    found = [*_tested(training, now, spec)]  # each with the p of its test alone, None if nothing could differ
    alone = [change.p for change in found if change.p is not None]
    joint = iter(_holm(alone))
    changes = []
    for change in found:
        p = 1.0 if change.p is None else next(joint)
        beyond = "changed" if abs(change.size) > tolerance else "small"
        changes.append(change._replace(p=p, verdict=beyond if p <= false_alarms else "same"))
    order = {"changed": 0, "small": 1, "same": 2}
    changes.sort(key=lambda change: (order[change.verdict], change.kind not in _CAUSES, change.p, -abs(change.size)))
    return Changes(
        (*changes, *_shown(training, now)),
        false_alarms,
        tolerance,
        len(alone),
        _detectable(training.rows, now.rows, false_alarms / max(len(alone), 1)),
    )


def _tested(training: Usage, now: Usage, spec: Specification) -> Iterable[Change]:
    shares = [("domain", "rows outside", training.outside_rows, now.outside_rows)]
    shares += [("missing", name, k, now.missing[name]) for name, k in training.missing.items() if name in now.missing]
    shares += [("rule", name, k, now.rules[name]) for name, k in training.rules.items() if name in now.rules]
    if now.set_aside:  # no model is fitted to such rows
        yield _share("aside", "rows set aside", 0, training.rows, now.set_aside, now.rows + now.set_aside)
    for kind, name, before, after in shares:
        yield _share(kind, name, before, training.rows, after, now.rows)
    for item in spec.inputs:
        counts = [[usage.bins.get(column, ()) for column in item.columns] for usage in (training, now)]
        if [len(c) for c in counts[0]] != [len(c) for c in counts[1]] or not counts[0][0]:
            continue  # the folder has no bins, or those of another table
        if isinstance(item, Categorical):
            yes = [np.array([column[-1] for column in columns]) for columns in counts]
            yield _categories("input", item.name, yes[0], yes[1], item.categories)
        elif len(counts[0][0]) > 1:
            yield _numbers(item.name, np.array(counts[0][0]), np.array(counts[1][0]), training.edges[item.name])
    if len(training.cells) == len(now.cells) > 1:
        names = [f"cell {i}" for i in range(len(now.cells))]
        yield _categories("cell", "cells", np.array(training.cells), np.array(now.cells), names)
    if training.cells and now.cells:
        yield _clipped(training, now)


def _shown(training: Usage, now: Usage) -> Iterable[Change]:
    """Yield how answers were served and which rules the model alone broke, without tests."""
    before, after = training.head, now.head
    if before is None or after is None:
        return
    pairs = [("served", way, before.ways[way], after.ways[way]) for way in WAYS]
    pairs += [("broken", name, k, after.broken[name]) for name, k in before.broken.items() if name in after.broken]
    for kind, name, one, two in pairs:
        share, later = one / training.rows, two / now.rows
        yield Change(kind, name, share, later, later - share, None, "shown")


def _share(kind: str, name: str, before: int, rows: int, after: int, later: int) -> Change:
    from scipy.stats import fisher_exact  # takes half a second to import

    same = before + after in (0, rows + later)
    p = None if same else float(fisher_exact([[before, rows - before], [after, later - after]])[1])
    return Change(kind, name, before / rows, after / later, after / later - before / rows, p, "")


def _numbers(name: str, before: np.ndarray, after: np.ndarray, edges: Sequence[float]) -> Change:
    from scipy.stats import kstwo

    if len(before) <= _FEW:
        labels = [f"<= {edge:g}" for edge in edges] + [f"> {edges[-1]:g}"]
        found = _categories("input", name, before, after, labels)
        return found._replace(training=_median(before, edges), now=_median(after, edges), part="")
    shares = [np.cumsum(counts)[:-1] / counts.sum() for counts in (before, after)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    together = before.sum() * after.sum() / (before.sum() + after.sum())
    p = float(kstwo.sf(distance, max(round(together), 1)))
    return Change("input", name, _median(before, edges), _median(after, edges), distance, p, "")


def _categories(kind: str, name: str, before: np.ndarray, after: np.ndarray, names: Sequence[str]) -> Change:
    """Compare all shares at once; `part` is the category that moved most for its share."""
    from scipy.stats import chi2_contingency

    shares = [counts / max(counts.sum(), 1) for counts in (before, after)]
    moved = shares[1] - shares[0]
    most = int((np.abs(moved) / np.sqrt(np.maximum(shares[0] + shares[1], 1e-12))).argmax())
    size = float(np.abs(moved).sum() / 2)
    table = _joined(np.stack([before, after]))
    p = None if table.shape[1] < 2 else float(chi2_contingency(table, correction=False).pvalue)
    return Change(kind, name, float(shares[0][most]), float(shares[1][most]), size, p, "", names[most])


def _joined(table: np.ndarray) -> np.ndarray:
    """Join rare categories of a table (2, categories), so that every count is expected often enough."""
    totals = table.sum(axis=0)
    table, totals = table[:, totals > 0], totals[totals > 0]
    least = table.sum(axis=1).min() / max(table.sum(), 1)
    rare = totals * least < _EXPECTED
    if not rare.any():
        return table
    rest = table[:, rare].sum(axis=1, keepdims=True)
    common = table[:, ~rare]
    if rest.sum() * least >= _EXPECTED or not common.shape[1]:
        return np.concatenate([common, rest], axis=1)
    smallest = int(common.sum(axis=0).argmin())
    common[:, [smallest]] += rest
    return common


def _clipped(training: Usage, now: Usage) -> Change:
    from scipy.stats import ttest_ind_from_stats

    moments = []
    for usage in (training, now):
        variance = max(0.0, usage.clipped_squares / usage.rows - usage.clipped_share**2)
        moments += [usage.clipped_share, math.sqrt(variance * usage.rows / max(usage.rows - 1, 1)), usage.rows]
    moved = now.clipped_share - training.clipped_share
    same = min(training.rows, now.rows) < 2 or not (moments[1] or moments[4])
    p = None if same else float(ttest_ind_from_stats(*moments, equal_var=False).pvalue)
    return Change("clip", "units clipped", training.clipped_share, now.clipped_share, moved, p, "")


def _median(counts: np.ndarray, edges: Sequence[float]) -> float:
    """Estimate the median, interpolating within its bin."""
    total = np.cumsum(counts) / counts.sum()
    place = int(np.searchsorted(total, 0.5))
    if place in (0, len(edges)):
        return float(edges[min(place, len(edges) - 1)])
    before = total[place - 1]
    part = (0.5 - before) / (total[place] - before)
    return float(edges[place - 1] + part * (edges[place] - edges[place - 1]))


def _holm(values: Sequence[float]) -> list[float]:
    """Adjust p-values for all tests together by Holm's procedure, valid under any dependence."""
    joint, largest = [1.0] * len(values), 0.0
    for rank, place in enumerate(np.argsort(values, kind="stable")):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        joint[place] = largest
    return joint


def _detectable(rows: int, later: int, level: float) -> float:
    """Return by how much a share of 10 % must move to be found 9 times in 10."""
    normal = NormalDist()
    sizes = normal.inv_cdf(1 - level / 2) + normal.inv_cdf(_POWER)
    return sizes * math.sqrt(0.1 * 0.9 * (1 / rows + 1 / later))
