"""Heads in onnxruntime: whatever is answered and proposed every rule holds, and the graph is the certified one.

Limits on single outputs, checked candidates, and whole numbers of steps; with monitoring outputs and without.
"""

from __future__ import annotations

from functools import cache

import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

import smle_check
from smle.certificates.document import Certificate
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.table import certify_head, program_of
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification
from smle_check.onnx import candidate_nodes as candidates
from smle_check.onnx import interface, operation_nodes
from smle_check.onnx.nodes import EMBEDDING, FURTHER, PROPOSAL
from support.exported import Exported, accepted, columns_of, feed, resealed, session
from support.grid_rules import GridJudge, hard_answers, hard_inputs
from support.joined import ANSWERS, KINDS, asked, every_constant_counts, every_node_counts, joined
from support.limit_rules import EVERYDAY, answers_for, at_a_border, limit_rules, spec_of
from support.random_rules import random_rules
from support.rules_cases import COUPLED, LABELS, MERGED, TABLES
from support.sampling import Judge, hard_points

LIMITS = {
    **EVERYDAY,
    "one constant": "  - {name: p, when: a <= 3, then: dose <= 0.2}\n",
    "two conditions": "  - {name: p, when: a < 3 and w >= 100.5, then: dose > 0.3 * w - 8}\n",
    "always": "  - {name: p, then: 0 <= dose <= 1}\n  - {name: q, then: dose <= 0.7}\n",
    "one region, two outputs": "  - {name: p, when: a > -0.5, then: dose >= 0.1 and limit >= 0.2 * w}\n",
    "some outputs": "  - {name: p, then: limit <= 3 * a}\n  - {name: q, then: dose >= 1}\n",
    "always and sometimes": "  - {name: p, then: dose <= 3}\n  - {name: q, when: a >= 0, then: limit >= 1}\n",
    "many": "".join(f"  - {{name: r{i}, when: a <= 8{i}, then: dose <= {9 - i} + 0.0{i + 1} * w}}\n" for i in range(7)),
}  # fmt: skip
TWO = "inputs: {a: [0, 1], b: [-1, 1]}\noutputs: [p, q]\nrules:\n"
CHECKED = {
    "coupled": COUPLED,
    "labels": LABELS,
    "tables": TABLES,
    "merged": MERGED,
    "budget": TWO + "  - {name: n, then: p >= 0 and q >= 0}\n  - {name: s, when: a < 0.5, then: p + q <= 1 + b}\n",
    "only limits move": TWO + "  - {name: c, then: 0 <= p <= 1 + a and 0 <= q <= 1 + a}\n  - {name: o, then: p <= q}\n",
    "no gate": TWO + "  - {name: s, then: p + q <= 1 and p - q <= 0.5 and q - p < 0.5}\n",
    "gap": TWO + "  - {name: g, when: a <= 0.5 and b > 0.1, then: p <= 0.2 or p >= 0.7}\n",
    "strict": TWO + "  - {name: g, when: b > 0, then: p + q < 0}\n  - {name: h, when: b <= 0, then: p + q > 0}\n",
    "leaves": TWO + "".join(f"  - {{name: r{i}, when: a {sign} 0.{i}5, then: p + 2 * q {sign} 3 * a}}\n"
                            for i, sign in enumerate(("<=", ">="), 4)),
    "border": "inputs: {a: [0, 10], b: [0, 10]}\noutputs: [p, q]\nrules:\n"
    "  - {name: near, when: 0.1 * a + 0.3 * b <= 1, then: p <= -5}\n  - {name: both, then: p + q >= 10}\n"
    "  - {name: far, when: 0.1 * a + 0.3 * b >= 1.5, then: q <= 3 + 0.01 * a}\n  - {name: most, then: q <= 20}\n",
    "many labels": "inputs: {a: [0, 1]}\nlabels: [" + ", ".join(f"l{i}" for i in range(70)) + "]\nrules:\n"
    + "".join(f"  - {{name: r{i}, then: not (l{i} and l{i + 1})}}\n" for i in range(0, 60, 3)),
    "many rows": "inputs: {a: [0, 1]}\noutputs: [" + ", ".join(f"y{i}" for i in range(6)) + "]\nrules:\n"
    + "".join(f"  - {{name: r{i}, then: y{i % 6} + y{(i + 1) % 6} - 0.3 * y{(i + 3) % 6} <= 1.{i} or y{i % 5} >= 2}}\n"
              for i in range(9)),
}  # fmt: skip
STEPPED = """
inputs:
  t: [-2, 2]
  weight: {range: [0, 4], step: 0.1}
  demand: {range: [0, 20], integer: true}
outputs: {%s}
rules:
"""
STEPS = {
    "pieces": STEPPED % "a: {integer: true}, b: {integer: true}, c: {integer: true}"
    + "  - {name: caps, then: 0 <= a <= 9 and 0 <= b <= 8 and 0 <= c <= 6}\n"
    "  - {name: sum, then: a + b + c == demand}\n"
    "  - {name: night, when: t + weight >= 1 and demand <= 12, then: a <= 5 + t}\n",
    "shares": STEPPED % "a: {}, b: {}, c: {}"
    + "  - {name: caps, then: 0 <= a <= 0.7 and 0 <= b <= 0.7 and 0 <= c <= 0.7}\n"
    "  - {name: one, then: a + b + c == 1}\n",
    "cents": STEPPED % "net: {step: 0.01}, vat: {step: 0.01}, total: {step: 0.01}"
    + "  - {name: range, then: 0 <= net <= 900}\n  - {name: tax, then: abs(vat - 0.19 * net) <= 0.005}\n"
    "  - {name: total, then: total == net + vat}\n",
    "alternatives": STEPPED % "a: {step: 0.5}, b: {integer: true}"
    + "  - {name: range, then: -3 <= a <= 3 and -4 <= b <= 4}\n  - {name: either, then: a + b <= -2 or a - b >= 2}\n"
    "  - {name: moving, when: weight > 1.3, then: a <= 1 + 0.3 * t}\n",
    "settled": STEPPED % "a: {step: 0.5, range: [-2, 3]}" + "  - {name: range, when: t > 1, then: a <= 3}\n",
    "one answer": STEPPED % "a: {integer: true, range: [-40, 40]}, b: {integer: true, range: [-40, 40]}"
    + "  - {name: sum, then: a + b == demand}\n  - {name: other, then: a + 2 * b == 12}\n",
    "limits": STEPPED % "a: {step: 0.1}"
    + "  - {name: range, then: 0 <= a <= 30}\n  - {name: moving, then: a <= 3 + 0.7 * t + weight}\n",
}  # fmt: skip
CASES = [*LIMITS, *CHECKED, *STEPS]
layouts = pytest.mark.parametrize("monitor", [True, False], ids=["monitored", "not monitored"])


@cache
def certified(name: str) -> tuple[Specification, Certificate]:
    spec = spec_of(LIMITS[name]) if name in LIMITS else Specification.from_yaml((CHECKED | STEPS)[name])
    return spec, certify_head(spec, files={"rules": spec.to_yaml().encode()})


@cache
def exported(name: str, monitor: bool = True) -> Exported:
    return joined(*certified(name), monitor=monitor)


def points(spec: Specification, rng: np.random.Generator, count: int) -> np.ndarray:
    if spec.grid is not None:
        return hard_inputs(rng, spec, count, np.float32)
    return np.concatenate(list(hard_points(spec, rng, count, dtype=np.float32)))


def answers(spec: Specification, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if spec.grid is not None:
        return hard_answers(rng, spec, len(X))
    return answers_for(spec, X, rng, (-3, 7) if "income" in spec.columns else (-2, 3))


def wrong(spec: Specification, X: np.ndarray, y: np.ndarray) -> int:
    """Count what breaks a rule, exactly."""
    return len(Judge(spec).violations(X, y) if spec.grid is None else GridJudge(spec).wrong(X, y))


def runs(spec: Specification, made: Exported, X: np.ndarray):
    """Yield sessions with inputs: with subnormal numbers, and where these are read as zero, none of the inputs is."""
    yield session(made.onnx), X
    plain = X if spec.grid is not None else np.where(np.abs(X) < 2.0**-126, np.float32(0), X)
    yield session(made.onnx, flush=True), plain


def require_obeys(spec: Specification, made: Exported, X: np.ndarray, Y: np.ndarray) -> None:
    for running, x in runs(spec, made, X):
        assert not wrong(spec, x, columns_of(spec, asked(running, spec, x, Y)))


@layouts
@pytest.mark.parametrize("name", CASES)
def test_every_rule_holds_and_answers_are_those_of_numpy(name: str, monitor: bool) -> None:
    spec, certificate = certified(name)
    made, rng = exported(name, monitor), np.random.default_rng(0)
    assert len(smle_check.check_onnx(made.onnx, made.companion).proved) == len(certificate.proved)
    X = points(spec, rng, 3000 if name in LIMITS else 1200)
    Y = answers(spec, X, rng)
    if name in LIMITS:
        Y[::9, 0] = rng.choice(np.float32([1e-42, -1e-42, 2.0**-126, -(2.0**-127)]), len(Y[::9]))
    expected, by = program_of(certificate).explained(X, Y)
    kept = by == 0
    assert kept.any() or name in STEPS  # sums of shares and of cents are hardly ever met
    assert (by > 0).sum() > 5 or name not in CHECKED
    for running, x in runs(spec, made, X):
        found = asked(running, spec, x, Y)
        served = columns_of(spec, found)
        assert not wrong(spec, x, served)
        assert (served != Y).any(axis=1).sum() > 100
        if spec.grid is None:  # limits that move are rounded in another order
            same = kept & (x == X).all(axis=1) & ~at_a_border(spec, X)
            assert np.isclose(served[same], expected[same], rtol=1e-6, atol=1e-30).all()
            assert (served[same] == expected[same]).mean() > 0.99
        else:
            assert (served == expected)[kept | (len(spec.targets) == 1)].all()
        if monitor and spec.grid is None:
            inside = (([float(v) for v in spec.lower] <= x) & ([float(v) for v in spec.upper] >= x)).all(axis=1)
            assert np.array_equal(found["in_domain"], inside)
        elif monitor:
            assert (found["steps"] == spec.grid.whole(served)).all()
            assert (np.signbit(served) == (found["steps"] < 0)).all()
        for rows in (0, 1, 2, 3):
            few = columns_of(spec, asked(running, spec, x[:rows], Y[:rows]))
            assert few.shape == (rows, len(spec.targets))
            assert rows == 0 or not wrong(spec, x[:rows], few)


@layouts
@pytest.mark.parametrize("name", ["bank", "oblique", "one constant", "two conditions", "some outputs"])
def test_inputs_outside_are_clamped(name: str, monitor: bool) -> None:
    """NaN to the lower end; the rules hold at the clamped input."""
    spec, rng = certified(name)[0], np.random.default_rng(2)
    X = points(spec, rng, 1500)
    numbers = X[:, :3]
    odd = rng.random(numbers.shape) < 0.3
    numbers[odd] = rng.choice(np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42]), odd.sum())
    lower, upper = (np.float32([float(v) for v in side]) for side in (spec.lower, spec.upper))
    clamped = np.where(lower <= X, X, lower)
    clamped = np.where(clamped <= upper, clamped, upper)
    served = columns_of(spec, asked(session(exported(name, monitor).onnx), spec, X, answers(spec, X, rng)))
    assert not wrong(spec, clamped, served)


@pytest.mark.parametrize("name", STEPS)
def test_inputs_between_steps_are_outside_of_the_domain(name: str) -> None:
    spec, running = certified(name)[0], session(exported(name).onnx)
    X = np.array([[0, 0.1, 3], [0, 0.15, 3], [0, 0.1, 3.5], [0, 0.3, 7], [9, 0.3, 7]], dtype=np.float32)
    found = asked(running, spec, X, np.ones((5, len(spec.targets))))
    assert found["in_domain"].tolist() == [True, False, False, True, False]


@settings(max_examples=40, deadline=None)
@given(rules=limit_rules(), seed=st.integers(0, 2**32 - 1), monitor=st.booleans())
def test_random_limits_hold(rules: str, seed: int, monitor: bool) -> None:
    try:
        spec = spec_of(rules)
        made, rng = joined(spec, monitor=monitor), np.random.default_rng(seed)
    except (ContradictionError, NotCertifiedError, RuleError):
        return
    assert accepted(made.onnx, made.companion) is not None
    X = points(spec, rng, 300)
    require_obeys(spec, made, X, answers(spec, X, rng))


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(i, marks=pytest.mark.audit) for i in range(100, 160))])
def test_random_rules_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec, unit, good = random_rules(rng)
    try:
        made = joined(spec, monitor=bool(seed % 2))
    except (ContradictionError, NotCertifiedError, RuleError):
        pytest.skip("refused")
    assert accepted(made.onnx, made.companion) is not None
    X = points(spec, rng, 400)
    Y = (good(X) + rng.normal(size=(len(X), len(unit))) * unit).astype(np.float32)
    Y[::40, 0] = np.nan
    require_obeys(spec, made, X, Y)


# --- what is proposed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coupled", "labels", "budget", "no gate", "gap"])
def test_repairs_are_as_near_as_those_in_numpy(name: str) -> None:
    spec, certificate = certified(name)
    rng, program = np.random.default_rng(1), program_of(certificate)
    X = points(spec, rng, 1000)
    Y = rng.normal(size=(len(X), len(spec.targets))).astype(np.float32)
    expected, by = program.explained(X, Y)
    served = columns_of(spec, asked(session(exported(name).onnx), spec, X, Y))
    scale = program.stored["check.scale"]
    far, wanted = (np.linalg.norm((y - Y) / scale, axis=1) for y in (served, expected))
    assert (by == 1).sum() > 20
    assert (far <= 1.001 * wanted + 1e-4).mean() > 0.995


def made(op: str, source: str, output: str, value: float = 0.0) -> Backbone:
    """One node that makes a proposal of something and a number."""
    number = numpy_helper.from_array(np.float32(value), f"{output}/number")
    return Backbone([helper.make_node(op, [source, f"{output}/number"], [output])], [number])


THE_ANSWERS = made("Add", "repair/answers", PROPOSAL)
HOSTILE = {
    "the answers": ([THE_ANSWERS, made("Add", "repair/answers", FURTHER)], 1),
    "nan": ([made("Add", "repair/answers", PROPOSAL, np.nan), made("Add", "repair/answers", FURTHER, np.nan)], 1),
    "huge": ([made("Add", "repair/answers", PROPOSAL, 3e38), made("Add", "safe/single", FURTHER, 3e38)], 1),
    "tiny": ([made("Mul", "repair/answers", PROPOSAL, 1e-42), made("Mul", "repair/answers", FURTHER, 1e-42)], 1),
    "next to the safe answer": ([THE_ANSWERS, made("Mul", "safe/single", FURTHER, 1 + 2e-7)], 1),
    "three": ([THE_ANSWERS, Backbone([helper.make_node("Neg", ["safe/single"], ["n"]), helper.make_node(
        "Concat", ["n", "repair/answers", "safe/single"], [FURTHER], axis=1)], [])], 3),
}  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", ["coupled", "labels", "budget", "leaves"])
def test_whatever_is_proposed_the_rules_hold(name: str, hostile: str) -> None:
    spec, certificate = certified(name)
    file = joined(spec, certificate, proposals=HOSTILE[hostile])
    assert accepted(file.onnx, file.companion) is not None
    rng = np.random.default_rng(2)
    X = points(spec, rng, 800)
    require_obeys(spec, file, X, answers(spec, X, rng))


@pytest.mark.parametrize("number", [1.5, np.nan])
@pytest.mark.parametrize("name", ["budget", *STEPS])
def test_other_proposals_are_accepted(name: str, number: float) -> None:
    """They are the exporter's word: the check sees to the rest."""
    spec, rng = certified(name)[0], np.random.default_rng(2)

    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name.startswith("proposals/") and tensor.data_type == TensorProto.DOUBLE:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * number, tensor.name))

    data, companion = changed(exported(name), change)
    assert accepted(data, companion) is not None
    X = points(spec, rng, 200)
    served = columns_of(spec, asked(session(data), spec, X, answers(spec, X, rng)))
    assert not wrong(spec, X, served)


@pytest.mark.parametrize("output", [PROPOSAL, FURTHER])
@pytest.mark.parametrize("columns", [0, 1, 2, 7])
def test_proposals_of_another_number_are_never_served(columns: int, output: str) -> None:
    spec, certificate = certified("budget")
    fixed = numpy_helper.from_array(np.full((2, columns), 9, dtype=np.float32), "fixed")
    parts = [Backbone([helper.make_node("Identity", ["fixed"], [output])], [fixed])]
    parts += [made("Add", "repair/answers", other) for other in {PROPOSAL, FURTHER} - {output}]
    file = joined(spec, certificate, proposals=(parts, 1))
    assert accepted(file.onnx, file.companion) is not None
    running, X = session(file.onnx), np.zeros((5, 2), dtype=np.float32)
    for failing in (1, 2, 3, 5):
        Y = np.zeros((5, 2), dtype=np.float32)
        Y[:failing] = 5
        if failing == columns:
            assert not wrong(spec, X, columns_of(spec, asked(running, spec, X, Y)))
            continue
        with pytest.raises(Exception, match=r"[Rr]eshape"):
            asked(running, spec, X, Y)


@pytest.mark.parametrize("rows", [0, 1, 2, 4])
@layouts
@pytest.mark.parametrize("name", ["bank", "one constant", "always"])
def test_answers_with_other_rows_than_the_inputs_are_never_served(name: str, monitor: bool, rows: int) -> None:
    spec, certificate = certified(name)
    constant = numpy_helper.from_array(np.full((rows, len(spec.targets)), 1e30, dtype=np.float32), "backbone/fixed")
    model = Backbone([helper.make_node("Identity", ["backbone/fixed"], [EMBEDDING])], [constant])
    file = joined(spec, certificate, monitor=monitor, model=model)
    assert accepted(file.onnx, file.companion) is not None
    running = session(file.onnx)
    for batch in (1, 2, 3, 5):
        X = np.zeros((batch, len(spec.columns)), dtype=np.float32)
        if batch == rows:
            assert {len(answer) for answer in running.run(None, feed(spec, X))} == {batch}
            continue
        with pytest.raises(Exception, match=r"[Rr]eshape"):
            running.run(None, feed(spec, X))


@pytest.mark.parametrize("kind", ["DOUBLE", "INT64", "FLOAT16", "STRING"])
def test_answers_of_other_types_obey_too(kind: str) -> None:
    """What the model hands over is cast to float64 first, whatever it is."""
    (spec, certificate), rng = certified("bank"), np.random.default_rng(3)
    value = helper.make_tensor_value_info(ANSWERS, TensorProto.FLOAT, ["N", 2])
    nodes = [helper.make_node("Cast", [ANSWERS], [EMBEDDING], to=getattr(TensorProto, kind))]
    file = joined(spec, certificate, model=Backbone(nodes, [], [value]))
    assert accepted(file.onnx, file.companion) is not None
    X = points(spec, rng, 600)
    Y = np.nan_to_num(answers(spec, X, rng), nan=7.0, posinf=9.0, neginf=-9.0)
    assert not wrong(spec, X, columns_of(spec, asked(session(file.onnx), spec, X, Y)))


# --- large files ------------------------------------------------------------------------------------------------------

FORMS = {
    "sums by their terms": [
        *((f"{room}.is_sparse", lambda forms, width: any(forms))
          for room in ("smle_check.onnx.candidate_nodes", "smle.nearest.onnx.writer")),
        ("smle.nearest.onnx.numbers._DENSE", 0),
    ],
    "inputs and regions picked": [(f"{room.__name__}.FEW", 0) for room in (operation_nodes, candidates, interface)],
}  # fmt: skip
PICKED = {
    "one for each": "".join(f"  - {{name: r{n}, when: k == {n}, then: {i} <= p <= {i}.5}}\n"
                            for i, n in enumerate("abcd")),
    "whole domain": "  - {name: r, then: p <= 1}\n  - {name: s, when: x < 0.5, then: q >= 0.25}\n",
    "two rows": "  - {name: r, when: x < 0.5 and k == a, then: p <= 1}\n  - {name: s, when: x >= 0.5, then: q <= x}\n",
    "check": "  - {name: r, when: k == b, then: p + q <= x}\n  - {name: s, when: x > 0.3, then: p <= 0 or q <= 2}\n",
    "check and limits": "  - {name: r, then: p <= q}\n  - {name: s, when: k != c, then: -4 <= p <= 4}\n",
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "name", "monitor"),
    [*(("sums by their terms", name, True) for name in ("coupled", "labels", "budget", "no gate", "gap")),
     *(("inputs and regions picked", name, monitor) for name in PICKED for monitor in (True, False))],
)  # fmt: skip
def test_the_forms_of_large_files_answer_alike(form: str, name: str, monitor: bool, monkeypatch) -> None:
    """Here small ones, so that they can be compared; which form a file has is prescribed."""
    if name in PICKED:
        text = f"inputs: {{x: [0, 1], k: {{categories: [a, b, c, d]}}}}\noutputs: [p, q]\nrules:\n{PICKED[name]}"
        plain = joined(Specification.from_yaml(text), monitor=monitor)
    else:
        plain = exported(name, monitor)
    spec, certificate = plain.spec, plain.record.certificate
    with monkeypatch.context() as patch:
        for place, value in FORMS[form]:
            patch.setattr(place, value)
        other = joined(spec, certificate, monitor=monitor)
        assert len(smle_check.check_onnx(other.onnx, other.companion).proved) == len(certificate.proved)
        assert plain.onnx == other.onnx or accepted(plain.onnx, plain.companion) is None
    # A single region may be read off the named inputs in both.
    assert plain.onnx == other.onnx if name == "whole domain" and not monitor else plain.onnx != other.onnx
    assert plain.onnx == other.onnx or accepted(other.onnx, other.companion) is None
    rng = np.random.default_rng(2)
    X = points(spec, rng, 600)
    Y = answers(spec, X, rng)
    one, two = (asked(session(file.onnx), spec, X, Y) for file in (plain, other))
    if name in PICKED:
        assert all(one[key].tobytes() == two[key].tobytes() for key in one)
    require_obeys(spec, other, X, Y)
    Y = rng.normal(size=Y.shape).astype(np.float32)
    first, second = (columns_of(spec, asked(session(file.onnx), spec, X, Y)) for file in (plain, other))
    assert np.isclose(first, second, rtol=1e-4, atol=1e-4).all(axis=1).mean() > 0.98


def test_files_are_in_proportion_to_the_rules_and_run() -> None:
    """A limit for each of many categories: 21 kB of constants for 200, where matrices took half a megabyte."""
    sizes = []
    for count in (50, 100, 400):
        names = [f"c{i}" for i in range(count)]
        rules = "".join(f"  - {{name: r{i}, when: k == {n}, then: p <= {i}.5}}\n" for i, n in enumerate(names))
        text = f"inputs: {{x: [0, 1], k: {{categories: [{', '.join(names)}]}}}}\noutputs: [p]\nrules:\n{rules}"
        file = joined(spec := Specification.from_yaml(text))
        sizes.append(len(file.onnx))
        assert len(smle_check.check_onnx(file.onnx, file.companion).proved) == count
        X = np.hstack([np.zeros((count, 1)), np.eye(count)])
        found = asked(session(file.onnx), spec, X, np.full((count, 1), 1e6))
        assert (found["p"][:, 0] == np.arange(count) + 0.5).all()
    assert sizes[2] < 5 * sizes[1]
    assert sizes[2] < 150_000


# --- changed graphs -----------------------------------------------------------------------------------------------


def changed(file: Exported, change) -> tuple[bytes, bytes]:
    """Return a file with its model changed, and its certificate with new digests, as an attacker would make them."""
    model = onnx.load_from_string(file.onnx)
    change(model)
    data = model.SerializeToString()
    return data, resealed(file.companion, data)


def branch(model: onnx.ModelProto, which: str = "then") -> onnx.GraphProto:
    """Return a branch, or the branch of a branch."""
    graph = model.graph
    for part in which.split():
        (node,) = (n for n in graph.node if n.op_type == "If")
        graph = next(a.g for a in node.attribute if a.name == f"{part}_branch")
    return graph


@layouts
def test_leaves_and_clips_read_the_same_bits(monitor: bool) -> None:
    # Taken again, for fewer rows, a sum may round otherwise: a clip would move the answer of a leaf without it.
    file = exported("border", monitor)
    assert file.record.certificate.document["program"]["tree"] == [0, None, None]
    nodes = {node.output[0]: node for node in branch(onnx.load_from_string(file.onnx), "then then").node}
    assert nodes["safe/own"].input[0] == "gate/active"
    assert "safe/sums" not in nodes


BOTH = ("bank", "one constant", "one region, two outputs")
FEW = [(name, monitor) for name in BOTH for monitor in (True, False)]
ALONE = [(name, False) for name in ("budget", "labels", "shares", "settled")]


@pytest.mark.parametrize(("name", "monitor"), [*FEW, *ALONE])
def test_every_node_counts(name: str, monitor: bool) -> None:
    assert every_node_counts(exported(name, monitor), 1) > (50 if name in CHECKED else 10)


@pytest.mark.audit
@layouts
@pytest.mark.parametrize("name", [*LIMITS, "coupled", "budget", "labels", "leaves", "gap", "border", *STEPS])
def test_every_node_counts_in_every_way(name: str, monitor: bool) -> None:
    assert every_node_counts(exported(name, monitor), len(KINDS)) > (50 if name in CHECKED else 10) * len(KINDS)


@pytest.mark.parametrize(
    ("name", "monitor"),
    [*FEW, *((name, monitor) for name in ("oblique", "many") for monitor in (True, False)),
     *((name, False) for name in ("budget", "leaves", "shares", "settled"))],
)  # fmt: skip
def test_every_constant_counts(name: str, monitor: bool) -> None:
    kinds = ("value", "shape", "removed", *(["narrower"] if name in LIMITS else []))
    names = every_constant_counts(exported(name, monitor), kinds)
    assert "clips.default" in names or name not in LIMITS
    assert {"check.rows", "check.thresholds", "repair.proposals", "safe.offset"} <= names or name not in CHECKED
    assert any(own.startswith("check.") for own in names) or name not in STEPS


def condition(model):
    (node,) = (n for n in model.graph.node if n.op_type == "If")
    node.input[0] = "in_domain"


def swapped(graph):
    (node,) = (n for n in graph.node if n.op_type == "If")
    for attribute in node.attribute:
        attribute.name = "else_branch" if attribute.name == "then_branch" else "then_branch"


def read_in_a_loop(model):
    """A subgraph inside the proposals reads what is not theirs to read."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["check.rows"], ["proposals/r"])], "g", [],
        [helper.make_tensor_value_info("proposals/r", TensorProto.DOUBLE, None)],
    )  # fmt: skip
    node = helper.make_node("If", ["check/fails"], ["proposals/x"], then_branch=graph, else_branch=graph)
    branch(model).node.insert(0, node)


def no_proposals(model):
    item = next(t for t in model.graph.initializer if t.name == "repair.proposals")
    item.CopyFrom(numpy_helper.from_array(np.array([0]), "repair.proposals"))


def declared(name, shape=None):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def neg(source, output):
    return helper.make_node("Neg", [source], [output])


def other_steps(model):
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["grid/other" if name == "steps" else name for name in names]
    model.graph.node.append(neg("grid/other", "steps"))


def unchecked(model):
    (node,) = (n for n in model.graph.node if n.output[0] == "repair/all")
    node.input[2] = "repair/proposals"


OWN = numpy_helper.from_array(np.float32(1), "proposals/own")
ATTACKS = {
    "swapped branches": lambda m: swapped(m.graph),
    "swapped inner branches": lambda m: swapped(branch(m)),
    "answers are always kept": lambda m: branch(m).CopyFrom(branch(m, "else")),
    "the first proposal always serves": lambda m: branch(m, "then then").CopyFrom(branch(m, "then else")),
    "another output": lambda m: setattr(branch(m).output[0], "name", "repair/kept"),
    "two outputs": lambda m: branch(m).output.append(declared("repair/kept")),
    # A size that the branch does not have: runtimes plan memory with it.
    "a stated size": lambda m: branch(m).output[0].CopyFrom(declared("repair/served", [1, 1])),
    "another type": lambda m: setattr(branch(m).output[0].type.tensor_type, "elem_type", TensorProto.DOUBLE),
    "a constant in the branch": lambda m: branch(m).initializer.append(OWN),
    "an input of the branch": lambda m: branch(m).input.append(declared("proposals/in")),
    "another condition": condition,
    "proposals behind the check": lambda m: branch(m).node.append(neg("repair/served", "proposals/late")),
    "a name made in both branches": lambda m: branch(m, "else").node.append(neg("check/settled", "check/bits")),
    "a subgraph that reads the check": read_in_a_loop,
    "no proposals": no_proposals,
}


@pytest.mark.parametrize(
    ("name", "attack"),
    [*(("budget", attack) for attack in ATTACKS.values()), *((name, other_steps) for name in STEPS),
     ("shares", unchecked)],
    ids=[*ATTACKS, *STEPS, "unchecked"],
)  # fmt: skip
def test_attacks_on_branches_and_steps_are_rejected(name: str, attack) -> None:
    assert accepted(*changed(exported(name), attack)) is None


@pytest.mark.parametrize("name", CHECKED)
def test_no_product_follows_a_transposition(name: str) -> None:
    """onnxruntime before 1.31 joins the two, and has no such operator in float64: it refuses the file."""

    def products(graph, made):
        made = made | {output: node.op_type for node in graph.node for output in node.output}
        for node in graph.node:
            if node.op_type == "MatMul":
                yield [made.get(source) for source in node.input]
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    yield from products(attribute.g, made)

    found = list(products(onnx.load_from_string(exported(name).onnx).graph, {}))
    assert found
    assert not any("Transpose" in sources for sources in found)
