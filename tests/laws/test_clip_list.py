"""The clip list: whatever the model answers, every limit holds exactly; answers that the rules allow are not moved."""

from __future__ import annotations

import copy
import pickle
from functools import cache

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from smle.certificates.agreement import cells_of
from smle.certificates.document import Certificate
from smle.errors import CertificateError, ContradictionError, NotCertifiedError, RuleError
from smle.heads.rules.clip_list import ClipList
from smle.heads.rules.many_limits import LimitPairs
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from smle.rules.membership import broken
from support.builder import Package, accepted, refusal, repacked
from support.limit_rules import EVERYDAY, answers_for, at_a_border, limit_rules, spec_of
from support.sampling import Judge, hard_points
from support.written_again import RulesAgain, fused_multiply_add


@cache
def certified(name: str) -> Certificate:
    return certify_rules(spec_of(EVERYDAY[name]))


def alike(first, second):
    """Whether answers are the same but for the last bits of sums."""
    return (first == second) | np.isclose(first, second, rtol=1e-6, atol=1e-30)


def looked_up(certificate, dtype):
    program = ClipList(certificate)
    return LimitPairs(program._ops, program.stored, np.dtype(dtype).name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EVERYDAY)
def test_every_limit_holds_exactly_and_allowed_answers_stay(name, dtype):
    """In columns; row by row, and with limits that are looked up, answers are the same."""
    spec, certificate = spec_of(EVERYDAY[name]), certified(name)
    program, pairs = ClipList(certificate), looked_up(certificate, dtype)
    judge, rng = Judge(spec), np.random.default_rng(0)
    moved = same = rows = 0
    for X in hard_points(spec, rng, 4000, dtype=dtype):
        Y = answers_for(spec, X, rng)
        served = program(X, Y)
        assert judge.violations(X, served) == []
        fine = np.flatnonzero((np.abs(Y) < 2.0**100).all(axis=1))  # others are replaced by the default
        fine = fine[~broken(spec, X[fine], Y[fine].astype(np.float64)).any(axis=1)]
        fine = fine[~at_a_border(spec, X[fine])]
        # Limits that move with the input are a rounding further inside: answers closer to them than that may move.
        scale = np.abs(Y[fine]) * 2e-6 + 1e-6
        assert (np.abs(served[fine] - Y[fine]) <= scale + 1e-3 * (np.abs(Y[fine]) > 1e5)).all()
        moved += (served != Y).any(axis=1).sum()
        X[::70, 1], X[10::70, 0], X[20::70, 2] = np.nan, np.inf, -np.inf
        together, near = program(X, Y), at_a_border(spec, X)[:, None]
        assert (alike(pairs(X, Y), together) | near).all()
        alone = np.concatenate([program(X[i : i + 1], Y[i : i + 1]) for i in range(0, len(X), 10)])
        assert together.dtype == alone.dtype == np.float32
        assert (alike(alone, together[::10]) | near[::10]).all()
        same, rows = same + (alone == together[::10]).all(axis=1).sum(), rows + len(alone)
    assert moved > 500
    assert same > 0.99 * rows


def test_answers_inside_constant_limits_are_the_models_bit_for_bit():
    spec = spec_of("  - {name: r, when: a <= 3, then: 0.1 <= dose <= 0.7}\n")
    program = ClipList(certify_rules(spec))
    X = np.tile([100.0, 1, 5, 1, 0, 0], (500, 1))
    Y = np.random.default_rng(1).uniform(-1, 2, size=(500, 2)).astype(np.float32)
    served = program(X, Y)
    inside = (Y[:, 0].astype(float) >= 0.1) & (Y[:, 0].astype(float) <= 0.7)
    assert np.array_equal(served[inside], Y[inside])
    assert np.array_equal(served[:, 1], Y[:, 1])
    lowest, highest = (np.float32(v) for v in (0.1, 0.7))  # the float32 numbers next to the limits, inside
    highest = highest if float(highest) <= 0.7 else np.nextafter(highest, np.float32(0))
    assert set(served[~inside, 0]) == {lowest, highest}
    assert 100 < inside.sum() < 400


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ("  - {name: p, then: dose >= a}\n  - {name: c, when: w > 100, then: dose <= 50}\n",
         ContradictionError, r"'p' and 'c' contradict each other at .*a=100.*dose >= 100, the other dose <= 50"),
        ("  - {name: p, then: 0.1 * income <= limit <= 0.35 * income}\n", NotCertifiedError, "income=0.*single point"),
        ("  - {name: p, then: dose <= 1e39}\n", RuleError, "'p' needs numbers beyond float32"),
        ("  - {name: p, then: dose <= 1e39 * w}\n", RuleError, "'p' needs numbers beyond float32"),
        ("  - {name: p, when: a > 1e-41, then: dose <= 1}\n", RuleError, "condition on a needs numbers beyond"),
    ],
)  # fmt: skip
def test_what_cannot_be_met_is_refused_with_the_input(rules, error, message):
    with pytest.raises(error, match=message):
        certify_rules(spec_of(rules))


def test_limits_whose_regions_do_not_meet_need_not_agree():
    # The box of the second region lies beyond the oblique border of the first one: no box alone shows that.
    rules = """inputs: {a: [0, 200], b: [0, 40]}
outputs: [y]
rules:
  - {name: near, when: a <= 0.8 * b - 4, then: y >= 0.5}
  - {name: far, when: a >= 150 and b <= 10, then: y <= 0.1}
  - {name: nearer, when: a + b <= 3, then: y >= 0.2 + 0.1 * a}
"""
    spec = Specification.from_yaml(rules)
    program, judge, rng = ClipList(certify_rules(spec)), Judge(spec), np.random.default_rng(0)
    for X in hard_points(spec, rng, 2000, dtype=np.float64):
        assert judge.violations(X, program(X, answers_for(spec, X, rng))) == []


def test_signs_are_turned_without_arithmetic():
    # Results may be flushed to zero: a product with 1 or -1 would lose subnormal inputs, and `a > 0` with them.
    spec = spec_of("  - {name: p, when: a > 0, then: dose >= 1}\n  - {name: n, when: a < 0, then: dose <= -1}\n")
    program = ClipList(certify_rules(spec))

    class Flushing(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, **options):
            plain = [np.asarray(v) for v in inputs]
            result = getattr(ufunc, method)(*plain, **options)
            picks = ufunc in (np.negative, np.fmax, np.fmin)  # these compute nothing
            if result.dtype.kind == "f" and not picks:
                result = np.where(np.abs(result) < np.finfo(result.dtype).tiny, 0, result)
            return result.view(Flushing)

    for kind, smallest in ((np.float32, 1e-42), (np.float64, 1e-310)):
        for rows in (2, 200):  # plain numbers, columns
            X = np.tile(np.array([100.0, 1, 5, 1, 0, 0]), (rows, 1)).astype(kind)
            X[::2, 1], X[1::2, 1] = smallest, -smallest
            served = np.asarray(program(X.view(Flushing), np.zeros((rows, 2), dtype=np.float32)))
            assert served[:, 0].tolist() == [1, -1] * (rows // 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("constant", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
def test_comparisons_alone_are_the_same_beyond_the_ends(sign, constant, dtype):
    # Columns compare such inputs as they are, rows inside of the domain, where NaN is the lower end.
    text = "inputs: {{x: [0, 1]}}\noutputs: [y]\nrules:\n  - {{name: a, when: x {} {}, then: y <= 0}}\n"
    program = ClipList(certify_rules(Specification.from_yaml(text.format(sign, constant))))
    values = [np.nan, -np.inf, -1, 0, 0.1, 0.5, 1, 2, np.inf]
    X = np.array([*values, *np.nextafter(values, dtype(-9), dtype=dtype), *np.nextafter(values, dtype(9), dtype=dtype)])
    X, Y = X.astype(dtype)[:, None], np.ones((27, 1), dtype=np.float32)
    one_by_one = np.concatenate([program(x[None], y[None]) for x, y in zip(X, Y, strict=True)])
    np.testing.assert_array_equal(np.tile(one_by_one, (4, 1)), program(np.tile(X, (4, 1)), np.tile(Y, (4, 1))))


@cache
def many_limits():
    """Rules in several units, on parts of the ranges that are narrow, open, single numbers or cut by oblique rows."""
    rng = np.random.default_rng(6)
    ranges = [(0, 1), (-1e-33, 1e-33), (-3e38, 3e38), (0, 1000), (-5, 5)]
    header = "inputs:\n" + "".join(f"  x{k}: [{low}, {high}]\n" for k, (low, high) in enumerate(ranges))
    rules = ["  - {name: a, then: y0 <= 2}\n", "  - {name: b, when: x0 - x4 >= 1, then: y1 >= -0.25}\n"]
    for i in range(48):
        low, high = ranges[k := int(rng.integers(5))]
        a, b = np.sort(rng.uniform(size=2)) if i % 5 else (0, 0)
        a, b = (np.float32(low + (high - low) * float(v)) for v in (a, a + (b - a) * 0.2))
        first, second = rng.choice(["<", "<="], size=2) if a < b else ("<=", "<=")
        when = f"{a:.9g} {first} x{k} {second} {b:.9g}" + (" and x0 + x4 <= 0.5" if i % 7 == 0 else "")
        when += f" and x3 > {rng.integers(900)}" if i % 3 == 0 else ""
        side = "<= 0.5 + 0.001 * x3" if i % 2 else ">= -0.5"
        rules.append(f"  - {{name: r{i}, when: {when}, then: y{i % 4} {side}}}\n")
    spec = Specification.from_yaml(f"{header}outputs: [y0, y1, y2, y3]\nrules:\n{''.join(rules)}")
    return spec, certify_rules(spec)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_limits_are_looked_up_and_hold(dtype):
    rng, (spec, certificate) = np.random.default_rng(7), many_limits()
    judge = Judge(spec)
    program, pairs = ClipList(certificate), looked_up(certificate, dtype)
    assert isinstance(program._first(np.zeros((9, 5), dtype), few=False)[1], LimitPairs)
    moved = 0
    for X in hard_points(spec, rng, 1200, dtype=dtype):
        Y = answers_for(spec, X, rng)[:, [0] * 4] * np.float32([1, -1, 1, -1])
        served = pairs(X, Y)
        assert judge.violations(X, served) == []
        moved += (served != Y).any(axis=1).sum()
        some = rng.integers(len(X), size=200)
        one_by_one = np.concatenate([program(X[i : i + 1], Y[i : i + 1]) for i in some])
        assert (alike(served[some], one_by_one) | at_a_border(spec, X[some])[:, None]).all()
    assert moved > 300


def test_limits_are_found_at_their_very_ends():
    # With many inputs the table is long, and float32 numbers that point into it are rounded.
    rng, inputs = np.random.default_rng(9), 50
    ends = np.float32(rng.uniform(size=(400, 1)) * 0.99 + [0, 0.003])
    rules = [
        f"  - {{name: r{i}, when: {low:.9g} <= x{i % inputs} <= {high:.9g}, then: y <= {i % 7}}}\n"
        for i, (low, high) in enumerate(ends)
    ]
    columns = ", ".join(f"x{k}: [0, 1]" for k in range(inputs))
    spec = Specification.from_yaml(f"inputs: {{{columns}}}\noutputs: [y]\nrules:\n{''.join(rules)}")
    certificate = certify_rules(spec)
    program, pairs = ClipList(certificate), looked_up(certificate, np.float32)
    near = np.stack([ends, np.nextafter(ends, np.float32(-1)), np.nextafter(ends, np.float32(2))], axis=2)
    middle = np.repeat(ends.mean(axis=1, keepdims=True), 8, axis=1)  # most inputs are well inside of a limit
    chosen = rng.permutation(14 * 400)[:2800]
    X = np.full((14 * 400, inputs), np.nan, dtype=np.float32)  # NaN is the lower end, which few limits reach
    X[np.arange(14 * 400), np.repeat(np.arange(400), 14) % inputs] = np.concatenate(
        [near.reshape(400, 6), middle], axis=1
    ).ravel()
    X, Y = X[chosen], np.full((2800, 1), 9, dtype=np.float32)
    one_by_one = np.concatenate([program(x[None], y[None]) for x, y in zip(X, Y, strict=True)])
    np.testing.assert_array_equal(pairs(X, Y), one_by_one)


def test_a_program_survives_copies():
    program = ClipList(certified("bank"))
    X, Y = np.tile([100.0, 1, 5, 1, 0, 0], (50, 1)), np.full((50, 2), 1e6, dtype=np.float32)
    for other in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        assert np.array_equal(other(X, Y), program(X, Y))


def test_rows_and_columns_must_fit():
    program = ClipList(certified("bank"))
    for inputs, answers in (((2, 6), (1, 2)), ((2, 5), (2, 2)), ((2, 6), (2, 1)), ((2, 6), (2,))):
        with pytest.raises(ValueError, match="Expected inputs of shape"):
            program(np.zeros(inputs), np.zeros(answers, dtype=np.float32))


@pytest.mark.parametrize("kind", [np.int64, np.float16, np.longdouble, object])
def test_inputs_of_other_kinds_are_refused(kind):
    # Converted to float32 they may be rounded, and the limits would hold elsewhere.
    program = ClipList(certify_rules(spec_of("  - {name: p, then: limit <= income}\n")))
    with pytest.raises(TypeError, match="Expected inputs in float32 or float64"):
        program(np.ones((1, 6)).astype(kind), np.zeros((1, 2)))


def test_the_order_of_bytes_is_not_a_kind_of_its_own():
    program = ClipList(certify_rules(spec_of("  - {name: p, when: income < 500.1, then: limit <= 1}\n")))
    X = np.array([[100.0, 1, np.nextafter(500.1, 0), 1, 0, 0]])  # rounded to float32 it would be 500.1
    assert program(X.astype(">f8"), np.full((1, 2), 1e6))[0, 1] == 1


@settings(max_examples=60, deadline=None)
@given(rules=limit_rules(), seed=st.integers(0, 2**32 - 1))
def test_random_limits_hold_or_are_refused(rules, seed):
    try:
        spec = spec_of(rules)
        certificate = certify_rules(spec)
    except (ContradictionError, NotCertifiedError, RuleError):
        return
    program, judge, rng = ClipList(certificate), Judge(spec), np.random.default_rng(seed)
    for dtype in (np.float32, np.float64):
        for X in hard_points(spec, rng, 300, dtype=dtype):
            assert judge.violations(X, program(X, answers_for(spec, X, rng))) == []


# --- other ways to compute ----------------------------------------------------------------------------------------


def in_any_order(multiply_add, *, flushed=False):
    """Return an order of summation, with results flushed to zero or not."""

    def total(A, v, b):
        result = b
        for k in np.random.default_rng(3).permutation(v.shape[1]):
            result = multiply_add(A[..., k], v[:, None, k], result)
            if flushed:
                result = np.where(np.abs(result) < 2.0**-1022, 0.0, result)
        return result

    return total


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("multiply_add", [lambda a, b, c: a * b + c, fused_multiply_add], ids=["plain", "fused"])
@pytest.mark.parametrize("name", EVERYDAY)
def test_no_order_of_summation_breaks_a_limit(name, multiply_add, flushed):
    spec, certificate = spec_of(EVERYDAY[name]), certified(name)
    judge, rng = Judge(spec), np.random.default_rng(3)
    program = RulesAgain(certificate, in_any_order(multiply_add, flushed=flushed))
    for dtype in (np.float32, np.float64):
        X = np.concatenate([part[:60] for part in hard_points(spec, rng, 600, dtype=dtype)])
        assert judge.violations(X, program(X, answers_for(spec, X, rng))) == []


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(EVERYDAY)), seed=st.integers(0, 2**32 - 1))
def test_changed_numbers_are_accepted_only_if_the_limits_still_hold(name, seed):
    spec, rng = spec_of(EVERYDAY[name]), np.random.default_rng(seed)
    package = repacked(certified(name))
    names = [n for n, a in package.weights.items() if n.startswith("clips.") and a.size and n != "clips.default"]
    for _ in range(rng.integers(1, 4)):
        chosen = names[rng.integers(len(names))]
        index = tuple(rng.integers(size) for size in package.weights[chosen].shape)
        for _ in range(rng.integers(1, 30)):
            nudged(package, chosen, index, rng.choice([-np.inf, np.inf]))
    if not accepted(package.seal()):
        return
    program = ClipList(Certificate(package.text, package.block, package.tensors, package.files))
    judge = Judge(spec)
    for X in hard_points(spec, rng, 300, dtype=np.float64):
        assert judge.violations(X, program(X, answers_for(spec, X, rng))) == []


# --- the checker ------------------------------------------------------------------------------------------------


def nudged(package: Package, name: str, index: tuple[int, ...], step: float) -> Package:
    """Move one number to its neighbor."""
    array = package.weights[name]
    array[index] = np.nextafter(array[index], array.dtype.type(step))
    return package


@pytest.mark.parametrize("name", EVERYDAY)
def test_a_limit_moved_outside_by_one_float_is_rejected(name):
    certificate = certified(name)
    tried = 0
    for stage, out in (("constant_lower", -np.inf), ("constant_upper", np.inf)):
        for i in range(certificate.tensors[f"clips.{stage}"].shape[0]):
            reason = refusal(nudged(repacked(certificate), f"clips.{stage}", (i,), out))
            assert "not proved" in reason or "too close to 0" in reason
            tried += 1
    for name_of in certificate.tensors:
        if name_of.startswith(("gate.", "domain.")) and certificate.tensors[name_of].data:
            index = (0,) * len(certificate.tensors[name_of].shape)
            assert "not what the rules prescribe" in refusal(nudged(repacked(certificate), name_of, index, np.inf))
            tried += 1
    assert tried > 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["proof"].update(pairs=[]), "not proved"),
        (lambda d: d["proof"]["pairs"][0]["mu"][0].__setitem__(1, "-1"), "negative multiplier"),
        (lambda d: d["proof"]["pairs"].append(d["proof"]["pairs"][0]), "given twice"),
        (lambda d: d["proof"]["pairs"].append({"limit": 0, "clip": 2, "mu": None}), "mu: expected a list"),
        (lambda d: d["proof"]["pairs"].append({"limit": 1, "clip": 0, "mu": []}), "for no obligation"),
        (lambda d: d["proof"].update(coverage={"conflicts": [], "implications": []}), "coverage"),
        (lambda d: d["gate"]["regions"].reverse(), "regions of all rules"),
        (lambda d: d["specification"]["rules"][0]["clauses"][0][0]["y"].append([1, "1"]), "not part of the stated"),
    ],
)
def test_hostile_documents_are_rejected(change, reason):
    package = repacked(certified("oblique"))
    assert package.document["proof"]["pairs"], "this case needs multipliers"
    change(package.document)
    assert reason in refusal(package)


def test_a_clip_list_is_not_taken_for_a_network():
    with pytest.raises(CertificateError, match="Got the head 'rules'"):
        cells_of(certified("bank"), spec_of(EVERYDAY["bank"]))


def test_tensors_of_another_program_are_rejected():
    package = repacked(certified("bank"))
    package.weights["heads.weight"] = package.weights["clips.default"]
    assert "not part of the stated program" in refusal(package)


def test_a_region_without_inputs_has_no_margin():
    certificate = certify_rules(spec_of("  - {name: p, when: a > 200, then: dose < 1}\n"))
    assert [item.margin for item in certificate.proved] == [0]


def test_small_files_that_state_many_limits_are_refused():
    package = repacked(certify_rules(spec_of("  - {name: p, then: -1 <= dose <= 1}\n")))
    rule = package.document["specification"]["rules"][0]
    rule["clauses"], rule["regions"] = rule["clauses"] * 2000, rule["regions"] * 60  # every clause in every region
    assert "too many limits" in refusal(package)


def test_many_limits_that_always_hold_are_one_operation():
    """In columns the tightest of them at once, in rows one by one; conditions among them."""
    rules = "".join(
        f"  - {{name: a{i}, then: {-i} <= y{i} <= {i + 1}}}\n  - {{name: b{i}, then: -2.5 <= y{i} <= {2 * i}}}\n"
        f"  - {{name: c{i}, when: x >= 0.{i + 3}, then: y{i} >= 0}}\n"
        for i in range(7)
    )
    names = ", ".join(f"y{i}" for i in range(7))
    spec = Specification.from_yaml(f"inputs: {{x: [0, 1]}}\noutputs: [{names}]\nrules:\n{rules}")
    head, rng = ClipList(certify_rules(spec)), np.random.default_rng(0)
    X, t = rng.random((400, 1)), rng.normal(0, 6, (400, 7)).astype(np.float32)
    t[::7, 3], t[::5, 2], t[1::5, 2] = np.nan, -0.0, 0.0
    y = head(X, t)
    alone = np.concatenate([head(X[[i]], t[[i]]) for i in range(400)])
    np.testing.assert_array_equal(y.view(np.int32), alone.view(np.int32))
    i = np.arange(7)
    low = np.where((i + 3) / 10 <= X, 0, np.maximum(-i, -2.5))
    np.testing.assert_array_equal(y, np.clip(np.where(np.isnan(t), y, t), low, np.minimum(i + 1, 2 * i)))
