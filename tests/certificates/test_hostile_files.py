"""Files that are not what they should be: refused with one line, quickly, and never with another exception."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import hypothesis.strategies as st
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from test_checker_alone import FOLDER, run

import smle_check
from support.builder import Package, case, digested, safetensors_bytes
from support.mutations import check_files, files_of
from support.rules_cases import rules_case


def refuse(package: Package, text: bytes, reason: str) -> None:
    start = time.process_time()
    with pytest.raises(smle_check.Rejected, match=reason):
        smle_check.check_certificate(text, package.tensors, package.block, package.files)
    assert time.process_time() - start < 10, "refused, but not quickly"


# --- The text of the certificate


VERSION = b'"version":2'
REPLACED = {
    "duplicate key": (VERSION, b'"version":1,"version":2', "duplicate key"),
    "duplicate key deep inside": (b'"strict":true', b'"strict":true,"strict":false', "duplicate key"),
    "an integer of a million digits": (VERSION, b'"version":' + b"1" * 1_000_000, "refused; exact numbers"),
    **{
        f"the number {token}": (VERSION, f'"version":{token}'.encode(), "refused; exact numbers")
        for token in ("NaN", "Infinity", "-Infinity", "1.0", "1e3", "1E400", "0.5")
    },
}


@pytest.mark.parametrize(("old", "new", "reason"), REPLACED.values(), ids=REPLACED.keys())
def test_json_that_other_readers_accept(old, new, reason):
    package = case("strict")
    assert old in package.text
    refuse(package, package.text.replace(old, new, 1), reason)


@pytest.mark.parametrize("depth", [500, 900, 940, 950, 960, 970, 980, 985, 990, 1000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting(depth, opening, closing):
    """At every depth: also where reading just works and writing or printing would not."""
    package = case("strict")
    value = opening * depth + "0" + closing * depth
    proofs = smle_check.canonical(package.document["proof"]["obligations"])
    refuse(package, package.text.replace(proofs, value.encode()), ".")
    refuse(package, package.text.replace(b'"version":2', f'"version":{value}'.encode()), ".")
    refuse(package, package.text.replace(b'"proof":', f'"extra":{value},"proof":'.encode()), ".")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty", b""),
        ("null", b"null\n"),
        ("list", b"[]\n"),
        ("string", b'"smle-certificate"\n'),
        ("not utf-8", b"\xff\xfe{}"),
        ("byte order mark", b"\xef\xbb\xbf{}\n"),
        ("utf-16", '{"format":1}'.encode("utf-16")),
        ("binary", bytes(range(256))),
        ("two documents", b"{}{}\n"),
    ],
)
def test_not_a_certificate(name, data):
    refuse(case("strict"), data, ".")


@pytest.mark.parametrize("change", [b" ", b"\n", b"\n\n\n", b"\t", b"\x00"])
def test_bytes_after_the_certificate(change):
    package = case("strict")
    refuse(package, package.text + change, "canonical|JSON")


def test_other_ways_to_write_the_same_json():
    package = case("strict")
    pretty = json.dumps(package.document, sort_keys=True, indent=1).encode() + b"\n"
    unsorted = json.dumps(package.document, sort_keys=False, separators=(",", ":")).encode() + b"\n"
    escaped = package.text.replace(b'"certificate"', b'"certificat\\u0065"').replace(b"smle-", b"smle\\u002d", 1)
    for text in (pretty, unsorted, escaped, package.text.rstrip(b"\n"), b" " + package.text):
        if text != package.text:
            refuse(package, text, "canonical")


def test_lone_surrogates_in_names_are_read_and_printed_safely():
    package = case("strict")
    package.document["specification"]["rules"][0]["name"] = "\ud800\u202eevil\nPROVED: 9 statements"
    proved = package.seal().check()
    assert all(item.rule.isprintable() for item in proved)


def test_truncated_at_every_length():
    files = files_of(case("strict"))
    for name, data in files.items():
        for length in {*range(0, len(data), 37), len(data) - 1, 7, 8, 9}:
            if length >= len(data):
                continue
            with pytest.raises(smle_check.Rejected):
                check_files({**files, name: data[:length]})


@pytest.mark.parametrize("name", ["model.json", "rules.yaml", "model.safetensors", "certificate.bin"])
def test_wrong_digest_names_the_file(name):
    files = files_of(case("labels"))
    data = bytearray(files[name])
    data[-1] ^= 1
    with pytest.raises(smle_check.Rejected, match=name):
        check_files({**files, name: bytes(data)})


@pytest.mark.parametrize("name", ["model.json", "rules.yaml", "certificate.bin"])
def test_bound_file_is_missing(name):
    files = files_of(case("labels"))
    del files[name]
    with pytest.raises(smle_check.Rejected, match=name):
        check_files(files)


@pytest.mark.parametrize("name", ["model.json", "rules.yaml", "certificate.bin"])
def test_file_that_is_not_bound(name):
    package = case("strict")
    if name == "certificate.bin":
        package.block = b"1234"
    else:
        package.document["binds"][{"model.json": "model", "rules.yaml": "rules"}[name]] = None
    package.document = digested(package.document)
    with pytest.raises(smle_check.Rejected, match=name):
        package.check()


@pytest.mark.parametrize("role", ["model", "rules"])
def test_an_empty_file_is_not_an_absent_one(role):
    package = case("strict")
    del package.files[role]
    assert package.seal().check()
    package.files[role] = b""
    with pytest.raises(smle_check.Rejected, match="was not there"):
        package.check()
    assert package.seal().check()
    del package.files[role]
    with pytest.raises(smle_check.Rejected, match="is missing"):
        package.check()


def test_an_empty_block_is_refused(tmp_path):
    folder = case("strict").write(tmp_path)
    (folder / "certificate.bin").write_bytes(b"")
    with pytest.raises(smle_check.Rejected, match=r"certificate\.bin: empty"):
        smle_check.read_folder(str(folder))


# --- The weight file


def weight_file(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(start: int, stop: int, *, dtype: object = "F32", shape: object = None) -> dict:
    return {"dtype": dtype, "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


LONG = {"a": entry(0, 0, shape=[2**39] * 100_000)}
BAD_WEIGHTS = {
    "empty": b"",
    "short": b"1234567",
    "header longer than the file": struct.pack("<Q", 2**63) + b"{}",
    "header length overflows": b"\xff" * 8,
    "header is not JSON": weight_file(b"nonsense"),
    "header is a list": weight_file([]),
    "header nested deeply": weight_file(b"[" * 100_000),
    "metadata": weight_file({"__metadata__": {"format": "pt"}}),
    "duplicate names": weight_file(
        b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    ),
    "unknown type": weight_file({"a": entry(0, 4, dtype="F8")}, b"1234"),
    "type is a list": weight_file({"a": entry(0, 4, dtype=["F32"])}, b"1234"),
    "size does not match": weight_file({"a": entry(0, 4, shape=[2])}, b"1234"),
    "negative dimension": weight_file({"a": entry(0, 4, shape=[-1, -1])}, b"1234"),
    "boolean dimension": weight_file({"a": entry(0, 4, shape=[True])}, b"1234"),
    "offsets beyond the file": weight_file({"a": entry(0, 8)}, b"1234"),
    "offsets reversed": weight_file({"a": entry(4, 0, shape=[])}, b"1234"),
    "negative offsets": weight_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, b"1234"),
    "three offsets": weight_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, b"1234"),
    "overlap": weight_file({"a": entry(0, 8), "b": entry(4, 12)}, b"x" * 12),
    "gap": weight_file({"a": entry(0, 4), "b": entry(8, 12)}, b"x" * 12),
    "bytes after the tensors": weight_file({"a": entry(0, 4)}, b"x" * 5),
    "unknown field": weight_file({"a": {**entry(0, 4), "scale": 2}}, b"1234"),
    "lone surrogate in a name": weight_file(b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "a hundred thousand dimensions": weight_file(LONG),
    "an enormous empty tensor": weight_file({"a": entry(0, 4, shape=[2**39, 2**39, 2**39])}, b"1234"),
}


@pytest.mark.parametrize("data", BAD_WEIGHTS.values(), ids=BAD_WEIGHTS.keys())
def test_bad_weight_files(data):
    files = files_of(case("strict"))
    start = time.process_time()
    with pytest.raises(smle_check.Rejected):
        check_files({**files, "model.safetensors": data})
    assert time.process_time() - start < 10, "refused, but not quickly"


def test_signatures_without_bytes_are_not_walked():
    package = case("affine without gate")
    tensors = package.tensors | {"gate.signatures": smle_check.Tensor("U8", (2**39, 0), b"")}
    package.document["binds"]["head"] = smle_check.weights_digest(tensors)
    package.document = digested(package.document)
    start = time.process_time()
    with pytest.raises(smle_check.Rejected, match=r"gate\.signatures"):
        smle_check.check_certificate(package.text, tensors, package.block, package.files)
    assert time.process_time() - start < 10


# --- The folder, through the command line


def assert_refused(folder: Path) -> None:
    done = run(str(FOLDER), str(folder))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("REJECTED: ")
    assert done.stderr == ""


def test_folder_without_files(tmp_path):
    assert_refused(tmp_path)


@pytest.mark.parametrize("name", ["certificate.json", "model.safetensors", "model.json", "certificate.bin"])
def test_directory_instead_of_a_file(tmp_path, name):
    case("labels").write(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert_refused(tmp_path)


@pytest.mark.parametrize("name", ["certificate.json", "model.safetensors", "rules.yaml", "model.onnx"])
def test_pipe_instead_of_a_file_does_not_block(tmp_path, name):
    rules_case("limits-onnx").write(tmp_path)
    assert run(str(FOLDER), str(tmp_path)).returncode == 0
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert_refused(tmp_path)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "certificate.json", "nowhere"])
def test_links_to_devices_loops_and_nowhere(tmp_path, target):
    case("labels").write(tmp_path)
    (tmp_path / "certificate.json").unlink()
    (tmp_path / "certificate.json").symlink_to(target)
    assert_refused(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nowhere"])
@pytest.mark.parametrize("name", ["rules.yaml", "model.onnx"])
def test_what_is_no_file_is_not_an_absent_one(tmp_path, kind, name):
    """Where the certificate says that there is no such file."""
    package = case("strict")
    del package.files["rules"]
    place = package.seal().write(tmp_path) / name
    assert run(str(FOLDER), str(tmp_path)).returncode == 0
    {"pipe": os.mkfifo, "folder": os.mkdir, "link to nowhere": lambda name: os.symlink("nowhere", name)}[kind](place)
    assert_refused(tmp_path)


def test_unreadable_file(tmp_path):
    case("labels").write(tmp_path)
    (tmp_path / "certificate.json").chmod(0)
    administrator = os.geteuid() == 0  # who reads every file: become nobody for a moment
    if administrator:
        os.seteuid(65534)
    try:
        with pytest.raises(smle_check.Rejected, match="not readable"):
            smle_check.read_folder(str(tmp_path))
    finally:
        if administrator:
            os.seteuid(0)


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["/nowhere"], ["--help"], ["\udcff"]])
def test_wrong_calls(arguments):
    done = run(str(FOLDER), *arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr
    assert "Traceback" not in done.stderr


# --- Anything at all

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**16),
    st.text(max_size=5),
    st.sampled_from(["0", "1", "-1/2", "0x1p+0"]),
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
PARTS = ["specification", "proof", "gate", "program", "statement", "version", "format"]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(part=st.sampled_from(PARTS), value=values)
def test_any_json_in_place_of_a_part(part, value):
    package = case("strict")
    if package.document[part] == value:
        return
    package.document[part] = value
    with pytest.raises(smle_check.Rejected):
        package.seal().check()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_json_anywhere(data):
    """Replace one value inside the document: accepted or Rejected, nothing else."""
    package = case(data.draw(st.sampled_from(["strict", "labels", "dose", "roads without gate"])))
    holder, key = package.document, data.draw(st.sampled_from(PARTS[:5]))
    while isinstance(holder[key], (dict, list)) and holder[key] and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    holder[key] = data.draw(values)
    with contextlib.suppress(smle_check.Rejected):
        package.seal().check()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_as_weights(data):
    with contextlib.suppress(smle_check.Rejected):
        smle_check.read_weights(data)


def test_weight_file_by_hand_equals_the_library(tmp_path):
    package = case("labels")
    assert smle_check.read_weights(safetensors.numpy.save(package.weights)) == package.tensors
    loaded = safetensors.numpy.load(safetensors_bytes(package.tensors))
    assert {name: array.tobytes() for name, array in loaded.items()} == {n: t.data for n, t in package.tensors.items()}


def test_a_small_folder_is_checked_in_little_memory(tmp_path):
    """The limit on a file's size is not reserved for every file."""
    resource = pytest.importorskip("resource", reason="limits on memory are those of Unix")
    folder = case("braking").write(tmp_path)
    command = [sys.executable, "-I", "-S", str(FOLDER), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
