"""What each choice of `PaperChoices` changes: one at a time, from the published code's, on some tasks of the paper.

The last table is the paper's first direction, cheaper training: adversarial steps and a linear cost beside PDCG and
beside our default.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from studies.experiments import methods
from studies.experiments.paper_network import OPTIONS, PaperChoices
from studies.experiments.presets import choices_of, chosen, settings_of, shortened
from studies.experiments.runner import run_jobs
from studies.experiments.tasks import Task
from studies.harness import Table, bench, within

TASKS: Mapping[str, tuple[str, ...]] = {
    "synthetic": tuple(f"n{n}-{task}-P4" for n in (2, 4, 8) for task in ("easy", "medium", "hard")),
    "forecasting": ("Monthly-M36044-0.90", "Daily-D4099-0.90"),
    "classification": tuple(f"{name}-0.6" for name in ("CHD-49", "Flags", "Foodtruck", "Water-quality", "Yeast")),
}
"""Where cheaper training is tried: P4 of the nine synthetic tasks, two series and five label sets, tightest rules."""

FEW: Mapping[str, tuple[str, ...]] = {
    "synthetic": tuple(f"n{n}-{task}-P4" for n in (2, 4) for task in ("easy", "medium", "hard")),
    "forecasting": TASKS["forecasting"],
    "classification": TASKS["classification"][:3],
}
"""Where the other choices are turned, one at a time."""

CHEAPER = ("default", "after_steps", "cost")
TEXT = ("text", "text_gated")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "synthetic": (
        *CHEAPER, "anchored", *TEXT, "gate", "linear_bounds", "clip_gradient", "first_phase", "keep", "keep_memory",
    ),
    "forecasting": (*CHEAPER, "constant_bounds", "first_phase", "anchored", "clip_gradient", "keep", "keep_memory"),
    "classification": (
        *CHEAPER, "constant_bounds", "pairs", "first_phase", "keep", "keep_memory", "queue", "tolerance=scaled",
        "tolerance=threshold",
    ),
}  # fmt: skip
"""The choices that are turned in each benchmark; `default` is our way instead, `text` all of the text's."""

LIMIT = 60.0
"""Seconds of processor time after which training is stopped; the row then says so and has no score."""
_UNPROVED = "no certified head"


def _base(benchmark: str) -> PaperChoices:
    """Return the published code's choices without handing on, which is no choice of a single task; for labels ours."""
    published = choices_of("published", benchmark)
    return replace(published, first_phase="plain", pairs="best", queue="counterexamples", tolerance="flat")


def _turned(benchmark: str, name: str) -> PaperChoices:
    if name in TEXT:
        return PaperChoices(gate=name != "text")
    base = _base(benchmark)
    if name == "base":
        return base
    choice, _, value = name.partition("=")
    other = next(option for option in OPTIONS[choice] if option != getattr(base, choice))
    turned: Any = value or other
    return replace(base, **{choice: turned})


@dataclass(frozen=True)
class ChoiceJob:
    """One network: a task, and the choice that is turned (`base`: none)."""

    benchmark: str
    task: str
    variant: str
    seed: int = 0
    quick: bool = False
    data_dir: str | None = None

    @property
    def key(self) -> str:
        """A unique name."""
        parts = [self.benchmark, self.task, self.variant, str(self.seed), *(["quick"] * self.quick)]
        return "_".join(parts)


def solve(job: ChoiceJob) -> list[dict[str, Any]]:
    """Train one network and judge it; one that takes too long has a row without a score."""
    plain = methods.Job(job.benchmark, job.task, "published", "main", job.seed, job.quick, job.data_dir)
    task = methods.load_task(plain)
    found: dict[str, Any] = {"task": job.task, "variant": job.variant}
    started = time.process_time()
    try:
        with within(LIMIT):
            trained = _trained(job, task, methods.seed_of(plain))
    except TimeoutError:
        return [{**found, "stopped": f"stopped after {LIMIT:.0f} s"}]
    found |= {"stopped": "", **trained.facts, "cpu_train": time.process_time() - started}
    outputs = trained.outputs(task.X_test).astype(np.float64)
    return [found | {f"score_{kind}": task.score(outputs, kind=kind) for kind in ("averaged", "pooled")}]


def _trained(job: ChoiceJob, task: Task, seed: int) -> methods.Trained:
    """Train the paper's network with one choice turned, or our default."""
    inputs, outputs = task.X.shape[1], task.y.shape[1]
    if job.variant == "default":
        settings = settings_of(job.benchmark, "best", inputs=inputs, outputs=outputs, quick=job.quick)
        return methods.corrected(task, methods.train_plainly(task, settings, task.y, seed))
    settings = chosen(job.benchmark, _turned(job.benchmark, job.variant), inputs, outputs)
    return methods.train_papers(task, shortened(settings) if job.quick else settings, seed)[0]


@bench("Choices of the paper, one at a time", default_threads=True)
def run(quick: bool, passed: dict[str, bool], jobs: int = 1, folder: str | Path | None = None) -> Iterable[Table]:
    """Train the base and every variant on every task; `quick`: two small tasks, few epochs, stand-in data."""
    wanted = jobs_of(quick=quick)
    found: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for outcome in run_jobs(wanted, solve, folder=folder, n_jobs=jobs).outcomes:
        job = outcome.job
        row = {"stopped": _UNPROVED} if outcome.failed else {"stopped": "", **outcome.rows[0]}
        found[job["benchmark"], job["variant"], job["task"]] = row
    unproved = [key for key, row in found.items() if row["stopped"] == _UNPROVED]
    late = sum(bool(row["stopped"]) for row in found.values()) - len(unproved)
    passed[f"all {len(wanted)} networks are trained ({len(found)})"] = len(found) == len(wanted)
    passed[
        f"all that end in a minute ({late} do not) are certified, but for a linear cost ({len(unproved)} are not)"
    ] = all(variant == "cost" for _, variant, _ in unproved)
    return (*(_effects(benchmark, found) for benchmark in VARIANTS), _cheaper(found))


def jobs_of(*, quick: bool = False) -> list[ChoiceJob]:
    """Return all jobs: cheaper training of all benchmarks first, then the choices one at a time."""
    first = dict.fromkeys(VARIANTS, ("base", *CHEAPER))
    rest = {} if quick else {benchmark: variants[len(CHEAPER) :] for benchmark, variants in VARIANTS.items()}
    return [
        ChoiceJob(benchmark, task, variant, quick=quick)
        for sample, chosen_variants in ((TASKS, first), (FEW, rest))
        for benchmark, variants in chosen_variants.items()
        for variant in variants
        for task in (methods.task_keys(benchmark, quick=True)[:1] if quick else sample[benchmark])
    ]


Found = Mapping[tuple[str, str, str], Mapping[str, Any]]


def _effects(benchmark: str, found: Found) -> Table:
    """Return one line per choice: scores, and gains over the base task by task."""
    lines = []
    for name in ("base", *VARIANTS[benchmark]):
        pairs = [(row, found[benchmark, "base", task]) for (where, what, task), row in found.items()
                 if (where, what) == (benchmark, name) and (benchmark, "base", task) in found]  # fmt: skip
        ended = [(row, base) for row, base in pairs if not row["stopped"] and not base["stopped"]]
        if not ended:
            continue
        gains, slower = np.transpose([
            (row["score_averaged"] - base["score_averaged"], row["cpu_train"] / base["cpu_train"])
            for row, base in ended
        ])  # fmt: skip
        median = float(np.median([row["score_averaged"] for row, _ in ended]))
        better = f"{(gains > 0.001).sum()} / {(gains < -0.001).sum()}"
        pdcg: tuple[object, ...] = ("-", "-", "-")
        if name != "default":
            fields = ("pdcg_success", "pdcg_counterexamples", "crossed")
            converged, counts, crossed = ([row[field] for row, _ in ended] for field in fields)
            pdcg = f"{sum(converged)}", float(np.median(counts)), float(np.mean(crossed))
        spread = (float(function(gains)) for function in (np.median, np.min, np.max))
        share = f"{len(ended)} of {len(pairs)}"
        lines.append((_label(benchmark, name), share, median, *spread, better, float(np.median(slower)), *pdcg))
    return Table(
        benchmark,
        (
            "choice turned", "ended", "median score", "median gain", "worst", "best", "better / worse",
            "CPU time / none", "converged", "counterexamples", "l > u",
        ),
        tuple(lines),
        "From the published code's choices (the backbone is not handed on; for labels the best pair is taken, "
        "counterexamples alone enter the queue, the tolerance is flat). Scores on the test set, R2 averaged over "
        "outputs, one seed; gains are taken task by task, better and worse are by over 0.001. "
        f"Ended: within {LIMIT:.0f} s of processor time. Converged: the run of PDCG at the end left no counterexample. "
        "l > u: share of test rows and units where the bounds cross.",
    )  # fmt: skip


def _label(benchmark: str, name: str) -> str:
    whole = {
        "base": "(none)",
        "default": "our default instead",
        "text": "all: the text",
        "text_gated": "the same, gated",
    }
    choice = name.partition("=")[0]
    return whole.get(name) or f"{choice}: {getattr(_turned(benchmark, name), choice)}"


def _cheaper(found: Found) -> Table:
    """Return score and seconds of the paper's training, its two suggestions and our default, task by task."""

    def cell(row: Mapping[str, Any] | None) -> str:
        if row is None:
            return "-"
        return row["stopped"] or f"{row['score_averaged']:.3f}, {row['cpu_train']:.0f} s"

    lines = [
        (task, *(cell(found.get((benchmark, name, task))) for name in ("base", *CHEAPER)))
        for benchmark, variant, task in found
        if variant == "base"
    ]
    return Table(
        "cheaper training",
        ("task", "PDCG", "our default", "adversarial steps", "linear cost"),
        tuple(lines),
        "Test score and seconds of processor time for training and proof, one seed.",
    )
