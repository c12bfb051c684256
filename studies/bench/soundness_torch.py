"""Soundness of the torch door: learned boxes and heads of whole numbers behind torch, in every mode.

The other soundness benches run a share of their points there; this one runs all, and the networks of the paper as they
are, before anybody certified them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.box.program import Box
from smle.heads.table import certify_head
from smle.nn import SafeNetwork
from smle.rules import Specification
from studies.bench.box_attacks import Opponent
from studies.bench.soundness_attacks import Batch
from studies.bench.soundness_subjects import Subject, makers
from studies.bench.torch_attacks import Passes, in_modes, learned_modes, torch_modes
from studies.bench.torch_shapes import GRAPHS, SEQUENCES, costs, graphs, misplaced, sequences
from studies.harness import BenchResult, Table, one_thread
from tests.support.grid_rules import FAMILIES, GridJudge, draw_grid, hard_answers, hard_inputs
from tests.support.sampling import FloatArray, Judge

__all__ = ["boxes", "grids", "run", "shapes", "unsafe_box", "unsafe_grid"]

Found = Iterator[tuple[str, Batch, int]]
"""What was attacked, a batch, and how many of its rows break a rule."""
_POINTS = {False: 1_200_000, True: 20_000}
_POSITIONS = {False: 10_000_000, True: 80_000}  # of sequences, and as many nodes of graphs
_QUICK = ("dose, affine", "oblique, at the limit", "dose, network", "oblique, crossing", "around zero")


def run(quick: bool = False) -> BenchResult:
    """Attack boxes and grids with half of the points each, sequences and graphs, and heads that are not safe."""
    passed: dict[str, bool] = {}
    with one_thread():
        safe = _counted(_all(_POINTS[quick], quick))
        shaped = _counted(shapes(_POSITIONS[quick]))
        cost = costs(quick, passed)
        unsafe = {name: _counted(found) for name, found in _unsafe(20_000).items()}
    for what, found in (("points", safe), ("positions and nodes", shaped)):
        points, violations = (sum(column) for column in zip(*found.values(), strict=True))
        passed[f"no violation in {points:,} {what}"] = violations == 0
    passed |= {
        f"violations are found in: {name}": sum(broken for _, broken in ways.values()) > 0
        for name, ways in unsafe.items()
    }
    tables = [
        Table("Certified heads in torch", ("what", "points", "violations"), _rows(safe)),
        Table("Sequences and graphs", ("what", "positions or nodes", "violations"), _rows(shaped)),
        cost,
        *(Table(f"Not safe: {name}", ("what", "points", "violations"), _rows(ways)) for name, ways in unsafe.items()),
    ]
    return BenchResult("soundness_torch", "Soundness: the torch door in every mode", tuple(tables), passed, quick)


def _all(points: int, quick: bool) -> Found:
    made = {name: make for name, make in makers(quick=quick).items() if not quick or name in _QUICK}
    for number, make in enumerate(made.values()):
        yield from boxes(make(), points // (2 * len(made)), seed=number)
    yield from grids(points // 2, seed=0)


def shapes(count: int) -> Found:
    """Attack so many positions of sequences, and as many nodes of graphs."""
    for text, batches in ((SEQUENCES, sequences(count, seed=0)), (GRAPHS, graphs(count, seed=1))):
        yield from _judged(text, batches)


def _judged(text: str, batches: Iterator[Batch]) -> Found:
    judge = Judge(Specification.from_yaml(text))
    for batch in batches:
        yield batch.way, batch, len(judge.judge(batch.at, batch.Y).rows)


def boxes(subject: Subject, count: int, *, seed: int) -> Found:
    """Attack a box behind its certificate, and the network that it was made of."""
    judge, opponent = Judge(subject.spec), Opponent(subject, np.random.default_rng(seed))
    kinds = {"certified box": torch_modes(opponent, count if subject.learned is None else count // 2)}
    if subject.learned is not None:
        kinds["learned box"] = learned_modes(subject.learned, opponent, count // 2)
    for kind, batches in kinds.items():
        for batch in batches:
            yield f"{kind}: {batch.way}", batch, len(judge.judge(batch.at, batch.Y).rows)


def grids(count: int, *, seed: int, rows: int = 20_000) -> Found:
    """Attack random rule sets of every family, some thousand points each."""
    done, number = 0, 0
    families = [name for name in FAMILIES if name != "large"]
    while done < count:
        rng = np.random.default_rng([seed, number])
        _, text = draw_grid(rng, families[number % len(families)])
        number += 1
        try:
            spec = Specification.from_yaml(text)
            network = SafeNetwork.of(Passes(), spec, certify_head(spec))
        except (ContradictionError, RuleError, NotCertifiedError):
            continue
        for found in _grid(network, spec, min(rows, count - done), rng):
            done += len(found[1].X)
            yield found


def _grid(network: nn.Module, spec: Specification, count: int, rng: np.random.Generator) -> Found:
    judge = GridJudge(spec)

    def draw(size: int, dtype: type[np.floating]) -> tuple[FloatArray, FloatArray]:
        X = hard_inputs(rng, spec, size, dtype)
        return np.where(np.abs(X) < np.finfo(np.float32).tiny, dtype(0), X), hard_answers(rng, spec, size)

    for batch in in_modes(network, draw, count, rng):
        yield f"whole numbers: {batch.way}", batch, len(judge.wrong(batch.X, batch.Y))


# --- heads that are not safe


class _Compared(nn.Module):
    """Computes something behind a head: where served and given answers compare as equal, the given ones are kept."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, *inputs: Tensor) -> Tensor:
        (answers,) = inputs
        served: Tensor = self.network(features, answers)
        return torch.where(served == answers, answers.to(served.dtype), served)


GRID = """
inputs: {x: [0, 1]}
outputs: {a: {integer: true}, b: {step: 0.01}}
rules: [{name: sum, then: a + b <= 4}, {name: range, then: 0 <= a <= 3 and 0 <= b <= 3}]
"""


def unsafe_grid(count: int) -> Found:
    """Attack a head of whole numbers with a comparison behind it: where torch flushes, tiny numbers are equal to 0."""
    spec = Specification.from_yaml(GRID)
    network = _Compared(SafeNetwork.of(Passes(), spec, certify_head(spec)))
    return _grid(network, spec, count, np.random.default_rng(0))


def unsafe_box(count: int) -> Found:
    """Attack a box with one bias moved by a ten-thousandth behind the certificate's back."""
    subject = makers(quick=True)["oblique, at the limit"]()
    judge, opponent = Judge(subject.spec), Opponent(subject, np.random.default_rng(0))
    network = copy.deepcopy(subject.network)
    network.backbone = Passes()
    tensors = subject.program.tensors
    off = {**tensors, "heads.bias": tensors["heads.bias"] + np.float32(1e-4)}
    network.head.served.program = Box(subject.program.ops, off)
    for batch in in_modes(network, opponent.zeros, count, opponent.rng):
        yield f"box: {batch.way}", batch, len(judge.judge(batch.at, batch.Y).rows)


def _unsafe(count: int) -> dict[str, Found]:
    return {
        "a bias of a box moved by a ten-thousandth": unsafe_box(count),
        "a comparison behind a head of whole numbers": unsafe_grid(count),
        "features of the position before": _judged(SEQUENCES, misplaced(count, seed=0)),
    }


def _counted(found: Found) -> dict[str, tuple[int, int]]:
    """Return points and violations by what was attacked."""
    ways: dict[str, tuple[int, int]] = {}
    for way, batch, broken in found:
        points, before = ways.get(way, (0, 0))
        ways[way] = points + len(batch.X), before + broken
    return ways


def _rows(ways: dict[str, tuple[int, int]]) -> tuple[tuple[object, ...], ...]:
    return tuple((way, *counts) for way, counts in ways.items())
