"""One job is one task under one preset: all compared methods trained, judged and timed in the same process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smle import correct
from smle.assurance import DeployedNetwork, certify
from smle.baselines import violation_rate
from smle.guarantees.answers.nearest import nearest_outputs
from smle.nn.network import SafeNetwork
from studies.experiments import classification, data, forecasting, standins, synthetic
from studies.experiments.ablation import vary
from studies.experiments.networks import Settings, train_plain, train_safe
from studies.experiments.pdcg import CountedPDCG
from studies.experiments.presets import BENCHMARKS, settings_of
from studies.experiments.tasks import Array, Task

__all__ = ["METHODS", "Job", "jobs", "load_task", "solve"]

METHODS = ("oracle", "preprocess", "postprocess", "smle")

_CALLS, _BLOCK = 240, 20  # single examples timed per method, and per turn of a method


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


def jobs(
    benchmarks: Sequence[str],
    *,
    preset: str,
    seeds: Sequence[int],
    study: str = "main",
    quick: bool = False,
    data_dir: str | None = None,
) -> list[Job]:
    """Return the jobs of a run; `quick` takes few tasks.

    Raises:
        ValueError: If a benchmark is unknown.
    """
    found = []
    for benchmark in benchmarks:
        if benchmark not in BENCHMARKS:
            raise ValueError(f"Expected benchmarks among {', '.join(BENCHMARKS)}. Got '{benchmark}'.")
        keys = _quick_keys(benchmark) if quick else _keys(benchmark)
        found += [Job(benchmark, key, preset, study, seed, quick, data_dir) for seed in seeds for key in keys]
    return found


def _keys(benchmark: str) -> list[str]:
    if benchmark == "synthetic":
        return [item.key for item in synthetic.properties()]
    return forecasting.task_keys() if benchmark == "forecasting" else classification.task_keys()


def _quick_keys(benchmark: str) -> list[str]:
    if benchmark == "synthetic":
        return ["n2-easy-P1", "n2-medium-P3", "n2-hard-P5"]
    if benchmark == "forecasting":
        return [f"Standin-{name}-{quantile}" for name in standins.SERIES for quantile in forecasting.QUANTILES]
    return [f"{name}-{quantile}" for name in standins.LABEL_TABLES for quantile in classification.QUANTILES]


def load_task(job: Job) -> Task:
    """Return data and rules of a job.

    Raises:
        DataError: If the data cannot be found.
    """
    if job.benchmark == "synthetic":
        return synthetic.load(job.task)
    if job.benchmark == "forecasting":
        if job.quick:
            return forecasting.load(job.task, standins.series(), standin=True)
        return forecasting.load(job.task, data.series(job.data_dir))
    if job.quick:
        return classification.load(job.task, standins.label_table(), standin=True)
    return classification.load(job.task, data.label_table(job.task.rsplit("-", 1)[0], job.data_dir))


# --- solving


@dataclass(frozen=True, eq=False)
class _Method:
    """A trained method: outputs on the test set, how to answer, and what is known about it."""

    outputs: Array
    answer: Callable[[Tensor], Any] | None
    facts: dict[str, Any]
    predict: Callable[[Array], Array] | None = None


def solve(job: Job) -> list[dict[str, Any]]:
    """Train, judge and time every method on a job's task, in a study of the ablation only `smle`; one row each."""
    task = load_task(job)
    settings = settings_of(job.benchmark, job.preset, inputs=task.X.shape[1], outputs=task.y.shape[1], quick=job.quick)
    if job.study != "main":
        settings = vary(settings, job.benchmark, job.study)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        methods, seed = {}, _seed(job)
        if job.study == "main":
            methods["oracle"] = _Method(_allowed(task, task.X_test, task.y_test), None, {})
            methods["preprocess"] = _preprocess(task, settings, seed)
            methods["postprocess"] = _postprocess(task, settings, seed)
        methods["smle"] = _smle(task, settings, seed)
        timings = _timings(task, {name: method.answer for name, method in methods.items() if method.answer})
    finally:
        torch.set_num_threads(threads)
    return [_row(job, task, name, method, timings.get(name, {})) for name, method in methods.items()]


def _seed(job: Job) -> int:
    """Return a seed that differs between tasks, so that luck does not repeat itself."""
    text = f"{job.benchmark} {job.task} {job.seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1


def _allowed(task: Task, X: Array, outputs: Array) -> Array:
    """Return the nearest allowed outputs; labels, given as probabilities, come back as logits of +-1/2."""
    nearest = nearest_outputs(task.specification, X, outputs)
    return nearest - 0.5 if task.has_labels else nearest


def _plain_outputs(network: nn.Module, X: Array) -> Array:
    with torch.inference_mode():
        return np.asarray(network(torch.tensor(X, dtype=torch.float32)).numpy().astype(np.float64))


class _Clock:
    """Counts wall-clock and CPU seconds of a stretch of training."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        """Return the seconds since the start as fields of a result."""
        return {"seconds_train": time.perf_counter() - self._wall, "cpu_train": time.process_time() - self._cpu}


def _enforced(task: Task) -> Array:
    """Return the nearest training targets that obey the property."""
    return nearest_outputs(task.specification, task.X, task.y)


def _preprocess(task: Task, settings: Settings, seed: int) -> _Method:
    clock = _Clock()
    network, epochs = _trained(task, settings, _enforced(task), seed)
    facts = {**clock.stop(), "epochs": epochs}

    def predict(X: Array) -> Array:
        return _plain_outputs(network, X)

    return _Method(predict(task.X_test), network, facts, predict)


def _postprocess(task: Task, settings: Settings, seed: int) -> _Method:
    clock = _Clock()
    network, epochs = _trained(task, settings, task.y, seed)
    facts = {**clock.stop(), "epochs": epochs}

    def predict(X: Array) -> Array:
        outputs = _plain_outputs(network, X)
        if task.has_labels:
            outputs = 0.5 * (1.0 + np.tanh(outputs / 2))
        return _allowed(task, X, outputs)

    def answer(x: Tensor) -> Array:
        return predict(x.numpy())

    return _Method(predict(task.X_test), answer, facts, predict)


def _trained(task: Task, settings: Settings, targets: Array, seed: int) -> tuple[nn.Module, int]:
    """Train a plain network for as long as a safe one, warm-up included."""
    options = replace(settings.options, warmup_epochs=0)
    return train_plain(task, replace(settings, options=options), targets, seed=seed)


def _smle(task: Task, settings: Settings, seed: int) -> _Method:
    enforcement, clock = settings.enforcement(), _Clock()
    if settings.corrects:
        plain, epochs = _trained(task, settings, task.y, seed)
        facts: dict[str, Any] = {**clock.stop(), "epochs": epochs}
        started = time.perf_counter()
        found: SafeNetwork = correct(plain, task.specification, task.X)
        deployed: nn.Module = found.eval()
        proved = found.certificate_.check()
    else:
        share = settings.enforced_share
        targets = share * _enforced(task) + (1 - share) * task.y if share else task.y
        network, epochs = train_safe(task, settings, targets, enforcement, seed=seed)
        facts = {**clock.stop(), "epochs": epochs}
        started = time.perf_counter()
        proved, deployed = certify(network).check(), DeployedNetwork.of(network)
    facts |= {
        "seconds_certify": time.perf_counter() - started,
        "certified": True,
        "worst_margin": float(min(item.margin for item in proved)),
        "statements": len(proved),
    }
    if isinstance(enforcement, CountedPDCG):
        facts |= enforcement.counts.as_row()

    def predict(X: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(deployed(torch.tensor(X)).numpy().astype(np.float64))

    return _Method(predict(task.X_test), deployed, facts, predict)


def _timings(task: Task, answers: dict[str, Callable[[Tensor], Any]]) -> dict[str, dict[str, float]]:
    """Time single test examples and the whole test set; methods take turns, so that they share disturbances."""
    rows = torch.tensor(task.X_test, dtype=torch.float32)
    single: dict[str, list[float]] = {name: [] for name in answers}
    batch: dict[str, list[float]] = {name: [] for name in answers}
    with torch.inference_mode():
        for block in range(_CALLS // _BLOCK):
            for name, answer in answers.items():
                answer(rows[:1])  # what the method before left in the caches is not this method's business
                for call in range(block * _BLOCK, (block + 1) * _BLOCK):
                    x = rows[call % len(rows)].unsqueeze(0)
                    started = time.perf_counter()
                    answer(x)
                    single[name].append(time.perf_counter() - started)
        for _ in range(5):
            for name, answer in answers.items():
                started = time.perf_counter()
                answer(rows)
                batch[name].append(time.perf_counter() - started)
    return {
        name: {
            "seconds_per_example": float(np.median(single[name])),
            "seconds_per_row_batch": float(np.median(batch[name])) / len(rows),
        }
        for name in answers
    }


def _row(job: Job, task: Task, name: str, method: _Method, timing: dict[str, float]) -> dict[str, Any]:
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
        "score": task.score(method.outputs),
        "violations": float(task.broken(task.X_test, method.outputs).mean()),
        "exact_violations": violation_rate(task.specification, task.X_test, method.outputs),
    }
    for which, (X, truth) in task.further.items():
        predicted = _allowed(task, X, truth) if method.predict is None else method.predict(X)
        row[f"score_{which}"] = task.score(predicted, truth)
    return row | method.facts | timing
