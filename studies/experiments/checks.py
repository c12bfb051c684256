"""What a full run has to show: every model proved, scores beside the paper's, inference nearly as fast as without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from studies.experiments.published import SCORES
from studies.experiments.tables import Row, behind, groups_of, paired, quartiles, seed_medians, slowdowns, values

_NEAR_ORACLE = 0.005
_WORST_RUN = 0.02
_NEAR_PAPER = 0.003
_LEVEL = 0.0001
_SLOWDOWN = 1.3


@dataclass(frozen=True)
class Check:
    """A statement about a run, what was found, and whether it is met."""

    statement: str
    found: str
    met: bool


def checks(rows: Sequence[Row], benchmark: str, preset: str, *, failed: int = 0) -> list[Check]:
    """Return the checks of one benchmark under one preset, of which some jobs may have failed."""
    found = [_proved(rows, failed)]
    if preset != "best":
        found.append(_within_quartiles(rows, benchmark))
        return found
    makers = {
        "synthetic": (_level, _near_oracle, _near_own_oracle, _above_postprocess, _worst_run),
        "forecasting": (_level, _near_paper),
        "classification": (_level,),
    }
    found += [maker(rows, benchmark) for maker in makers[benchmark]]
    return [*found, _fast(rows, benchmark)]


def _proved(rows: Sequence[Row], failed: int) -> Check:
    models = [row for row in rows if row["method"] == "smle"]
    certified = sum(bool(row.get("certified")) for row in models)
    violating = sum(row["exact_violations"] > 0 for row in models)
    scoreless = sum(row["score"] is None for row in models)
    return Check(
        "every job ends with a certified model, and no test example violates its property",
        f"{certified} of {len(models) + failed} certified, {violating} with a violation, {failed} failed"
        + (f", {scoreless} without a finite score" if scoreless else ""),
        certified == len(models) + failed and violating == scoreless == 0,
    )


def _per_group(statement: str, differences: dict[str, float], slack: float) -> Check:
    """Check that no property's number is more than `slack` below what it is compared with."""
    text = ", ".join(f"{group}: {value:+.4f}" for group, value in differences.items())
    return Check(statement, text, all(value >= -slack for value in differences.values()))


def _median(rows: Sequence[Row], method: str, group: str) -> float:
    box = quartiles(values(rows, "score", method=method, group=group))
    return float("nan") if box is None else box.median


def _mean_of_medians(rows: Sequence[Row], method: str, group: str) -> float:
    medians = seed_medians(rows, method=method, group=group)
    return float(np.mean(medians)) if medians else float("nan")


def _over_seeds(rows: Sequence[Row]) -> str:
    return f"mean over {len({row['seed'] for row in rows})} seed(s) of the median score"


def _within_quartiles(rows: Sequence[Row], benchmark: str) -> Check:
    """Compare as the paper counts, which has one run per task: the median over tasks, for each seed."""
    paper = SCORES[benchmark]["smle"]
    differences = {
        group: _mean_of_medians(rows, "smle", group) - paper[group].q1
        for group in groups_of(rows, benchmark)
        if group in paper
    }
    statement = f"{_over_seeds(rows)} at or above the first quartile of the paper's `smle`"
    return _per_group(statement, differences, 0.0)


def _near_oracle(rows: Sequence[Row], benchmark: str) -> Check:
    statement = f"median score at most {_NEAR_ORACLE} below the median of the paper's oracle, as printed (three digits)"
    return _per_group(statement, _against_paper(rows, benchmark, "oracle"), _NEAR_ORACLE)


def _near_own_oracle(rows: Sequence[Row], benchmark: str) -> Check:
    differences = {
        group: _median(rows, "smle", group) - _median(rows, "oracle", group) for group in groups_of(rows, benchmark)
    }
    statement = f"the same against the median of the oracle in this run (not rounded): at most {_NEAR_ORACLE} below"
    return _per_group(statement, differences, _NEAR_ORACLE)


def _above_postprocess(rows: Sequence[Row], benchmark: str) -> Check:
    statement = "median score at or above the median of the paper's `postprocess`"
    return _per_group(statement, _against_paper(rows, benchmark, "postprocess"), 0.0)


def _against_paper(rows: Sequence[Row], benchmark: str, method: str) -> dict[str, float]:
    paper = SCORES[benchmark][method]
    return {group: _median(rows, "smle", group) - paper[group].median for group in groups_of(rows, benchmark)}


def _worst_run(rows: Sequence[Row], benchmark: str) -> Check:
    gap, task = max((behind(run, "smle", "oracle"), task) for (task, _), run in paired(rows).items())
    return Check(f"no run more than {_WORST_RUN} below its oracle", f"{gap:.4f} ({task})", gap <= _WORST_RUN)


def _near_paper(rows: Sequence[Row], benchmark: str) -> Check:
    statement = f"median score at most {_NEAR_PAPER} below the median of the paper's `postprocess`, as printed"
    return _per_group(statement, _against_paper(rows, benchmark, "postprocess"), _NEAR_PAPER)


def _level(rows: Sequence[Row], benchmark: str) -> Check:
    runs = paired(rows)
    gap, task = max((behind(run, "smle", "postprocess"), task) for (task, _), run in runs.items())
    statement = f"no run more than {_LEVEL} below `postprocess`, which has the same network"
    return Check(statement, f"{gap:.6f} ({task}) in {len(runs)} runs", gap <= _LEVEL)


def _fast(rows: Sequence[Row], benchmark: str) -> Check:
    found = [
        value
        for group in groups_of(rows, benchmark)
        for value in slowdowns(rows, "seconds_per_example", method="smle", group=group)
    ]
    median = float(np.median(found)) if found else float("nan")
    statement = f"inference one example at a time at most {_SLOWDOWN} times that of `preprocess`, in the median"
    return Check(statement, f"{median:.2f}", median <= _SLOWDOWN)
