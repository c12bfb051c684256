"""One self-contained HTML file about one model: `write_report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from smle.errors import CertificateError, DataError, ModelFormatError
from smle.estimators import KINDS, SafeEstimator, read_model
from smle.guarantees import Cells, binding_rules, find_cells
from smle.programs import frozen_heads_of
from smle.report import view as views
from smle.report.annex import annex_view
from smle.report.card import card_view, files_view, require_same_files
from smle.report.data_view import CellNames, accuracy_view, cell_name, data_view
from smle.report.explorer import explorer_data
from smle.report.head_explorer import head_explorer_data
from smle.report.judge import PROVED, REJECTED, Judgement, judge
from smle.report.measured import Measured, measure
from smle.report.page import render, require_page, stamped, write_page
from smle.report.ranges import output_ranges
from smle.report.recorded import corrections_of, training_of
from smle.report.served_view import served_facts, served_view
from smle.report.statements import Reader, RuleVerdict, Witnesses, plain_verdicts, rule_verdicts
from smle.rules import Specification
from smle.storage import ModelRecord, model_files, read_record
from smle.tables.files import read_table, text_columns

__all__ = ["Report", "write_report"]


@dataclass(frozen=True)
class Report:
    """Where a report was written and what it says.

    * `verdict`: `proved`, `rejected` or `no rules`; `reason`: why it was rejected.
    * `concern`: why the model is of little use though it obeys, if it is.
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
    folder: str | PathLike[str] | None = None,
    annex: bool = False,
) -> Report:
    """Check a model again in exact arithmetic and write one self-contained HTML file about it.

    A certificate that is not accepted does not raise: the report says so, and so does `Report.verdict`.

    Args:
        model: A fitted estimator, or a model folder.
        data: A table, or the path of one, to measure coverage, violations and accuracy on.
        path: The HTML file to write.
        plain: A baseline (estimator or folder) to compare with on the table.
        name: Title of the report; by default the name of the folder.
        folder: The folder that commands in the report name, where `model` is an estimator that was saved there.
        annex: Add a table of what Annex IV of the EU AI Act asks for in technical documentation, and what of it the
            report has.

    Raises:
        ModelFormatError: If there is no model folder.
        DataError: If the table does not fit the model, or a baseline is given without a table.
        ValueError: If the HTML file would replace what the report is about, or is a folder; or if `folder` holds
            another model.
        OSError: If the HTML file cannot be written.
    """
    place = Path(folder) if folder is not None else None if isinstance(model, SafeEstimator) else Path(model)
    target = Path(path)
    _require_place(target, data, [given for given in (place, plain) if isinstance(given, str | PathLike)])
    if plain is not None and data is None:
        raise DataError("A baseline is compared on a table. Expected data (--data) with it. Got none.")
    estimator, record, judgement = _judged(model)
    if record is not None and folder is not None:
        require_same_files(record, Path(folder))
    elif record is None and not isinstance(model, SafeEstimator):
        place = Path(model)  # nothing could be compared with another folder
    baseline = plain if plain is None or isinstance(plain, SafeEstimator) else read_model(plain)
    _require_alike(baseline, estimator)
    title = name or (_folder_name(place) if place is not None else type(model).__name__)
    if isinstance(data, str | PathLike):
        texts = {} if judgement.spec is None else text_columns(judgement.spec)
        inside = () if estimator is None else estimator.text_inputs
        table = read_table(data, text={name: frozenset() for name in inside} | texts)
        try:
            view, explorer = _view(estimator, record, judgement, table=table, baseline=baseline, place=place)
        except DataError as error:
            raise DataError(f"{data}: {error}") from None
    else:
        view, explorer = _view(estimator, record, judgement, table=data, baseline=baseline, place=place)
    view |= {"name": title, "kicker": "Assurance report", "annex": None, **stamped()}
    if annex:
        view["annex"] = annex_view(view["contents"], proved=judgement.verdict == PROVED)
        view["contents"] = [*view["contents"], ("annex", "Technical documentation")]
    write_page(target, render("report.html", view, explorer))
    concern = view["accuracy"]["concern"] if view["accuracy"] else ""
    return Report(target, judgement.verdict, judgement.reason, concern)


def _require_place(target: Path, data: Any, folders: Sequence[str | PathLike[str]]) -> None:
    """Let a report replace no table, and no file of the models, which it is about."""
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
    """Return the name of a folder; one that is just called `model` is named with its parent."""
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
    try:
        record = read_record(model)
    except (ModelFormatError, CertificateError) as error:
        if not (Path(model) / "certificate.json").is_file():
            raise
        return None, None, Judgement(REJECTED, str(error))
    judgement = judge(record)
    if judgement.verdict == REJECTED:
        return None, record, judgement
    kind = KINDS.get(str(record.description.get("kind")))
    if kind is None:
        raise ModelFormatError(f"model.json: unknown kind of model {record.description.get('kind')!r}.")
    return kind.from_record(record, verify=False), record, judgement  # just judged


def _changed(model: SafeEstimator, record: ModelRecord) -> str:
    """Return what of a model in memory is not what its certificate speaks of, or nothing."""
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
    *,
    table: Any,
    baseline: SafeEstimator | None,
    place: Path | None,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    spec = judgement.spec
    description: Mapping[str, Any] = {} if record is None else record.description
    measured = None if model is None or table is None else measure(model, table, plain=baseline)
    verdicts: list[RuleVerdict] = []
    view: dict[str, Any] = {"ranges": [], "outputs_left_out": 0, "measured": measured is not None, "rules": None}
    view |= {"head_of_rules": False, "served": None}
    view |= {"data_section": False, "explorer_note": "", "statements": [], "statements_total": 0, "accuracy": None}
    explorer = None
    trained = None
    if model is not None and spec is not None and model.has_head_of_rules:
        view |= {"head_of_rules": True, **views.proved_view(judgement.proved)}
        verdicts = plain_verdicts(judgement.proved, spec)
        trained = corrections_of(description)
        view["served"] = served_view(spec, trained, measured)
        medians = training_of(description).medians if measured is None else measured.medians
        assert record is not None
        assert record.certificate is not None
        explorer = head_explorer_data(record.certificate, spec, model.deployed_.front, medians=medians)
        view["explorer_note"] = _HEAD_NOTE
        view |= data_view(description, spec, CellNames((), ()), measured)
        view["accuracy"] = accuracy_view(description, measured)
    elif model is not None and spec is not None:
        cells = model.deployed_.cells if spec.rules else find_cells(spec)
        named = _cell_names(cells, spec)
        if judgement.verdict == PROVED:
            assert record is not None
            assert record.certificate is not None
            over = frozen_heads_of(record.weights)
            verdicts = rule_verdicts(judgement.proved, record.certificate, spec, cells=cells, over=over)
            view |= views.statements_view(judgement.proved, Reader(spec, cells))
            witnesses = Witnesses(record.certificate, spec, cells=cells, over=over)
            ranges, view["outputs_left_out"] = output_ranges(witnesses)
            seen = {} if measured is None else _seen(measured)
            view["ranges"] = views.ranges_view(ranges, named.names, spec, seen=seen)
        view |= data_view(description, spec, named, measured)
        view["accuracy"] = accuracy_view(description, measured)
        medians = training_of(description).medians if measured is None else measured.medians
        explorer = explorer_data(model.deployed_, medians=medians)
        view["explorer_note"] = "" if explorer is None else _explorer_note(explorer)
    if spec is not None:
        view |= views.rules_view(spec, verdicts, measured)
        view |= views.guarantee_view(spec)
    view |= views.history_view(description)
    view |= {"verdict": views.verdict_view(judgement, verdicts, measured, served_facts(trained, measured))}
    view |= card_view(description, record) | files_view(record, judgement, place)
    view["contents"] = _contents(view, explorer)
    return view, explorer


def _cell_names(cells: Cells, spec: Specification) -> CellNames:
    names, free = [], []
    for index in range(len(cells)):
        bound = binding_rules(cells, spec, index)
        rules = {rule for rule, region in bound if region is None or not cells.regions[region]}
        elsewhere = {rule for rule, region in bound} - rules
        names.append(cell_name(spec, sorted(rules), partly=len(elsewhere)))
        free.append(cells.free_cell and index == len(cells) - 1)
    return CellNames(tuple(names), tuple(free))


def _seen(measured: Measured) -> dict[tuple[int, int], tuple[float, float]]:
    """Return the predicted range of each output in each cell that rows of the table fell into."""
    result = {}
    for cell in np.unique(measured.cell_of):
        part = measured.outputs[measured.cell_of == cell]
        for output in range(min(part.shape[1], 64)):
            result[int(cell), output] = (float(part[:, output].min()), float(part[:, output].max()))
    return result


_HEAD_NOTE = (
    "The head runs in your browser, operation by operation as deployed. Where its check refuses an answer, the page "
    "looks for the nearest allowed one in its own way; what is deployed may differ from that in small digits."
)


def _explorer_note(explorer: Mapping[str, Any]) -> str:
    if "network" in explorer:
        return "It is drawn in your browser, in double arithmetic, from the embedded float32 weights."
    reason = explorer["grid"]["reason"]
    return f"Values were computed on a grid when the report was written, because {reason}; other inputs stay fixed."


def _contents(view: Mapping[str, Any], explorer: object) -> list[tuple[str, str]]:
    entries = [
        ("rules", "Rules and verdicts", view["rules"] is not None),
        ("scope", "What is guaranteed", bool(view["rules"])),
        ("served", "How answers are served", view["served"] is not None),
        ("ranges", "Output ranges", bool(view["ranges"])),
        ("explorer", "Explorer", explorer is not None),
        ("data", "Data and accuracy", view["data_section"]),
        ("card", "Model card", True),
        ("files", "Files and re-check", True),
    ]
    return [(anchor, title) for anchor, title, shown in entries if shown]
