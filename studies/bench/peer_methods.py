"""Methods, trained on one case with one seed, and what is measured of them.

All have the same backbone, rows, epochs and order of rows. Measured are accuracy, exact violations, the cost of an
answer, and whether there is an ONNX form.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle import correct
from smle.heads.box.network.assurance import certify
from smle.heads.box.network.box_network import BoxNetwork
from smle.networks.safe_network import SafeNetwork
from smle.regions.cells import regions_of
from smle.rules import Specification
from smle.training.loop import train
from studies.bench.peer_layers import Case, NotStatableError, guarded, load_case
from studies.experiments.methods import enforced_targets, moved, targets_of
from studies.experiments.networks import Settings, train_plain, train_safe
from studies.experiments.presets import settings_of
from studies.experiments.tasks import Array
from studies.harness import asked, interleaved, keep_memory, quietly
from tests.support.exported import session
from tests.support.sampling import Judge, border_points, corner_points

FloatArray = npt.NDArray[np.floating]
BATCHES = (1, 256, 8192)
_LATE = 2  # epochs with an optimization per row, after training without it

GUARANTEES = {
    "plain": "none",
    "preprocess": "none",
    "postprocess (MAP)": "per answer, by its solver",
    "projection layer (cvxpylayers)": "up to the solver's tolerance and rounding",
    "Pi-net": "up to its number of steps and rounding",
    "RAYEN": "in real arithmetic",
    "PiShield": "in real arithmetic",
    "HardNet-style": "in real arithmetic",
    "smle, paper preset": "proved for all inputs, rounding included",
    "smle": "proved for all inputs, rounding included",
}
"""What each method promises, by its authors' own words; for smle the exact checker's."""

METHODS = tuple(GUARANTEES)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained method.

    * `answer(x)`: from float32 inputs (rows, d) to outputs, as it is deployed; what is timed.
    * `module`: what would be exported to ONNX; None if an answer is more than a network.
    * `seconds`: processor time of training; `epochs` that it was spent on.
    """

    answer: Callable[[Tensor], Any]
    module: nn.Module | None
    seconds: float
    epochs: int
    facts: dict[str, Any] = field(default_factory=dict)

    def outputs(self, X: FloatArray) -> FloatArray:
        """Return the outputs in the format in which the method gives them."""
        with torch.inference_mode():
            y = self.answer(torch.tensor(X, dtype=torch.float32))
        found: FloatArray = y.numpy() if isinstance(y, Tensor) else np.asarray(y)
        return found


def train_method(method: str, case: Case, *, seed: int, epochs: int) -> Trained:
    """Train a method.

    Raises:
        NotStatableError: If it cannot express the rules.
        ImportError: If its package is not there.
    """
    # The same schedule for all, and no early stopping: costs are then comparable and no method trains longer.
    options = replace(
        case.settings.options, max_epochs=epochs, patience=None, schedule="cosine", warmup_epochs=0, keep="best"
    )
    settings = replace(case.settings, options=options)
    if method == "plain":
        return _plain(case, settings, case.task.y, seed)
    if method == "preprocess":
        start = time.process_time()
        targets = enforced_targets(case.task)
        before = time.process_time() - start
        found = _plain(case, settings, targets, seed)
        return replace(found, seconds=found.seconds + before)
    if method == "postprocess (MAP)":
        found = _plain(case, settings, case.task.y, seed)
        answer = found.answer
        return replace(found, answer=lambda x: moved(case.task, x.numpy(), answer(x).numpy()), module=None)
    if method == "smle":
        return _corrected(case, settings, seed)
    if method.startswith("smle"):
        return _learned(case, _preset(case, settings), seed)
    return _layered(method, case, settings, seed)


# --- with a layer, or none


def _plain(case: Case, settings: Settings, targets: Array, seed: int) -> Trained:
    start = time.process_time()
    network, epochs = train_plain(case.task, settings, targets, seed=seed)
    return Trained(network, network, time.process_time() - start, epochs)


def _layered(method: str, case: Case, settings: Settings, seed: int) -> Trained:
    """Train with a layer all the way; one with an optimization per row in the last epochs only, at a tenth the rate."""
    task, options, m = case.task, settings.options, case.task.y.shape[1]
    shift, size = np.zeros(m), 1.0
    if method.startswith("projection"):
        first = replace(options, max_epochs=max(options.max_epochs - _LATE, 1))
        plain = train_plain(task, replace(settings, options=first), task.y, seed=seed)[0].requires_grad_(True)
        assert isinstance(plain, nn.Sequential)
        body, last = plain
        options = replace(options, max_epochs=_LATE, final_epochs=0, learning_rate=options.learning_rate / 10)
        spread = float(np.sqrt(task.y.var(axis=0).mean()))
    else:
        if not task.has_labels:
            shift, size = task.y.mean(axis=0), float(np.sqrt(task.y.var(axis=0).mean()))
        spread = size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            body = settings.backbone.build(task.X)
            last = nn.Linear(settings.backbone.embedding, m)
    assert isinstance(last, nn.Linear)
    network = guarded(method, case, body, last, shift=shift, size=size)

    def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
        if task.has_labels:
            return nn.functional.binary_cross_entropy_with_logits(predicted, wanted)
        return ((predicted - wanted) ** 2).mean() / spread**2

    X, y = (torch.tensor(part, dtype=torch.float32) for part in (task.X, task.y))
    count = len(X) - int(len(X) * options.validation_fraction)
    start = time.process_time()
    history = train(
        network, X[:count], y[:count], loss=loss, options=options, seed=seed, title="peer",
        validation=(X[count:], y[count:]),
    )  # fmt: skip
    seconds = time.process_time() - start
    network.fold()
    return Trained(network, network, seconds, len(history.loss))


# --- safe networks


def _preset(case: Case, shared: Settings) -> Settings:
    """Return the paper's way to enforce (PDCG, its bounds, no refit) with the backbone and the epochs of the others."""
    benchmark = "classification" if case.task.has_labels else "synthetic"
    paper = settings_of(benchmark, "paper", inputs=case.task.X.shape[1], outputs=case.task.y.shape[1])
    # The last epoch is kept, as in the paper: heads are nearly safe only, so the best epoch may be far from safe.
    options = replace(shared.options, keep="last")
    moves = case.kind == "input-dependent"
    assert paper.choices is not None
    # Bounds that move with the inputs where the rules do, and a gate: no single g obeys the rules of doses for all x.
    choices = replace(paper.choices, gate=paper.choices.gate or moves)
    return replace(paper, backbone=shared.backbone, options=options, linear=paper.linear or moves, choices=choices)


def _corrected(case: Case, settings: Settings, seed: int) -> Trained:
    """Train the plain network, and put the certified head of the rules behind it: the default of the estimators."""
    plain = _plain(case, settings, case.task.y, seed)
    assert plain.module is not None
    start = time.process_time()
    network: SafeNetwork = correct(plain.module, case.task.specification, case.task.X)
    proved = network.eval().certificate_.check()
    facts = {"statements": len(proved), "proof_seconds": time.process_time() - start}
    return Trained(network, network, plain.seconds, plain.epochs, facts)


def _learned(case: Case, settings: Settings, seed: int) -> Trained:
    start = time.process_time()
    task = case.task
    network, history = train_safe(task, settings, targets_of(task, settings), settings.enforcement(), seed=seed)
    seconds = time.process_time() - start
    proved = certify(network).check()
    return Trained(
        network.eval(), network, seconds, len(history.loss),
        {"statements": len(proved), "proof_seconds": time.process_time() - start - seconds},
    )  # fmt: skip


# --- jobs


@dataclass(frozen=True)
class PeerJob:
    """All methods on one task with one seed.

    * `border`: points on the rules' borders (corners of the domain, where rules have none).
    * `rounds`: how often an answer is timed; 0: not at all. `exported`: methods that are exported to ONNX.
    """

    task: str
    seed: int
    epochs: int
    border: int
    rounds: int = 0
    exported: tuple[str, ...] = ()
    methods: tuple[str, ...] = METHODS

    @property
    def key(self) -> str:
        """A unique name that is safe as a file name."""
        return f"{self.task}_seed{self.seed}"


def solve(job: PeerJob) -> list[dict[str, Any]]:
    """Train and measure every method; one row each, failed ones included."""
    case = load_case(job.task)
    spec = case.task.specification
    border = border_of(spec, job.border, seed=job.seed)
    judge = Judge(spec)
    rows, trained = [], {}
    for method in job.methods:
        row: dict[str, Any] = {
            "task": job.task, "kind": case.kind, "standin": case.task.standin, "metric": case.task.metric,
            "seed": job.seed, "method": method,
        }  # fmt: skip
        try:
            found = train_method(method, case, seed=job.seed, epochs=job.epochs)
            rows.append(row | _measured(found, case, judge, border) | {"status": "done"})
            trained[method] = found
        except NotStatableError as error:
            rows.append(row | {"status": f"cannot state the rules: {error}"})
        except ImportError as error:
            rows.append(row | {"status": f"not installed: {error}"})
        except Exception as error:  # noqa: BLE001 - whatever a peer's code raises is a result about that peer
            rows.append(row | {"status": f"failed: {type(error).__name__}: {' '.join(str(error).split())[:160]}"})
    if job.rounds:
        costs = _costs(case, {name: found.answer for name, found in trained.items()}, rounds=job.rounds)
        for row in rows:
            row |= costs.get(row["method"], {})
    for row in rows:
        if row["method"] in trained and row["method"] in job.exported:
            row["onnx"] = _onnx(trained[row["method"]], case)
    return rows


def border_of(spec: Specification, count: int, *, seed: int) -> FloatArray:
    """Return about `count` float32 points on the borders of the rules' regions and within 3 ulps of them."""
    rng = np.random.default_rng(seed)
    rows = regions_of(spec).rows
    if not rows:
        return corner_points(spec, rng, count)
    return np.concatenate([border_points(spec, rng, max(1, count // len(rows)), row=row) for row in rows])


def _measured(trained: Trained, case: Case, judge: Judge, border: FloatArray) -> dict[str, Any]:
    task = case.task
    X = task.X_test.astype(np.float32)
    answers = trained.outputs(X)
    row: dict[str, Any] = {
        "score": task.score(answers.astype(np.float64)),
        "seconds_train": trained.seconds,
        "epochs": trained.epochs,
    }
    worst = 0.0
    for where, points, outputs in (("test", X, answers), ("border", border, trained.outputs(border))):
        judgment = judge.judge(points, outputs.astype(np.float32))
        row[f"violations_{where}"] = len(judgment.rows) / len(points)
        if len(judgment.rows) and judgment.margin is not None:
            worst = max(worst, float(-judgment.margin))
        if outputs.dtype == np.float64:
            row[f"violations_{where}_float64"] = len(judge.judge(points, outputs).rows) / len(points)
    return row | {"worst": worst} | trained.facts


# --- cost of an answer


def _costs(case: Case, answers: Mapping[str, Callable[[Tensor], Any]], *, rounds: int) -> dict[str, dict[str, float]]:
    """Return microseconds and ratios to the plain network by batch; a single row is one where a rule is active."""
    keep_memory()
    spec = case.task.specification
    X = case.task.X_test.astype(np.float32)
    ruled = np.zeros(len(X), dtype=bool)
    for _, active in Judge(spec).active(X):
        ruled |= active
    first = X[int(ruled.argmax())]
    costs: dict[str, dict[str, float]] = {name: {} for name in answers}
    for batch in BATCHES:
        rows = first[None] if batch == 1 else np.resize(X, (batch, X.shape[1]))
        x = torch.tensor(rows)
        calls = {name: asked(answer, x) for name, answer in answers.items()}
        slow = [name for name in calls if name.startswith(("postprocess", "projection"))]
        quick = {name: call for name, call in calls.items() if name not in slow}
        base = next(iter(quick))
        # The fastest round: the one that other work on the machine disturbed least.
        times = {name: min(t.seconds) for name, t in interleaved(quick, rounds=rounds, budget=10.0).items()}
        for name in slow:  # an optimization per row: seconds, not microseconds
            pair = interleaved({base: calls[base], name: calls[name]}, rounds=5, budget=0.5)
            times[name] = min(pair[name].seconds)
        for name, seconds in times.items():
            costs[name][f"microseconds_{batch}"] = seconds * 1e6
            costs[name][f"ratio_{batch}"] = seconds / times[base]
    return costs


# --- ONNX


def _onnx(trained: Trained, case: Case) -> str:
    """Say whether the method runs in onnxruntime with the same answers, for other rows than it was exported with."""
    if trained.module is None:
        return "no: an optimization per answer"
    X = case.task.X_test[:100].astype(np.float32)
    wanted = trained.outputs(X)
    reasons = []
    for write in (
        [_write_safe] if isinstance(trained.module, BoxNetwork | SafeNetwork) else [_write_exported, _write_traced]
    ):
        try:
            with tempfile.TemporaryDirectory() as folder, _silence():
                path = Path(folder) / "model.onnx"
                write(trained.module, path, torch.tensor(X[:7]))
                found = _served(path, X, case.task.specification)
        except ImportError as error:
            return f"not tried: {error}"
        except Exception as error:  # noqa: BLE001 - exporters raise what they like, and that is the result
            reasons.append(type(error).__name__)
            continue
        if case.task.has_labels:
            same = np.array_equal(found > 0 if found.dtype.kind in "biu" else found >= 0, wanted >= 0)
        else:
            same = found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-3, atol=1e-4)
        if same:
            return "yes"
        reasons.append("other answers")
    return f"no: {', '.join(dict.fromkeys(reasons))}"


def _write_safe(module: nn.Module, path: Path, example: Tensor) -> None:
    from smle.export import write_network

    if isinstance(module, SafeNetwork):
        module.to_onnx(path, monitor=False)
    else:
        assert isinstance(module, BoxNetwork)
        write_network(module, path, monitor=False)


def _write_exported(module: nn.Module, path: Path, example: Tensor) -> None:
    shapes = ({0: torch.export.Dim("batch", min=2, max=1 << 20)},)
    torch.onnx.export(module, (example,), str(path), dynamo=True, dynamic_shapes=shapes, verbose=False)


def _write_traced(module: nn.Module, path: Path, example: Tensor) -> None:
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    torch.onnx.export(
        module, (example,), str(path), dynamo=False, input_names=["x"], output_names=["y"], dynamic_axes=axes
    )


def _served(path: Path, X: FloatArray, spec: Specification) -> npt.NDArray[Any]:
    """Return the answers (rows, m) of a file; safe networks have an input per column and named outputs."""
    running = session(path)
    names = [item.name for item in running.get_inputs()]
    if names != list(spec.columns):
        found: npt.NDArray[Any] = running.run(None, {names[0]: X})[0]
        return found
    parts = running.run(list(spec.targets), {name: X[:, [k]] for k, name in enumerate(names)})
    return np.concatenate([np.asarray(part).reshape(len(X), -1) for part in parts], axis=1)


@contextlib.contextmanager
def _silence() -> Any:
    """Keep exporters from writing pages about what they cannot do."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with quietly():
            yield
    finally:
        logging.disable(level)
