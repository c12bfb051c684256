"""The model folder: safetensors and JSON, written completely or not at all, without pickle."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save as serialize

import smle
import smle_check
from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.errors import ModelFormatError, NotCertifiedError
from smle.rules import Specification
from smle_check.reading import MAX_FILE, read_file, require

if sys.platform != "win32":
    import fcntl

__all__ = [
    "ModelRecord",
    "description_of",
    "model_files",
    "read_record",
    "require_replaceable",
    "require_writable",
    "write_record",
]

FORMAT, VERSION = "smle-model", 1
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_PATIENCE = 6_000  # times 10 ms that a writer waits for another one
_FILES = ("model.safetensors", "model.onnx", "model.json", "rules.yaml", "certificate.json", "certificate.bin")


@dataclass(frozen=True, eq=False)
class ModelRecord:
    """A model as plain data: the contents of a model folder.

    `description` is model.json; `rules` and `certificate` are None for a network without rules. The model in front of
    the head is either `backbone.*` of the weights or `onnx`, the bytes of model.onnx.

    `read_record` returns what `write_record` wrote; `certificate.check()` then checks that the certificate binds all of
    it. `digests` are the SHA-256 of the files read, by name; a record that was not read from files has none.
    """

    weights: dict[str, npt.NDArray[Any]] = field(repr=False)
    description: dict[str, Any]
    rules: str | None
    certificate: Certificate | None
    onnx: bytes | None = field(default=None, repr=False)
    digests: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def specification(self) -> Specification:
        """The rules, compiled from their text. Raises RuleError as `Specification.from_yaml` does."""
        return Specification.from_yaml((self.rules or "") + "\n")

    @property
    def further(self) -> Any:
        """The entry of model.json about columns that the network reads besides the inputs of the rules, or None."""
        architecture = self.description.get("architecture")
        return architecture.get("further") if isinstance(architecture, dict) else None

    def bound_files(self) -> dict[str, bytes]:
        """Return the files that a certificate binds as a whole, by role."""
        files = {"model": self.description_bytes(self.description)}
        if self.rules is not None:
            files["rules"] = self.rules.encode()
        if self.onnx is not None:
            files["onnx"] = self.onnx
        return files

    def changed(self) -> list[str]:
        """Return the roles of the parts that differ from what the certificate binds; without a certificate, all.

        Raises NotCertifiedError if there are two models in front of the head.
        """
        binds = {} if self.certificate is None else self.certificate.document["binds"]
        block = b"" if self.certificate is None else self.certificate.block
        try:
            actual = smle_check.bindings(tensors_of(self.weights), block, self.bound_files())
        except smle_check.Rejected as reason:
            raise NotCertifiedError(f"{reason}. Nothing was written.") from None
        return [role for role, digest in actual.items() if binds.get(role) != digest]

    @staticmethod
    def description_bytes(description: dict[str, Any]) -> bytes:
        """Serialize model.json."""
        return (json.dumps(description, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def description_of(kind: str, spec: Specification, **facts: Any) -> dict[str, Any]:
    """Return the entries of model.json: those that every model has (kind, columns, time, versions), and `facts`."""
    versions = {"smle": smle.__version__, "python": platform.python_version(), "numpy": np.__version__}
    if "torch" in sys.modules:
        versions["torch"] = str(sys.modules["torch"].__version__)
    provenance = {"created": datetime.now(timezone.utc).isoformat(timespec="seconds"), "versions": versions}
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "inputs": [item.name for item in spec.inputs],
        "columns": list(spec.columns),
        "targets": list(spec.targets),
        "scores": {},
        **facts,
        "provenance": provenance | facts.get("provenance", {}),
    }


def write_record(record: ModelRecord, folder: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Write a model folder. An interruption at any moment leaves a whole model to read, the previous or the new one.

    Everything is written to a new folder beside it, which is then renamed to take its place. Writers wait for each
    other, and each removes what killed ones left behind.

    Raises:
        ModelFormatError: If the place holds anything but a model folder, or holds a certified model and `overwrite` is
            False, or if a file would be too large.
        NotCertifiedError: If there are rules, but no certificate for exactly what would be written.
        OSError: If the place cannot be written.
    """
    target = Path(folder)
    _require_certified(record)
    _require_not_taken(target, overwrite)
    files = {"model.safetensors": serialize({k: np.ascontiguousarray(v) for k, v in record.weights.items()})}
    files |= {smle_check.FILES[role]: data for role, data in record.bound_files().items()}
    if record.certificate is not None:
        files["certificate.json"] = record.certificate.text
        if record.certificate.block:
            files["certificate.bin"] = record.certificate.block
    large = next((name for name, data in files.items() if len(data) > MAX_FILE), None)
    if large is not None:
        raise ModelFormatError(
            f"Cannot write '{target}': {large} has {len(files[large]):,} bytes. At most {MAX_FILE:,} can be read. "
            "Nothing was written."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            _clean_up(target)
            _write_files(files, target)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"Cannot write the model folder '{target}': {reason}. This model was not written.") from error


# A writer holds a lock, so anything it finds beside the target is from writers that died. It writes `.model.new-X`,
# renames the target to `.model.old-X` and `.model.new-X` to the target, and removes `.model.old-X`. If killed between
# the renames, it leaves both with the same X, and both are complete. In every other state the target is the model, or
# there is none. Without file locks, one of two simultaneous writers may fail, but no model is lost.


def _write_files(files: dict[str, bytes], target: Path) -> None:
    token = secrets.token_hex(4)
    fresh, old = (_beside(target, kind, token) for kind in ("new", "old"))
    fresh.mkdir()
    try:
        for name, data in files.items():
            with open(fresh / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        moved = target.exists()
        if moved:
            os.replace(target, old)
        try:
            os.replace(fresh, target)
        except BaseException:
            if moved:
                os.replace(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _beside(target: Path, kind: str, token: str) -> Path:
    return target.with_name(f".{target.name}.{kind}-{token}")


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Let one writer at a time into a place. The lock ends with the writer's process, however that ends."""
    place = target.with_name(f".{target.name}.lock")
    for _ in range(_PATIENCE):
        with open(os.open(place, _LOCK_FLAGS, 0o600), "rb") as file:
            if _lock(file.fileno()) and _is_same(place, file.fileno()):  # another writer may have removed the file
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):
                        place.unlink()
                return
        time.sleep(0.01)
    raise OSError(f"another process is writing it (it holds '{place}')")


def _lock(handle: int) -> bool:
    """Take the lock of an open file, and return whether that worked. It always does where locks are not supported."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _is_same(place: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(place), os.fstat(handle))
    except FileNotFoundError:
        return False


def _left(target: Path, kind: str) -> dict[str, Path]:
    """Return the folders that writers made beside the target, by token."""
    pattern = re.compile(re.escape(f".{target.name}.{kind}-") + "([0-9a-f]{8})")
    try:
        names = os.listdir(target.parent)
    except OSError:
        return {}
    return {match[1]: target.with_name(name) for name in names if (match := pattern.fullmatch(name))}


def _interrupted(target: Path) -> Path | None:
    """Return the complete new model of a writer that was killed between its two renames."""
    if target.exists():
        return None
    fresh, old = _left(target, "new"), _left(target, "old")
    return next((fresh[token] for token in sorted(fresh) if token in old), None)


def _clean_up(target: Path) -> None:
    """Finish what a killed writer began, and remove what dead writers left. Requires the lock."""
    whole = _interrupted(target)
    if whole is not None:
        os.replace(whole, target)
    for kind in ("old", "new"):
        for folder in _left(target, kind).values():
            shutil.rmtree(folder, ignore_errors=True)


def _require_certified(record: ModelRecord) -> None:
    """Raise NotCertifiedError unless the certificate covers exactly what would be written."""
    if record.certificate is None:
        if record.rules is not None and record.specification.rules:
            raise NotCertifiedError("The model has rules but no certificate. Nothing was written.")
        return
    record.certificate.check()  # checks the certificate with the tensors and files that it holds
    changed = record.changed()
    if changed:
        raise NotCertifiedError(
            f"The certificate does not cover the model as it is now ({', '.join(changed)} changed). "
            "Nothing was written."
        )


def read_record(folder: str | os.PathLike[str]) -> ModelRecord:
    """Read a model folder as one consistent snapshot, without checking its certificate.

    Raises:
        ModelFormatError: If the folder is missing or not a model folder, or its weights, its description or its rules
            cannot be read.
    """
    target = Path(folder)
    files = _read_files(target)
    description = _description(files["model.json"], target)
    try:
        tensors = smle_check.read_weights(files["model.safetensors"])
    except smle_check.Rejected as reason:
        raise ModelFormatError(f"{target / 'model.safetensors'}: {reason}.") from None
    rules, certificate = files.get("rules.yaml"), None
    if "certificate.json" in files:
        bound = {role: files[name] for role, name in smle_check.FILES.items() if name in files}
        certificate = Certificate(files["certificate.json"], files.get("certificate.bin", b""), tensors, bound)
    try:
        text = None if rules is None else rules.decode()
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        return ModelRecord(arrays_of(tensors), description, text, certificate, files.get("model.onnx"), digests)
    except UnicodeDecodeError:
        raise ModelFormatError(f"{target / 'rules.yaml'}: expected UTF-8 text.") from None


class _ReplacedError(Exception):
    """A writer moved the folder while it was read, so files may be missing."""


def _read_files(target: Path) -> dict[str, bytes]:
    """Read all files of one model, retrying while a writer replaces the folder."""
    missing = 0
    for _ in range(200):
        try:
            return _snapshot(target)
        except _ReplacedError:
            time.sleep(0.01)
        except FileNotFoundError:
            missing += 1
            if missing == 5:
                raise ModelFormatError(
                    f"'{target}' is not a model folder: expected model.safetensors and model.json in it."
                ) from None
            time.sleep(0.05)
        except smle_check.Rejected as reason:
            raise ModelFormatError(f"'{target}': {reason}. Expected a model folder of regular files.") from None
    raise ModelFormatError(f"'{target}' keeps being replaced by another process. Try again later.")


def _snapshot(target: Path) -> dict[str, bytes]:
    """Read all files through one handle of the folder, so that a rename in between does not mix two models.

    A writer renames a folder before it removes files, so a folder still in place afterwards was complete.
    """
    place = _interrupted(target) or target
    seen = place.exists()
    if os.open not in os.supports_dir_fd:
        found = {name: read_file(str(place / name), name) for name in _FILES}
        return _whole({name: data for name, data in found.items() if data is not None}, place)
    try:
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
    except NotADirectoryError:
        raise FileNotFoundError(place) from None
    except FileNotFoundError:
        if seen:  # it existed a moment ago, so a writer is at work
            raise _ReplacedError from None
        raise
    files: dict[str, bytes] = {}
    try:
        for name in _FILES:
            data = read_file(name, name, handle)
            if data is not None:
                files[name] = data
    except smle_check.Rejected:
        if _is_same(place, handle):
            raise
        raise _ReplacedError from None
    else:
        if not _is_same(place, handle):
            raise _ReplacedError
    finally:
        os.close(handle)
    return _whole(files, place)


def _whole(files: dict[str, bytes], place: Path) -> dict[str, bytes]:
    for name in ("model.safetensors", "model.json"):
        if name not in files:
            raise FileNotFoundError(place / name)
    require(files.get("certificate.bin") != b"", "certificate.bin: empty; expected no such file")
    return files


def model_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a model folder, or [] if it does not exist."""
    return [place for name in _FILES if (place := Path(folder) / name).is_file()]


def require_replaceable(target: Path, *, overwrite: bool = True) -> None:
    """Raise ModelFormatError if a model folder cannot be written there; only a model folder may be replaced."""
    _require_not_taken(target, overwrite)
    require_writable(target)


def require_writable(target: Path) -> None:
    """Try to write beside the target, and raise ModelFormatError if that fails.

    Permissions alone do not tell: an administrator has all of them, even on a read-only file system.
    """
    above = _folder_above(target)
    trial = _beside(above / target.name, "new", secrets.token_hex(4))
    try:
        trial.mkdir()
        with contextlib.suppress(FileNotFoundError):  # a writer may have cleaned up
            trial.rmdir()
    except OSError as error:
        raise ModelFormatError(
            f"Cannot write '{target}': the folder '{above}' is not writable ({error.strerror or error}). "
            "Choose another place."
        ) from None


def _require_not_taken(target: Path, overwrite: bool) -> None:
    if target.name in ("", ".."):
        raise ModelFormatError(f"Cannot write '{target}': expected the name of a folder for the model, such as model.")
    if not target.exists():
        _folder_above(target)
    elif not target.is_dir() or any(entry.name not in _FILES for entry in target.iterdir()):
        raise ModelFormatError(
            f"'{target}' exists and is not a model folder. Choose another place, or remove it first."
        )
    elif (target / "certificate.json").exists() and not overwrite:
        raise ModelFormatError(
            f"'{target}' holds a certified model. Choose another place, or replace it with overwrite=True "
            "(--overwrite on the command line)."
        )


def _folder_above(target: Path) -> Path:
    above = target.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise ModelFormatError(f"Cannot write '{target}': '{above}' is a file, not a folder. Choose another place.")
    return above


def _description(data: bytes, target: Path) -> dict[str, Any]:
    try:
        description = json.loads(data)
    except (ValueError, RecursionError):
        raise ModelFormatError(f"{target / 'model.json'}: not readable as JSON.") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ModelFormatError(f"{target / 'model.json'}: not the description of an smle model.")
    if description.get("version") != VERSION:
        raise ModelFormatError(
            f"{target / 'model.json'}: format version {description.get('version')!r}; this version of smle supports "
            f"format {VERSION}."
        )
    return description
