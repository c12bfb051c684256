"""What is proved is what runs: the deployed program with hostile backbones, judged in exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from smle.rules import Specification
from smle_check.floats import BINARY32, BINARY64, nearest
from support.builder import CASES, Package, case, deployed_head

FORMATS = {np.float32: BINARY32, np.float64: BINARY64}


def hostile_inputs(spec: Specification, kind: type, rng: np.random.Generator, count: int) -> np.ndarray:
    """Random points, corners, and the constants of all rows with their neighbors; one-hot groups are kept."""
    low, high = (np.array([float(v) for v in ends], dtype=kind) for ends in (spec.lower, spec.upper))
    x = low + (high - low) * rng.random((count, len(low))).astype(kind)
    corners = rng.random(x.shape) < 0.2
    x = np.where(corners, np.where(rng.random(x.shape) < 0.5, low, high), x).astype(kind)
    rows = [row for rule in spec.rules for region in rule.regions for row in region.rows]
    for i in range(count):
        if rows and rng.random() < 0.5:
            row = rows[rng.integers(len(rows))]
            column, factor = row.coefficients[rng.integers(len(row.coefficients))]
            rest = sum(q * Fraction(float(x[i, k])) for k, q in row.coefficients if k != column)
            value = kind(float((row.bound - rest) / factor))
            for _ in range(rng.integers(3)):
                value = np.nextafter(value, kind(rng.choice([-np.inf, np.inf])))
            x[i, column] = np.clip(value, low[column], high[column])
        for group in spec.one_hot:
            x[i, list(group)] = 0
            x[i, rng.choice(group)] = 1
    return x


def hostile_embeddings(package: Package, rng: np.random.Generator, count: int) -> np.ndarray:
    n = len(package.weights["bounds.lower"])
    z = rng.normal(0, 1, (count, n)).astype("f4")
    special = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-40, 0.0, 1.0, -1.0])
    chosen = rng.random(z.shape) < 0.5
    z = np.where(chosen, rng.choice(special[3:], z.shape), z)
    return np.where(rng.random(z.shape) < 0.05, rng.choice(special[:3], z.shape), z).astype("f4")


def broken_rules(spec: Specification, x: np.ndarray, y: np.ndarray, kind: type) -> list[str]:
    """The rules that an output breaks; constants of comparisons are read in the input's format."""
    point = [Fraction(float(v)) for v in x]
    output = [Fraction(float(v)) for v in y] if np.isfinite(y).all() else None  # the free head may output anything
    broken = []
    for rule in spec.rules:
        for region in rule.regions:
            inside = True
            for row in region.rows:
                value = sum(q * point[k] for k, q in row.coefficients)
                bound = nearest(row.bound, FORMATS[kind]) if len(row.coefficients) == 1 else row.bound
                inside &= value < bound if row.strict else value <= bound
            if inside and (output is None or not rule.requirement.holds(output, point)):
                broken.append(rule.name)
    return broken


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(CASES))
def test_no_rule_is_broken(name, kind):
    package = case(name)
    spec = Specification.from_yaml(package.files["rules"].decode())
    head = deployed_head(package)
    rng = np.random.default_rng(3)
    x, z = hostile_inputs(spec, kind, rng, 200), hostile_embeddings(package, rng, 200)
    for size in (200, 33, 1):
        for start in range(0, 200 if size > 1 else 20, size):
            part = slice(start, start + size)
            y = head(x[part], z[part])
            for row in range(len(y)):
                broken = broken_rules(spec, x[start + row], y[row], kind)
                assert not broken, f"{broken} at x = {x[start + row]}, z = {z[start + row]}: y = {y[row]}"


def test_the_judgement_can_fail():
    """The same search finds violations in a head that is not certified."""
    package = case("braking")
    package.weights["heads.bias"] = package.weights["heads.bias"] - np.float32(0.08)
    spec = Specification.from_yaml(package.files["rules"].decode())
    head = deployed_head(package)
    rng = np.random.default_rng(3)
    x, z = hostile_inputs(spec, np.float32, rng, 200), hostile_embeddings(package, rng, 200)
    y = head(x, z)
    assert any(broken_rules(spec, x[i], y[i], np.float32) for i in range(200))
