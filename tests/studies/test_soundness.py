"""The campaign of attacks: nothing is found in certified heads, and what is not safe is found out."""

import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from smle.heads.box.box_program import Box
from smle_check.floats import BINARY32, nearest
from studies.attacks import soundness
from studies.attacks.doors import DOORS, MODES
from studies.attacks.points import POINTS, BoxAttacker, RulesAttacker
from studies.attacks.soundness import UNSAFE, AttackJob, attack, jobs_of, page, solve
from studies.attacks.subjects import RULES, boxes, drawn_grid, stated
from studies.bench import run_bench
from tests.support.runtimes import installed_runtime
from tests.support.sampling import Judge
from tests.support.written_again import ORDERS, BoxAgain, RulesAgain, fused_multiply_add

MADE = (
    "oblique, at the limit",
    "oblique, affine",
    "mixed, affine",
    "dose, one head",
    "one region",
    "dose, network",
    "difference of large numbers",
)
HEADS = ("ramps", "ranges", "limits", "labels", "advice", "mixed")


@pytest.fixture(scope="module")
def subjects():
    made = boxes(quick=True)
    return {name: made[name]() for name in MADE}


# --- the campaign


@pytest.mark.audit
def test_the_quick_run_finds_nothing_where_it_should_and_something_where_it_should(tmp_path):
    result = run_bench("soundness", quick=True, output=tmp_path, folder=tmp_path / "jobs")
    assert all(result.passed.values()), result.passed
    models, attacks, ways, runtimes, unsafe = result.tables
    assert models.rows[-1][2] >= 250_000
    assert all(row[3] == 0 for row in models.rows)
    families = {name for shares in POINTS.values() for name in shares} | DOORS.keys() | {"sequences", "graphs"}
    assert {row[0] for row in attacks.rows} == families
    assert all(row[1] > 0 for row in attacks.rows)
    ((_, answered, refused, crashed),) = runtimes.rows
    assert answered > 0 < refused
    assert crashed == 0
    for way in (
        "onnxruntime, ORT_DISABLE_ALL",
        "fused",
        "torch, compile, flush",
        "Transformer, padding",
        "graph network",
    ):
        assert any(way in row[0] for row in ways.rows), way
    assert {row[0] for row in unsafe.rows} == UNSAFE.keys()
    again = run_bench("soundness", quick=True, folder=tmp_path / "jobs")
    assert again.tables == result.tables, "finished jobs are not run again"


@pytest.mark.parametrize("family", ["grid", "rules"])
def test_a_small_job_tries_every_point_and_door_of_its_family(family, monkeypatch):
    subject = drawn_grid("coupled", 0) if family == "grid" else stated("limits", RULES["limits"])
    found = list(attack(subject, 400, runtimes=[installed_runtime()]))
    assert not any(len(judge.judge(batch.at, batch.Y).rows) for judge, _, batch in found)
    wanted = {*POINTS[family], *(name for name, (_, shares) in DOORS.items() if family in shares)}
    assert {name for _, name, _ in found} == wanted - {"the model's own answers"}
    modes = {batch.way for _, name, batch in found if name == "torch, in every mode"}
    assert modes == {f"torch, {mode}{flush}" for mode in MODES for flush in ("", ", flush to zero")}


@pytest.mark.parametrize("name", [name for name in UNSAFE if "torch" not in name])
def test_heads_that_are_not_safe_are_found_out(name):
    rows = solve(AttackJob("unsafe", name, 0, 20_000, True))
    told = page(rows, quick=True)
    ((shown, points, found, margin, example),) = told.tables[-1].rows
    assert (shown, points > 0) == (name, True)
    assert found != "found: 0"
    assert margin <= 0  # on the border of a strict rule
    assert example.startswith("rule '")


@pytest.mark.audit
@pytest.mark.parametrize("name", [name for name in UNSAFE if "in torch" in name])
def test_heads_that_are_not_safe_are_found_out_in_every_mode(name):
    """Where torch does not flush, a comparison behind a head is harmless; float64 and half hold no tiny numbers."""
    counts = [row["violations"] for row in solve(AttackJob("unsafe", name, 0, 20_000, True)) if "points" in row]
    assert len(counts) == 2 * len(MODES)
    assert sum(count > 0 for count in counts) >= (len(MODES) - 2 if "comparison" in name else len(counts))


def test_every_head_has_jobs_with_keys_of_their_own():
    jobs = jobs_of(quick=False)
    assert len({job.key for job in jobs}) == len(jobs)
    assert sum(job.points for job in jobs) >= 100_000_000
    subjects = {job.subject for job in jobs}
    assert subjects >= {*boxes(quick=False), "rules: bank, boosting", "whole numbers: large", "graphs", *UNSAFE}


def test_a_violation_is_shown_with_what_repeats_it(subjects, monkeypatch):
    """One bias moved by a ten-thousandth, behind the certificate's back."""
    subject = subjects["oblique, at the limit"]
    network, tensors = copy.deepcopy(subject.network), subject.program.tensors
    off = {**tensors, "heads.bias": tensors["heads.bias"] + np.float32(1e-4)}
    network.head.served.program = Box(subject.program.ops, off)
    moved = replace(subject, network=network)
    monkeypatch.setattr(soundness, "_made", lambda name, quick: moved)
    monkeypatch.setattr(soundness, "DOORS", {})
    result = page(solve(AttackJob("box", subject.name, 0, 20_000, True)), quick=True)
    assert not next(iter(result.passed.values()))
    shown = dict(zip(result.tables[-1].columns, result.tables[-1].rows[0], strict=True))
    X = np.array([[float.fromhex(v) for v in shown["x"].split()]], dtype=shown["format"])
    Z, Y = (np.array([[float.fromhex(v) for v in shown[name].split()]], np.float32) for name in ("embedding", "output"))
    again = BoxAttacker(moved, np.random.default_rng(0)).deployed(X, Z)
    assert np.abs(again - Y).max() <= 1e-6
    assert Judge(subject.spec).violations(X, Y)


# --- the judge, and programs written down again


def test_margins_are_exact(subjects):
    subject = subjects["dose, one head"]
    spec, judge, attacker = subject.spec, Judge(subject.spec), BoxAttacker(subject, np.random.default_rng(1))
    X = attacker.facets(300, np.float64)
    Y = attacker.deployed(X, attacker.corners(X)) + attacker.rng.choice([0.0, 30.0], size=(300, 1)).astype(np.float32)
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
def test_a_box_written_down_again_is_the_deployed_one(subjects, name, dtype):
    """The same cells (but for rounding at thresholds), and outputs within a few roundings."""
    subject = subjects[name]
    attacker = BoxAttacker(subject, np.random.default_rng(2))
    X, Z = attacker.mixture(3000, dtype)
    program, weight = BoxAgain(subject.certificate), subject.program.tensors["heads.weight"]
    cells = program.cells(program.clamped(X))
    same = cells == attacker.cells(X)
    assert same.mean() > 0.9
    ours, theirs = program(X, Z)[same], attacker.deployed(X, Z)[same]
    free = cells[same] == len(weight)
    scale = 1 + np.abs(weight).sum(axis=2).max() * 100
    assert np.abs(ours[~free] - theirs[~free]).max() <= 1e-6 * scale


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_head_of_rules_written_down_again_is_the_deployed_one(name, dtype):
    """The same answers, but for the last bits of sums and what they decide, where the answer itself serves."""
    subject = stated(name, RULES[name])
    attacker = RulesAttacker(subject, np.random.default_rng(0))
    X, Z = attacker.mixture(1500, dtype)
    program, deployed = RulesAgain(subject.certificate, ORDERS["pairwise"]), attacker.program
    kept = deployed.explained(X, Z)[1] == 0 if hasattr(deployed, "explained") else np.ones(len(X), dtype=bool)
    ours, theirs = program(X, Z), deployed(X, Z)
    same = np.isclose(ours, theirs, rtol=1e-6, atol=1e-30).all(axis=1)
    assert same[kept].mean() > 0.98
    assert kept.sum() > 50
    assert not len(Judge(subject.spec).judge(X, ours).rows)
