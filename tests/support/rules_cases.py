"""Rules that several tests state, and small model folders whose head is read off them, one with model.onnx."""

from __future__ import annotations

import copy
from functools import cache

from smle.certificates.document import arrays_of
from smle.heads.rules.author import certify_rules
from smle.rules import Specification
from support.builder import MODEL_JSON, Package

LIMITS = """
inputs: {income: [0, 1000000], age: [18, 100], job: {categories: [none, employee, other]}}
outputs: [limit, rate]
rules:
  - {name: affordable, then: 0 <= limit <= 0.35 * income and limit <= 60000}
  - {name: usury, then: 5 <= rate < 24.5}
  - {name: jobless, when: job == none and income < 12000, then: limit <= 500}
  - {name: oblique, when: income + 1000 * age <= 90000, then: limit <= 0.2 * income + 100}
"""
COUPLED = """
inputs: {x: [0, 10], z: [0, 10]}
outputs: [y, w]
rules:
  - {name: lo, when: x + z >= 7, then: y + w >= x + z - 6}
  - {name: hi, when: x + z <= 6, then: y + w <= 0}
  - {name: gap, then: y <= 0 or y >= 1}
  - {name: limit, when: x <= 5, then: w <= 20}
"""
LABELS = """
inputs: {x: [0, 1]}
labels: [cat, dog, animal, car]
rules:
  - {name: e, then: not (cat and dog)}
  - {name: i, then: not cat or animal}
  - {name: j, when: x > 0.5, then: not dog or animal}
  - {name: k, then: animal or car}
"""
BANK = """
inputs:
  income: [0, 1000000]
  age: {range: [18, 100], integer: true, missing: 40}
  job: {categories: [none, employee, self-employed], missing: none}
outputs: [limit, rate]
rules:
  - {name: affordable, then: limit <= 0.35 * income and limit <= 60000}
  - {name: positive, then: limit >= 0}
  - {name: usury, then: 5 <= rate <= 24.5}
  - {name: young, when: age < 21, then: limit <= 2000}
  - {name: jobless, when: job == none and income < 12000, then: limit <= 500}
  - {name: old, when: age > 80, then: limit <= 10000 + 0.1 * income}
"""
LEAVES = """
inputs: {a: [0, 10], b: [0, 10]}
outputs: [u, v]
rules:
  - {name: near, when: 0.1 * a + 0.3 * b <= 1, then: u <= -5}
  - {name: both, then: u + v >= 10}
  - {name: far, when: 0.1 * a + 0.3 * b >= 1.5, then: v <= 3 + 0.01 * a}
  - {name: most, then: v <= 20}
"""
"""Clips move the safe answers of two leaves: which leaf serves, and which clips are on, must be one and the same."""
RULES_CASES = {"limits": LIMITS, "coupled": COUPLED, "exclusions": LABELS, "limits-onnx": LIMITS}


@cache
def _made(name: str) -> Package:
    spec = Specification.from_yaml(RULES_CASES[name])
    files = {"model": MODEL_JSON, "rules": spec.to_yaml().encode()}
    files |= {"onnx": b"\x08\x09\x12\x04smle, as it were"} if name.endswith("onnx") else {}
    certificate = certify_rules(spec, files=files)
    return Package(copy.deepcopy(certificate.document), arrays_of(certificate.tensors), certificate.block, files)


def rules_case(name: str) -> Package:
    """Return a fresh copy of a case, made once per session."""
    return _made(name).copy()
