"""`smle project`: new rules for a trained model, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smle.cli.app import (
    MODELS,
    Json,
    app,
    counted,
    float_below,
    print_json,
    print_rows,
    proved_json,
    reported,
    say,
    warn,
)
from smle.cli.places import Overwrite, require_model
from smle.cli.settings import TrainSettings
from smle_check.names import visible

if TYPE_CHECKING:
    from smle.certificates.document import Proved
    from smle.estimators import SafeEstimator

__all__ = ["project"]


@app.command(rich_help_panel=MODELS)
def project(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    rules: Annotated[Path, typer.Argument(help="Edited rules file, over the same inputs and outputs.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    data: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file to fit the heads to, and to measure accuracy with.")
    ] = None,
    test_share: Annotated[
        float | None, typer.Option(help="Share of the rows of --data held out to measure. \\[default: 0.2]")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Prove a trained model under edited rules: the nearest safe heads, a new certificate, no training.

    The backbone or the estimator inside stays as it is. With --data the heads of a learned box are fitted to it;
    without, accuracy may suffer where much changed. Exit code 3: no proof was found.

    Example: smle project model/ stricter.yaml -o stricter-model/

    Example: smle project model/ stricter.yaml -o stricter-model/ --data data.csv
    """
    with reported(as_json):
        share = TrainSettings.read(None, (), {"test_share": test_share}).test_share
        if data is None and test_share is not None:
            raise ValueError("--test-share needs --data TABLE: a share of its rows is held out.")
        require_model(model)
        from smle.advice.examine import conflicts_explained
        from smle.cli.train import require_fitting, split
        from smle.doors.assure import project_model
        from smle.doors.load import read_model
        from smle.estimators import compare_models, quick_baseline
        from smle.rules import Specification
        from smle.storage import require_replaceable
        from smle.tables.table_files import read_table, text_columns

        spec = Specification.from_file(rules)
        require_replaceable(output, overwrite=overwrite)
        old = read_model(model)  # with rules or without: only the new model is proved
        X = y = None
        scores: dict[str, Any] = {}
        if data is not None:
            table = read_table(data, text=text_columns(old.specification_, old.text_inputs) | text_columns(spec))
            require_fitting(spec, table, data)
            X, test = split(table, share, 0)
            y = X[[item.name for item in spec.outputs]]
        with conflicts_explained(spec), counted("projecting"):
            new = project_model(old, spec, X=X, y=y)
        if data is not None and len(test):
            truth = test[[item.name for item in spec.outputs]]
            plain = None if new.has_head_of_rules else quick_baseline(spec, X, y)
            found = compare_models(new, test, truth, plain=plain)
            new.set_scores(found)
            scores = {"rows": len(test), "before": _score(old, test, truth), "after": _score(new, test, truth)}
            scores["warning"] = found["concern"] or None
        new.save(output, overwrite=overwrite)
        before, now = _by_rule(old), _by_rule(new)
        names = dict.fromkeys((*before, *now))
        if as_json:
            margins = {name: {"old": _margin(before.get(name)), "new": _margin(now.get(name))} for name in names}
            proved = proved_json([item for items in now.values() for item in items])
            print_json({"model": str(output), "margins": margins, "scores": scores, "proved": proved})
            return
        rows = [(name, _how(before.get(name)), _how(now.get(name))) for name in names]
        print_rows("Rules: the smallest margin, or what enforces them", ("rule", "before", "now"), rows)
        if scores:
            old_score, new_score = _shown(scores["before"]), _shown(scores["after"])
            say(f"Score on {scores['rows']} held-out rows: {old_score} before, {new_score} now.")
            if scores["warning"]:
                warn(scores["warning"])
        elif data is not None:
            say("No rows were held out, so accuracy was not measured.")
        say(f"Holds: every rule of {rules} is proved. Model: {output}")


def _score(model: SafeEstimator, X: Any, y: Any) -> float | None:
    """Return R2 or accuracy, or None if rows lie outside the domain of the model's rules."""
    from smle.errors import DataError

    try:
        return float(model.score(X, y))
    except DataError:
        return None


def _shown(score: float | None) -> str:
    return "unknown (rows lie outside the domain)" if score is None else f"{score:.4f}"


def _by_rule(model: SafeEstimator) -> dict[str, list[Proved]]:
    from smle.certificates.document import by_rule

    found = {} if model.certificate_ is None else by_rule(model.certificate_.proved)
    return {rule.name: found.get(visible(rule.name), []) for rule in model.specification_.rules}


def _margin(proved: list[Proved] | None) -> float | str | None:
    if not proved:
        return None if proved is None else "never active"
    return float_below(min(item.margin for item in proved))


def _how(proved: list[Proved] | None) -> str:
    from smle.certificates.document import how_proved

    return "no such rule" if proved is None else how_proved(proved)
