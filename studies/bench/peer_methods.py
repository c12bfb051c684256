"""Methods, trained on one case with one seed, and what is measured of them.

All have the same backbone, rows, epochs and order of rows. Measured are accuracy, exact violations, the cost of an
answer, and whether there is an ONNX form.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smle.heads.box.network.box_network import BoxNetwork
from smle.networks.onnx_export import write_network
from smle.networks.safe_network import SafeNetwork
from smle.regions.cells import regions_of
from smle.rules import Specification
from studies.bench.peer_layers import Case, NotStatableError, guarded, load_case
from studies.experiments.methods import Trained, corrected, postprocessed, train_papers, train_plainly
from studies.experiments.networks import Settings, fitted, train_plain, units_of
from studies.experiments.presets import settings_of
from studies.harness import Array, asked, interleaved, keep_memory, quietly, seeded
from tests.support.exported import session
from tests.support.sampling import Judge, border_points, corner_points

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
    "smle, published preset": "proved for all inputs, rounding included",
    "smle": "proved for all inputs, rounding included",
}
"""What each method promises, by its authors' own words; for smle the exact checker's."""

METHODS = tuple(GUARANTEES)


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
    if method == "smle, published preset":
        return train_papers(case.task, _preset(case, settings), seed)[0]
    if method not in ("plain", "preprocess", "postprocess (MAP)", "smle"):
        return _layered(method, case, settings, seed)
    plain = train_plainly(case.task, settings, None if method == "preprocess" else case.task.y, seed)
    if method == "postprocess (MAP)":
        return postprocessed(case.task, plain)
    if method == "smle":
        return corrected(case.task, plain)
    assert plain.module is not None
    return replace(plain, answer=plain.module)  # called as the other modules are


def _layered(method: str, case: Case, settings: Settings, seed: int) -> Trained:
    """Train with a layer all the way; one with an optimization per row in the last epochs only, at a tenth the rate."""
    task, options, m = case.task, settings.options, case.task.y.shape[1]
    shift, spread = units_of(task, settings, task.y)
    size = spread
    if method.startswith("projection"):
        shift, size = np.zeros(m), 1.0
        first = replace(options, max_epochs=max(options.max_epochs - _LATE, 1))
        plain = train_plain(task, replace(settings, options=first), task.y, seed=seed)[0].requires_grad_(True)
        assert isinstance(plain, nn.Sequential)
        body, last = plain
        options = replace(options, max_epochs=_LATE, final_epochs=0, learning_rate=options.learning_rate / 10)
    else:
        with seeded(seed):
            body = settings.backbone.build(task.X)
            last = nn.Linear(settings.backbone.embedding, m)
    assert isinstance(last, nn.Linear)
    with seeded(seed + 1):  # RAYEN draws a map of its own
        network = guarded(method, case, body, last, shift=shift, size=size)

    def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
        if task.has_labels:
            return nn.functional.binary_cross_entropy_with_logits(predicted, wanted)
        return ((predicted - wanted) ** 2).mean() / spread**2

    start = time.process_time()
    history = fitted(network, task.X, task.y, options, loss=loss, seed=seed, title="peer")
    facts = {"cpu_train": time.process_time() - start, "epochs": len(history.loss)}
    network.fold()
    return Trained(network, facts, network, rounded=True)


def _preset(case: Case, shared: Settings) -> Settings:
    """Return the paper's way to enforce, as its code does it, with the backbone and the epochs of the others."""
    benchmark = "classification" if case.task.has_labels else "synthetic"
    code = settings_of(benchmark, "published", inputs=case.task.X.shape[1], outputs=case.task.y.shape[1])
    assert code.choices is not None
    choices = replace(code.choices, first_phase="none")  # there is one property, and no other to begin from
    # The last epoch is kept: heads are nearly safe only, so the best epoch may be far from safe.
    options = replace(shared.options, keep="last")
    linear = code.linear or case.kind == "input-dependent"  # bounds move with the inputs where the rules do
    return replace(code, backbone=shared.backbone, options=options, linear=linear, choices=choices)


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


def border_of(spec: Specification, count: int, *, seed: int) -> Array:
    """Return about `count` float32 points on the borders of the rules' regions and within 3 ulps of them."""
    rng = np.random.default_rng(seed)
    rows = regions_of(spec).rows
    if not rows:
        return corner_points(spec, rng, count)
    return np.concatenate([border_points(spec, rng, max(1, count // len(rows)), row=row) for row in rows])


def _measured(trained: Trained, case: Case, judge: Judge, border: Array) -> dict[str, Any]:
    task = case.task
    X = task.X_test.astype(np.float32)
    answers = trained.outputs(X)
    row: dict[str, Any] = {"score": task.score(answers.astype(np.float64))}
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
    ways = [_write_safe] if isinstance(trained.module, BoxNetwork | SafeNetwork) else [_write_exported, _write_traced]
    reasons = []
    for write in ways:
        try:
            with tempfile.TemporaryDirectory() as folder, quietly():
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


def _write_safe(module: Any, path: Path, example: Tensor) -> None:
    """Write a safe network as it writes itself."""
    if isinstance(module, SafeNetwork):
        module.to_onnx(path, monitor=False)
    else:
        write_network(module, path, monitor=False)


def _write_exported(module: nn.Module, path: Path, example: Tensor) -> None:
    shapes = ({0: torch.export.Dim("batch", min=2, max=1 << 20)},)
    torch.onnx.export(module, (example,), str(path), dynamo=True, dynamic_shapes=shapes, verbose=False)


def _write_traced(module: nn.Module, path: Path, example: Tensor) -> None:
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    torch.onnx.export(
        module, (example,), str(path), dynamo=False, input_names=["x"], output_names=["y"], dynamic_axes=axes
    )


def _served(path: Path, X: Array, spec: Specification) -> Array:
    """Return the answers (rows, m) of a file; safe networks have an input per column and named outputs."""
    running = session(path)
    names = [item.name for item in running.get_inputs()]
    if names != list(spec.columns):
        found: Array = running.run(None, {names[0]: X})[0]
        return found
    parts = running.run(list(spec.targets), {name: X[:, [k]] for k, name in enumerate(names)})
    return np.concatenate([np.asarray(part).reshape(len(X), -1) for part in parts], axis=1)
