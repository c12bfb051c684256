"""Rules before anyone trains: what is found in them, and whether the head of rules can be proved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.rules import certify_rules
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.guarantees import Diagnosis, Finding, diagnose_arrays
from smle.rules import Choice, Rule, Specification
from smle.tables import encode_choices, encode_inputs, encode_numbers

__all__ = ["diagnose"]


def diagnose(specification: Specification | str | PathLike[str], X: Any = None, y: Any = None) -> Diagnosis:
    """Check rules before anyone trains: empty regions, contradictions with a witness, rules that say nothing new.

    With data: rows outside the domain, the share of rows in each region, the share that break each rule, and the
    price of obeying (R2 or accuracy of the nearest allowed targets).

    Args:
        specification: A Specification, the path of a rules file, or YAML text.
        X: Table with the input columns, or None.
        y: Table with the output columns, or None.
    """
    spec = Specification.of(specification)
    inputs, targets = None if X is None else encode_inputs(spec, X), None if y is None else _targets(spec, y)
    found = diagnose_arrays(spec, inputs, targets)
    doubts = [finding for finding in found.findings if finding.kind == "no room"]
    others = tuple(finding for finding in found.findings if finding.kind != "no room")
    if not spec.rules or any(finding.severe for finding in others):
        return found
    try:
        certify_rules(spec)
    except (ContradictionError, NotCertifiedError, RuleError) as error:
        moving = tuple(rule.name for rule in spec.rules if any(literal.inputs for literal in _literals([rule])))
        names = tuple(dict.fromkeys(name for finding in doubts for name in finding.rules)) or moving
        cells = tuple(replace(cell, status="unknown") if cell.status == "fine" else cell for cell in found.cells)
        kind = "contradiction" if isinstance(error, ContradictionError) else "not proved"
        return replace(found, findings=(*others, Finding(kind, names, str(error))), cells=cells)
    pinned = tuple(_stored(finding) for finding in doubts if _pins(spec, finding))
    cells = tuple(replace(cell, status="fine") if cell.status == "no room" else cell for cell in found.cells)
    return replace(found, findings=(*others, *pinned), cells=cells)


def _targets(spec: Specification, y: Any) -> npt.NDArray[np.float64]:
    """Return targets (n, m); of a choice, scores that pick what the table says."""
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


def _pins(spec: Specification, finding: Finding) -> bool:
    """Whether rules pin a combination of several outputs, at all inputs where they apply."""
    rules = [rule for rule in spec.rules if rule.name in finding.rules]
    literals = list(_literals(rules))
    return not any(literal.inputs for literal in literals) and any(len(literal.outputs) > 1 for literal in literals)


def _literals(rules: Iterable[Rule]) -> Iterable[Any]:
    return (literal for rule in rules for clause in rule.requirement.clauses for literal in clause.literals)


def _stored(finding: Finding) -> Finding:
    names = ", ".join(repr(name) for name in finding.rules)
    return Finding(
        "one answer", finding.rules,
        f"{names} pin some combination of outputs to one value (a hidden equality): a stored answer serves there, "
        "whatever the model says. State a tolerance, such as abs(a - b) <= 0.01.",
    )  # fmt: skip
