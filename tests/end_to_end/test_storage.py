"""Model folders: all or nothing, verified on load, readable while they are replaced."""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from smle import NetworkRegressor, SafeRegressor, load, storage
from smle.errors import CertificateError, ModelFormatError, NotCertifiedError
from smle.estimators import without_rules
from smle.storage import read_record, require_replaceable, write_record
from support.commands import run

WRITER = """
import sys
from smle.storage import read_record, write_record
record = read_record(sys.argv[1])
print("ready", flush=True)
while True:
    write_record(record, sys.argv[1])
"""


def test_round_trip(braking_model, braking_folder, braking_table):
    again = load(braking_folder)
    X = braking_table[["distance", "speed", "friction"]]
    assert np.array_equal(again.predict(X), braking_model.predict(X))
    assert again.certificate_.text == braking_model.certificate_.text
    again.save(braking_folder, overwrite=True)
    assert load(braking_folder).certificate_.check()


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


@pytest.mark.parametrize(
    ("problem", "raised"),
    [
        (OSError("no space left on device"), pytest.raises(OSError, match=r"Cannot write .*model': no space")),
        (KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
    ],
)
def test_a_save_that_does_not_end_leaves_the_old_model(braking_model, braking_folder, monkeypatch, problem, raised):
    before = {p.name: p.read_bytes() for p in braking_folder.iterdir()}
    real = os.replace

    def fails_on_the_new_folder(source, target):
        if ".new-" in str(source):
            raise problem
        real(source, target)

    monkeypatch.setattr(os, "replace", fails_on_the_new_folder)
    with raised:
        braking_model.save(braking_folder, overwrite=True)
    assert {p.name: p.read_bytes() for p in braking_folder.iterdir()} == before
    assert [p.name for p in braking_folder.parent.iterdir()] == ["model"]


def test_a_deleted_model_is_not_there(braking_model, braking_folder, tmp_path):
    """What dead writers left is no model, and the next writer removes it; folders of other names stay."""
    shutil.copytree(braking_folder, tmp_path / ".model.old-0123abcd")
    shutil.copytree(braking_folder, tmp_path / ".model.new-4567abcd")
    shutil.copytree(braking_folder, tmp_path / ".model.old-backup")
    shutil.rmtree(braking_folder)
    with pytest.raises(ModelFormatError, match="is not a model folder"):
        load(braking_folder)
    braking_model.save(braking_folder, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".model.old-backup", "model"]


def test_a_killed_writer_is_finished_by_the_next(braking_model, braking_folder, tmp_path):
    """Killed between its two renames it leaves both models, under one token."""
    shutil.copytree(braking_folder, tmp_path / ".model.new-0123abcd")
    os.rename(braking_folder, tmp_path / ".model.old-0123abcd")
    assert load(braking_folder).certificate_.check()
    braking_model.save(braking_folder, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


CALLS = ("mkdir", "open", "fsync", "replace", "unlink", "rmdir")


def _killed_after(calls, action):
    """Run an action in a child that is killed before so many system calls of a writer; return whether it was."""
    child = os.fork()
    if child == 0:
        left = [calls]

        def counted(real):
            def call(*arguments, **options):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        action()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_killed_at_every_moment(braking_folder, tmp_path):
    """The folder reads as the old or the new model; what is left vanishes with the next writer, not by reading."""
    old, changed = read_record(braking_folder), load(braking_folder)
    changed.set_scores({"changed": 1})
    new = changed.record()
    _ = old.certificate.proved, new.certificate.proved
    seen = []
    for calls in range(200):
        write_record(old, braking_folder)
        assert [p.name for p in tmp_path.iterdir()] == ["model"]
        killed = _killed_after(calls, lambda: write_record(new, braking_folder))
        seen.append("changed" in read_record(braking_folder).description["scores"])
        # Removed by the user, it stays removed; unless the kill came between the renames, when there is none to remove.
        if braking_folder.exists():
            shutil.rmtree(braking_folder)
            with pytest.raises(ModelFormatError):
                read_record(braking_folder)
        if not killed:
            break
    assert not killed
    assert len(seen) > 15
    assert seen == sorted(seen)
    assert {False, True} == set(seen)


def test_writers_wait_for_each_other(braking_folder, tmp_path):
    """Several at once: each model is written whole, and nothing is left."""
    code = WRITER.replace("while True", "for _ in range(12)")
    writers = [subprocess.Popen([sys.executable, "-c", code, str(braking_folder)]) for _ in range(3)]
    while any(writer.poll() is None for writer in writers):
        assert read_record(braking_folder).certificate is not None
        time.sleep(0.01)
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_writer_that_does_not_end_is_named(braking_model, braking_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_PATIENCE", 3)
    with open(tmp_path / ".model.lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match=r"another process is writing it.*\.model\.lock"):
            braking_model.save(braking_folder, overwrite=True)
    braking_model.save(braking_folder, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


# --- Files that are none


@contextlib.contextmanager
def ended_within(seconds):
    """Fail instead of waiting for ever."""

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _replace(place, kind):
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "socket":
        os.mknod(place, stat.S_IFSOCK | 0o600)
    else:
        place.symlink_to({"device": "/dev/zero", "nowhere": "nowhere", "loop": place.name}[kind])


FILES = ["model.safetensors", "model.onnx", "model.json", "rules.yaml", "certificate.json", "certificate.bin"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device", "nowhere", "loop"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file_is_refused(braking_folder, name, kind):
    _replace(braking_folder / name, kind)
    with ended_within(60):
        with pytest.raises(ModelFormatError, match=f"{name}: not "):
            load(braking_folder)
        done = run("verify", braking_folder)
    assert done.exit_code == (2 if name == "certificate.json" else 1)  # without one it is not a model
    assert f"{name}: not " in done.stderr


def test_a_pipe_put_there_at_the_last_moment_does_not_block(braking_folder, monkeypatch):
    """Between looking and opening."""
    real = os.open

    def open_late(path, *arguments, **options):
        if path == "rules.yaml":
            _replace(braking_folder / "rules.yaml", "pipe")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(os, "supports_dir_fd", {open_late})
    with ended_within(60), pytest.raises(ModelFormatError, match=r"rules\.yaml: not a regular file"):
        read_record(braking_folder)


def test_a_pipe_in_place_of_the_lock_does_not_block(braking_model, braking_folder, tmp_path):
    os.mkfifo(tmp_path / ".model.lock")
    with ended_within(60):
        braking_model.save(braking_folder, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_an_empty_block_is_not_an_absent_one(braking_folder):
    (braking_folder / "certificate.bin").write_bytes(b"")
    with pytest.raises(ModelFormatError, match=r"certificate\.bin: empty"):
        load(braking_folder)


# --- Models without rules


def test_a_model_without_rules_is_loaded_with_a_warning_or_not_at_all(braking_spec, braking_table, tmp_path):
    model = SafeRegressor(
        without_rules(braking_spec),
        NetworkRegressor(hidden_layer_sizes=(4,), embedding=4, max_epochs=1),
        random_state=0,
    )
    model.fit(braking_table[["distance", "speed", "friction"]], braking_table["brake"]).save(tmp_path / "plain")
    with pytest.warns(UserWarning, match="Nothing is proved about the model in '.*plain'"):
        assert load(tmp_path / "plain").certificate_ is None
    with pytest.raises(NotCertifiedError, match="Nothing is proved"):
        load(tmp_path / "plain", require_certificate=True)


def test_a_certified_model_is_loaded_without_a_warning(braking_folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(braking_folder, require_certificate=True).certificate_ is not None
    with pytest.raises(ValueError, match="verify=True"):
        load(braking_folder, require_certificate=True, verify=False)


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        (["certificate.json"], NotCertifiedError),
        (["rules.yaml"], CertificateError),
        (["rules.yaml", "certificate.json"], ModelFormatError),
    ],
)
def test_rules_and_certificate_belong_together(braking_folder, missing, error):
    for name in missing:
        (braking_folder / name).unlink()
    with pytest.raises(error, match=r"rules|certificate\.json"):
        load(braking_folder)


def test_nothing_uncertified_is_written(braking_folder, tmp_path):
    """Neither rules without a certificate, nor weights or descriptions that changed after they were certified."""
    record = read_record(braking_folder)
    with pytest.raises(NotCertifiedError, match="no certificate"):
        write_record(replace(record, certificate=None), tmp_path / "a")
    weights = {name: value.copy() for name, value in record.weights.items()}
    weights["backbone.1.bias"][0] += 1
    with pytest.raises(NotCertifiedError, match="backbone changed"):
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
