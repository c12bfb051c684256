"""Sound packages of every kind of head by name, accepted by the checker: what hostile tests change."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from smle.heads.grid.grid_author import certify_grid
from smle.rules import Specification

from .builder import CASES, Package, repacked
from .relaxation_cases import MADE
from .rules_cases import RULES_CASES, rules_case

STEPS = """
inputs:
  demand: {range: [0, 20], integer: true}
  weight: {range: [0, 4], step: 0.1}
  t: [-1, 1]
outputs: {a: {integer: true}, b: {integer: true}, price: {step: 0.01}}
rules:
  - {name: caps, then: 0 <= a <= 12 and 0 <= b <= 12 and 0 <= price <= 50}
  - {name: sum, then: a + b == demand}
  - {name: moving, then: price <= 3 + 0.7 * t + 2 * weight}
  - {name: night, when: t + weight >= 1, then: price >= 0.5 or a >= 1}
  - {name: most, when: weight > 1.3, then: price <= 4}
"""
NETWORKS = {f"network {name}": make for name, make in MADE.items()}
BOXES = [*CASES, *NETWORKS]
MAKERS: dict[str, Callable[[], Package]] = {
    **CASES,
    **NETWORKS,
    **{f"rules {name}": partial(rules_case, name) for name in RULES_CASES},
    "steps": lambda: repacked(certify_grid(Specification.from_yaml(STEPS))),
}


@cache
def _made(name: str) -> Package:
    package = MAKERS[name]().seal()
    assert package.check()
    return package


def sound(name: str) -> Package:
    """Return a fresh copy, made and checked once per session."""
    return _made(name).copy()
