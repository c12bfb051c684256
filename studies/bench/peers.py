"""Other methods on the same tasks: accuracy, exact violations, what is guaranteed, and what it costs.

The full run installs the peers into an environment of its own, in the folder that SMLE_PEERS names, else one in the
user's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.bench.peer_env import PEERS, prepare
from studies.bench.peer_layers import task_names
from studies.bench.peer_methods import BATCHES, GUARANTEES, METHODS, PeerJob, solve
from studies.experiments.runner import solve_all
from studies.harness import Table, bench, mean_interval

Rows = list[dict[str, Any]]

_SEEDS, _EPOCHS, _BORDER = 5, 20, 1000
_TIMED = ("n4-hard-P6", "CHD-49-0.3", "Standin-0.3", "insulin")
_PACKAGED = ("projection layer (cvxpylayers)", "Pi-net", "RAYEN", "PiShield")
_OURS, _LEVEL = "smle", 0.0005
_TITLES = {
    "synthetic": "The paper's synthetic tasks: linear rules on part of the inputs",
    "classification": "The paper's classification tasks: labels that are never predicted together",
    "input-dependent": "Doses: limits that depend on the inputs",
}


@bench("Peers: other methods on the same tasks", default_threads=True)
def run(quick: bool, passed: dict[str, bool], jobs: int = 1, folder: str | Path | None = None) -> Iterable[Table]:
    """Compare all methods; `quick`: one small task, methods that need no installation.

    Raises:
        TrainingError: If a job failed as a whole.
    """
    installed: dict[str, str] = {}
    if quick:
        methods = tuple(name for name in METHODS if name not in _PACKAGED)
        wanted = [PeerJob("quick", 0, 4, 200, 3, (_OURS,), methods)]
    else:
        installed = prepare()
        wanted = [
            PeerJob(task, seed, _EPOCHS, _BORDER, *((100, METHODS) if seed == 0 and task in _TIMED else ()))
            for seed in range(_SEEDS)
            for task in task_names()
        ]
    rows = solve_all(wanted, solve, folder, n_jobs=jobs).rows
    passed |= _passed(rows)
    kinds = [kind for kind in _TITLES if any(row["kind"] == kind for row in rows)]
    summaries = [_summary(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]
    return (*summaries, _by_task(rows), _installs(installed))


# --- statistics


def _done(rows: Iterable[dict[str, Any]], method: str) -> Rows:
    return [row for row in rows if row["method"] == method and row["status"] == "done"]


def _by_seed(rows: Rows, field: str) -> dict[int, float]:
    """Return the mean over tasks, per seed."""
    seeds = sorted({row["seed"] for row in rows})
    return {seed: float(np.mean([row[field] for row in rows if row["seed"] == seed])) for seed in seeds}


def _training(rows: Rows, every: Rows) -> float:
    """Return the cost of an epoch against the plain network's, the median over tasks and seeds."""
    plain = {(row["task"], row["seed"]): row["cpu_train"] / row["epochs"] for row in _done(every, "plain")}
    ratios = [row["cpu_train"] / row["epochs"] / plain[row["task"], row["seed"]] for row in rows]
    return float(np.median(ratios))


def _ratio(rows: Rows, batch: int) -> float | None:
    found = [row[f"ratio_{batch}"] for row in rows if f"ratio_{batch}" in row]
    return float(np.median(found)) if found else None


def _better(rows: Rows, every: Rows) -> str:
    """Say what a method does better than smle's default on the same tasks and seeds."""
    ours = {(row["task"], row["seed"]): row for row in _done(every, _OURS)}
    pairs = [(row, ours[row["task"], row["seed"]]) for row in rows if (row["task"], row["seed"]) in ours]
    if not pairs:
        return ""
    found = []
    gains = [{"seed": a["seed"], "gain": a["score"] - b["score"]} for a, b in pairs]
    mean, half = mean_interval(list(_by_seed(gains, "gain").values()))
    if mean > (half if np.isfinite(half) else 0.0):
        found.append(f"accuracy (+{mean:.3f})")
    mine = [b for _, b in pairs]
    if _training(rows, every) < 0.95 * _training(mine, every):
        found.append("training cost")
    for batch in BATCHES:
        theirs, own = _ratio(rows, batch), _ratio(mine, batch)
        if theirs is not None and own is not None and theirs < 0.95 * own:
            found.append(f"answers at batch {batch:,}")
    return ", ".join(found)


# --- tables


def _summary(kind: str, rows: Rows) -> Table:
    metric = "R2" if rows[0]["metric"] == "r2" else "average class accuracy"
    tasks = sorted({row["task"] for row in rows})
    seeds = len({row["seed"] for row in rows})
    lines = [_line(method, rows, len(tasks)) for method in METHODS if any(row["method"] == method for row in rows)]
    standin = " The data are generated stand-ins, not the paper's." if any(row["standin"] for row in rows) else ""
    return Table(
        _TITLES[kind],
        (
            "method", metric, "tasks", "smle on these tasks", "test points that violate",
            "border points that violate", "worst violation", "guarantee for all inputs", "training / plain",
            "answer / plain, batch 1", "batch 256", "batch 8,192", "ONNX", "better than smle in",
        ),
        tuple(lines),
        f"Tasks: {', '.join(tasks)}; {seeds} seed{'s' * (seeds > 1)}, mean and 95 % interval over seeds.{standin} Same "
        "backbone, rows and epochs for all. Violations are judged exactly, on float32 outputs and without tolerance; "
        "border points lie on the border of a rule's region or within 3 floats of it (corners of the domain where "
        "rules have no border). Methods that know only constraints which hold everywhere are applied where a float32 "
        "comparison, as their users would write it, says that a rule is active: where that comparison is wrong by a "
        "rounding error the plain output passes, which is what the worst violations on the border are. Post-processing "
        "gives float64; its violations come from the conversion to float32. Training is processor time per epoch; the "
        "projection layer is trained in the last two epochs only, and its ratio is that of those. Answers: torch, one "
        "thread, the fastest of up to 100 rounds taken in turns; the single row is one where a rule is active.",
    )  # fmt: skip


def _line(method: str, every: Rows, tasks: int) -> tuple[object, ...]:
    rows = _done(every, method)
    if not rows:
        return (method, _reason(every, method), f"0 of {tasks}", *[""] * 4, GUARANTEES[method], *[""] * 6)
    ratios = [_ratio(rows, batch) for batch in BATCHES]
    stated = {row["task"] for row in rows}
    ours = [row["score"] for row in _done(every, _OURS) if row["task"] in stated]
    return (
        f"**{method}**" if method == _OURS else method,
        _score(list(_by_seed(rows, "score").values())),
        f"{len(stated)} of {tasks}",
        f"{float(np.mean(ours)):.4f}" if ours else "",
        *_violations(rows),
        GUARANTEES[method],
        f"{_training(rows, every):.2f}x",
        *("" if ratio is None else f"{ratio:.2f}x" for ratio in ratios),
        next((row["onnx"] for row in rows if "onnx" in row), "not tried"),
        "" if method == _OURS else _better(rows, every),
    )


def _reason(rows: Rows, method: str) -> str:
    return next(str(row["status"]) for row in rows if row["method"] == method)


def _score(scores: Sequence[float]) -> str:
    mean, half = mean_interval(scores)
    return f"{mean:.4f}" + (f" ± {half:.4f}" if np.isfinite(half) else "")


def _violations(rows: Rows) -> tuple[object, ...]:
    """Return the shares of test and border points that violate, and by how much at most."""
    shares = (f"{float(np.mean([row[f'violations_{where}'] for row in rows])):.2%}" for where in ("test", "border"))
    return (*shares, max(row["worst"] for row in rows))


def _by_task(rows: Rows) -> Table:
    lines: list[tuple[object, ...]] = []
    for task, method in sorted({(row["task"], row["method"]): None for row in rows}, key=lambda pair: pair[0]):
        part = [row for row in rows if row["task"] == task]
        found = _done(part, method)
        score = _score([row["score"] for row in found]) if found else _reason(part, method)
        lines.append((task, method, score, *(_violations(found) if found else [""] * 3)))
    return Table(
        "Task by task",
        ("task", "method", "R2 or accuracy", "test points that violate", "border points that violate", "worst"),
        tuple(lines),
        "A method that cannot state the rules of a task says why: a projection needs a convex set, HardNet's closed "
        "form a matrix of full row rank, RAYEN a set that is the same for all inputs.",
    )


def _installs(installed: dict[str, str]) -> Table:
    lines = [(peer.package, installed.get(peer.package, "quick runs install nothing")) for peer in PEERS]
    lines += [
        ("HardNet-style", "written here from the published formula"),
        ("smle, preprocess, postprocess", "not released yet: from its repository"),
    ]
    return Table(
        "Packages",
        ("package", "version"),
        tuple(lines),
        "From PyPI, into an environment of the bench's own that sees this Python's torch; nothing is added to smle's.",
    )


def _passed(rows: Rows) -> dict[str, bool]:
    """State what must hold: no exact violation of a certified network, and doses level with what it must match."""
    found = {}
    for method in (name for name in METHODS if name.startswith(_OURS)):
        mine = [row for row in rows if row["method"] == method]
        if not mine:
            continue
        clean = all(row["status"] == "done" and row["violations_test"] == row["violations_border"] == 0 for row in mine)
        found[f"{method}: certified on all {len(mine)} runs, no violation on any point"] = clean
    doses = [row for row in rows if row["kind"] == "input-dependent"]
    mean = {name: float(np.mean([row["score"] for row in own])) for name in METHODS if (own := _done(doses, name))}
    for name in (name for name in ("postprocess (MAP)", "PiShield") if name in mean):
        what = f"doses: R2 {mean[_OURS]:.4f}, level with {name}, {mean[name]:.4f}, to {_LEVEL}"
        found[what] = mean[_OURS] >= mean[name] - _LEVEL
    return found
