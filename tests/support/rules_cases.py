"""Rules that several tests state, and small model folders whose head is read off them, one with model.onnx."""

from __future__ import annotations

import copy
from functools import cache

from smle.certificates.document import arrays_of
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification

from .builder import MODEL_JSON, Package

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
CHOICE = """
inputs: {x: [0, 10], y: [0, 10]}
choices: {act: [a, b, c]}
rules:
  - {name: e, when: x <= 5, then: act != a}
  - {name: f, when: y <= 5, then: act != b}
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
DOSE = """
inputs: {weight: [2, 250], age: [0, 110]}
outputs: [dose]
rules:
  - {name: by weight, then: 0 <= dose <= 0.05 * weight and dose <= 4}
  - {name: old, when: age >= 80, then: dose <= 2}
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
TABLES = """
inputs:
  article: {categories: [a, b, c, d]}
  region: {categories: [north, south, east]}
  weight: [0, 10]
outputs: [price, fee]
tables:
  cap: {key: article, values: {a: 10, b: 12.3, c: 0}, default: 7.77}
  low: {key: article, values: {a: -1, b: 0.1, c: -0.7, d: 7.7}}
  extra: {keys: [article, region], values: {a: {north: 1, south: 2}, b: {east: 0.3}}, default: 5}
rules:
  - {name: list, then: "low[article] <= price <= cap[article]"}
  - {name: strict, when: weight > 5, then: "price < cap[article] + 0.1"}
  - {name: heavy, when: "weight >= 2 * low[article]", then: "fee <= cap[article] + 0.3 * weight"}
  - {name: two keys, then: "fee <= extra[article, region]"}
  - {name: choice, then: "fee <= 0.3 * cap[article] or price <= 1 + low[article]"}
  - {name: sum, then: "price + fee <= 2 * cap[article] + 3 or fee < 0.1 + low[article]"}
"""
MERGED = """
inputs: {{article: {{categories: [{}]}}, weight: [0, 10]}}
outputs: [price, fee]
rules:
  - {{name: floor, then: price >= -50}}
{}
  - {{name: choice, then: price <= 3 or fee <= 1}}
""".format(
    ", ".join(f"art{i:02d}" for i in range(30)),
    "\n".join(
        f"  - {{name: cap art{i:02d}, when: article == art{i:02d} and weight > 3, then: price <= {i}.{i % 7}}}"
        for i in range(1, 29)
    ),
)
"""One rule for each article, but for the first and the last: merged, as all differ only in category and numbers."""
RULES_CASES = {
    "limits": LIMITS,
    "coupled": COUPLED,
    "exclusions": LABELS,
    "tables": TABLES,
    "merged": MERGED,
    "limits-onnx": LIMITS,
}


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
