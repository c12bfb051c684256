"""Regions know categories: members left, prices of groups, pairs that never meet, safe answers by member."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

import smle_check
from smle import Specification
from smle.heads.rules.rules_author import certify_rules
from smle_check.floats import BINARY32, BINARY64, FORMATS, nearest
from smle_check.heads.candidates import rounding
from smle_check.heads.clips import Pairs, limits_of, read_clips
from smle_check.heads.known import Boxes, Facts, Leaf, Members
from support.builder import accepted, refusal, repacked
from support.sampling import Judge, hard_points
from support.written_again import RulesAgain, random_tree

INPUTS = [{"name": "x", "lower": "0", "upper": "10"}, *({"name": n, "lower": "0", "upper": "1"} for n in "abcpq")]
GROUPS = [[1, 2, 3], [4, 5]]


def stated(rows: list, regions: list) -> smle_check.StatedSpecification:
    return smle_check.StatedSpecification(
        {"inputs": INPUTS, "one_hot": GROUPS, "outputs": [{"name": "y", "kind": "number"}], "rows": rows,
         "regions": regions, "rules": []}, b"",
    )  # fmt: skip


def row(terms: dict[int, object], bound: object, strict: bool = False) -> dict:
    return {"terms": [[k, str(v)] for k, v in sorted(terms.items())], "bound": str(bound), "strict": strict}


def points(fmt) -> list[tuple[Fraction, ...]]:
    """Inputs of the domain: some numbers, and all members of both groups."""
    numbers = [nearest(Fraction(v), fmt) for v in ("0", "3/10", "5", "10")]
    units = [[Fraction(int(i == j)) for i in range(3)] for j in range(3)]
    pairs = [[Fraction(int(i == j)) for i in range(2)] for j in range(2)]
    return [(x, *a, *b) for x, a, b in itertools.product(numbers, units, pairs)]


def holds(one: smle_check.stated.StatedRow, x: tuple[Fraction, ...], fmt) -> bool:
    """Whether a row holds as the gate may see it: comparisons exactly, others with their enlarged bound."""
    total, (bound, strict) = sum(v * x[k] for k, v in one.terms.items()), one.compared[fmt]
    return total < bound if strict else total <= bound


@pytest.mark.parametrize(
    ("terms", "bound", "strict", "left"),
    [
        ({1: 1}, "1/2", False, {2, 3}),
        ({1: -1}, "-1/2", False, {1}),
        ({1: 1}, "1", True, {2, 3}),
        ({1: 1}, "1", False, {1, 2, 3}),
        ({1: 1}, "0", False, {2, 3}),
        ({1: 1}, "0", True, set()),
        ({1: -1}, "0", True, {1}),
        ({1: -1}, "-1", False, {1}),
        ({1: -1}, "-1", True, set()),
        ({1: 1, 2: 1}, "0", False, {3}),
        ({1: -1, 2: -1}, "-1", False, {1, 2}),
        ({1: 3, 2: -2, 3: 5}, "4", False, {1, 2}),
        ({1: 3, 2: -2}, "-1", False, {2}),
    ],
)
def test_members_are_those_at_which_the_row_holds(terms, bound, strict, left):
    spec = stated([row(terms, bound, strict)], [[0]])
    boxes = Boxes(spec)
    for fmt in FORMATS:
        members = boxes.of(0, fmt).members[0]
        assert {k for k in GROUPS[0] if k in members} == left
        assert boxes.count(0, members) == len(left)
        outside = boxes.beyond(0, fmt).members[0]
        assert {k for k in GROUPS[0] if k in outside} == {1, 2, 3} - left
        assert (boxes.meeting([0], fmt) is None) == (not left)


def test_members_are_decided_in_each_format():
    """One less than 1 by 2^-40 is 1 in float32: the column may be 1 there, and not in float64."""
    spec = stated([row({1: 1}, Fraction(1) - Fraction(1, 2**40))], [[0]])
    boxes = Boxes(spec)
    assert boxes.of(0, BINARY32).members[0] == Members(frozenset(), False)
    assert boxes.of(0, BINARY64).members[0] == Members(frozenset({1}), False)
    facts = Facts(boxes)
    assert facts.most({1: Fraction(7)}, Fraction(0), 0, None, []) == 7  # the worse of both


def test_a_row_over_a_group_counts_as_the_gate_sees_it():
    """Inside of its slack a sum may fall on either side: the member stays left, inside and outside."""
    third = Fraction(1, 3)
    spec = stated([row({1: third, 2: -1}, third - Fraction(1, 2**60))], [[0]])
    boxes = Boxes(spec)
    for fmt in FORMATS:
        assert 1 in boxes.of(0, fmt).members[0]
        assert 1 in boxes.beyond(0, fmt).members[0]
        assert 2 not in boxes.beyond(0, fmt).members[0]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_known_holds_at_every_input(seed):
    rng = random.Random(seed)
    rows, count = [], 6
    for _ in range(count):
        if rng.random() < 0.6:
            k = rng.randrange(6)
            sign = rng.choice([1, -1])
            rows.append(row({k: sign}, sign * Fraction(rng.choice(["0", "1", "1/2", "3/10", "5"])), rng.random() < 0.5))
        else:
            chosen = rng.sample(rng.choice([GROUPS[0], GROUPS[1], [0, 1, 2], [1, 4, 5]]), 2)
            rows.append(row({k: rng.choice([1, -1, 2]) for k in chosen}, rng.choice([0, 1, 2, -1]), rng.random() < 0.5))
    regions = [sorted(rng.sample(range(count), rng.randint(1, 3))) for _ in range(4)]
    spec = stated(rows, regions)
    boxes = Boxes(spec)
    on, off = regions[:2], [3]
    form = {k: Fraction(rng.randint(-5, 5)) for k in range(6)}
    for fmt in FORMATS:
        inside = [
            x for x in points(fmt)
            if all(holds(spec.rows[r], x, fmt) for region in on for r in region)
            and not all(
                holds(spec.rows[r], x, fmt) if len(spec.rows[r].terms) == 1
                else sum(v * x[k] for k, v in spec.rows[r].terms.items()) <= spec.rows[r].bound for r in regions[3]
            )
        ]  # fmt: skip
        known = boxes.meeting([0, 1], fmt, off)
        if known is None:
            assert not inside
            continue
        most = boxes.most(form, known, fmt)
        for x in inside:
            assert all(a <= x[k] <= b for k, (a, b) in known.ends.items())
            assert all(next(k for k in GROUPS[g] if x[k]) in own for g, own in known.members.items())
            assert sum(v * x[k] for k, v in form.items()) <= most
        # And it is the maximum over ranges and members, no more.
        ends = [known.ends.get(0, tuple(side[0] for side in spec.passed[fmt]))]
        groups = [[k for k in own if g not in known.members or k in known.members[g]] for g, own in enumerate(GROUPS)]
        best = max(
            form[0] * x + form[a] + form[b] for x in ends[0] for a in groups[0] for b in groups[1]
        )  # fmt: skip
        assert most == best


def test_members_that_a_proof_may_not_leave_out():
    """The price of a group is that of its worst member left; multipliers for other rows of the group are refused."""
    spec = stated([row({1: 1}, "1/2"), row({0: 1, 1: 2}, "3")], [[0], [1]])
    facts = Facts(Boxes(spec), Leaf((0,), ()))
    assert facts.most({1: Fraction(9), 2: Fraction(1), 3: Fraction(2)}, Fraction(0), None, None, []) == 2
    with pytest.raises(smle_check.Rejected, match=r"does not bind here|index below"):
        facts.most({1: Fraction(9)}, Fraction(0), None, None, [[2, "1"]])  # the sum of the group


CLIPS = """
inputs: {x: [0, 10], k: {categories: [a, b, c, d]}, j: {categories: [u, v]}}
outputs: [y]
rules:
"""


@pytest.mark.parametrize("seed", range(25))
def test_pairs_that_are_not_looked_at_are_proved_or_never_meet(seed):
    rng = random.Random(seed)
    conditions = ["k == a", "k == b", "k != c", "j == u", "x < 3", "x >= 5 and k == a", "2 <= x <= 6", "x + 0 * x >= 1"]
    lines = []
    for i in range(14):
        when = rng.choice(conditions)
        low = rng.randint(0, 3)
        then = f"y >= {low}" if rng.random() < 0.5 else f"y <= {low + rng.choice([5, 6, 9])}"
        lines.append(f"  - {{name: r{i}, when: {when}, then: {then}}}\n")
    certificate = certify_rules(Specification.from_yaml(CLIPS + "".join(lines)))
    spec = smle_check.StatedSpecification(certificate.document["specification"], certificate.block)
    clips = read_clips(spec, certificate.tensors, limits_of(spec))
    pairs = Pairs(Boxes(spec), clips)
    for k, clip in enumerate(clips):
        together, alone = pairs.against(k)
        later = [j for j in range(k + 1, len(clips)) if clips[j].limit.side != clip.limit.side]
        assert set(alone) <= {k, *later}
        for j in set(later) - set(alone):
            margin = pairs.margin(k, j, [])  # raises if it is not proved
            assert margin is None or together is None or margin >= together


def test_a_limit_that_is_undone_on_its_own_category_is_found():
    limits = [f"  - {{name: l{n}, when: k == {n}, then: {i} <= y <= {i}.5}}\n" for i, n in enumerate("abcd")]
    text = CLIPS + "".join(limits)
    package = repacked(certify_rules(Specification.from_yaml(text)))
    assert accepted(package)
    for i in range(4):
        changed = repacked(certify_rules(Specification.from_yaml(text)))
        changed.weights["clips.constant_upper"][i] = i - 0.25
        assert f"against rule 'l{'abcd'[i]}'" in refusal(changed) or "not proved" in refusal(changed)
    lower = package.weights["clips.constant_upper"].copy()
    package.weights["clips.constant_upper"] = lower[[1, 0, 2, 3]]  # of another category: too high for one of them
    assert "not proved" in refusal(package)


TABLE = """
inputs: {x: [0, 1], k: {categories: [a, b, c, d, e]}}
outputs: [price, cost]
rules:
  - {name: margin, then: price >= cost + 1}
""" + "".join(
    f"  - {{name: price {n}, when: k == {n}, then: {5 + 3 * i} <= price <= {6 + 3 * i}}}\n"
    f"  - {{name: cost {n}, when: k == {n}, then: {3 + 3 * i} <= cost <= {4.5 + 3 * i}}}\n"
    for i, n in enumerate("abcde")
)  # fmt: skip


def test_safe_answers_may_be_tables_over_a_category():
    spec = Specification.from_yaml(TABLE)
    certificate = certify_rules(spec)
    package = repacked(certificate)
    assert package.document["program"]["tree"] is None
    slope = package.weights["safe.slope"]
    assert slope.shape == (1, 2, 6)
    assert (slope[0, :, 1:] != 0).all()
    assert not slope[0, :, 0].any()
    assert not package.weights["safe.offset"].any()
    rng, program = np.random.default_rng(0), RulesAgain(certificate, random_tree(0))
    for kind in (np.float32, np.float64):
        X = np.concatenate(list(hard_points(spec, rng, 200, dtype=kind)))
        Y = program.served(X, [np.full((len(X), 2), [np.nan, np.inf], dtype=np.float32)])[0]
        assert not list(Judge(spec).violations(X, Y))


NUMBERS = [0.001, 1, 7, 123.4, 98765.4321, 10**9, 10**12]
SHARES = f"""
inputs: {{w: [0, 1], k: {{categories: [{", ".join(f"m{i}" for i in range(len(NUMBERS)))}]}}}}
outputs: [price, cost]
tables:
  cap: {{key: k, values: {{{", ".join(f"m{i}: {v}" for i, v in enumerate(NUMBERS))}}}}}
  low: {{key: k, values: {{{", ".join(f"m{i}: {v / 2}" for i, v in enumerate(NUMBERS))}}}}}
rules:
  - {{name: total, then: "abs(price + cost - cap[k]) <= 0.01 * cap[k]"}}
  - {{name: least, then: "price >= low[k]"}}
"""


@pytest.mark.parametrize("pinned", [False, True])
def test_safe_tables_have_room_in_the_size_of_each_number(pinned):
    high = ", ".join(f"m{i}: {v / 2 if i == 1 else v}" for i, v in enumerate(NUMBERS))  # one price alone is allowed
    text = SHARES.replace("rules:", f"  high: {{key: k, values: {{{high}}}}}\nrules:")
    text = text + '  - {name: most, then: "price <= high[k]"}\n' if pinned else SHARES
    spec = Specification.from_yaml(text)
    certificate = certify_rules(spec)
    rng, program = np.random.default_rng(0), RulesAgain(certificate, random_tree(0))
    X = np.concatenate(list(hard_points(spec, rng, 60, dtype=np.float64)))
    Y = program.served(X, [np.full((len(X), 2), [np.nan, np.inf], dtype=np.float32)])[0]
    assert not list(Judge(spec).violations(X, Y))


@pytest.mark.parametrize("member", range(5))
@pytest.mark.parametrize("output", [0, 1])
def test_every_entry_of_a_safe_table_counts(member, output):
    package = repacked(certify_rules(Specification.from_yaml(TABLE)))
    package.weights["safe.slope"][0, output, 1 + member] += -20 if output == 0 else 20
    assert "not proved for the safe answer" in refusal(package)


def test_tables_are_exact_only_within_one_group_and_without_an_offset():
    spec = stated([], [])
    table = {1: Fraction(1, 4), 2: Fraction(7)}
    assert rounding(spec, table, Fraction(0)) == 0
    assert rounding(spec, table, Fraction(1)) > 0
    assert rounding(spec, table | {0: Fraction(1)}, Fraction(0)) > 0
    assert rounding(spec, table | {4: Fraction(1)}, Fraction(0)) > 0
    assert spec.largest(table | {0: Fraction(-2), 4: Fraction(-3)}, Fraction(-5)) == 5 + 7 + 20 + 3


def test_a_clause_by_members_needs_a_literal_for_each():
    """`price <= 10 or cost <= 0` by category: for some members the first, for others the second."""
    text = TABLE.replace("price >= cost + 1", "price <= 12 or cost >= 9")
    package = repacked(certify_rules(Specification.from_yaml(text)))
    assert accepted(package.seal())
    changed = repacked(certify_rules(Specification.from_yaml(text)))
    for member in range(5):
        changed.weights["safe.slope"][0, :, 1 + member] = 17, 5  # neither holds behind the clips of the dearest
    assert "not proved for the safe answer" in refusal(changed)
