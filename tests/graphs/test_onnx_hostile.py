"""Whatever is done to an exported file (one long list): it is rejected, or the certified part is unchanged."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smle_check
from smle.graphs.backbone import mlp_backbone
from smle.nearest.onnx.pieces import Backbone
from smle_check.onnx.graph import _VALUE, Graph
from smle_check.onnx.protobuf import message
from smle_check.work import Work
from support.exported import (
    DIRECT,
    MIXED,
    Exported,
    accepted,
    changed_outer,
    field,
    hand_made,
    model_of,
    resealed,
    run,
    session,
    untrained,
)
from support.joined import KINDS, every_constant_counts, every_node_counts
from support.mutations import changed_bytes, places


def attack(change, exported: Exported | None = None) -> smle_check.OnnxResult | None:
    """Change the model as an attacker would, make the digests new, and check."""
    exported = exported or untrained(MIXED, "fixed")
    model = onnx.load_from_string(exported.onnx)
    change(model)
    data = model.SerializeToString()
    return accepted(data, resealed(exported.companion, data))


def node(model, output):
    return next(n for n in model.graph.node if output in n.output)


def tensor(model, name):
    return next(t for t in model.graph.initializer if t.name == name)


def put(model, name, array):
    tensor(model, name).CopyFrom(numpy_helper.from_array(array, name))


def test_untouched_files_are_accepted():
    result = attack(lambda model: None)
    assert result is not None
    assert result.proved


def direct() -> Exported:
    """A model whose one region is found by comparing the named inputs, without monitoring outputs."""
    exported = untrained(DIRECT)
    model = model_of(exported.spec, exported.record, mlp_backbone(exported.record.weights), monitor=False)
    data = model.SerializeToString(deterministic=True)
    assert "gate.limits.0" in [t.name for t in model.graph.initializer]
    return Exported(exported.spec, exported.record, data, resealed(exported.companion, data))


@pytest.mark.parametrize("name", ["mixed", "affine", "roads", "labels", "direct"])
def test_every_node_of_the_head_counts(name):
    made = {"mixed": lambda: untrained(MIXED, "fixed"), "direct": direct}
    exported = made[name]() if name in made else hand_made(name)
    assert every_node_counts(exported, len(KINDS)) > 10 * len(KINDS)


def test_which_way_a_choice_is_picked_is_the_exporters_word():
    def turn(model):
        for name, op in (("choices/3/index", "ArgMin"), ("choices/4/index", "ArgMax")):
            node(model, name).op_type = op

    stated = attack(turn).asserted
    assert "output 'advice' is the option with the smallest score" in stated
    assert "output 'gear' is the option with the largest score" in stated


@pytest.mark.parametrize("bounds", ["fixed", "affine", "direct"])
def test_every_constant_of_the_head_counts(bounds):
    """A step of one float in a head may well be safe: then it is proved anew."""
    free = ("inputs/0/fill", "free.", "heads.", "bounds.")
    names = every_constant_counts(direct() if bounds == "direct" else untrained(MIXED, bounds), free=free)
    assert len(names) > (9 if bounds == "direct" else 20)


def test_a_worse_head_is_not_proved():
    def change(model):
        bias = numpy_helper.to_array(tensor(model, "heads.bias"))
        put(model, "heads.bias", bias - np.float32(5))

    assert attack(change) is None


def rename_input(model):
    for n in model.graph.node:
        n.input[:] = ["load" if name == "speed" else name for name in n.input]


def add_after(model):
    node(model, "brake").output[0] = "brake/old"
    model.graph.initializer.append(numpy_helper.from_array(np.float32([[1]]), "one"))
    append(model, "Add", ["brake/old", "one"], "brake")


def change_features(model):
    target = node(model, "inputs/features")
    target.input[1] = "load/changed"
    index = list(model.graph.node).index(target)
    model.graph.node.insert(index, helper.make_node("Neg", ["load"], ["load/changed"]))


def feed_back(model):
    next(n for n in model.graph.node if n.output[0].startswith("backbone/")).input[0] = "head/x"


def external(name, location):
    def change(model):
        found = tensor(model, name)
        found.data_location = TensorProto.EXTERNAL
        found.external_data.add(key="location", value=location)

    return change


def subgraph(model):
    graph = helper.make_graph([], "g", [], [])
    append(model, "If", ["in_domain"], "other", then_branch=graph, else_branch=graph)


def function(model):
    body = [helper.make_node("Identity", ["a"], ["b"])]
    model.functions.append(helper.make_function("own", "Gemm", ["a"], ["b"], body, [helper.make_opsetid("", 20)]))


def float16_head(model):
    """What a converter to half precision does to constants."""
    for item in model.graph.initializer:
        if item.data_type == TensorProto.FLOAT and not item.name.startswith("backbone/"):
            item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item).astype(np.float16), item.name))


def bfloat16_weights(model):
    """The head's weights in 16 bits with a cast to float32 behind them: other numbers than those that are certified."""
    item = tensor(model, "heads.weight")
    rounded = (numpy_helper.to_array(item).view(np.uint32) >> 16).astype(np.uint16)
    item.CopyFrom(helper.make_tensor("heads.stored", TensorProto.BFLOAT16, item.dims, rounded.tobytes(), raw=True))
    model.graph.node.insert(0, helper.make_node("Cast", ["heads.stored"], ["heads.weight"], to=TensorProto.FLOAT))


def append(model, op, inputs, output, **attributes):
    model.graph.node.append(helper.make_node(op, inputs, [output], **attributes))


def load_type(model):
    return next(v for v in model.graph.input if v.name == "load").type.tensor_type


def declared(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def backwards(values):
    turned = list(values)[::-1]
    del values[:]
    values.extend(turned)


ATTACKS = {
    "rename an input": rename_input,
    "add after the head": add_after,
    "change the features": change_features,
    "read the head": lambda m: append(m, "Neg", ["head/x"], "elsewhere"),
    "feed back": feed_back,
    "shadow a constant": lambda m: m.graph.input.append(declared("heads.bias", [None])),
    "make a value twice": lambda m: append(m, "Identity", ["backbone/embedding"], "head/picked"),
    "list a node twice": lambda m: m.graph.node.append(node(m, "brake")),
    "overwrite an input": lambda m: m.graph.node.insert(0, helper.make_node("Identity", ["load"], ["speed"])),
    "external weights": external("backbone/0/weight", "/etc/passwd"),
    "external head": external("heads.weight", "weights.bin"),
    "subgraph": subgraph,
    "function": function,
    "custom domain": lambda m: m.opset_import.append(helper.make_opsetid("com.microsoft", 1)),
    "older operator set": lambda m: setattr(m.opset_import[0], "version", 18),
    "no operator set": lambda m: m.ClearField("opset_import"),
    "two operator sets": lambda m: m.opset_import.append(helper.make_opsetid("", 20)),
    "old format": lambda m: setattr(m, "ir_version", 3),
    "training": lambda m: m.training_info.add(),
    "sparse tensor": lambda m: m.graph.sparse_initializer.add(),
    "quantized": lambda m: m.graph.quantization_annotation.add(tensor_name="heads.weight"),
    "hint": lambda m: m.graph.value_info.append(declared("head/picked", [1, 1])),
    "more outputs": lambda m: m.graph.output.append(declared("head/free", None)),
    "swapped outputs": lambda m: backwards(m.graph.output),
    "wide input": lambda m: setattr(load_type(m).shape.dim[1], "dim_param", "K"),
    "float16 input": lambda m: setattr(load_type(m), "elem_type", TensorProto.FLOAT16),
    "float16 head": float16_head,
    "bfloat16 weights": bfloat16_weights,
    "other categories": lambda m: tensor(m, "inputs/2/categories").string_data.reverse(),
    "other options": lambda m: tensor(m, "choices/3/options").string_data.reverse(),
    "other names of rules": lambda m: helper.set_model_props(m, {"active_rules": '["a","b","c","d"]'}),
    "names of rules twice": lambda m: m.metadata_props.append(m.metadata_props[0]),
    "infinite fill": lambda m: put(m, "inputs/0/fill", np.float32([[np.inf]])),
    "no graph": lambda m: m.ClearField("graph"),
    "unordered": lambda m: backwards(m.graph.node),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_rejected(name):
    assert attack(ATTACKS[name]) is None


def test_a_size_given_in_two_ways_is_rejected():
    """Of a oneof that is set twice the last counts; a reader that takes the first would be led astray."""

    size = b"\x08\x01" + field(2, b"K")  # dim_value 1, then dim_param K
    tensor_type = b"\x08\x01" + field(2, field(1, size))
    value = field(1, b"a") + field(2, field(1, tensor_type))
    read = onnx.ValueInfoProto.FromString(value).type.tensor_type.shape.dim[0]
    assert (read.dim_value, read.dim_param) == (0, "K")
    entry = message(memoryview(value), _VALUE, "value", Work())
    with pytest.raises(smle_check.Rejected, match="twice"):
        Graph.named([entry], "input")


# --- harmless changes ---------------------------------------------------------------------------------------------


def test_another_backbone_is_accepted():
    def change(model):
        rng = np.random.default_rng(0)
        for name in ("backbone/0/weight", "backbone/1/bias"):
            array = numpy_helper.to_array(tensor(model, name))
            put(model, name, rng.normal(size=array.shape).astype("f4") * np.float32(1e30))

    assert attack(change) is not None


def test_the_digest_binds_the_backbone_all_the_same():
    exported = hand_made("braking")
    data = bytearray(exported.onnx)
    at = exported.onnx.index(b"backbone/0/weight")
    data[at - 20] ^= 1
    with pytest.raises(smle_check.Rejected, match="not the one that was certified"):
        smle_check.check_onnx(bytes(data), exported.companion)


# --- bytes ----------------------------------------------------------------------------------------------------------


def head_of(data: bytes) -> tuple[object, ...]:
    """What the real protobuf reader sees of the certified part."""
    model = onnx.load_from_string(data)
    nodes = {}
    for n in model.graph.node:
        if not all(name.startswith("backbone/") for name in n.output):
            attributes = sorted((a.name, a.type, a.i) for a in n.attribute)
            nodes[tuple(n.output)] = n.op_type, n.domain.replace("ai.onnx", ""), tuple(n.input), attributes
    tensors = {}
    for t in model.graph.initializer:
        if not t.name.startswith("backbone/"):
            tensors[t.name] = t.data_type, tuple(t.dims), t.raw_data, tuple(t.string_data)
    ends = [
        [(v.name, v.type.tensor_type.elem_type, [d.dim_value for d in v.type.tensor_type.shape.dim]) for v in values]
        for values in (model.graph.input, model.graph.output)
    ]
    return nodes, tensors, ends, len(model.functions)


@pytest.mark.parametrize("seed", range(3))
def test_changed_bytes(seed):
    """With digests made new: rejected, or the certified part reads the same in the real protobuf reader."""
    exported = hand_made("braking")
    original, rng, kept = head_of(exported.onnx), random.Random(seed), 0
    started = time.process_time()
    for _ in range(150):
        changed = changed_bytes(rng, {"model.onnx": exported.onnx})[1].get("model.onnx", b"")
        if accepted(changed, resealed(exported.companion, changed)) is not None:
            now = head_of(changed)
            kept += 1
            assert now[0].keys() == original[0].keys()
            assert now[0] == original[0]
            assert now[2:] == original[2:]
            differ = {name for name in original[1] if now[1].get(name) != original[1][name]}
            # A certified number may have moved by so little that the rules are still proved for it.
            assert differ <= {"heads.weight", "heads.bias", "free.weight", "free.bias", "heads.fallback",
                              "bounds.lower", "bounds.upper"}  # fmt: skip
    assert kept > 0, "flips in the backbone are harmless, so some must pass"
    assert time.process_time() - started < 60


@pytest.mark.parametrize("seed", range(3))
def test_changed_certificate_bytes(seed):
    """Without new digests nothing passes."""
    exported = hand_made("braking")
    rng = random.Random(seed)
    for _ in range(150):
        data = bytearray(exported.companion)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if bytes(data) != exported.companion:
            assert accepted(exported.onnx, bytes(data)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08",
        b"\xff" * 40,
        b"\x08" + b"\x80" * 100_000,
        b"\x08" + b"\xff" * 9 + b"\x7f",  # more than 64 bits
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a graph of 2^62 bytes
        b"\x3b" * 1000,  # groups
        b"\x3a\x02\x0a\x00" * 50_000,  # the graph again and again
        b"\x00" * 1000,
        b"\x08\x09" * 100_000,
    ],
    ids=["empty", "cut", "ones", "endless", "wide", "huge", "groups", "graphs", "zeros", "versions"],
)
def test_malformed_protobuf_is_rejected_quickly(data):
    started = time.process_time()
    assert accepted(data, resealed(hand_made("braking").companion, data)) is None
    assert time.process_time() - started < 20


def test_deeply_nested_messages_are_rejected():
    """The schema is flat: depth is bounded whatever the bytes say."""
    data = b""
    for _ in range(2000):
        data = field(7, data)
    assert accepted(data, resealed(hand_made("braking").companion, data)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "smle-certificate"},
        {"version": 1},
        {"version": 3},
        {"version": "2"},
        {"onnx": "00"},
        {"model_certificate": "00"},
        {"model_certificate": None},
        {"block": "???"},
        {"block": 3},
        {"block": "AAAA"},
        {"model": 1},
        {"rules": None},
        {"rules": "\ud800"},
        {"rules": "inputs: {}"},
        {"certificate": {}},
        {"certificate": []},
        {"certificate": {"digest": "0", "binds": []}},
        {"further": 1},
    ],
    ids=str,
)
def test_changed_certificate_files(changes):
    exported = hand_made("braking")
    assert accepted(exported.onnx, changed_outer(exported.companion, **changes)) is None


def test_odd_values_anywhere_in_the_certificate_raise_nothing_but_rejected():
    """Replace any part of the certificate by odd values and make all digests new: no exception but Rejected."""
    exported = untrained(MIXED, "fixed")
    document, rng = json.loads(exported.companion)["certificate"], random.Random(0)
    odd = [None, True, -1, 10**14, "", "nan", "\ud800", [], {}, [[]], [0] * 3, {"a": 1}]
    everywhere, passed = list(places(document)), 0
    for _ in range(100):
        changed = json.loads(json.dumps(document))
        path = rng.choice(everywhere)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = rng.choice(odd)
        if path[0] != "digest":  # another claim may be true as well
            passed += accepted(exported.onnx, changed_outer(exported.companion, changed)) is not None
    assert passed < 10


def test_the_head_in_the_graph_is_the_bound_one():
    """A head for which every rule is proved, too, is not the one that this certificate is about."""
    exported = hand_made("braking")
    model = onnx.load_from_string(exported.onnx)
    (bias,) = (item for item in model.graph.initializer if item.name == "heads.bias")
    values = np.array(numpy_helper.to_array(bias))
    values.flat[0] = np.nextafter(values.flat[0], np.float32(0), dtype=np.float32)
    bias.CopyFrom(numpy_helper.from_array(values, "heads.bias"))
    data = model.SerializeToString()
    assert accepted(data, resealed(exported.companion, data)) is not None  # bound to it, it is proved
    outer = changed_outer(exported.companion, onnx=smle_check.sha256(data))
    with pytest.raises(smle_check.Rejected, match=r"'heads.bias' is not that of the certified head"):
        smle_check.check_onnx(data, outer)


@pytest.mark.parametrize("value", [None, "", "0" * 64, 0, True, [], {}])
def test_bound_digests_inside_of_the_certificate_file(value):
    """That of the backbone says nothing here: it is nodes of the file. All others count."""
    exported = hand_made("labels")
    for role in ("head", "backbone", "block", "model", "rules"):
        inner = json.loads(exported.companion)["certificate"]
        if inner["binds"][role] == value:
            continue
        inner["binds"][role] = value
        found = accepted(exported.onnx, changed_outer(exported.companion, inner))
        assert (found is not None) == (role == "backbone" and (value is None or isinstance(value, str)))


def test_a_certificate_of_another_model_is_rejected():
    first, second = hand_made("braking"), hand_made("strict")
    assert accepted(first.onnx, resealed(second.companion, first.onnx)) is None


def with_fixed_embedding(exported: Exported, embedding: np.ndarray) -> bytes:
    """Return the model with a backbone that answers the same tensor whatever it is asked."""
    constant = numpy_helper.from_array(embedding, "backbone/fixed")
    kept = helper.make_node("Identity", ["backbone/fixed"], ["backbone/embedding"])
    model = model_of(exported.spec, exported.record, Backbone([kept], [constant]))
    return model.SerializeToString()


@pytest.mark.parametrize("rows", [0, 1, 2, 4])
@pytest.mark.parametrize("name", ["mixed", "affine", "roads", "labels"])
def test_an_embedding_with_other_rows_than_the_inputs_is_never_answered(name, rows):
    """Some versions of onnxruntime read past the end of a buffer where two tensors should have the same rows."""
    exported = untrained(MIXED, "fixed") if name == "mixed" else hand_made(name)
    n = exported.record.weights["bounds.lower"].shape[0]
    data = with_fixed_embedding(exported, np.full((rows, n), 1e30, dtype=np.float32))
    assert accepted(data, resealed(exported.companion, data)) is not None  # the proof holds whatever the rows
    running = session(data)
    for batch in (1, 2, 3, 5):
        features = np.zeros((batch, len(exported.spec.columns)), dtype=np.float32)
        if batch == rows:
            answers = run(running, exported.spec, features)
            assert {len(answer) for answer in answers.values()} == {batch}
            continue
        with pytest.raises(Exception, match=r"[Rr]eshape"):
            run(running, exported.spec, features)


def test_the_reshaping_of_the_embedding_is_part_of_the_certified_program():
    exported = untrained(MIXED, "fixed")

    def bypass(model):
        for target in model.graph.node:
            if target.output[0] != "head/embedding":
                inputs = ["backbone/embedding" if name == "head/embedding" else name for name in target.input]
                target.input[:] = inputs

    assert attack(bypass, exported) is None
