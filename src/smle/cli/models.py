"""`smle train`, `predict`, `verify` and `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smle.cli.app import MODELS, Json, app, out, print_json, print_proved, proved_json, reported
from smle.errors import CertificateError

if TYPE_CHECKING:
    from smle.certificates.document import Proved
    from smle.rules import Specification


@app.command(rich_help_panel=MODELS)
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
    with reported():
        from smle.estimators import SafeClassifier, SafeRegressor
        from smle.rules import Number, Specification
        from smle.tables.files import read_table

        spec = Specification.from_yaml(rules)
        table = read_table(data)
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
            print_json({"model": str(output), "score": scores, "proved": proved_json(proved)})
            return
        print_proved(proved, spec)
        out.print(f"{metric} on the training table: {score:.4f} ({len(model.history_.loss)} epochs)")
        out.print(f"Model: {output}")


@app.command(rich_help_panel=MODELS)
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
        with reported():
            proved, spec = _verified(model)
    except typer.Exit as stop:
        if as_json and stop.exit_code == 1:
            print_json({"verdict": "rejected"})
        raise
    if as_json:
        print_json({"verdict": "proved", "proved": proved_json(proved)})
        return
    print_proved(proved, spec, every=statements)
    out.print("Holds: every rule is proved in exact arithmetic, for every input in the domain.")


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


@app.command(rich_help_panel=MODELS)
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
    with reported():
        import numpy as np
        import pandas as pd

        from smle.estimators import load
        from smle.tables.files import read_table

        loaded = load(model)
        table = read_table(data)
        values = np.asarray(loaded.predict(table, out_of_domain=out_of_domain)).reshape(len(table), -1)
        result = pd.DataFrame(values, columns=[output.name for output in loaded.specification_.outputs])
        text = result.to_csv(index=False)  # shortest digits that read back as the same numbers
        if output is None:
            sys.stdout.write(text)
        else:
            output.write_text(text, encoding="utf-8")


@app.command(rich_help_panel=MODELS)
def export(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")] = Path("model.onnx"),
    twin: Annotated[Path | None, typer.Option(help="Folder for Gemm/Relu twins and VNN-LIB properties.")] = None,
) -> None:
    """Write a model as ONNX with its certificate beside it, after checking the model's certificate.

    Example: smle export model/ -o model.onnx
    """
    with reported():
        from smle.certificates import onnx_checker
        from smle.estimators import load
        from smle.export.files import companion

        load(model).to_onnx(output, twin=twin)
        out.print(f"ONNX: {output}", soft_wrap=True)
        if companion(output).is_file():
            out.print(f"Certificate: {companion(output)}", soft_wrap=True)
            out.print(f"Check again: python3 {onnx_checker.__file__} {output}", soft_wrap=True)


def _positive(text: str, option: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ValueError(f"{option}: expected positive whole numbers such as 64,64. Got '{text}'.")
    return int(text)
