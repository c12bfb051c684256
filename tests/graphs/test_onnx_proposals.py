"""Proposals inside ONNX graphs: every way to find them gives nearest allowed answers."""

from __future__ import annotations

import numpy as np
import pytest

from smle.heads.rules.author import certify_rules
from smle.heads.rules.candidates import Candidates
from smle.nearest.onnx import faces, numbers
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


@pytest.mark.parametrize("way", ["sets that can be tight", "splitting", "likely pieces"])
def test_every_way_finds_the_nearest_point(monkeypatch, way):
    if way == "splitting":
        monkeypatch.setattr(faces, "_SETS", 0)
    elif way == "likely pieces":
        monkeypatch.setattr(numbers, "_PIECES", 1)
    spec = Specification.from_yaml(POLYHEDRON)
    certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    made = joined(spec, certificate)
    assert (b"Loop" in made.onnx) == (way != "sets that can be tight")
    rng = np.random.default_rng(0)
    X = rng.random((700, 2), dtype=np.float32)
    Y = rng.normal(size=(len(X), 3)).astype(np.float32)
    served = columns_of(spec, asked(session(made.onnx), spec, X, Y))
    assert Judge(spec).violations(X, served) == []
    program = Candidates(certificate)
    expected, by = program.explained(X, Y)
    far, wanted = (np.linalg.norm((y - Y) / program.stored["check.scale"], axis=1) for y in (served, expected))
    repaired = by == 1
    assert repaired.sum() > 300
    assert (far[repaired] <= 1.0001 * wanted[repaired] + 1e-4).mean() > (0.97 if way == "likely pieces" else 0.998)
