"""Data for the explorer of a head of rules: the kernel's list of operations and its numbers, for a browser.

What the model answers is entered by the reader, or computed in the page if the model is a multi-layer perceptron.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.programs import Perceptron
from smle.report.explorer import NUMBERS, backbone_data, described, operation
from smle.rules import Specification
from smle_check.heads.candidates import checked_of
from smle_check.heads.clips import limits_of
from smle_check.program import clip_list

__all__ = ["head_explorer_data"]


def head_explorer_data(
    certificate: Certificate, spec: Specification, front: object, *, medians: dict[str, float]
) -> dict[str, Any] | None:
    """Return what the page needs, as plain data; None where it would be too large.

    What is in front is embedded if it is a network and not too large; else readers enter what it answers.
    """
    document = certificate.document
    exact = smle_check.Specification(document["specification"], certificate.block)
    regions = document["gate"]["regions"]
    arrays = arrays_of(certificate.tensors)
    ops = clip_list(exact, limits_of(exact), regions)
    named = {name.replace("_F", "_float64") for op in ops for name in op.args if name is not None}
    named |= {"safe.slope", "safe.offset"}
    tensors = {name: arrays[name] for name in sorted(named) if name in arrays}
    pairs = sum(len(rule.exclusions) for rule in exact.rules)
    size = sum(values.size for values in tensors.values()) + 2 * pairs
    size += arrays["check.outputs"].size if "check.outputs" in arrays else 0
    if size > NUMBERS:
        return None
    place = {region: i for i, region in enumerate(regions)}
    head = {
        "ops": [operation(op) for op in ops],
        "tensors": {name: values.tolist() for name, values in tensors.items()},
        "where": [[place[region] for region in rule.regions] for rule in exact.rules],
        "place": place,
        "check": _check(exact, arrays) if "check.range" in arrays else None,
        "tree": document["program"].get("tree"),
    }
    start = [float(f"{value:.6g}") for value in arrays["clips.default"].tolist()]
    data = {**described(spec, medians), "head": head, "answers": start}
    if isinstance(front, Perceptron) and size + sum(v.size for v in arrays_of(front.tensors).values()) <= NUMBERS:
        data["network"] = backbone_data(front)
    return data


def _check(spec: smle_check.Specification, arrays: dict[str, Any]) -> dict[str, Any]:
    checked = checked_of(spec)
    outputs, inputs, thresholds = (arrays[f"check.{name}"] for name in ("outputs", "inputs", "thresholds"))

    def terms(row: Any, places: Iterable[int]) -> list[list[float]]:
        return [[int(k), float(row[k])] for k in places]

    return {
        "literals": [
            {
                "y": terms(outputs[k], read),  # their ranges are asked also where a coefficient is stored as 0
                "x": terms(inputs[k], np.flatnonzero(inputs[k])) if k < checked.moving else [],
                "threshold": float(thresholds[k]),
            }
            for k, read in enumerate(checked.reads)
        ],
        "clauses": [[clause.rule, list(clause.literals)] for clause in checked.clauses],
        "excluded": [[rule, [list(pair) for pair in spec.rules[rule].exclusions]] for rule in checked.excluding],
        "range": arrays["check.range"].tolist(),
        "scale": arrays["check.scale"].tolist(),
    }
