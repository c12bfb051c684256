"""`smle verify` and `smle export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smle.cli.app import (
    MODELS,
    Json,
    app,
    data_named,
    print_json,
    print_proved,
    print_statements,
    proved_json,
    quoted,
    reported,
    say,
)  # fmt: skip
from smle.cli.places import RequireCertificate, is_onnx, load_model, require_model, require_table
from smle.errors import CertificateError, NotCertifiedError

if TYPE_CHECKING:
    from smle.certificates.document import Proved
    from smle.rules import Specification

    # What is proved, its rules if they are known, the statement in words, and how the nodes of a file were matched.
    _Verified = tuple[Sequence[Proved], Specification | None, dict[str, Any], dict[str, Any]]

__all__ = ["export", "verify"]

_NAMED = 24  # names in a line of the domain
_HOLDS = "Holds: every rule is proved in exact arithmetic, for every input in the domain."


@app.command(rich_help_panel=MODELS)
def verify(
    model: Annotated[Path, typer.Argument(help="Model folder, or an exported ONNX file.")],
    statements: Annotated[
        bool, typer.Option("--statements", help="Print every proved statement: for each rule, where it applies.")
    ] = False,
    assumptions: Annotated[
        bool, typer.Option("--assumptions", help="Print the domain, what is assumed, and what is not guaranteed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a certificate in exact arithmetic: of a model folder, or beside an exported ONNX file.

    For a folder, this compiles rules.yaml again, which must state what is proved. For an ONNX file, it compares every
    node and constant of the certified head; --assumptions lists the rest, which the proof does not need.

    Exit code 0: proved, 1: rejected, 2: not a model, 3: no certificate.

    Example: smle verify model/

    Example: smle verify model.onnx --json
    """
    with reported(as_json):
        require_model(model, onnx=True)
        proved, spec, statement, matched = (_verified_file if is_onnx(model) else _verified_folder)(model)
        if as_json:
            print_json({"verdict": "proved", "proved": proved_json(proved), **matched, **statement})
            return
        say(_HOLDS, style="bold")
        if statements:
            print_statements(proved)
        else:
            print_proved(proved, spec)
        if matched:
            counts = matched["matched"]
            say(f"The file has what was proved: {counts['nodes']} nodes and {counts['constants']} constants compared.")
        if assumptions:
            _show_statement(statement, matched.get("asserted", ()))
        else:
            say(f"For which inputs, and what is assumed: smle verify {quoted(model)} --assumptions")


def _verified_file(model: Path) -> _Verified:
    """Check an exported file."""
    from smle.certificates.agreement import assumptions_of
    from smle.graphs.certified_files import read_checked
    from smle.heads.table import head_for
    from smle_check import statement_of

    file = read_checked(model)
    result, spec = file.result, file.spec
    head = "rules" if spec is None else head_for(spec)
    assumptions = result.assumptions if spec is None else assumptions_of(spec, head)
    domain = result.domain if spec is None else _dated(spec, result.domain)
    statement = {**statement_of(head), "domain": domain, "assumptions": assumptions}
    matched = {"nodes": result.nodes, "constants": result.constants}
    return result.proved, spec, statement, {"matched": matched, "asserted": result.asserted}


def _show_statement(statement: dict[str, Any], asserted: Sequence[str]) -> None:
    """Print domain, claim, assumptions and limits, in the words of the checkers.

    Of many categories, it names the first only; `--json` and `smle-check` name all.
    """
    lines = [*map(_shortened, statement["domain"]), *statement.get("head", []), f"Proved: {statement['claim']}"]
    lines += [f"Asserted by the exporter, not needed by the proof: {line}" for line in asserted]
    lines += [f"assumed: {line}" for line in statement["assumptions"]]
    lines += [f"Not guaranteed: {line}" for line in statement["not_guaranteed"]]
    for line in lines:
        say(line)


def _shortened(line: str) -> str:
    """Cut a long list of names."""
    names = line.split(", ")
    if len(names) <= _NAMED:
        return line
    return ", ".join([*names[:10], f"... ({len(names) - 12:,} more; --json names all)", *names[-2:]])


def _verified_folder(folder: Path) -> _Verified:
    """Check a model folder."""
    from smle.certificates.agreement import assumptions_of
    from smle.report.judge import REJECTED, judge_folder

    record, judgement = judge_folder(folder)
    certificate = None if record is None else record.certificate
    if record is not None and certificate is None:
        raise NotCertifiedError("The folder has no certificate.json: nothing is proved about this model.")
    if certificate is None or judgement.verdict == REJECTED or judgement.spec is None:
        raise CertificateError(judgement.reason)
    domain = _dated(judgement.spec, certificate.domain)
    assumptions = assumptions_of(judgement.spec, certificate.kind)
    words = {"domain": domain, "head": certificate.head, "assumptions": assumptions}
    return judgement.proved, judgement.spec, {**certificate.document["statement"], **words}, {}


def _dated(spec: Specification, lines: Sequence[str]) -> list[str]:
    """Add dates to the lines about the domain; certificates know days only."""
    from smle.rules import NumericInput, date_text
    from smle_check.names import term

    result = list(lines)
    for item in spec.inputs:
        if not isinstance(item, NumericInput) or not item.dates:
            continue
        line = f"for all {term(item.name)} in [{item.lower}, {item.upper}]"
        if line in result:
            ends = f"{date_text(item.lower)} to {date_text(item.upper)}"
            result[result.index(line)] = f"{line}, days from 1970-01-01 ({ends})"
    return result


@app.command(rich_help_panel=MODELS)
def export(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")] = Path("model.onnx"),
    data: Annotated[
        Path | None, typer.Option("--data", help="Table of a sample: compare the answers of folder and file on it.")
    ] = None,
    monitor: Annotated[
        bool, typer.Option("--monitor/--no-monitor", help="Also report which rules are active; slower for single rows.")
    ] = True,
    stacked: Annotated[
        bool, typer.Option("--stacked", help="Write all answers to one tensor instead of one per name.")
    ] = False,
    require_certificate: RequireCertificate = True,
    as_json: Json = False,
) -> None:
    """Write a model as ONNX with its certificate beside it, after checking the model's certificate.

    A model without rules has none and is refused, unless --no-require-certificate is given.

    Example: smle export model/ -o model.onnx

    Example: smle export model/ -o model.onnx --data sample.csv
    """
    with reported(as_json):
        from smle.errors import ModelFormatError

        require_model(model)
        from smle.graphs.certified_files import companion
        from smle.storage import require_writable

        if output.is_dir():
            raise ModelFormatError(f"Cannot write '{output}': it is a folder. Name a file, such as model.onnx.")
        if output.suffix != ".onnx":  # `smle verify` goes by the suffix
            raise ModelFormatError(
                f"Cannot write '{output}': expected a name that ends in .onnx. Name a file such as model.onnx."
            )
        require_writable(output)
        if data is not None:
            require_table(data)
        loaded = load_model(model, require_certificate=require_certificate)
        if data is not None and not loaded.specification_.rules:
            raise ValueError("--data needs a model with rules: smle runs an exported file with its certificate only.")
        loaded.to_onnx(output, monitor=monitor, stacked=stacked)
        certificate = companion(output) if companion(output).is_file() else None
        found = {} if data is None else _compared(loaded, output, data)
        if as_json:
            files = {"onnx": str(output), "certificate": None if certificate is None else str(certificate)}
            print_json(files | found)
            return
        say(f"ONNX: {output}")
        if "rows_with_the_same_labels" in found:
            same = found["rows_with_the_same_labels"]
            say(f"{same:,} of {found['rows']:,} rows of {data} have the same labels in the folder and in the file.")
        if "largest_difference" in found:
            name, apart = max(found["largest_difference"].items(), key=lambda item: item[1])
            say(f"On {found['rows']:,} rows of {data}, folder and file differ by at most {apart:.2g} ('{name}').")
        if certificate is not None:
            say(f"Certificate: {certificate}")
            say(f"Check again: smle verify {quoted(output)}")
            say(f"  or: smle-check {quoted(output)}")


def _compared(model: Any, path: Path, data: Path) -> dict[str, Any]:
    """Compare a model with its ONNX file: rows with the same labels and options, and how far numbers are apart."""
    from smle.export import load_onnx
    from smle.platforms.answers import answer_table
    from smle.rules import Number
    from smle.tables.table_files import read_chunks, text_columns

    spec, exported = model.specification_, load_onnx(path)
    apart = {item.name: 0.0 for item in spec.outputs if isinstance(item, Number)}
    labels, same, rows = [item.name for item in spec.outputs if item.name not in apart], 0, 0
    for chunk in read_chunks(data, text=text_columns(spec, model.text_inputs)):
        with data_named(data, chunk):
            folder, file = (answer_table(each, chunk, out_of_domain="clip") for each in (model, exported))
        rows, same = rows + len(chunk), same + int((folder[labels] == file[labels]).all(axis=1).sum())
        for name, known in apart.items():
            apart[name] = max(known, float((folder[name] - file[name]).abs().max()))
    found = {"rows_with_the_same_labels": same} if labels else {"largest_difference": apart}
    return {"rows": rows, **found}
