"""Tables from rows of results: what the paper shows, beside the paper's numbers, and what it lacks.

A row is what one method did in one job (`studies.experiments.methods`). Quartiles are over all runs of a property:
tasks, and seeds where there are several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from studies.harness import Table, mean_interval

# --- what the paper reports (published.yaml); nothing here was computed by this package


class Quartiles(NamedTuple):
    """Median, first and third quartile."""

    median: float
    q1: float
    q3: float


Published = Mapping[str, Mapping[str, Quartiles]]
"""Quartiles by method and property."""
_STORED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))


def _read(name: str) -> dict[str, Published]:
    return {
        benchmark: {method: {key: Quartiles(*own) for key, own in table.items()} for method, table in methods.items()}
        for benchmark, methods in _STORED[name].items()
    }


SCORES, VIOLATIONS, SLOWDOWN = (_read(name) for name in ("scores", "violations", "slowdown"))
GROUPS = {benchmark: tuple(methods["oracle"]) for benchmark, methods in SCORES.items()}
"""Properties in the paper's order, easy ones first: six random ones, or quantiles."""
ABLATION: dict[str, tuple[tuple[str, str, float], ...]] = {
    benchmark: tuple((str(factor), str(variant), mean) for factor, variant, mean in rows)
    for benchmark, rows in _STORED["ablation"].items()
}
"""Mean R2 by factor and variant."""


Row = Mapping[str, Any]
METHODS = ("oracle", "preprocess", "postprocess", "smle")
LEVEL = 0.001
"""Two scores this near to each other are called level."""


# --- reading rows


def values(rows: Iterable[Row], field: str, *, method: str | None = None, group: str | None = None) -> list[float]:
    """Return the finite numbers in a field, of one method and one property if given."""
    found = []
    for row in rows:
        value = row.get(field)
        if value is None or (method is not None and row["method"] != method):
            continue
        if (group is None or row["group"] == group) and math.isfinite(value):
            found.append(float(value))
    return found


def quartiles(numbers: Sequence[float]) -> Quartiles | None:
    """Return median, first and third quartile (linear interpolation); None without numbers."""
    if not numbers:
        return None
    q1, median, q3 = np.percentile(numbers, [25, 50, 75])
    return Quartiles(float(median), float(q1), float(q3))


def groups_of(rows: Iterable[Row], benchmark: str) -> tuple[str, ...]:
    """Return the properties that occur, in the paper's order."""
    present = {row["group"] for row in rows}
    return (*(group for group in GROUPS[benchmark] if group in present), *sorted(present - set(GROUPS[benchmark])))


def by_group(rows: Sequence[Row], benchmark: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield each property with its rows, in the paper's order."""
    for group in groups_of(rows, benchmark):
        yield group, [row for row in rows if row["group"] == group]


def paired(rows: Iterable[Row]) -> dict[tuple[str, int], dict[str, Row]]:
    """Return the rows of each run (task and seed) by method."""
    runs: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        runs.setdefault((row["task"], row["seed"]), {})[row["method"]] = row
    return runs


def behind(run: Mapping[str, Row], method: str, other: str) -> float:
    """Return how far a method's score is below another's in the same run; infinitely far if it has none."""
    ours, theirs = run[method]["score"], run[other]["score"]
    return math.inf if ours is None or theirs is None else float(theirs - ours)


def slowdowns(rows: Iterable[Row], field: str, *, method: str, group: str) -> list[float]:
    """Return a method's seconds as a multiple of those of `preprocess` in the same run."""
    runs = paired(row for row in rows if row["group"] == group).values()
    pairs = ([run.get(name, {}).get(field) for name in (method, "preprocess")] for run in runs)
    return [ours / base for ours, base in pairs if ours and base]


def beside(published: Mapping[str, Published], rows: Iterable[Row], benchmark: str) -> Published:
    """Return the paper's numbers for a benchmark; none beside stand-ins, which are other data."""
    return {} if any(row.get("standin") for row in rows) else published.get(benchmark, {})


# --- text


def _text(numbers: Sequence[float], digits: int = 3) -> str:
    """Return median [first, third quartile] of numbers, or of the paper's quartiles."""
    found = numbers if isinstance(numbers, Quartiles) else quartiles(numbers)
    if found is None:
        return "-"
    median, q1, q3 = (
        f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.{digits}f}" if abs(v) < 100 else f"{v:.1f}" for v in found
    )
    return f"{median} [{q1}, {q3}]"


def _count(rows: Sequence[Row], field: str) -> str:
    return f"{sum(bool(row.get(field)) for row in rows)} of {len(rows)}"


def _grid(
    names: Sequence[str], groups: Sequence[str], cell: Callable[[str, str], str], paper: Published
) -> list[tuple[str, ...]]:
    """Return one line per method, with the paper's line below where it has one."""
    lines = []
    for name in names:
        line = tuple(cell(name, group) for group in groups)
        if all(text == "-" for text in line):
            continue
        lines.append((name, *line))
        if name in paper:
            lines.append((f"{name}, paper", *(_text(paper[name].get(group, ())) for group in groups)))
    return lines


def _quartiles_of(
    rows: Sequence[Row], field: str, names: Sequence[str], groups: Sequence[str], paper: Published
) -> list[tuple[str, ...]]:
    """Return a grid of the quartiles of a field."""
    return _grid(names, groups, lambda name, group: _text(values(rows, field, method=name, group=group)), paper)


# --- Q1


def scores(rows: Sequence[Row], benchmark: str) -> Table:
    """Return Q1: test score by method and property, beside the paper's."""
    groups = groups_of(rows, benchmark)
    lines = _quartiles_of(rows, "score", METHODS, groups, beside(SCORES, rows, benchmark))
    what = "average class accuracy" if benchmark == "classification" else "R2"
    seeds = len({row["seed"] for row in rows})
    counted = f" and {seeds} seeds" if seeds > 1 else ", one seed"
    note = f"Test {what}: median [first, third quartile] over tasks{counted}."
    return Table("Q1: score", ("method", *groups), tuple(lines), note)


def seed_intervals(rows: Sequence[Row], benchmark: str) -> Table | None:
    """Return the mean over seeds of the median over tasks, with a 95 % t-interval; None with fewer than two seeds."""
    groups, seeds = groups_of(rows, benchmark), sorted({row["seed"] for row in rows})
    if len(seeds) < 2:
        return None

    def cell(name: str, group: str) -> str:
        medians = seed_medians(rows, method=name, group=group)
        if len(medians) < 2:
            return "-"
        return "{:.3f} ± {:.3f}".format(*mean_interval(medians))

    note = (
        f"Mean over {len(seeds)} seeds of the median over tasks, with a 95 % t-interval of that mean: how much of a "
        "difference is luck of the seed. The oracle is not trained and has none."
    )
    lines = _grid(METHODS[1:], groups, cell, {})
    return Table("Several seeds", ("method", *groups), tuple(lines), note)


def seed_medians(rows: Sequence[Row], *, method: str, group: str) -> list[float]:
    """Return the median score over tasks for each seed."""
    found = (
        values((row for row in rows if row["seed"] == seed), "score", method=method, group=group)
        for seed in sorted({row["seed"] for row in rows})
    )
    return [float(np.median(numbers)) for numbers in found if numbers]


def gaps(rows: Sequence[Row], benchmark: str) -> Table:
    """Return gaps to the oracle, and wins and losses against post-processing, which is safe too but slow."""
    lines = []
    for group, own in by_group(rows, benchmark):
        runs = [run for run in paired(own).values() if "smle" in run]
        line = [group]
        for name in ("smle", "postprocess"):
            below = [(behind(run, name, "oracle"), run[name]["task"]) for run in runs if {name, "oracle"} <= run.keys()]
            line.append(f"{np.median([gap for gap, _ in below]):.4f}" if below else "-")
            line.append("{:.4f} ({})".format(*max(below)) if below else "-")
        lag = [(behind(run, "smle", "postprocess"), run["smle"]["task"]) for run in runs if "postprocess" in run]
        wins, losses = sum(gap < -LEVEL for gap, _ in lag), sum(gap > LEVEL for gap, _ in lag)
        line.append(f"{wins} / {len(lag) - wins - losses} / {losses}")
        line.append("{:.6f} ({})".format(*max(lag)) if lag else "-")
        lines.append(tuple(line))
    columns = (
        "property", "smle: median gap", "largest gap", "postprocess: median gap", "largest gap",
        "ahead / level / behind", "most behind postprocess",
    )  # fmt: skip
    note = (
        "Gap: the oracle's score minus the method's, run by run. Then the runs in which `smle` is ahead of, level with "
        f"(within {LEVEL}) and behind `postprocess`, and how far it is behind at most."
    )
    return Table("Gap to the oracle", columns, tuple(lines), note)


def by_preset(rows: Sequence[Row], benchmark: str) -> Table:
    """Return the score of `smle` under every preset, beside the paper's quartiles."""
    groups, lines = groups_of(rows, benchmark), []
    for preset in dict.fromkeys(row["preset"] for row in rows):
        own = [row for row in rows if row["preset"] == preset]
        found = [seed_medians(own, method="smle", group=group) for group in groups]
        seeds = str(max(map(len, found), default=0))
        lines.append((f"`{preset}`", seeds, *(f"{np.mean(medians):.3f}" if medians else "-" for medians in found)))
    paper = beside(SCORES, rows, benchmark).get("smle", {})
    if paper:
        lines.append(("the paper", "1", *(_text(paper.get(group, ())) for group in groups)))
    note = "Mean over seeds of the median over tasks. The paper's: median [first, third quartile]."
    return Table("Score of `smle` by preset", ("preset", "seeds", *groups), tuple(lines), note)


def distributions(rows: Sequence[Row], benchmark: str) -> Table | None:
    """Return scores away from the training data; None where a benchmark has no such data."""
    groups, lines = groups_of(rows, benchmark), list[tuple[str, ...]]()
    for where in ("interpolation", "extrapolation"):
        lines += [(where, *line) for line in _quartiles_of(rows, f"score_{where}", METHODS, groups, {})]
    if not lines:
        return None
    note = (
        "R2 where no training data were: a hole in the middle (interpolation) and a rim (extrapolation) that were cut "
        "out of the inputs. The paper names these sets and reports nothing on them."
    )
    return Table("Out of distribution", ("inputs", "method", *groups), tuple(lines), note)


# --- Q2


def violations(rows: Sequence[Row], benchmark: str) -> Table:
    """Return Q2: share of test examples that violate the property."""
    groups = groups_of(rows, benchmark)
    lines = _quartiles_of(rows, "violations", METHODS[1:], groups, beside(VIOLATIONS, rows, benchmark))
    note = "Share of test examples that violate the property by more than 1e-6: median [first, third quartile]."
    return Table("Q2: violations", ("method", *groups), tuple(lines), note)


def inference(rows: Sequence[Row], benchmark: str) -> Table:
    """Return Q2: inference time as a multiple of that of `preprocess`."""
    groups, lines = groups_of(rows, benchmark), []
    for label, field in (("one example", "seconds_per_example"), ("whole test set", "seconds_per_row_batch")):
        paper = beside(SLOWDOWN, rows, benchmark) if field == "seconds_per_row_batch" else {}

        def cell(name: str, group: str, field: str = field) -> str:
            return _text(slowdowns(rows, field, method=name, group=group), 2)

        lines += [(label, *line) for line in _grid(METHODS[2:], groups, cell, paper)]
    note = (
        "Inference time as a multiple of that of `preprocess` in the same run: median [first, third quartile]. The "
        "whole test set as one batch, divided by its rows, as the authors time it; one example at a time, which is "
        "our own measure. One thread."
    )
    return Table("Q2: inference slow-down", ("call", "method", *groups), tuple(lines), note)


def guarantees(rows: Sequence[Row], benchmark: str) -> Table:
    """Return how many models the exact checker accepted, and what test data say about violations of any size."""
    lines = []
    for group, own in by_group(rows, benchmark):
        models = [row for row in own if row["method"] == "smle"]
        least = min(values(models, "worst_margin"), default=None)
        exact = [
            max(values(own, "exact_violations", method=name), default=math.nan)
            for name in ("smle", "postprocess", "preprocess")
        ]
        margin = "-" if least is None else f"{least:.2g}"
        lines.append((group, _count(models, "certified"), margin, *(f"{share:.3f}" for share in exact)))
    note = (
        "Certified: models whose proof the exact checker accepted, for every input and for the float32 numbers that "
        "are deployed. Worst margin: the smallest that was proved. Last three: the largest share of test examples in a "
        "run that violate the property exactly, by however little; the paper does not count violations below 1e-6."
    )
    columns = ("property", "certified", "worst margin", "smle: violating", "postprocess", "preprocess")
    return Table("Guarantees, checked exactly", columns, tuple(lines), note)


def training(rows: Sequence[Row], benchmark: str) -> Table:
    """Return seconds of training and what a guarantee costs, in CPU seconds."""
    lines = []
    for group, own in by_group(rows, benchmark):
        times = [_text(values(own, "cpu_train", method=name), 1) for name in METHODS[1:]]
        overhead = _text(slowdowns(own, "cpu_train", method="smle", group=group), 2)
        lines.append((group, *times, overhead, _text(values(own, "seconds_certify", method="smle"), 2)))
    columns = ("property", *(f"{name} (s)" for name in METHODS[1:]), "smle / preprocess", "proof and check (s)")
    note = "CPU seconds, one thread: median [first, third quartile]; the ratio is taken run by run."
    return Table("Training time", columns, tuple(lines), note)


def pdcg(rows: Sequence[Row], benchmark: str) -> Table | None:
    """Return how often and how quickly the paper's projection converged; None where it was not used."""
    used = [row for row in rows if row["method"] == "smle" and row.get("pdcg_success") is not None]
    if not used:
        return None
    lines = []
    for group, models in by_group(used, benchmark):
        counts = [_text(values(models, field), 0) for field in ("pdcg_iterations", "pdcg_counterexamples")]
        left = max(values(models, "pdcg_final_violation"), default=math.nan)
        lines.append((group, _count(models, "pdcg_success"), *counts, f"{left:.2g}"))
    columns = ("property", "converged", "projections at the end", "counterexamples", "largest violation left")
    note = (
        "The paper's projection by counterexamples (PDCG): final runs that converged, projections of the final run, "
        "counterexamples of the whole training, and the largest violation that a final run left. Where it did not "
        "converge, the exact projection replaced its last step; the certificate is for what is deployed."
    )
    return Table("Projection by counterexamples", columns, tuple(lines), note)


# --- Q3 and what went wrong


def ablation(rows: Sequence[Row], benchmark: str, studies: Mapping[tuple[str, str], str]) -> Table | None:
    """Return Q3: mean score of `smle` by design choice; `studies` maps (factor, variant) to its study."""
    lines = []
    for factor, variant, published in ABLATION.get(benchmark, ()):
        study = studies.get((factor, variant), "")
        models = [row for row in rows if row["study"] == study and row["method"] == "smle"]
        found = values(models, "score")
        if not found:
            continue
        paper = "-" if any(row.get("standin") for row in models) else f"{published:.3f}"
        lines.append((factor, variant, f"{np.mean(found):.3f}", _text(found), paper, _count(models, "certified")))
    if not lines:
        return None
    columns = ("factor", "variant", "mean R2", "median [quartiles]", "mean R2, paper", "certified")
    note = "Test R2 of `smle` over all tasks and properties."
    return Table("Q3: design choices", columns, tuple(lines), note)


def ablation_pairs(rows: Sequence[Row], benchmark: str, studies: Mapping[tuple[str, str], str]) -> Table | None:
    """Return Q3 pair by pair: what the second variant of a factor gains over the first, task by task."""
    scores: dict[str, dict[tuple[str, int], float]] = {}
    for row in rows:
        if row["method"] == "smle" and row["score"] is not None:
            scores.setdefault(row["study"], {})[row["task"], row["seed"]] = row["score"]
    lines = []
    for factor in dict.fromkeys(factor for factor, _, _ in ABLATION.get(benchmark, ())):
        (first, one), (second, two) = ((variant, mean) for name, variant, mean in ABLATION[benchmark] if name == factor)
        ours = [scores.get(studies.get((factor, variant), ""), {}) for variant in (first, second)]
        gains = np.array([ours[1][key] - ours[0][key] for key in sorted(ours[0].keys() & ours[1].keys())])
        if len(gains) < 2:
            continue
        lines.append(
            (
                f"{second} instead of {first}",
                str(len(gains)),
                "{:+.3f} ± {:.3f}".format(*mean_interval(gains.tolist())),
                f"{np.median(gains):+.4f}",
                f"{(gains > LEVEL).sum()} / {(gains < -LEVEL).sum()}",
                f"{gains.min():+.3f} to {gains.max():+.3f}",
                f"{two - one:+.3f}",
            )
        )
    if not lines:
        return None
    columns = ("change", "pairs", "mean gain", "median gain", "better / worse", "range", "paper's difference")
    note = (
        f"Gains in R2 task by task, with a 95 % t-interval of their mean; better and worse are by over {LEVEL}. Where "
        "the interval holds zero, the runs do not settle the order, and the paper's table, which has no interval, does "
        "not either."
    )
    return Table("Q3, pair by pair", columns, tuple(lines), note)


def failures(failed: Iterable[tuple[str, str]]) -> Table | None:
    """Return the jobs that ended with an error; none is dropped silently."""
    lines = tuple((key, error if len(error) <= 300 else error[:300] + " ...") for key, error in failed)
    note = "Their rows are missing above. `--retry-failed` runs them again; tracebacks are in the folder `jobs`."
    return Table("Failed jobs", ("job", "error"), lines, note) if lines else None
