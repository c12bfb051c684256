"""`smle predict`: reads and writes in chunks, so that memory does not grow with the table."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smle.cli.app import MODELS, Json, app, counted, data_named, note, print_json, reported, say
from smle.cli.places import (
    RequireCertificate,
    is_onnx,
    load_model,
    not_read,
    not_read_text,
    require_model,
    require_one_of,
    require_table,
)  # fmt: skip
from smle.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from smle.estimators import SafeEstimator
    from smle.export import OnnxModel

__all__ = ["predict"]

_LISTED = 5  # row numbers in a warning
_COLUMNS = 20  # column names in a message
_REMEDY = "Drop these rows, or clamp them with --out-of-domain warn."
_INFO = ("active_rules", "in_domain", "clipped_share", "served")


@app.command(rich_help_panel=MODELS)
def predict(
    model: Annotated[Path, typer.Argument(help="Model folder, or an exported ONNX file.")],
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with the input columns.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV or Parquet file to write; standard output if absent.")
    ] = None,
    out_of_domain: Annotated[
        str, typer.Option(help="Rows outside the domain: raise, warn or clip. The last two clamp them to it.")
    ] = "raise",
    bad_rows: Annotated[
        str, typer.Option(help="Rows that cannot be read: raise, or set-aside, which lists them in OUTPUT.bad.csv.")
    ] = "raise",
    info: Annotated[
        bool,
        typer.Option(
            "--info",
            help="Add active rules, whether the row is in the domain, and what was clipped or how it was served.",
        ),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="COLUMN", help="Column of the table to copy in front of the outputs; repeatable."
        ),
    ] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Keep all columns of the table.")] = False,
    require_certificate: RequireCertificate = False,
    as_json: Json = False,
) -> None:
    """Predict for every row of a table, after checking the model's certificate.

    A model without rules has none: a warning says that nothing is proved, and --require-certificate refuses it.

    An ONNX file runs in onnxruntime, without torch. It reads numbers as float32 and always needs its certificate.

    Memory does not grow with the table. An output file appears when all rows are done; its digits read back as the
    same numbers.

    Example: smle predict model/ new.csv -o predictions.csv

    Example: smle predict model/ new.csv -o predictions.csv --keep id --keep date

    Example: smle predict model.onnx new.csv -o predictions.csv

    Example: smle predict model/ new.parquet -o predictions.parquet --info --out-of-domain warn

    Example: smle predict model/ new.csv -o predictions.csv --bad-rows set-aside
    """
    with reported(as_json):
        from smle.tables.table_files import TableWriter, read_chunks, text_columns

        if as_json and output is None:
            raise ValueError("--json needs --output FILE: the predictions would go where the JSON goes.")
        require_model(model, table=data, usage="smle predict {model} {table}", onnx=True)
        require_table(data)
        require_one_of("--bad-rows", bad_rows, ("raise", "set-aside"))
        if bad_rows == "set-aside" and output is None:
            raise ValueError("--bad-rows set-aside needs --output FILE: the bad rows are listed in FILE.bad.csv.")
        reasons = output.with_name(f"{output.name}.bad.csv") if bad_rows == "set-aside" and output is not None else None
        for place in (output, reasons):
            if place is None or not place.exists():
                continue
            if data.exists() and place.samefile(data):
                raise ValueError(f"'{place}' is the table itself. Name another file for the predictions.")
            if any(place.samefile(file) for file in _files(model)):
                raise ValueError(f"'{place}' is a file of the model. Name another file for the predictions.")
        require_one_of("--out-of-domain", out_of_domain, ("raise", "warn", "clip"))
        import pandas as pd  # takes long

        loaded = _load(model, require_certificate)
        outside, aside = _Noted(), _Noted()
        chunks = read_chunks(data, text=text_columns(loaded.specification_, loaded.text_inputs), empty=True)
        first = next(chunks)
        chunks = itertools.chain([first], chunks)
        unread = [name for name in not_read(loaded, first.columns) if not keep_all and name not in (keep or ())]
        kept = _kept(data, keep or (), keep_all) if keep or keep_all else None
        rows = 0
        written = 0
        with (
            TableWriter(reasons) as listed,
            TableWriter(output) as writer,
            counted("predicting", unit="rows") as progress,
        ):
            for chunk in chunks:
                good = chunk
                if reasons is not None:
                    with data_named(data, chunk):
                        good, bad = loaded.without_bad_rows(chunk)
                    numbers = [rows + row + 1 for row in bad.reasons]
                    aside.add(numbers)
                    listed.write(pd.DataFrame({"row": numbers, "reason": list(bad.reasons.values())}))
                with data_named(data, chunk):
                    answers = _answers(loaded, good, out_of_domain, info, outside)
                if kept is not None:
                    answers = _beside(next(kept).iloc[good.index - rows], answers)
                if reasons is not None:
                    answers = _beside(pd.DataFrame({"row": good.index + 1}), answers)  # some are left out
                rows, written = rows + len(chunk), written + len(answers)
                if len(answers):  # a chunk without rows has no types
                    writer.write(answers)
                progress(rows)
            if not written:
                writer.write(answers)
        if out_of_domain == "warn" and outside.count:
            note(
                f"warning: {outside.count} of {written} rows lie outside the domain of the rules (rows {outside}). "
                "They were clamped to it; the rules hold at the clamped input."
            )
        if aside.count:
            note(
                f"warning: {aside.count} of {rows} rows cannot be read and were set aside (rows {aside}). "
                f"Why: {reasons}"
            )
        if unread and not as_json:
            note(f"note: {not_read_text(unread)}")
        if as_json:
            print_json(
                {
                    "columns_not_read": unread,
                    "rows": written,
                    "output": str(output),
                    "rows_outside_the_domain": outside.count,
                    **({} if reasons is None else {"rows_set_aside": aside.count, "bad_rows": str(reasons)}),
                    "certified": bool(loaded.specification_.rules),
                }
            )
        elif output is not None:
            done = "1 row" if written == 1 else f"{written} rows"
            say(f"Predictions: {output} ({done})")


def _load(model: Path, require_certificate: bool) -> SafeEstimator | OnnxModel:
    if not is_onnx(model):
        return load_model(model, require_certificate=require_certificate)
    from smle.export import load_onnx

    return load_onnx(model)


def _files(model: Path) -> list[Path]:
    from smle.graphs.certified_files import companion
    from smle.storage import model_files

    return [file for file in (model, companion(model)) if file.exists()] if is_onnx(model) else model_files(model)


def _kept(data: Path, names: Sequence[str], every: bool) -> Iterator[pd.DataFrame]:
    """Yield the columns to keep, chunk by chunk, read again as text, so that `007` stays `007`."""
    from smle.tables.table_files import read_chunks

    for chunk in read_chunks(data, verbatim=True, empty=True):
        known = [str(name) for name in chunk.columns]
        unknown = [name for name in names if name not in known]
        if unknown:
            close = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f" (did you mean '{close[0]}'?)" if close else ""
            listed = ", ".join(known[:_COLUMNS]) + (", ..." if len(known) > _COLUMNS else "")
            raise DataError(f"{data}: --keep: there is no column '{unknown[0]}'{hint}. The table has: {listed}.")
        yield chunk if every else chunk[list(dict.fromkeys(names))]


def _beside(kept: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """Put the kept columns in front of the answers."""
    import pandas as pd

    both = [str(name) for name in kept.columns if name in answers.columns]
    if both:
        listed = ", ".join(f"'{name}'" for name in both)
        raise DataError(
            f"Cannot keep {listed}: the predictions have a column of that name. Rename it in the table, or name the "
            "columns to keep with --keep."
        )
    return pd.concat([kept.set_axis(answers.index, axis=0), answers], axis=1)


class _Noted:
    """Counts rows and remembers the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[int] = []

    def add(self, numbers: list[int]) -> None:
        self.count += len(numbers)
        self.first += numbers[: _LISTED - len(self.first)]

    def __str__(self) -> str:
        return ", ".join(map(str, self.first)) + (", ..." if self.count > len(self.first) else "")


def _answers(
    model: SafeEstimator | OnnxModel, chunk: pd.DataFrame, policy: str, info: bool, outside: _Noted
) -> pd.DataFrame:
    """Return the predictions of a chunk as a table. The index of the chunk has the row numbers in the file."""
    import numpy as np
    import pandas as pd

    from smle.export import OnnxModel
    from smle.tables import encode_inputs, in_domain, require_in_domain

    spec = model.specification_
    names = [item.name for item in spec.outputs]
    if info and set(names) & set(_INFO):
        raise ValueError(f"--info: an output has the name of a column that would be added ({', '.join(_INFO)}).")
    numbers = chunk.index.to_numpy()
    encoded = model.encode(chunk) if isinstance(model, OnnxModel) else encode_inputs(spec, chunk)
    if policy == "raise" and spec.rules:
        require_in_domain(spec, encoded, "rows", numbers=numbers, remedy=_REMEDY)
    values, facts = model.predict(chunk, return_info=True, out_of_domain="clip") if info else (
        model.predict(chunk, out_of_domain="clip"), {}
    )  # fmt: skip
    outside.add((1 + numbers[~in_domain(spec, encoded).all(axis=1)]).tolist())
    if isinstance(values, pd.DataFrame):
        table = values
    else:
        columns = np.asarray(values).reshape(len(chunk), len(names)).T
        table = pd.DataFrame(dict(zip(names, columns, strict=True)))
    if info:
        table["active_rules"] = ["; ".join(active) for active in facts["active_rules"]]
        for fact in _INFO[1:]:  # boxes say what was clipped, heads of rules how a row was served, ONNX files neither
            if fact in facts:
                table[fact] = facts[fact]
    return table
