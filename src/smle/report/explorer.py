"""Data for the explorer: the deployed head as the kernel's list of operations, with its numbers, for a browser.

A network is embedded as its float32 numbers (base64). Behind other models, and behind networks that would make the
page large, readers of a head of rules enter what the model answers; a box then has no explorer.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.corrected import ServedModel
from smle.programs import Box, Perceptron
from smle.rules import Categorical, Choice, Clause, Label, Row, Specification
from smle_check.heads.candidates import checked_of
from smle_check.heads.clips import limits_of
from smle_check.program import Gate, Op, clip_list

__all__ = ["NUMBERS", "explorer_data", "rules_head"]

NUMBERS = 140_000  # float32 numbers that a page may hold: about 750 kB of base64
_LITERALS = 3_000  # literals and excluded pairs, over all rules


def explorer_data(model: ServedModel, *, medians: dict[str, float]) -> dict[str, Any] | None:
    """Return what the page needs to draw slices, as plain data; None where it would be too large.

    `medians`: where to start, by input column.
    """
    proof, spec = model.proof, model.specification_
    network = model.front if isinstance(model.front, Perceptron) else None
    size = 0 if network is None else sum(values.size for values in arrays_of(network.tensors).values())
    data = _described(spec, medians)
    if proof is not None and not isinstance(model.head, Box):
        head, numbers = rules_head(proof)
        if numbers > NUMBERS:
            return None
        start = [float(f"{value:.6g}") for value in arrays_of(proof.tensors)["clips.default"].tolist()]
        data |= {"head": head, "answers": start}
        return data if network is None or size + numbers > NUMBERS else {**data, "network": _network(network)}
    if network is None or size + (0 if proof is None else _size(proof)) > NUMBERS:
        return None
    cells = model.cells
    regions = [
        {"rows": [_row(cells.rows[row]) for row in rows], "rules": list(cells.rules[region])}
        for region, rows in enumerate(cells.regions)
        if region not in cells.gated
    ]
    data |= {"network": _network(network), "gated": [list(cells.rules[region]) for region in cells.gated]}
    box = {} if proof is None or not isinstance(model.head, Box) else {"box": _box(model.head, proof)}
    return {**data, "ungated": regions, **box}


def _size(certificate: Certificate) -> int:
    return sum(values.size for values in arrays_of(certificate.tensors).values())


def rules_head(certificate: Certificate) -> tuple[dict[str, Any], int]:
    """Return a head of rules as plain data, and how many numbers that are."""
    document = certificate.document
    exact = smle_check.Specification(document["specification"], certificate.block)
    regions = document["gate"]["regions"]
    arrays = arrays_of(certificate.tensors)
    ops = clip_list(exact, limits_of(exact), regions)
    named = {name.replace("_F", "_float64") for op in ops for name in op.args if name is not None}
    named |= {"safe.slope", "safe.offset"}
    tensors = {name: arrays[name] for name in sorted(named) if name in arrays}
    size = sum(values.size for values in tensors.values()) + 2 * sum(len(rule.exclusions) for rule in exact.rules)
    size += arrays["check.outputs"].size if "check.outputs" in arrays else 0
    place = {region: i for i, region in enumerate(regions)}
    head = {
        "ops": [_operation(op) for op in ops],
        "tensors": {name: values.tolist() for name, values in tensors.items()},
        "where": [[place[region] for region in rule.regions] for rule in exact.rules],
        "place": place,
        "check": _check(exact, arrays) if "check.range" in arrays and size <= NUMBERS else None,
        "tree": document["program"].get("tree"),
    }
    return head, size


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


def _described(spec: Specification, medians: dict[str, float]) -> dict[str, Any]:
    """Return inputs, outputs and rules as plain data."""
    return {"inputs": _inputs(spec, medians), **_outputs(spec), "rules": _rules(spec)}


def _inputs(spec: Specification, medians: dict[str, float]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    column = 0
    for item in spec.inputs:
        if isinstance(item, Categorical):
            columns = list(range(column, column + len(item.categories)))
            shares = [medians.get(f"{item.name}={category}", 0.0) for category in item.categories]
            facts: dict[str, Any] = {"kind": "category", "columns": columns, "categories": list(item.categories)}
            facts["start"] = int(np.argmax(shares))
        else:
            low, high = float(item.lower), float(item.upper)
            start_at = min(max(medians.get(item.name, (low + high) / 2), low), high)
            start_at = float(round(start_at)) if item.integer else float(f"{start_at:.4g}")
            facts = {"kind": "number", "columns": [column], "low": low, "high": high, "integer": item.integer}
            facts |= {"dates": True} if item.dates else {}
            facts["start"] = min(max(start_at, low), high)
        result.append({"name": item.name, **facts})
        column += len(facts["columns"])
    return result


def _outputs(spec: Specification) -> dict[str, Any]:
    """Return the output columns, and the choices with the columns of their options."""
    kinds: list[str] = []
    choices: list[dict[str, Any]] = []
    for output in spec.outputs:
        if isinstance(output, Choice):
            columns = list(range(len(kinds), len(kinds) + len(output.options)))
            choice = {"name": output.name, "pick": output.pick, "columns": columns, "options": list(output.options)}
            choices.append(choice)
            kinds += ["score"] * len(columns)
        else:
            kinds.append("label" if isinstance(output, Label) else "number")
    outputs = [{"name": name, "kind": kind} for name, kind in zip(spec.targets, kinds, strict=True)]
    return {"outputs": outputs, "choices": choices}


def _row(row: Row) -> dict[str, Any]:
    return {"x": [[k, float(v)] for k, v in row.coefficients], "bound": float(row.bound), "strict": row.strict}


def _rules(spec: Specification) -> list[dict[str, Any]]:
    """Return the clauses of the rules as floats; `complete` is False where there were too many to embed."""
    left, result = _LITERALS, []
    for rule in spec.rules:
        size = sum(len(clause.literals) for clause in rule.requirement.clauses) + len(rule.requirement.exclusions)
        complete = size <= left
        left -= size if complete else 0
        result.append(
            {
                "name": rule.name,
                "complete": complete,
                "clauses": [_clause(clause) for clause in rule.requirement.clauses] if complete else [],
                "exclusions": rule.requirement.exclusions.tolist() if complete else [],
            }
        )
    return result


def _clause(clause: Clause) -> list[dict[str, Any]]:
    return [
        {
            "y": [[j, float(v)] for j, v in literal.outputs],
            "x": [[k, float(v)] for k, v in literal.inputs],
            "bound": float(literal.bound),
            "strict": literal.strict,
        }
        for literal in clause.literals
    ]


def _pack(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Return an array as its shape and base64 of little-endian float32."""
    text = base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")
    return {"shape": list(values.shape), "data": text}


def _network(network: Perceptron) -> dict[str, Any]:
    """Return the numbers of a multi-layer perceptron."""
    shift, scale = network.scaling
    layers = [{"weight": _pack(weight), "bias": _pack(bias)} for weight, bias in network.layers]
    return {"shift": _pack(shift), "scale": _pack(scale), "layers": layers}


def _box(head: Box, certificate: Certificate) -> dict[str, Any]:
    """Return the operations of a box and its numbers, which are packed if they are float32."""
    arrays = arrays_of(certificate.tensors)
    names = {name.replace("_F", "_float64") for op in head.ops for name in op.args if name is not None}
    tensors = {name: arrays[name] for name in sorted(names | {"bounds.lower"}) if name in arrays}
    return {
        "ops": [_operation(op) for op in head.ops],
        "tensors": {n: _pack(v) if v.dtype == np.float32 else v.tolist() for n, v in tensors.items()},
    }


def _operation(op: Op) -> dict[str, Any]:
    """Return an operation for features in float64, as plain data."""
    fixed = op.fixed
    args = [None if name is None else name.replace("_F", "_float64") for name in op.args]
    if isinstance(fixed, Gate):
        plain: Any = {"comparisons": [list(c) for c in fixed.comparisons], "members": [list(m) for m in fixed.members]}
    elif fixed is None or isinstance(fixed, str):
        plain = fixed
    else:
        plain = {"bits": list(fixed.bits), "outputs": list(fixed.outputs)}
    return {"kind": op.kind, "out": op.out, "args": args, "fixed": plain}
