"""Labels behind a head: nearest, the same alone and among others, in NumPy and in ONNX; and what is said where not."""

from __future__ import annotations

from collections import OrderedDict
from itertools import combinations, pairwise

import numpy as np
import pytest

from smle import correct
from smle.certificates import issue
from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.nearest import label_branches, label_diagrams
from smle.nearest.oracle import nearest_outputs
from smle.rules import Specification
from support.exported import columns_of, session
from support.joined import asked, joined

KINDS = ("normal", "all on", "ties", "heavy")


def logits(kind: str, n: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(KINDS.index(kind))
    made = {
        "normal": lambda: rng.normal(size=(n, k)),
        "all on": lambda: np.abs(rng.normal(size=(n, k))),
        "ties": lambda: rng.choice([-1.0, 1.0], (n, k)),
        "heavy": lambda: 100 * rng.standard_cauchy((n, k)),
    }
    return made[kind]().astype(np.float32)


def requirements(k: int, count: int, *, gated: bool = False) -> Specification:
    """Clauses of two to five labels, as people write them: about labels that are near each other."""
    rng = np.random.default_rng(k)
    hidden, rules = rng.random(k) < 0.4, []
    while len(rules) < count:
        near = rng.integers(0, k - 6) + rng.choice(6, size=int(rng.integers(2, 6)), replace=False)
        signs = rng.random(len(near)) < 0.4
        if (hidden[near] == signs).any():
            words = " or ".join(f"{'' if on else 'not '}l{i}" for i, on in zip(near, signs, strict=True))
            when = f", when: x >= 0.{len(rules) % 7}" if gated else ""
            rules.append(f"  - {{name: r{len(rules)}, then: '{words}'{when}}}\n")
    names = ", ".join(f"l{i}" for i in range(k))
    return Specification.from_yaml(f"inputs: {{x: [0, 1]}}\nlabels: [{names}]\nrules:\n{''.join(rules)}")


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("k", "count"), [(8, 9), (30, 60)])  # all sets are tried; a diagram is walked
def test_a_row_gets_the_same_labels_alone_in_a_batch_and_in_onnx(k: int, count: int, gated: bool) -> None:
    spec = requirements(k, count, gated=gated)
    certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    head, exported = Candidates(certificate), session(joined(spec, certificate).onnx)
    X = np.random.default_rng(0).random((120, 1), dtype=np.float32)
    for kind in KINDS:
        given = logits(kind, 120, k)
        served, by = head.explained(X, given)
        assert set(by) <= {0, 1}
        assert (by == 1).sum() > 20
        for i in range(0, 120, 7):
            np.testing.assert_array_equal(head(X[i : i + 1], given[i : i + 1])[0], served[i])
        np.testing.assert_array_equal(columns_of(spec, asked(exported, spec, X, given)) >= 0, served >= 0)


NAMES = [f"a{i}" for i in range(40)]
LABEL_RULES = {
    "exclusions": [f"not ({NAMES[i]} and {NAMES[j]})" for i in range(12) for j in range(i) if (3 * i + 5 * j) % 7 < 3],
    "chain": [f"{a} implies {b}" for a, b in pairwise(NAMES[:12])],
    "groups": [f"exactly_one({', '.join(NAMES[k : k + 4])})" for k in (0, 4, 8)] + ["a1 implies (a5 or a9)"],
    "deep tree": [f"a{i} implies a{(i - 1) // 2}" for i in range(1, 40)],
}


@pytest.mark.parametrize("kind", LABEL_RULES)
def test_the_most_likely_set_is_served_and_other_logits_stay(kind: str) -> None:
    stated = "".join(f"  - {{name: r{i}, then: '{then}'}}\n" for i, then in enumerate(LABEL_RULES[kind]))
    spec = Specification.from_yaml(f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(NAMES)}]\nrules:\n{stated}")
    X, t = np.zeros((60, 1)), 2 * logits("normal", 60, 40)
    y, by = Candidates(certify_rules(spec)).explained(X, t)
    assert {1} <= set(by) <= {0, 1}
    best = nearest_outputs(spec, X, 1 / (1 + np.exp(-t.astype(np.float64)))) > 0

    def lost(on: np.ndarray) -> np.ndarray:
        return np.where(on != (t >= 0), np.abs(t), 0.0).sum(axis=1)

    np.testing.assert_allclose(lost(y >= 0), lost(best), atol=1e-3)
    same = (y >= 0) == (t >= 0)
    np.testing.assert_array_equal(y[same], t[same])


def test_thousands_of_rules_make_a_program() -> None:
    """A sum or a conjunction of thousands of texts is deeper than Python reads."""
    rules = "".join(f"  - {{name: r{a} {b}, then: l{b} implies l{a}}}\n" for a, b in combinations(range(79), 2))
    names = ", ".join(f"l{i}" for i in range(79))
    spec = Specification.from_yaml(f"inputs: {{x: [0, 1]}}\nlabels: [{names}]\nrules:\n{rules}")
    assert len(spec.rules) > 3_000
    head = Candidates(certify_rules(spec))
    given = logits("normal", 30, 79)
    served = head(np.zeros((30, 1), dtype=np.float32), given)
    on = served >= 0
    assert not (on[:, 1:] & ~on[:, :-1]).any()  # the first labels, and no others
    total = np.cumsum(given.astype(np.float64), axis=1)
    np.testing.assert_allclose((given.astype(np.float64) * on).sum(axis=1), np.maximum(total.max(axis=1), 0), atol=1e-4)


def test_a_search_that_is_cut_short_is_told_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = requirements(30, 60)
    head = correct(lambda X: logits("normal", len(X), 30), spec)
    X = np.zeros((40, 1))
    _, info = head.predict(X, return_info=True)
    assert set(info["served"]) <= {"kept", "moved"}
    monkeypatch.setattr(label_diagrams, "_SIZES", ((5, 0),))
    monkeypatch.setattr(label_branches, "STEPS", 40)
    monkeypatch.setattr(label_branches, "_MOST_LITERALS", 0)
    monkeypatch.setattr(issue, "_drafts", OrderedDict())  # with the program that was made before
    head = correct(lambda X: logits("normal", len(X), 30), spec)
    _, info = head.predict(X, return_info=True)
    assert "near" in set(info["served"]) <= {"kept", "moved", "near"}
    assert head.served_["near"] == (info["served"] == "near").sum() > 5
