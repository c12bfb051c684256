"""One of two processes that train alone and together: `python -m studies.bench.scale_processes RANK FOLDER MODE`.

The first process also trains alone, in turns with training together, and prints rows per second as JSON.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from smle.nn import SafeNetwork
from smle.rules import CNF, Clause, Literal, Number, NumericInput, Polytope, Row, Rule, Specification, linear
from smle.training.loop import TrainingOptions, train

_INPUTS, _EMBEDDING = 16, 64
_WAIT = timedelta(minutes=10)


def specification() -> Specification:
    """Return three rules over half-spaces, four outputs."""
    rules = []
    for i in range(3):
        region = Polytope((Row(linear({i: Fraction(1)}), Fraction(0)),))
        clause = Clause((Literal(linear({i: Fraction(1), 3: Fraction(1)}), (), Fraction(1)),))
        rules.append(Rule(f"rule {i}", (region,), CNF((clause,)), "...", "..."))
    return Specification(
        tuple(NumericInput(f"x{i}", Fraction(-1), Fraction(1)) for i in range(_INPUTS)),
        tuple(Number(f"y{i}") for i in range(4)),
        tuple(rules),
    )


def measure(rank: int, folder: Path, *, quick: bool) -> dict[str, dict[str, list[float]]]:
    """Return rows per second by width and by way of training, a number per round."""
    found: dict[str, dict[str, list[float]]] = {}
    for width in (32,) if quick else (128, 512, 1024):
        rates: dict[str, list[float]] = {"1 process": [], "2 processes": []}
        if not quick:
            rates["1 process, 2 threads"] = []
        for turn in range(1 if quick else 3):
            if rank == 0:
                rates["1 process"].append(_rate(width, 1, quick=quick))
                if not quick:
                    rates["1 process, 2 threads"].append(_rate(width, 2, quick=quick))
            meeting = folder / f"{width}-{turn}"
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=_WAIT)
            rates["2 processes"].append(_rate(width, 1, quick=quick))
            dist.destroy_process_group()
        found[str(width)] = rates
    return found


def _rate(width: int, threads: int, *, quick: bool) -> float:
    """Train, with the other process if there is a group, and return the rows per second of all together."""
    torch.manual_seed(0)
    rows, epochs = (2048, 1) if quick else (16_384, 3)
    X = 2 * torch.rand(rows + 64, _INPUTS) - 1
    y = torch.stack([X[:, i] * X[:, i + 4] for i in range(4)], dim=1)
    body = nn.Sequential(
        nn.Linear(_INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, _EMBEDDING)
    )
    network = SafeNetwork(body, specification(), embedding=_EMBEDDING)
    options = TrainingOptions(
        batch_size=1024, max_epochs=epochs, patience=None, keep="last", threads=threads, verbose=False, device="cpu"
    )
    history = train(
        network, X[:rows], y[:rows], loss=nn.functional.mse_loss, options=options,
        validation=(X[rows:], y[rows:]),
    )  # fmt: skip
    return rows * epochs / history.seconds


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), Path(sys.argv[2]), quick=sys.argv[3] == "quick")))
