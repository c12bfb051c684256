"""Fuzzing: what was found once stays mended, seeds are valid, and targets notice what they are there for."""

import json
import random
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import smle_check
from smle.rules import Specification
from smle_check.onnx.graph import Graph
from studies.cli import app
from studies.fuzz import run, targets
from studies.fuzz.mutate import mutated, mutated_onnx, mutated_weights
from studies.fuzz.run import fuzz, replay
from studies.fuzz.targets import _FILES, TARGETS, Defect, Target

CORPUS = sorted(place for place in (Path(__file__).parent / "corpus").rglob("*") if place.is_file())


@pytest.mark.parametrize("name", [f"{place.parent.name}/{place.name}" for place in CORPUS])
def test_what_was_found_once(name):
    place = Path(__file__).parent / "corpus" / name
    assert replay(place.parent.name, place.read_bytes()) == ""


@pytest.mark.parametrize("name", TARGETS)
def test_a_second_of_plain_mutations(name, tmp_path):
    outcome = fuzz(name, seconds=1, output=tmp_path, guided=False)
    assert outcome.tried > len(TARGETS[name].seeds())
    assert outcome.defects == {}


READS = {
    "rules": (Specification, "to_yaml"),
    "vnnlib": (targets, "write_vnnlib"),
    "table": (targets, "read_table"),
    "json": (smle_check, "read_json"),
    "weights": (smle_check, "read_weights"),
    "protobuf": (targets, "Graph"),
    "folder": (smle_check, "check_certificate"),
    "onnx": (smle_check, "check_onnx"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_accepted(name, monkeypatch):
    """A seed that is refused would test nothing but the first check."""
    module, function = READS[name]
    original, accepted = getattr(module, function), []

    def noting(*arguments, **options):
        result = original(*arguments, **options)
        accepted.append(1)
        return result

    seeds = TARGETS[name].seeds()
    monkeypatch.setattr(module, function, noting)
    for title, seed in seeds.items():
        accepted.clear()
        TARGETS[name].run(seed)
        assert accepted, title


@pytest.mark.parametrize("name", TARGETS)
def test_other_exceptions_are_defects(name, monkeypatch):
    asked = READS | {"rules": (Specification, "from_yaml"), "vnnlib": (Specification, "from_vnnlib")}
    seed = next(iter(TARGETS[name].seeds().values()))

    def fail(*arguments, **options):
        raise KeyError("not documented")

    monkeypatch.setattr(*asked[name], fail)
    with pytest.raises(Defect, match="KeyError came out"):
        TARGETS[name].run(seed)


def test_a_folder_that_is_accepted_though_changed_is_a_defect(monkeypatch):
    seeds = TARGETS["folder"].seeds()
    monkeypatch.setattr(smle_check, "check_certificate", lambda *parts: [])
    for name in ("braking, model.json, lies", "braking, rules.yaml, lies"):
        with pytest.raises(Defect, match="accepted as it lies"):
            TARGETS["folder"].run(seeds[name] + b" ")
    with pytest.raises(Defect, match="accepted as it lies"):
        TARGETS["folder"].run(seeds["limits, model.onnx, lies"] + b" ")
    TARGETS["folder"].run(seeds["braking, rules.yaml, lies"])
    weights = seeds["braking, model.safetensors, new digests"]
    tensors = smle_check.read_weights(weights[2:])
    header = json.loads(weights[10 : 10 + int.from_bytes(weights[2:10], "little")])
    start, stop = header["heads.bias"]["data_offsets"]
    body = len(weights) - sum(len(tensor.data) for tensor in tensors.values())
    moved = weights[: body + start] + b"\x00\x00\xc8\x42" * ((stop - start) // 4) + weights[body + stop :]
    with pytest.raises(Defect, match="a head is accepted that breaks a rule"):
        TARGETS["folder"].run(moved)


def test_an_onnx_file_that_is_accepted_though_changed_is_a_defect(monkeypatch):
    import onnx
    from onnx import numpy_helper

    seed = TARGETS["onnx"].seeds()["braking, file"]
    model = onnx.load_from_string(seed[2:])
    bias = next(t for t in model.graph.initializer if t.name == "heads.bias")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 100, "heads.bias"))
    changed = seed[:2] + model.SerializeToString()
    TARGETS["onnx"].run(changed)
    monkeypatch.setattr(smle_check, "check_onnx", lambda *parts: None)
    with pytest.raises(Defect, match="a file is accepted that breaks a rule"):
        TARGETS["onnx"].run(changed)


def test_what_hangs_is_a_defect(monkeypatch, tmp_path):
    def busy(data):
        while time.process_time():
            pass

    monkeypatch.setattr(run, "LIMIT", 1)
    monkeypatch.setitem(TARGETS, "rules", Target(busy, lambda: {"one": b"a"}))
    outcome = fuzz("rules", seconds=1, output=tmp_path, guided=False)
    ((place, reason),) = outcome.defects.items()
    assert reason == "not done after 1 s of processor time"
    assert place.read_bytes() == b"a"


def test_the_command_lists_targets_and_ends_with_1_where_something_is_found(monkeypatch, tmp_path):
    assert CliRunner().invoke(app, ["fuzz"]).output.split() == list(TARGETS)
    arguments = ["fuzz", "rules", "--seconds", "1", "--plain", "-o", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "0 defects" in done.output

    def fail(data):
        raise Defect("made up")

    monkeypatch.setitem(TARGETS, "rules", Target(fail, lambda: {"one": b"a"}))
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert "made up" in done.output
    assert CliRunner().invoke(app, ["fuzz", "nonsense"]).exit_code == 2


def test_mutations_repeat_themselves_and_keep_some_files_readable():
    for name, change, read in (
        ("weights", mutated_weights, smle_check.read_weights),
        ("json", mutated, lambda data: smle_check.read_json(data, "x")),
        ("protobuf", mutated_onnx, Graph),
    ):
        seeds = list(TARGETS[name].seeds().values())
        first, second = ([change(seeds[-1], random.Random(i), seeds) for i in range(60)] for _ in range(2))
        assert first == second
        assert len(set(first)) > 40
        readable = 0
        for data in first:
            try:
                read(data)
                readable += data != seeds[-1]
            except smle_check.Rejected:
                continue
        assert readable > 3, name
    named = TARGETS["protobuf"].seeds()["braking"].replace(b"backbone/embedding", b"\xff" * 18)
    for i in range(60):
        assert isinstance(mutated_onnx(named, random.Random(i), [named]), bytes)
    assert set(_FILES) >= set(smle_check.FILES.values())


@pytest.mark.audit
def test_guided_by_coverage(tmp_path):
    outcome = fuzz("json", seconds=10, output=tmp_path, guided=True)
    assert outcome.guided
    assert outcome.tried > 1000
    assert outcome.defects == {}
