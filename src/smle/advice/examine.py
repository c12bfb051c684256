"""`smle.diagnose`: can rules hold together, is any redundant, what do they cost on data, and can a head be proved?

Contradictions, empty regions, pinned outputs and redundancy are decided in rationals.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.advice.data_check import DataCheck, check_data
from smle.advice.diagnosis import CellReport, Diagnosis, Finding, Untested
from smle.advice.meeting import Meeting
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.table import certify_head
from smle.regions.cell_search import find_cells
from smle.regions.cells import Cells, regions_of
from smle.regions.consistency import EXPANDED_PAIRS, Consistency
from smle.regions.decide import Undecided
from smle.rules import Choice, Clause, Literal, Rule, Specification, clause_text, region_text
from smle.rules.shown import point_text, quoted
from smle.tables import encode_choices, encode_inputs, encode_numbers

__all__ = ["conflicts_explained", "diagnose", "diagnose_arrays"]

MANY_REGIONS = 60  # beyond this, cells are examined only if no proof settles whether rules agree
_SECONDS = 6.0
"""Seconds after which no further rule is tested for redundancy."""


def diagnose(specification: Specification | str | PathLike[str], X: Any = None, y: Any = None) -> Diagnosis:
    """Check rules before training: empty regions, contradictions with a witness, redundant rules.

    With data: rows outside the domain, the share of rows in each region, the share that break each rule, and the price
    of obeying (R2 or accuracy of the nearest allowed targets).

    Args:
        specification: A Specification, the path of a rules file, or YAML text.
        X: Table with the input columns, or None.
        y: Table with the output columns, or None.
    """
    spec = Specification.of(specification)
    inputs, targets = None if X is None else encode_inputs(spec, X), None if y is None else _targets(spec, y)
    refused: Exception | None = None
    try:
        if spec.rules:
            certify_head(spec)
    except (ContradictionError, NotCertifiedError, RuleError) as reason:
        refused = reason
    found = diagnose_arrays(spec, inputs, targets, proved=refused is None)
    if refused is not None and not any(finding.severe for finding in found.findings):
        text = str(refused)
        kind = "contradiction" if isinstance(refused, ContradictionError) else "not proved"
        refusal = Finding(kind, tuple(rule.name for rule in spec.rules if f"'{rule.name}'" in text), text)
        others = (finding for finding in found.findings if finding.kind != "one answer")
        cells = tuple(replace(cell, status="unknown") if cell.status == "fine" else cell for cell in found.cells)
        return replace(found, findings=(*others, refusal), cells=cells)
    return found


def _targets(spec: Specification, y: Any) -> npt.NDArray[np.float64]:
    """Return targets (n, m); for a choice, scores that pick the true option."""
    if not any(isinstance(output, Choice) for output in spec.outputs):
        return encode_numbers(spec, y)
    parts = []
    for output in spec.outputs:
        if isinstance(output, Choice):
            picked = encode_choices(output, y)
            parts.append(picked if output.pick == "max" else 1.0 - picked)
        else:
            parts.append(np.asarray(y[output.name], dtype=np.float64)[:, None])
    return np.concatenate(parts, axis=1)


def diagnose_arrays(
    spec: Specification,
    X: npt.NDArray[np.floating[Any]] | None = None,
    y: npt.NDArray[np.float64] | None = None,
    *,
    proved: bool | None = None,
) -> Diagnosis:
    """Check a specification, alone or against inputs X (n, d) and targets y (n, m), labels as 0/1 or probabilities.

    `proved` says whether a head of rules is proved, None if that was not tried. All cells are examined if it is None or
    there are few regions.
    """
    consistency, meeting = Consistency(spec), Meeting(spec)
    findings, untested = _empty_regions(consistency, meeting)
    regions, reports, always_on = regions_of(spec), list[CellReport](), tuple[str, ...]()
    if proved is None or len(regions.regions) <= MANY_REGIONS:
        cells = find_cells(spec)
        check = _CellCheck(consistency, cells)
        reports, more = check.run()
        findings += more
        always_on = tuple(sorted({spec.rules[rule].name for region in check.ungated for rule in cells.rules[region]}))
    elif proved:  # proved, so rules do not contradict; those that always apply may still leave only one answer
        findings += _pinned(consistency, regions)
    hidden = hidden_equalities(spec)
    pairs = [set(finding.rules) for finding in hidden]
    findings = [
        f for f in findings if f.kind != "one answer" or not any(pair <= set(f.rules) for pair in pairs)
    ] + hidden
    skip = {r for f in findings if f.kind == "never active" for r in f.rules}
    more, left = _redundant(consistency, meeting, skip=skip)
    findings += more
    data = None if X is None else check_data(spec, X, y)
    if data is not None:
        findings += _data_findings(spec, data)
    return Diagnosis(
        spec=spec,
        cells=tuple(reports),
        always_on=always_on,
        findings=tuple(findings),
        data=data,
        untested=(*untested, *left),
    )


@contextmanager
def conflicts_explained(spec: Specification) -> Iterator[None]:
    """Turn a failed proof into a ContradictionError with a smallest conflict, if rules contradict each other."""
    try:
        yield
    except (ContradictionError, NotCertifiedError) as error:
        clashes = [finding.text for finding in diagnose_arrays(spec).findings if finding.kind == "contradiction"]
        if not clashes:
            raise
        raise ContradictionError(clashes[0]) from error


def _pinned(consistency: Consistency, regions: Cells) -> list[Finding]:
    """Return findings about outputs that the rules without a condition pin."""
    check = _CellCheck(consistency, regions)
    try:
        check._note_pinned(check._rules(()))
    except Undecided:
        return []
    return list(check.findings.values())


def hidden_equalities(spec: Specification) -> list[Finding]:
    """Find pairs of rules that together state an equality in the same regions: `a <= b` and `b <= a`."""
    stated: dict[tuple[object, Literal], int] = {}
    findings = []
    for r, rule in enumerate(spec.rules):
        for clause in rule.requirement.clauses:
            literal = clause.literals[0]
            if len(clause.literals) > 1 or literal.strict or len(literal.outputs) < 2:
                continue
            other = stated.get((rule.regions, literal.opposite))
            stated.setdefault((rule.regions, literal), r)
            if other is not None and other != r:
                names = spec.rules[other].name, rule.name
                findings.append(Finding("hidden equality", names, _equality_text(spec, names, rule, literal)))
    return findings


def _equality_text(spec: Specification, names: tuple[str, str], rule: Rule, literal: Literal) -> str:
    equality = re.sub(" [<>]= ", " == ", clause_text(spec, Clause((literal,))))
    said = f"{_listed(names)} state an equality together: {equality}. "
    steps = [item.step is not None or item.integer for item, _ in spec.column_slices for _ in item.columns]
    real = [spec.columns[j] for j, _ in literal.inputs if not steps[j]]
    if any(region.rows for region in rule.regions) or real:
        needs = "without a condition" if not real else f"with `integer` or `step` for '{real[0]}'"
        return f"{said}It can be kept exactly only {needs}. Else state a tolerance, such as abs(a - b) <= 0.01."
    return f"{said}State it so, in one rule: `then: {equality}`. Or state a tolerance, such as abs(a - b) <= 0.01."


def _empty_regions(consistency: Consistency, meeting: Meeting) -> tuple[list[Finding], list[Untested]]:
    findings, cut_off = [], []
    for rule in consistency.spec.rules:
        try:
            points = [meeting.is_open(region) or consistency.point(region.rows) for region in rule.regions]
        except Undecided:
            cut_off.append(rule.name)
            continue
        if all(point is None for point in points):
            findings.append(
                Finding(
                    "never active",
                    (rule.name,),
                    f"Rule '{rule.name}' is never active: no input of the domain meets its condition "
                    f"({rule.when}). Correct the condition or the ranges of the inputs.",
                )
            )
        elif any(point is None for point in points):
            findings.append(
                Finding(
                    "partly empty",
                    (rule.name,),
                    f"Rule '{rule.name}': {sum(p is None for p in points)} of the {len(points)} alternatives "
                    f"of its condition ({rule.when}) cannot be met inside the domain.",
                )
            )
    untested = [Untested("never active", tuple(cut_off), "the search was cut off")] if cut_off else []
    return findings, untested


class _CellCheck:
    """Examines the cells, those with most rules first, and reuses what is already known."""

    def __init__(self, consistency: Consistency, cells: Cells) -> None:
        self.consistency, self.spec = consistency, consistency.spec
        self.cells = cells
        self.ungated = [r for r, rows in enumerate(cells.regions) if rows and r not in cells.gated]
        self.findings: dict[tuple[str, tuple[str, ...]], Finding] = {}
        self.satisfiable: list[frozenset[int]] = []
        self.roomy: list[frozenset[int]] = []
        self.clashing: list[frozenset[int]] = []

    def run(self) -> tuple[list[CellReport], list[Finding]]:
        cells = self.cells
        reports: dict[int, CellReport] = {}
        for index in sorted(range(len(cells)), key=lambda c: -len(cells[c])):
            reports[index] = self._report(index)
        return [reports[index] for index in range(len(cells))], list(self.findings.values())

    def _report(self, index: int) -> CellReport:
        cell = self.cells[index]
        rules = self._rules(cell)
        names = tuple(self.spec.rules[r].name for r in rules)
        words = tuple(self._named(r, cell) for r in rules)
        if not rules and not self.ungated:
            return CellReport(names, "free", words)
        try:
            clashes = self._clashes(cell)
            if not clashes:
                self._note_pinned(rules)
            status = "contradictory" if clashes else "fine"
        except Undecided:
            status = "unknown"
        return CellReport(names, status, words)

    def _named(self, rule: int, cell: Sequence[int]) -> str:
        """Return the name of a rule; if an `or` gave it several regions, add the conditions of the active ones."""
        name, regions = self.spec.rules[rule].name, self.spec.rules[rule].regions
        if len(regions) == 1:
            return name
        on = [self.cells.polytope(r) for r in cell if rule in self.cells.rules[r]]
        return f"{name} ({'; '.join(region_text(self.spec, region) or 'always' for region in on)})" if on else name

    def _rules(self, regions: Sequence[int]) -> tuple[int, ...]:
        always = [r for r, rows in enumerate(self.cells.regions) if not rows]
        return tuple(sorted({rule for r in (*regions, *always) for rule in self.cells.rules[r]}))

    def _clashes(self, cell: tuple[int, ...]) -> bool:
        """Return whether rules contradict each other in a cell, and note the conflict."""
        for regions in (cell, *((*cell, r) for r in self.ungated)):
            active = frozenset(self._rules(regions))
            if any(known <= active for known in self.clashing):
                return True
            plain = not self.consistency.has_x_terms(active)
            if plain and any(active <= known for known in self.satisfiable):
                continue
            rows = [self.cells.rows[r] for g in regions for r in self.cells.regions[g]]
            clash = self.consistency.clash(rows, sorted(active))
            if clash is None:
                self.satisfiable.append(active)
                continue
            self._note_clash(clash.rules, clash.x)
            if plain:
                self.clashing.append(frozenset(clash.rules))
            return True
        return False

    def _note_clash(self, rules: tuple[int, ...], x: Sequence[Any] | None) -> None:
        names = tuple(self.spec.rules[r].name for r in rules)
        asked = "; ".join(f"'{self.spec.rules[r].name}' asks {self.spec.rules[r].then}" for r in rules)
        if x is None:
            text = (
                f"{_listed(names)} meet at a border that rounding blurs, and no output satisfies both sides "
                f"({asked}). Leave a gap between their conditions, or let their requirements agree there."
            )
        else:
            place = point_text(self.spec, x, rules)
            at = f"at {place}" if place == "every input" else f"for example at {place}"
            together, advice = ("", "") if len(names) == 1 else (" together", " Relax one of them.")
            text = f"{_listed(names)} cannot hold{together}: {asked}, {at}.{advice}"
        witness = None if x is None else tuple(x)
        self._note(Finding("contradiction", names, text, witness))

    def _note(self, finding: Finding) -> None:
        self.findings.setdefault((finding.kind, finding.rules), finding)

    def _note_pinned(self, rules: tuple[int, ...]) -> None:
        """Note rules that pin a combination of several outputs, at all inputs where they apply."""
        active = frozenset(rules)
        if self.consistency.has_x_terms(rules) or any(active <= known for known in self.roomy):
            return
        pinned = self.consistency.pinned(rules)
        if pinned is None:
            self.roomy.append(active)
            return
        clauses = [clause for r in pinned for clause in self.spec.rules[r].requirement.clauses]
        if any(len(literal.outputs) > 1 for clause in clauses for literal in clause.literals):
            names = tuple(self.spec.rules[r].name for r in pinned)
            text = (
                f"{_listed(names)} pin some combination of outputs to one value (a hidden equality): a stored answer "
                "serves there, whatever the model says. State a tolerance, such as abs(a - b) <= 0.01."
            )
            self._note(Finding("one answer", names, text))


def _redundant(consistency: Consistency, meeting: Meeting, *, skip: set[str]) -> tuple[list[Finding], list[Untested]]:
    """Find rules that the others imply. A redundant rule does not count as a reason for another."""
    spec = consistency.spec
    others = [r for r, rule in enumerate(spec.rules) if rule.name not in skip]
    findings = []
    open_: dict[str, list[str]] = {}
    start = time.process_time()
    for r in list(others):
        name, pairs = spec.rules[r].name, len(spec.rules[r].requirement.exclusions)
        if pairs > EXPANDED_PAIRS:
            open_.setdefault(f"more than {EXPANDED_PAIRS} exclusions", []).append(name)
            continue
        if time.process_time() - start > _SECONDS:
            open_.setdefault(f"no time was left after {_SECONDS:g} s", []).append(name)
            continue
        try:
            reasons = consistency.implied_by_others(r, meeting.others(r, others))
        except Undecided:
            open_.setdefault("the search was cut off", []).append(name)
            continue
        if reasons is None:
            continue
        others.remove(r)
        names = tuple(spec.rules[k].name for k in reasons)
        verb = "implies" if len(names) == 1 else "imply"
        because = f"{_listed(names, start='rule')} already {verb} it" if names else "it adds nothing new"
        findings.append(Finding("redundant", (name,), f"Rule '{name}' is redundant: {because}."))
    return findings, [Untested("redundant", tuple(names), reason) for reason, names in open_.items()]


def _data_findings(spec: Specification, data: DataCheck) -> list[Finding]:
    """Describe what training would refuse, and targets that seem to be in other units."""
    ranges = {
        name: f"[{spec.value_text(i, spec.lower[i])}, {spec.value_text(i, spec.upper[i])}]"
        for i, name in enumerate(spec.columns)
    }
    findings = []
    if data.outside_rows:
        listed = "; ".join(
            f"'{name}' {_count(count, 'row')} outside {ranges[name]}" for name, count in data.outside.items()
        )
        findings.append(
            Finding(
                "outside the domain",
                (),
                f"{data.outside_rows} of {_count(data.rows, 'row')} lie outside the domain of the rules: {listed}. "
                "Training refuses such rows, and the guarantee does not cover them. Compare the units, widen the "
                "input ranges in the rules file, or drop these rows.",
            )
        )
    widths = {name: high - low for name, low, high in zip(spec.columns, spec.lower, spec.upper, strict=True)}
    for name, (low, high) in data.narrow.items():
        part = float(100 * (Fraction(high) - Fraction(low)) / widths[name])
        first, last = (spec.value_text(spec.columns.index(name), value) for value in (low, high))
        text = (
            f"'{name}' is {first} in all rows, one value of {ranges[name]}: is this intended?"
            if low == high
            else f"'{name}' ranges from {first} to {last}, {part:.1g} % of {ranges[name]}: different units?"
        )
        findings.append(Finding("narrow data", (), text))
    return [*findings, *(Finding("other units", (), text) for text in data.doubts)]


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def _listed(names: Sequence[str], start: str = "Rule") -> str:
    return f"{start}{'s' if len(names) > 1 else ''} {quoted(names)}"
