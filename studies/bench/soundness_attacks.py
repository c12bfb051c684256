"""Inputs and embeddings chosen against a certified head. Each attack yields batches (X, Z, ways to run them).

An attack knows the model: its cells, heads, bounds and rules. What the backbone would compute does not bind it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smle.guarantees.regions.cells import regions_of
from smle.rules import Clause
from studies.bench.runtimes import Runtime
from studies.bench.sampling import FloatArray, border_points, corner_points, finished, uniform_points
from studies.bench.soundness_programs import (
    LEVELS,
    ORDERS,
    HeadProgram,
    Path,
    in_batches,
    onnx_path,
    torch_path,
    torch_threads,
)
from studies.bench.soundness_runtimes import BATCHES, flushed, wrong_rows
from studies.bench.soundness_subjects import Subject

__all__ = ["ATTACKS", "Attack", "Batch", "Opponent"]

Array = npt.NDArray[np.float32]
_MAX_SYSTEMS = 3000
"""Systems of equations that are solved for vertices of a region."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs as passed and as the rules see them (clamped to the domain), embeddings, outputs, and how they came."""

    X: FloatArray
    at: FloatArray
    Z: Array
    Y: Array
    way: str


@dataclass(frozen=True, eq=False)
class Opponent:
    """What an attacker knows of a model, and the generator of random numbers."""

    subject: Subject
    rng: np.random.Generator
    runtimes: Sequence[Runtime] = ()

    @cached_property
    def torch(self) -> Path:
        """The head in torch."""
        return torch_path(self.subject)

    @cached_property
    def directions(self) -> Array:
        """Directions (cells, k, n) in the embedding that push a clause of the cell towards its bound."""
        cells, spec = self.subject.cells, self.subject.spec
        weight = self.subject.program.tensors["heads.weight"].astype(np.float64)
        found: list[Array] = []
        for c, cell in enumerate(cells):
            if c == len(weight):
                found.append(found[-1])
                continue
            regions = [r for r in range(len(cells.regions)) if r in cell or r not in cells.gated]
            rules = sorted({rule for region in regions for rule in cells.rules[region]})
            clauses = [clause for rule in rules for clause in spec.rules[rule].requirement.expanded()]
            found.append(self._pushes(clauses, weight[c]))
        size = max(len(part) for part in found)
        return np.stack([part[np.arange(size) % len(part)] for part in found])

    def _pushes(self, clauses: Sequence[Clause], W: npt.NDArray[np.float64]) -> Array:
        rows = []
        for clause in clauses:
            g = np.zeros((len(clause.literals), len(W)))
            for j, literal in enumerate(clause.literals):
                for output, value in literal.outputs:
                    g[j, output] = float(value)
            mixtures = np.eye(len(g))
            if len(g) > 1:  # all literals have to fail together
                mixtures = np.vstack([mixtures, self.rng.dirichlet(np.ones(len(g)), 4)])
            rows.append(mixtures @ g @ W)
        return np.sign(np.concatenate(rows)).astype(np.float32)

    def cells(self, X: FloatArray) -> npt.NDArray[np.int64]:
        """Return the cell of each input (rows,), as the deployed gate finds it."""
        return self.subject.program.cell_of(X)

    def own(self, X: FloatArray) -> Array:
        """Return what the model's own backbone computes (rows, n)."""
        with torch.inference_mode():
            result: Array = self.subject.network.backbone(torch.from_numpy(X.astype(np.float32))).numpy()
        return result

    def corners(self, X: FloatArray) -> Array:
        """Return embeddings (rows, n) beyond or at the corner of the clip's box that is worst for some clause."""
        pick = self.rng.integers(self.directions.shape[1], size=len(X))
        Z = self.directions[self.cells(X), pick]
        sizes = np.array([1.0, 1.0000001, 3.0, 1e30, np.inf], dtype=np.float32)
        with np.errstate(invalid="ignore"):  # a unit without influence: 0 times infinity is NaN, which is welcome
            return np.asarray(Z * self.rng.choice(sizes, size=(len(X), 1)))

    def hostile(self, X: FloatArray) -> Array:
        """Return corners spoiled by NaN, infinities, huge and subnormal numbers."""
        Z = self.corners(X)
        odd = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -1e-40, 0.0, -0.0], dtype=np.float32)
        share = self.rng.choice([0.02, 0.3, 1.0], size=(len(X), 1))
        mask = self.rng.random(Z.shape, dtype=np.float32) < share
        Z[mask] = self.rng.choice(odd, size=int(mask.sum()))
        return Z

    def borders(self, count: int, dtype: type[np.floating]) -> FloatArray:
        """Return points within a few numbers of the format of some guard row, all rows in turn."""
        rows = regions_of(self.subject.spec).rows
        share = -(-count // len(rows))
        parts = [border_points(self.subject.spec, self.rng, share, row=row, dtype=dtype) for row in rows]
        return np.concatenate(parts)[:count]

    @cached_property
    def _vertices(self) -> npt.NDArray[np.float64]:
        """Vertices of the regions (count, d), by solving systems of their rows and the domain's ends."""
        spec, cells = self.subject.spec, regions_of(self.subject.spec)
        d = len(spec.columns)
        low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
        found = [low, high]
        for region in cells.regions:
            rows = [cells.rows[r] for r in region]
            A = np.vstack([np.eye(d), -np.eye(d), np.zeros((len(rows), d))])
            a = np.concatenate([high, -low, [float(row.bound) for row in rows]])
            for i, row in enumerate(rows):
                for column, value in row.coefficients:
                    A[2 * d + i, column] = float(value)
            if math.comb(len(A), d) > _MAX_SYSTEMS:
                continue
            for chosen in itertools.combinations(range(len(A)), d):
                M = A[list(chosen)]
                if abs(np.linalg.det(M)) > 1e-9:
                    point = np.linalg.solve(M, a[list(chosen)])
                    if (A @ point <= a + 1e-6 * (1 + np.abs(a))).all():
                        found.append(point)
        return np.array(found)

    def vertices(self, count: int, dtype: type[np.floating]) -> FloatArray:
        """Return vertices of regions and of the domain, some moved by a number of the format."""
        known = self._vertices
        X = known[self.rng.integers(len(known), size=count)].astype(dtype)
        side = np.where(self.rng.random(X.shape) < 0.5, -np.inf, np.inf).astype(dtype)
        X = np.where(self.rng.random(X.shape) < 0.3, np.nextafter(X, side, dtype=dtype), X)
        mixed = np.concatenate([X[: count // 2], corner_points(self.subject.spec, self.rng, count, dtype=dtype)])
        return finished(self.subject.spec, mixed[:count], dtype)

    def facets(self, count: int, dtype: type[np.floating]) -> FloatArray:
        """Return points between two vertices, or a vertex and a border: on faces of the regions."""
        first, second = self.vertices(count, dtype), self.vertices(count, dtype)
        second[::2] = self.borders(len(second[::2]), dtype)
        share = self.rng.random((count, 1))
        mixed = first.astype(np.float64) * share + second.astype(np.float64) * (1 - share)
        return finished(self.subject.spec, mixed, dtype)

    def worst_mixture(self, count: int, dtype: type[np.floating]) -> tuple[FloatArray, Array]:
        """Return inputs of all kinds with embeddings of all kinds, shuffled."""
        third = count // 3
        X = np.concatenate([
            self.borders(third, dtype), self.facets(third, dtype),
            uniform_points(self.subject.spec, self.rng, count - 2 * third, dtype=dtype),
        ])  # fmt: skip
        X = X[self.rng.permutation(count)]
        Z = self.corners(X)
        Z[::4], Z[1::8] = self.hostile(X[::4]), self.own(X[1::8])
        return X, Z

    def zeros(self, count: int, dtype: type[np.floating]) -> tuple[FloatArray, Array]:
        """Return the mixture with exact zeros of both signs where the domain has them, and no subnormal input."""
        X, _ = self.worst_mixture(count, dtype)
        low, high = ends(self.subject, np.float32)
        zero = (low <= 0) & (high >= 0) & (self.rng.random(X.shape) < 0.3)
        for group in self.subject.spec.one_hot:
            zero[:, list(group)] = False
        X = np.where(zero, np.copysign(dtype(0), self.rng.random(X.shape) - 0.5).astype(dtype), X)
        X = np.where(np.abs(X) < np.finfo(np.float32).tiny, X * dtype(0), X)
        return X, self.corners(X)


def ends(subject: Subject, dtype: type[np.floating]) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the domain (d,) in a format."""
    name = np.dtype(dtype).name
    return subject.program.tensors[f"domain.lower_{name}"], subject.program.tensors[f"domain.upper_{name}"]


Attack = Callable[[Opponent, int], Iterator[Batch]]
"""(opponent, about how many points) -> batches."""


def _formats(count: int, chunk: int) -> Iterator[tuple[int, type[np.floating]]]:
    """Cut a number of points into chunks of both input formats in turn."""
    kinds: Iterator[type[np.floating]] = itertools.cycle((np.float32, np.float64))
    for start in range(0, count, chunk):
        yield min(chunk, count - start), next(kinds)


_CHUNK = 1 << 17


def _judged(opponent: Opponent, X: FloatArray, Z: Array) -> Batch:
    return Batch(X, X, Z, opponent.torch(X, Z), "torch")


def _own_backbone(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in _formats(count, _CHUNK):
        X = uniform_points(opponent.subject.spec, opponent.rng, size, dtype=dtype)
        yield _judged(opponent, X, opponent.own(X))


def _gradient(opponent: Opponent, count: int) -> Iterator[Batch]:
    """Ascend the excess of a random clause through backbone, clip and head; every step is judged."""
    spec, network, rng = opponent.subject.spec, opponent.subject.network, opponent.rng
    steps, size = 10, min(1 << 14, max(1, count // 10))
    low, high = (torch.from_numpy(end.copy()) for end in ends(opponent.subject, np.float32))
    movable = torch.ones(len(spec.columns))
    for group in spec.one_hot:
        movable[list(group)] = 0
    clauses = [clause for rule in spec.rules for clause in rule.requirement.expanded()]
    for _ in range(-(-count // (steps * size))):
        clause = clauses[rng.integers(len(clauses))]
        x = torch.from_numpy(opponent.facets(size, np.float32)).requires_grad_()
        for step in range(steps):
            X = x.detach().numpy().copy()
            yield Batch(X, X, opponent.own(X), network(x).detach().numpy(), "torch")
            y = _with_gradient(opponent.subject, x)
            excess = torch.stack([
                sum((float(v) * y[:, k] for k, v in literal.outputs), torch.zeros(len(x)))
                + sum((float(v) * x[:, k] for k, v in literal.inputs), torch.zeros(len(x)))
                for literal in clause.literals
            ]).amin(dim=0)  # fmt: skip
            (slope,) = torch.autograd.grad(excess.sum(), x) if excess.requires_grad else (torch.zeros_like(x),)
            move = torch.nan_to_num(slope).sign() * movable * (high - low) * (0.1 * 0.6**step)
            x = (x.detach() + move).clamp(low, high).requires_grad_()


def _with_gradient(subject: Subject, x: Tensor) -> Tensor:
    """Return the outputs (rows, m) with gradients of backbone, clip and heads; where bounds move is not seen."""
    z, tensors = subject.network.backbone(x), subject.program.tensors
    X = x.detach().numpy()
    seen = subject.program.values(X, z.detach().numpy())
    lower, upper = (torch.from_numpy(np.array(seen.get(end, tensors[f"bounds.{end}"]))) for end in ("lower", "upper"))
    cell = np.minimum(subject.program.cell_of(X), len(tensors["heads.weight"]) - 1)
    weight, bias = (torch.from_numpy(tensors[f"heads.{part}"][cell]) for part in ("weight", "bias"))
    y = (weight @ torch.clamp(z, lower, upper).unsqueeze(2)).squeeze(2) + bias
    if "heads.passthrough" in tensors:
        y = y + (torch.from_numpy(tensors["heads.passthrough"][cell]) @ x.unsqueeze(2)).squeeze(2)
    return y


def _corners(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in _formats(count, _CHUNK):
        X = np.concatenate([
            uniform_points(opponent.subject.spec, opponent.rng, size // 2, dtype=dtype),
            opponent.vertices(size - size // 2, dtype),
        ])  # fmt: skip
        yield _judged(opponent, X, opponent.corners(X))


def _facets(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in _formats(count, _CHUNK):
        X = opponent.facets(size, dtype)
        yield _judged(opponent, X, opponent.corners(X))


def _borders(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in _formats(count, _CHUNK):
        X = opponent.borders(size, dtype)
        yield _judged(opponent, X, opponent.corners(X))


def _hostile_backbone(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in _formats(count, _CHUNK):
        X = opponent.facets(size, dtype)
        yield _judged(opponent, X, opponent.hostile(X))


def _outside(opponent: Opponent, count: int) -> Iterator[Batch]:
    """NaN, infinities and numbers outside of the domain: the rules hold at the clamped input."""
    spec = opponent.subject.spec
    one_hot = [c for group in spec.one_hot for c in group]
    for size, dtype in _formats(count, _CHUNK):
        X, Z = opponent.worst_mixture(size, dtype)
        odd = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-310], dtype=dtype)
        spoiled = np.where(opponent.rng.random(X.shape) < 0.3, opponent.rng.choice(odd, size=X.shape), X)
        spoiled[:, one_hot] = X[:, one_hot]
        low, high = ends(opponent.subject, dtype)
        at = np.fmin(np.fmax(spoiled, low), high)
        yield Batch(spoiled, at, Z, opponent.torch(spoiled, Z), "torch")


def _orders(opponent: Opponent, count: int) -> Iterator[Batch]:
    share = max(1, count // len(ORDERS))
    for name, order in ORDERS.items():
        program = HeadProgram(opponent.subject, order)
        for size, dtype in _formats(share, _CHUNK // 4):
            X, Z = opponent.worst_mixture(size, dtype)
            yield Batch(X, X, Z, program(X, Z), f"NumPy, {name}")


def _plural(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _batches_and_threads(opponent: Opponent, count: int) -> Iterator[Batch]:
    for threads, batch, rows in ((1, 1, 0.01), (1, 3, 0.02), (1, 33, 0.1), (1, 1000, 0.4), (2, 50_000, 0.47)):
        size = max(8, int(rows * count))
        X, Z = opponent.worst_mixture(size, np.float32 if batch % 2 else np.float64)
        with torch_threads(threads):
            yield Batch(X, X, Z, in_batches(opponent.torch, batch)(X, Z), f"torch, batch {batch:,}, {_plural(threads)}")


def _flush_to_zero(opponent: Opponent, count: int) -> Iterator[Batch]:
    """Flush subnormal numbers to zero in every operation; inputs are not subnormal (an assumption of the claim)."""
    for size, dtype in _formats(count, min(_CHUNK, max(1, count // 2))):
        X, Z = opponent.zeros(size, dtype)
        for batch in (size, *BATCHES):
            part = slice(0, min(size, 60 * batch))
            with torch_threads(1, flush=True):
                Y = in_batches(opponent.torch, batch)(X[part], Z[part])
            yield Batch(X[part], X[part], Z[part], Y, "torch, flush to zero")


def _onnxruntime(opponent: Opponent, count: int) -> Iterator[Batch]:
    """All levels of optimization, with and without the monitoring outputs, several batch sizes, two threads."""
    if opponent.subject.bounds == "network":  # is not exported
        return
    settings = [(level, 1, monitor, 1 << 15, 0.11) for level in LEVELS for monitor in (False, True)]
    settings += [(LEVELS[-1], 1, False, 1, 0.003), (LEVELS[-1], 1, False, 33, 0.02), (LEVELS[-1], 2, False, 5000, 0.1)]
    for level, threads, monitor, batch, share in settings:
        path = in_batches(onnx_path(opponent.subject, level=level, threads=threads, monitor=monitor), batch)
        for size, _ in _formats(max(8, int(share * count)), _CHUNK):
            X, Z = opponent.worst_mixture(size, np.float32)
            yield Batch(X, X, Z, path(X, Z), f"onnxruntime, {level}, batch {batch:,}, {_plural(threads)}")


def _versions(opponent: Opponent, count: int) -> Iterator[Batch]:
    """Exact zeros in every version of onnxruntime, subnormal numbers flushed and not."""
    if opponent.subject.bounds == "network" or not opponent.runtimes:
        return
    X, Z = opponent.zeros(max(64, count // (4 * len(opponent.runtimes))), np.float32)
    for X_, Z_, Y, way in flushed(opponent.subject, opponent.runtimes, X, Z):
        yield Batch(X_, X_, Z_, Y, way)


def _rows(opponent: Opponent, count: int) -> Iterator[Batch]:
    """Backbones that return another number of rows than they are given, in every version of onnxruntime."""
    if opponent.subject.bounds == "network" or not opponent.runtimes:
        return
    calls = max(2, count // (9 * sum(BATCHES) * len(opponent.runtimes)))
    for X, Z, Y, way in wrong_rows(
        opponent.subject, opponent.runtimes, lambda rows: opponent.worst_mixture(rows, np.float32), calls
    ):
        yield Batch(X, X, Z, Y, way)


ATTACKS: dict[str, tuple[Attack, float]] = {
    "the model's own backbone, uniform inputs": (_own_backbone, 0.10),
    "gradient ascent in the inputs": (_gradient, 0.08),
    "corners of the clip's box": (_corners, 0.16),
    "facets and vertices of regions": (_facets, 0.15),
    "a few ulps around guard rows": (_borders, 0.18),
    "NaN, infinite, huge, subnormal embeddings": (_hostile_backbone, 0.12),
    "inputs outside of the domain": (_outside, 0.03),
    "orders of summation, fused or not": (_orders, 0.05),
    "batch sizes and threads": (_batches_and_threads, 0.02),
    "flush to zero": (_flush_to_zero, 0.03),
    "onnxruntime, levels, batches, threads": (_onnxruntime, 0.06),
    "versions of onnxruntime, flush modes, exact zeros": (_versions, 0.02),
    "backbones with the wrong number of rows": (_rows, 0.001),
}
"""Name -> (attack, share of all points)."""
