"""Points that are chosen against a head: inputs, and what the model in front of it may compute at them.

An attacker knows the model: its rules, cells and numbers. It may pass the head anything, not only what the model in
front of it would compute.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smle.certificates.agreement import cells_of
from smle.nn import SafeNetwork
from smle.regions.cells import regions_of
from smle.regions.geometry import vertices
from smle.rules import Clause, Literals
from studies.attacks.subjects import Subject
from studies.harness import Array, seeded
from tests.support.exported import session
from tests.support.grid_rules import hard_answers, hard_inputs
from tests.support.runtimes import Runtime
from tests.support.sampling import border_points, corner_points, finished, half_spaces, uniform_points

Float = type[np.floating]
Drawn = tuple[Array, Array]
"""Inputs (rows, d), and embeddings or answers (rows, n)."""
Serve = Callable[[Array, Array], Array]
"""(inputs, embeddings or answers) -> what is served (rows, m)."""
KINDS: tuple[Float, ...] = (np.float32, np.float64)
TINY = 2.0**-126
_ODD = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**100, 1e-40, -1e-42, 0.0, -0.0], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs as passed and as the rules see them (clamped to the domain), embeddings, outputs, and how they came."""

    X: Array
    at: Array
    Z: Array
    Y: Array
    way: str


def chunks(count: int, chunk: int) -> Iterator[tuple[int, Float]]:
    """Cut a number of points into chunks of both input formats in turn."""
    kinds = itertools.cycle(KINDS)
    for start in range(0, count, chunk):
        yield max(8, min(chunk, count - start)), next(kinds)


def in_batches(serve: Serve, size: int, X: Array, Z: Array) -> Array:
    """Serve a few rows at a time."""
    return np.concatenate([serve(X[i : i + size], Z[i : i + size]) for i in range(0, len(X), size)])


def plural(threads: int) -> str:
    """Return `1 thread` or `2 threads`."""
    return "1 thread" if threads == 1 else f"{threads} threads"


class Attacker:
    """Chooses points against one head; `runtimes` are the versions of onnxruntime that may be asked."""

    chunk = 1 << 15
    way = "NumPy"
    """What runs the deployed head."""

    def __init__(self, subject: Subject, rng: np.random.Generator, runtimes: Sequence[Runtime] = ()) -> None:
        self.subject, self.spec, self.rng, self.runtimes = subject, subject.spec, rng, runtimes
        self.program = subject.program
        self.one_hot = [column for group in self.spec.one_hot for column in group]

    def deployed(self, X: Array, Z: Array) -> Array:
        """Return what the deployed head serves (rows, m)."""
        served: Array = self.program(X, Z)
        return served

    def own(self, count: int, dtype: Float) -> Drawn:
        """Return inputs with what the model in front of the head computes at them."""
        assert self.subject.model is not None
        X = self.inputs(count, dtype)
        return X, self.subject.model(X)

    def inputs(self, count: int, dtype: Float) -> Array:
        """Return inputs of the domain."""
        return uniform_points(self.spec, self.rng, count, dtype=dtype)

    def mixture(self, count: int, dtype: Float) -> Drawn:
        """Return inputs of all kinds with embeddings or answers of all kinds."""
        raise NotImplementedError

    def zeros(self, count: int, dtype: Float) -> Drawn:
        """Return the mixture with exact zeros of both signs where the domain has them, and no subnormal input."""
        X, Z = self.mixture(count, dtype)
        low, high = self.spec.ends(np.float32)
        zero = (low <= 0) & (high >= 0) & (self.rng.random(X.shape) < 0.3)
        zero[:, self.one_hot] = False
        X = np.where(zero, np.copysign(dtype(0), self.rng.random(X.shape) - 0.5).astype(dtype), X)
        return np.where(np.abs(X) < TINY, X * dtype(0), X), Z

    def spoiled(self, Z: Array, shares: Sequence[float]) -> Array:
        """Put NaN, infinities, huge and subnormal numbers in some places, in some rows everywhere."""
        mask = self.rng.random(Z.shape, dtype=np.float32) < self.rng.choice(shares, size=(len(Z), 1))
        Z[mask] = self.rng.choice(_ODD, size=int(mask.sum()))
        return Z


class BoxAttacker(Attacker):
    """Chooses embeddings at the corners of the clip, inputs at vertices and facets of regions."""

    chunk = 1 << 17
    way = "torch"

    def deployed(self, X: Array, Z: Array) -> Array:
        """Return what the head in torch serves (rows, m)."""
        assert self.subject.network is not None
        with torch.inference_mode():
            result: Array = self.subject.network.head(torch.from_numpy(X), torch.from_numpy(Z)).numpy()
        return result

    @cached_property
    def directions(self) -> Array:
        """Directions (cells, k, n) in the embedding that push a clause of the cell towards its bound."""
        cells, spec = cells_of(self.subject.certificate, self.spec), self.spec
        weight = self.program.tensors["heads.weight"].astype(np.float64)
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

    def _pushes(self, clauses: Sequence[Clause], W: Array) -> Array:
        rows = []
        for clause in clauses:
            g = Literals.of_clauses(clause, len(W), len(self.spec.columns)).g
            mixtures = np.eye(len(g))
            if len(g) > 1:  # all literals have to fail together
                mixtures = np.vstack([mixtures, self.rng.dirichlet(np.ones(len(g)), 4)])
            rows.append(mixtures @ g @ W)
        return np.sign(np.concatenate(rows)).astype(np.float32)

    def cells(self, X: Array) -> Array:
        """Return the cell of each input (rows,), as the deployed gate finds it."""
        found: Array = self.program.cell_of(X)
        return found

    def corners(self, X: Array) -> Array:
        """Return embeddings (rows, n) beyond or at the corner of the clip's box that is worst for some clause."""
        pick = self.rng.integers(self.directions.shape[1], size=len(X))
        Z = self.directions[self.cells(X), pick]
        sizes = np.array([1.0, 1.0000001, 3.0, 1e30, np.inf], dtype=np.float32)
        with np.errstate(invalid="ignore"):  # a unit without influence: 0 times infinity is NaN, which is welcome
            return np.asarray(Z * self.rng.choice(sizes, size=(len(X), 1)))

    def hostile(self, X: Array) -> Array:
        """Return corners spoiled."""
        return self.spoiled(self.corners(X), (0.02, 0.3, 1.0))

    def borders(self, count: int, dtype: Float) -> Array:
        """Return points within a few floats of a guard row, all rows in turn."""
        rows = regions_of(self.spec).rows
        share = -(-count // len(rows))
        parts = [border_points(self.spec, self.rng, share, row=row, dtype=dtype) for row in rows]
        return np.concatenate(parts)[:count]

    @cached_property
    def _vertices(self) -> Array:
        """Vertices (count, d) of the domain and of the regions that have few enough."""
        cells, (low, high) = regions_of(self.spec), self.spec.ends()
        found = [np.stack([low, high])]
        for region in cells.regions:
            points = vertices(low, high, *half_spaces([cells.rows[r] for r in region], len(low)))
            found += [] if points is None else [points]
        return np.concatenate(found)

    def vertices(self, count: int, dtype: Float) -> Array:
        """Return vertices of regions and of the domain, some moved by one float."""
        known = self._vertices
        X = known[self.rng.integers(len(known), size=count)].astype(dtype)
        side = np.where(self.rng.random(X.shape) < 0.5, -np.inf, np.inf).astype(dtype)
        X = np.where(self.rng.random(X.shape) < 0.3, np.nextafter(X, side, dtype=dtype), X)
        mixed = np.concatenate([X[: count // 2], corner_points(self.spec, self.rng, count, dtype=dtype)])
        return finished(self.spec, mixed[:count], dtype)

    def facets(self, count: int, dtype: Float) -> Array:
        """Return points between two vertices, or a vertex and a border: on faces of the regions."""
        first, second = self.vertices(count, dtype), self.vertices(count, dtype)
        second[::2] = self.borders(len(second[::2]), dtype)
        share = self.rng.random((count, 1))
        mixed = first.astype(np.float64) * share + second.astype(np.float64) * (1 - share)
        return finished(self.spec, mixed, dtype)

    def cornered(self, *parts: Array) -> Drawn:
        """Return inputs with embeddings at the corners of the clip's box."""
        X = np.concatenate(parts)
        return X, self.corners(X)

    def mixture(self, count: int, dtype: Float) -> Drawn:
        """Return inputs of all kinds with embeddings of all kinds, shuffled."""
        assert self.subject.model is not None
        third = count // 3
        parts = [self.borders(third, dtype), self.facets(third, dtype), self.inputs(count - 2 * third, dtype)]
        X = np.concatenate(parts)[self.rng.permutation(count)]
        Z = self.corners(X)
        Z[::4], Z[1::8] = self.hostile(X[::4]), self.subject.model(X[1::8])
        return X, Z


class RulesAttacker(Attacker):
    """Chooses answers at the borders of rules, and inputs that move borders to answers."""

    def __init__(self, subject: Subject, rng: np.random.Generator, runtimes: Sequence[Runtime] = ()) -> None:
        super().__init__(subject, rng, runtimes)
        spec = subject.spec
        m, clauses = len(spec.targets), [clause for rule in spec.rules for clause in rule.requirement.clauses]
        stated = Literals.of_clauses(clauses, m, len(spec.columns))
        known = np.unique(np.column_stack([stated.g, stated.s, stated.h]), axis=0)
        self.g, self.s, self.h = known[:, :m], known[:, m:-1], known[:, -1]

    def inputs(self, count: int, dtype: Float) -> Array:
        """Return points of the domain: uniform, corners, and within a few floats of every guard row."""
        rows, spec, rng = regions_of(self.spec).rows, self.spec, self.rng
        parts = [uniform_points(spec, rng, count // 4, dtype=dtype), corner_points(spec, rng, count // 4, dtype=dtype)]
        share = -(-count // (2 * len(rows))) if rows else 0
        parts += [border_points(spec, rng, share, row=row, dtype=dtype) for row in rows]
        X = np.concatenate(parts)
        if len(X) < count:
            X = np.concatenate([X, uniform_points(spec, rng, count - len(X), dtype=dtype)])
        return X[rng.permutation(len(X))[:count]]

    def aimed(self, X: Array) -> Array:
        """Return answers on the border of some literal at these inputs, or next to it."""
        n, (L, m), rng = len(X), self.g.shape, self.rng
        size = self.subject.units * 10.0 ** rng.integers(-2, 3, (n, 1))
        t: Array = rng.normal(size=(n, m)) * size
        if not L:
            return t.astype(np.float32)
        for _ in range(2):
            k = rng.integers(L, size=n)
            weights = np.abs(self.g[k]) * rng.random((n, m))
            i = weights.argmax(axis=1)
            moving = np.einsum("nd,nd->n", self.s[k], X.astype(np.float64))
            rest = np.einsum("nm,nm->n", self.g[k], t) - self.g[k, i] * t[np.arange(n), i]
            with np.errstate(all="ignore"):
                t[np.arange(n), i] = (self.h[k] - moving - rest) / self.g[k, i]
        with np.errstate(all="ignore"):
            return self.nudged(t.astype(np.float32))

    def met(self, X: Array, Z: Array) -> Array:
        """Return inputs moved so that answers lie on the border of a literal that moves with them, or next to it.

        Inputs in float64 come nearer to it than any answer in float32 could.
        """
        moving = np.flatnonzero(self.s.any(axis=1) & self.g.any(axis=1))
        if not len(moving) or X.dtype == np.float32:
            return X
        n, X = len(X), X.copy()
        k = self.rng.choice(moving, size=n)
        weights = np.abs(self.s[k]) * self.rng.random((n, X.shape[1]))
        weights[:, self.one_hot] = 0
        j, rows = weights.argmax(axis=1), np.arange(n)
        low, high = self.spec.ends()
        with np.errstate(all="ignore"):
            rest = np.einsum("nd,nd->n", self.s[k], X) - self.s[k, j] * X[rows, j]
            at = (self.h[k] - np.einsum("nm,nm->n", self.g[k], Z.astype(np.float64)) - rest) / self.s[k, j]
            at = np.where(self.rng.random(n) < 0.5, np.nextafter(at, self.rng.choice([-np.inf, np.inf], n)), at)
            inside = (weights[rows, j] > 0) & (at >= low[j]) & (at <= high[j]) & (np.abs(at) >= TINY)
        X[rows[inside], j[inside]] = at[inside]
        return X

    def nudged(self, t: Array) -> Array:
        """Return answers moved by up to two floats."""
        with np.errstate(all="ignore"):
            for _ in range(2):
                side = np.where(self.rng.random(t.shape) < 0.5, -np.inf, np.inf).astype(np.float32)
                t = np.where(self.rng.random(t.shape) < 0.4, np.nextafter(t, side), t)
        return t

    def again(self, X: Array) -> Array:
        """Return what the head serves for aimed answers, moved by a float or two."""
        return self.nudged(self.deployed(X, self.aimed(X)))

    def hostile(self, X: Array) -> Array:
        """Return aimed answers spoiled."""
        return self.spoiled(self.aimed(X), (0.05, 0.4, 1.0))

    def at(self, count: int, dtype: Float, answers: Callable[[Array], Array]) -> Drawn:
        """Return inputs with answers of one kind; half of the inputs are moved until they meet a border."""
        X = self.inputs(count, dtype)
        Z = answers(X)
        X[::2] = self.met(X[::2], Z[::2])
        return X, Z

    def mixture(self, count: int, dtype: Float) -> Drawn:
        """Return inputs and answers of all kinds."""
        X = self.inputs(count, dtype)
        Z = self.aimed(X)
        Z[::4], Z[1::4] = self.hostile(X[::4]), self.again(X[1::4])
        X[1::2] = self.met(X[1::2], Z[1::2])
        return X, Z


class GridAttacker(Attacker):
    """Chooses answers on steps and between them, nearly balanced ones, NaN and infinities."""

    def __init__(self, subject: Subject, rng: np.random.Generator, runtimes: Sequence[Runtime] = ()) -> None:
        super().__init__(subject, rng, runtimes)
        self.chunk = 200 if len(self.spec.targets) >= 100 else 2000

    def mixture(self, count: int, dtype: Float) -> Drawn:
        """Return hard inputs and hard answers."""
        return hard_inputs(self.rng, self.spec, count, dtype), hard_answers(self.rng, self.spec, count)


def attacker_of(subject: Subject, rng: np.random.Generator, runtimes: Sequence[Runtime] = ()) -> Any:
    """Return the attacker for this family of heads."""
    return {"box": BoxAttacker, "grid": GridAttacker}.get(subject.family, RulesAttacker)(subject, rng, runtimes)


# --- sequences and graphs: positions and nodes are rows, answers those of a module, times a weight, beside an aim

Given = dict[str, Tensor]
_WEIGHTS = (0.0, 0.0, 1e-6, 1.0, 100.0, 1e20, float("inf"), float("nan"))


class Attention(nn.Module):
    """Positions (..., T, d) -> answers (..., T, m)."""

    def __init__(self, inputs: int, outputs: int, width: int = 16, layers: int = 1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.up, self.down = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the answers."""
        found: Tensor = self.down(self.layers(self.up(x)))
        return found


class Messages(nn.Module):
    """Nodes (n, d) and edges (2, e) -> answers (n, m)."""

    def __init__(self, inputs: int, outputs: int, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.along = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return the answers."""
        h = torch.relu(self.up(x))
        for layer in self.along:
            sent = torch.relu(layer(torch.cat([h[edges[0]], h[edges[1]]], dim=-1)))
            h = h + torch.zeros_like(h).index_add(0, edges[1], sent)
        found: Tensor = self.down(h)
        return found


def edges_of(sizes: Array, rng: np.random.Generator) -> Tensor:
    """Return about three edges per node, each inside its graph."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    pairs = [first + rng.integers(0, size, (2, 3 * size)) for first, size in zip(starts, sizes, strict=True)]
    return torch.from_numpy(np.concatenate(pairs, axis=1))


class _Aimed(nn.Module):
    """Adds what a module answers, times a weight, to what an attacker aims at."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, aim: Tensor, weight: Tensor, x: Tensor, edges: Tensor | None = None) -> Tensor:
        found: Tensor = self.module(x) if edges is None else self.module(x, edges)
        return aim + weight * found


class Shaped(nn.Module):
    """A certified network for sequences or graphs, which reads features x and what its module is given."""

    def __init__(self, attacker: Attacker, module: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.attacker, spec = attacker, attacker.spec
        with seeded(int(attacker.rng.integers(1 << 31))):
            backbone = _Aimed(module(len(spec.columns), len(spec.targets)))
        self.network = SafeNetwork.of(backbone, spec, attacker.subject.certificate)
        self.eval()

    def forward(self, x: Tensor, given: Given) -> Tensor:
        """Return the answers."""
        found: Tensor = self.network(x, **given)
        return found

    def drawn(self, shape: tuple[int, ...], dtype: Float) -> tuple[Tensor, Given]:
        """Return features, and what the module is given, of a shape of rows."""
        X, Z = self.attacker.zeros(int(np.prod(shape)), dtype)
        x, aim = torch.from_numpy(X).reshape(*shape, -1), torch.from_numpy(Z).reshape(*shape, -1)
        weight = torch.tensor(self.attacker.rng.choice(_WEIGHTS), dtype=torch.float32)
        return x, {"aim": aim, "weight": weight, "x": x.to(torch.float32)}

    def in_file(self, example: Given) -> Callable[[Tensor, Given], Tensor]:
        """Return the network as onnxruntime runs it."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            self.network.to_onnx(path, example=example)
            running = session(path)
        spec = self.attacker.spec

        def run(x: Tensor, given: Given) -> Tensor:
            rows = x.reshape(-1, x.shape[-1]).numpy()
            named = {name: rows[:, [i]] for i, name in enumerate(spec.columns)}
            named |= {name: value.numpy() for name, value in given.items()}
            return torch.from_numpy(np.concatenate(running.run(list(spec.targets), named), axis=1))

        return run


def batch_of(x: Tensor, given: Given, y: Tensor, way: str) -> Batch:
    """Return positions or nodes as rows."""
    X = x.reshape(-1, x.shape[-1]).numpy()
    Y: Array = y.detach().to(torch.float32).reshape(len(X), -1).numpy()
    return Batch(X, X, given["aim"].reshape(len(X), -1).numpy(), Y, way)


# --- all of them

Make = Callable[[Any, int, Float], Drawn]
POINTS: dict[str, dict[str, tuple[Make, float]]] = {
    "box": {
        "the model's own backbone, uniform inputs": (BoxAttacker.own, 0.10),
        "corners of the clip's box": (
            lambda a, n, dtype: a.cornered(a.inputs(n // 2, dtype), a.vertices(n - n // 2, dtype)),
            0.16,
        ),
        "facets and vertices of regions": (lambda a, n, dtype: a.cornered(a.facets(n, dtype)), 0.15),
        "a few ulps around guard rows": (lambda a, n, dtype: a.cornered(a.borders(n, dtype)), 0.18),
        "NaN, infinite, huge, subnormal embeddings": (
            lambda a, n, dtype: (X := a.facets(n, dtype), a.hostile(X)),
            0.12,
        ),
    },
    "rules": {
        "the model's own answers": (RulesAttacker.own, 0.08),
        "answers at the borders of rules": (lambda a, n, dtype: a.at(n, dtype, a.aimed), 0.22),
        "served answers, moved by a number or two": (lambda a, n, dtype: a.at(n, dtype, a.again), 0.16),
        "NaN, infinite, huge, subnormal answers": (lambda a, n, dtype: a.at(n, dtype, a.hostile), 0.12),
    },
    "grid": {"answers on steps and between, NaN, infinite": (GridAttacker.mixture, 0.3)},
}
"""Points by family of heads, each with its share of all points; the deployed head is asked about them."""
