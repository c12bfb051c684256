"""`smle project`: other rules for a trained model, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smle.cli.app import MODELS, Json, app, float_below, out, print_json, print_rows, proved_json, reported
from smle.cli.places import Overwrite, require_model, texts_of
from smle_check.digits import margin_text

if TYPE_CHECKING:
    from fractions import Fraction

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
    test_share: Annotated[float, typer.Option(help="Share of the rows of --data held out to measure.")] = 0.2,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Prove a trained model under edited rules: the nearest safe heads, a new certificate, no training.

    The backbone stays, and so does an estimator inside, whose head is made anew.

    New combinations of rules start from the head that served there before. With --data the heads
    are fitted to it as well; without, accuracy may suffer where much changed. Exit code 3: no proof was found.

    Example: smle project model/ stricter.yaml -o stricter-model/

    Example: smle project model/ stricter.yaml -o stricter-model/ --data data.csv
    """
    with reported():
        require_model(model)
        from smle.cli.train import require_fitting, split
        from smle.estimators import compare_models, project_model, quick_baseline, read_model
        from smle.guarantees import conflicts_explained
        from smle.rules import Specification
        from smle.storage import require_replaceable
        from smle.tables.files import read_table, text_columns

        spec = Specification.from_file(rules)
        require_replaceable(output, overwrite=overwrite)
        old = read_model(model)  # with rules or without: what is proved is the new model
        X = y = None
        scores: dict[str, Any] = {}
        if data is not None:
            table = read_table(data, text=texts_of(old) | text_columns(spec))
            require_fitting(spec, table, data)
            X, test = split(table, test_share, 0)
            y = X[[item.name for item in spec.outputs]]
        with conflicts_explained(spec):
            new = project_model(old, spec, X=X, y=y)
        if data is not None and len(test):
            truth = test[[item.name for item in spec.outputs]]
            plain = None if new.has_head_of_rules else quick_baseline(spec, X, y)
            found = compare_models(new, test, truth, plain=plain)
            new.set_scores(found)
            scores = {"rows": len(test), "before": _score(old, test, truth), "after": _score(new, test, truth)}
            scores["warning"] = found["concern"] or None
        new.save(output, overwrite=overwrite)
        margins = _margins(old, new)
        if as_json:
            assert new.certificate_ is not None
            proved = proved_json(new.certificate_.proved)
            print_json({"model": str(output), "margins": _plain(margins), "scores": scores, "proved": proved})
            return
        rows = [(name, _text(m["old"]), _text(m["new"])) for name, m in margins.items()]
        print_rows("Smallest margin of each rule", ("rule", "before", "now"), rows)
        if scores:
            out.print(
                f"Score on {scores['rows']} held-out rows: {scores['before']:.4f} before, {scores['after']:.4f} now."
            )
            if scores["warning"]:
                out.print(f"WARNING: {scores['warning']}", style="bold red", soft_wrap=True, markup=False)
        out.print(f"Holds: every rule of {rules} is proved. Model: {output}", soft_wrap=True, markup=False)


def _score(model: SafeEstimator, X: Any, y: Any) -> float | None:
    """Return R2 or accuracy; None where rows lie outside what the model's rules know."""
    from smle.errors import DataError

    try:
        return float(model.score(X, y))
    except DataError:
        return None


def _margins(old: SafeEstimator, new: SafeEstimator) -> dict[str, dict[str, Fraction | str | None]]:
    """Return the smallest margin of every rule before and now; None: the rule was not there."""
    result: dict[str, dict[str, Fraction | str | None]] = {}
    for key, model in (("old", old), ("new", new)):
        proved = () if model.certificate_ is None else model.certificate_.proved
        for index, rule in enumerate(model.specification_.rules):
            found = [item.margin for item in proved if item.obligation.rule == index]
            entry = result.setdefault(rule.name, {"old": None, "new": None})
            entry[key] = min(found) if found else "never active"
    return result


def _plain(margins: dict[str, dict[str, Fraction | str | None]]) -> dict[str, dict[str, float | str | None]]:
    """Return margins as plain data."""
    return {
        name: {k: m if m is None or isinstance(m, str) else float_below(m) for k, m in entry.items()}
        for name, entry in margins.items()
    }


def _text(margin: Fraction | str | None) -> str:
    if margin is None:
        return "no such rule"
    return margin if isinstance(margin, str) else margin_text(margin)
