"""Proposals inside ONNX graphs: every way to find them gives nearest allowed answers."""

from __future__ import annotations

import numpy as np
import pytest

from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.heads.rules.rules_onnx import proposals_of
from smle.nearest.onnx import faces, stacks
from smle.rules import Specification
from support.exported import columns_of, session
from support.joined import asked, joined
from support.sampling import Judge

POLYHEDRON = """
inputs: {a: [0, 1], b: [0, 1]}
outputs: [p, q, r]
rules:
  - {name: sums, then: p + q <= 1 and q + r <= 1 + 0.5 * b and p - r <= 0.5 and r - p <= 0.7 and p + q + r >= -2}
  - {name: gap, when: a <= 0.7, then: p + r <= 0.2 or p - q >= 0.3}
"""


SEVERAL = (
    "inputs: {a: [0, 1], b: [0, 1]}\noutputs: [p0, p1, p2, q1, q0, q2, s0, s1]\nrules:\n"
    + "".join(
        f"  - {{name: order{i}, then: p{i} + {i} <= q{i} + b}}\n"
        f"  - {{name: gap{i}, when: a <= 0.{3 * i + 2}, then: p{i} <= {i} or p{i} - q{i} >= -{i + 1}}}\n"
        for i in range(3)
    )
    + "  - {name: apart0, then: s0 <= -1 or s0 >= 1}\n"
    + "  - {name: apart1, when: b >= 0.5, then: s1 <= 2 or s1 >= 3 + a}\n"
)


@pytest.mark.parametrize("rules", [POLYHEDRON, SEVERAL])
@pytest.mark.parametrize("way", ["sets that can be tight", "splitting", "likely pieces"])
def test_every_way_finds_the_nearest_point(monkeypatch, way, rules):
    """Blocks of one form, with other bounds and conditions, share their nodes."""
    if way == "splitting":
        monkeypatch.setattr(faces, "_SETS", 0)
    elif way == "likely pieces":
        monkeypatch.setattr(stacks, "_PIECES", 1)
    spec = Specification.from_yaml(rules)
    certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    made = joined(spec, certificate)
    assert (b"Loop" in made.onnx) == (way != "sets that can be tight")
    rng = np.random.default_rng(0)
    X = rng.random((700, 2), dtype=np.float32)
    Y = rng.normal(0, 1 if rules == POLYHEDRON else 2, (len(X), len(spec.targets))).astype(np.float32)
    served = columns_of(spec, asked(session(made.onnx), spec, X, Y))
    assert Judge(spec).violations(X, served) == []
    program = Candidates(certificate)
    expected, by = program.explained(X, Y)
    far, wanted = (np.linalg.norm((y - Y) / program.stored["check.scale"], axis=1) for y in (served, expected))
    repaired = by == 1
    assert repaired.sum() > 300
    assert (far[repaired] <= 1.0001 * wanted[repaired] + 1e-4).mean() > (0.97 if way == "likely pieces" else 0.998)


def test_nodes_do_not_grow_with_blocks_of_one_form():
    def nodes(count: int) -> int:
        rules = "".join(f"  - {{name: r{i}, then: a{i} <= {i}.5 or b{i} >= a{i} + x}}\n" for i in range(count))
        names = ", ".join(f"a{i}, b{i}" for i in range(count))
        spec = Specification.from_yaml(f"inputs: {{x: [0, 1]}}\noutputs: [{names}]\nrules:\n{rules}")
        parts, _ = proposals_of(certify_rules(spec, files={"rules": spec.to_yaml().encode()}))
        return sum(len(part.nodes) for part in parts)

    assert nodes(3) <= nodes(10) == nodes(30)  # units of 1 take fewer
