"""Checked candidates: whatever is proposed, in whatever order sums are taken, every rule holds exactly."""

from __future__ import annotations

import re
from functools import cache

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import smle_check
from smle.certificates.document import Certificate
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from smle_check.floats import BINARY64, threshold_below
from smle_check.heads.candidates import checked_of
from support.builder import refusal, repacked
from support.drawn_rules import draw
from support.rules_cases import CHOICE, LABELS
from support.sampling import Judge, hard_points
from support.written_again import RulesAgain, random_tree

RULES = {
    "simplex": "inputs: {x: [0, 1]}\noutputs: [p, q]\nrules:\n  - {name: a, then: p >= 0 and q >= 0 and p + q <= 1}\n",
    "gap": "inputs: {x: [0, 1]}\noutputs: [y]\nrules:\n  - {name: a, then: y <= 0 or y >= 10}\n",
    "bank": """
inputs: {income: [0, 1000000], age: {range: [18, 100], integer: true}, kind: {categories: [f, m, x]}}
outputs: [limit, rate]
rules:
  - {name: affordable, then: 0 <= limit <= 0.35 * income and limit <= 60000}
  - {name: usury, then: 5 <= rate <= 24.5}
  - {name: gap, then: rate <= 12 or rate >= 14}
  - {name: young, when: age <= 25, then: rate <= 12 and limit <= 10000}
  - {name: both, when: kind == f or kind == m, then: 0.0001 * limit + rate <= 20}
""",
    "touching": """
inputs: {income: [0, 1000000]}
outputs: [p, q]
rules:
  - {name: a, then: p >= 0 and q >= 0 and p + q <= 0.35 * income}
""",
    "ramps": """
inputs: {last: [0, 1000]}
outputs: [a, b, c]
rules:
  - {name: r1, then: -50 <= a - last <= 50}
  - {name: r2, then: -50 <= b - a <= 50}
  - {name: r3, then: -50 <= c - b <= 50}
""",
    "labels": LABELS,
    "exclusions": "inputs: {x: [0, 1]}\nlabels: [a, b, c]\nrules:\n  - {name: e, then: not (a and b)}\n",
    "choice": CHOICE,
    "oblique": """
inputs: {x: [0, 10], z: [-1000, 1000]}
outputs: [y, w]
rules:
  - {name: lo, then: y + w >= 0.5 * x}
  - {name: hi, then: y + w <= 0.5 * x + 1}
  - {name: ob, when: x + z <= 3, then: y - w <= 2 or w >= 7}
""",
    "split": """
inputs: {x: [0, 10]}
outputs: [y, w]
rules:
  - {name: lo, when: x >= 5, then: y + w >= 5}
  - {name: hi, when: x < 5, then: y + w <= 4}
""",
    "split at an oblique border": """
inputs: {x: [0, 10], z: [0, 10]}
outputs: [y, w]
rules:
  - {name: lo, when: x + z >= 7, then: y + w >= x + z - 6}
  - {name: hi, when: x + z <= 6, then: y + w <= 0}
""",
}


@cache
def certified(name: str) -> tuple[Specification, Certificate]:
    spec = Specification.from_yaml(RULES[name])
    return spec, certify_rules(spec)


def hostile(spec, certificate, X, rng) -> list[list[list[float]]]:
    """Candidates for each row: nonsense, and answers at the borders of what is allowed, off by a few units."""
    reference = RulesAgain(certificate)
    G, H = reference.tensors["check.outputs"], reference.tensors["check.thresholds"]
    rows = []
    for x in X:
        wide = 1024 * reference.tensors["check.scale"]
        t = rng.normal(size=len(spec.targets)) * wide * 10.0 ** rng.integers(-6, 9)
        made = [t, np.where(rng.random(t.shape) < 0.3, rng.choice([np.nan, np.inf, -np.inf, 1e-40, -0.0]), t)]
        for _ in range(4 if len(H) else 0):  # on the border of a literal
            k = int(rng.integers(len(H)))
            moving = 0.0
            if k < reference.checked.moving:
                moving = float(reference.tensors["check.inputs"][k] @ x.astype(np.float64))
            t = rng.normal(size=len(spec.targets)) * 2.0 ** rng.integers(-4, 8)
            i = int(rng.choice(np.flatnonzero(G[k]))) if G[k].any() else 0
            t[i] = (H[k] - moving - (G[k] @ t - G[k, i] * t[i])) / (G[k, i] or 1.0)
            t = t.astype(np.float32)
            made.append(np.nextafter(t, np.float32(rng.choice([-1, 1]) * np.inf)) if rng.random() < 0.7 else t)
        made = made[rng.integers(len(made)) :]
        rows.append([[float(v) for v in np.float32(np.clip(t, -3e38, 3e38))] for t in made])
    return rows


def attack(spec, certificate, seed, rows) -> tuple[int, set[int]]:
    """Serve hostile candidates; return how many rows were served, and by which candidates. Fails at a violation."""
    rng, judge, served_by = np.random.default_rng(seed), Judge(spec), set()
    reference, count = RulesAgain(certificate, random_tree(seed)), 0
    for kind in (np.float32, np.float64):
        X = np.concatenate(list(hard_points(spec, rng, rows, dtype=kind)))
        Y = []
        for x, candidates in zip(X, hostile(spec, certificate, X, rng), strict=True):
            y, by = reference.served(x[None], [np.float32([row]) for row in candidates])
            served_by.add(int(by[0]))
            Y.append(y[0])
        assert not judge.violations(X, np.stack(Y))
        count += len(X)
    return count, served_by


@pytest.mark.parametrize("name", sorted(RULES))
def test_whatever_is_proposed_the_rules_hold(name):
    spec, certificate = certified(name)
    count, served_by = attack(spec, certificate, 1, 150)
    assert count >= 200
    assert -1 in served_by  # the safe answer was needed
    assert served_by != {-1}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_random_rule_sets_hold(seed):
    rules = draw(seed)
    try:
        spec = rules.spec
    except RuleError:  # a rule that is always true
        return
    certificate = certify_rules(spec, scale=rules.units)
    if "check.scale" in certificate.tensors:
        attack(spec, certificate, seed, 40)


KEY = {"leaf": 9, "rule": 0, "region": 0, "clause": 0}


@pytest.mark.parametrize("name", ["check.outputs", "check.sizes", "check.thresholds", "check.inputs"])
def test_every_number_of_the_check_is_bound_to_the_rules(name):
    package = repacked(certified("oblique")[1])
    array = package.weights[name]
    array.flat[-1] = np.nextafter(array.flat[-1], np.inf if name == "check.thresholds" else -np.inf)
    assert "is not what the rules prescribe" in refusal(package)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("simplex", 0.5000001, "not proved for the safe answer"), ("labels", 1.0, "may have both")],  # p + q is above 1
)
def test_an_unsafe_safe_answer_is_rejected(name, value, reason):
    package = repacked(certified(name)[1])
    package.weights["safe.offset"][:] = value
    assert reason in refusal(package)


def test_a_safe_answer_that_the_clips_push_over_a_rule_is_rejected():
    text = (
        "inputs: {x: [0, 1]}\noutputs: [p, q]\nrules:\n  - {name: a, then: p >= 1}\n  - {name: b, then: p + q <= 3}\n"
    )
    package = repacked(certify_rules(Specification.from_yaml(text)))
    package.weights["safe.offset"][:] = [[-10.0, 2.5]]  # allowed by b, until the clip raises p to 1
    assert "not proved for the safe answer" in refusal(package)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["program"].update(tree=None), "expected F32 of shape"),
        (lambda d: d["program"].update(tree=[0, None]), "expected null or"),
        (lambda d: d["program"].update(tree=[7, None, None]), "a region of the gate"),
        (lambda d: d["program"].update(tree=[True, None, None]), "a region of the gate"),
        (lambda d: d["program"].update(tree=[0, [0, None, None], None]), "asked twice"),
        (lambda d: d["program"].update(tree=[1, None, None]), "not proved for the safe answer"),
        (lambda d: d["program"].update(head="box"), "unknown field"),
        (lambda d: d["gate"]["regions"].pop(), "gate"),
        (lambda d: d["proof"]["safe"].append({**KEY, "literal": 0, "mu": []}), "no obligation"),
        (lambda d: d["proof"]["moved"].append({"leaf": 9, "clip": 0, "mu": []}), "for no clip"),
        (lambda d: d["proof"]["moved"].append({"leaf": 9, "clip": 0, "mu": {}}), "expected a list"),
        (lambda d: d["proof"].update(more=[]), "unknown field"),
    ],
)  # fmt: skip
def test_hostile_documents_are_rejected(change, reason):
    package = repacked(certified("split")[1])
    assert package.document["program"]["tree"] == [0, None, None]
    change(package.document)
    assert reason in refusal(package)


@pytest.mark.parametrize(
    ("mu", "reason"), [(None, "not proved"), ([[90, "1"]], "does not bind here|index below"), ([[0, "-1"]], "negative")]
)
def test_multipliers_must_be_of_rows_that_hold(mu, reason):
    package = repacked(certified("split at an oblique border")[1])
    proofs = package.document["proof"]["safe"]
    assert proofs, "this case needs multipliers"
    if mu is None:
        proofs.clear()
    else:
        proofs[0]["mu"] = [[proofs[0]["mu"][0][0] if row == 0 else row, weight] for row, weight in mu]
    assert re.search(reason, refusal(package))


def test_thresholds_next_to_zero_are_never_subnormal():
    smallest = BINARY64.smallest_normal
    assert threshold_below(smallest * 0, strict=True) == -smallest
    assert threshold_below(smallest * 0, strict=False) == 0
    assert threshold_below(smallest, strict=True) == 0
    assert threshold_below(smallest / 2, strict=False) == 0
    assert threshold_below(-smallest / 2, strict=False) == -smallest
    assert threshold_below(-smallest, strict=True) < -smallest


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        (
            "inputs: {x: [0, 10]}\noutputs: [y, w]\nrules:\n  - {name: lo, when: x >= 4, then: y + w >= 5}\n"
            "  - {name: hi, when: x <= 4, then: y + w <= 4}\n",
            ContradictionError,
            "'lo' and 'hi' contradict each other at x=4",
        ),
        (
            "inputs: {x: [0, 10]}\noutputs: [y, w]\nrules:\n  - {name: lo, then: y + w >= 0.03 * x}\n"
            "  - {name: hi, then: y + w <= 0.3}\n",
            NotCertifiedError,
            "At x=10 rules 'lo' and 'hi' leave a single point",
        ),
        (
            "inputs: {x: [0, 10], y: [0, 10], z: [0, 10]}\nchoices: {act: [a, b, c]}\nrules:\n"
            "  - {name: e, when: x <= 5, then: act != a}\n  - {name: f, when: y <= 5, then: act != b}\n"
            "  - {name: g, when: z <= 5, then: act != c}\n",
            ContradictionError,
            "'e', 'f' and 'g' contradict each other at",
        ),
        *(
            (
                "inputs: {x: [0, 10], z: [0, 10]}\noutputs: [y, w]\nrules:\n"
                f"  - {{name: lo, when: x + z >= 7, then: {left} >= 5}}\n"
                f"  - {{name: hi, when: x + z < 7, then: {left} <= 4}}\n",
                NotCertifiedError,
                "x=7, z=0 conditions of rules 'lo' and 'hi' meet at a border over several inputs",
            )
            for left in ("y", "y + w")
        ),
    ],
)
def test_what_cannot_be_met_is_refused_with_the_input(rules, error, message):
    with pytest.raises(error, match=message):
        certify_rules(Specification.from_yaml(rules))


def test_equal_literals_are_checked_once_and_moving_ones_come_first():
    _, certificate = certified("oblique")
    checked = checked_of(smle_check.StatedSpecification(certificate.document["specification"], certificate.block))
    assert checked.moving == 2
    assert len(checked.literals) == 4
    assert certificate.tensors["check.inputs"].shape == (sum(len(own.x) for own in checked.literals[:2]),)


@pytest.mark.parametrize(
    ("condition", "right", "mu"), [("x < 5", "8 - x", []), ("x + z <= 5", "8 - x - z", [[2, "1"]])]
)
def test_where_a_bit_is_off_the_opposite_is_known_and_nothing_more(condition, right, mu):
    text = (
        "inputs: {x: [0, 10], z: [0, 10]}\noutputs: [y, w]\nrules:\n"
        f"  - {{name: a, when: {condition}, then: y + w <= 20}}\n  - {{name: u, then: y + w >= {right}}}\n"
    )
    certificate = certify_rules(Specification.from_yaml(text))
    document = certificate.document
    assert document["program"]["tree"] is None
    region = document["specification"]["rules"][0]["regions"][0]
    everywhere = document["specification"]["rules"][1]["regions"][0]
    rows = len(document["specification"]["rows"])

    def stored(value):
        package = repacked(certificate)
        package.document["program"]["tree"] = [region, None, None]
        entry = {"leaf": 1, "rule": 1, "region": everywhere, "clause": 0, "literal": 0}
        package.document["proof"]["safe"] = [{**entry, "mu": [[rows + region, "1"]]}] if mu else []
        package.weights["safe.slope"] = np.zeros((2, 2, 2), dtype=np.float32)
        package.weights["safe.offset"] = np.array([[10.0, 0.0], [value, 0.0]], dtype=np.float32)
        return package

    assert "short by" in refusal(stored(2.9))
    assert stored(3.0).seal().check()
