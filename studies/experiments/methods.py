"""One job is one task under one preset: all compared methods trained, judged and timed in the same process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smle import correct
from smle.baselines import violation_rate
from smle.heads.box.algorithms.pdcg import Pdcg
from smle.heads.box.network.assurance import certify
from smle.nearest.oracle import nearest_outputs
from smle.networks.backbones import Quick, quickly
from smle.networks.safe_network import SafeNetwork
from smle.training.options import History
from studies.experiments import classification, data, forecasting, synthetic
from studies.experiments.networks import Settings, State, train_plain, train_safe
from studies.experiments.presets import settings_of, vary
from studies.experiments.synthetic import trained_order
from studies.experiments.tasks import Task
from studies.harness import Array, interleaved

_BLOCKS, _BLOCK = 12, 20  # turns of a method with single examples, and examples per turn


@dataclass(frozen=True)
class Job:
    """One independent unit of work, as plain values.

    * `task`: key of the task within its benchmark. `study`: `main`, or a variant of the ablation.
    * `quick`: generated stand-in data (synthetic: a few of its own tasks) and few epochs.
    * `data_dir`: where the data are; None: found as `studies.experiments.data` describes.
    """

    benchmark: str
    task: str
    preset: str
    study: str
    seed: int
    quick: bool = False
    data_dir: str | None = None

    @property
    def key(self) -> str:
        """A unique name that is safe as a file name."""
        parts = [self.benchmark, self.task, self.preset, self.study, f"seed{self.seed}", *(["quick"] * self.quick)]
        return "_".join(parts)


def task_keys(benchmark: str, *, quick: bool = False) -> list[str]:
    """Return the names of a benchmark's tasks; `quick`: a few, with generated data if they are not its own."""
    if benchmark == "synthetic":
        return ["n2-easy-P1", "n2-medium-P3", "n2-hard-P5"] if quick else [item.key for item in synthetic.properties()]
    if not quick:
        return forecasting.task_keys() if benchmark == "forecasting" else classification.task_keys()
    if benchmark == "forecasting":
        return [f"Standin-{name}-{quantile}" for name in data.STANDIN_SERIES for quantile in forecasting.QUANTILES]
    return [f"Standin-{quantile}" for quantile in classification.QUANTILES]


@lru_cache(maxsize=2)
def load_task(job: Job) -> Task:
    """Return data and rules of a job.

    Raises:
        DataError: If the data cannot be found.
    """
    if job.benchmark == "synthetic":
        return synthetic.load(job.task)
    made = job.task.startswith("Standin")
    if job.benchmark == "forecasting":
        return forecasting.load(job.task, data.standin_series() if made else data.series(job.data_dir))
    name = job.task.rsplit("-", 1)[0]
    return classification.load(job.task, data.standin_table() if made else data.label_table(name, job.data_dir))


# --- solving


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained method.

    * `answer(x)`: from inputs (rows, d) to outputs, as it is deployed; what is timed.
    * `facts`: what is known about it, as fields of a result.
    * `module`: what would be exported to ONNX; None if an answer is more than a network.
    * `rounded`: it reads inputs in float32; others read them as they are.
    """

    answer: Callable[[Tensor], Any]
    facts: dict[str, Any]
    module: nn.Module | None = None
    rounded: bool = False

    def outputs(self, X: Array) -> Array:
        """Return the outputs in the format in which the method gives them."""
        with torch.inference_mode():
            y = self.answer(torch.tensor(X, dtype=torch.float32 if self.rounded else None))
        return y.numpy() if isinstance(y, Tensor) else np.asarray(y)


def solve(job: Job) -> list[dict[str, Any]]:
    """Train, judge and time every method on a job's task, in a study of the ablation only `smle`; one row each."""
    task = load_task(job)
    settings = settings_for(job, task)
    trained = _kept if _hands_on(job) else _trained
    methods: dict[str, Trained | None] = {}
    if job.study == "main":
        plain = train_plainly(task, settings, task.y, seed_of(job))
        methods = {"oracle": None, "preprocess": trained(job, "preprocess"), "postprocess": postprocessed(task, plain)}
    methods["smle"] = corrected(task, plain) if settings.choices is None else trained(job, "smle")
    timings = _timings(task, {name: method.answer for name, method in methods.items() if method is not None})
    kind = "averaged" if settings.choices is None else settings.choices.r2
    return [_row(job, task, name, method, timings.get(name, {}), kind) for name, method in methods.items()]


def settings_for(job: Job, task: Task) -> Settings:
    """Return how a job trains its networks."""
    settings = settings_of(job.benchmark, job.preset, inputs=task.X.shape[1], outputs=task.y.shape[1], quick=job.quick)
    return settings if job.study == "main" else vary(settings, job.benchmark, job.study)


def seed_of(job: Job) -> int:
    """Return a seed that differs between tasks, so that luck does not repeat itself."""
    text = f"{job.benchmark} {job.task} {job.seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1


def _allowed(task: Task, X: Array, outputs: Array) -> Array:
    """Return the nearest allowed outputs; labels, given as probabilities, come back as logits of +-1/2."""
    nearest = nearest_outputs(task.specification, X, outputs)
    return nearest - 0.5 if task.has_labels else nearest


class _Clock:
    """Counts wall-clock and CPU seconds of a stretch of training."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        """Return the seconds since the start as fields of a result."""
        return {"seconds_train": time.perf_counter() - self._wall, "cpu_train": time.process_time() - self._cpu}


def enforced_targets(task: Task) -> Array:
    """Return the nearest training targets that obey the property."""
    return nearest_outputs(task.specification, task.X, task.y)


def targets_of(task: Task, settings: Settings) -> Array:
    """Return the targets that a preset trains the paper's network on."""
    return enforced_targets(task) if settings.enforced else task.y


def train_plainly(
    task: Task, settings: Settings, targets: Array | None, seed: int, start: State | None = None
) -> Trained:
    """Train a plain network for as long as a safe one, warm-up included; without targets, on those that obey."""
    clock, options = _Clock(), replace(settings.options, warmup_epochs=0)
    network, epochs = train_plain(
        task, replace(settings, options=options), enforced_targets(task) if targets is None else targets,
        seed=seed, start=start,
    )  # fmt: skip
    facts, quick = {**clock.stop(), "epochs": epochs}, Quick.of(network)

    def answer(x: Tensor) -> Tensor:
        """Answer by the call path of a safe network, without the calls of modules."""
        found = quickly(quick, network, x)
        outputs: Tensor = network(x) if found is None else found
        return outputs

    return Trained(answer, facts, network, rounded=True)


def postprocessed(task: Task, plain: Trained) -> Trained:
    """Move the answers of a plain network, numbers or logits, to the nearest allowed ones."""

    def answer(x: Tensor) -> Array:
        outputs = plain.answer(x.float()).numpy().astype(np.float64)
        return _allowed(task, x.numpy(), 0.5 * (1.0 + np.tanh(outputs / 2)) if task.has_labels else outputs)

    return Trained(answer, plain.facts)


def corrected(task: Task, plain: Trained) -> Trained:
    """Return our default: a plain network with the head of rules behind it."""
    assert plain.module is not None
    started = time.perf_counter()
    found: SafeNetwork = correct(plain.module, task.specification, task.X)
    return _deployed(found.eval(), found.certificate_.check(), dict(plain.facts), started)


def train_papers(task: Task, settings: Settings, seed: int, start: State | None = None) -> tuple[Trained, History]:
    """Train the paper's network by Algorithm 2; `projections` of the history has every run of PDCG.

    Raises:
        ValueError: If the settings are not those of the paper's network.
    """
    enforcement, clock = settings.enforcement(), _Clock()
    targets = targets_of(task, settings)
    network, history = train_safe(task, settings, targets, enforcement, seed=seed, start=start)
    facts = {**clock.stop(), "epochs": len(history.loss), **_projections(history, enforcement.final)}
    facts |= {"crossed": _crossed(network, task.X_test)}
    started = time.perf_counter()
    return _deployed(network.eval(), certify(network).check(), facts, started), history


def _deployed(network: nn.Module, proved: Sequence[Any], facts: dict[str, Any], started: float) -> Trained:
    facts |= {
        "seconds_certify": time.perf_counter() - started,
        "certified": True,
        "worst_margin": float(min(item.margin for item in proved)),
        "statements": len(proved),
    }
    return Trained(network, facts, network)


def _crossed(network: Any, X: Array) -> float:
    """Return the share of rows and units where l > u, and the text's clip would give l."""
    bounds = network.frozen_heads().bounds
    lower, upper = bounds.lower, bounds.upper
    if bounds.lower_slope is not None:
        lower, upper = lower + X @ bounds.lower_slope.T, upper + X @ bounds.upper_slope.T
    return float((lower > upper).mean())


def _projections(history: History, final: Sequence[Pdcg]) -> dict[str, Any]:
    """Return what the projections did, within training and at the end.

    `pdcg_success`: the run at the end left no counterexample. `pdcg_iterations`: its projections.
    `pdcg_counterexamples`: all that were found, training included. `pdcg_final_violation`: strength of the last one, if
    the run failed.
    """
    runs = history.projections
    within = [succeeded for step, succeeded in zip(runs["step"], runs["succeeded"], strict=True) if step]
    return {
        "pdcg_success": all(run.succeeded for run in final),
        "pdcg_iterations": sum(run.iterations for run in final),
        "pdcg_counterexamples": sum(strength > 0 for strength in runs["strength"]),
        "pdcg_final_violation": max((run.strengths[-1] for run in final if not run.succeeded), default=0.0),
        "pdcg_success_rate": float(np.mean(within)) if within else 1.0,
        "pdcg_seconds": float(sum(runs["seconds"])),
    }


# --- what is handed on from property to property


def chain(job: Job) -> str:
    """Return a name that jobs share if they hand a backbone on to each other: the key without the property's number."""
    return replace(job, task=job.task[:-1]).key if _hands_on(job) else job.key


def _hands_on(job: Job) -> bool:
    return job.benchmark == "synthetic" and job.preset == "published"


def _before(job: Job) -> Job | None:
    """Return the job whose networks are trained on under this one's property; None for the first."""
    if not _hands_on(job):
        return None
    _, task, name = job.task.split("-")
    order = trained_order(int(job.task[1]), task)
    place = order.index(int(name[1:]))
    return replace(job, task=f"{job.task[:-1]}{order[place - 1]}") if place else None


def _trained(job: Job, method: str) -> Trained:
    """Train `preprocess` or `smle` from what the property before left, trained here and now if need be."""
    task, before = load_task(job), _before(job)
    settings = settings_for(job, task)
    start = None if before is None else handed_on(_kept(before, method))
    if method == "preprocess":
        return train_plainly(task, settings, None, seed_of(job), start)
    return train_papers(task, settings, seed_of(job), start)[0]


_kept = lru_cache(maxsize=24)(_trained)
"""The same, and the last networks of this process are kept for the next."""


def handed_on(trained: Trained) -> State:
    """Return the weights of a plain network's backbone, or of backbone and bounds; heads start anew."""
    if isinstance(trained.module, nn.Sequential):
        return trained.module[0].state_dict()
    assert trained.module is not None
    weights = trained.module.state_dict()
    return {name: value for name, value in weights.items() if name.startswith(("backbone.", "box."))}


def _timings(task: Task, timed: dict[str, Callable[[Tensor], Any]]) -> dict[str, dict[str, float]]:
    """Time single test examples, some in a row, and the whole test set; methods take turns."""
    rows = torch.tensor(task.X_test, dtype=torch.float32)
    examples = [rows[i % len(rows)].unsqueeze(0) for i in range(_BLOCK)]

    def one_by_one(answer: Callable[[Tensor], Any]) -> None:
        for x in examples:
            answer(x)

    with torch.inference_mode():
        single = interleaved({name: partial(one_by_one, answer) for name, answer in timed.items()}, rounds=_BLOCKS)
        batch = interleaved({name: partial(answer, rows) for name, answer in timed.items()}, rounds=5)
    return {
        name: {
            "seconds_per_example": single[name].median / _BLOCK,
            "seconds_per_row_batch": batch[name].median / len(rows),
        }
        for name in timed
    }


def _row(
    job: Job, task: Task, name: str, method: Trained | None, timing: dict[str, float], kind: str
) -> dict[str, Any]:
    """Return a result; without a method it is that of the nearest allowed answers."""

    def predicted(X: Array, truth: Array) -> Array:
        return _allowed(task, X, truth) if method is None else method.outputs(X).astype(np.float64)

    outputs = predicted(task.X_test, task.y_test)
    row: dict[str, Any] = {
        "benchmark": job.benchmark,
        "task": job.task,
        "group": task.group,
        "preset": job.preset,
        "study": job.study,
        "seed": job.seed,
        "standin": task.standin,
        "method": name,
        "metric": task.metric,
        "score": task.score(outputs, kind=kind),
        "score_pooled": task.score(outputs, kind="pooled"),
        "score_averaged": task.score(outputs),
        "violations": float(task.broken(task.X_test, outputs).mean()),
        "exact_violations": violation_rate(task.specification, task.X_test, outputs),
    }
    for which, (X, truth) in task.further.items():
        row[f"score_{which}"] = task.score(predicted(X, truth), truth, kind=kind)
    return row | (method.facts if method else {}) | timing
