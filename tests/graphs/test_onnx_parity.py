"""onnxruntime computes what torch computes, within the certified rounding, and breaks no rule."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx
import pytest

import smle_check
from smle.certificates.agreement import cells_of
from smle.graphs.backbone import mlp_backbone
from smle.heads.box.box_program import Box
from smle.nearest.onnx.pieces import Backbone
from smle.regions.guard_rows import guard_row, guard_rows
from smle.rules import Polytope
from smle.rules.formula import Row
from smle.rules.membership import active
from smle_check.floats import BINARY32, nearest
from smle_check.heads.box import ExactBounds, ExactHead
from smle_check.onnx.nodes import EMBEDDING
from support.exported import (
    HAND_MADE,
    MIXED,
    Exported,
    columns_of,
    feed,
    hand_made,
    model_of,
    resealed,
    run,
    session,
    untrained,
)
from support.sampling import Judge, hard_points

MODELS = {name: (lambda name=name: hand_made(name)) for name in HAND_MADE}
ONE = "inputs: {a: [0, 1]}\noutputs: [y, z]\nrules:\n  - {name: r, when: a <= 0.3, then: y >= 0 and z <= 1}\n"
MODELS |= {"one region": lambda: untrained(ONE), "one region, affine": lambda: untrained(ONE, "affine")}
MODELS |= {"one region and more": lambda: untrained(ONE + "  - {name: s, then: y + z <= 9}\n")}
MODELS |= {f"mixed, {b}": (lambda b=b: untrained(MIXED, b)) for b in ("fixed", "constant", "affine")}


def numpy_head(exported: Exported) -> Box:
    return Box.of(exported.record.certificate)


def head_graph(exported: Exported, *, monitor: bool = True) -> bytes:
    """The exported head with the embedding as an input, and the cell as an output."""
    n = len(exported.record.weights["bounds.lower"])
    value = onnx.helper.make_tensor_value_info(EMBEDDING, onnx.TensorProto.FLOAT, ["N", n])
    model = model_of(exported.spec, exported.record, Backbone([], [], [value]), monitor=monitor)
    for name, kind in (("gate/cell", onnx.TensorProto.INT64), ("gate/inside", onnx.TensorProto.BOOL)):
        if any(name in node.output for node in model.graph.node):
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, ["N", 1]))
    return model.SerializeToString()


def rounding(exported: Exported) -> np.ndarray:
    """Return the certified rounding error of each head's outputs (heads, m)."""
    certificate = exported.record.certificate
    spec = smle_check.StatedSpecification(certificate.document["specification"], certificate.block)
    bounds = ExactBounds(spec, certificate.tensors, certificate.document["program"]["bounds"])
    weights = exported.record.weights
    result = []
    for c in range(len(weights["heads.weight"])):
        flat = {}
        for part in ("weight", "bias", "passthrough"):
            values = weights.get(f"heads.{part}")
            flat[part] = [] if values is None else [Fraction(float(v)) for v in values[c].ravel()]
        head = ExactHead(spec, bounds, flat["weight"], flat["passthrough"], flat["bias"])
        result.append([float(e) for e in head.errors])
    return np.array(result)


def embeddings(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """Embeddings inside, at the border of and far outside of the box."""
    z = rng.normal(size=(rows, n)) * rng.choice([0.3, 1.0, 30.0], size=(rows, 1))
    z = np.where(rng.random((rows, n)) < 0.2, np.sign(z), z)
    return z.astype(np.float32)


def compare_heads(exported: Exported, count: int, *, batches: tuple[int, ...], threads: int) -> dict[str, float]:
    """Compare the exported head with NumPy on hard points; return figures."""
    spec = exported.spec
    head, cells = numpy_head(exported), cells_of(exported.record.certificate, spec)
    running, errors, judge = session(head_graph(exported), threads), rounding(exported), Judge(spec)
    rng, figures = np.random.default_rng(11), {"points": 0, "largest share of the bound": 0.0, "other cells": 0}
    for X in hard_points(spec, np.random.default_rng(1), count, dtype=np.float32):
        z = embeddings(rng, len(X), errors.shape[0] and head.width)
        expected, cell = head(X, z), head.cell_of(X)
        for batch in batches:
            pieces = []
            for start in range(0, len(X), batch):
                rows = slice(start, start + batch)
                names = [output.name for output in running.get_outputs()]
                answers = running.run(None, {**feed(spec, X[rows]), EMBEDDING: z[rows]})
                answers = dict(zip(names, answers, strict=True))
                outside = ~answers.get("gate/inside", np.ones((len(X[rows]), 1), bool))  # of the one gated region
                pieces.append((columns_of(spec, answers), answers.get("gate/cell", outside.astype(int))[:, 0]))
            Y, found = (np.concatenate(part) for part in zip(*pieces, strict=True))
            assert judge.violations(X, Y) == []
            same = found == cell
            assert near_a_facet(spec, cells, X[~same]).all()
            # Each is within the bound of the exact value, so they are within twice the bound of each other.
            bound = 2 * np.concatenate([errors, np.full((1, errors.shape[1]), np.inf)])[cell[same]]
            gap = np.abs(Y[same].astype(float) - expected[same])
            assert (gap <= bound).all()
            free = cell[same] == len(errors)
            if free.any():
                size = np.abs(z[same][free]).astype(float) @ np.abs(head.tensors["free.weight"].astype(float)).T
                assert (gap[free] <= 2e-6 * (size + np.abs(head.tensors["free.bias"]))).all()
            figures["points"] += len(X)
            figures["other cells"] += int((~same).sum())
            share = float((gap / bound).max(initial=0.0))
            figures["largest share of the bound"] = max(figures["largest share of the bound"], share)
    return figures


def near_a_facet(spec, cells, X: np.ndarray) -> np.ndarray:
    """Whether the points are so near to an oblique row's threshold that rounding decides."""
    close = np.zeros(len(X), dtype=bool)
    for row in guard_rows(cells, spec):
        if not row.is_comparison:
            weights = np.zeros(len(spec.columns))
            for (column, _), value in zip(row.coefficients, row.stored, strict=True):
                weights[column] = float(value)
            close |= np.abs(X.astype(float) @ weights - float(row.threshold)) <= float(row.slack)
    return close


@pytest.mark.parametrize("name", MODELS)
def test_head_agrees_with_numpy_within_the_certified_rounding(name):
    figures = compare_heads(MODELS[name](), 2000, batches=(2000, 7), threads=1)
    assert figures["points"] >= 3900


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_matter(threads):
    compare_heads(hand_made("braking"), 4000, batches=(4000,), threads=threads)


@pytest.mark.audit
@pytest.mark.parametrize("threads", [1, 2])
def test_parity_on_100000_points(braking_model, braking_spec, threads, capsys):
    """The trained demo, 100,000 hard points, in one batch and one by one."""
    exported = Exported(braking_spec, braking_model.record(), b"", b"")
    for batches in ((100_000,), (1,)):
        figures = compare_heads(exported, 100_000, batches=batches, threads=threads)
        assert figures["points"] >= 99_000
        with capsys.disabled():
            print(f"\n{threads} threads, batches of {batches[0]}: {figures}")


def test_the_comparison_can_fail(monkeypatch):
    """A head that is off by a hundred-thousandth is noticed."""
    exported = hand_made("braking")
    head = numpy_head(exported)
    off = Box(head.ops, {**head.tensors, "heads.bias": head.tensors["heads.bias"] + np.float32(1e-5)})
    monkeypatch.setitem(globals(), "numpy_head", lambda _: off)
    with pytest.raises(AssertionError):
        compare_heads(exported, 500, batches=(500,), threads=1)


@pytest.mark.parametrize("name", MODELS)
def test_without_monitoring_the_answers_are_the_same(name):
    """Fewer nodes, the same numbers, and accepted as well."""
    exported = MODELS[name]()
    record = exported.record
    data = model_of(exported.spec, record, mlp_backbone(record.weights), monitor=False).SerializeToString()
    assert smle_check.check_onnx(data, resealed(exported.companion, data)).proved
    X = next(iter(hard_points(exported.spec, np.random.default_rng(3), 500, dtype=np.float32)))
    small, full = (run(session(graph), exported.spec, X) for graph in (data, exported.onnx))
    assert set(full) - set(small) == {"in_domain", "outside_input", "active_rules"}
    assert all(np.array_equal(small[name], full[name]) for name in small)


@pytest.mark.parametrize("name", MODELS)
def test_active_rules_are_reported_with_and_without_a_gate(name):
    """A model that applies a rule everywhere still says where its condition holds."""
    exported, off = MODELS[name](), 0
    spec, running = exported.spec, session(exported.onnx)
    for X in hard_points(spec, np.random.default_rng(2), 2000, dtype=np.float32):
        stated = np.stack([active(rule, X) for rule in spec.rules], axis=1)
        enlarged = np.stack([active(with_slack(rule, spec), X) for rule in spec.rules], axis=1)
        reported = run(running, spec, X)["active_rules"]
        assert (stated <= reported).all()
        assert (reported <= enlarged).all()
        off += (~reported).sum()
    assert off or all(not region.rows for rule in spec.rules for region in rule.regions)


def with_slack(rule, spec):
    """The rule with its oblique borders where the gate may still see them."""

    def moved(row):
        return row if row.is_comparison else Row(row.coefficients, guard_row(row, spec).inside(BINARY32)[1])

    return replace(rule, regions=tuple(Polytope(tuple(map(moved, region.rows))) for region in rule.regions))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38])
@pytest.mark.parametrize("name", ["braking", "affine", "dose", "mixed, fixed", "mixed, affine"])
def test_odd_inputs_are_clamped_and_reported(name, value):
    """Outside of the domain the rules hold at the clamped input; missing numbers become their stand-in."""
    exported = MODELS[name]()
    spec, judge, rng = exported.spec, Judge(exported.spec), np.random.default_rng(4)
    lower, upper = (np.array([float(nearest(v, BINARY32)) for v in e], "f4") for e in (spec.lower, spec.upper))
    numbers = np.array([c for c in range(len(spec.columns)) if not any(c in group for group in spec.one_hot)])
    running = session(exported.onnx)
    for X in hard_points(spec, rng, 1500, dtype=np.float32):
        hit = rng.random((len(X), len(numbers))) < 0.4
        odd = X.copy()
        odd[:, numbers] = np.where(hit, np.float32(value), X[:, numbers])
        answers = run(running, spec, odd)
        clamped = np.where(odd >= lower, odd, lower)
        clamped = np.where(clamped <= upper, clamped, upper)
        outside = hit.any(axis=1)
        for i, column in enumerate(numbers):
            item = next(item for item in spec.inputs if item.name == spec.columns[column])
            if item.missing is not None and np.isnan(value):
                clamped[hit[:, i], column] = float(item.missing)
                outside = np.delete(hit, i, axis=1).any(axis=1)
        assert judge.violations(clamped, columns_of(spec, answers)) == []
        assert np.array_equal(answers["in_domain"], ~outside)


RULE = """
inputs: {{a: {range}, b: [-1, 1]}}
outputs: [y, z]
rules: [{{name: r, when: {when}, then: y >= 0 and z <= 1}}]
"""
DIRECT_GATES = {
    "below": ("[0, 1]", "a <= 0.3"),
    "above": ("[0, 1]", "a >= 0.3"),
    "strictly": ("[-1, 1]", "a < 0 and b > 0"),
    "between": ("[0, 1]", "a > 0.1 and a <= 0.3 and b >= 0.7"),
    "stand-in": ("{range: [0, 1], missing: 0.2}", "a <= 0.3"),
    "lower end": ("[0, 1]", "a <= 0"),
    "upper end": ("[0, 1]", "a >= 1"),
    "two below": ("[0, 1]", "a < 0.7 and b <= 0.1"),
}
CLAMPED_GATES = {
    "oblique": ("[0, 1]", "a + b <= 0.3"),
    "whole range": ("[0, 1]", "a <= 1 and b <= 0.3"),
    "from the lower end": ("[0, 1]", "a >= 0 and b <= 0.3"),
}


@pytest.mark.parametrize("bounds", ["fixed", "affine"])
@pytest.mark.parametrize("name", [*DIRECT_GATES, *CLAMPED_GATES])
def test_comparing_named_inputs_is_comparing_clamped_ones(name, bounds):
    """One region without monitoring: the same answers as the graph that clamps first, bit by bit, NaN included."""
    limits, when = (DIRECT_GATES | CLAMPED_GATES)[name]
    exported = untrained(RULE.format(range=limits, when=when), bounds)
    model = model_of(exported.spec, exported.record, mlp_backbone(exported.record.weights), monitor=False)
    names = [t.name for t in model.graph.initializer]
    assert ("gate.limits.0" in names) == (name in DIRECT_GATES)
    data = model.SerializeToString()
    assert smle_check.check_onnx(data, resealed(exported.companion, data)).proved
    small, full, rng = session(data), session(exported.onnx), np.random.default_rng(5)
    odd = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 0.0, -0.0, 1.0, -1.0, 0.3, 0.1, 0.7])
    odd = np.concatenate([odd, np.nextafter(odd, np.float32(9)), np.nextafter(odd, np.float32(-9))])
    for X in hard_points(exported.spec, rng, 4000, dtype=np.float32):
        X = np.where(rng.random(X.shape) < 0.4, rng.choice(odd, size=X.shape), X)
        one, other = run(small, exported.spec, X), run(full, exported.spec, X)
        # The free head may answer NaN where the backbone does.
        assert all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
        assert not np.isnan(other["y"][other["active_rules"][:, 0]]).any()


@pytest.mark.parametrize(
    "name", ["braking", "labels", "clauses", "affine", "mixed, constant", "one region", "one region and more"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("monitor", [True, False])
def test_whatever_the_backbone_computes(name, value, monitor):
    exported = MODELS[name]()
    spec, judge, rng = exported.spec, Judge(exported.spec), np.random.default_rng(6)
    running = session(head_graph(exported, monitor=monitor))
    names = [output.name for output in running.get_outputs()]
    n = len(exported.record.weights["bounds.lower"])
    for X in hard_points(spec, rng, 1500, dtype=np.float32):
        z = embeddings(rng, len(X), n)
        z[rng.random(z.shape) < rng.choice([0.01, 0.3], size=(len(z), 1))] = value
        answers = dict(zip(names, running.run(None, {**feed(spec, X), EMBEDDING: z}), strict=True))
        assert judge.violations(X, columns_of(spec, answers)) == []
