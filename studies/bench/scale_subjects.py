"""What the scale bench measures: specifications and networks that grow along one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor, nn

from smle.heads.box.network.box_network import BoxNetwork
from smle.rules import CNF, Clause, Label, Literal, Number, NumericInput, Polytope, Row, Rule, Specification, linear

_ONE = Fraction(1)

_SMALL = 1e-3  # of the heads' weights: safe without training


@dataclass(frozen=True, eq=False)
class Subject:
    """A specification and the network that is trained under it."""

    spec: Specification
    embedding: int
    bounds: str = "constant"

    def network(self) -> BoxNetwork:
        """Return a new network with random weights, the same each time; those of the heads are small, and so safe."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            d, n = len(self.spec.columns), self.embedding
            backbone = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, n))
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


def _inputs(count: int) -> tuple[NumericInput, ...]:
    return tuple(NumericInput(f"x{i}", -_ONE, _ONE) for i in range(count))


def _bounded(output: int) -> tuple[Clause, ...]:
    """Return |y| <= 2 for one of four outputs."""
    forms = (linear({output % 4: Fraction(sign)}) for sign in (1, -1))
    return tuple(Clause((Literal(form, (), Fraction(2)),)) for form in forms)


def _mixed(count: int, literals: int) -> tuple[Clause, ...]:
    """Return clauses over pairs of four outputs, all different; zero satisfies them."""
    rng = np.random.default_rng(0)
    clauses = []
    for i in range(count):
        parts = []
        for _ in range(literals):
            h, k = rng.choice(4, size=2, replace=False)
            form = {
                int(h): Fraction(int(rng.choice([-2, -1, 1, 2]))),
                int(k): Fraction(int(rng.choice([-2, -1, 1, 2]))),
            }
            parts.append(Literal(linear(form), (), Fraction(256 + i, 128)))
        clauses.append(Clause(tuple(parts)))
    return tuple(clauses)


def _specification(inputs: int, rules: Sequence[tuple[Polytope, tuple[Clause, ...]]]) -> Specification:
    return Specification(
        _inputs(inputs),
        tuple(Number(f"y{i}") for i in range(4)),
        tuple(Rule(f"rule {i}", (region,), CNF(clauses), "...", "...") for i, (region, clauses) in enumerate(rules)),
    )


def _wide(embedding: int, bounds: str) -> Subject:
    region = Polytope((Row(linear({0: _ONE}), Fraction(1, 2)),))
    return Subject(_specification(8, [(region, _mixed(4, 1))]), embedding, bounds)


def _everywhere(clauses: int, literals: int) -> Subject:
    return Subject(_specification(8, [(Polytope(()), _mixed(clauses, literals))]), 64)


def _slabs(count: int) -> Subject:
    """Return rules over disjoint slabs of the first input."""
    rules = []
    for i in range(count):
        low, high = Fraction(2 * i, count) - 1, Fraction(2 * (i + 1), count) - 1
        rows = (Row(linear({0: -_ONE}), -low), Row(linear({0: _ONE}), high, True))
        rules.append((Polytope(rows), _bounded(i)))
    return Subject(_specification(8, rules), 64)


def _overlaps(cells: int) -> Subject:
    """Return rules over half-spaces of different inputs: each set of them is a cell."""
    rules = []
    for i in range(cells.bit_length() - 1):
        rules.append((Polytope((Row(linear({i: _ONE}), Fraction(0)),)), _bounded(i)))
    return Subject(_specification(8, rules), 64)


def _many_inputs(count: int) -> Subject:
    form = linear({i: Fraction(1 if i % 2 else -1) for i in range(count)})
    return Subject(_specification(count, [(Polytope((Row(form, Fraction(1, 2)),)), _mixed(4, 1))]), 64, "affine")


def never_together(labels: int, pairs: np.typing.NDArray[np.int32], inputs: int, reach: int = 1) -> Specification:
    """Return labels with exclusions everywhere; inputs lie in [-reach, reach]."""
    return Specification(
        tuple(NumericInput(f"x{i}", Fraction(-reach), Fraction(reach)) for i in range(inputs)),
        tuple(Label(f"label {i}") for i in range(labels)),
        (Rule("never together", (Polytope(()),), CNF((), pairs), "always", "..."),),
    )


def exclusive_labels(labels: int, embedding: int) -> Subject:
    """Return labels of which at most one applies."""
    pairs = np.stack(np.triu_indices(labels, 1), axis=1).astype(np.int32)
    return Subject(never_together(labels, pairs, 8), embedding)


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
        (8, 16, 32, 64, 128, 256, 512), (2, 4, 8), lambda k: _everywhere(k, 1),
    ),
    Axis(
        "clauses, two literals",
        "One rule everywhere; embedding 64, 8 inputs, 4 outputs. Each is proved by an LP.",
        (8, 16, 32, 64, 128), (2, 4, 8), lambda k: _everywhere(k, 2),
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
