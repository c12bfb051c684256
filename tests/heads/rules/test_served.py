"""What the head serves: allowed answers stay, others become the nearest allowed ones, judged exactly."""

from __future__ import annotations

import numpy as np
import pytest

from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.nearest import proposals
from smle.nearest.oracle import nearest_outputs
from smle.rules import Specification
from smle.rules.membership import broken
from support.random_rules import random_rules


def distances(y, t, scale):
    return np.sqrt((((y - t) / scale) ** 2).sum(axis=1))


@pytest.mark.parametrize("seed", range(12))
def test_nearest_allowed(seed):
    rng = np.random.default_rng(seed)
    spec, scale, anchor = random_rules(rng)
    X = rng.random((300, len(spec.columns)))
    t = (anchor(X) + rng.normal(0, 2, (300, len(scale))) * scale).astype(np.float32)
    certificate = certify_rules(spec, scale=scale, default=np.median(t, axis=0))
    if "check.scale" not in certificate.tensors:
        pytest.skip("clips settle these rules")
    head = Candidates(certificate)
    y, by = head.explained(X, t)
    assert not broken(spec, X, y.astype(np.float64)).any()
    best = distances(nearest_outputs(spec, X, t, scale=scale), t, scale)
    rounding = 1e-6 * np.abs(t / scale).sum(axis=1)
    np.testing.assert_array_equal(y[best == 0], t[best == 0])
    assert (distances(y, t, scale) <= 1.0001 * best + rounding).all()
    assert (by < 2).all()


def test_proposals_aim_at_limits_as_they_are_deployed():
    """A clip that moved a proposal once more would break what couples the outputs."""
    spec = Specification.from_yaml(
        "inputs: {u: [0, 1000000], v: [0, 1000000]}\noutputs: [a, b]\nrules:\n"
        "  - {name: moving, then: a <= 0.001 * u - 0.001 * v + 1}\n  - {name: coupled, then: b <= a + 0.5}\n"
    )
    head = Candidates(certify_rules(spec, default=[-1000.0, -1000.0], scale=[1.0, 1.0]))
    y = head(np.full((1, 2), 5e5), np.full((1, 2), 5.0, dtype=np.float32))
    np.testing.assert_allclose(y, [[1.0, 1.5]], atol=3e-4)


def test_choices_that_two_rules_leave():
    """Scores that tie satisfy neither of two rules that contradict each other, however near they are to it."""
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\nchoices: {act: [a, b, c, d, e, f, g, h]}\nrules:\n"
        "  - {name: some, then: 'act in [a, b, c]'}\n  - {name: other, then: act != b}\n"
    )
    head = Candidates(certify_rules(spec, scale=np.ones(8)))
    t = np.random.default_rng(0).normal(0, 2, (200, 8)).astype(np.float32)
    y, by = head.explained(np.zeros((200, 1)), t)
    assert set(y.argmax(axis=1)) == {0, 2}
    assert (by < 2).all()
    best = np.full(200, np.inf)
    for k in (0, 2):  # the score of a or of c rises to where those that are above it fall
        others = -np.sort(-t[:, [1, 3, 4, 5, 6, 7]].astype(np.float64), axis=1)
        levels = (t[:, [k]] + np.cumsum(others, axis=1)) / np.arange(2, 8)
        level = np.maximum(t[:, k], levels.max(axis=1))[:, None]
        best = np.minimum(best, (level[:, 0] - t[:, k]) ** 2 + (np.maximum(others - level, 0) ** 2).sum(axis=1))
    found = ((y.astype(np.float64) - t) ** 2).sum(axis=1)
    assert (found <= 1.02 * best + 1e-5).all()
    assert (found <= best + 1e-5).mean() > 0.98


def test_a_block_without_a_near_answer_leaves_the_others_alone(monkeypatch):
    """Outputs that no rule ties to it are served as they are, and the row is said to be safe."""
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: [a, b, c, d, e]\nrules:\n"
        "  - {name: one, then: a + b >= 3}\n  - {name: two, then: c + d <= 1}\n"
    )
    head = Candidates(certify_rules(spec))
    hopeless, _ = head.proposals.parts
    assert hopeless.outputs.tolist() == [0, 1]
    solve = proposals.nearest_points

    def nothing(block, active, X, t):
        found, own = solve(block, active, X, t), t[:, :2]
        if block is not hopeless:
            return found
        gone = np.where(own.sum(axis=1, keepdims=True) >= 3, own, np.nan)
        found.first = lambda: gone
        found.points = found.on_float_steps = lambda rank, rows: gone[rows]
        return found

    monkeypatch.setattr(proposals, "nearest_points", nothing)
    t = np.float32([[0, 1, 5, 6, 7], [3, 4, 5, 6, 7]])
    y, by = head.explained(np.zeros((2, 1)), t)
    assert by.tolist() == [2, 1]
    np.testing.assert_allclose(y[:, 2:], [[0, 1, 7], [0, 1, 7]], atol=1e-4)
    assert y[0, :2].sum() >= 3
    np.testing.assert_array_equal(y[1, :2], t[1, :2])


def test_outputs_with_nothing_but_limits_are_left_to_the_clips():
    spec = Specification.from_yaml(
        "inputs: {u: [0, 1]}\noutputs: [a, b, c]\nrules:\n"
        "  - {name: alone, then: a <= 1 + u and a >= 0}\n  - {name: either, then: b <= 0 or b >= c + 1}\n"
    )
    head = Candidates(certify_rules(spec, default=[0.5, 0.0, 0.0], scale=[1.0, 1.0, 1.0]))
    assert [block.outputs.tolist() for block in head.proposals.parts] == [[1, 2]]
    X = np.linspace(0, 1, 40)[:, None]
    t = np.random.default_rng(0).normal(0, 3, (40, 3)).astype(np.float32)
    t[0] = np.nan, 0.9, 0.0
    y, by = head.explained(X, t)
    assert set(by) == {0, 1}
    assert y[0, 0] == 0.5
    given = np.where(np.isnan(t), 0.5, t)
    np.testing.assert_allclose(y[:, 0], np.clip(given[:, 0], 0, 1 + X[:, 0]), rtol=1e-6)
    best = distances(nearest_outputs(spec, X, given), given, 1.0)
    assert (distances(y, given, 1.0) <= 1.0001 * best + 1e-5).all()


def test_of_many_blocks_those_that_obey_stay_as_they_are():
    """Answers at their limits too, alone as in a batch; conditions, labels that exclude each other among them."""
    pairs = "".join(
        f"  - {{name: r{i}, when: x >= {i % 4} / 4, then: a{i} <= x or a{i} >= b{i} + 1}}\n" for i in range(12)
    )
    names = ", ".join(f"a{i}, b{i}" for i in range(12))
    text = f"inputs: {{x: [0, 1]}}\noutputs: [{names}]\nrules:\n{pairs}"
    numbers = Specification.from_yaml(text)
    more = text.replace("rules:", "labels: [p, q]\nrules:") + "  - {name: apart, then: not (p and q)}\n"
    spec = Specification.from_yaml(more)
    head, rng = Candidates(certify_rules(spec, default=np.zeros(26), scale=np.ones(26))), np.random.default_rng(0)
    X, t = rng.random((200, 1)), rng.normal(0, 2, (200, 26)).astype(np.float32)
    t[:, 0:12:2] = X.astype(np.float32)  # at a limit
    t[50:, 14:24] = -1.0
    y, by = head.explained(X, t)
    assert not broken(spec, X, y.astype(np.float64)).any()
    assert (by < 2).all()
    bad = broken(spec, X, t.astype(np.float64))
    assert bad.any()
    for i in range(12):
        own, stays = slice(2 * i, 2 * i + 2), ~bad[:, i]
        near = t[stays, 2 * i] > X[stays, 0] - 1e-6 if i < 6 else np.zeros(stays.sum(), dtype=bool)
        np.testing.assert_array_equal(y[stays, own][~near], t[stays, own][~near])
    best = nearest_outputs(numbers, X, t[:, :24], scale=np.ones(24))
    assert (distances(y[:, :24], t[:, :24], 1.0) <= 1.0001 * distances(best, t[:, :24], 1.0) + 1e-5).all()
    for row in range(0, 200, 17):
        np.testing.assert_array_equal(head(X[[row]], t[[row]])[0], y[row])


def test_ties_are_answered_alone_as_in_a_batch():
    """One row and many are added up in other orders, which may not decide whether an answer lies at its limit."""
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\nchoices: {c: [p, q, r]}\nrules:\n  - {name: second, then: c == q}\n"
    )
    head, rng = Candidates(certify_rules(spec)), np.random.default_rng(0)
    t = (rng.integers(-20, 21, (300, 3)) / 10).astype(np.float32)
    t[:, 1] = t[:, 0]
    X = np.zeros((300, 1))
    y = head(X, t)
    np.testing.assert_array_equal(np.concatenate([head(X[:1], row[None]) for row in t]), y)
