"""Runs that are killed, and runs of two processes, in processes of their own."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from support import killed_run, two_processes
from support.processes import environment


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, killed_run.__file__, *arguments], env=environment())


def test_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    checkpoint, result = tmp_path / "checkpoint", tmp_path / "result"
    expected = killed_run.main(None, slowly=False)
    process = start(str(checkpoint), str(result), "--wait")
    while not checkpoint.exists():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    time.sleep(random.uniform(0.0, 0.5))  # somewhere within a later epoch
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert checkpoint.exists()
    assert not result.exists()
    assert start(str(checkpoint), str(result)).wait() == 0
    weights = load_file(result)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


def test_two_processes_end_with_one_certified_model(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = [*launcher, "--nproc-per-node=2", two_processes.__file__, str(tmp_path)]
    subprocess.run(command, env=environment(), check=True, timeout=1200)
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert max(report["wrapped"] for report in reports) < 1e-4
    for kind in ("safe", "box"):
        first, second = (report[kind] for report in reports)
        assert first == second
        _, alone = two_processes.run(kind)
        np.testing.assert_allclose(first["losses"], alone, rtol=0.02)  # the same batches, summed in another order
        assert (tmp_path / f"{kind}.checkpoint").exists()


@pytest.mark.audit
def test_two_processes_of_lightning(tmp_path: Path) -> None:
    """They train plainly, and through the head; weights are the same in both, and answers obey."""
    pytest.importorskip("lightning")
    script = Path(two_processes.__file__).with_name("lightning_processes.py")
    subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment(), check=True, timeout=600)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["False"] != first["True"]
