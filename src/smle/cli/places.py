"""Checks options, models and tables before loading libraries that take seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smle.cli.app import note, quoted

if TYPE_CHECKING:
    from smle.estimators import SafeEstimator
    from smle.export import OnnxModel

__all__ = [
    "Overwrite", "RequireCertificate", "is_onnx", "load_model", "not_read", "not_read_text", "require_model",
    "require_one_of", "require_table",
]  # fmt: skip

RequireCertificate = Annotated[
    bool, typer.Option("--require-certificate/--no-require-certificate", help="Refuse a model without a certificate.")
]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a certified model in the output folder.")]


def is_onnx(model: Path) -> bool:
    """Return whether this is an exported ONNX file rather than a model folder."""
    return model.suffix.lower() == ".onnx" and not model.is_dir()


def load_model(model: Path, *, require_certificate: bool) -> SafeEstimator:
    """Load a model folder. If it has no rules, warn that nothing is proved, or raise NotCertifiedError."""
    from smle.doors.load import nothing_proved, read_model  # takes seconds
    from smle.errors import NotCertifiedError

    loaded = read_model(model)
    if not loaded.specification_.rules:
        if require_certificate:
            raise NotCertifiedError(f"{nothing_proved(model)} --no-require-certificate accepts it.")
        note(f"warning: {nothing_proved(model)} --require-certificate refuses such models.")
    return loaded


def not_read(model: SafeEstimator | OnnxModel, columns: Iterable[object]) -> list[str]:
    """Return the columns of a table that a model ignores, apart from outputs of the rules."""
    known = model.columns_read | {item.name for item in model.specification_.outputs}
    return [str(name) for name in columns if str(name) not in known]


def not_read_text(names: list[str]) -> str:
    """Say which columns the model does not read, naming up to eight."""
    listed = ", ".join(f"'{name}'" for name in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"Columns that the model does not read: {listed}."


def require_model(model: Path, *, table: Path | None = None, usage: str = "", onnx: bool = False) -> None:
    """Raise ModelFormatError unless there is a model folder, or what is left of a certified one.

    With `onnx`, an exported file will do. If the model and its `table` were swapped, the message shows `usage`, the
    command with {model} and {table}, the right way round.
    """
    from smle.errors import ModelFormatError
    from smle.storage import model_files, read_record

    if model.is_file() and table is not None and table.is_dir():
        right = usage.format(model=quoted(table), table=quoted(model))
        raise ModelFormatError(f"'{model}' is a file and '{table}' a folder: were they swapped? Try: {right}")
    if is_onnx(model) and not onnx:
        raise ModelFormatError(
            f"'{model}' is an ONNX file: `smle verify` and `smle predict` take it. This command needs the model folder "
            "that it was exported from."
        )
    if is_onnx(model):
        if not model.exists():
            raise ModelFormatError(f"Cannot read '{model}': no such file. Expected an ONNX file or a model folder.")
        return
    if model.is_file():
        raise ModelFormatError(
            f"'{model}' is a file. Expected a model folder, with model.safetensors and model.json in it."
        )
    found = {file.name for file in model_files(model)}
    if not ({"model.safetensors", "model.json"} <= found or "certificate.json" in found):
        read_record(model)  # raises with the reason, unless a writer is just replacing the folder


def require_table(table: Path) -> None:
    """Raise DataError unless the table is a file."""
    from smle.tables.table_files import read_chunks

    if not table.is_file():
        next(read_chunks(table))  # raises with the reason


def require_one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ValueError unless an option has one of the allowed values."""
    if value not in allowed:
        expected = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        raise ValueError(f"Expected {option} to be {expected}. Got '{value}'.")
