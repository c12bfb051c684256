"""The printed clips and check decide as the stated program does, for few rows, for many, and for long checks."""

from __future__ import annotations

import numpy as np
import pytest

from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from support.exported import columns_of, session
from support.joined import asked, joined
from support.rules_cases import CHOICE
from support.sampling import Judge, hard_points
from support.written_again import RulesAgain, random_tree

RULES = {
    "numbers": """
inputs: {u: [0, 10], v: [-100, 100]}
outputs: [a, b, c]
rules:
  - {name: moving, then: 0 <= a <= 0.35 * u and b <= 5}
  - {name: coupled, when: u <= 5 or u + 0.1 * v >= 4, then: a + b <= 0.1 * v + 20}
  - {name: gap, when: v > 0.1, then: c <= 0 or c >= 3 or a - b >= 7}
  - {name: tied, then: c - 2 * b <= 30}
""",
    "labels": """
inputs: {x: [0, 1]}
labels: [cat, dog, animal, car]
rules:
  - {name: e, then: not (cat and dog)}
  - {name: i, then: cat implies animal}
  - {name: j, when: x > 0.5, then: dog implies animal}
  - {name: k, when: x <= 0.25 or x >= 0.75, then: not (car and animal)}
""",
    "choice": CHOICE,
}
LONG = "inputs: {x: [0, 1]}\noutputs: [a, b, c]\nrules:\n" + "".join(
    f"  - {{name: r{i}, when: x >= 0.{i:02d}, then: a + b <= {40 - i % 7} or b - c >= {i % 5 + 50}}}\n"
    for i in range(45)
)
LIMITS = "inputs: {x: [0, 1]}\noutputs: [a, b]\nrules:\n  - {name: c, then: a - b <= 0.5 * x}\n" + "".join(
    f"  - {{name: r{i}, when: x >= 0.{i:02d}, then: a <= {100 - i}}}\n" for i in range(60)
)


@pytest.mark.parametrize("name", [*RULES, "long", "limits"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_decides_as_stated(name, kind):
    spec = Specification.from_yaml({**RULES, "long": LONG, "limits": LIMITS}[name])
    certificate = certify_rules(spec)
    rng, reference, program = np.random.default_rng(0), RulesAgain(certificate, random_tree(0)), Candidates(certificate)
    X = np.concatenate(list(hard_points(spec, rng, 40, dtype=kind)))
    m = len(spec.targets)
    t = (rng.normal(size=(len(X), m)) * 10.0 ** rng.integers(-1, 3, (len(X), m))).astype(np.float32)
    odd = rng.choice([np.nan, np.inf, 1e-40, -1e-40, 0.0, 2.0**99, -1e9], t.shape)
    t = np.where(rng.random(t.shape) < 0.15, odd, t).astype(np.float32)
    expected, by = reference.served(X, [t])
    fails = by < 0
    assert 0 < fails.sum() < len(X)

    y, bad, bits = program._run(X, t)
    np.testing.assert_array_equal(np.isin(np.arange(len(X)), bad), fails)
    for i, own in zip(bad, bits, strict=True):
        assert list(own) == [bool(bit[0]) for bit in reference.bits(reference.clamped(X[i : i + 1])).values()]
    single = [program._run(X[i : i + 1], t[i : i + 1]) for i in range(len(X))]
    assert [len(part[1]) for part in single] == fails.tolist()
    for i in np.flatnonzero(~fails):
        np.testing.assert_array_equal(y[i], expected[i])
        np.testing.assert_array_equal(single[i][0][0], expected[i])
    served = program(X, t)
    np.testing.assert_array_equal(served[~fails], y[~fails])
    assert not Judge(spec).violations(X, served)
    assert not Judge(spec).violations(X, np.concatenate([program(X[i : i + 1], t[i : i + 1]) for i in range(len(X))]))


def test_outputs_whose_coefficients_are_stored_as_zero_are_paid_for_by_their_sizes():
    # 1e-310 is stored as 0; what the program leaves out of the sum is less than 2^-1022 |b|.
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: [a, b]\nrules:\n  - {name: r, then: a <= 1e-310 * b}\n"
    )
    certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    reference, program = RulesAgain(certificate), Candidates(certificate)
    assert reference.tensors["check.outputs"].tolist() == [[1.0, 0.0]]
    assert reference.tensors["check.sizes"][0, 1] == 2.0**-1022
    X, t = np.zeros((20, 1)), np.float32([[-1, 5], [0, 1e9], [0, -1e9], [1, 5]] * 5)
    assert reference.served(X[:4], [t[:4]])[1].tolist() == [0, -1, -1, -1]
    for rows in (1, 4, 20):
        kept = [i for i in range(rows) if i % 4 == 0]
        assert np.setdiff1d(np.arange(rows), program._run(X[:rows], t[:rows])[1]).tolist() == kept
    served = columns_of(spec, asked(session(joined(spec, certificate).onnx), spec, np.float32(X), t))
    assert (served == t).all(axis=1).tolist() == [True, False, False, False] * 5
    assert not Judge(spec).violations(X, program(X, t))
