"""A million exclusions from rules to check."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.nn import SafeNetwork
from smle.training.loop import TrainingOptions, train
from studies.bench.scale_subjects import never_together
from studies.harness import Table

_INPUTS, _REACH = 32, 6
_NOISE = 0.3


@dataclass(frozen=True)
class _Size:
    labels: int
    pairs: int
    embedding: int
    rows: int
    epochs: int


_SIZES = {"full": _Size(2_000, 1_000_000, 256, 30_000, 8), "quick": _Size(80, 1_500, 32, 3_000, 2)}
_BATCH = 2048


@contextmanager
def _stage(name: str, rows: list[tuple[Any, ...]]) -> Iterator[list[str]]:
    """Note seconds, CPU seconds and peak memory of the process; what was done is put into the list that is yielded."""
    wall, cpu, what = time.perf_counter(), time.process_time(), list[str]()
    yield what
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rows.append((name, time.perf_counter() - wall, time.process_time() - cpu, peak, *what))


@dataclass(frozen=True, eq=False)
class _Data:
    """Rows around a prototype per label; each comes with a partner that it does not exclude."""

    prototypes: npt.NDArray[np.float64]
    partner: npt.NDArray[np.intp]

    @classmethod
    def of(cls, labels: int, pairs: npt.NDArray[np.int32], rng: np.random.Generator) -> _Data:
        excluded = np.zeros((labels, labels), dtype=bool)
        excluded[pairs[:, 0], pairs[:, 1]] = excluded[pairs[:, 1], pairs[:, 0]] = True
        partner = np.array([rng.choice(np.flatnonzero(~row)) for row in excluded])
        return cls(rng.normal(size=(labels, _INPUTS)), partner)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        label = rng.integers(len(self.partner), size=count)
        X = self.prototypes[label] + _NOISE * rng.normal(size=(count, _INPUTS))
        y = np.zeros((count, len(self.partner)), dtype=np.float32)
        y[np.arange(count), label] = y[np.arange(count), self.partner[label]] = 1.0
        return torch.from_numpy(X.clip(-_REACH, _REACH).astype(np.float32)), torch.from_numpy(y)


def million(quick: bool, passed: dict[str, bool]) -> tuple[Table, Table]:
    """Train, verify, certify and check; return what each stage took, and the same training without rules."""
    size, stages = _SIZES["quick" if quick else "full"], list[tuple[Any, ...]]()
    rng = np.random.default_rng(0)
    pairs = np.stack(np.triu_indices(size.labels, 1), axis=1).astype(np.int32)
    pairs = pairs[np.sort(rng.choice(len(pairs), size.pairs, replace=False))]
    data = _Data.of(size.labels, pairs, rng)
    rows, new = data.rows(size.rows, rng), data.rows(max(200, size.rows // 10), rng)
    with _stage("rules", stages) as what:
        spec = never_together(size.labels, pairs, _INPUTS, _REACH)
        what.append("from an array of pairs")
    torch.manual_seed(0)
    with _stage("certificate", stages) as what:
        network = SafeNetwork(_body(size.embedding), spec, embedding=size.embedding)
        certificate = network.certificate_
        written = (len(certificate.text) + len(certificate.block)) / 1e6
        what.append(f"SafeNetwork(...); {written:.1f} MB; exact check included")
    with _stage("training", stages) as what:
        steps, safe_step = _trained(network, rows, new, size)
        what.append(f"{steps} steps of {_BATCH} rows, {size.epochs} epochs")
    with _stage("exact check", stages) as what:
        certificate.check()
        what.append("Certificate.check(), integers only")
    torch.manual_seed(0)
    plain = nn.Sequential(_body(size.embedding), nn.Linear(size.embedding, size.labels))
    _, plain_step = _trained(plain, rows, new, size)
    kinds = [
        (kind, step, step / plain_step, *_judged(model, new, pairs))
        for kind, model, step in (("plain", plain, plain_step), ("safe", network, safe_step))
    ]
    *_, (_, _, seconds, peak, _) = stages
    passed[f"{size.pairs:,} exclusions certified, trained and checked within 4 GB"] = peak < 4
    passed[f"{size.pairs:,} exclusions checked exactly in under 5 minutes of CPU time"] = seconds < 300
    passed["no new row gets labels that exclude each other"] = kinds[1][-1] == 0
    way = Table(
        f"{size.pairs:,} exclusions over {size.labels:,} labels, embedding {size.embedding}",
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
    return nn.Sequential(nn.Linear(_INPUTS, 256), nn.ReLU(), nn.Linear(256, embedding))


def _trained(
    network: nn.Module, rows: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], size: _Size
) -> tuple[int, float]:
    """Train and return the number of steps and the seconds of one, validation included."""
    rare = torch.tensor(size.labels / 3.0)  # two labels of all apply to a row

    def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(predicted, wanted, pos_weight=rare)

    options = TrainingOptions(
        learning_rate=1e-2, batch_size=_BATCH, max_epochs=size.epochs, patience=None, keep="last", verbose=False,
        threads=1, device="cpu",
    )  # fmt: skip
    history = train(network, *rows, loss=loss, options=options, validation=new)
    steps = size.epochs * -(-size.rows // _BATCH)
    return steps, history.seconds / steps


@torch.no_grad()
def _judged(model: nn.Module, rows: tuple[Tensor, Tensor], pairs: npt.NDArray[np.int32]) -> tuple[float, float]:
    """Return F1 over all labels, and the share of rows that get two labels that exclude each other."""
    on, wanted = (model(rows[0]) >= 0).numpy(), rows[1].numpy() > 0
    broken = np.mean([(row[pairs[:, 0]] & row[pairs[:, 1]]).any() for row in on])
    return float(2 * (on & wanted).sum() / max(1, on.sum() + wanted.sum())), float(broken)
