"""Should the last epochs go through the proved step behind the answers, or is a plain network as good?

* `correct`: a plain network; where its answers break a rule, they are moved to the nearest allowed ones.
* `through`: the same, but the last fifth of the epochs go through that step, with its own gradient, at a tenth of the
  learning rate, which falls to zero.
* `annealed`: these last epochs without the step, to tell the two effects apart.

Each is fitted to three quarters of the training rows and judged on the last quarter; test rows are not looked at.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.baselines import violation_rate
from smle.certificates.rules import certify_rules
from smle.errors import AccuracyWarning, SmleError
from smle.estimators import SafeClassifier, SafeEstimator, SafeRegressor
from smle.estimators.network import Trained, train_network
from smle.estimators.scores import ScoreTable, encode_targets
from smle.estimators.tasks import Task, task_of
from smle.guarantees import nearest_outputs, to_scores
from smle.nn.certified_head import CertifiedHead
from smle.training import History, TrainingOptions, train
from studies.bench.default_tasks import Problem, load, names
from studies.bench.harness import BenchResult, Table
from studies.experiments.runner import Results, run_jobs

__all__ = ["Job", "run", "solve"]

Array = npt.NDArray[np.float64]
WAYS = ("correct", "through", "annealed")
_SEEDS, _LONG = 3, ("synthetic", "forecasting")  # where one seed for each of many tasks is enough
_LAST = 0.2  # share of the epochs that go through the head
_STEP = 1e-3  # of the spread, for differences


@dataclass(frozen=True)
class Job:
    """All ways on one problem with one seed."""

    problem: str
    seed: int
    quick: bool

    @property
    def key(self) -> str:
        """A name for the file of its result."""
        plain = "".join(c if c.isalnum() or c in "-." else "_" for c in self.problem)
        return f"{plain}_seed{self.seed}{'_quick' * self.quick}"


def run(quick: bool = False, *, jobs: int = 1, folder: str | Path = "runs/defaults") -> BenchResult:
    """Fit every way to every problem; results are kept in a folder, and a run goes on where one stopped."""
    seeds = range(1 if quick else _SEEDS)
    todo = [Job(name, seed, quick) for name in names(quick=quick) for seed in seeds if not seed or not _is_long(name)]
    todo.sort(key=lambda job: _is_long(job.problem))
    results = run_jobs(todo, solve, folder=folder, n_jobs=jobs)
    return _result(results, quick=quick)


def _is_long(name: str) -> bool:
    return name.startswith(_LONG)


# --- one job


def solve(job: Job) -> list[dict[str, Any]]:
    """Fit all ways; one row each, with what post-processing of the same plain network has."""
    problem = load(job.problem)
    rng = np.random.default_rng(job.seed)
    order = rng.permutation(len(problem.X))
    if job.problem.startswith("forecasting"):
        order = np.arange(len(problem.X))  # rows are in time
    kept, held = order[: len(order) * 3 // 4], order[len(order) * 3 // 4 :]
    rows, plain = [], None
    for way in WAYS:
        row: dict[str, Any] = {"problem": job.problem, "group": problem.group, "seed": job.seed, "way": way}
        started = time.process_time()
        try:
            model = _fitted(way, problem, kept, job)
        except SmleError as error:
            rows.append({**row, "score": None, "refused": str(error)[:200]})
            continue
        row["seconds"] = time.process_time() - started
        outputs = model.raw_outputs(problem.X[held])
        if way == "correct":
            plain = _plain_outputs(model, problem.X[held])
        row["score"] = _score(problem, held, outputs)
        row["violations"] = violation_rate(problem.spec, problem.X[held], outputs)
        rows.append(row)
    if plain is not None:
        spread = np.std(_truth(problem, kept), axis=0)  # as the model knows it
        scale = np.where(spread > 0, spread, 1.0)
        nearest = nearest_outputs(problem.spec, problem.X[held], task_of(problem.spec).probable(plain), scale=scale)
        known = ~np.isnan(nearest).any(axis=1)
        post = _score(problem, held[known], to_scores(problem.spec, nearest[known]))
        for row in rows:
            row |= {"plain": _score(problem, held, plain), "postprocess": post}
    return rows


def _fitted(way: str, problem: Problem, kept: npt.NDArray[np.intp], job: Job) -> SafeEstimator:
    kinds = {True: (SafeRegressor, _ThroughRegressor), False: (SafeClassifier, _ThroughClassifier)}
    plain, last = kinds[problem.is_regression]
    kind: type[SafeEstimator] = last if way in ("through", "annealed") else plain
    options: dict[str, Any] = {"max_epochs": 8} if job.quick else {}
    model = kind(problem.spec, random_state=job.seed, compare=False, verbose=False, **options)
    if isinstance(model, _LastThrough):
        model._through = way == "through"
    y = problem.y[kept]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        model.fit(problem.X[kept], y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y)
    return model


def _plain_outputs(model: SafeEstimator, X: Array) -> Array:
    return model.deployed_.explained(X, X).answers.astype(np.float64)


def _truth(problem: Problem, rows: npt.NDArray[np.intp]) -> Array:
    return encode_targets(problem.spec, problem.y[rows])


def _score(problem: Problem, rows: npt.NDArray[np.intp], outputs: Array) -> float:
    """Return R2 or accuracy, as `fit` measures it."""
    table = ScoreTable.of(problem.spec, problem.X[rows], _truth(problem, rows), {"it": outputs})
    return table.scores()["it"]


# --- the last epochs through the step


class _Served(torch.autograd.Function):
    """What is served, with the gradient of the candidate that serves: a projection, and symmetric in scaled outputs."""

    @staticmethod
    def forward(ctx: Any, answers: Tensor, features: Tensor, head: CertifiedHead, scale: Tensor) -> Tensor:
        """Return the outputs (batch, m)."""
        served: Tensor = head(features, answers)
        ctx.save_for_backward(answers, features, served, scale)
        ctx.head = head
        return served

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by the answers, from a small step along it."""
        (gradient,) = gradients
        answers, features, served, scale = ctx.saved_tensors
        moved = (served != answers).any(dim=1)
        if not bool(moved.any()):
            return gradient, None, None, None
        scaled = gradient[moved] * scale
        size = scaled.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
        there = ctx.head(features[moved], answers[moved] + _STEP * scale * scaled / size)
        result = gradient.clone()
        result[moved] = (there - served[moved]) / (_STEP * scale) * size / scale
        return result, None, None, None


class _Through(nn.Module):
    """A network with the step behind it, for training."""

    def __init__(self, network: nn.Module, head: CertifiedHead, scale: Array) -> None:
        super().__init__()
        self.network, self.step = network, head
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32))

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs (batch, m)."""
        outputs: Tensor = _Served.apply(self.network(features.float()), features, self.step, self.get_buffer("scale"))  # type: ignore[no-untyped-call]
        return outputs


class _LastThrough(SafeEstimator):
    """Trains the last epochs with a small learning rate, through the step behind the answers or not."""

    _through = True

    def _trained(
        self, task: Task, X: npt.NDArray[Any], targets: Array, weight: Array | None, seed: int, **how: Any
    ) -> Trained:
        given = self._given()
        assert given is not None
        default, scale = task.default(targets)
        step = CertifiedHead(certify_rules(given, default=default, scale=scale))

        def further(network: Any, history: History) -> None:
            options = TrainingOptions(
                learning_rate=self.learning_rate / 10, batch_size=self.batch_size,
                max_epochs=max(1, round(_LAST * len(history.loss))), patience=None,
                validation_fraction=self.validation_fraction, schedule="cosine", verbose=False,
            )  # fmt: skip
            module = _Through(network, step, task.units(targets)[1]) if self._through else network
            wanted = torch.tensor(targets, dtype=torch.float32)
            rows = torch.tensor(X, dtype=None if self._through else torch.float32)
            train(module, rows, wanted, loss=task.loss(targets), options=options, seed=seed)
            network.eval()

        epochs = self.max_epochs
        self.max_epochs = max(1, round((1 - _LAST) * epochs))
        try:
            return train_network(self, task, X, targets, weight, seed, further=further, **how)
        finally:
            self.max_epochs = epochs


class _ThroughRegressor(_LastThrough, SafeRegressor):
    """Numbers."""


class _ThroughClassifier(_LastThrough, SafeClassifier):
    """Labels and choices."""


# --- tables


def _result(results: Results, *, quick: bool) -> BenchResult:
    rows = results.rows
    tables = [_summary(rows), _single(rows)]
    if results.failures:
        tables.append(Table("Failed", ("job", "error"), tuple((o.key, o.error) for o in results.failures)))
    best = _gaps(rows, "correct", "through")
    passed = {
        "correct: no rule is broken on any held-out row": all(not r.get("violations") for r in rows),
        "correct: level with post-processing of the same network (0.001)": bool(
            all(r["score"] is not None and r["score"] >= r["postprocess"] - 1e-3 for r in rows if r["way"] == "correct")
        ),
        "correct: not behind epochs through the step on average (0.002)": bool(len(best) and np.mean(best) >= -2e-3),
    }
    return BenchResult("defaults", "Which way to train is the default", tuple(tables), passed=passed, quick=quick)


def _gaps(rows: Sequence[dict[str, Any]], way: str, other: str) -> Array:
    """Return differences of scores, run by run."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        if row["score"] is not None:
            found.setdefault((row["problem"], row["seed"]), {})[row["way"]] = row["score"]
    return np.array([scores[way] - scores[other] for scores in found.values() if way in scores and other in scores])


def _summary(rows: Sequence[dict[str, Any]]) -> Table:
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        means = [_mean([r["score"] for r in own if r["way"] == way]) for way in WAYS]
        post = _mean([r["postprocess"] for r in own if r["way"] == "correct" and "postprocess" in r])
        gaps = [_pair(_gaps(own, "correct", other)) for other in WAYS[1:]]
        lines.append((group, len({r["problem"] for r in own}), *means, post, *gaps))
    return Table(
        "Scores on rows held out of the training rows",
        ("group", "problems", *WAYS, "plain, post-processed", *(f"correct - {way}" for way in WAYS[1:])),
        tuple(lines),
        "R2 for numbers, accuracy for labels and choices; means over problems and seeds. Differences are mean (least, "
        "largest), run by run. Post-processed: exhaustive search or optimization for the nearest allowed answer, in "
        "float64, to the same plain network.",
    )


def _single(rows: Sequence[dict[str, Any]]) -> Table:
    lines = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        own = [row for row in rows if row["problem"] == name]
        means = [_mean([r["score"] for r in own if r["way"] == way]) for way in WAYS]
        others = [_mean([r[key] for r in own if key in r]) for key in ("plain", "postprocess")]
        seconds = [_mean([r.get("seconds") for r in own if r["way"] == way]) for way in WAYS[:1]]
        lines.append((name, *means, *others, *seconds))
    return Table("Every problem", ("problem", *WAYS, "plain", "post-processed", "seconds, correct"), tuple(lines))


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.4f}" if known else "none"


def _pair(gaps: Array) -> str:
    return f"{gaps.mean():+.4f} ({gaps.min():+.4f}, {gaps.max():+.4f})" if len(gaps) else "none"
