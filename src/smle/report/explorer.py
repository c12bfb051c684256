"""Data for the slice explorer: the deployed program for a browser, or a grid of its answers.

A network is embedded as its float32 numbers (base64), its head as the kernel's list of operations, and both are
evaluated in the page in double arithmetic. Networks that would make the page large are evaluated here, on slices
through one input or two.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate, arrays_of
from smle.corrected import ServedModel
from smle.programs import Box, Perceptron
from smle.rules import Categorical, Choice, Clause, Label, Row, Specification
from smle_check.program import Gate, Op

__all__ = ["NUMBERS", "backbone_data", "described", "explorer_data", "operation"]

NUMBERS = 140_000  # float32 numbers that a page may hold: about 750 kB of base64
_LITERALS = 3_000  # literals and excluded pairs, over all rules
_OUTPUTS = 16  # outputs on a grid
_ONE, _TWO = 8, 4  # inputs with a grid along them, alone and in pairs
_POINTS, _SIDE = 61, 25


def explorer_data(model: ServedModel, *, medians: dict[str, float]) -> dict[str, Any] | None:
    """Return what the page needs to draw slices through a network behind a box, or without rules, as plain data.

    `medians`: where to start, by input column. None: there is no network, but an estimator without rules.
    """
    cells, front = model.cells, model.front
    if not isinstance(front, Perceptron):
        return None
    data = {
        **described(model.specification_, medians),
        "gated": [list(cells.rules[region]) for region in cells.gated],
        "ungated": [
            {"rows": [_row(cells.rows[row]) for row in rows], "rules": list(cells.rules[region])}
            for region, rows in enumerate(cells.regions)
            if region not in cells.gated
        ],
    }
    proof = model.proof
    numbers = sum(value.size for value in arrays_of(front.tensors if proof is None else proof.tensors).values())
    if numbers > NUMBERS:
        return {**data, "grid": {"reason": "the network is too large to embed", **_grid(model, data)}}
    box = {} if proof is None or not isinstance(model.head, Box) else {"box": _box(model.head, proof)}
    return {**data, "network": backbone_data(front), **box}


def described(spec: Specification, medians: dict[str, float]) -> dict[str, Any]:
    """Return inputs, outputs and rules as plain data."""
    return {
        "inputs": _inputs(spec, medians),
        "outputs": _outputs(spec),
        "choices": _choices(spec),
        "rules": _rules(spec),
    }


def _inputs(spec: Specification, medians: dict[str, float]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    column = 0
    for item in spec.inputs:
        if isinstance(item, Categorical):
            columns = list(range(column, column + len(item.categories)))
            shares = [medians.get(f"{item.name}={category}", 0.0) for category in item.categories]
            start = int(np.argmax(shares))
            facts: dict[str, Any] = {
                "kind": "category",
                "columns": columns,
                "categories": list(item.categories),
                "start": start,
            }
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


def _outputs(spec: Specification) -> list[dict[str, str]]:
    kinds: list[str] = []
    for output in spec.outputs:
        if isinstance(output, Choice):
            kinds.extend(["score"] * len(output.options))
        else:
            kinds.append("label" if isinstance(output, Label) else "number")
    return [{"name": name, "kind": kind} for name, kind in zip(spec.targets, kinds, strict=True)]


def _choices(spec: Specification) -> list[dict[str, Any]]:
    result, column = [], 0
    for output in spec.outputs:
        width = len(output.options) if isinstance(output, Choice) else 1
        if isinstance(output, Choice):
            columns = list(range(column, column + width))
            result.append(
                {"name": output.name, "pick": output.pick, "columns": columns, "options": list(output.options)}
            )
        column += width
    return result


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


def backbone_data(network: Perceptron) -> dict[str, Any]:
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
        "ops": [operation(op) for op in head.ops],
        "tensors": {n: _pack(v) if v.dtype == np.float32 else v.tolist() for n, v in tensors.items()},
    }


def operation(op: Op) -> dict[str, Any]:
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


def _grid(model: ServedModel, data: dict[str, Any]) -> dict[str, Any]:
    """Return answers along single inputs and pairs of them; all other inputs stay at their start."""
    inputs = data["inputs"]
    width = sum(len(item["columns"]) for item in inputs)
    start = np.zeros(width)
    for item in inputs:
        _place(start, item, item["start"])
    slices = []
    for i in range(min(_ONE, len(inputs))):
        slices.append(([i], [_ticks(inputs[i], _POINTS)]))
    for i in range(min(_TWO, len(inputs))):
        for j in range(i):
            slices.append(([j, i], [_ticks(inputs[j], _SIDE), _ticks(inputs[i], _SIDE)]))
    return {"slices": [_slice(model, inputs, start, axes, ticks) for axes, ticks in slices], "outputs": _OUTPUTS}


def _ticks(item: dict[str, Any], count: int) -> list[float]:
    if item["kind"] == "category":
        return [float(i) for i in range(len(item["categories"]))]
    ticks = np.linspace(item["low"], item["high"], count)
    return [float(v) for v in np.unique(np.rint(ticks) if item["integer"] else ticks)]


def _place(x: npt.NDArray[Any], item: dict[str, Any], value: float) -> None:
    if item["kind"] == "category":
        x[item["columns"]] = 0.0
        x[item["columns"][int(value)]] = 1.0
    else:
        x[item["columns"][0]] = value


def _slice(
    model: ServedModel, inputs: list[dict[str, Any]], start: npt.NDArray[Any], axes: list[int], ticks: list[list[float]]
) -> dict[str, Any]:
    points = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1).reshape(-1, len(axes))
    X = np.tile(start, (len(points), 1))
    for row, point in zip(X, points, strict=True):
        for axis, value in zip(axes, point, strict=True):
            _place(row, inputs[axis], value)
    y, bits = model.explained(X, X).served[:, :_OUTPUTS], np.zeros((len(X), 0), dtype=np.int64)
    if isinstance(model.head, Box) and model.cells.gated:
        bits = model.head.bits_of(X).astype(np.int64)
    return {"axes": axes, "ticks": ticks, "y": _pack(y), "active": bits.tolist()}
