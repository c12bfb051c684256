"""Grid heads in ONNX: checked node by node; what is served obeys, whatever the model and the proposals answer."""

import numpy as np
import pytest

import smle
import smle_check
from smle.graphs.certified_files import _sealed
from smle.rules import Specification
from support.grid_rules import GridJudge, hard_answers, hard_inputs
from support.joined import flushing

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

INPUTS = """
inputs:
  t: [-2, 2]
  weight: {range: [0, 4], step: 0.1}
  demand: {range: [0, 20], integer: true}
"""
RULES = {
    "pieces": """
outputs: {a: {integer: true}, b: {integer: true}, c: {integer: true}}
rules:
  - {name: caps, then: 0 <= a <= 9 and 0 <= b <= 8 and 0 <= c <= 6}
  - {name: sum, then: a + b + c == demand}
  - {name: night, when: t + weight >= 1 and demand <= 12, then: a <= 5 + t}
""",
    "shares": """
outputs: {a: {}, b: {}, c: {}}
rules:
  - {name: caps, then: 0 <= a <= 0.7 and 0 <= b <= 0.7 and 0 <= c <= 0.7}
  - {name: one, then: a + b + c == 1}
""",
    "cents": """
outputs: {net: {step: 0.01}, vat: {step: 0.01}, total: {step: 0.01}}
rules:
  - {name: range, then: 0 <= net <= 900}
  - {name: tax, then: abs(vat - 0.19 * net) <= 0.005}
  - {name: total, then: total == net + vat}
""",
    "alternatives": """
outputs: {a: {step: 0.5}, b: {integer: true}}
rules:
  - {name: range, then: -3 <= a <= 3 and -4 <= b <= 4}
  - {name: either, then: a + b <= -2 or a - b >= 2}
  - {name: moving, when: weight > 1.3, then: a <= 1 + 0.3 * t}
""",
    "settled": """
outputs: {a: {step: 0.5, range: [-2, 3]}}
rules: [{name: range, when: t > 1, then: a <= 3}]
""",
    "limits": """
outputs: {a: {step: 0.1}}
rules: [{name: range, then: 0 <= a <= 30}, {name: moving, then: a <= 3 + 0.7 * t + weight}]
""",
}


def passing_on(names):
    """Return an ONNX model that answers with columns of the table: whatever is wanted."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(f"raw_{name}", kind, ["N", 1]) for name in names]
    node = helper.make_node("Concat", [item.name for item in inputs], ["answers"], axis=1)
    outputs = [helper.make_tensor_value_info("answers", kind, ["N", len(names)])]
    graph = helper.make_graph([node], "raw", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(scope="module", params=list(RULES))
def exported(request, tmp_path_factory):
    spec = Specification.from_yaml(INPUTS + RULES[request.param])
    folder = tmp_path_factory.mktemp("grid")
    onnx.save(passing_on(spec.targets), folder / "raw.onnx")
    model = smle.correct(folder / "raw.onnx", spec)
    model.to_onnx(folder / "model.onnx")
    return spec, model, folder / "model.onnx"


def fed(spec, X, answers):
    columns = {name: X[:, i : i + 1] for i, name in enumerate(spec.columns)}
    return columns | {f"raw_{name}": answers[:, i : i + 1] for i, name in enumerate(spec.targets)}


def served(session, spec, X, answers):
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, fed(spec, X, answers)), strict=True))
    return np.concatenate([found[name] for name in spec.targets], axis=1), found


def test_what_is_served_obeys(exported):
    spec, model, path = exported
    session = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    X, answers = hard_inputs(rng, spec, 600, np.float32), hard_answers(rng, spec, 600)
    y, found = served(session, spec, X, answers)
    assert found["in_domain"].all()
    assert len(GridJudge(spec).wrong(X, y)) == 0
    # Where the model's own answer passes, and where single outputs are clipped, all agree bit by bit.
    own, by = model.head.explained(X, answers)
    assert (y[by == 0] == own[by == 0]).all()
    if len(spec.targets) == 1:
        assert (y == own).all()
    for i in range(10):
        alone, _ = served(session, spec, X[i : i + 1], answers[i : i + 1])
        assert len(GridJudge(spec).wrong(X[i : i + 1], alone)) == 0


def test_whole_numbers_are_an_output(exported):
    """They are what the floats stand for; a decimal step does not divide in float32."""
    spec, _, path = exported
    rng = np.random.default_rng(5)
    X, answers = hard_inputs(rng, spec, 200, np.float32), hard_answers(rng, spec, 200)
    y, found = served(onnxruntime.InferenceSession(path), spec, X, answers)
    assert found["steps"].dtype == np.int64
    assert (found["steps"] == spec.grid.whole(y)).all()
    assert (np.signbit(y) == (found["steps"] < 0)).all()


def test_flushed_denormals_change_nothing(exported):
    spec, _, path = exported
    session = flushing(path.read_bytes())
    rng = np.random.default_rng(1)
    X, answers = hard_inputs(rng, spec, 300, np.float32), hard_answers(rng, spec, 300)
    X[:50, 0] = rng.choice(np.float32([1e-40, -1e-40, 1e-45, 0.0]), 50)
    assert len(GridJudge(spec).wrong(X, served(session, spec, X, answers)[0])) == 0


def test_inputs_between_steps_are_outside_of_the_domain(exported):
    spec, _, path = exported
    session = onnxruntime.InferenceSession(path)
    X = np.array([[0, 0.1, 3], [0, 0.15, 3], [0, 0.1, 3.5], [0, 0.3, 7], [9, 0.3, 7]], dtype=np.float32)
    _, found = served(session, spec, X, np.ones((5, len(spec.targets)), np.float32))
    assert found["in_domain"].tolist() == [True, False, False, True, False]


def test_proposals_may_be_anything(exported):
    """With NaN in the place of every proposal, the stored safe answers serve, and the file is still accepted."""
    spec, model, path = exported
    graph = onnx.load(path)
    for item in graph.graph.initializer:
        if item.name.startswith("proposals/") and item.data_type == onnx.TensorProto.DOUBLE:
            item.raw_data = np.full(len(item.raw_data) // 8, np.nan).tobytes()
    data = graph.SerializeToString()
    sealed = _sealed(model.proof, data)
    smle_check.check_onnx(data, sealed)
    session = onnxruntime.InferenceSession(data)
    rng = np.random.default_rng(2)
    X, answers = hard_inputs(rng, spec, 200, np.float32), hard_answers(rng, spec, 200)
    assert len(GridJudge(spec).wrong(X, served(session, spec, X, answers)[0])) == 0


def changed_graphs(path):
    """Yield graphs with one node or constant of the head changed."""
    for name in (
        "grid.upper",
        "grid.lower",
        "check.thresholds",
        "check.outputs",
        "check.limits",
        "grid.numerator",
        "safe.offset",
    ):
        graph = onnx.load(path)
        for item in graph.graph.initializer:
            if item.name == name and item.raw_data:
                item.raw_data = (np.frombuffer(item.raw_data, dtype="<f8") + 1).tobytes()
                yield name, graph
    for old, new in (
        ("Floor", "Ceil"),
        ("LessOrEqual", "Less"),
        ("And", "Or"),
        ("Relu", "Abs"),
        ("ReduceSum", "ReduceMin"),
        ("Neg", "Abs"),
        ("Not", "Identity"),
    ):
        graph = onnx.load(path)
        for node in graph.graph.node:
            if node.op_type == old and not node.output[0].startswith(("proposals", "backbone")):
                node.op_type = new
                yield f"{old} -> {new}", graph
                break

    graph = onnx.load(path)
    for node in graph.graph.node:  # a proposal that was not checked
        if node.output[0] == "repair/all":
            node.input[2] = "repair/proposals"
            yield "unchecked", graph


@pytest.mark.parametrize("exported", ["shares", "pieces"], indirect=True)
def test_no_rows_are_fine(exported):
    spec, _, path = exported
    X, answers = np.zeros((0, len(spec.columns)), np.float32), np.zeros((0, len(spec.targets)), np.float32)
    y, found = served(onnxruntime.InferenceSession(path), spec, X, answers)
    assert y.shape == answers.shape
    assert found["steps"].shape == answers.shape


def test_whole_numbers_of_other_answers_are_refused(exported):
    _, model, path = exported
    graph = onnx.load(path)
    for node in graph.graph.node:
        for names in (node.input, node.output):
            names[:] = ["grid/other" if name == "steps" else name for name in names]
    graph.graph.node.append(onnx.helper.make_node("Neg", ["grid/other"], ["steps"]))
    data = graph.SerializeToString()
    with pytest.raises(smle_check.Rejected, match="steps"):
        smle_check.check_onnx(data, _sealed(model.proof, data))


def test_changed_heads_are_refused(exported):
    _, model, path = exported
    count = 0
    for name, graph in changed_graphs(path):
        data = graph.SerializeToString()
        with pytest.raises(smle_check.Rejected):
            smle_check.check_onnx(data, _sealed(model.proof, data))
        count += 1
        assert name
    assert count >= 7
