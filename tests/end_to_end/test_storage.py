"""Model folders: all or nothing, verified on load, readable while they are replaced."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from smle import load
from smle.errors import CertificateError, ModelFormatError, NotCertifiedError
from smle.storage import read_record, require_replaceable, write_record


def test_round_trip(braking_model, braking_folder, braking_table):
    again = load(braking_folder)
    X = braking_table[["distance", "speed", "friction"]]
    assert np.array_equal(again.predict(X), braking_model.predict(X))
    assert again.certificate_.text == braking_model.certificate_.text
    again.save(braking_folder)
    assert load(braking_folder).certificate_.check()


def test_load_refuses_what_is_not_certified(braking_folder):
    (braking_folder / "certificate.json").unlink()
    with pytest.raises(NotCertifiedError):
        load(braking_folder)


def test_load_refuses_changed_weights_unless_told(braking_folder, braking_table):
    path = braking_folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CertificateError, match="safetensors"):
        load(braking_folder)
    unverified = load(braking_folder, verify=False)
    assert unverified.certificate_ is None
    with pytest.raises(NotCertifiedError):
        unverified.save(braking_folder)


def test_rules_must_be_those_of_the_certificate(braking_folder):
    """Even an attacker who fixes the digest of rules.yaml cannot pass other rules off as proved."""
    import hashlib
    import json

    from smle.certificates.checker import canonical

    rules = braking_folder / "rules.yaml"
    rules.write_text(rules.read_text().replace("brake >= 0.8", "brake >= 0.81"))
    path = braking_folder / "certificate.json"
    document = json.loads(path.read_text())
    document["binds"]["rules"] = hashlib.sha256(rules.read_bytes()).hexdigest()
    del document["digest"]
    document["digest"] = hashlib.sha256(canonical(document)).hexdigest()
    path.write_bytes(canonical(document) + b"\n")
    with pytest.raises(CertificateError, match="emergency braking"):
        load(braking_folder)


def test_a_failed_save_leaves_the_old_model(braking_model, braking_folder, monkeypatch):
    before = {p.name: p.read_bytes() for p in braking_folder.iterdir()}
    real = os.replace

    def fails_on_the_new_folder(source, target):
        if ".new-" in str(source):
            raise OSError("no space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", fails_on_the_new_folder)
    with pytest.raises(OSError, match=r"Cannot write the model folder '.*model': no space"):
        braking_model.save(braking_folder)
    assert {p.name: p.read_bytes() for p in braking_folder.iterdir()} == before
    assert [p.name for p in braking_folder.parent.iterdir()] == ["model"]


def test_an_interrupted_save_leaves_the_old_model(braking_model, braking_folder, monkeypatch):
    real = os.replace

    def interrupted(source, target):
        if ".new-" in str(source):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        braking_model.save(braking_folder)
    assert [p.name for p in braking_folder.parent.iterdir()] == ["model"]
    assert load(braking_folder).certificate_.check()


def test_a_deleted_model_is_not_there(braking_folder, tmp_path):
    """What a writer left after it had finished is no model; what it left between its two renames is."""
    os.rename(braking_folder, tmp_path / ".model.old-0123")
    with pytest.raises(ModelFormatError, match="is not a model folder"):
        load(braking_folder)
    (tmp_path / ".model.new-4567").mkdir()
    assert load(braking_folder).certificate_.check()


def test_nothing_uncertified_is_written(braking_folder, tmp_path):
    """Neither rules without a certificate, nor weights or descriptions that changed after they were certified."""
    record = read_record(braking_folder)
    with pytest.raises(NotCertifiedError, match="no certificate"):
        write_record(replace(record, certificate=None), tmp_path / "a")
    weights = {name: value.copy() for name, value in record.weights.items()}
    weights["backbone.1.bias"][0] += 1
    with pytest.raises(NotCertifiedError, match="weights changed"):
        write_record(replace(record, weights=weights), tmp_path / "b")
    with pytest.raises(NotCertifiedError, match="model changed"):
        write_record(replace(record, description={**record.description, "more": 1}), tmp_path / "c")
    with pytest.raises(NotCertifiedError, match="rules changed"):
        write_record(replace(record, rules=record.rules + "# note\n"), tmp_path / "d")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_other_folders_are_not_overwritten(braking_model, tmp_path):
    (tmp_path / "precious.txt").write_text("keep me")
    with pytest.raises(ModelFormatError, match="not a model folder"):
        braking_model.save(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "keep me"
    with pytest.raises(ModelFormatError, match=r"'.*precious\.txt' is a file, not a folder"):
        braking_model.save(tmp_path / "precious.txt" / "model")


def test_a_folder_needs_a_name(braking_model, tmp_path, monkeypatch):
    """It is written beside its place and renamed, which the current folder cannot be."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFormatError, match="expected the name of a folder"):
        braking_model.save(".")


def test_a_place_is_tried_and_left_as_it_is(braking_folder, tmp_path):
    require_replaceable(braking_folder)
    require_replaceable(tmp_path / "new" / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


WRITER = """
import sys
from smle.storage import read_record, write_record
record = read_record(sys.argv[1])
print("ready", flush=True)
while True:
    write_record(record, sys.argv[1])
"""


@pytest.mark.slow
def test_killed_writers_never_break_the_folder(braking_folder):
    """SIGKILL at random moments: the folder always loads, from the old or the new copy."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(braking_folder)], stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(float(rng.uniform(0.0, 0.03)))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        assert load(braking_folder).certificate_.check()


def test_readers_see_one_model_while_it_is_replaced(braking_folder):
    record = read_record(braking_folder)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            write_record(record, braking_folder)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(15):
            load(braking_folder)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("moment", ["model.json", "rules.yaml", "certificate.json"])
def test_a_folder_replaced_between_two_files_is_read_again(braking_folder, monkeypatch, moment):
    """Each file of the replaced folder is gone by then; what comes back must be a whole model."""
    record = read_record(braking_folder)
    real, replaced = os.open, []

    def open_late(path, *arguments, **options):
        if path == moment and "dir_fd" in options and not replaced:
            replaced.append(path)
            write_record(record, braking_folder)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(os, "supports_dir_fd", {open_late})
    again = read_record(braking_folder)
    assert replaced
    assert again.rules == record.rules
    assert again.certificate is not None
    assert again.certificate.text == record.certificate.text
    assert [p.name for p in braking_folder.parent.iterdir()] == ["model"]


def test_a_folder_that_is_gone_when_it_is_opened_is_looked_for_again(braking_folder, monkeypatch):
    """However often a writer is quicker: the folder was there a moment ago, so it is replaced and not missing."""
    real, missed = os.open, []

    def open_late(path, *arguments, **options):
        if path == braking_folder and len(missed) < 20:
            missed.append(path)
            raise FileNotFoundError(path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(os, "supports_dir_fd", {open_late})
    assert read_record(braking_folder).certificate is not None
    assert len(missed) == 20


def test_no_pickle_in_the_folder(braking_folder):
    assert {p.name for p in braking_folder.iterdir()} == {
        "model.safetensors",
        "model.json",
        "rules.yaml",
        "certificate.json",
    }
