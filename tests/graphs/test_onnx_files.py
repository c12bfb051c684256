"""Files on disk, names and texts of the exported graph, other backbones, and the checker on its own."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import quantize_dynamic
from torch import nn

import smle_check
from smle import NetworkRegressor, SafeRegressor, Specification
from smle.errors import CertificateError, MissingDependencyError, ModelFormatError, NotCertifiedError, RuleError
from smle.estimators import without_rules
from smle.export import backbone_model, check_onnx, write_network, write_onnx
from smle.graphs.backbone import layers_of, mlp_backbone, onnx_backbone
from smle.heads.box.network.assurance import project
from smle.heads.box.network.box_network import BoxNetwork
from smle.storage import ModelRecord, read_record
from support.exported import MIXED, changed_outer, feed, hand_made, model_of, resealed, run, session, untrained
from support.sampling import Judge, hard_points

ROOT = Path(__file__).parents[2]
OBLIQUE = """
inputs: {a: [-3, 5], b: [-7, 2], c: [0.1, 90]}
outputs: [y]
rules:
  - {name: one, when: a - 0.7 * b + 0.3 * c <= 1.7, then: y <= 1}
  - {name: two, when: 0.1 * a + 0.7 * b >= -0.9 and c < 0.7, then: y >= 0}
"""


def test_a_model_folder_becomes_two_files(braking_folder, braking_model, braking_spec, tmp_path):
    place = tmp_path / "out" / "model.onnx"
    write_onnx(read_record(braking_folder), place)
    assert sorted(p.name for p in place.parent.iterdir()) == ["model.onnx", "model.onnx.certificate.json"]
    result = check_onnx(place)
    assert [p.sentence for p in result.proved] == [p.sentence for p in braking_model.certificate_.proved]
    outer = json.loads((tmp_path / "out" / "model.onnx.certificate.json").read_text())
    assert outer["onnx"] == smle_check.sha256(place.read_bytes())
    assert outer["model_certificate"] == smle_check.sha256((braking_folder / "certificate.json").read_bytes())
    running = session(place.read_bytes())
    assert [i.name for i in running.get_inputs()] == ["distance", "speed", "friction"]
    assert [(o.name, o.shape) for o in running.get_outputs()] == [
        ("brake", ["N", 1]), ("in_domain", ["N"]), ("outside_input", ["N"]), ("active_rules", ["N", 4]),
    ]  # fmt: skip
    X = next(iter(hard_points(braking_spec, np.random.default_rng(0), 500, dtype=np.float32)))
    predicted, information = braking_model.predict(X, return_info=True)
    answers = run(running, braking_spec, X)
    assert np.abs(answers["brake"][:, 0] - predicted).max() < 1e-5
    names = json.loads(running.get_modelmeta().custom_metadata_map["active_rules"])
    listed = [tuple(n for n, on in zip(names, row, strict=True) if on) for row in answers["active_rules"]]
    assert listed == information["active_rules"]


def test_operators_are_standard_and_nothing_follows_the_head():
    model = onnx.load_from_string(untrained(MIXED).onnx)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 20)]
    assert {n.domain for n in model.graph.node} == {""}
    onnx.checker.check_model(model, full_check=True)
    arithmetic = {"Gemm", "MatMul", "Add", "Sub", "Mul", "Div", "Relu", "Clip"}
    behind, operators = {"head/guarded"}, set()
    for n in model.graph.node:
        if behind & set(n.input):
            behind.update(n.output)
            operators.add(n.op_type)
    assert {"brake", "advice", "warn"} <= behind
    assert not arithmetic & operators


def test_categories_labels_choices_and_missing_values():
    exported = untrained(MIXED)
    spec, running = exported.spec, session(exported.onnx)
    texts = np.array([["dry"], ["wet"], ["icy"], [""], ["snow"]], dtype=object)
    rows = len(texts)
    feeds = {
        "speed": np.full((rows, 1), 7.5, "f4"),
        "load": np.zeros((rows, 1), "f4"),
        "road": texts,
        "tyre": np.array([["summer"]] * rows, dtype=object),
    }
    names = [o.name for o in running.get_outputs()]

    def ask(**changes):
        return dict(zip(names, running.run(None, {**feeds, **changes}), strict=True))

    answers = ask()
    assert answers["in_domain"].tolist() == [True, True, True, True, False]
    place = [item.name for item in spec.inputs].index("road")
    assert answers["outside_input"].tolist() == [-1, -1, -1, -1, place]
    late = ask(speed=np.full((rows, 1), 1e6, "f4"), tyre=np.array([["summer"]] * 4 + [["none"]], dtype=object))
    others = {name: [item.name for item in spec.inputs].index(name) for name in ("speed", "tyre")}
    assert late["outside_input"].tolist() == [*[others["speed"]] * 4, max(place, others["tyre"])]
    for row in (3, 4):  # the empty text is missing, an unknown text is unknown: both are served as the stand-in
        assert answers["brake"][row] == answers["brake"][1]
    assert np.array_equal(ask(speed=np.full((rows, 1), np.nan, "f4"))["brake"], answers["brake"])
    assert np.array_equal(answers["warn"], answers["logit(warn)"] >= 0)
    scores = np.concatenate([answers[f"score(advice={o})"] for o in ("keep", "slow", "halt")], axis=1)
    assert answers["advice"][:, 0].tolist() == [["keep", "slow", "halt"][i] for i in scores.argmax(axis=1)]
    gears = np.concatenate([answers[f"score(gear={o})"] for o in ("low", "high")], axis=1)
    assert answers["gear"][:, 0].tolist() == [["low", "high"][i] for i in gears.argmin(axis=1)]
    winter = ask(tyre=np.array([["winter"]] * rows, dtype=object))
    assert set(winter["gear"][:, 0]) == {"low"}
    assert "pick: min" in spec.to_yaml()


WHOLE = """
inputs: {road: {categories: [dry, wet]}, seats: {range: [-3, 9], integer: true}, speed: {range: [0, 40], missing: 7.5}}
outputs: [brake]
choices: {gear: {options: [low, high], pick: min}}
rules: [{name: full, when: seats >= 5 and road == wet, then: brake >= 0.5}]
"""


def test_in_domain_asks_for_whole_numbers_where_the_rules_do():
    running = session(untrained(WHOLE).onnx)
    seats = np.array([[-3.0], [-2.5], [-0.0], [4.5], [5.0], [9.0], [9.5], [np.nan], [np.inf]], "f4")
    feeds = {"seats": seats, "speed": np.full_like(seats, 3.5), "road": np.array([["wet"]] * len(seats), dtype=object)}
    inside, which = running.run(["in_domain", "outside_input"], feeds)
    assert inside.tolist() == [True, False, True, False, True, True, False, False, False]
    assert which.tolist() == [-1 if fits else 1 for fits in inside]


@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize(
    ("stated", "other", "shows"),
    [("missing: 7.5", "missing: 30", True), (", integer: true", "", False), ("pick: min", "pick: max", True)],
)
def test_a_graph_that_reads_names_in_another_way_than_its_rules_is_refused(tmp_path, stated, other, shows, monitor):
    exported, place = untrained(WHOLE), tmp_path / "model.onnx"
    for text in (WHOLE, WHOLE.replace(stated, other)):
        spec, backbone = Specification.from_yaml(text), mlp_backbone(exported.record.weights)
        data = model_of(spec, exported.record, backbone, monitor=monitor).SerializeToString(deterministic=True)
        place.write_bytes(data)
        place.with_name("model.onnx.certificate.json").write_bytes(resealed(exported.companion, data))
        if text == WHOLE or not (monitor or shows):  # without in_domain nothing asks for whole numbers
            assert check_onnx(place).proved
        else:
            with pytest.raises(CertificateError, match="in another way than its rules"):
                check_onnx(place)


def test_an_empty_batch_is_answered():
    exported = hand_made("braking")
    answers = run(session(exported.onnx), exported.spec, np.zeros((0, 3), "f4"))
    assert {name: a.shape for name, a in answers.items()} == {
        "brake": (0, 1), "in_domain": (0,), "outside_input": (0,), "active_rules": (0, 4),
    }  # fmt: skip


def test_without_rules_there_is_no_certificate(braking_spec, braking_table, tmp_path):
    plain = SafeRegressor(
        without_rules(braking_spec), NetworkRegressor(hidden_layer_sizes=(8,), max_epochs=2), random_state=0
    )
    plain.fit(braking_table[list(braking_spec.columns)], braking_table["brake"])
    place = tmp_path / "plain.onnx"
    place.with_name("plain.onnx.certificate.json").write_text("stale")
    write_onnx(plain.record(), place)
    assert [p.name for p in tmp_path.iterdir()] == ["plain.onnx"]
    X = braking_table[list(braking_spec.columns)].to_numpy("f4")[:50]
    answers = run(session(place.read_bytes()), braking_spec, X)
    assert np.abs(answers["brake"][:, 0] - plain.predict(X)).max() < 1e-4
    with pytest.raises(CertificateError, match="no such file"):
        check_onnx(place)


# --- refusals ---------------------------------------------------------------------------------------------------


def test_a_record_without_its_certificate_is_refused(braking_model, tmp_path):
    record = braking_model.record()
    bare = ModelRecord(record.weights, record.description, record.rules, None)
    with pytest.raises(NotCertifiedError, match="no certificate"):
        write_onnx(bare, tmp_path / "model.onnx")


def test_changed_weights_or_rules_are_refused(braking_model, tmp_path):
    record = braking_model.record()
    bias, weight = record.weights["heads.bias"], record.weights["heads.weight"]
    for name, part, worse in (
        ("heads.bias", "head", bias + np.float32(1)),
        ("heads.weight", "head", weight.astype(np.float64)),
        ("backbone.1.bias", "backbone", record.weights["backbone.1.bias"] + np.float32(1)),
    ):
        changed = replace(record, weights={**record.weights, name: worse})
        with pytest.raises(NotCertifiedError, match=rf"changed after they were certified \({part}\)"):
            write_onnx(changed, tmp_path / "model.onnx")
    other = record.rules.replace("brake >= 0.8", "brake >= 0.9")
    with pytest.raises(CertificateError, match="emergency"):
        write_onnx(ModelRecord(record.weights, {}, other, record.certificate), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_names_that_the_graph_needs_are_refused():
    text = "inputs: {in_domain: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: y >= 0}]\n"
    with pytest.raises(RuleError, match="'in_domain' is needed twice"):
        untrained(text)


def test_weights_of_another_backbone_are_refused(braking_model):
    record = braking_model.record()
    with pytest.raises(ModelFormatError, match="write_network"):
        layers_of({**record.weights, "backbone.1.extra": np.zeros(1, "f4")})


@pytest.mark.parametrize(("package", "extra"), [("onnx", "onnx"), ("onnxscript", "torch")])
def test_missing_packages_are_named(monkeypatch, tmp_path, package, extra):
    network = project(BoxNetwork(nn.Linear(3, 4), Specification.from_yaml(OBLIQUE), embedding=4))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"{package}\. Install it with: pip install 'smle\[{extra}\]'"):
        write_network(network, tmp_path / "model.onnx")


# --- other backbones ----------------------------------------------------------------------------------------------


class Convolution(nn.Module):
    """A backbone that reads a series, not the features of the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(4 * 6, 5), nn.LayerNorm(5))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        return self.body(series)


class Scene(nn.Module):
    """A backbone with an argument of the name that the features of the rules have elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, features: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        return self.layer(features) + more


BACKBONES = {
    "a series": (Convolution, 5, lambda n: {"series": torch.randn(n, 2, 8)}),
    "an argument called features": (Scene, 5, lambda n: {"features": torch.randn(n, 3), "more": torch.randn(n, 5)}),
    "the features": (lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 6)), 6, lambda n: {}),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_any_torch_backbone(tmp_path, name):
    spec, (make, width, given) = Specification.from_yaml(OBLIQUE), BACKBONES[name]
    torch.manual_seed(0)
    network = project(BoxNetwork(make(), spec, embedding=width, bounds="affine"))
    place = tmp_path / "model.onnx"
    assert write_network(network, place, example=tuple(given(3).values()) or None).proved
    own = [f"inputs of the backbone alone: {', '.join(given(1))}"] if given(1) else []
    assert [line for line in check_onnx(place).asserted if "alone" in line] == own
    running, judge = session(place.read_bytes()), Judge(spec)
    for X in hard_points(spec, np.random.default_rng(0), 300, dtype=np.float32):
        values = given(len(X))
        feeds = feed(spec, X) | {key: value.numpy() for key, value in values.items()}
        (Y,) = running.run(["y"], feeds)
        with torch.inference_mode():
            expected = network(torch.from_numpy(X), *values.values()).numpy()
        assert np.median(np.abs(Y - expected)) < 1e-5
        assert judge.violations(X, Y) == []


def test_a_backbone_that_needs_an_example_says_so(tmp_path):
    network = project(BoxNetwork(Convolution(), Specification.from_yaml(OBLIQUE), embedding=5))
    with pytest.raises(ModelFormatError, match=r"as example=\(...\)") as caught:
        write_network(network, tmp_path / "model.onnx")
    assert str(caught.value).isprintable()
    write_network(network, tmp_path / "model.onnx", example=torch.randn(3, 2, 8))
    assert check_onnx(tmp_path / "model.onnx").proved


def test_the_backbone_alone_is_that_of_the_model(braking_model, braking_spec, tmp_path):
    record = braking_model.record()
    place = tmp_path / "model.onnx"
    write_onnx(record, place, backbone=backbone_model(record))
    X = next(iter(hard_points(braking_spec, np.random.default_rng(0), 500, dtype=np.float32)))
    gap = np.abs(run(session(place.read_bytes()), braking_spec, X)["brake"][:, 0] - braking_model.predict(X))
    assert np.median(gap) < 1e-6


def test_quantizing_the_backbone_keeps_the_certificate(braking_model, braking_spec, braking_table, tmp_path):
    """8-bit weights in the backbone, float32 in the head: proved as before, and no violation."""
    record = braking_model.record()
    onnx.save(backbone_model(record), tmp_path / "backbone.onnx")
    quantize_dynamic(tmp_path / "backbone.onnx", tmp_path / "small.onnx")
    place = tmp_path / "model.onnx"
    write_onnx(record, place, backbone=tmp_path / "small.onnx")
    result = check_onnx(place)
    assert "MatMulInteger" in result.asserted[0]
    assert len(result.proved) == len(braking_model.certificate_.proved)
    running, judge = session(place.read_bytes()), Judge(braking_spec)
    for X in hard_points(braking_spec, np.random.default_rng(0), 5000, dtype=np.float32):
        assert judge.violations(X, run(running, braking_spec, X)["brake"]) == []
    X = braking_table[list(braking_spec.columns)].to_numpy("f4")
    gap = np.abs(run(running, braking_spec, X)["brake"][:, 0] - braking_model.predict(X))
    assert 0 < np.median(gap) < 0.05


def test_quantizing_the_whole_file_is_rejected(braking_model, tmp_path):
    """The head would be quantized with the rest; even with digests made anew it is not the certified program."""
    place, small = tmp_path / "model.onnx", tmp_path / "small.onnx"
    write_onnx(braking_model.record(), place)
    quantize_dynamic(place, small)
    companion = resealed((tmp_path / "model.onnx.certificate.json").read_bytes(), small.read_bytes())
    (tmp_path / "small.onnx.certificate.json").write_bytes(companion)
    with pytest.raises(CertificateError, match="onnx"):
        check_onnx(small)


def test_backbones_of_other_operator_sets_are_refused():
    value = [onnx.helper.make_tensor_value_info(n, 1, ["N", 2]) for n in ("features", "embedding")]
    node = onnx.helper.make_node("Gelu", ["features"], ["embedding"], domain="com.microsoft")
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    with pytest.raises(ModelFormatError, match=re.escape("com.microsoft")):
        onnx_backbone(onnx.helper.make_model(graph, opset_imports=opsets))


# --- the checker on its own -----------------------------------------------------------------------------------------


@pytest.fixture
def exported_braking(braking_model, tmp_path):
    place = tmp_path / "model.onnx"
    write_onnx(braking_model.record(), place)
    return place


def test_the_checker_runs_alone(exported_braking, tmp_path):
    shutil.copytree(Path(smle_check.__file__).parent, tmp_path / "smle_check")
    command = [sys.executable, "-I", "-S", str(tmp_path / "smle_check"), str(exported_braking)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved: rule 'emergency braking'" in done.stdout
    assert "asserted by the exporter: the backbone" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("PROVED: 12 statements")
    exported_braking.write_bytes(exported_braking.read_bytes() + b"\0")
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("REJECTED: the ONNX file is not the one that was certified")
    assert subprocess.run([*command, "more"], capture_output=True).returncode == 2


@pytest.mark.parametrize("suffix", ["", ".certificate.json"])
def test_a_pipe_in_place_of_a_file_does_not_block(exported_braking, suffix):
    place = exported_braking.with_name(exported_braking.name + suffix)
    place.unlink()
    os.mkfifo(place)
    for command in (
        ["-I", "-S", str(Path(smle_check.__file__).parent)],
        ["-c", "from smle.cli import main; main()", "verify"],
    ):
        done = subprocess.run([sys.executable, *command, str(exported_braking)], capture_output=True, timeout=120)
        assert done.returncode == 1
        assert b"not a regular file" in done.stdout + done.stderr


@pytest.mark.parametrize("role", ["model", "rules", "block"])
def test_an_empty_text_is_not_an_absent_one(role):
    exported = hand_made("strict")
    inner = json.loads(exported.companion)["certificate"]
    inner["binds"][role] = None
    absent, empty = (changed_outer(exported.companion, inner, **{role: value}) for value in (None, ""))
    assert smle_check.check_onnx(exported.onnx, absent).proved
    with pytest.raises(smle_check.Rejected, match=r"was not there when|block: empty"):
        smle_check.check_onnx(exported.onnx, empty)


def test_the_braking_demo_in_a_bare_onnxruntime_process(exported_braking):
    """The script of docs/onnx.md, word by word."""
    text = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
    script = re.search(r"```python\n# serve\.py\n(.*?)```", text, re.DOTALL).group(1)
    script += "\nassert not {'smle', 'torch', 'onnx'} & set(sys.modules)\n"
    command = [sys.executable, "-I", "-c", script, str(exported_braking)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    brakes = [float(re.search(r"brake ([-0-9.e]+)", line).group(1)) for line in lines]
    assert brakes[0] >= 0.8
    assert "emergency braking" in lines[0]
    assert brakes[1] <= 0.1
    assert "no phantom braking" in lines[1]
    assert all(0 <= b <= 1 for b in brakes)
    assert [line.endswith("in the domain") for line in lines] == [True, True, True, False]
