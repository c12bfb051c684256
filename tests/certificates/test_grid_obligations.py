"""Grid heads: each obligation is needed. Left out, a head is accepted that breaks its rule; with it, none is.

Changed documents, with all prescribed numbers and digests made new, are accepted only if what they serve obeys.
"""

import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

import smle_check
from smle.heads.grid.grid_author import certify_grid
from smle.rules import Specification
from smle_check.floats import below, coefficient, threshold_below
from smle_check.heads import grid, steps
from smle_check.heads.known import Boxes, Facts, Known
from support.builder import accepted, repacked
from support.grid_documents import broken, hard_points, literal, number, package, prescribed, row, served
from support.mutations import attacked

REAL = number(0, 100, None)
TENTH, THIRD = Fraction(1, 10), Fraction(3, 10)


def nearly(shape, seed=0):
    """Return pairs of real inputs with 0.1 a + 0.3 b next to whole numbers."""
    rng = np.random.default_rng(seed)
    a, goal = rng.uniform(0, 40, shape), rng.integers(5, 20, shape)
    b = (goal - 0.1 * a) / 0.3
    return np.stack([a, np.nextafter(b, rng.choice([-np.inf, 0, np.inf], shape))], axis=1)


def decoding():
    """L1: float32 does not tell cents around 150,000 apart."""
    cents, both = number(0, 160_000, "1/100"), [(0, 1), (1, -1)]
    clauses = [[literal(both, [], "1/100")], [literal([(0, -1), (1, 1)], [], "-1/100")]]
    made = package([REAL], [cents, cents], clauses, offset=[2.0, 1.0])
    k = np.arange(15_000_000, 15_000_400)
    return made, np.zeros((400, 1)), np.stack([(k + 1) / 100, k / 100], axis=1).astype(np.float32)


def sums():
    """L2: beyond 2^53 sums of whole numbers are rounded."""
    whole, few = number(0, 2**24 - 1, 1), number(0, 8, 1)
    bound = (2**31 + 1) * (2**24 - 1) + 4
    made = package([REAL], [whole, few], [[literal([(0, 2**31 + 1), (1, 1)], [], bound)]])
    answers = np.stack([np.full(9, 2**24 - 1), np.arange(9)], axis=1).astype(np.float32)
    return made, np.zeros((9, 1)), answers


def moving():
    """L3 (c): sums over several inputs are rounded."""
    made = package([REAL] * 2, [number(0, 30, 1)], [[literal([(0, 1)], [(0, -TENTH), (1, -THIRD)], "1/2")]])
    X = nearly(400)
    X[:, 0] = np.minimum(X[:, 0], 100)
    X[:, 1] = np.clip((np.rint(0.1 * X[:, 0] + 0.3 * X[:, 1]) - 0.5 - 0.1 * X[:, 0]) / 0.3, 0, 100)
    return made, X, np.rint(0.1 * X[:, :1] + 0.3 * X[:, 1:] + 0.5).astype(np.float32)


def proportional():
    """L3 (b): products are rounded."""
    made = package([REAL], [number(0, 70, 1)], [[literal([(0, 1)], [(0, Fraction(-7, 10))], 0)]])
    n = np.arange(1, 70)
    return made, np.minimum(np.nextafter(n / 0.7, 0), 100)[:, None], n[:, None].astype(np.float32)


def gates():
    """L4: where a region holds as stated, the gate sees it."""
    oblique = row([(0, TENTH), (1, -THIRD)], 0)
    made = package([REAL] * 2, [number(0, 5, 1)], [[literal([(0, 1)], [], 0)]], rows=[oblique], regions=[[0]])
    b = np.arange(1.0, 31.0)
    return made, np.stack([3 * b, b], axis=1), np.full((30, 1), 4, dtype=np.float32)


def strict_gates():
    """L4: a strict comparison holds up to the number below its bound."""
    below_one = row([(0, 1)], 1, strict=True)
    made = package([REAL], [number(0, 5, 1)], [[literal([(0, 1)], [], 0)]], rows=[below_one], regions=[[0]])
    return made, np.array([[np.nextafter(1.0, 0)], [0.5], [1.0]]), np.full((3, 1), 4, dtype=np.float32)


def safe_range():
    """L5: safe answers are in range."""
    made = package([REAL], [number(0, 5, 1)], [[literal([(0, 1)], [], 9)]], offset=7.0)
    return made, np.zeros((1, 1)), None


def safe_clauses():
    """L5: safe answers obey."""
    made = package([REAL], [number(0, 5, 1)], [[literal([(0, 1)], [(0, "1/100")], 3)]], offset=3.0)
    return made, np.full((1, 1), 50.0), None


def safe_sums():
    """L5: the sum that makes a safe answer is exact."""
    last, slope = 2**24 - 1, 2**30 + 1
    fixed, one = number(last, last, 1), [[literal([(0, 1)], [], 1)], [literal([(0, -1)], [], -1)]]
    made = package([fixed], [number(0, 5, 1)], one, slope=float(slope), offset=float(1 - slope * last))
    return made, np.full((1, 1), float(last)), None


def unchecked():
    """The check: clauses are left out only where ranges settle them."""
    made = package([REAL], [number(0, 5, 1)], [[literal([(0, 1)], [], 3)]])
    return made, np.zeros((1, 1)), np.full((1, 1), 5, dtype=np.float32)


def beyond_rows():
    """Outside of a row over whole numbers the sum is one more, not two."""
    kinds, sign = [number(0, 9, 1)] * 2, [(0, 1), (1, 1)]
    proof = {"leaf": 1, "rule": 0, "region": 1, "clause": 0, "literal": 0, "mu": [[1, "1"]]}
    made = package(
        kinds, [number(-9, 20, 1)], [[literal([(0, 1)], [(0, -1), (1, -1)], -4)]], rows=[row(sign, 3)],
        regions=[[0], []], tree=[0, None, None], offset=[[-9.0], [1.0]], proofs=[proof],
    )  # fmt: skip
    return made, np.array([[2.0, 2.0]]), None


def beyond_comparisons():
    """Outside of a comparison of whole numbers there is the next one."""
    made = package(
        [number(0, 9, 1)], [number(-9, 20, 1)], [[literal([(0, 1)], [(0, -1)], -4)]], rows=[row([(0, 1)], 3)],
        regions=[[0], []], tree=[0, None, None], offset=[[-9.0], [1.0]],
    )  # fmt: skip
    return made, np.array([[4.0]]), None


def digits():
    """L3 (a): products of many digits are rounded."""
    share = Fraction(round(0.7 * 2**40) | 1, 2**40)
    made = package([REAL], [number(0, 70, 1)], [[literal([(0, 1)], [(0, -share)], 0)]])
    n = np.arange(1, 70)
    return made, np.minimum(np.nextafter(n / float(share), 0), 100)[:, None], n[:, None].astype(np.float32)


def rounded(spec, moved, bound, strict, digits):
    """Return coefficients and fraction as if sums were exact."""
    return {j: coefficient(v) for j, v in moved.items()}, threshold_below(bound - bound // 1, strict=strict)


def further(own, region, fmt):
    known = own_beyond(own, region, fmt)
    return Known({k: (low + 1, high) for k, (low, high) in known.ends.items()}, known.members)


def further_row(own, region):
    found = Facts.complement(own, region)
    return found if found is None else (found[0], found[1] - 2)


own_beyond = steps.ReadBoxes.beyond
assert own_beyond is not Boxes.beyond
LEFT_OUT = {
    decoding: [(steps, "SINGLE", 2**30)],
    sums: [(grid, "LARGEST_SUM", 2**60)],
    moving: [(grid, "real_part", rounded)],
    proportional: [(grid, "real_part", rounded)],
    digits: [(grid, "is_short", lambda *_: True)],
    gates: [(steps, "guard_slack", lambda *_: Fraction(0))],
    strict_gates: [(steps, "below_strictly", lambda bound, fmt: below(below(bound, fmt), fmt))],
    safe_range: [(grid.SafeAnswer, "require_range", lambda self: None)],
    safe_clauses: [(grid.SafeAnswer, "clause", lambda *_: None)],
    safe_sums: [(grid, "EXACT", 2**60)],
    unchecked: [(grid, "in_range", lambda *_: True)],
    beyond_rows: [(steps.ReadFacts, "complement", further_row)],
    beyond_comparisons: [(steps.ReadBoxes, "beyond", further)],
}


@pytest.mark.parametrize("case", LEFT_OUT, ids=lambda case: case.__name__)
def test_an_obligation_that_is_left_out_is_missed(case, monkeypatch):
    made, X, answers = case()
    with monkeypatch.context() as weaker:
        for change in LEFT_OUT[case]:
            weaker.setattr(*change)
        prescribed(made).seal().check()
        y = served(made, X, answers)
    assert broken(made, X, y), "the judge finds nothing"
    # With it the same document is refused, or it prescribes other numbers, which obey.
    made, X, answers = case()
    try:
        prescribed(made).seal().check()
    except smle_check.Rejected:
        return
    assert not broken(made, X, served(made, X, answers))


RULES = """
inputs:
  demand: {range: [0, 20], integer: true}
  weight: {range: [0, 4], step: 0.1}
  t: [-1, 1]
  site: {categories: [a, b, c]}
outputs: {a: {integer: true}, b: {integer: true}, price: {step: 0.01}}
rules:
  - {name: caps, then: 0 <= a <= 12 and 0 <= b <= 12 and 0 <= price <= 50}
  - {name: sum, then: a + b == demand}
  - {name: moving, then: price <= 3 + 0.7 * t + 2 * weight}
  - {name: night, when: t + weight >= 1, then: price >= 0.5 or a >= 1}
  - {name: most, when: weight > 1.3 and site == b, then: price < 4}
  - {name: whole, when: demand - weight >= 3, then: price <= 3.5}
"""


@pytest.mark.parametrize(("rules", "seed", "rounds"), [(False, 1, 150), (True, 2, 250)])
def test_changed_grid_heads_are_accepted_only_if_they_obey(rules, seed, rounds):
    """With digests made new, and with what the format prescribes for changed rules."""
    certificate, rng, tally = certify_grid(Specification.from_yaml(RULES)), random.Random(seed), Counter()
    for _ in range(rounds):
        what, made = attacked(rng, repacked(certificate), rules=rules)
        if rules:
            try:
                prescribed(made).seal()
            except Exception:  # noqa: BLE001 - documents may be broken in any way: the checker says so
                made.seal()
        if not accepted(made):
            tally["refused"] += 1
            continue
        tally["accepted"] += 1
        for X, answers in hard_points(made, np.random.default_rng(3), 40):
            assert not broken(made, X, served(made, X, answers)), what
    assert tally["refused"] > rounds / 5
    assert tally["accepted"] > rounds / 20
