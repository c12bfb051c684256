"""What the page shows, in the order of reading: verdict, rules, statements, scope, training history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import smle_check
from smle.certificates.agreement import assumptions_of
from smle.certificates.document import Proved, by_rule
from smle.heads.table import head_for
from smle.report import sentences, svg
from smle.report.judge import NO_RULES, PROVED, REJECTED, Judgement
from smle.report.measured import Measured
from smle.report.recorded import history_of, mapping_of
from smle.report.steps_view import sums_text
from smle.report.tables import PageTable, numbers
from smle.report.wording import count_text, domain_text, listed, margin_text, number, short
from smle.rules import Specification, share_text
from smle_check.names import visible

__all__ = ["guarantee_view", "history_view", "rules_view", "statements_view", "verdict_view"]

_RULES, _STATEMENTS = 400, 200
_VALUES = {
    PROVED: "Values that the proof speaks about",
    REJECTED: "Values that the rules speak about",
    NO_RULES: "Values seen in training",
}


def verdict_view(
    judgement: Judgement, measured: Measured | None, more: Sequence[tuple[str, str, str]] = ()
) -> dict[str, Any]:
    """Return the first thing to read: the verdict, its scope, and how it was reached; `more` facts are added."""
    if judgement.verdict == NO_RULES:
        return {
            "kind": "none",
            "word": "No rules",
            "headline": "No rules: nothing is proved about this model.",
            "lines": ["It is a plain model. State rules and train with them to get a certificate."],
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
    assert judgement.spec is not None
    count = len(judgement.spec.rules)
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
        "facts": [*_facts(judgement.spec, judgement.proved, measured), *more],
    }


def _facts(spec: Specification, proved: Sequence[Proved], measured: Measured | None) -> list[tuple[str, str, str]]:
    facts = [("Rules proved", f"{len(spec.rules):,} of {len(spec.rules):,}", "")]
    if any(item.by for item in proved):
        facts.append(("Enforced by", _enforced(proved), "answers may lie on a limit, never beyond"))
    elif proved:
        least = min(proved, key=lambda item: item.margin)
        where = f"rule “{short(visible(least.rule))}”, after rounding"
        facts.append(("Smallest margin", margin_text(least.margin), where))
    ranges = listed((f"{name} {values}" for name, values in domain_text(spec)), 120, "; ")
    facts.append(("Domain", count_text(len(spec.inputs), "input"), ranges))
    if measured is not None:
        broken = {name: round(share * measured.inside) for name, share in measured.scores.violations.items()}
        more = f"in the data itself: {broken['data']:,}" if "data" in broken else ""
        facts.append(("Rows that break a rule", f"{broken['safe']:,} of {measured.inside:,}", more))
    return facts


def _enforced(proved: Sequence[Proved]) -> str:
    """Count what enforces the statements of a head of rules: `2 clips and 1 check`."""
    counts = [(sum(item.by == kind for item in proved), kind) for kind in ("clip", "check")]
    return " and ".join(count_text(count, kind) for count, kind in counts if count)


def rules_view(judgement: Judgement, measured: Measured | None) -> dict[str, Any]:
    """Return the rules in words and formulas, each with its verdict."""
    spec = judgement.spec
    assert spec is not None
    accepted = judgement.verdict == PROVED
    statements = by_rule(judgement.proved)
    rows = []
    for rule in spec.rules[:_RULES]:
        found = statements.get(visible(rule.name), [])
        row = {**sentences.rule_view(rule, spec), "statements": len(found), "margin": "", "enforced": "", "seen": ""}
        row["sums"] = "" if spec.grid is None else sums_text(spec.grid, rule)
        if not accepted:
            row |= {"badge": "not proved", "badge_kind": "bad"}
        elif not found:
            row |= {
                "badge": "never active",
                "badge_kind": "quiet",
                "seen": "No input of the domain meets its condition.",
            }
        else:
            row |= {"badge": "proved", "badge_kind": "", "enforced": _enforced(found)}
            row["margin"] = "" if row["enforced"] else margin_text(min(item.margin for item in found))
            if measured is not None:
                row["seen"] = f"active on {share_text(measured.usage.rules[rule.name] / measured.inside)} of the rows"
        rows.append(row)
    small = any(not item.by and item.margin < 1e-4 for item in judgement.proved)
    return {**sentences.rules_view(spec, rows), "small_margin": small}


def statements_view(proved: Sequence[Proved]) -> dict[str, Any]:
    """Return the proved statements in the words of the checker, those with the smallest margins first."""
    if not proved:
        return {"statements": None, "statements_total": 0}
    heads = not any(item.by for item in proved)  # a head of rules is one head; a box has several
    rows = [
        (
            item.rule,
            *([str(item.head)] if heads else []),
            item.where,
            item.sentence,
            margin_text(item.margin) if heads else f"by a {item.by}",
        )
        for item in sorted(proved, key=lambda item: item.margin if heads else 0)[:_STATEMENTS]
    ]
    columns = [("Rule", ""), *numbers(["Head"] if heads else []), ("Where", "long"), ("Holds", "long")]
    columns += numbers(["Margin" if heads else "Enforced"])
    statements = PageTable(columns, rows, label="Statements of the checker")
    return {"statements": statements, "statements_total": len(proved)}


def guarantee_view(spec: Specification, verdict: str) -> dict[str, Any]:
    """Return claim, assumptions and limits in the words of the certificate format."""
    statement: Mapping[str, Any] = smle_check.statement_of(head_for(spec))
    return {
        "claim": statement["claim"],
        "assumptions": [
            *assumptions_of(spec, head_for(spec)),
            "Python's integers and fractions compute correctly, and SHA-256 is collision-resistant.",
        ],
        "not_guaranteed": [
            *statement["not_guaranteed"],
            "That the rules say what their author meant: read them above.",
            "What model.json says about data and scores: it is bound to the proof, not proved.",
        ],
        "domain": PageTable(
            [("Input", ""), (_VALUES[verdict], "long")], domain_text(spec), label="Inputs", rows_are="inputs"
        ),
    }


def history_view(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawing of the training history, if recorded."""
    record = history_of(description)
    drawing = None if record is None else svg.history(record)
    if record is None or drawing is None:
        seconds = mapping_of(description.get("history")).get("seconds")
        fitted = f"Fitted in {seconds:.1f} s." if isinstance(seconds, int | float) else ""
        return {"history": None, "history_caption": fitted}
    parts = ["Validation loss (strong) and training loss (thin)"]
    if record.best is not None:
        kept = "the best" if record.final else "which was kept"
        parts.append(f"dashed: epoch {number(record.best)}, {kept}")
    parts += [] if record.epochs is None else [f"{record.epochs} epochs"]
    parts += [] if record.seconds is None else [f"{record.seconds:.1f} s"]
    parts += [f"ended by {record.stopped.replace('_', ' ')}"] if record.stopped else []
    if record.final:
        parts.append(
            f"the last {record.final} are final epochs: they continue from the best on all rows, and were kept"
        )
    return {"history": drawing, "history_caption": "; ".join(parts) + "."}
