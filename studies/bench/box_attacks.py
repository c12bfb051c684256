"""Attacks on the box of the paper: embeddings at the corners of the clip, vertices and facets of regions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smle.heads.box.network.operations import clip
from smle.regions.cells import regions_of
from smle.rules import Clause
from studies.bench.soundness_attacks import BATCHES, Attack, Attacker, Batch, chunks
from studies.bench.soundness_programs import HeadProgram, Order, Path
from studies.bench.soundness_runtimes import wrong_rows
from studies.bench.soundness_subjects import Subject
from studies.bench.torch_attacks import torch_modes
from tests.support.runtimes import Runtime
from tests.support.sampling import FloatArray, border_points, corner_points, finished, uniform_points

__all__ = ["ATTACKS", "Opponent"]

Array = npt.NDArray[np.float32]
_MAX_SYSTEMS = 3000
"""Systems of equations that are solved for vertices of a region."""


class Opponent(Attacker):
    """Inputs and embeddings chosen against a box."""

    subject: Subject
    way = "torch"
    chunk = 1 << 17

    def __init__(self, subject: Subject, rng: np.random.Generator, runtimes: Sequence[Runtime] = ()) -> None:
        super().__init__(subject, rng, runtimes)
        self.is_exported = subject.bounds != "network"

    def deployed(self, X: FloatArray, Z: Array) -> Array:
        """Return what the head in torch serves (rows, m)."""
        with torch.inference_mode():
            result: Array = self.subject.network.head(torch.from_numpy(X), torch.from_numpy(Z)).numpy()
        return result

    def written_again(self, order: Order) -> Path:
        """Return the format's program with another order of summation."""
        return HeadProgram(self.subject, order)

    @cached_property
    def directions(self) -> Array:
        """Directions (cells, k, n) in the embedding that push a clause of the cell towards its bound."""
        cells, spec = self.subject.cells, self.spec
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
        rows = regions_of(self.spec).rows
        share = -(-count // len(rows))
        parts = [border_points(self.spec, self.rng, share, row=row, dtype=dtype) for row in rows]
        return np.concatenate(parts)[:count]

    @cached_property
    def _vertices(self) -> npt.NDArray[np.float64]:
        """Vertices of the regions (count, d), by solving systems of their rows and the domain's ends."""
        spec, cells = self.spec, regions_of(self.spec)
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
        mixed = np.concatenate([X[: count // 2], corner_points(self.spec, self.rng, count, dtype=dtype)])
        return finished(self.spec, mixed[:count], dtype)

    def facets(self, count: int, dtype: type[np.floating]) -> FloatArray:
        """Return points between two vertices, or a vertex and a border: on faces of the regions."""
        first, second = self.vertices(count, dtype), self.vertices(count, dtype)
        second[::2] = self.borders(len(second[::2]), dtype)
        share = self.rng.random((count, 1))
        mixed = first.astype(np.float64) * share + second.astype(np.float64) * (1 - share)
        return finished(self.spec, mixed, dtype)

    def mixture(self, count: int, dtype: type[np.floating]) -> tuple[FloatArray, Array]:
        """Return inputs of all kinds with embeddings of all kinds, shuffled."""
        third = count // 3
        X = np.concatenate([
            self.borders(third, dtype), self.facets(third, dtype),
            uniform_points(self.spec, self.rng, count - 2 * third, dtype=dtype),
        ])  # fmt: skip
        X = X[self.rng.permutation(count)]
        Z = self.corners(X)
        Z[::4], Z[1::8] = self.hostile(X[::4]), self.own(X[1::8])
        return X, Z


def _served(opponent: Opponent, X: FloatArray, Z: Array) -> Batch:
    return Batch(X, X, Z, opponent.deployed(X, Z), "torch")


def _own_backbone(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in chunks(count, opponent.chunk):
        X = uniform_points(opponent.spec, opponent.rng, size, dtype=dtype)
        yield _served(opponent, X, opponent.own(X))


def _gradient(opponent: Opponent, count: int) -> Iterator[Batch]:
    """Ascend the excess of a random clause through backbone, clip and head; every step is judged."""
    spec, network, rng = opponent.spec, opponent.subject.network, opponent.rng
    steps, size = 10, min(1 << 14, max(1, count // 10))
    low, high = (torch.from_numpy(end.copy()) for end in opponent.ends(np.float32))
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
    y = (weight @ clip(z, lower, upper).unsqueeze(2)).squeeze(2) + bias
    if "heads.passthrough" in tensors:
        y = y + (torch.from_numpy(tensors["heads.passthrough"][cell]) @ x.unsqueeze(2)).squeeze(2)
    return y


def _corners(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in chunks(count, opponent.chunk):
        X = np.concatenate([
            uniform_points(opponent.spec, opponent.rng, size // 2, dtype=dtype),
            opponent.vertices(size - size // 2, dtype),
        ])  # fmt: skip
        yield _served(opponent, X, opponent.corners(X))


def _facets(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in chunks(count, opponent.chunk):
        X = opponent.facets(size, dtype)
        yield _served(opponent, X, opponent.corners(X))


def _borders(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in chunks(count, opponent.chunk):
        X = opponent.borders(size, dtype)
        yield _served(opponent, X, opponent.corners(X))


def _hostile_backbone(opponent: Opponent, count: int) -> Iterator[Batch]:
    for size, dtype in chunks(count, opponent.chunk):
        X = opponent.facets(size, dtype)
        yield _served(opponent, X, opponent.hostile(X))


def _rows(opponent: Opponent, count: int) -> Iterator[Batch]:
    """Backbones that return another number of rows than they are given, in every version of onnxruntime."""
    if not opponent.is_exported or not opponent.runtimes:
        return
    calls = max(2, count // (9 * sum(BATCHES) * len(opponent.runtimes)))
    for X, Z, Y, way in wrong_rows(
        opponent.subject, opponent.runtimes, lambda rows: opponent.mixture(rows, np.float32), calls
    ):
        yield Batch(X, X, Z, Y, way)


ATTACKS: dict[str, tuple[Attack[Opponent], float]] = {
    "the model's own backbone, uniform inputs": (_own_backbone, 0.10),
    "gradient ascent in the inputs": (_gradient, 0.08),
    "corners of the clip's box": (_corners, 0.16),
    "facets and vertices of regions": (_facets, 0.15),
    "a few ulps around guard rows": (_borders, 0.18),
    "NaN, infinite, huge, subnormal embeddings": (_hostile_backbone, 0.12),
    "inputs outside of the domain": (Opponent.outside, 0.03),
    "orders of summation, fused or not": (Opponent.orders, 0.05),
    "batch sizes and threads": (Opponent.few_rows, 0.02),
    "flush to zero": (Opponent.flushed, 0.03),
    "torch, in every mode": (torch_modes, 0.02),
    "onnxruntime, levels, batches, threads": (Opponent.onnxruntime, 0.06),
    "versions of onnxruntime, flush modes, exact zeros": (Opponent.versions, 0.02),
    "backbones with the wrong number of rows": (_rows, 0.001),
}
"""Name -> (attack, share of all points)."""
