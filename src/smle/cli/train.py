"""`smle train`."""

from __future__ import annotations

import shlex
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smle.cli.app import (
    MODELS,
    Json,
    app,
    counted,
    data_named,
    print_json,
    print_proved,
    print_rows,
    print_scores,
    proved_json,
    quoted,
    reported,
    say,
    warn,
)  # fmt: skip
from smle.cli.places import Overwrite, not_read, not_read_text, require_table
from smle.cli.settings import TrainSettings, checked_parameters
from smle.errors import AccuracyWarning, DataError
from smle.extras import require
from smle_check.digits import margin_text

if TYPE_CHECKING:
    import pandas as pd

    from smle.estimators import SafeEstimator
    from smle.estimators.catalog import Tried
    from smle.rules import Specification

__all__ = ["require_fitting", "split", "train"]

_RULES = (".yaml", ".yml")
_NETWORKS = ("network", "smle")  # show their epochs, and write checkpoints


@app.command(rich_help_panel=MODELS)
def train(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with the input and output columns of the rules.")],
    rules: Annotated[Path, typer.Argument(help="Rules file (YAML).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    estimator: Annotated[
        str | None,
        typer.Option(
            help="network, smle (the paper's learned box), hist-gradient-boosting, random-forest, extra-trees, ridge, "
            "xgboost or lightgbm; auto: the one that predicts best in cross-validation. \\[default: network]"
        ),
    ] = None,
    assigned: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Parameter of the estimator, such as max_epochs=50 or hidden_layer_sizes=64,64; repeatable. "
            "docs/training.md lists those of networks. With --estimator auto they are the network's.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with parameters of the estimator, and estimator, seed and test_share."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="COLUMN", help="Column that the model must not read, such as a row number; repeatable."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed. \\[default: 0]")] = None,
    test_share: Annotated[
        float | None, typer.Option(help="Share of all rows held out for the summary. \\[default: 0.2]")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="File to write to after each epoch.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a network, or any other model, on a table and prove that it obeys the rules.

    Columns are matched by name; the outputs are those of the rules file. The model reads all other columns. Nothing is
    written before the proof.

    Example: smle train data.csv rules.yaml -o model/

    Example: smle train data.parquet rules.yaml -o model/ --config settings.yaml --set max_epochs=50

    Example: smle train data.csv rules.yaml -o model/ --estimator auto --ignore id

    Example: smle train data.csv rules.yaml -o model/ --checkpoint run.checkpoint --resume
    """
    given = {"estimator": estimator, "seed": seed, "test_share": test_share}
    with reported(as_json, interrupted=lambda: _how_to_continue(checkpoint)):
        settings = TrainSettings.read(config, assigned or (), given)
        run = _TrainingRun(settings, checkpoint, resume, tuple(ignore or ()), overwrite)
        run.fit(data, rules, output)
        if as_json:
            print_json(run.to_json(output))
        else:
            run.show(output)


def _how_to_continue(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "no model was written. With --checkpoint FILE an interrupted run can be continued."
    if not checkpoint.exists():
        return "no model was written, and no checkpoint yet. The same command starts again."
    words = ["smle", *sys.argv[1:]]
    if "--resume" not in words:
        words.append("--resume")
    return f"no model was written. To continue: {shlex.join(words)}"


@dataclass
class _TrainingRun:
    """One training run, and what it measured."""

    settings: TrainSettings
    checkpoint: Path | None
    resume: bool
    ignored: tuple[str, ...] = ()
    overwrite: bool = False
    tried: tuple[Tried, ...] = ()

    def fit(self, data: Path, rules: Path, output: Path) -> None:
        """Read the files, split the table, train, measure, write the model."""
        from smle.rules import Specification
        from smle.storage import require_replaceable
        from smle.tables.table_files import read_table, text_columns

        if data.suffix in _RULES and rules.suffix not in _RULES:
            raise ValueError(f"'{data}' looks like rules and '{rules}' like a table. Expected the table first.")
        spec = Specification.from_file(rules)
        _require_one_kind(spec, rules)
        require_table(data)
        require_replaceable(output, overwrite=self.overwrite)  # fail now rather than after an hour
        self.replaced = output.exists()
        self._require_checkpoint(output)
        table = read_table(data, text=text_columns(spec))
        self.targets = [item.name for item in spec.outputs]
        require_fitting(spec, table, data)
        table = self._without_ignored(table, spec, data)
        kept, self.test = split(table, self.settings.test_share, self.settings.seed)
        self.model: SafeEstimator = self._chosen(spec, kept)
        with warnings.catch_warnings(), self._progress():
            warnings.simplefilter("ignore", AccuracyWarning)  # the summary says it
            self.model.fit(kept, kept[self.targets])
        self.rows = {"training": len(kept), "test": len(self.test)}
        if len(self.test):
            self._compare(kept)
        self.model.save(output, overwrite=self.overwrite)
        if self.checkpoint is not None:
            self.checkpoint.unlink(missing_ok=True)

    def _progress(self) -> AbstractContextManager[object]:
        """Show progress on a terminal; networks show their own."""
        return nullcontext() if self.name in _NETWORKS else counted(f"training {self.name}")

    def _without_ignored(self, table: pd.DataFrame, spec: Specification, data: Path) -> pd.DataFrame:
        needed = {item.name for item in (*spec.inputs, *spec.outputs)} & set(self.ignored)
        if needed:
            raise ValueError(f"--ignore: the rules read '{min(needed)}', so the model needs it.")
        unknown = [name for name in self.ignored if name not in table.columns]
        if unknown:
            raise DataError(f"{data}: --ignore: there is no column '{unknown[0]}'.")
        return table.drop(columns=list(self.ignored))

    def _chosen(self, spec: Specification, rows: pd.DataFrame) -> SafeEstimator:
        """Return the unfitted model of that name, or the one that does best."""
        from smle.estimators.catalog import AUTO, NAMES, tried_models

        name = self.settings.estimator
        if name not in NAMES:
            raise ValueError(f"Expected --estimator to be one of {', '.join(NAMES)}. Got {name!r}.")
        if name in _NETWORKS:
            what = "--estimator smle" if name == "smle" else "A network (the default)"
            require("torch", what, instead="--estimator hist-gradient-boosting")
        elif self.checkpoint is not None:
            raise ValueError("--checkpoint is for networks (--estimator network).")
        if name == AUTO:
            with counted("trying models"):
                make = partial(self._made, spec, rows)
                self.tried = tuple(tried_models(make, rows, rows[self.targets], seed=self.settings.seed))
            if self.tried[0].reason:
                raise ValueError(f"--estimator auto: no model could be trained. {self.tried[0].reason}")
            name = self.tried[0].name
        self.name = name
        return self._made(spec, rows, name)

    def _made(self, spec: Specification, rows: pd.DataFrame, name: str) -> SafeEstimator:
        import smle
        from smle.estimators.catalog import AUTO, named_estimator, with_parameters

        kind = "Regressor" if spec.output_kind == "numbers" else "Classifier"
        safe, given, seed = getattr(smle, f"Safe{kind}"), self.settings.parameters, self.settings.seed
        if name not in _NETWORKS:
            given = {} if self.settings.estimator == AUTO else given  # the parameters are the network's
            inner = named_estimator(name, spec, rows, seed=seed)
            mine = {key: value for key, value in given.items() if key in safe._get_param_names()}
            others = {key: value for key, (value, _) in given.items() if key not in mine}
            return safe(spec, with_parameters(inner, others), **checked_parameters(mine, safe)[0], random_state=seed)  # type: ignore[no-any-return]
        network = getattr(smle, f"{'Network' if name == 'network' else 'SMLE'}{kind}")
        if name == "network":
            own, inner = checked_parameters(given, safe, network)
            return safe(spec, network(**inner, checkpoint=self.checkpoint), **own, random_state=seed)  # type: ignore[no-any-return]
        (own,) = checked_parameters(given, network)
        return network(spec, **own, checkpoint=self.checkpoint, random_state=seed)  # type: ignore[no-any-return]

    def _compare(self, kept: pd.DataFrame) -> None:
        """Measure on the test rows, beside the model inside or, for a learned box, a quick plain model."""
        from smle.estimators import compare_models, quick_baseline

        spec, plain = self.model.specification_, None
        if spec.rules and not self.model.has_head_of_rules:
            plain = quick_baseline(spec, kept, kept[self.targets], seed=self.settings.seed)
        scores = compare_models(self.model, self.test, self.test[self.targets], plain=plain)
        # The network inside may be as bad as the model; the quick plain model of `fit` tells that apart.
        scores["concern"] = scores["concern"] or self.scores.get("concern", "")
        self.model.set_scores(scores)

    @property
    def scores(self) -> dict[str, Any]:
        """The scores recorded in the model."""
        found: dict[str, Any] = self.model.description_["scores"]
        return found

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
            raise ValueError(f"--checkpoint: '{self.checkpoint}' lies where the model goes. Name another file.")
        if self.checkpoint.exists() and not is_checkpoint(self.checkpoint):
            raise ValueError(
                f"--checkpoint: '{self.checkpoint}' is not a checkpoint of smle, or a damaged one. Name another file."
            )
        if self.checkpoint.exists() and not self.resume:
            raise ValueError(
                f"'{self.checkpoint}' exists from an earlier run. Add --resume to continue it, or delete it."
            )
        if self.resume and not self.checkpoint.exists():
            raise ValueError(f"--resume: there is no checkpoint '{self.checkpoint}'. Omit --resume to start.")
        require_writable(self.checkpoint)

    @property
    def proved(self) -> tuple[Any, ...]:
        """The proved statements; none for a file without rules."""
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
        from smle.report.recorded import scores_of

        description = self.model.description_
        scores = scores_of(self.scores, rules=bool(self.model.specification_.rules))
        if self.tried:
            rows = [(t.name, t.reason or f"{t.score:.4f}") for t in self.tried]
            print_rows("Cross-validation in three parts", ("model", f"{scores.metric} of answers served"), rows)
        if self.proved:
            print_proved(self.proved, self.model.specification_)
        if scores.score:
            print_scores(scores)
        else:
            say("No rows were held out, so accuracy was not measured.")
        if scores.concern:
            warn(scores.concern)
        for text in (scores.cost, self.scores.get("advice")):
            if text:
                say(f"Note: {text}")
        history, training = description["history"], description["training"]
        how = f"{history['epochs']} epochs (ended by {history['stopped']})" if "epochs" in history else self.name
        if history.get("final_epochs"):
            how += f", then on all of them (final epochs: {history['final_epochs']})"
        say(f"Trained on {self.rows['training']} rows: {how}, {history['seconds']:.1f} s.")
        unread = not_read(self.model, self.test.columns)
        if unread:
            say(f"Note: {not_read_text(unread)}")
        if "head" in training:
            ways = training["head"]["ways"]
            near = f"{ways['near']} by a search that was cut short, " if ways["near"] else ""
            say(
                f"Answers to {training['rows']} training rows: {ways['kept']} kept, {ways['moved']} moved to obey, "
                f"{near}{ways['replaced']} replaced (NaN or infinite), {ways['safe']} by the stored safe answer."
            )
        unseen = [name for name, rows in training["rules"].items() if not rows]
        if unseen:
            say(
                f"Note: no training rows fall where these rules apply: {', '.join(unseen)}. The rules hold there, but "
                "the predictions were not learned from data."
            )
        if self.proved and not self.model.has_head_of_rules:
            say(f"Worst margin: {margin_text(min(item.margin for item in self.proved))}")
        place = f"{output} (replaced the previous one)" if self.replaced else str(output)
        check = f"check again: smle verify {quoted(output)}" if self.proved else "no rules, so nothing is proved"
        say(f"Model: {place}   {check}")


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
    """Check the whole table before it is split, so that row counts in a DataError are those of the file."""
    from smle.estimators.scores import encode_targets
    from smle.tables import encode_inputs, require_columns, require_in_domain

    with data_named(path):
        require_columns(table, [item.name for item in (*spec.inputs, *spec.outputs)])
        encoded = encode_inputs(spec, table)
        if len({type(item) for item in spec.outputs}) == 1:  # estimators refuse mixed outputs
            encode_targets(spec, table)
        require_in_domain(spec, encoded, "rows")


def split(table: pd.DataFrame, share: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split a table into training and test rows; with fewer than two of either, all rows are for training."""
    import numpy as np

    held = round(share * len(table))
    if held < 2 or len(table) - held < 2:
        return table, table.iloc[:0]
    order = np.random.default_rng(seed).permutation(len(table))
    return table.iloc[np.sort(order[held:])], table.iloc[np.sort(order[:held])]
