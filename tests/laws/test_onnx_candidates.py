"""Checked candidates in onnxruntime: whatever is answered and proposed, every rule holds; the branch is certified."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smle_check
from smle.certificates.document import Certificate
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification
from smle_check.onnx.nodes import FURTHER, PROPOSAL
from support.exported import Exported, accepted, columns_of, resealed, session
from support.joined import KINDS, asked, branch, every_constant_counts, every_node_counts, joined
from support.random_rules import random_rules
from support.rules_cases import COUPLED, LABELS, MERGED, TABLES
from support.sampling import Judge, hard_points

TWO = "inputs: {a: [0, 1], b: [-1, 1]}\noutputs: [p, q]\nrules:\n"
CASES = {
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
LAYOUTS = {"monitored": True, "not monitored": False}


@cache
def certified(name: str) -> tuple[Specification, Certificate]:
    spec = Specification.from_yaml(CASES[name])
    return spec, certify_rules(spec, files={"rules": spec.to_yaml().encode()})


@cache
def exported(name: str, monitor: bool = True) -> Exported:
    return joined(*certified(name), monitor=monitor)


def points(spec: Specification, rng: np.random.Generator, count: int) -> np.ndarray:
    X = np.concatenate(list(hard_points(spec, rng, count, dtype=np.float32)))
    X[(X != 0) & (np.abs(X) < 2.0**-126)] = 0  # so that the same points serve where these are read as zero
    return X


def answers(spec: Specification, rows: int, rng: np.random.Generator) -> np.ndarray:
    Y = rng.normal(size=(rows, len(spec.targets))) * 10.0 ** rng.integers(-2, 3, size=(rows, 1))
    odd = rng.random(Y.shape) < 0.05
    Y[odd] = rng.choice([np.nan, np.inf, -np.inf, 1e38, -1e38, 0.0, -0.0, 1e-40, -1e-42], odd.sum())
    return Y.astype(np.float32)


@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_every_rule_holds_and_allowed_answers_stay(name, monitor):
    spec, certificate = certified(name)
    made = exported(name, monitor)
    result = smle_check.check_onnx(made.onnx, made.companion)
    assert len(result.proved) == len(certificate.proved)
    rng, judge = np.random.default_rng(0), Judge(spec)
    X = points(spec, rng, 1200)
    Y = answers(spec, len(X), rng)
    expected, by = Candidates(certificate).explained(X, Y)
    for running in (session(made.onnx), session(made.onnx, flush=True)):
        served = columns_of(spec, asked(running, spec, X, Y))
        assert judge.violations(X, served) == []
        kept = by == 0
        assert np.allclose(served[kept], expected[kept], rtol=1e-6)  # limits that move are rounded in another order
        assert kept.any()
        assert (by > 0).sum() > 5
        for rows in (0, 1, 2):
            few = columns_of(spec, asked(running, spec, X[:rows], Y[:rows]))
            assert few.shape == (rows, len(spec.targets))
            assert rows == 0 or judge.violations(X[:rows], few) == []


@pytest.mark.parametrize("name", ["coupled", "labels", "budget", "no gate", "gap"])
def test_repairs_are_as_near_as_those_in_numpy(name):
    spec, certificate = certified(name)
    rng, program = np.random.default_rng(1), Candidates(certificate)
    X = points(spec, rng, 1000)
    Y = rng.normal(size=(len(X), len(spec.targets))).astype(np.float32)
    expected, by = program.explained(X, Y)
    served = columns_of(spec, asked(session(exported(name).onnx), spec, X, Y))
    scale = program.stored["check.scale"]
    far, wanted = (np.linalg.norm((y - Y) / scale, axis=1) for y in (served, expected))
    assert (by == 1).sum() > 20
    assert (far <= 1.001 * wanted + 1e-4).mean() > 0.995


@pytest.mark.parametrize("name", ["coupled", "labels", "budget", "no gate", "gap"])
def test_sums_that_are_written_by_their_terms_answer_alike(name, monkeypatch):
    """Large checks and blocks are; here small ones, so that they can be compared."""
    spec, certificate = certified(name)
    rng = np.random.default_rng(2)
    X = points(spec, rng, 600)
    Y = rng.normal(size=(len(X), len(spec.targets))).astype(np.float32)
    Y[::30, 0] = np.nan
    expected = columns_of(spec, asked(session(exported(name).onnx), spec, X, Y))
    for module in ("smle_check.onnx.candidate_nodes", "smle.nearest.onnx.writer"):
        monkeypatch.setattr(f"{module}.is_sparse", lambda forms, width: any(forms))
    monkeypatch.setattr("smle.nearest.onnx.numbers._DENSE", 0)
    made = joined(spec, certificate, monitor=True)
    assert made.onnx != exported(name).onnx
    assert len(smle_check.check_onnx(made.onnx, made.companion).proved) == len(certificate.proved)
    for running in (session(made.onnx), session(made.onnx, flush=True)):
        served = columns_of(spec, asked(running, spec, X, Y))
        assert Judge(spec).violations(X, served) == []
        assert np.isclose(served, expected, rtol=1e-4, atol=1e-4).all(axis=1).mean() > 0.98
    monkeypatch.undo()
    with pytest.raises(smle_check.Rejected):  # of the same rules, and not as they are to be written
        smle_check.check_onnx(made.onnx, made.companion)


@pytest.mark.parametrize("seed", range(6))
def test_random_rules_hold(seed):
    rng = np.random.default_rng(seed)
    spec, unit, good = random_rules(rng)
    try:
        certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    except (ContradictionError, NotCertifiedError, RuleError):
        pytest.skip("refused")
    made = joined(spec, certificate, monitor=bool(seed % 2))
    assert accepted(made.onnx, made.companion) is not None
    X = points(spec, rng, 400)
    Y = (good(X) + rng.normal(size=(len(X), len(unit))) * unit).astype(np.float32)
    Y[::40, 0] = np.nan
    for running in (session(made.onnx), session(made.onnx, flush=True)):
        assert Judge(spec).violations(X, columns_of(spec, asked(running, spec, X, Y))) == []


@pytest.mark.audit
@pytest.mark.parametrize("seed", range(100, 160))
def test_more_random_rules_hold(seed):
    test_random_rules_hold(seed)


# --- hostile proposals ----------------------------------------------------------------------------------------------


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
def test_whatever_is_proposed_the_rules_hold(name, hostile):
    spec, certificate = certified(name)
    file = joined(spec, certificate, proposals=HOSTILE[hostile])
    assert accepted(file.onnx, file.companion) is not None
    rng = np.random.default_rng(2)
    X = points(spec, rng, 800)
    Y = answers(spec, len(X), rng)
    for running in (session(file.onnx), session(file.onnx, flush=True)):
        assert Judge(spec).violations(X, columns_of(spec, asked(running, spec, X, Y))) == []


@pytest.mark.parametrize("output", [PROPOSAL, FURTHER])
@pytest.mark.parametrize("columns", [0, 1, 2, 7])
def test_proposals_of_another_number_are_never_served(columns, output):
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
            assert Judge(spec).violations(X, columns_of(spec, asked(running, spec, X, Y))) == []
            continue
        with pytest.raises(Exception, match=r"[Rr]eshape"):
            asked(running, spec, X, Y)


# --- changed graphs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
def test_leaves_and_clips_read_the_same_bits(monitor):
    # Taken again, for fewer rows, a sum may round otherwise: a clip would move the answer of a leaf without it.
    made = exported("border", monitor)
    assert made.record.certificate.document["program"]["tree"] == [0, None, None]
    nodes = {node.output[0]: node for node in branch(onnx.load_from_string(made.onnx), "then then").node}
    assert nodes["safe/own"].input[0] == "gate/active"
    assert "safe/sums" not in nodes


@pytest.mark.parametrize("name", ["budget", "labels"])
def test_every_node_counts(name):
    assert every_node_counts(exported(name, False), 1, branches=True) > 50


@pytest.mark.audit
@pytest.mark.parametrize("name", ["coupled", "budget", "labels", "leaves", "gap", "border"])
def test_every_node_counts_in_every_way(name):
    assert every_node_counts(exported(name), len(KINDS), branches=True) > 50 * len(KINDS)


@pytest.mark.parametrize("name", ["budget", "leaves"])
def test_every_constant_counts(name):
    names = every_constant_counts(exported(name, False), ("value", "shape", "removed"))
    assert {"check.rows", "check.thresholds", "repair.proposals", "safe.offset"} <= names


def swapped(graph):
    (node,) = (n for n in graph.node if n.op_type == "If")
    for attribute in node.attribute:
        attribute.name = "else_branch" if attribute.name == "then_branch" else "then_branch"


def condition(model):
    (node,) = (n for n in model.graph.node if n.op_type == "If")
    node.input[0] = "in_domain"


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


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_the_branch_are_rejected(name):
    made = exported("budget")
    model = onnx.load_from_string(made.onnx)
    ATTACKS[name](model)
    data = model.SerializeToString()
    assert accepted(data, resealed(made.companion, data)) is None


def test_other_proposals_are_accepted():
    """They are the exporter's word: the check sees to the rest."""
    made = exported("budget")
    model = onnx.load_from_string(made.onnx)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("proposals/constant") and tensor.data_type == TensorProto.DOUBLE:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(array * 1.5, tensor.name))
    data = model.SerializeToString()
    assert accepted(data, resealed(made.companion, data)) is not None


@pytest.mark.parametrize("name", CASES)
def test_no_product_follows_a_transposition(name):
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
