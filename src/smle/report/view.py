"""From facts to what the page shows: texts, tables and drawings, in the order of reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from markupsafe import Markup

import smle_check
from smle.certificates.agreement import assumptions_of
from smle.certificates.document import Proved
from smle.report import svg
from smle.report.judge import NO_RULES, PROVED, Judgement
from smle.report.measured import Measured
from smle.report.ranges import OutputRanges
from smle.report.recorded import history_of
from smle.report.sentences import words
from smle.report.statements import Corner, Reader, RuleVerdict, enforced_text
from smle.report.wording import (
    about,
    domain_text,
    formula,
    listed,
    margin_text,
    name_text,
    number,
    point,
    range_text,
    requirement_lines,
    share,
    short,
)
from smle.rules import Label, Specification
from smle_check.digits import decimal
from smle_check.names import visible

__all__ = [
    "guarantee_view",
    "history_view",
    "proved_view",
    "ranges_view",
    "rules_view",
    "statements_view",
    "verdict_view",
]

_RULES, _STATEMENTS = 400, 200


def verdict_view(
    judgement: Judgement,
    verdicts: Sequence[RuleVerdict],
    measured: Measured | None,
    more: Sequence[tuple[str, str, str]] = (),
) -> dict[str, Any]:
    """Return the first thing to read: the verdict, for what, and how it was reached; `more` facts are added to it."""
    spec = judgement.spec
    count = len(spec.rules) if spec is not None else 0
    if judgement.verdict == NO_RULES:
        return {
            "kind": "none",
            "word": "No rules",
            "headline": "No rules: nothing is proved about this model.",
            "lines": ["It is a plain network. State rules and train with them to get a certificate."],
            "facts": [],
        }
    if judgement.verdict != PROVED:
        return {
            "kind": "rejected",
            "word": "Rejected",
            "headline": "The proof was not accepted. Do not rely on this model.",
            "lines": [
                f"The checker says: {judgement.reason}",
                "Either a file was changed after certification, or the folder is incomplete. Nothing is proved about "
                "the files as they are.",
            ],
            "facts": [],
        }
    rules = {1: "The rule holds", 2: "Both rules hold"}.get(count, f"All {count:,} rules hold")
    return {
        "kind": "proved",
        "word": "Proved",
        "headline": f"{rules} for every input of the domain.",
        "lines": [
            "Seen or unseen, whatever the model in front of the certified head computes, and for the rounded float32 "
            "numbers that are deployed. "
            f"Checked again while this report was written: {len(judgement.proved):,} statements in exact arithmetic, "
            f"{judgement.seconds:.2f} s, without a solver and without tolerance."
        ],
        "facts": [*_verdict_facts(judgement, verdicts, measured), *more],
    }


def _verdict_facts(
    judgement: Judgement, verdicts: Sequence[RuleVerdict], measured: Measured | None
) -> list[tuple[str, str, str]]:
    spec = judgement.spec
    assert spec is not None
    inputs = len(spec.inputs)
    facts = [("Rules proved", f"{len(spec.rules):,} of {len(spec.rules):,}", "")]
    known = [v for v in verdicts if v.worst is not None]
    if known and any(item.by for item in judgement.proved):
        facts.append(("Enforced by", enforced_text(judgement.proved), "answers may lie on a limit, never beyond"))
    elif known:
        least = min(known, key=lambda v: v.margin or 0.0)
        facts.append(
            (
                "Smallest margin",
                margin_text(least.worst.margin if least.worst else Fraction(0)),
                f"rule “{short(visible(spec.rules[least.rule].name))}”, after rounding",
            )
        )
    ranges = listed((f"{name} {values}" for name, values in domain_text(spec)[:3]), 120)
    ranges += "; …" if inputs > 3 and not ranges.endswith("…") else ""
    facts.append(("Domain", f"{inputs:,} input{'s' if inputs != 1 else ''}", ranges))
    if measured is not None:
        value = f"{measured.any_broken['safe']:,} of {measured.inside:,}"
        data = measured.any_broken.get("data")
        more = "" if data is None else f"in the data itself: {data:,}"
        facts.append(("Rows that break a rule", value, more))
    return facts


def rules_view(spec: Specification, verdicts: Sequence[RuleVerdict], measured: Measured | None) -> dict[str, Any]:
    """Return the rules in words and formulas, each with its verdict."""
    by_rule = {v.rule: v for v in verdicts}
    rows = []
    for index, rule in enumerate(spec.rules[:_RULES]):
        required = requirement_lines(rule, spec)
        lines = [f"{formula(rule, spec)}  ⟹  {required[0]}", *(f"∧ {line}" for line in required[1:])]
        row = {
            "name": visible(rule.name),
            "words": words(rule, spec),
            "formula": lines,
            "bar": None,
            "where": "",
            "margin": "",
            "enforced": "",
        }
        row.update(_rule_verdict(by_rule.get(index), spec, measured))
        rows.append(row)
    return {
        "rules": rows,
        "rules_left_out": len(spec.rules) - len(rows),
        "labels": any(isinstance(output, Label) for output in spec.outputs),
        "constants": [(name, decimal(value)) for name, value in spec.constants],
        "small_margin": any(v.margin is not None and v.margin < 1e-4 and not v.enforced for v in verdicts),
    }


def statements_view(stated: Sequence[Proved], reader: Reader) -> dict[str, Any]:
    """Return the proved statements with the smallest margins."""
    ordered = sorted(stated, key=lambda item: item.margin)[:_STATEMENTS]
    rows = [
        {
            "rule": item.rule,
            "head": item.head,
            "where": reader.where(item),
            "sentence": reader.sentence(item),
            "margin": margin_text(item.margin),
        }
        for item in ordered
    ]
    return {"statements": rows, "statements_total": len(stated)}


def proved_view(proved: Sequence[Proved]) -> dict[str, Any]:
    """Return the statements about a head of rules in the words of the checker."""
    rows = [
        {
            "rule": item.rule,
            "head": item.head,
            "where": item.where,
            "sentence": item.sentence,
            "margin": f"by a {item.by}",
        }
        for item in proved[:_STATEMENTS]
    ]
    return {"statements": rows, "statements_total": len(proved)}


def _rule_verdict(verdict: RuleVerdict | None, spec: Specification, measured: Measured | None) -> dict[str, Any]:
    if verdict is None:
        return {"badge": "not proved", "badge_kind": "bad", "statements": 0, "seen": ""}
    if verdict.worst is None:
        seen = "No input of the domain meets its condition."
        return {"badge": "never active", "badge_kind": "quiet", "statements": 0, "seen": seen}
    seen = ""
    if measured is not None:
        seen = f"active on {share(measured.active[verdict.rule] / measured.inside)} of the rows"
    row = {
        "badge": "proved",
        "badge_kind": "",
        "statements": verdict.statements,
        "margin": "" if verdict.enforced else margin_text(verdict.worst.margin),
        "enforced": verdict.enforced,
        "seen": seen,
    }
    corner = verdict.corner
    if corner is None:
        return row
    row["where"] = _where(corner, verdict, spec)
    if corner.pair is None:
        limits = {"most" if corner.upward else "least": corner.limit}
        title = f"can take {range_text(corner.low, corner.high, **limits)}, limit {number(corner.limit, 15)}"
        row["bar"] = svg.reach_bar(corner.low, corner.high, corner.limit, upward=corner.upward, title=title)
    return row


def _where(corner: Corner, verdict: RuleVerdict, spec: Specification) -> str:
    """Say where a margin is attained."""
    place = "" if verdict.where == "everywhere" else f", {verdict.where}"
    if corner.pair is not None:
        h, k = (name_text(spec.targets[i]) for i in corner.pair)
        return f"Worst case: {h} and {k} come closest to occurring together{place}."
    values = ", ".join(f"{name_text(spec.targets[j])} {about(v)}" for j, v in corner.outputs[:6])
    values += ", …" if len(corner.outputs) > 6 else ""
    if corner.x is None:
        at = " at a corner of the certified box that is the same for all inputs"
    else:
        at = f" at {listed(point(spec, corner.x.tolist()), 300, ', ')}"
    return f"Worst case of {short(verdict.sentence, 200)}: {values}{at}{place}."


def guarantee_view(spec: Specification | None) -> dict[str, Any]:
    """Return claim, assumptions and limits in the words of the certificate format."""
    statement: Mapping[str, Any] = smle_check.STATEMENT
    return {
        "claim": statement["claim"],
        "assumptions": [
            *(statement["assumptions"] if spec is None else assumptions_of(spec)),
            "Python's integers and fractions compute correctly, and SHA-256 is what it is taken for.",
        ],
        "not_guaranteed": [
            *statement["not_guaranteed"],
            "That the rules say what their author meant: read them above.",
            "What model.json says about data and scores: it is bound to the proof, not proved.",
        ],
        "domain": [] if spec is None else domain_text(spec),
    }


def ranges_view(
    ranges: Sequence[OutputRanges],
    names: Sequence[str],
    spec: Specification,
    *,
    seen: Mapping[tuple[int, int], tuple[float, float]],
) -> list[dict[str, Any]]:
    """Return panels of bars, one per output; `seen` has predicted ranges by (cell, output)."""
    kinds = {output.name: isinstance(output, Label) for output in spec.outputs}
    panels = []
    for item in ranges:
        rows = []
        target = spec.targets[item.output]
        label = kinds.get(target, False)
        for part in item.ranges:
            if part.reach is None:
                numbers = "anything: free"
            else:
                numbers = range_text(*part.reach, least=part.least, most=part.most)
                numbers += " (never predicted)" if label and part.reach[1] < 0 else ""
            limits = [(limit.low, limit.high, limit.upward) for limit in part.limits]
            shown = seen.get((part.cell, item.output))
            bar = svg.range_bar(part.reach, limits, _span(item, seen), seen=shown, title=f"{target}: {numbers}")
            rows.append({"name": names[part.cell], "bar": bar, "numbers": numbers})
        title = f"{target} (logit; predicted from 0 on)" if label else target
        panels.append({"name": title, "rows": rows, "left_out": item.left_out})
    return panels


def _span(item: OutputRanges, seen: Mapping[tuple[int, int], tuple[float, float]]) -> tuple[float, float]:
    low, high = item.span
    values = [v for (_, output), ends in seen.items() if output == item.output for v in ends]
    return min([low, *values]), max([high, *values])


def history_view(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawing of the training history, if one is recorded."""
    record = history_of(description)
    drawing = None if record is None else svg.history(record)
    caption: str | Markup = ""
    if record is not None and drawing is not None:
        parts = ["Validation loss (strong) and training loss (thin)"]
        if record.best is not None:
            kept = "the best" if record.final else "which was kept"
            parts.append(f"dashed: epoch {number(record.best)}, {kept}")
        if record.epochs is not None:
            parts.append(f"{record.epochs} epochs")
        if record.seconds is not None:
            parts.append(f"{record.seconds:.1f} s")
        if record.stopped:
            parts.append(f"ended by {record.stopped.replace('_', ' ')}")
        if record.final:
            parts.append(
                f"{record.final} final epochs went on from the best, on all rows with none held out, and were kept"
            )
        caption = "; ".join(parts) + "."
    elif isinstance(seconds := _mapping_of(description.get("history")).get("seconds"), int | float):
        caption = f"Fitted in {seconds:.1f} s."
    return {"history": drawing, "history_caption": caption}


def _mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
