"""`smle rules`: check a rules file, alone and against data; compare two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smle.cli.app import (
    REFUTED,
    RULES,
    UNDECIDED,
    WRONG,
    Json,
    app,
    counted,
    data_named,
    note,
    print_json,
    quoted,
    reported,
)  # fmt: skip

if TYPE_CHECKING:
    from smle.advice.diagnosis import Diagnosis


@app.command(rich_help_panel=RULES)
def rules(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE | diff OLD NEW", help="Rules file, or two to compare (or model folders)."),
    ],
    data: Annotated[Path | None, typer.Option("--data", help="CSV or Parquet file to check against the rules.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write an HTML page, such as rules.html.")
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Check any number of files; one line for each, and the worst exit code.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check rules before training: contradictions, empty regions, rules that say nothing new; or compare two files.

    Exit code 0: fine, or two files compared; 1: contradictory; 2: not readable, or not comparable; 3: undecided.

    Example: smle rules braking.yaml --data drives.csv

    Example: smle rules braking.yaml --data drives.csv -o rules.html

    Example: smle rules diff old.yaml new.yaml

    Example: smle rules --each bank.yaml hospital.yaml
    """
    with reported(as_json):
        two = not each and files[0] == "diff" and len(files) == 3
        for option, place in (("--data", data), ("-o", output)):
            if place is not None and (each or two):
                raise ValueError(
                    f"{'--each' if each else 'diff'} takes no {option}. Run `smle rules FILE {option} {quoted(place)}` "
                    "for one file at a time."
                )
        if each:
            _check_each([Path(file) for file in files], as_json)
        elif two:
            _compare(files[1], files[2], as_json)
        elif len(files) == 1:
            _diagnose(Path(files[0]), data, output, as_json)
        else:
            raise ValueError("Expected one rules file, or `diff OLD NEW`. Got: " + " ".join(files))


def _diagnose(path: Path, data: Path | None, output: Path | None, as_json: bool) -> None:
    from smle.advice.examine import diagnose
    from smle.rules import Specification
    from smle.tables.table_files import read_table, text_columns

    spec = Specification.from_file(path)
    table = None if data is None else read_table(data, text=text_columns(spec))
    targets = [output.name for output in spec.outputs]
    known = table is not None and all(name in table.columns for name in targets)
    with data_named(data or path), counted("checking the rules"):
        result = diagnose(spec, table, table if known else None)
    if as_json:
        print_json(result.to_json())
    else:
        print(result.table())
        if table is not None and not known:
            print(f"The table does not have all outputs ({', '.join(targets)}), so only its inputs were checked.")
    if output is not None:
        from smle.report import write_rules_page

        kept = {"the rules file itself": path} | ({} if data is None else {"the table itself": data})
        place = write_rules_page(result, output, table=table, name=path.stem, kept=kept)
        note(f"page: {place}")
    raise typer.Exit(_code(result))


def _check_each(paths: list[Path], as_json: bool) -> None:
    """Print a line for each file, or all as JSON; exit with the worst code: wrong, refuted, undecided."""
    from smle.advice.examine import diagnose
    from smle.errors import RuleError
    from smle.rules import Specification

    found = []
    for path in paths:
        try:
            result = diagnose(Specification.from_file(path))
        except RuleError as error:
            code, text = WRONG, str(error)
        else:
            code = _code(result)
            severe = [finding.text for finding in result.findings if finding.severe]
            text = "fine" if not code else severe[0] if severe else "undecided; `smle rules FILE` says what"
        found.append({"file": str(path), "exit_code": code, "reason": text})
        if not as_json:
            print(f"{path}: {text}")
    codes = {item["exit_code"] for item in found}
    worst = next((code for code in (WRONG, REFUTED, UNDECIDED) if code in codes), 0)
    if as_json:
        print_json({"files": found, "exit_code": worst})
    raise typer.Exit(worst)


def _code(result: Diagnosis) -> int:
    return REFUTED if result.contradictory else UNDECIDED if result.undecided else 0


def _compare(old: str, new: str, as_json: bool) -> None:
    from smle.advice.compare import compare
    from smle.rules import Specification

    files = [Path(place) / "rules.yaml" if Path(place).is_dir() else Path(place) for place in (old, new)]
    result = compare(*(Specification.from_file(file) for file in files))
    if as_json:
        print_json(result.to_json())
    else:
        print(result.table())
    if result.verdict == "unknown":
        raise typer.Exit(UNDECIDED)
