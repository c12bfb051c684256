"""`write_report`: one self-contained HTML file about one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from smle.doors.load import KINDS, read_model
from smle.errors import DataError, ModelFormatError
from smle.estimators import SafeEstimator
from smle.heads.grid.grid_program import GridProgram
from smle.report.card import annex_view, card_view, files_view
from smle.report.data_view import accuracy_view, data_view
from smle.report.explorer import explorer_data
from smle.report.judge import PROVED, REJECTED, Judgement, judge, judge_folder
from smle.report.measured import Measured, measure
from smle.report.page import render, require_page, stamped, write_page
from smle.report.recorded import training_of, typical_of
from smle.report.served_view import served_facts, served_view
from smle.report.steps_view import steps_view
from smle.report.view import guarantee_view, history_view, rules_view, statements_view, verdict_view
from smle.storage import ModelRecord, model_files
from smle.tables.table_files import read_table, text_columns

__all__ = ["Report", "write_report"]


@dataclass(frozen=True)
class Report:
    """The place and result of a report.

    * `verdict`: `proved`, `rejected` or `no rules`; `reason`: why it was rejected.
    * `concern`: why the model predicts poorly although it obeys, or "".
    """

    path: Path
    verdict: str
    reason: str
    concern: str = ""


def write_report(
    model: SafeEstimator | str | PathLike[str],
    data: Any = None,
    path: str | PathLike[str] = "report.html",
    *,
    plain: SafeEstimator | str | PathLike[str] | None = None,
    name: str | None = None,
    annex: bool = False,
) -> Report:
    """Check a model again in exact arithmetic and write one self-contained HTML file about it.

    A rejected certificate does not raise: the report says so, and so does `Report.verdict`.

    Args:
        model: A fitted estimator, or a model folder.
        data: A table, or the path of one, to measure coverage, violations and accuracy on.
        path: The HTML file to write.
        plain: A baseline (estimator or folder) to compare with on the table.
        name: Title of the report; by default the name of the folder.
        annex: Add a table of what Annex IV of the EU AI Act asks for in technical documentation, and how far the report
            covers it.

    Raises:
        ModelFormatError: If there is no model folder.
        DataError: If the table does not fit the model, or a baseline is given without a table.
        ValueError: If the HTML file would replace a file that the report is about, or is a folder.
        OSError: If the HTML file cannot be written.
    """
    place = None if isinstance(model, SafeEstimator) else Path(model)
    target = Path(path)
    _require_place(target, data, [given for given in (place, plain) if isinstance(given, str | PathLike)])
    if plain is not None and data is None:
        raise DataError("A baseline is compared on a table. Expected data (--data) with it. Got none.")
    estimator, record, judgement = _judged(model)
    baseline = plain if plain is None or isinstance(plain, SafeEstimator) else read_model(plain)
    _require_alike(baseline, estimator)
    title = name or (_folder_name(place) if place is not None else type(model).__name__)
    table = data
    if isinstance(data, str | PathLike):
        inside = () if estimator is None else estimator.text_inputs
        table = read_table(data, text={} if judgement.spec is None else text_columns(judgement.spec, inside))
    try:
        measured = None if estimator is None or table is None else measure(estimator, table, plain=baseline)
    except DataError as error:
        raise error if table is data else DataError(f"{data}: {error}") from None
    view, explorer = _view(estimator, record, judgement, measured, place)
    view |= {"name": title, "kicker": "Assurance report", "annex": None, "annex_rules": None, **stamped()}
    if annex:
        view |= annex_view(view["contents"], proved=judgement.verdict == PROVED, spec=judgement.spec)
        view["contents"] = [*view["contents"], ("annex", "Technical documentation")]
    write_page(target, render("report.html", view, explorer))
    concern = view["accuracy"]["recorded_concern"] if view["accuracy"] else ""
    return Report(target, judgement.verdict, judgement.reason, concern)


def _require_place(target: Path, data: Any, folders: Sequence[str | PathLike[str]]) -> None:
    """Raise if the report would replace its table or a file of its models."""
    kept = {f"a file of the model ({file})": file for folder in folders for file in model_files(folder)}
    if isinstance(data, str | PathLike):
        kept["the table itself"] = Path(data)
    require_page(target, kept)


def _require_alike(baseline: SafeEstimator | None, model: SafeEstimator | None) -> None:
    if baseline is None or model is None:
        return
    ours, theirs = model.specification_, baseline.specification_
    if theirs.columns != ours.columns or theirs.targets != ours.targets:
        raise DataError("Expected a baseline with the inputs and outputs of the model. Got other ones.")


def _folder_name(place: Path) -> str:
    """Return the name of a folder, with its parent's if it is just called `model`."""
    full = place.resolve()
    return f"{full.parent.name}/{full.name}" if full.name == "model" and full.parent.name else full.name


def _judged(model: SafeEstimator | str | PathLike[str]) -> tuple[SafeEstimator | None, ModelRecord | None, Judgement]:
    """Return the model (None unless it may be shown), its record (None if unreadable) and the verdict."""
    if isinstance(model, SafeEstimator):
        record = model.record()
        judgement = judge(record)
        changed = _changed(model, record)
        if judgement.verdict == PROVED and changed:
            judgement = Judgement(REJECTED, f"{changed} changed after certification.", spec=judgement.spec)
        return (None if judgement.verdict == REJECTED else model), record, judgement
    read, judgement = judge_folder(model)
    if read is None or judgement.verdict == REJECTED:
        return None, read, judgement
    kind = KINDS.get(str(read.description.get("kind")))
    if kind is None:
        raise ModelFormatError(f"model.json: unknown kind of model {read.description.get('kind')!r}.")
    return kind.from_record(read, verify=False), read, judgement  # judged just above


def _changed(model: SafeEstimator, record: ModelRecord) -> str:
    """Say which part of a model in memory differs from its certificate, or return ""."""
    if record.certificate is None:
        return ""
    if record.certificate.files.get("model") != ModelRecord.description_bytes(record.description):
        return "The description was"
    if record.certificate.files.get("rules") != (record.rules or "").encode():
        return "The rules were"
    return ""


def _view(
    model: SafeEstimator | None,
    record: ModelRecord | None,
    judgement: Judgement,
    measured: Measured | None,
    place: Path | None,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    spec = judgement.spec
    description: Mapping[str, Any] = {} if record is None else record.description
    view: dict[str, Any] = {"rules": None, "head_of_rules": False, "served": None, "data_section": False, "steps": None}
    view |= {"explorer_note": "", "statements": None, "statements_total": 0, "accuracy": None}
    explorer = None
    facts: list[tuple[str, str, str]] = []
    if model is not None and spec is not None:
        cells, training = None, training_of(description)
        if model.has_head_of_rules:
            corrected = None if training is None else training.head
            view |= {"head_of_rules": True, "served": served_view(spec, corrected, measured)}
            facts = served_facts(corrected, measured)
        else:
            cells = model.deployed_.cells if spec.rules else None
        view |= statements_view(judgement.proved) | data_view(description, spec, cells, training, measured)
        view["accuracy"] = accuracy_view(description, measured, rules=bool(spec.rules))
        medians, ranges = typical_of(training) if measured is None else (measured.medians, measured.ranges)
        explorer = explorer_data(model.deployed_, medians=medians)
        for item in explorer["inputs"] if explorer else ():
            item["seen"] = ranges.get(item["name"])
        view["explorer_note"] = _HEAD_NOTE if model.has_head_of_rules else _NETWORK_NOTE
    if spec is not None:
        view |= rules_view(judgement, measured) | guarantee_view(spec, judgement.verdict)
        if spec.grid is not None:
            head = None if model is None else model.deployed_.head
            view |= steps_view(spec, spec.grid, head.proposals.reduction if isinstance(head, GridProgram) else None)
    view |= history_view(description) | {"verdict": verdict_view(judgement, measured, facts)}
    view |= card_view(description, record) | files_view(record, judgement, place)
    view["contents"] = _contents(view, explorer)
    return view, explorer


_HEAD_NOTE = (
    "The head runs in your browser, operation by operation as deployed. Where its check refuses an answer, the page "
    "looks for an allowed one in its own way, and says so: the deployed program searches more widely."
)


_NETWORK_NOTE = "It is drawn in your browser, in double arithmetic, from the embedded float32 weights."


def _contents(view: Mapping[str, Any], explorer: object) -> list[tuple[str, str]]:
    entries = [
        ("rules", "Rules and verdicts", view["rules"] is not None),
        ("scope", "What is guaranteed", bool(view["rules"])),
        ("served", "How answers are served", view["served"] is not None),
        ("explorer", "Explorer", explorer is not None),
        ("data", "Data and accuracy", view["data_section"]),
        ("card", "Model card", True),
        ("files", "Files and re-check", True),
    ]
    return [(anchor, title) for anchor, title, shown in entries if shown]
