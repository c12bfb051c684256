"""Proposals are allowed and nearest; they are judged by a check like the head's, and by exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smle.heads.rules.author import certify_rules
from smle.heads.rules.candidates import Candidates
from smle.nearest import Clauses, Proposals
from smle.nearest.oracle import nearest_outputs
from smle.rules import ClauseArrays, Specification
from smle.rules.membership import active
from support.exported import columns_of, session
from support.joined import asked, joined
from support.random_rules import random_rules, served, thresholds


def setting(spec, X, scale):
    clauses = ClauseArrays.of(spec)
    binds = np.stack([active(rule, X) for rule in spec.rules], axis=1)[:, clauses.parts]
    checked = thresholds(clauses, 1024 * np.asarray(scale))
    return clauses, checked, binds, Proposals(Clauses.of(spec), scale, checked)


@pytest.mark.parametrize("seed", range(12))
def test_nearest_allowed(seed):
    rng = np.random.default_rng(seed)
    spec, scale, anchor = random_rules(rng)
    X = rng.random((100, len(spec.columns)))
    safe = anchor(X)
    t = (safe + rng.normal(0, 1, safe.shape) * scale).astype(np.float32).astype(np.float64)
    clauses, checked, binds, proposals = setting(spec, X, scale)
    y, step = served(proposals, clauses, checked, binds, X, t, safe)
    assert (step >= 0).all()
    assert (step > 0).any()
    found = np.sqrt((((y - t) / scale) ** 2).sum(axis=1))
    best = np.sqrt((((nearest_outputs(spec, X, t, scale=scale) - t) / scale) ** 2).sum(axis=1))
    rounding = 1e-6 * np.abs(t / scale).sum(axis=1)
    assert (found <= best * 1.0001 + rounding).all()


def labels(names, *rules):
    listed = "".join(f"  - {{name: r{i}, then: '{then}'}}\n" for i, then in enumerate(rules))
    return Specification.from_yaml(f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(names)}]\nrules:\n{listed}")


NAMES = [f"a{i}" for i in range(12)]
LABEL_RULES = {
    "exclusions": [f"not ({NAMES[i]} and {NAMES[j]})" for i in range(12) for j in range(i) if (3 * i + 5 * j) % 7 < 3],
    "chain": [f"{a} implies {b}" for a, b in itertools.pairwise(NAMES)],
    "groups": [f"exactly_one({', '.join(NAMES[k : k + 4])})" for k in (0, 4, 8)] + ["a1 implies (a5 or a9)"],
}


@pytest.mark.parametrize("kind", LABEL_RULES)
def test_most_likely_labels(kind):
    spec = labels(NAMES, *LABEL_RULES[kind])
    rng = np.random.default_rng(0)
    X, t = rng.random((60, 1)), rng.normal(0, 2, (60, 12)).astype(np.float32).astype(np.float64)
    clauses, checked, binds, proposals = setting(spec, X, np.ones(12))
    y, step = served(proposals, clauses, checked, binds, X, t, np.full(t.shape, np.nan))
    assert (step >= 0).all()
    assert (step > 0).any()
    best = nearest_outputs(spec, X, 1 / (1 + np.exp(-t))) > 0

    def lost(on):
        return np.where(on != (t >= 0), np.abs(t), 0.0).sum(axis=1)

    np.testing.assert_allclose(lost(y >= 0), lost(best), atol=1e-3)
    same = (y >= 0) == (t >= 0)
    np.testing.assert_array_equal(y[same], t[same])


def test_open_rows_are_proposed_again_and_others_not():
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: [p, q]\nrules:\n  - {name: r, then: p + q <= 1 and p >= 0}\n"
    )
    X, t = np.zeros((3, 1)), np.array([[2.0, 2.0], [3.0, 0.0], [-1.0, 0.0]])
    *_, binds, proposals = setting(spec, X, np.ones(2))
    safe = np.full((3, 2), 0.25)
    candidates = proposals.further(*proposals.first(binds, X, t), safe)
    first, way = next(candidates)
    assert way == 1
    np.testing.assert_allclose(first, [[0.5, 0.5], [2.0, -1.0], [0.0, 0.0]], atol=1e-6)
    second, _ = candidates.send(np.array([True, False, True]))
    assert second.shape == (2, 2)
    *_, (last, way) = candidates  # nothing passes: at last the safe answer
    assert way == 2
    np.testing.assert_array_equal(last, safe[[0, 2]].astype(np.float32))


def test_a_deep_tree_of_labels():
    names = [f"a{i}" for i in range(40)]
    spec = labels(names, *(f"a{i} implies a{(i - 1) // 2}" for i in range(1, 40)))
    rng = np.random.default_rng(0)
    X, t = rng.random((20, 1)), rng.normal(0, 2, (20, 40)).astype(np.float32).astype(np.float64)
    clauses, checked, binds, proposals = setting(spec, X, np.ones(40))
    y, step = served(proposals, clauses, checked, binds, X, t, np.full(t.shape, np.nan))
    assert (step == 1).all()
    best = nearest_outputs(spec, X, 1 / (1 + np.exp(-t))) > 0
    np.testing.assert_allclose((t * (y >= 0)).sum(axis=1), (t * best).sum(axis=1), atol=1e-3)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_part_that_is_a_single_number_is_found(unit, sign):
    """y is 0, or beyond 100 units; with 0 the other output has more room."""
    ends = "y >= 0" if sign > 0 else "y <= 0"
    far = f"y <= 0 or y >= {100 * unit:g}" if sign > 0 else f"y >= 0 or y <= {-100 * unit:g}"
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: [a, y]\nrules:\n"
        f"  - {{name: r, then: a {'+' if sign > 0 else '-'} {1 / unit:g} * y <= 1000}}\n"
        f"  - {{name: p, then: {ends}}}\n  - {{name: g, then: {far}}}\n"
    )
    certificate = certify_rules(spec, scale=[1.0, unit], files={"rules": spec.to_yaml().encode()})
    t = np.float32([[1040, sign * 20 * unit], [1010, -sign * 7 * unit], [1000.5, sign * 49 * unit]] * 6)
    X = np.zeros((len(t), 1), dtype=np.float32)
    for rows in (1, 3, len(t)):
        served = Candidates(certificate)(X[:rows], t[:rows])
        assert (served[:, 1] == 0).all()
        assert (served[:, 0] > 999.99).all()
    exported = columns_of(spec, asked(session(joined(spec, certificate).onnx), spec, X, t))
    assert (exported[:, 1] == 0).all()
    assert (exported[:, 0] > 999.9).all()
