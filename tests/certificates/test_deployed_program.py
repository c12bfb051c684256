"""What is proved is what runs: the deployed program with hostile backbones, judged in exact arithmetic."""

import numpy as np
import pytest

from smle.rules import Specification
from support.builder import Package, case, deployed_head
from support.sampling import Judge, hard_points
from support.sound import BOXES, sound


def hostile_embeddings(package: Package, rng: np.random.Generator, count: int) -> np.ndarray:
    n = len(package.weights["bounds.lower"])
    z = rng.normal(0, 1, (count, n)).astype("f4")
    special = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-40, 0.0, 1.0, -1.0])
    chosen = rng.random(z.shape) < 0.5
    z = np.where(chosen, rng.choice(special[3:], z.shape), z)
    return np.where(rng.random(z.shape) < 0.05, rng.choice(special[:3], z.shape), z).astype("f4")


def broken(package: Package, kind: type, size: int) -> list:
    """Return what breaks a rule among hard points, in batches of a size; of single rows only some are asked."""
    spec, rng = Specification.from_yaml(package.files["rules"].decode()), np.random.default_rng(3)
    x = rng.permutation(np.concatenate(list(hard_points(spec, rng, 400, dtype=kind))))[: None if size > 1 else 20]
    z, head = hostile_embeddings(package, rng, len(x)), deployed_head(package)
    y = [head(x[i : i + size], z[i : i + size]) for i in range(0, len(x), size)]
    return Judge(spec).violations(x, np.concatenate(y))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", BOXES)
def test_no_rule_is_broken(name, kind):
    package = sound(name)
    for size in (10_000, 33, 1):
        assert broken(package, kind, size) == []


def test_the_judgement_can_fail():
    """The same search finds violations in a head that is not certified."""
    package = case("braking")
    package.weights["heads.bias"] = package.weights["heads.bias"] - np.float32(0.08)
    assert broken(package, np.float32, 10_000)
