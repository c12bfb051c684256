"""Scale: cost curves with fitted exponents, a million exclusions from rules to check."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from smle.heads.box.network.assurance import certify, verify
from smle.heads.box.network.box_network import BoxNetwork
from smle.nn import SafeNetwork
from smle.rules import Specification
from smle.rules.helpers import mutually_exclusive, rule
from smle.training.loop import TrainingOptions, train
from studies.experiments.networks import adam_step, relu_layers
from studies.harness import Array, Table, bench, interleaved, seeded

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
    tables, exponents = zip(*(_curve(axis, quick) for axis in AXES), strict=True)
    fitted = Table(
        "Cost curves: fitted exponents",
        ("size of", "from", "to", *_OPERATIONS),
        exponents,
        f"cost ~ size^exponent ± standard error, fitted to the {_FITTED} largest sizes of each table below (fewer in a "
        "quick run); a step that hardly depends on a size has an exponent near 0. CPU seconds on one thread, the least "
        f"of up to {_ROUNDS} rounds over all sizes. 'Setup' finds cells and centers and builds the network; the "
        f"training step is forward, backward and Adam for {_BATCH} rows; 'certificate' proves, writes and, before "
        "it hands anything out, checks; the exact check is `Certificate.check()`.",
    )
    return (*whole, fitted, *tables)


# --- cost curves


def _curve(axis: Axis, quick: bool) -> tuple[Table, tuple[object, ...]]:
    """Measure all sizes in turns, so that a busy machine slows them all; return the table and fitted exponents."""
    sizes = axis.quick if quick else axis.sizes
    prepared = [_operations(axis.subject(size)) for size in sizes]
    seconds: dict[str, list[float]] = {}
    for name in _OPERATIONS:
        calls = {str(size): operations[name] for size, (operations, _) in zip(sizes, prepared, strict=True)}
        times = interleaved(calls, rounds=1 if quick else _ROUNDS, budget=_BUDGET, clock=time.process_time)
        # The least of all rounds: what else the machine does only ever adds.
        seconds[name] = [max(min(times[size].seconds), 1e-7) for size in calls]
    rows = [
        (size, *(own[i] * 1e3 for own in seconds.values()), written / 1e3)
        for i, (size, (_, written)) in enumerate(zip(sizes, prepared, strict=True))
    ]
    columns = (axis.name, *(f"{name} (ms)" for name in _OPERATIONS), "certificate (kB)")
    lines = [stats.linregress(*(np.log(part[-_FITTED:]) for part in (sizes, own))) for own in seconds.values()]
    fits = (f"{line.slope:.2f} ± {line.stderr:.2f}" for line in lines)
    return Table(f"Cost against {axis.name}", columns, tuple(rows), axis.setting), (
        axis.name,
        sizes[0],
        sizes[-1],
        *fits,
    )


def _operations(subject: Subject) -> tuple[dict[str, Callable[[], object]], int]:
    """Return what is measured for a subject, and the size of its certificate."""
    trained, frozen = subject.network(), subject.network()
    frozen.eval()
    certificate = certify(frozen)
    operations: dict[str, Callable[[], object]] = {
        "setup": subject.network,
        "training step": adam_step(trained.train(), *subject.rows(_BATCH), rate=1e-4),
        "verification": lambda: verify(frozen),
        "certificate": lambda: certify(frozen),
        "exact check": certificate.check,
    }
    return operations, len(certificate.text) + len(certificate.block)


# --- what grows: specifications and networks along one axis


_SMALL = 1e-3  # of the heads' weights: safe without training


@dataclass(frozen=True, eq=False)
class Subject:
    """A specification and the network that is trained under it."""

    spec: Specification
    embedding: int
    bounds: str = "constant"

    def network(self) -> BoxNetwork:
        """Return a new network with random weights, the same each time; those of the heads are small, and so safe."""
        with seeded(0):
            d, n = len(self.spec.columns), self.embedding
            backbone = nn.Sequential(*relu_layers(d, 64), nn.Linear(64, n))
            network = BoxNetwork(backbone, self.spec, embedding=n, bounds=self.bounds)
        with torch.no_grad():
            network.heads.raw_weight.mul_(_SMALL)
        return network

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """Return inputs of the domain [-1, 1] and targets."""
        generator = torch.Generator().manual_seed(1)
        X = 2 * torch.rand(count, len(self.spec.columns), generator=generator) - 1
        return X, torch.randn(count, len(self.spec.targets), generator=generator)


@dataclass(frozen=True)
class Axis:
    """A size that grows, and the subject of each size."""

    name: str
    setting: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    subject: Callable[[int], Subject]


Rules = dict[str, "str | tuple[str, str]"]
"""What must hold by the name of a rule, with a condition or without."""


def _stated(rules: Rules, embedding: int = 64, bounds: str = "constant", inputs: int = 8) -> Subject:
    names = {f"x{i}": (-1, 1) for i in range(inputs)}
    return Subject(Specification.build(inputs=names, outputs=["y0", "y1", "y2", "y3"], rules=rules), embedding, bounds)


def _mixed(count: int, literals: int = 1) -> str:
    """Return clauses over pairs of four outputs, all different; zero satisfies them."""
    rng, clauses = np.random.default_rng(0), []
    for i in range(count):
        parts = []
        for _ in range(literals):
            # The first factor is positive: two literals that cover everything would make a clause that is left out.
            h, k = sorted(rng.choice(4, size=2, replace=False))
            parts.append(f"{rng.integers(1, 3)} * y{h} + ({rng.choice([-2, -1, 1, 2])}) * y{k} <= {(512 + i) / 256}")
        clauses.append(f"({' or '.join(parts)})")
    return " and ".join(clauses)


def _wide(embedding: int, bounds: str) -> Subject:
    return _stated({"half": ("x0 <= 0.5", _mixed(4))}, embedding, bounds)


def _slabs(count: int) -> Subject:
    """Return rules over disjoint slabs of the first input."""
    ends = [2 * i / count - 1 for i in range(count + 1)]
    slabs = enumerate(itertools.pairwise(ends))
    return _stated({f"slab {i}": (f"{low} <= x0 < {high}", f"-2 <= y{i % 4} <= 2") for i, (low, high) in slabs})


def _overlaps(cells: int) -> Subject:
    """Return rules over half-spaces of different inputs: each set of them is a cell."""
    return _stated({f"half {i}": (f"x{i} <= 0", f"-2 <= y{i % 4} <= 2") for i in range(cells.bit_length() - 1)})


def _many_inputs(count: int) -> Subject:
    form = " ".join(f"{'+' if i % 2 else '-'} x{i}" for i in range(count))
    return _stated({"oblique": (f"{form} <= 0.5", _mixed(4))}, 64, "affine", count)


def never_together(labels: int, pairs: Array, inputs: int, reach: int = 1) -> Specification:
    """Return labels with exclusions everywhere; inputs lie in [-reach, reach]."""
    return Specification.build(
        inputs={f"x{i}": (-reach, reach) for i in range(inputs)},
        labels=[f"label {i}" for i in range(labels)],
        rules=[rule("never together", then=mutually_exclusive(pairs))],
    )


def exclusive_labels(labels: int, embedding: int, *, inputs: int = 8, reach: int = 1) -> Subject:
    """Return labels of which at most one applies."""
    pairs = np.stack(np.triu_indices(labels, 1), axis=1).astype(np.int32)
    return Subject(never_together(labels, pairs, inputs, reach), embedding)


AXES = (
    Axis(
        "embedding width, constant bounds",
        "One rule with 4 clauses over half of the domain; 8 inputs, 4 outputs.",
        (64, 128, 256, 512, 1024, 2048), (8, 16, 32), lambda n: _wide(n, "constant"),
    ),
    Axis(
        "embedding width, affine bounds",
        "One rule with 4 clauses over half of the domain; 8 inputs, 4 outputs.",
        (64, 128, 256, 512, 1024, 2048), (8, 16, 32), lambda n: _wide(n, "affine"),
    ),
    Axis(
        "rules",
        "Two clauses each, over disjoint slabs of one input, a head each; embedding 64, 8 inputs, 4 outputs.",
        (2, 4, 8, 16, 32, 64), (2, 4, 8), _slabs,
    ),
    Axis(
        "clauses, one literal",
        "One rule everywhere; embedding 64, 8 inputs, 4 outputs.",
        (8, 16, 32, 64, 128, 256, 512), (2, 4, 8), lambda k: _stated({"always": _mixed(k)}),
    ),
    Axis(
        "clauses, two literals",
        "One rule everywhere; embedding 64, 8 inputs, 4 outputs. Each is proved by an LP.",
        (8, 16, 32, 64, 128), (2, 4, 8), lambda k: _stated({"always": _mixed(k, 2)}),
    ),
    Axis(
        "labels",
        "At most one applies: m (m - 1) / 2 exclusions; embedding 64, 8 inputs.",
        (16, 32, 64, 128, 256, 512), (8, 16, 50), lambda m: exclusive_labels(m, 64),
    ),
    Axis(
        "inputs",
        "One rule with 4 clauses over an oblique half of the domain, affine bounds; embedding 64, 4 outputs.",
        (4, 8, 16, 32, 64, 128), (2, 4, 8), _many_inputs,
    ),
    Axis(
        "cells",
        "Rules over half-spaces of different inputs, in all combinations; embedding 64, 8 inputs, 4 outputs.",
        (2, 4, 8, 16, 32, 64, 128), (2, 4, 8), _overlaps,
    ),
)  # fmt: skip


# --- a million exclusions, from rules to check


_INPUTS, _REACH = 32, 6
_NOISE = 0.3


_STEP_ROWS = 2048


@contextmanager
def _stage(name: str, rows: list[tuple[Any, ...]]) -> Iterator[list[str]]:
    """Note seconds, CPU seconds and peak memory of the process; what was done is put into the list that is yielded."""
    wall, cpu, what = time.perf_counter(), time.process_time(), list[str]()
    yield what
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rows.append((name, time.perf_counter() - wall, time.process_time() - cpu, peak, *what))


def _drawn(prototypes: Array, partner: Array, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return rows around a prototype per label; each comes with a partner that it does not exclude."""
    label, rows = rng.integers(len(partner), size=count), np.arange(count)
    X = prototypes[label] + _NOISE * rng.normal(size=(count, _INPUTS))
    y = np.zeros((count, len(partner)), dtype=np.float32)
    y[rows, label] = y[rows, partner[label]] = 1.0
    return torch.from_numpy(X.clip(-_REACH, _REACH).astype(np.float32)), torch.from_numpy(y)


def million(quick: bool, passed: dict[str, bool]) -> tuple[Table, Table]:
    """Train, verify, certify and check; return what each stage took, and the same training without rules."""
    labels, count, embedding, known, epochs = (80, 1500, 32, 3000, 2) if quick else (2000, 10**6, 256, 30_000, 8)
    rng, stages = np.random.default_rng(0), list[tuple[Any, ...]]()
    pairs = np.stack(np.triu_indices(labels, 1), axis=1).astype(np.int32)
    pairs = pairs[np.sort(rng.choice(len(pairs), count, replace=False))]
    excluded = np.zeros((labels, labels), dtype=bool)
    excluded[pairs[:, 0], pairs[:, 1]] = excluded[pairs[:, 1], pairs[:, 0]] = True
    partner = np.array([rng.choice(np.flatnonzero(~row)) for row in excluded])
    prototypes = rng.normal(size=(labels, _INPUTS))
    rows, new = (_drawn(prototypes, partner, size, rng) for size in (known, max(200, known // 10)))
    with _stage("rules", stages) as what:
        spec = never_together(labels, pairs, _INPUTS, _REACH)
        what.append("from an array of pairs")
    torch.manual_seed(0)
    with _stage("certificate", stages) as what:
        network = SafeNetwork(_body(embedding), spec, embedding=embedding)
        certificate = network.certificate_
        written = (len(certificate.text) + len(certificate.block)) / 1e6
        what.append(f"SafeNetwork(...); {written:.1f} MB; exact check included")
    with _stage("training", stages) as what:
        steps, safe_step = _trained(network, rows, new, epochs)
        what.append(f"{steps} steps of {_STEP_ROWS} rows, {epochs} epochs")
    with _stage("exact check", stages) as what:
        certificate.check()
        what.append("Certificate.check(), integers only")
    torch.manual_seed(0)
    plain = nn.Sequential(_body(embedding), nn.Linear(embedding, labels))
    _, plain_step = _trained(plain, rows, new, epochs)
    kinds = [
        (kind, step, step / plain_step, *_judged(model, new, pairs))
        for kind, model, step in (("plain", plain, plain_step), ("safe", network, safe_step))
    ]
    *_, (_, _, seconds, peak, _) = stages
    passed[f"{count:,} exclusions certified, trained and checked within 4 GB"] = peak < 4
    passed[f"{count:,} exclusions checked exactly in under 5 minutes of CPU time"] = seconds < 300
    passed["no new row gets labels that exclude each other"] = kinds[1][-1] == 0
    way = Table(
        f"{count:,} exclusions over {labels:,} labels, embedding {embedding}",
        ("stage", "seconds", "CPU seconds", "peak memory so far (GB)", "what"),
        tuple(stages),
        "One process and one thread from the rules to the check.",
    )
    baseline = Table(
        "The same training without rules",
        ("network", "seconds a step", "/ plain", "held-out F1", "share of rows with excluded labels together"),
        tuple(kinds),
        "Generated rows: each label has a prototype and a partner that it does not exclude. Equal backbone, data, "
        "order and number of steps; F1 over all labels of new rows after these few epochs, so it says how far "
        "training came, not how far it could come.",
    )
    return way, baseline


def _body(embedding: int) -> nn.Sequential:
    return nn.Sequential(*relu_layers(_INPUTS, 256), nn.Linear(256, embedding))


def _trained(
    network: nn.Module, rows: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], epochs: int
) -> tuple[int, float]:
    """Train and return the number of steps and the seconds of one, validation included."""
    rare = torch.tensor(rows[1].shape[1] / 3.0)  # two labels of all apply to a row
    loss = partial(nn.functional.binary_cross_entropy_with_logits, pos_weight=rare)
    options = TrainingOptions(
        learning_rate=1e-2, batch_size=_STEP_ROWS, max_epochs=epochs, patience=None, keep="last", verbose=False,
        threads=1, device="cpu",
    )  # fmt: skip
    history = train(network, *rows, loss=loss, options=options, validation=new)
    steps = epochs * -(-len(rows[0]) // _STEP_ROWS)
    return steps, history.seconds / steps


@torch.no_grad()
def _judged(model: nn.Module, rows: tuple[Tensor, Tensor], pairs: Array) -> tuple[float, float]:
    """Return F1 over all labels, and the share of rows that get two labels that exclude each other."""
    on, wanted = (model(rows[0]) >= 0).numpy(), rows[1].numpy() > 0
    broken = np.mean([(row[pairs[:, 0]] & row[pairs[:, 1]]).any() for row in on])
    return float(2 * (on & wanted).sum() / max(1, on.sum() + wanted.sum())), float(broken)
