"""What the scale bench measures: specifications and networks that grow along one axis."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.heads.box.network.box_network import BoxNetwork
from smle.rules import Specification
from smle.rules.helpers import mutually_exclusive, rule

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


def never_together(labels: int, pairs: npt.NDArray[np.int32], inputs: int, reach: int = 1) -> Specification:
    """Return labels with exclusions everywhere; inputs lie in [-reach, reach]."""
    return Specification.build(
        inputs={f"x{i}": (-reach, reach) for i in range(inputs)},
        labels=[f"label {i}" for i in range(labels)],
        rules=[rule("never together", then=mutually_exclusive(pairs))],
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
