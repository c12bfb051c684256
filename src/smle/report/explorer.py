"""Data for the slice explorer: the deployed program for a browser, or a grid of its answers.

A multi-layer perceptron is embedded as its float32 numbers (base64) and evaluated in the page in double arithmetic.
Other backbones, and networks that would make the page large, are evaluated here on slices through one input.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.assurance import DeployedNetwork
from smle.guarantees import Cells
from smle.nn.backbones import MLP, Standardize
from smle.nn.head import DeployedHead
from smle.rules import Categorical, Choice, Clause, Label, Row, Specification

__all__ = ["NUMBERS", "backbone_data", "described", "explorer_data"]

NUMBERS = 140_000  # float32 numbers that a page may hold: about 750 kB of base64
_LITERALS = 3_000  # literals and excluded pairs, over all rules
_OUTPUTS = 16  # outputs on a grid
_ONE, _TWO = 8, 4  # inputs with a grid along them, alone and in pairs
_POINTS, _SIDE = 61, 25


def explorer_data(
    network: DeployedNetwork, spec: Specification, cells: Cells, *, medians: dict[str, float]
) -> dict[str, Any]:
    """Return what the page needs to draw slices, as plain data. `medians`: where to start, by input column."""
    data = {
        **described(spec, medians),
        "gated": [list(cells.rules[region]) for region in cells.gated],
        "ungated": [
            {"rows": [_row(cells.rows[row]) for row in rows], "rules": list(cells.rules[region])}
            for region, rows in enumerate(cells.regions)
            if region not in cells.gated
        ],
    }
    numbers = sum(value.numel() for value in network.state_dict().values())
    if not isinstance(network.backbone, MLP):
        reason = "the backbone is not a multi-layer perceptron"
    elif numbers > NUMBERS:
        reason = "the backbone is too large to embed"
    else:
        return {**data, "program": _program(network.backbone, network.head)}
    return {**data, "grid": {"reason": reason, **_grid(network, data)}}


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


def _pack(values: torch.Tensor | npt.NDArray[Any] | None) -> dict[str, Any] | None:
    """Return an array as its shape and base64 of little-endian float32."""
    if values is None:
        return None
    array = np.asarray(values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values)
    text = base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode("ascii")
    return {"shape": list(array.shape), "data": text}


def backbone_data(backbone: MLP) -> dict[str, Any]:
    """Return the numbers of a multi-layer perceptron."""
    standardize = backbone[0]
    assert isinstance(standardize, Standardize)
    layers = [module for module in backbone if isinstance(module, nn.Linear)]
    return {
        "shift": _pack(standardize.shift),
        "scale": _pack(standardize.scale),
        "layers": [{"weight": _pack(layer.weight), "bias": _pack(layer.bias)} for layer in layers],
    }


def _program(backbone: MLP, head: DeployedHead) -> dict[str, Any]:
    gate, bounds, heads, free = head.gate, head.bounds, head.heads, head.free
    return {
        **backbone_data(backbone),
        "domain": {"low": head.domain.lower_float64.tolist(), "high": head.domain.upper_float64.tolist()},
        "gate": {
            "columns": gate.columns.tolist(),
            "negative": gate.negative.tolist(),
            "strict": gate.strict.tolist(),
            "constants": gate.constants_float64.tolist(),
            "comparison_regions": gate.comparison_regions.tolist(),
            "coefficients": gate.coefficients.tolist(),
            "thresholds": gate.thresholds.tolist(),
            "oblique_regions": gate.oblique_regions.tolist(),
            "signatures": gate.signatures.tolist(),
            "most_constrained": gate.most_constrained,
        },
        "bounds": {
            **{name: _pack(value) for name, value in bounds.named_buffers(recurse=False)},
            "hidden": [{name: _pack(value) for name, value in layer.named_buffers()} for layer in bounds.hidden],
        },
        "heads": {name: _pack(getattr(heads, name)) for name in ("weight", "bias", "passthrough")},
        "free": None if free is None else {"weight": _pack(free.weight), "bias": _pack(free.bias)},
    }


def _grid(network: DeployedNetwork, data: dict[str, Any]) -> dict[str, Any]:
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
    return {"slices": [_slice(network, inputs, start, axes, ticks) for axes, ticks in slices], "outputs": _OUTPUTS}


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
    network: DeployedNetwork,
    inputs: list[dict[str, Any]],
    start: npt.NDArray[Any],
    axes: list[int],
    ticks: list[list[float]],
) -> dict[str, Any]:
    points = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1).reshape(-1, len(axes))
    X = np.tile(start, (len(points), 1))
    for row, point in zip(X, points, strict=True):
        for axis, value in zip(axes, point, strict=True):
            _place(row, inputs[axis], value)
    features = torch.tensor(X)
    with torch.inference_mode():
        y = network(features)[:, :_OUTPUTS]
        bits = network.head.gate.active(network.head.domain(features))
    return {"axes": axes, "ticks": ticks, "y": _pack(y), "active": bits.to(torch.uint8).tolist()}
