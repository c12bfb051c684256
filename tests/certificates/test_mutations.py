"""Changed models: refused as they lie; with digests made new accepted only where an exact judge agrees."""

import random
import shutil
import sys
from collections import Counter

import numpy as np
import pytest

import smle_check
from smle.certificates.agreement import require_same_rules
from smle.certificates.document import Certificate
from smle.errors import CertificateError, RuleError
from smle.rules import Specification
from support.builder import CASES, Package, accepted, case
from support.exact_judge import Judge, doubts, solve_with_qsopt
from support.mutations import attacked, changed_bytes, check_files, files_of, flip_bit
from support.rules_cases import rules_case
from support.sampling import Judge as PointJudge
from support.sampling import hard_points
from support.sound import MAKERS, sound
from support.written_again import RulesAgain

NAMES = list(CASES)


@pytest.mark.parametrize("name", NAMES)
def test_judge_confirms_what_is_issued(name):
    package = case(name)
    assert package.check()
    assert doubts(package.document, package.weights, package.block) is None


def run_plain(name: str, count: int, seed: int) -> Counter:
    rng, files = random.Random(seed), files_of(sound(name))
    tensors = smle_check.read_weights(files["model.safetensors"])
    tally: Counter = Counter()
    for _ in range(count):
        what, changed = changed_bytes(rng, files)
        if changed == files:
            tally["no change"] += 1
            continue
        if not {"certificate.json", "model.safetensors"} <= set(changed):
            tally["file missing"] += 1
            continue
        try:
            check_files(changed)
        except smle_check.Rejected:
            tally["rejected"] += 1
            continue
        # The digest is over names, types, shapes and bytes of the tensors: blanks in the header are not weights.
        same = {**changed, "model.safetensors": b""} == {**files, "model.safetensors": b""}
        assert same, f"accepted: {what}"
        assert smle_check.read_weights(changed["model.safetensors"]) == tensors, f"accepted: {what}"
        tally["same tensors"] += 1
    return tally


def run_attacks(name: str, count: int, seed: int) -> Counter:
    rng, tally = random.Random(seed), Counter()
    for _ in range(count):
        what, package = attacked(rng, case(name))
        if not accepted(package):
            tally["rejected"] += 1
            continue
        reason = doubts(package.document, package.weights, package.block)
        assert reason is None, f"{what}: accepted, but {reason}"
        tally["accepted, judge agrees"] += 1
    return tally


@pytest.mark.parametrize("name", MAKERS)
def test_changed_bytes_are_refused(name):
    tally = run_plain(name, 100, seed=1)
    assert tally["rejected"] > 80


@pytest.mark.parametrize("name", NAMES)
def test_changed_content_is_accepted_only_if_true(name):
    tally = run_attacks(name, 100, seed=2)
    assert tally["rejected"] > 20


def broken_rules(package: Package, rng: np.random.Generator, rows: int) -> list[str]:
    """Run an accepted head of rules at hard points with hostile candidates; judge by the rules in rules.yaml."""
    spec = Specification.from_yaml(package.files["rules"].decode())
    program = RulesAgain(Certificate(package.text, package.block, package.tensors, package.files))
    found: list[str] = []
    for kind in (np.float32, np.float64):
        X = np.concatenate(list(hard_points(spec, rng, rows, dtype=kind)))
        odd = rng.choice(np.array([np.nan, np.inf, -np.inf, 0, 1, -1, 1e30, -1e30]), size=(len(X), len(spec.targets)))
        near = rng.normal(scale=10.0 ** rng.integers(-2, 5), size=odd.shape)
        with np.errstate(over="ignore"):
            candidates = np.float32(np.where(rng.random(odd.shape) < 0.5, odd, near))
        Y = program.served(X, [candidates])[0]
        found += list(PointJudge(spec).violations(X, Y))
    return found


@pytest.mark.parametrize("name", ["limits", "coupled", "exclusions", "tables", "merged"])
def test_changed_heads_of_rules_are_accepted_only_if_they_obey(name):
    """With digests made new. Every number that is left free is a hint, or moves answers where the rules allow it."""
    rng, tally = random.Random(7), Counter()
    for _ in range(120):
        what, package = attacked(rng, rules_case(name), rules=False)
        if not accepted(package):
            tally["rejected"] += 1
            continue
        found = broken_rules(package, np.random.default_rng(8), 20)
        assert not found, f"{what}: accepted, but {found[:1]}"
        tally["accepted"] += 1
    assert tally["rejected"] > 40
    assert tally["accepted"] > 10


def test_a_head_of_rules_that_breaks_one_is_found():
    """The judge of the test above can say no."""
    package = rules_case("limits")
    package.weights["clips.constant_upper"] = package.weights["clips.constant_upper"] * 2
    assert not accepted(package.seal())
    assert broken_rules(package, np.random.default_rng(8), 20)


@pytest.mark.audit
def test_ten_thousand_changed_models(capsys):
    plain, attacks = Counter(), Counter()
    for name in NAMES:
        plain += run_plain(name, 500, seed=3)
        attacks += run_attacks(name, 700, seed=4)
    with capsys.disabled():
        print(f"\nas they lie: {dict(plain)}; digests made new: {dict(attacks)}", file=sys.stderr)
    assert plain["rejected"] + sum(attacks.values()) >= 10_000
    assert attacks["accepted, judge agrees"] > 500  # otherwise the judge was not asked much


def stated(spec: Specification) -> tuple:
    rules = tuple((rule.name, rule.regions, rule.requirement) for rule in spec.rules)
    return spec.columns, spec.lower, spec.upper, spec.one_hot, spec.targets, rules


@pytest.mark.parametrize("name", ["braking", "dose", "roads", "labels"])
def test_changed_rules_file_is_compared_with_the_certificate(name):
    """The checker binds rules.yaml by digest; loading compiles it again. Other words pass only for the same rules."""
    rng, tally = random.Random(6), Counter()
    original = Specification.from_yaml(case(name).files["rules"].decode())
    for _ in range(60):
        package = case(name)
        text = package.files["rules"].decode()
        at = rng.randrange(len(text))
        package.files["rules"] = (text[:at] + rng.choice("0123456789.<>=- yxn") + text[at + 1 :]).encode()
        package.seal().check()
        certificate = Certificate(package.text, package.block, package.tensors, package.files)
        try:
            spec = Specification.from_yaml(package.files["rules"].decode())
            require_same_rules(certificate, spec)
        except (RuleError, CertificateError):
            tally["refused"] += 1
            continue
        assert stated(spec) == stated(original)
        tally["same rules"] += 1
    assert tally["refused"] > 20


HEAD = ["heads.weight", "heads.bias", "heads.fallback", "bounds.lower", "bounds.upper"]
GATE = ["gate.constants_float32", "gate.constants_float64", "gate.coefficients", "gate.thresholds", "gate.signatures"]
DOMAIN = ["domain.lower_float32", "domain.upper_float32", "domain.lower_float64", "domain.upper_float64"]


def test_every_bit_of_a_head():
    """With digests made new: a flipped bit is accepted only if the claim stays true. Without: never."""
    tally: Counter = Counter()
    for name in HEAD:
        for bit in range(8 * case("strict").weights[name].nbytes):
            package = case("strict")
            flip_bit(package, name, bit)
            assert not accepted(package), f"bit {bit} of {name} with the old digests"
            verdict = accepted(package.seal())
            if verdict:
                reason = doubts(package.document, package.weights, package.block)
                assert reason is None, f"bit {bit} of {name}: {reason}"
            tally[verdict] += 1
    assert tally[True] > 100
    assert tally[False] > 10


@pytest.mark.parametrize("name", [pytest.param("braking", marks=pytest.mark.audit), "strict"])
def test_every_bit_of_gate_and_domain(name):
    """Gate and domain are prescribed: no flip is accepted, except of the sign of a zero."""
    for tensor in GATE + DOMAIN:
        for bit in range(8 * case(name).weights[tensor].nbytes):
            package = case(name)
            before = package.weights[tensor]
            flip_bit(package, tensor, bit)
            if accepted(package.seal()):
                assert (package.weights[tensor] == before).all(), f"bit {bit} of {tensor}"


def test_judge_agrees_with_another_exact_solver(tmp_path):
    esolver = shutil.which("esolver")
    if esolver is None:
        pytest.skip("QSopt-ex is not installed (Debian package qsopt-ex)")
    rng, compared = random.Random(5), Counter()
    for name in NAMES:
        for _ in range(6):
            _, package = attacked(rng, case(name))
            if not accepted(package):
                continue
            judge = Judge(package.document, package.weights, package.block)
            for _, program, _ in list(judge.obligations())[:8]:
                value = program.value()
                assert solve_with_qsopt(program, tmp_path, esolver) == value
                compared[value is None] += 1
    assert compared[False] > 50
