"""Scale: cost curves with fitted exponents, a million exclusions from rules to check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from smle.heads.box.network.assurance import certify, verify
from smle.heads.box.network.box_network import BoxNetwork
from studies.bench.scale_million import million
from studies.bench.scale_subjects import AXES, Axis, Subject
from studies.harness import Table, bench, interleaved

_OPERATIONS = ("setup", "training step", "verification", "certificate", "exact check")
_BATCH = 256
_ROUNDS, _BUDGET = 5, 10.0
"""Rounds at most, and seconds after which the sizes of one operation have had their share."""
_FITTED = 4
"""An exponent is fitted to so many of the largest sizes: below them what does not grow with the size dominates."""


@bench("Scale")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Run all parts; `quick` uses small sizes and one round."""
    whole = million(quick, passed)  # first: the peak memory of the process is then its own
    curves = [_curve(axis, axis.quick if quick else axis.sizes, rounds=1 if quick else _ROUNDS) for axis in AXES]
    return (*whole, _exponents(curves), *(curve.table() for curve in curves))


# --- cost curves


@dataclass(frozen=True)
class _Curve:
    """CPU seconds of each operation and certificate sizes (bytes) along one axis."""

    axis: Axis
    sizes: tuple[int, ...]
    seconds: dict[str, list[float]]
    bytes: tuple[int, ...]

    def table(self) -> Table:
        columns = (self.axis.name, *(f"{name} (ms)" for name in _OPERATIONS), "certificate (kB)")
        rows = tuple(
            (size, *(self.seconds[name][i] * 1e3 for name in _OPERATIONS), self.bytes[i] / 1e3)
            for i, size in enumerate(self.sizes)
        )
        return Table(f"Cost against {self.axis.name}", columns, rows, self.axis.setting)

    def fit(self, operation: str) -> str:
        """Return the exponent of cost ~ size^exponent, with its standard error."""
        sizes, seconds = (np.log(values[-_FITTED:]) for values in (self.sizes, self.seconds[operation]))
        line = stats.linregress(sizes, seconds)
        return f"{line.slope:.2f} ± {line.stderr:.2f}"


def _curve(axis: Axis, sizes: tuple[int, ...], *, rounds: int) -> _Curve:
    """Measure all sizes in turns, so that a busy machine slows them all."""
    prepared = [_operations(axis.subject(size)) for size in sizes]
    seconds: dict[str, list[float]] = {}
    for name in _OPERATIONS:
        calls = {str(size): operations[name] for size, (operations, _) in zip(sizes, prepared, strict=True)}
        times = interleaved(calls, rounds=rounds, budget=_BUDGET, clock=time.process_time)
        # The least of all rounds: what else the machine does only ever adds.
        seconds[name] = [max(min(times[size].seconds), 1e-7) for size in calls]
    return _Curve(axis, sizes, seconds, tuple(size for _, size in prepared))


def _operations(subject: Subject) -> tuple[dict[str, Callable[[], object]], int]:
    """Return what is measured for a subject, and the size of its certificate."""
    trained, frozen = subject.network(), subject.network()
    frozen.eval()
    certificate = certify(frozen)
    operations: dict[str, Callable[[], object]] = {
        "setup": subject.network,
        "training step": _training_step(trained, subject),
        "verification": lambda: verify(frozen),
        "certificate": lambda: certify(frozen),
        "exact check": certificate.check,
    }
    return operations, len(certificate.text) + len(certificate.block)


def _training_step(network: BoxNetwork, subject: Subject) -> Callable[[], None]:
    X, y = subject.rows(_BATCH)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    network.train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = nn.functional.mse_loss(network(X), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _exponents(curves: Sequence[_Curve]) -> Table:
    return Table(
        "Cost curves: fitted exponents",
        ("size of", "from", "to", *_OPERATIONS),
        tuple((c.axis.name, c.sizes[0], c.sizes[-1], *(c.fit(name) for name in _OPERATIONS)) for c in curves),
        f"cost ~ size^exponent ± standard error, fitted to the {_FITTED} largest sizes of each table below (fewer in a "
        "quick run); a step that hardly depends on a size has an exponent near 0. CPU seconds on one thread, the least "
        f"of up to {_ROUNDS} rounds over all sizes. 'Setup' finds cells and centers and builds the network; the "
        f"training step is forward, backward and Adam for {_BATCH} rows; 'certificate' proves, writes and, before "
        "it hands anything out, checks; the exact check is `Certificate.check()`.",
    )
