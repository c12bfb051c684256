"""The soundness bench: nothing is found in certified models, and what is not safe is found out."""

import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from smle.heads.box.program import Box
from smle_check.floats import BINARY32, nearest
from studies.bench import available, run_bench
from studies.bench.box_attacks import ATTACKS, Opponent
from studies.bench.soundness import Ledger, attack_all
from studies.bench.soundness_programs import ORDERS, HeadProgram, fused_multiply_add
from studies.bench.soundness_subjects import makers
from tests.support.sampling import Judge

MADE = (
    "oblique, at the limit",
    "oblique, affine",
    "mixed, affine",
    "dose, one head",
    "one region",
    "dose, network",
    "difference of large numbers",
)


@pytest.fixture(scope="module")
def subjects():
    made = makers(quick=True)
    return {name: made[name]() for name in MADE}


@pytest.mark.audit
def test_the_quick_run_finds_nothing_where_it_should_and_something_where_it_should(tmp_path):
    assert "soundness" in available()
    result = run_bench("soundness", quick=True, output=tmp_path)
    assert all(result.passed.values()), result.passed
    models, attacks, ways, runtimes, unsafe = result.tables
    assert models.rows[-1][2] >= 150_000
    assert all(row[3] == 0 for row in models.rows)
    assert len(attacks.rows) == 14
    assert all(row[1] > 0 for row in attacks.rows)
    ((_, answered, refused, crashed),) = runtimes.rows
    assert answered > 0 < refused
    assert crashed == 0
    assert any("onnxruntime" in row[0] for row in ways.rows)
    assert any("fused" in row[0] for row in ways.rows)
    assert [row[0] for row in unsafe.rows] == [
        "an uncertified network",
        "a plain float32 gate, without slack",
        "a float32 projection layer",
        "a certified head run in bfloat16",
    ]
    assert all(row[3] < 0 for row in unsafe.rows)
    assert (tmp_path / "soundness.json").exists()


def test_a_head_that_is_off_by_little_is_found_and_can_be_reproduced(subjects):
    """One bias moved by a ten-thousandth, behind the certificate's back."""
    subject = subjects["oblique, at the limit"]
    network = copy.deepcopy(subject.network)
    tensors = subject.program.tensors
    off = {**tensors, "heads.bias": tensors["heads.bias"] + np.float32(1e-4)}
    network.head.served.program = Box(subject.program.ops, off)
    ledger, moved = Ledger(), replace(subject, network=network)
    attack_all(Opponent, ATTACKS, moved, 20_000, ledger)
    assert ledger.models[subject.name].violations > 0
    model, _, way, kind, x, z, y = next(row for row in ledger.reproducers if row[2] == "torch")
    assert (model, way) == (subject.name, "torch")
    X = np.array([[float.fromhex(v) for v in x.split()]], dtype=kind)
    Z, Y = (np.array([[float.fromhex(v) for v in part.split()]], dtype=np.float32) for part in (z, y))
    again = Opponent(moved, np.random.default_rng(0)).deployed(X, Z)
    assert np.abs(again - Y).max() <= 1e-6
    assert Judge(subject.spec).violations(X, Y)


def test_margins_are_exact(subjects):
    subject = subjects["dose, one head"]
    spec, judge, opponent = subject.spec, Judge(subject.spec), Opponent(subject, np.random.default_rng(1))
    X = opponent.facets(300, np.float64)
    Y = opponent.deployed(X, opponent.corners(X)) + opponent.rng.choice([0.0, 30.0], size=(300, 1)).astype(np.float32)
    found, least = judge.judge(X, Y), []
    broken = set()
    active = dict(judge.active(X))
    for region, rules in enumerate(judge.cells.rules):
        for i in np.flatnonzero(active[region]):
            x, y = ([Fraction(v) for v in row[i].tolist()] for row in (X, Y))
            for rule in rules:
                requirement = spec.rules[rule].requirement
                for clause in requirement.expanded():
                    least.append(max(-literal.excess(y, x) for literal in clause.literals))
                if not requirement.holds(y, x):
                    broken.add((rule, int(i)))
    assert found.margin == min(least)
    assert {(rule, int(i)) for rule, rows in found.broken.items() for i in rows} == broken
    assert broken


def test_ties_are_decided_in_rationals(subjects):
    """On the border of `p - q <= 1`, and one number of the format beyond."""
    spec = subjects["difference of large numbers"].spec
    judge, x = Judge(spec), np.array([[0.0, 3.0]], dtype=np.float32)
    one = np.float32(1)
    assert judge.judge(x, np.array([[one, 0]], dtype=np.float32)).margin == 0
    assert not judge.violations(x, np.array([[one, 0]], dtype=np.float32))
    beyond = np.nextafter(one, np.float32(2))
    assert judge.violations(x, np.array([[beyond, 0]], dtype=np.float32))
    tiny = np.array([[1, -1e-45]], dtype=np.float32)
    assert judge.violations(x, tiny), "1 - (-1e-45) rounds to 1 in every float format"


def test_fused_multiply_add_is_rounded_once():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=4000).astype(np.float32) for _ in range(2))
    c = (-a.astype(float) * b * (1 + rng.choice([0, 2.0**-24, 2.0**-25, 2.0**-30, 1], size=4000))).astype(np.float32)
    found = fused_multiply_add(a, b, c)
    differs = 0
    for p, q, r, got in zip(a.tolist(), b.tolist(), c.tolist(), found.tolist(), strict=True):
        assert nearest(Fraction(p) * Fraction(q) + Fraction(r), BINARY32) == Fraction(got)
        differs += got != float(np.float32(np.float32(p) * np.float32(q)) + np.float32(r))
    assert differs > 1000


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_stays_within_the_bound(name):
    rng = np.random.default_rng(1)
    n = 13
    A, v, b = (rng.normal(size=size).astype(np.float32) for size in ((200, 3, n), (200, n), (200, 3)))
    found = ORDERS[name](A, v, b)
    assert found.dtype == np.float32
    exact = np.einsum("rkn,rn->rk", A.astype(float), v.astype(float)) + b
    size = np.einsum("rkn,rn->rk", np.abs(A).astype(float), np.abs(v).astype(float)) + np.abs(b)
    assert (np.abs(found - exact) <= (n + 1) * 2.0**-24 / (1 - (n + 1) * 2.0**-24) * size).all()
    if name != "in turn":
        assert (found != ORDERS["in turn"](A, v, b)).any()


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_program_written_down_again_is_the_deployed_one(subjects, name, dtype):
    """The same cells (but for rounding at thresholds), and outputs within a few roundings."""
    subject = subjects[name]
    opponent = Opponent(subject, np.random.default_rng(2))
    X, Z = opponent.mixture(3000, dtype)
    program = HeadProgram(subject)
    low, high = opponent.ends(dtype)
    x, weight = np.fmin(np.fmax(X, low), high), subject.program.tensors["heads.weight"]
    same = program.cells(x) == opponent.cells(X)
    assert same.mean() > 0.9
    ours, theirs = program(X, Z)[same], opponent.deployed(X, Z)[same]
    free = program.cells(x)[same] == len(weight)
    scale = 1 + np.abs(weight).sum(axis=2).max() * 100
    assert np.abs(ours[~free] - theirs[~free]).max() <= 1e-6 * scale
