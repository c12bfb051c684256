"""Doses with limits that move with the inputs: smle beside methods that it must match."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from studies.bench.peer_env import prepare
from studies.bench.peer_measure import PeerJob
from studies.bench.peers import _done, _folder, _solved, _summary
from studies.harness import BenchResult

__all__ = ["run"]

_METHODS = ("plain", "preprocess", "postprocess (MAP)", "PiShield", "HardNet-style", "smle")
_LEVEL = 0.0005


def run(quick: bool = False) -> BenchResult:
    """Train every method with five seeds; `quick`: one seed, few epochs, no PiShield, which has to be installed."""
    methods = tuple(name for name in _METHODS if not (quick and name == "PiShield"))
    if not quick:
        prepare(_folder() / "environment")
    epochs, border, seeds = (2, 100, 1) if quick else (20, 1000, 5)
    jobs = [PeerJob("insulin", seed, epochs, border, methods=methods) for seed in range(seeds)]
    with tempfile.TemporaryDirectory() as folder:
        rows = _solved(jobs, Path(folder))
    table = _summary("input-dependent", rows)
    mean = {name: float(np.mean([row["score"] for row in _done(rows, name)])) for name in methods if _done(rows, name)}
    ours, passed = mean["smle"], {}
    for name in ("postprocess (MAP)", "PiShield"):
        if name in mean:
            passed[f"R2 {ours:.4f}: level with {name}, {mean[name]:.4f}, to {_LEVEL}"] = ours >= mean[name] - _LEVEL
    broken = sum(row[f"violations_{where}"] for row in _done(rows, "smle") for where in ("test", "border"))
    passed["no exact violation by smle"] = broken == 0
    return BenchResult("doses", "Doses: limits that move with the inputs", (table,), passed=passed, quick=quick)
