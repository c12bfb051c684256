"""What attacks on heads have in common, whatever the head: batches, exact zeros, ways to run, versions of runtimes.

An attacker knows the model: its rules, cells and numbers. What the model in front of the head would compute does not
bind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.rules import Specification
from smle_check.onnx.program import EMBEDDING
from studies.bench.soundness_programs import (
    LEVELS,
    ORDERS,
    Order,
    Path,
    columns_of,
    feed,
    head_file,
    in_batches,
    onnx_path,
    torch_threads,
)
from tests.support.runtimes import Case, Runtime
from tests.support.sampling import FloatArray

__all__ = ["BATCHES", "KINDS", "Attack", "Attacker", "Batch", "answer_of", "chunks", "plural"]

Array = npt.NDArray[np.float32]
BATCHES = (1, 2, 3, 33)
KINDS: tuple[type[np.floating], ...] = (np.float32, np.float64)
TINY = 2.0**-126


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs as passed and as the rules see them (clamped to the domain), embeddings, outputs, and how they came."""

    X: FloatArray
    at: FloatArray
    Z: Array
    Y: Array
    way: str


class Attacker:
    """Inputs, and what a model may compute at them, chosen against a certified head."""

    way: ClassVar[str]
    """What runs the deployed head: `torch` or `NumPy`."""
    chunk = 1 << 15

    def __init__(self, subject: Any, rng: np.random.Generator, runtimes: Sequence[Runtime] = ()) -> None:
        self.subject, self.rng, self.runtimes = subject, rng, runtimes
        self.spec: Specification = subject.spec
        self.certificate: Certificate = subject.certificate
        self.one_hot = [column for group in self.spec.one_hot for column in group]
        self.is_exported = True

    def deployed(self, X: FloatArray, Z: Array) -> Array:
        """Return what the deployed head serves (rows, m)."""
        raise NotImplementedError

    def written_again(self, order: Order) -> Path:
        """Return the format's program with another order of summation."""
        raise NotImplementedError

    def mixture(self, count: int, dtype: type[np.floating]) -> tuple[FloatArray, Array]:
        """Return inputs of all kinds with embeddings or answers of all kinds."""
        raise NotImplementedError

    def ends(self, dtype: type[np.floating]) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the domain (d,) in a format, as the head clamps to them."""
        name = np.dtype(dtype).name
        tensors = (self.certificate.tensors[f"domain.{end}_{name}"] for end in ("lower", "upper"))
        low, high = (np.frombuffer(tensor.data, dtype=dtype) for tensor in tensors)
        return low, high

    def zeros(self, count: int, dtype: type[np.floating]) -> tuple[FloatArray, Array]:
        """Return the mixture with exact zeros of both signs where the domain has them, and no subnormal input."""
        X, Z = self.mixture(count, dtype)
        low, high = self.ends(np.float32)
        zero = (low <= 0) & (high >= 0) & (self.rng.random(X.shape) < 0.3)
        zero[:, self.one_hot] = False
        X = np.where(zero, np.copysign(dtype(0), self.rng.random(X.shape) - 0.5).astype(dtype), X)
        return np.where(np.abs(X) < TINY, X * dtype(0), X), Z

    # --- attacks that do not depend on the kind of head

    def outside(self, count: int) -> Iterator[Batch]:
        """NaN, infinities and numbers outside of the domain: the rules hold at the clamped input."""
        for size, dtype in chunks(count, self.chunk):
            X, Z = self.mixture(size, dtype)
            odd = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-310], dtype=dtype)
            spoiled = np.where(self.rng.random(X.shape) < 0.3, self.rng.choice(odd, size=X.shape), X)
            spoiled[:, self.one_hot] = X[:, self.one_hot]
            low, high = self.ends(dtype)
            yield Batch(spoiled, np.fmin(np.fmax(spoiled, low), high), Z, self.deployed(spoiled, Z), self.way)

    def orders(self, count: int) -> Iterator[Batch]:
        """The format's program in NumPy with other orders of summation, fused or not."""
        for name, order in ORDERS.items():
            program = self.written_again(order)
            share = max(8, count // (20 if "fused" in name else 9))  # rationals are slow
            for size, dtype in chunks(share, self.chunk // 4):
                X, Z = self.mixture(size, dtype)
                yield Batch(X, X, Z, program(X, Z), f"the format, {name}")

    def few_rows(self, count: int) -> Iterator[Batch]:
        """Small batches, odd ones, and two threads."""
        for threads, batch, rows in ((1, 1, 0.01), (1, 3, 0.02), (1, 33, 0.1), (1, 1000, 0.4), (2, 50_000, 0.47)):
            for dtype in KINDS:
                X, Z = self.mixture(max(8, int(rows * count / 2)), dtype)
                with torch_threads(threads):
                    Y = in_batches(self.deployed, batch)(X, Z)
                yield Batch(X, X, Z, Y, f"{self.way}, batch {batch:,}, {plural(threads)}")

    def flushed(self, count: int) -> Iterator[Batch]:
        """Flush subnormal numbers to zero in every operation; inputs are not subnormal (an assumption of the claim)."""
        for dtype in KINDS:
            X, Z = self.zeros(max(8, count // 2), dtype)
            for batch in (len(X), *BATCHES):
                part = slice(0, min(len(X), 60 * batch))
                with torch_threads(1, flush=True):
                    Y = in_batches(self.deployed, batch)(X[part], Z[part])
                yield Batch(X[part], X[part], Z[part], Y, f"{self.way}, flush to zero")

    def onnxruntime(self, count: int) -> Iterator[Batch]:
        """All levels of optimization, with and without the monitoring outputs, several batch sizes, two threads."""
        if not self.is_exported:
            return
        settings = [(level, 1, monitor, 1 << 15, 0.11) for level in LEVELS for monitor in (False, True)]
        settings += [(LEVELS[-1], 1, False, 1, 0.003), (LEVELS[-1], 1, False, 33, 0.02)]
        settings += [(LEVELS[-1], 2, False, 5000, 0.1)]
        for level, threads, monitor, batch, share in settings:
            data = head_file(self.spec, self.certificate, monitor=monitor)
            path = in_batches(onnx_path(self.spec, data, level=level, threads=threads), batch)
            for size, _ in chunks(max(8, int(share * count)), self.chunk):
                X, Z = self.mixture(size, np.float32)
                yield Batch(X, X, Z, path(X, Z), f"onnxruntime, {level}, batch {batch:,}, {plural(threads)}")

    def versions(self, count: int) -> Iterator[Batch]:
        """Heads, and models with their heads, in every version of onnxruntime, subnormal numbers flushed and not."""
        if not self.is_exported or not self.runtimes:
            return
        X, Z = self.zeros(max(64, count // (4 * len(self.runtimes))), np.float32)
        cuts = [slice(0, 0)]
        for size in (*BATCHES, len(X)):
            start = cuts[-1].stop
            cuts += [slice(i, min(i + size, len(X))) for i in range(start, min(start + 5 * size, len(X)), size)]
        cuts = [cut for cut in cuts if cut.stop > cut.start]
        names, feeds = columns_of(self.spec), [feed(self.spec, X[cut]) for cut in cuts]
        chosen = [{**own, EMBEDDING: Z[cut]} for own, cut in zip(feeds, cuts, strict=True)]
        head = head_file(self.spec, self.certificate)
        cases = {level: Case(head, names, chosen, level) for level in (LEVELS[0], LEVELS[-1])}
        whole = getattr(self.subject, "onnx", None)
        if whole is not None:
            cases["model and head"] = Case(whole, names, feeds, LEVELS[-1])
        for runtime, flush in itertools.product(self.runtimes, (False, True)):
            found = runtime.answers(list(cases.values()), flush=flush)
            for title, calls in zip(cases, found, strict=True):
                done = [(cut, y) for cut, y in zip(cuts, calls, strict=True) if y is not None]
                if done:
                    rows = np.concatenate([np.arange(cut.start, cut.stop) for cut, _ in done])
                    m = len(self.spec.targets)
                    Y = np.concatenate([answer_of(y, cut.stop - cut.start, m) for cut, y in done])
                    way = f"onnxruntime {runtime.version}, {title}{', flush to zero' if flush else ''}"
                    yield Batch(X[rows], X[rows], Z[rows], Y, way)


A = TypeVar("A", bound=Attacker)
Attack = Callable[[A, int], Iterator[Batch]]
"""(attacker, about how many points) -> batches."""


def answer_of(found: Sequence[npt.NDArray[Any]], rows: int, columns: int) -> Array:
    """Return the answer (rows, columns). One with another number of rows answers nobody: it is judged as NaN."""
    parts = [part.reshape(len(part), -1) for part in found if part.ndim and len(part) == rows]
    together = np.concatenate(parts, axis=1) if len(parts) == len(found) else np.zeros((rows, 0))
    good = together.shape[1] == columns
    return np.asarray(together if good else np.full((rows, columns), np.nan), dtype=np.float32)


def chunks(count: int, chunk: int) -> Iterator[tuple[int, type[np.floating]]]:
    """Cut a number of points into chunks of both input formats in turn."""
    kinds = itertools.cycle(KINDS)
    for start in range(0, count, chunk):
        yield max(8, min(chunk, count - start)), next(kinds)


def plural(threads: int) -> str:
    """Return `1 thread` or `2 threads`."""
    return "1 thread" if threads == 1 else f"{threads} threads"
