"""The result of a diagnosis: findings, cells and figures, as data, JSON and text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from smle.advice.costs import score_text
from smle.advice.data_check import DataCheck
from smle.rules import Specification, html_table, text_table
from smle.rules.shown import point_json

__all__ = ["CellReport", "Diagnosis", "Finding", "Untested"]

SEVERE = frozenset({"contradiction", "not proved"})
"""Kinds of findings that prevent certification."""
ABOUT_DATA = frozenset({"outside the domain", "narrow data", "other units"})
"""Kinds of findings about the data rather than the rules."""

_LISTED = 10  # cells that the text lists


@dataclass(frozen=True)
class Finding:
    """A finding about the rules, or about the data under these rules.

    * `kind`: "contradiction", "not proved", "one answer", "hidden equality", "never active", "partly empty" or
      "redundant"; for data "outside the domain", "narrow data" or "other units".
    * `rules`: names of the rules concerned; for a contradiction, a smallest conflicting set. Empty for data.
    * `text`: a sentence with the reason and the remedy.
    * `witness`: an exact input where a contradiction shows, or None.
    """

    kind: str
    rules: tuple[str, ...]
    text: str
    witness: tuple[Fraction, ...] | None = None

    @property
    def severe(self) -> bool:
        """Whether no model can be certified until this is fixed."""
        return self.kind in SEVERE


@dataclass(frozen=True)
class CellReport:
    """Rules that can apply together, by name, and whether they agree.

    `status` is "fine", "free" (no rules), "contradictory" or "unknown". In `words`, a rule with several conditions (an
    `or`) is followed by those that are met: `low score (score < 480)`.
    """

    rules: tuple[str, ...]
    status: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Untested:
    """A question left open for some rules, and why.

    * `question`: "never active" or "redundant", as the kinds of findings.
    * `rules`: names of the rules; `reason`: part of a sentence.
    """

    question: str
    rules: tuple[str, ...]
    reason: str

    @property
    def text(self) -> str:
        """The question as a sentence."""
        listed = ", ".join(f"'{name}'" for name in self.rules)
        return f"Not tested whether {self.question}: {listed} ({self.reason})."


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`.

    `always_on` are rules without a bit in the gate, because there were too many overlaps; `untested` lists the
    questions left open.
    """

    spec: Specification = field(repr=False)
    cells: tuple[CellReport, ...]
    always_on: tuple[str, ...]
    findings: tuple[Finding, ...]
    data: DataCheck | None = None
    untested: tuple[Untested, ...] = ()

    @property
    def contradictory(self) -> bool:
        """Whether some finding is a contradiction, so that no model can be certified."""
        return any(finding.kind == "contradiction" for finding in self.findings)

    @property
    def undecided(self) -> bool:
        """Whether there is neither a proof nor a contradiction."""
        doubtful = any(finding.severe for finding in self.findings) or any(c.status == "unknown" for c in self.cells)
        return doubtful and not self.contradictory

    def __repr__(self) -> str:
        """Summarize in one line; `print` and `table()` show everything."""
        severe = sum(finding.severe for finding in self.findings)
        found = "contradictory" if self.contradictory else "the rules can hold together"
        rows = "" if self.data is None else f", {self.data.rows} rows of data"
        return f"Diagnosis({found}: {len(self.findings)} findings, {severe} severe{rows})"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        notes = [("!! " if finding.severe else "") + finding.text for finding in self.findings]
        costs = [] if self.data is None else self.data.text().split("\n")
        return html_table(repr(self), self._rules(), [*costs, *notes])

    def to_json(self) -> dict[str, object]:
        """Return plain data, with exact numbers as text next to the nearest float."""
        return {
            "contradictory": self.contradictory,
            "undecided": self.undecided,
            "rules": [{"name": rule.name, "when": rule.when, "then": rule.then} for rule in self.spec.rules],
            "cells": [
                {"rules": list(cell.rules), "status": cell.status, "words": list(cell.words)} for cell in self.cells
            ],
            "always_on": list(self.always_on),
            "findings": [
                {
                    "kind": finding.kind,
                    "severe": finding.severe,
                    "rules": list(finding.rules),
                    "text": finding.text,
                    "witness": None if finding.witness is None else point_json(self.spec.columns, finding.witness),
                }
                for finding in self.findings
            ],
            "untested": [
                {"question": item.question, "rules": list(item.rules), "reason": item.reason} for item in self.untested
            ],
            "data": None if self.data is None else self.data.to_json(),
        }

    def table(self) -> str:
        """Return the diagnosis as text for a terminal."""
        parts = [text_table(self._rules()) if self.spec.rules else "No rules.", self._cells()]
        if self.data is not None:
            parts.append(self.data.text())
        parts.append(self._findings())
        parts.append("\n".join(f" ? {item.text}" for item in self.untested))
        return "\n\n".join(part for part in parts if part)

    def _rules(self) -> list[list[str]]:
        """Return the rules as a table, with what the data say about them."""
        header = ["rule", "when", "then"]
        rows = [[rule.name, rule.when or "always", rule.then] for rule in self.spec.rules]
        if self.data is not None:
            header += ["active", "broken", "costs"]
            shares = zip(self.data.active, self.data.broken or [None] * len(rows), strict=True)
            for index, (row, (share, wrong)) in enumerate(zip(rows, shares, strict=True)):
                lost = {} if self.data.costs is None else self.data.costs[index].lost
                dearest = max(lost, key=lambda name: lost[name], default="")
                row += [f"{share:.1%}", "" if wrong is None else f"{wrong:.1%}"]
                row.append(f"{score_text(lost[dearest])} of {dearest}" if dearest else "")
        return [header, *rows]

    def _cells(self) -> str:
        if not self.cells:
            return ""
        count = "1 cell" if len(self.cells) == 1 else f"{len(self.cells)} cells"
        lines = [f"{count} (sets of rules that can be active together):"]
        counts = Counter(cell.status for cell in self.cells)
        lines.append("  " + ", ".join(f"{number} {status}" for status, number in counts.most_common()))
        doubtful = list(dict.fromkeys(cell for cell in self.cells if cell.status not in ("fine", "free")))
        lines += [f"  {cell.status}: {', '.join(cell.words)}" for cell in doubtful[:_LISTED]]
        if len(doubtful) > _LISTED:
            lines.append(f"  ... {len(doubtful) - _LISTED} more (--json lists all)")
        if self.always_on:
            lines.append(f"  Always on, because there are too many overlaps: {', '.join(self.always_on)}")
        return "\n".join(lines)

    def _findings(self) -> str:
        doubtful = any(cell.status == "unknown" for cell in self.cells)
        if not self.findings:
            return "" if doubtful else "No problems found: the rules can hold together."
        about_data = all(finding.kind in ABOUT_DATA for finding in self.findings)
        lines = ["The rules can hold together. Check the data:"] if about_data and not doubtful else []
        for finding in sorted(self.findings, key=lambda f: not f.severe):
            mark = "!!" if finding.severe else " -"
            lines.append(f"{mark} {finding.text}")
        return "\n".join(lines)
