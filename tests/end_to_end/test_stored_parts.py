"""The parts of a model folder: the head, and the model in front of it as tensors or as model.onnx, each bound alone."""

import hashlib
import json
import os
from dataclasses import replace

import numpy as np
import pytest

import smle_check
from smle import Specification, load, storage
from smle.certificates.document import arrays_of
from smle.certificates.issue import rebind, sealed
from smle.errors import CertificateError, ModelFormatError, NotCertifiedError
from smle.export import write_onnx
from smle.heads.rules.rules_author import certify_rules
from smle.storage import ModelRecord, model_files, read_record, write_record
from support.builder import digested, reseal, safetensors_bytes
from support.commands import refused, run

RULES = """
inputs: {income: [0, 1000000], age: [18, 100]}
outputs: [limit]
rules:
  - {name: affordable, then: limit <= 0.35 * income}
  - {name: positive, then: limit >= 0}
  - {name: young, when: age < 21, then: limit <= 2000}
"""
ONNX, OTHER = b"\x08\x09\x12\x04smle one model", b"\x08\x09\x12\x04smle another one"


def corrected(onnx: bytes | None = ONNX, **more) -> ModelRecord:
    """A corrected estimator as plain data: the head's tensors and an ONNX file, which nothing here reads."""
    spec = Specification.from_yaml(RULES)
    description = {"format": "smle-model", "version": 1, "kind": "a corrected estimator", **more}
    files = {"model": ModelRecord.description_bytes(description), "rules": spec.to_yaml().encode()}
    files |= {} if onnx is None else {"onnx": onnx}
    certificate = certify_rules(spec, files=files)
    return ModelRecord(arrays_of(certificate.tensors), description, spec.to_yaml(), certificate, onnx)


@pytest.fixture
def folder(tmp_path):
    write_record(corrected(), tmp_path / "safe")
    return tmp_path / "safe"


def rejected(folder) -> str:
    """Return why a folder is rejected: by the checker, and by whoever reads it as a record."""
    with pytest.raises(smle_check.Rejected) as found:
        smle_check.check(folder)
    with pytest.raises(CertificateError) as read:
        read_record(folder).certificate.check()
    assert str(read.value) == str(found.value)
    return str(found.value)


def test_round_trip(folder):
    record, again = corrected(), read_record(folder)
    assert again.onnx == ONNX
    assert again.certificate.text == record.certificate.text
    assert again.weights.keys() == record.weights.keys()
    assert all(np.array_equal(again.weights[name], value) for name, value in record.weights.items())
    assert again.certificate.check() == record.certificate.proved
    write_record(again, folder)
    assert {path.name for path in model_files(folder)} == {
        "model.safetensors",
        "model.onnx",
        "model.json",
        "rules.yaml",
        "certificate.json",
    }
    assert (folder / "model.onnx").read_bytes() == ONNX


def test_the_checker_names_the_head_and_what_is_not_proved(folder, braking_folder, tmp_path):
    write_record(corrected(None), tmp_path / "function")
    kinds = {
        folder: ("read off the rules", "model.onnx"),
        tmp_path / "function": ("read off the rules", "not part of the folder"),
    }
    kinds[braking_folder] = "a box", "backbone.* in model.safetensors"
    for place, (head, rest) in kinds.items():
        lines = smle_check.check(place).lines
        assert any(line.startswith("checked: the head, ") and head in line for line in lines)
        assert any(line.startswith("not proved: the model in front of the head") and rest in line for line in lines)
        done = run("verify", place, "--assumptions")
        assert done.exit_code == 0, done.output
        assert f"checked: the head, {head}" in done.output.replace("\n", " ")
        assert rest in done.output.replace("\n", " ")


def test_every_kind_of_head_has_words():
    from smle_check.check import HEADS
    from smle_check.words import HEADS as WORDS

    assert HEADS.keys() == WORDS.keys()


OTHERS = "is not what was certified: digest differs"


@pytest.mark.parametrize(("data", "reason"), [(OTHER, OTHERS), (b"", OTHERS), (None, "is missing")])
def test_another_onnx_file_an_empty_one_and_none_are_rejected(folder, data, reason):
    (folder / "model.onnx").unlink() if data is None else (folder / "model.onnx").write_bytes(data)
    assert f"the backbone (model.onnx, or backbone.* in model.safetensors) {reason}" in rejected(folder)


def test_every_bit_of_a_small_onnx_file_is_bound(folder):
    for bit in range(8 * len(ONNX)):
        data = bytearray(ONNX)
        data[bit // 8] ^= 1 << (bit % 8)
        (folder / "model.onnx").write_bytes(bytes(data))
        with pytest.raises(smle_check.Rejected, match="digest differs"):
            smle_check.check(folder)


def test_an_empty_onnx_file_is_not_an_absent_one(tmp_path):
    write_record(corrected(b""), tmp_path / "empty")
    assert read_record(tmp_path / "empty").onnx == b""
    (tmp_path / "empty" / "model.onnx").unlink()
    assert "is missing" in rejected(tmp_path / "empty")


def test_an_onnx_file_that_is_not_bound_is_rejected(tmp_path):
    write_record(corrected(None), tmp_path / "model")
    (tmp_path / "model" / "model.onnx").write_bytes(ONNX)
    assert "was not there when this was certified" in rejected(tmp_path / "model")


def test_an_onnx_file_beside_a_backbone_is_rejected(braking_folder):
    (braking_folder / "model.onnx").write_bytes(ONNX)
    assert "model.safetensors holds a backbone, too" in rejected(braking_folder)
    reseal(braking_folder, backbone=hashlib.sha256(ONNX).hexdigest())
    assert "model.safetensors holds a backbone, too" in rejected(braking_folder)


def test_a_backbone_that_is_not_bound_is_rejected(folder, tmp_path):
    tensors = smle_check.read_weights((folder / "model.safetensors").read_bytes())
    more = tensors | {"backbone.weight": smle_check.Tensor("F32", (1,), bytes(4))}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(more))
    (folder / "model.onnx").unlink()
    assert "the backbone" in rejected(folder)
    reseal(folder, backbone=None)
    assert "was not there when this was certified" in rejected(folder)


def test_a_backbone_that_is_missing_or_changed_is_rejected(braking_folder):
    place = braking_folder / "model.safetensors"
    tensors = smle_check.read_weights(place.read_bytes())
    place.write_bytes(safetensors_bytes({k: v for k, v in tensors.items() if not k.startswith("backbone.")}))
    assert "the backbone" in (reason := rejected(braking_folder))
    assert "is missing" in reason
    name = next(name for name in tensors if name.startswith("backbone."))
    data = bytes([tensors[name].data[0] ^ 1]) + tensors[name].data[1:]
    place.write_bytes(safetensors_bytes({**tensors, name: tensors[name]._replace(data=data)}))
    assert "the backbone" in (reason := rejected(braking_folder))
    assert "digest differs" in reason
    renamed = {k.replace("backbone.", "backbone_"): v for k, v in tensors.items()}  # to the head, as it were
    place.write_bytes(safetensors_bytes(renamed))
    assert "the head is not what was certified" in rejected(braking_folder)
    reseal(braking_folder, head=smle_check.weights_digest(renamed), backbone=None)
    assert "not part of the stated program" in rejected(braking_folder)


@pytest.mark.parametrize("role", ["head", "backbone", "block", "model", "rules"])
def test_every_bound_digest_counts(folder, role):
    text = (folder / "certificate.json").read_bytes()
    binds = json.loads(text)["binds"]
    for value in (None, "", "0" * 64, 0, True, [binds[role]], {}, str(binds[role]).upper(), binds["head"] + "0"):
        if value == binds[role]:
            continue
        (folder / "certificate.json").write_bytes(text)
        reseal(folder, **{role: value})
        assert rejected(folder)
    (folder / "certificate.json").write_bytes(text)
    reseal(folder, **{role: binds["head" if role != "head" else "model"]})
    assert "digest differs" in rejected(folder) or role == "block"
    document = json.loads(text)
    del document["binds"][role]
    (folder / "certificate.json").write_bytes(smle_check.canonical(digested(document)) + b"\n")
    assert "binds: missing field" in rejected(folder)


def test_nothing_is_written_that_the_certificate_does_not_bind(tmp_path):
    record = corrected()
    for onnx in (OTHER, None, b""):
        with pytest.raises(NotCertifiedError, match="backbone changed"):
            write_record(replace(record, onnx=onnx), tmp_path / "a")
    with pytest.raises(NotCertifiedError, match="backbone changed"):
        write_record(replace(corrected(None), onnx=ONNX), tmp_path / "b")
    weights = {**record.weights, "backbone.weight": np.zeros(1, dtype=np.float32)}
    with pytest.raises(NotCertifiedError, match="holds a backbone, too"):
        write_record(replace(record, weights=weights), tmp_path / "c")
    with pytest.raises(NotCertifiedError, match="backbone changed"):
        write_record(replace(corrected(None), weights=weights), tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_that_nothing_could_read(folder, monkeypatch):
    monkeypatch.setattr(storage, "MAX_FILE", 10_000)
    with pytest.raises(ModelFormatError, match=r"model\.onnx has 10,001 bytes"):
        write_record(corrected(bytes(10_001)), folder)
    assert read_record(folder).onnx == ONNX
    write_record(corrected(bytes(10_000)), folder)
    assert len(read_record(folder).onnx) == 10_000


def test_a_model_is_bound_anew_with_its_onnx_file():
    record = corrected()
    files = {"model": b"{}", "rules": record.rules.encode()}
    again = rebind(record.certificate, files)
    assert again.files == {**files, "onnx": ONNX}
    assert rebind(again, {**files, "onnx": OTHER}).document["binds"]["backbone"] == hashlib.sha256(OTHER).hexdigest()


def test_a_network_cannot_be_certified_with_two_backbones(braking_model):
    certificate = braking_model.certificate_
    stated = {key: certificate.document[key] for key in ("program", "specification", "gate", "proof")}
    with pytest.raises(NotCertifiedError, match="holds a backbone, too"):
        sealed(stated, certificate.block, certificate.tensors, {**certificate.files, "onnx": ONNX})


def test_a_box_behind_an_onnx_file_is_proved_and_not_loaded_as_a_network(braking_model, tmp_path):
    """The proof does not need the backbone, so any model may stand there; whoever loads it says what is missing."""
    certificate = braking_model.certificate_
    tensors = {k: v for k, v in certificate.tensors.items() if not k.startswith("backbone.")}
    stated = {key: certificate.document[key] for key in ("program", "specification", "gate", "proof")}
    other = sealed(stated, certificate.block, tensors, {**certificate.files, "onnx": ONNX})
    record = braking_model.record()
    write_record(replace(record, weights=arrays_of(tensors), certificate=other, onnx=ONNX), tmp_path / "box")
    assert smle_check.check(tmp_path / "box").proved
    with pytest.raises(CertificateError, match=r"head of rules beside model.onnx"):
        load(tmp_path / "box")


def test_an_export_does_not_replace_the_model_in_front_of_the_head(braking_folder, folder):
    for place in (braking_folder, folder):
        before = {path.name: path.read_bytes() for path in place.iterdir()}
        with pytest.raises(ModelFormatError, match="Choose another place"):
            write_onnx(read_record(braking_folder), place / "model.onnx")
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert "Choose another place" in refused("export", braking_folder, "-o", braking_folder / "model.onnx")


def test_the_onnx_file_of_an_older_model_does_not_stay(folder):
    write_record(corrected(None), folder)
    assert not (folder / "model.onnx").exists()
    assert smle_check.check(folder).proved


@pytest.mark.parametrize("call", ["stat", "open"])
@pytest.mark.parametrize("moment", ["model.onnx", "model.json", "rules.yaml", "certificate.json"])
def test_a_folder_replaced_while_it_is_read_is_one_model(folder, monkeypatch, moment, call):
    """Before a file is looked for or opened another model, with another ONNX file, is there: never half of each."""
    other, real, replaced = corrected(OTHER, note="another"), getattr(os, call), []

    def late(path, *arguments, **options):
        if path == moment and options.get("dir_fd") is not None and not replaced:
            replaced.append(path)
            write_record(other, folder)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, call, late)
    monkeypatch.setattr(os, "supports_dir_fd", {os.open})
    again = read_record(folder)
    assert replaced
    assert (again.onnx, again.description["note"]) == (OTHER, "another")
    assert again.certificate.check()
