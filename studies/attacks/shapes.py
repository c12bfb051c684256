"""Sequences and graphs behind the torch door: a Transformer over 5 to 200 positions, messages over 3 to 500 nodes.

Their answers are those of their weights, of any size; or aimed at the borders of rules, with weights that add little.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.nn import SafeNetwork
from smle.rules import Specification
from studies.attacks.points import KINDS, Batch, RulesAttacker
from studies.attacks.subjects import stated
from tests.support.exported import session
from tests.support.sampling import FloatArray

Array = npt.NDArray[np.float32]

SEQUENCES = """
inputs: {last: [0, 120], temperature: [-20, 40]}
outputs: [load, reserve]
rules:
  - {name: line, then: 0 <= load <= 115 and 0 <= reserve <= 40}
  - {name: ramp, then: -9 <= load - last <= 9}
  - {name: heat, when: temperature >= 32, then: load + reserve <= 112}
  - {name: covered, when: temperature < 0, then: reserve >= 0.1 * load}
"""

GRAPHS = """
inputs: {supply: [0, 10], demand: [0, 10], backup: [0, 1]}
outputs: [pump, store]
rules:
  - {name: enough, then: pump + store >= demand - supply}
  - {name: pipes, then: -10 <= store <= 10 and 0 <= pump <= 20}
  - {name: backup, when: backup >= 0.5, then: pump <= 2 or store >= 5}
"""


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

    def __init__(self, inputs: int, outputs: int, width: int = 16, rounds: int = 2) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.along = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return the answers."""
        h = torch.relu(self.up(x))
        for layer in self.along:
            sent = torch.relu(layer(torch.cat([h[edges[0]], h[edges[1]]], dim=-1)))
            h = h + torch.zeros_like(h).index_add(0, edges[1], sent)
        found: Tensor = self.down(h)
        return found


class Aimed(nn.Module):
    """Adds what a module answers, times a weight, to what an attacker aims at."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, aim: Tensor, weight: Tensor, x: Tensor, edges: Tensor | None = None) -> Tensor:
        """Return the answers (..., m)."""
        found: Tensor = self.module(x) if edges is None else self.module(x, edges)
        return aim + weight * found


Given = dict[str, Tensor]
_CONTEXTS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "gradients": nullcontext,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "training mode, no_grad": torch.no_grad,
}
_WEIGHTS = (0.0, 0.0, 1e-6, 1.0, 100.0, 1e20, float("inf"), float("nan"))


def _asked(network: SafeNetwork, mode: str, x: Tensor, given: Given) -> Tensor:
    network.train(mode.startswith("training"))
    try:
        with _CONTEXTS[mode]():
            found: Tensor = network(x, **given)
    finally:
        network.eval()
    return found


def _network(text: str, module: Callable[[int, int], nn.Module], seed: int) -> tuple[SafeNetwork, RulesAttacker]:
    torch.manual_seed(seed)
    subject = stated("", text)
    spec = subject.spec
    backbone = Aimed(module(len(spec.columns), len(spec.targets)))
    network = SafeNetwork.of(backbone, spec, subject.certificate).eval()
    return network, RulesAttacker(subject, np.random.default_rng(seed))


def _given(attacker: RulesAttacker, shape: tuple[int, ...], dtype: type[np.floating]) -> tuple[Tensor, Given]:
    X, Z = attacker.zeros(int(np.prod(shape)), dtype)
    x, aim = torch.from_numpy(X).reshape(*shape, -1), torch.from_numpy(Z).reshape(*shape, -1)
    weight = torch.tensor(attacker.rng.choice(_WEIGHTS), dtype=torch.float32)
    return x, {"aim": aim, "weight": weight, "x": x.to(torch.float32)}


def _batch(x: Tensor, given: Given, y: Tensor, way: str) -> Batch:
    X: FloatArray = x.reshape(-1, x.shape[-1]).numpy()
    Y: Array = y.detach().to(torch.float32).reshape(len(X), -1).numpy()
    return Batch(X, X, given["aim"].reshape(len(X), -1).numpy(), Y, way)


def sequences(count: int, *, seed: int, chunk: int = 40_000) -> Iterator[Batch]:
    """Serve so many positions: features per position and per sequence, with and without padding, in a file."""
    network, attacker = _network(SEQUENCES, Attention, seed)
    rng, done, turn = attacker.rng, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        running = _file(network, Path(folder) / "model.onnx", _given(attacker, (3, 6), np.float32)[1])
        while done < count:
            length, dtype = int(rng.integers(5, 201)), KINDS[turn % 2]
            x, given = _given(attacker, (max(1, min(chunk, count - done) // length), length), dtype)
            name = list(_CONTEXTS)[turn % len(_CONTEXTS)]
            kind = ("each position", "each sequence", "padding", "file")[turn // 2 % 4]
            turn += 1
            if kind == "each sequence":
                y = _asked(network, name, x[:, 0], given)
                x = x[:, :1].expand(x.shape).contiguous()
            elif kind == "padding":
                mask = torch.from_numpy(rng.random(tuple(x.shape[:2])) < 0.8)
                padded = torch.where(mask[..., None], x, torch.nan)
                y = _asked(network, name, padded, {**given, "mask": mask})
                if not y[~mask].isnan().all():
                    raise AssertionError("padding was answered")
                x, y, given = x[mask], y[mask], {"aim": given["aim"][mask]}
            elif kind == "file":
                x, name = x.to(torch.float32), "onnxruntime"
                y = _run(running, attacker.spec, x, given)
            else:
                y = _asked(network, name, x, given)
            batch = _batch(x, given, y, f"Transformer, features of {kind}, {name}" if kind[:4] == "each" else
                           f"Transformer, {kind}, {name}")  # fmt: skip
            done += len(batch.X)
            yield batch


def misplaced(count: int, *, seed: int) -> Iterator[Batch]:
    """Serve positions whose features are those of the position before: not safe, and the judge has to see it."""
    network, attacker = _network(SEQUENCES, Attention, seed)
    x, given = _given(attacker, (count // 50, 50), np.float32)
    with torch.no_grad():
        yield _batch(x, given, network(x.roll(1, dims=1), **given), "Transformer, the position before")


def graphs(count: int, *, seed: int, chunk: int = 40_000) -> Iterator[Batch]:
    """Serve so many nodes, of graphs with and without edges, many at a time, in torch and in a file."""
    network, attacker = _network(GRAPHS, Messages, seed)
    rng, done, turn = attacker.rng, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        example = _given(attacker, (5,), np.float32)[1] | {"edges": torch.tensor([[0, 1, 2], [1, 2, 4]])}
        running = _file(network, Path(folder) / "model.onnx", example)
        while done < count:
            sizes = rng.integers(3, 501, size=max(1, min(chunk, count - done) // 250))
            x, given = _given(attacker, (int(sizes.sum()),), KINDS[turn % 2])
            given["edges"] = edges_of(sizes, rng) if turn % 5 else torch.zeros(2, 0, dtype=torch.int64)
            name = list(_CONTEXTS)[turn % len(_CONTEXTS)]
            if turn % 4 == 3:
                x, name = x.to(torch.float32), "onnxruntime"
                y = _run(running, attacker.spec, x, given)
            else:
                y = _asked(network, name, x, given)
            turn += 1
            batch = _batch(x, given, y, f"graph network, {name}")
            done += len(batch.X)
            yield batch


def edges_of(sizes: npt.NDArray[Any], rng: np.random.Generator) -> Tensor:
    """Return about three edges per node, inside of each graph."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    pairs = [first + rng.integers(0, size, (2, 3 * size)) for first, size in zip(starts, sizes, strict=True)]
    return torch.from_numpy(np.concatenate(pairs, axis=1))


def _file(network: SafeNetwork, path: Path, example: Given) -> Any:
    """Export a network and load it again; the weight is one for all."""
    network.to_onnx(path, example=example)
    return session(path)


def _run(running: Any, spec: Specification, x: Tensor, given: Given) -> Tensor:
    rows = x.reshape(-1, x.shape[-1]).numpy()
    feed = {name: rows[:, [i]] for i, name in enumerate(spec.columns)}
    feed |= {name: value.numpy() for name, value in given.items()}
    return torch.from_numpy(np.concatenate(running.run(list(spec.targets), feed), axis=1))
