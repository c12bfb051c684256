"""`smle.diagnose`: check rules before training, and whether a head of rules can be proved."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.advice.diagnosis import Diagnosis, Finding
from smle.advice.examine import diagnose_arrays
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.table import certify_head
from smle.rules import Choice, Specification
from smle.tables import encode_choices, encode_inputs, encode_numbers

__all__ = ["diagnose"]


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
