"""Other methods on the same tasks: accuracy, exact violations, what is guaranteed, and what it costs.

The full run installs the peers into an environment of its own, in the folder that SMLE_PEERS names, else one in the
user's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from studies.bench.peer_env import PEERS, prepare
from studies.bench.peer_layers import task_names
from studies.bench.peer_methods import BATCHES, GUARANTEES, METHODS, PeerJob, solve
from studies.experiments.runner import solve_all
from studies.harness import Table, bench, mean_interval

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
    rows = frame(solve_all(wanted, solve, folder, n_jobs=jobs).rows)
    passed |= _passed(rows)
    kinds = [kind for kind in _TITLES if (rows["kind"] == kind).any()]
    summaries = [_summary(kind, rows[rows["kind"] == kind]) for kind in kinds]
    return (*summaries, _by_task(rows), _installs(installed))


# --- statistics


_MEASURED = (
    "score", "cpu_train", "epochs", "worst", "violations_test", "violations_border", "onnx",
    *(f"ratio_{batch}" for batch in BATCHES),
)  # fmt: skip


def frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return results as a table; `training` is the cost of an epoch against the plain network's in the same run."""
    table = pd.DataFrame(rows)
    table = table.reindex(columns=list(dict.fromkeys([*table.columns, *_MEASURED])))
    table["done"], table["training"] = table["status"] == "done", table["cpu_train"] / table["epochs"]
    plain = table[table["done"] & (table["method"] == "plain")].set_index(["task", "seed"])["training"]
    table["training"] /= plain.reindex(pd.MultiIndex.from_frame(table[["task", "seed"]])).to_numpy()
    return table


def _done(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    return rows[rows["done"] & (rows["method"] == method)]


def _better(rows: pd.DataFrame, every: pd.DataFrame) -> str:
    """Say what a method does better than smle's default on the same tasks and seeds."""
    pairs = rows.merge(_done(every, _OURS), on=["task", "seed"], suffixes=("", "_ours"))
    if not len(pairs):
        return ""
    found = []
    gains = (pairs["score"] - pairs["score_ours"]).groupby(pairs["seed"]).mean()
    mean, half = mean_interval(gains.tolist())
    if mean > (half if np.isfinite(half) else 0.0):
        found.append(f"accuracy (+{mean:.3f})")
    what = {"training": "training cost", **{f"ratio_{batch}": f"answers at batch {batch:,}" for batch in BATCHES}}
    for field, words in what.items():
        if rows[field].median() < 0.95 * pairs[f"{field}_ours"].median():
            found.append(words)
    return ", ".join(found)


# --- tables


def _summary(kind: str, rows: pd.DataFrame) -> Table:
    metric = "R2" if rows["metric"].iloc[0] == "r2" else "average class accuracy"
    tasks, seeds = sorted(set(rows["task"])), rows["seed"].nunique()
    lines = [_line(method, rows, len(tasks)) for method in METHODS if (rows["method"] == method).any()]
    standin = " The data are generated stand-ins, not the paper's." if rows["standin"].any() else ""
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


def _line(method: str, every: pd.DataFrame, tasks: int) -> tuple[object, ...]:
    rows, ours = _done(every, method), _done(every, _OURS)
    if not len(rows):
        return (method, _reason(every, method), f"0 of {tasks}", *[""] * 4, GUARANTEES[method], *[""] * 6)
    costs = (rows[field].median() for field in ("training", *(f"ratio_{batch}" for batch in BATCHES)))
    ours = ours[ours["task"].isin(rows["task"])]
    exported = rows["onnx"].dropna()
    return (
        f"**{method}**" if method == _OURS else method,
        _score(rows.groupby("seed")["score"].mean()),
        f"{rows['task'].nunique()} of {tasks}",
        f"{ours['score'].mean():.4f}" if len(ours) else "",
        *_violations(rows),
        GUARANTEES[method],
        *("" if np.isnan(cost) else f"{cost:.2f}x" for cost in costs),
        exported.iloc[0] if len(exported) else "not tried",
        "" if method == _OURS else _better(rows, every),
    )


def _reason(rows: pd.DataFrame, method: str) -> str:
    return str(rows.loc[rows["method"] == method, "status"].iloc[0])


def _score(scores: Iterable[float]) -> str:
    mean, half = mean_interval(list(scores))
    return f"{mean:.4f}" + (f" ± {half:.4f}" if np.isfinite(half) else "")


def _violations(rows: pd.DataFrame) -> tuple[object, ...]:
    """Return the shares of test and border points that violate, and by how much at most."""
    return (*(f"{rows[f'violations_{where}'].mean():.2%}" for where in ("test", "border")), float(rows["worst"].max()))


def _by_task(rows: pd.DataFrame) -> Table:
    lines: list[tuple[object, ...]] = []
    for (task, method), part in rows.groupby(["task", "method"], sort=False):
        found = part[part["done"]]
        score = _score(found["score"]) if len(found) else _reason(part, str(method))
        lines.append((task, method, score, *(_violations(found) if len(found) else [""] * 3)))
    return Table(
        "Task by task",
        ("task", "method", "R2 or accuracy", "test points that violate", "border points that violate", "worst"),
        tuple(sorted(lines, key=lambda line: str(line[0]))),
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


def _passed(rows: pd.DataFrame) -> dict[str, bool]:
    """State what must hold: no exact violation of a certified network, and doses level with what it must match."""
    found = {}
    for method in (name for name in METHODS if name.startswith(_OURS)):
        mine = rows[rows["method"] == method]
        if len(mine):
            clean = mine["done"] & (mine["violations_test"] == 0) & (mine["violations_border"] == 0)
            what = f"{method}: certified on all {len(mine)} runs, no violation on any point"
            found[what] = bool(clean.all())
    doses = rows[rows["done"] & (rows["kind"] == "input-dependent")]
    mean = doses.groupby("method")["score"].mean()
    for name in (name for name in ("postprocess (MAP)", "PiShield") if name in mean):
        what = f"doses: R2 {mean[_OURS]:.4f}, level with {name}, {mean[name]:.4f}, to {_LEVEL}"
        found[what] = bool(mean[_OURS] >= mean[name] - _LEVEL)
    return found
