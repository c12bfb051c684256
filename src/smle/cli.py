"""Command line: parse, call, print. Exit codes: 0 it holds or is done, 1 it does not hold, 2 the request was wrong."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import smle
from smle.errors import CertificateError, ContradictionError, NotCertifiedError, SmleError

if TYPE_CHECKING:
    import pandas as pd

    from smle.certificates.document import Proved
    from smle.rules import Specification

app = typer.Typer(
    name="smle",
    help="Train neural networks that are proved to obey rules, and check the proofs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_out, _err = Console(highlight=False), Console(stderr=True, highlight=False)
_settings = {"debug": False}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"smle {smle.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    _settings["debug"] = debug


@contextmanager
def _reported() -> Iterator[None]:
    """Turn errors into one clear line and an exit code."""
    try:
        yield
    except (CertificateError, NotCertifiedError, ContradictionError) as error:
        _fail("does not hold", error, 1)
    except SmleError as error:
        _fail("error", error, 2)
    except (OSError, ValueError) as error:
        _fail("error", error, 2)
    except KeyboardInterrupt:
        _err.print("interrupted: nothing was written.", markup=False)
        raise typer.Exit(130) from None


def _fail(kind: str, error: Exception, code: int) -> None:
    if _settings["debug"]:
        traceback.print_exc()
    message = " ".join(str(error).split()) or type(error).__name__
    _err.print(f"{kind}: {message}", markup=False, soft_wrap=True)
    raise typer.Exit(code)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for data, rules and model.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of simulation and training.")] = 0,
) -> None:
    """Simulate a braking data set, train a plain and a safe network, prove the rules.

    Example: smle demo -o demo
    """
    with _reported():
        from smle.demo import run_demo

        result = run_demo(output, seed=seed)
        _out.print(f"Braking demo: {result.rows} simulated rows, {result.data_violations:.1%} break a rule.\n")
        assert result.model.certificate_ is not None
        _print_proved(result.model.certificate_.proved, result.model.specification_)
        table = Table(title="On test data", title_justify="left")
        for column in ("network", "R2", "rows that break a rule"):
            table.add_column(column)
        for name, score in result.r2.items():
            table.add_row(name, f"{score:.4f}", f"{result.violations[name]:.1%}")
        _out.print(table)
        _out.print("Certificate: proved in exact arithmetic, for every input in the domain.")
        _out.print(f"Files: {output}/model (model, rules, certificate), {output}/braking.csv, {output}/braking.yaml")
        _out.print(f"Check again: smle verify {output}/model")


@app.command()
def rules(
    files: Annotated[list[str], typer.Argument(metavar="FILE | diff OLD NEW", help="Rules file, or two to compare.")],
    data: Annotated[Path | None, typer.Option("--data", help="CSV file to hold the rules against.")] = None,
    as_json: Json = False,
) -> None:
    """Check rules before training: contradictions, empty regions, rules that say nothing new; or compare two files.

    Exit code 0: fine, 1: contradictory, 2: not readable.

    Example: smle rules braking.yaml --data drives.csv

    Example: smle rules diff old.yaml new.yaml
    """
    with _reported():
        if files[0] == "diff" and len(files) == 3:
            _compare(files[1], files[2], as_json)
        elif len(files) == 1:
            _diagnose(Path(files[0]), data, as_json)
        else:
            raise ValueError("Expected one rules file, or `diff OLD NEW`. Got: " + " ".join(files))


def _diagnose(path: Path, data: Path | None, as_json: bool) -> None:
    from smle.diagnosis import diagnose
    from smle.rules import Specification

    spec = Specification.from_yaml(path)
    table = None if data is None else _read_table(data)
    targets = [output.name for output in spec.outputs]
    known = table is not None and all(name in table.columns for name in targets)
    result = diagnose(spec, table, table if known else None)
    if as_json:
        _print_json(result.to_json())
    else:
        print(result.table())
        if table is not None and not known:
            print(f"The table does not have all outputs ({', '.join(targets)}), so only its inputs were looked at.")
    if result.contradictory:
        raise typer.Exit(1)


def _compare(old: str, new: str, as_json: bool) -> None:
    from smle.guarantees.compare import compare
    from smle.rules import Specification

    result = compare(Specification.from_yaml(Path(old)), Specification.from_yaml(Path(new)))
    if as_json:
        _print_json(result.to_json())
    else:
        print(result.table())


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="CSV file with the input and output columns of the rules.")],
    rules: Annotated[Path, typer.Argument(help="Rules file (YAML).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    hidden: Annotated[str, typer.Option(help="Widths of the hidden layers, for example 64,64.")] = "64,64,64",
    embedding: Annotated[int, typer.Option(help="Width of the clipped layer.")] = 64,
    epochs: Annotated[int, typer.Option(help="Upper limit of epochs.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a network on a table and prove that it obeys the rules.

    Example: smle train data.csv rules.yaml -o model/
    """
    with _reported():
        from smle.estimators import SafeClassifier, SafeRegressor
        from smle.rules import Number, Specification

        spec = Specification.from_yaml(rules)
        table = _read_table(data)
        widths = tuple(_positive(part, "--hidden") for part in hidden.split(","))
        numbers = all(isinstance(output, Number) for output in spec.outputs)
        kind = SafeRegressor if numbers else SafeClassifier
        model = kind(spec, hidden=widths, embedding=embedding, max_epochs=epochs, random_state=seed)
        targets = [output.name for output in spec.outputs]
        missing = [name for name in targets if name not in table.columns]
        if missing:
            raise ValueError(
                f"{data}: expected the output columns {', '.join(missing)}. Got {', '.join(table.columns)}."
            )
        model.fit(table, table[targets])
        model.save(output)
        assert model.certificate_ is not None or not spec.rules
        proved = model.certificate_.proved if model.certificate_ is not None else ()
        score, metric = float(model.score(table, table[targets])), "R2" if numbers else "Accuracy"
        if as_json:
            scores = {"metric": metric, "on_training_data": score}
            _print_json({"model": str(output), "score": scores, "proved": _proved_json(proved)})
            return
        _print_proved(proved, spec)
        _out.print(f"{metric} on the training table: {score:.4f} ({len(model.history_.loss)} epochs)")
        _out.print(f"Model: {output}")


@app.command()
def verify(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    statements: Annotated[
        bool, typer.Option("--statements", help="Print every proved statement, cell by cell.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the certificate of a model folder in exact arithmetic, and that rules.yaml states what it proves.

    Example: smle verify model/
    """
    try:
        with _reported():
            proved, spec = _verified(model)
    except typer.Exit as stop:
        if as_json and stop.exit_code == 1:
            _print_json({"verdict": "rejected"})
        raise
    if as_json:
        _print_json({"verdict": "proved", "proved": _proved_json(proved)})
        return
    _print_proved(proved, spec, every=statements)
    _out.print("Holds: every rule is proved in exact arithmetic, for every input in the domain.")


def _verified(folder: Path) -> tuple[tuple[Proved, ...], Specification]:
    from smle.assurance import require_same_rules
    from smle.errors import ModelFormatError, RuleError
    from smle.rules import Specification
    from smle.storage import read_record

    try:
        record = read_record(folder)
        if record.certificate is None:
            raise CertificateError("The folder has no certificate.json: nothing is proved about this model.")
        proved = record.certificate.check()
        spec = Specification.from_yaml((record.rules or "") + "\n")
        require_same_rules(record.certificate, spec)
    except (ModelFormatError, RuleError) as error:
        if not (folder / "certificate.json").is_file():
            raise
        raise CertificateError(str(error)) from error
    return proved, spec


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    data: Annotated[Path, typer.Argument(help="CSV file with the input columns.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV file to write; standard output if absent.")
    ] = None,
    out_of_domain: Annotated[str, typer.Option(help="raise, warn or clip.")] = "raise",
) -> None:
    """Predict for every row of a table, after checking the model's certificate.

    Example: smle predict model/ new.csv -o predictions.csv
    """
    with _reported():
        import numpy as np
        import pandas as pd

        from smle.estimators import load

        loaded = load(model)
        table = _read_table(data)
        values = np.asarray(loaded.predict(table, out_of_domain=out_of_domain)).reshape(len(table), -1)
        result = pd.DataFrame(values, columns=[output.name for output in loaded.specification_.outputs])
        text = result.to_csv(index=False)  # shortest digits that read back as the same numbers
        if output is None:
            sys.stdout.write(text)
        else:
            output.write_text(text, encoding="utf-8")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")] = Path("model.onnx"),
    twin: Annotated[Path | None, typer.Option(help="Folder for Gemm/Relu twins and VNN-LIB properties.")] = None,
) -> None:
    """Write a model as ONNX with its certificate beside it, after checking the model's certificate.

    Example: smle export model/ -o model.onnx
    """
    with _reported():
        from smle.certificates import onnx_checker
        from smle.estimators import load
        from smle.export.files import companion

        load(model).to_onnx(output, twin=twin)
        _out.print(f"ONNX: {output}", soft_wrap=True)
        if companion(output).is_file():
            _out.print(f"Certificate: {companion(output)}", soft_wrap=True)
            _out.print(f"Check again: python3 {onnx_checker.__file__} {output}", soft_wrap=True)


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="Which bench; none: list them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, seconds instead of minutes.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for table, numbers and plot.")] = None,
    as_json: Json = False,
) -> None:
    """Measure ratios in one run, with versions and machine recorded.

    Example: smle bench guarantees --quick -o results/
    """
    with _reported():
        from smle.bench import available, run_bench

        if name is None:
            for known in available():
                print(known)
            return
        result = run_bench(name, quick=quick, output=output)
        print(result.json() if as_json else result.markdown())


def _read_table(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise ValueError(f"Cannot read '{path}': no such file. Expected a CSV file.")
    try:
        table: pd.DataFrame = pd.read_csv(path, **_exact_digits())
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable as CSV ({error}).") from None
    if table.empty:
        raise ValueError(f"{path}: expected rows. Got an empty table.")
    return table


def _exact_digits() -> dict[str, Any]:
    """Ask pandas to read decimals as the nearest floats; from 3.1 on it does so by itself."""
    import pandas as pd

    version = tuple(int(part) for part in pd.__version__.split(".")[:2])
    return {} if version >= (3, 1) else {"float_precision": "round_trip"}


def _positive(text: str, option: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ValueError(f"{option}: expected positive whole numbers such as 64,64. Got '{text}'.")
    return int(text)


def _print_proved(proved: tuple[Proved, ...], spec: Specification, *, every: bool = False) -> None:
    """Print one line per rule with its smallest margin, or one per proved statement."""
    table = Table(title="Proved rules", title_justify="left")
    for column in ("rule", "when", "then", "margin"):
        table.add_column(column, overflow="fold")
    if every:
        for item in proved:
            where = item.where.removeprefix("where ")
            table.add_row(escape(item.rule), escape(where), escape(item.sentence), f"{float(item.margin):.3g}")
    else:
        for rule in spec.rules:
            margins = [item.margin for item in proved if item.rule == rule.name]
            smallest = f"{float(min(margins)):.3g}" if margins else "never active"
            table.add_row(escape(rule.name), escape(rule.when or "always"), escape(rule.then), smallest)
    _out.print(table)


def _proved_json(proved: tuple[Proved, ...]) -> list[dict[str, Any]]:
    return [
        {"rule": p.rule, "head": p.head, "where": p.where, "holds": p.sentence, "margin": float(p.margin)}
        for p in proved
    ]


def _print_json(value: Mapping[str, object]) -> None:
    print(json.dumps(value, indent=1, sort_keys=True))


def main() -> None:
    """Entry point of the `smle` command."""
    app()
