"""`smle train`."""

from __future__ import annotations

import shlex
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smle.cli.app import (
    MODELS,
    Json,
    app,
    data_named,
    out,
    print_json,
    print_proved,
    print_rows,
    proved_json,
    quoted,
    reported,
)
from smle.cli.places import Overwrite, require_table
from smle.cli.settings import TrainSettings
from smle.errors import AccuracyWarning, DataError
from smle_check.digits import margin_text

if TYPE_CHECKING:
    import pandas as pd

    from smle.estimators import SafeEstimator
    from smle.estimators.catalog import Tried
    from smle.rules import Specification

__all__ = ["require_fitting", "split", "train"]

_RULES = (".yaml", ".yml")
_LISTED = 40  # lines of scores by output; model.json has more


def _default(name: str) -> str:
    """Return the default of a setting as the help shows it."""
    value = getattr(TrainSettings, name)
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@app.command(rich_help_panel=MODELS)
def train(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with the input and output columns of the rules.")],
    rules: Annotated[Path, typer.Argument(help="Rules file (YAML).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    config: Annotated[Path | None, typer.Option(help="YAML file with settings, named as the options below.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="network, hist-gradient-boosting, random-forest, extra-trees, ridge, xgboost, lightgbm; auto: what "
            "predicts best in cross-validation. Options of networks have no meaning for others.",
            show_default=_default("model"),
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="COLUMN",
            help="Column that the model must not read, such as a row number; repeatable. Networks read the inputs of "
            "the rules alone, others all columns.",
        ),
    ] = None,
    hidden: Annotated[
        str | None, typer.Option(help="Widths of the hidden layers.", show_default=_default("hidden"))
    ] = None,
    embedding: Annotated[
        int | None, typer.Option(help="Width of the clipped layer.", show_default=_default("embedding"))
    ] = None,
    bounds: Annotated[
        str | None, typer.Option(help="auto, fixed, affine or network.", show_default=_default("bounds"))
    ] = None,
    enforcement: Annotated[
        str | None, typer.Option(help="correct, or pdcg (the paper's).", show_default=_default("enforcement"))
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Step size of Adam.", show_default=_default("learning_rate"))
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step.", show_default=_default("batch_size"))] = None,
    epochs: Annotated[int | None, typer.Option(help="Upper limit of epochs.", show_default=_default("epochs"))] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Epochs without a better validation loss before it ends.", show_default=_default("patience")),
    ] = None,
    final_epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs at the end on all training rows; 0: none.",
            show_default="a quarter of --epochs for numbers with little noise",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed.", show_default=_default("seed"))] = None,
    gate: Annotated[
        bool | None,
        typer.Option("--gate/--no-gate", help="A head per cell, or one for all.", show_default=_default("gate")),
    ] = None,
    refit: Annotated[
        bool | None, typer.Option("--refit/--no-refit", help="Fit the heads once more.", show_default=_default("refit"))
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(help="Share of the training rows for early stopping.", show_default=_default("validation_share")),
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(help="Share of all rows held out for the summary; 0: none.", show_default=_default("test_share")),
    ] = None,
    baseline: Annotated[
        bool | None,
        typer.Option(
            "--baseline/--no-baseline",
            help="Train a plain network beside, to compare.",
            show_default=_default("baseline"),
        ),
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="File to write to after each epoch.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a network, or any other model, on a table and prove that it obeys the rules.

    Columns are matched by name; the outputs are those of the rules file. Nothing is written before the proof.

    Example: smle train data.csv rules.yaml -o model/

    Example: smle train data.parquet rules.yaml -o model/ --config settings.yaml --epochs 50

    Example: smle train data.csv rules.yaml -o model/ --model auto --ignore id

    Example: smle train data.csv rules.yaml -o model/ --checkpoint run.checkpoint --resume
    """
    names = (*TrainSettings.__dataclass_fields__,)
    given = {name: value for name, value in locals().items() if name in names}
    with reported(interrupted=_how_to_go_on(checkpoint)):
        settings = TrainSettings.read(config, given)
        run = _Run(settings, checkpoint, resume, tuple(ignore or ()), overwrite)
        run.fit(data, rules, output)
        if as_json:
            print_json(run.to_json(output))
        else:
            run.show(output)


def _how_to_go_on(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "no model was written. With --checkpoint FILE a run can go on later."
    words = ["smle", *sys.argv[1:]]
    if "--resume" not in words:
        words.append("--resume")
    return f"no model was written. To go on: {shlex.join(words)}"


@dataclass
class _Run:
    """One training from the command line, and what it measured."""

    settings: TrainSettings
    checkpoint: Path | None
    resume: bool
    ignored: tuple[str, ...] = ()
    overwrite: bool = False
    tried: tuple[Tried, ...] = ()

    def fit(self, data: Path, rules: Path, output: Path) -> None:
        """Read, split, train, measure, write."""
        from smle.rules import Specification
        from smle.storage import require_replaceable
        from smle.tables.files import read_table, text_columns

        if data.suffix in _RULES and rules.suffix not in _RULES:
            raise ValueError(f"'{data}' looks like rules, and '{rules}' like a table: expected the table first.")
        spec = Specification.from_file(rules)
        _require_one_kind(spec, rules)
        require_table(data)
        require_replaceable(output, overwrite=self.overwrite)  # better now than after an hour
        self.replaced = output.exists()
        from smle.estimators import SafeClassifier, SafeRegressor

        self._require_checkpoint(output)
        table = read_table(data, text=text_columns(spec))
        self.targets = [item.name for item in spec.outputs]
        require_fitting(spec, table, data)
        table = self._without_ignored(table, spec, data)
        kept, self.test = split(table, self.settings.test_share, self.settings.seed)
        kind = SafeRegressor if spec.output_kind == "numbers" else SafeClassifier
        parameters = self.settings.parameters()
        self.model: SafeEstimator = self._chosen(kind, spec, parameters, kept)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)  # the summary says it
            self.model.fit(kept, kept[self.targets])
        self.rows = {"training": len(kept), "test": len(self.test)}
        if len(self.test):
            self._compare(kept, kind, parameters)
        self.model.save(output, overwrite=self.overwrite)
        for file in self._checkpoints():
            file.unlink(missing_ok=True)

    def _without_ignored(self, table: pd.DataFrame, spec: Specification, data: Path) -> pd.DataFrame:
        needed = {item.name for item in (*spec.inputs, *spec.outputs)} & set(self.ignored)
        if needed:
            raise ValueError(f"--ignore: the rules read '{min(needed)}', so the model may as well.")
        unknown = [name for name in self.ignored if name not in table.columns]
        if unknown:
            raise DataError(f"{data}: --ignore: there is no column '{unknown[0]}'.")
        return table.drop(columns=list(self.ignored))

    def _chosen(
        self, kind: type[SafeEstimator], spec: Specification, parameters: dict[str, Any], rows: pd.DataFrame
    ) -> SafeEstimator:
        """Return the unfitted model that was asked for, or that does best."""
        from smle.estimators.catalog import AUTO, NETWORK, named_estimator, tried_models

        def made(name: str) -> SafeEstimator:
            if name == NETWORK:
                return kind(spec, **parameters, checkpoint=self.checkpoint)
            return kind(spec, estimator=named_estimator(name, spec, rows, seed=self.settings.seed))

        name = self.settings.model
        if name != NETWORK and self.checkpoint is not None:
            raise ValueError("--checkpoint is for networks (--model network).")
        if name == AUTO:
            self.tried = tuple(tried_models(made, rows, rows[self.targets], seed=self.settings.seed))
            if self.tried[0].reason:
                raise ValueError(f"--model auto: no model could be trained. {self.tried[0].reason}")
            name = self.tried[0].name
        self.name = name
        return made(name)

    def _compare(self, kept: pd.DataFrame, kind: type[SafeEstimator], parameters: dict[str, Any]) -> None:
        """Measure on the test rows, beside a baseline or, where none is asked for, a quick plain model."""
        from smle.estimators import compare_models, quick_baseline, without_rules

        spec = self.model.specification_
        plain: Any = None
        if self.model.has_head_of_rules:
            pass  # what the estimator or network inside answers stands beside
        elif spec.rules and self.settings.baseline:
            beside = None if self.checkpoint is None else self.checkpoint.with_name(self.checkpoint.name + ".plain")
            plain = kind(without_rules(spec), **parameters, checkpoint=beside).fit(kept, kept[self.targets])
        elif spec.rules:
            plain = quick_baseline(spec, kept, kept[self.targets], seed=self.settings.seed)
        scores = compare_models(self.model, self.test, self.test[self.targets], plain=plain)
        # A baseline may be as bad as the model; the quick plain model of `fit` then tells.
        scores["concern"] = scores["concern"] or self.scores.get("concern", "")
        self.model.set_scores(scores)

    @property
    def scores(self) -> dict[str, Any]:
        """What is recorded in the model."""
        found: dict[str, Any] = self.model.description_["scores"]
        return found

    def _checkpoints(self) -> list[Path]:
        file = self.checkpoint
        return [] if file is None else [file, file.with_name(file.name + ".plain")]

    def _require_checkpoint(self, output: Path) -> None:
        if self.checkpoint is None:
            if self.resume:
                raise ValueError("--resume needs --checkpoint FILE: the file that the interrupted run wrote to.")
            return
        from smle.storage import require_writable
        from smle.training.checkpoints import is_checkpoint

        if self.checkpoint.is_dir():
            raise ValueError(f"--checkpoint: expected a file. Got the folder '{self.checkpoint}'.")
        if output.resolve() in (place := self.checkpoint.resolve(), *place.parents):
            raise ValueError(f"--checkpoint: '{self.checkpoint}' is in the place of the model. Name another file.")
        there = [file for file in self._checkpoints() if file.exists()]
        for file in there:
            if not is_checkpoint(file):
                raise ValueError(
                    f"--checkpoint: '{file}' is there, and is not a checkpoint of smle (or a damaged one). "
                    "Name another file."
                )
        if there and not self.resume:
            raise ValueError(f"'{there[0]}' is there from an earlier run. Add --resume to go on from it, or delete it.")
        if self.resume and self.checkpoint not in there:
            raise ValueError(f"--resume: there is no checkpoint '{self.checkpoint}'. Leave --resume out to begin.")
        require_writable(self.checkpoint)

    @property
    def proved(self) -> tuple[Any, ...]:
        """What is proved; nothing for a file without rules."""
        return self.model.certificate_.proved if self.model.certificate_ is not None else ()

    def to_json(self, output: Path) -> dict[str, object]:
        """Return the summary as plain data."""
        history = self.model.description_["history"]
        return {
            "model": str(output),
            "rows": self.rows,
            "scores": self.scores,
            "warning": self.scores.get("concern") or None,
            "history": {k: history[k] for k in ("epochs", "final_epochs", "best_epoch", "stopped") if k in history},
            "trained": self.name,
            "tried": [
                {"model": t.name, "score": t.score, "reason": t.reason or None} for t in self.tried if t.score > -1e300
            ],
            "proved": proved_json(self.proved),
        }

    def show(self, output: Path) -> None:
        """Print the summary."""
        if self.tried:
            rows = [(t.name, t.reason or f"{t.score:.4f}") for t in self.tried]
            metric = self.scores.get("metric", "score")
            print_rows("Tried on the training rows, in three parts", ("model", f"{metric} of what is served"), rows)
        if self.proved:
            print_proved(self.proved, self.model.specification_)
        if self.scores:
            _show_scores(self.scores)
        else:
            out.print("No rows were held out, so accuracy was not measured.")
        for text, style in ((self.scores.get("concern"), "bold red"), (self.scores.get("cost"), None)):
            if text:
                out.print(f"{'WARNING' if style else 'Note'}: {text}", style=style, soft_wrap=True, markup=False)
        history = self.model.description_["history"]
        how = f"{history['epochs']} epochs (ended by {history['stopped']})" if "epochs" in history else self.name
        if history.get("final_epochs"):
            how += f", then {history['final_epochs']} final epochs on all of them"
        out.print(
            f"Trained on {self.rows['training']} rows: {how}, {history['seconds']:.1f} s.", soft_wrap=True, markup=False
        )
        training = self.model.description_["training"]
        if "head" in training:
            rows, ways = training["rows"], training["head"]["ways"]
            out.print(
                f"Answers to {rows} training rows: {ways['kept']} kept, {ways['moved']} moved to obey, "
                f"{ways['replaced']} replaced (NaN or infinite), {ways['safe']} by the stored safe answer.",
                soft_wrap=True,
            )
        unseen = [name for name, rows in training["rules"].items() if not rows]
        if unseen:
            out.print(
                f"Note: no training row is where these rules apply: {', '.join(unseen)}. They hold, but what is "
                "predicted there was not learned from data.",
                soft_wrap=True,
                markup=False,
            )
        if self.proved and not self.model.has_head_of_rules:
            out.print(f"Worst margin: {margin_text(min(item.margin for item in self.proved))}")
        place = f"{output} (the one there was replaced)" if self.replaced else str(output)
        check = f"check again: smle verify {quoted(output)}" if self.proved else "no rules, so nothing is proved"
        out.print(f"Model: {place}   {check}", soft_wrap=True, markup=False)


def _show_scores(scores: dict[str, Any]) -> None:
    known = {"network": "plain network", "quick": "plain model (quick)", "estimator": "the estimator inside"}
    plain = known[scores["plain"]]
    titles = {"plain": plain, "postprocess": "plain, post-processed", "safe": "safe model", "oracle": "best that obeys"}
    rows = []
    for key, title in titles.items():
        if key in scores["score"]:
            seconds = f"{scores['seconds'][key]:.2f}" if key in scores["seconds"] else ""
            rows.append((title, f"{scores['score'][key]:.4f}", f"{scores['violations'][key]:.1%}", seconds))
    rows.append(("data as they are", "", f"{scores['violations']['data']:.1%}", ""))
    kind = "held-out" if scores["where"] == "test" else "validation"
    print_rows(f"On {scores['rows']} {kind} rows", ("", scores["metric"], "rows that break a rule", "seconds"), rows)
    _show_outputs(scores["outputs"], {"plain": "plain", "postprocess": "post-processed", "safe": "safe"})


def _show_outputs(outputs: list[dict[str, Any]], titles: dict[str, str]) -> None:
    """Print scores per output, where there are several or one side of a label is rare."""
    rows = []
    for item in outputs:
        if len(outputs) > 1:
            rows.append((item["name"], item["metric"], item["score"]))
        if "rare" in item:
            rare = item["rare"]
            rows.append((item["name"], f"recall of {rare['side']} ({rare['rows']} rows)", rare["recall"]))
            rows.append((item["name"], "balanced accuracy", rare["balanced_accuracy"]))
    if rows:
        shown = [key for key in titles if key in rows[0][2]]
        cells = [(name, what, *(f"{values[key]:.4f}" for key in shown)) for name, what, values in rows[:_LISTED]]
        left = f" ({_LISTED} of {len(rows)} lines)" if len(rows) > _LISTED else ""
        print_rows(f"By output{left}", ("output", "score", *(titles[key] for key in shown)), cells)


def _require_one_kind(spec: Specification, rules: Path) -> None:
    """Raise RuleError for outputs that no estimator predicts together."""
    from smle.errors import RuleError

    if spec.output_kind == "mixed":
        listed = ", ".join(f"'{item.name}' (a {type(item).__name__.lower()})" for item in spec.outputs)
        raise RuleError(
            f"{rules}: smle train takes outputs that are all numbers, all labels, or one choice. Got {listed}. Write a "
            "rules file for each kind, or use smle.nn.SafeNetwork in Python for mixed outputs."
        )


def require_fitting(spec: Specification, table: pd.DataFrame, path: Path) -> None:
    """Check the whole table of a file before it is split, so that counts are those of the file.

    Raises:
        DataError: If columns are missing, or values are missing, unknown or outside the domain.
    """
    from smle.estimators.scores import encode_targets
    from smle.tables import encode_inputs, require_columns, require_in_domain

    with data_named(path):
        require_columns(table, [item.name for item in (*spec.inputs, *spec.outputs)])
        encoded = encode_inputs(spec, table)
        if len({type(item) for item in spec.outputs}) == 1:  # others are refused by the estimators
            encode_targets(spec, table)
        require_in_domain(spec, encoded, "rows")


def split(table: pd.DataFrame, share: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training and test rows; fewer than two test rows are none."""
    import numpy as np

    held = round(share * len(table))
    if held < 2 or len(table) - held < 2:
        return table, table.iloc[:0]
    order = np.random.default_rng(seed).permutation(len(table))
    return table.iloc[np.sort(order[held:])], table.iloc[np.sort(order[:held])]
