"""Small heads before a judge of others: z3 finds no input, no answer and no way to sum that breaks a rule."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from smle.certificates.document import Certificate
from smle.heads.rules.clip_list import ClipList
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from support.rules_cases import LEAVES
from support.written_again import RulesAgain

z3 = pytest.importorskip("z3", reason="the extra audit has z3")
from support import outside_judge as judge  # noqa: E402 - it needs z3

pytestmark = pytest.mark.audit
F = Fraction

LIMITS = {
    "constant": """
inputs: {a: [0, 10], b: [-1, 1]}
outputs: [y]
rules:
  - {name: p, when: a < 3.3, then: 0.1 <= y < 0.7}
  - {name: r, when: b > 0, then: y <= 0.5}
""",
    "moving": """
inputs: {w: [2, 250]}
outputs: [dose]
rules:
  - {name: p, then: 0 <= dose <= 0.05 * w}
  - {name: c, then: dose <= 4}
""",
    "moving from zero": """
inputs: {w: [0, 1000000]}
outputs: [dose]
rules:
  - {name: p, then: 0 <= dose <= 0.35 * w}
  - {name: c, when: w < 21, then: dose <= 2000}
""",
    "oblique": """
inputs: {a: [-1, 100], w: [2, 250]}
outputs: [dose]
rules:
  - {name: p, when: a + w <= 100, then: dose <= a - 3 * w + 700}
  - {name: c, when: w - a >= 30, then: dose >= 0}
  - {name: d, when: w - 2 * a > 30, then: dose < 9.3}
""",
}
ALONE = {
    "a gate": """
inputs: {a: [1, 100], w: [2, 250]}
outputs: [y]
rules:
  - {name: p, when: a + 0.3 * w <= 100, then: y <= 0.1}
""",
    "a plane": """
inputs: {a: [1, 100], w: [2, 250]}
outputs: [y]
rules:
  - {name: p, then: y <= 0.3 * a - 0.7 * w + 700}
""",
}
CLAUSES = {
    "simplex": """
inputs: {x: [0, 1]}
outputs: [p, q]
rules:
  - {name: a, then: p >= 0 and q >= 0 and p + q <= 1}
""",
    "rounded coefficients": """
inputs: {x: [0, 1]}
outputs: [p, q]
rules:
  - {name: a, then: p >= 0 and q >= 0 and p + 3.7 * q <= 7}
""",
    "gap": """
inputs: {x: [0, 1]}
outputs: [y]
rules:
  - {name: a, then: y <= 0.1 or y >= 0.3}
""",
    "moving": """
inputs: {w: [1, 100]}
outputs: [p, q]
rules:
  - {name: a, then: p >= 0 and q >= 0 and p + q <= 0.35 * w}
  - {name: b, when: w < 20.2, then: p <= 0.1 * w or q >= 1.3}
""",
    "labels": """
inputs: {x: [0, 1]}
labels: [cat, dog, animal, car]
rules:
  - {name: e, then: not (cat and dog)}
  - {name: i, then: not cat or animal}
  - {name: j, when: x > 0.5, then: not dog or animal}
  - {name: k, then: "at_least(2, cat, dog, animal, car)"}
""",
    "split": """
inputs: {x: [0, 10]}
outputs: [y, w]
rules:
  - {name: lo, when: x >= 5.1, then: y + w >= 5.3}
  - {name: hi, when: x < 5.1, then: y + w <= 4.1}
""",
    "oblique": """
inputs: {x: [0, 10], z: [0, 10]}
outputs: [y, w]
rules:
  - {name: lo, when: x + 0.7 * z >= 7, then: y + w >= x + 0.7 * z - 6}
  - {name: hi, when: x + 0.7 * z <= 6, then: y + w <= 0}
""",
    "clips that move safe answers": LEAVES,
}
everywhere = pytest.mark.parametrize(("fmt", "way"), [(fmt, way) for fmt in judge.PRECISION for way in judge.WAYS])


@cache
def certified(text: str) -> tuple[Specification, Certificate]:
    spec = Specification.from_yaml(text)
    return spec, certify_rules(spec)


def changed(certificate: Certificate, name: str, index: tuple[int, ...], change: Any) -> Certificate:
    """The certificate, unchecked, with one number changed: by steps to its neighbors, or to a number."""
    tensors = dict(certificate.tensors)
    kind = {"F32": np.float32, "F64": np.float64}[tensors[name].dtype]
    array = np.frombuffer(tensors[name].data, kind).reshape(tensors[name].shape).copy()
    if isinstance(change, int):
        for _ in range(abs(change)):
            array[index] = np.nextafter(array[index], kind(np.copysign(np.inf, change)))
    else:
        array[index] = change
    tensors[name] = tensors[name]._replace(data=array.tobytes())
    return Certificate(certificate.text, certificate.block, tensors, certificate.files)


@everywhere
@pytest.mark.parametrize("name", [*LIMITS, *ALONE])
def test_no_answer_of_a_model_leaves_the_clips_outside_a_limit(name, fmt, way):
    found = []
    for on_grid in (False, True):  # the first is quicker, and asks for more
        question = judge.Question(certified((LIMITS | ALONE)[name])[1], fmt, way, on_grid=on_grid)
        found.append(question.ask(question.broken(question.clipped(question.answers()))))
        if found[-1] == "unsat":
            return
    pytest.fail(f"Expected unsat, found {found}.")


@everywhere
@pytest.mark.parametrize("name", CLAUSES)
def test_what_passes_the_check_obeys(name, fmt, way):
    question = judge.Question(certified(CLAUSES[name])[1], fmt, way, on_grid=False)
    y = question.clipped(question.answers())
    assert question.ask(question.passes(y), question.broken(y)) == "unsat"


@everywhere
@pytest.mark.parametrize("name", CLAUSES)
def test_safe_answers_obey(name, fmt, way):
    question = judge.Question(certified(CLAUSES[name])[1], fmt, way, on_grid=False)
    assert question.ask(question.broken(question.clipped(question.safe()))) == "unsat"


# --- the same questions about numbers that are a little wrong -----------------------------------------------------


def broken_rules(spec, x, y):
    return spec.violated([F(float(v)) for v in x], [F(float(v)) for v in y])


def between(numbers, ends):
    """Where to look: z3 finds a float sooner if the others are given, and among numbers of one size."""
    pairs = [(v.term, *map(judge.constant, own)) for v, own in zip(numbers, ends, strict=True)]
    return [condition for v, low, high in pairs for condition in (low <= v, v <= high)]


@pytest.mark.parametrize(
    ("name", "tensor", "index", "steps", "near", "answer"),
    [
        ("constant", "clips.constant_lower", (0,), -1, [(1, 2), (-1, 0)], -2),
        ("constant", "clips.constant_upper", (0,), 1, [(1, 2), (-1, 0)], 2),
        ("constant", "clips.constant_upper", (1,), 1, [(4, 8), (0.5, 1)], 2),
        ("moving", "clips.affine_upper_slope", (0, 0), 1, [(64, 128)], 64),
        ("moving", "clips.constant_upper", (0,), 1, [(128, 250)], 64),
        ("moving from zero", "clips.affine_upper_slope", (0, 0), 1, [(4, 8)], 2.0**90),
        ("a plane", "clips.affine_upper", (0,), 1, [(4, 8), (2, 2)], 1024),
        ("a gate", "gate.thresholds", (0,), -8, [(64, 100), (48, 48)], 2),
    ],
)
def test_a_number_of_the_clips_that_is_moved_breaks_a_rule(name, tensor, index, steps, near, answer):
    spec, certificate = certified((LIMITS | ALONE)[name])
    worse = changed(certificate, tensor, index, steps)
    question = judge.Question(worse, "float64")
    answers = question.answers()
    hints = [*between(question.x, near), answers[0].term == judge.constant(answer)]
    assert question.ask(question.broken(question.clipped(answers)), *hints) == "sat"
    x, t = np.array([[float(v) for v in question.found(question.x)]]), np.array([[answer]], dtype=np.float32)
    # the deployed program answers so, indeed
    assert broken_rules(spec, x[0], ClipList(worse)(x, t)[0])
    assert not broken_rules(spec, x[0], ClipList(certificate)(x, t)[0])


@pytest.mark.parametrize(
    ("name", "tensor", "number", "near_x", "near_y"),
    [
        ("simplex", "check.sizes", 0.0, [(0, 1)], [(1, 2), (2.0**-70, 2.0**-69)]),
        ("gap", "check.thresholds", np.float32(0.1), [(0, 1)], [(0.0625, 0.125)]),
        ("moving", "check.thresholds", 1e-12, [(1, 2)], [(0.0625, 0.0625), (0.375, 0.375)]),
    ],
)
def test_a_check_without_its_slack_lets_a_wrong_answer_pass(name, tensor, number, near_x, near_y):
    spec, certificate = certified(CLAUSES[name])
    worse = changed(certificate, tensor, (slice(None) if tensor == "check.sizes" else 0,), number)
    question = judge.Question(worse, "float64")
    answers = question.answers(F(8))
    y, hints = question.clipped(answers), [*between(question.x, near_x), *between(answers, near_y)]
    assert question.ask(question.passes(y), question.broken(y), *hints) == "sat"
    x, t = (np.array([float(v) for v in question.found(own)]) for own in (question.x, answers))
    served, by = RulesAgain(worse).served(x[None], [np.float32(t)[None]])
    assert by == 0
    assert broken_rules(spec, x, served[0])


def test_a_safe_answer_that_is_moved_over_a_border_breaks_a_rule():
    _, certificate = certified(CLAUSES["simplex"])
    for first, expected in ((0.5, "unsat"), (np.nextafter(np.float32(0.5), np.float32(1)), "sat")):
        worse = changed(changed(certificate, "safe.offset", (0, 0), first), "safe.offset", (0, 1), 0.5)
        question = judge.Question(worse, "float32")
        assert question.ask(question.broken(question.clipped(question.safe()))) == expected


# --- z3's theory of floats, by bits ------------------------------------------------------------------------------


def by_bits(certificate: Certificate, fmt: str) -> Any:
    """Return a solver with a violation of constant limits: any x and t, NaN and infinities too."""
    numbers = judge.Question(certificate, fmt)  # reads the tensors
    kind = {"float32": z3.Float32(), "float64": z3.Float64()}[fmt]
    near, solver = z3.RNE(), z3.Solver()

    def value(v, sort):
        return z3.FPVal(float(v), sort)

    x = []
    ends = zip(numbers.values(f"domain.lower_{fmt}"), numbers.values(f"domain.upper_{fmt}"), strict=True)
    for k, (low, high) in enumerate(ends):
        raised = z3.If(z3.FP(f"x{k}", kind) >= value(low, kind), z3.FP(f"x{k}", kind), value(low, kind))
        x.append(z3.If(raised <= value(high, kind), raised, value(high, kind)))
    constants, holds = iter(numbers.values(f"gate.constants_{fmt}")), {}
    for r in sorted({r for g in numbers.gated for r in numbers.stated["regions"][g]}):
        ((k, sign),) = numbers.rows[r][0].items()
        compared, bound = (x[k] if sign > 0 else -x[k]), value(next(constants), kind)
        holds[r] = compared < bound if numbers.rows[r][2] else compared <= bound
    bits = {g: z3.And([holds[r] for r in numbers.stated["regions"][g]]) for g in numbers.gated}
    q = []
    for i, default in enumerate(numbers.values("clips.default")):
        t = z3.fpFPToFP(near, z3.FP(f"t{i}", z3.Float32()), z3.Float64())
        q.append(z3.If(z3.fpAbs(t) <= value(2.0**100, z3.Float64()), t, value(default, z3.Float64())))
    place = dict.fromkeys(judge.STAGES, 0)
    for stage, region, i, side in numbers.limits():
        c = value(numbers.values(f"clips.{stage}")[place[stage]], z3.Float64())
        place[stage] += 1
        inside = q[i] >= c if side > 0 else q[i] <= c
        q[i] = z3.If(z3.And(bits[region], z3.Not(inside)), c, q[i])
    y = [z3.fpFPToFP(near, v, z3.Float32()) for v in q]
    ways = []
    for rule in numbers.stated["rules"]:
        for (literal,) in rule["clauses"]:
            ((i, text),), bound = literal["y"], judge.number(literal["bound"])
            below = np.float32(float(bound))
            below = below if F(float(below)) <= bound else np.nextafter(below, np.float32(-np.inf))
            signed = y[i] if judge.number(text) > 0 else -y[i]
            strict = literal["strict"] and F(float(below)) == bound  # signed < bound, else signed <= below
            fine = signed < value(below, z3.Float32()) if strict else signed <= value(below, z3.Float32())
            ways += [z3.And(bits[g], z3.Not(fine)) for g in rule["regions"]]
    solver.add(z3.Or(ways))
    return solver


@pytest.mark.parametrize("fmt", judge.PRECISION)
def test_constant_limits_by_bits(fmt):
    _, certificate = certified(LIMITS["constant"])
    assert str(by_bits(certificate, fmt).check()) == "unsat"
    for tensor, index, steps in (("clips.constant_lower", (0,), -1), ("clips.constant_upper", (1,), 1)):
        assert str(by_bits(changed(certificate, tensor, index, steps), fmt).check()) == "sat"
