"""Exports for outside verifiers: one cell of a model as Gemm and Relu alone, with its VNN-LIB property.

clip(z, l, u) = l + relu((u - l) - relu(u - z)), which holds for all real z, and gives l where l > u, as the deployed
clip does. Folded into the layers before and behind it:

    t = relu(u - W2 a - b2),    s = relu(-t + u - l),    y = W3 s + W3 l + b3

Where bounds or heads read x, it is carried along as relu(x - low) = x - low. Exports are in real arithmetic what the
deployed program is; they are never deployed, because in floats they leave the box by a hair.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import block_diag

from smle.certificates.agreement import cells_of
from smle.errors import NotCertifiedError
from smle.extras import require
from smle.graphs.backbone import layers_of
from smle.regions.cells import Cells
from smle.rules import Clause, Literal, Literals, Polytope, Row, Rule, Specification
from studies.harness import Array
from tests.support.sampling import half_spaces
from tests.support.vnnlib import write_vnnlib

if TYPE_CHECKING:
    from smle.storage import ModelRecord


def write_cell(record: ModelRecord, cell: int, path: str | PathLike[str], *, plain: bool = False) -> None:
    """Write the export of one cell's head to `path` (ONNX) and its property beside it, with the suffix .vnnlib.

    The ONNX model has one input `x` (1, d) and one output `y` (1, m). A verifier should find the property
    unsatisfiable: no input of the cell's region makes the export break a rule that is on there.

    `plain`: the property is in the simplest VNN-LIB, ranges of inputs and outputs compared with zero; many verifiers
    read nothing else. The last layer computes g.y + s.x - h for every literal of the cell's rules and q.x - t for every
    half-space of its regions, so that

        a rule can be broken  =>  for some clause all literals are >= 0 while all half-spaces are <= 0

    (and the other way round, but for equality).

    Raises:
        NotCertifiedError: If the model has no certificate, or nothing is certified in this cell.
        RuleError: If an input is categorical or integer (VNN-LIB has real inputs only).
        ValueError: If there is no such cell.
    """
    spec, cells = _certified(record)
    count = len(cells)
    if not 0 <= cell < count:
        raise ValueError(f"Expected a cell in 0 .. {count - 1}. Got {cell}.")
    if cell == count - cells.free_cell:
        raise NotCertifiedError(f"Cell {cell} is free: no rule is on there. Expected one of 0 .. {count - 2}.")
    required = cell_specification(spec, cells, cell)
    stated = write_vnnlib(required)  # refuses categorical and integer inputs
    layers = head_layers(record.weights, cell, carry=plain)
    if plain:
        layers, stated = _compared_with_zero(required, layers, record.weights["domain.lower_float32"])
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(_model(layers).SerializeToString(deterministic=True))
    place.with_suffix(".vnnlib").write_text(stated, encoding="utf-8")


def _compared_with_zero(
    required: Specification, layers: list[tuple[Array, Array]], low: Array
) -> tuple[list[tuple[Array, Array]], str]:
    """Return layers that end with literals and half-spaces, behind layers that carry x - low, and their property."""
    clauses = _clauses(required)
    literals = list(dict.fromkeys(x for _, clause in clauses for x in clause.literals))
    rows = list(dict.fromkeys(row for region, _ in clauses for row in region.rows))
    *before, (M, c) = layers
    stated = Literals.of_clauses([Clause((literal,)) for literal in literals], len(c), len(low))
    Q, t = half_spaces(rows, len(low))
    G, S = np.vstack([stated.g, np.zeros((len(rows), len(c)))]), np.vstack([stated.s, Q])
    carried = np.hstack([np.zeros((len(S), M.shape[1] - len(low))), S])
    last = G @ M + carried, G @ c + S @ low.astype(np.float64) - np.concatenate([stated.h, t])
    return [*before, last], _plain_property(required, literals, rows)


def _clauses(spec: Specification) -> list[tuple[Polytope, Clause]]:
    return [
        (region, clause) for rule in spec.rules for region in rule.regions for clause in rule.requirement.expanded()
    ]


def _plain_property(spec: Specification, literals: list[Literal], rows: list[Row]) -> str:
    number = {item: i for i, item in enumerate((*literals, *rows))}
    lines = [f"(declare-const X_{i} Real) ; {name}" for i, name in enumerate(spec.columns)]
    lines += [f"(declare-const Y_{i} Real)" for i in range(len(number))]
    for i, ends in enumerate(zip(spec.lower, spec.upper, strict=True)):
        lines += [f"(assert ({sign} X_{i} {float(end)!r}))" for sign, end in zip((">=", "<="), ends, strict=True)]
    cases = []
    for region, clause in _clauses(spec):
        atoms = [f"(>= Y_{number[literal]} 0.0)" for literal in clause.literals]
        atoms += [f"(<= Y_{number[row]} 0.0)" for row in region.rows]
        cases.append(f"    (and {' '.join(atoms)})")
    return "\n".join([*lines, "(assert (or", *cases, "))"]) + "\n"


def write_cells(record: ModelRecord, folder: str | PathLike[str], *, plain: bool = False) -> list[Path]:
    """Write `cell_0.onnx`, `cell_0.vnnlib`, ... for all certified cells; return the ONNX files."""
    cells = _certified(record)[1]
    places = [Path(folder) / f"cell_{c}.onnx" for c in range(len(cells) - cells.free_cell)]
    for c, place in enumerate(places):
        write_cell(record, c, place, plain=plain)
    return places


def cell_specification(spec: Specification, cells: Cells, cell: int) -> Specification:
    """Return what is required in one cell: the rules that are on, over the polytope of the cell's regions."""
    active = cells[cell]
    shared = {row for region in active for row in cells.regions[region]}
    regions: dict[int, list[Polytope]] = {}
    for region, rows in enumerate(cells.regions):
        if region in active or region not in cells.gated:
            polytope = Polytope(tuple(cells.rows[r] for r in sorted(shared | set(rows))))
            for index in cells.rules[region]:
                known = regions.setdefault(index, [])
                if polytope not in known:
                    known.append(polytope)
    rules = []
    for index, polytopes in sorted(regions.items()):
        rule = spec.rules[index]
        rules.append(Rule(rule.name, tuple(polytopes), rule.requirement, rule.when, rule.then))
    return replace(spec, rules=tuple(rules))


def head_layers(weights: dict[str, Array], cell: int, *, carry: bool = False) -> list[tuple[Array, Array]]:
    """Return dense layers (weight, bias), relu between them, that compute what the head of a cell outputs.

    `carry`: the last layer sees x - low behind its other inputs, whether the head needs it or not.
    """
    layers = layers_of(weights)
    w = {name: value.astype(np.float64) for name, value in weights.items() if not name.startswith("backbone.")}
    l0, u0 = w["bounds.lower"], w["bounds.upper"]
    d, low = len(w["domain.lower_float32"]), w["domain.lower_float32"]
    W, b = w["heads.weight"][cell], w["heads.bias"][cell]
    V = w["heads.passthrough"][cell] if "heads.passthrough" in w else np.zeros((len(b), d))
    l1, u1 = (w.get(f"bounds.{side}_slope", np.zeros((len(l0), d))) for side in ("lower", "upper"))
    *hidden, (W2, b2) = layers
    if not (carry or V.any() or l1.any() or u1.any()):
        return [*hidden, (-W2, u0 - b2), (-np.eye(len(l0)), u0 - l0), (W, W @ l0 + b)]
    # Carry x' = x - low >= 0 behind the units of every layer; the first layer sees x in both places.
    eye, none = np.eye(d), np.zeros(d)
    result = [(block_diag(weight, eye), np.concatenate([bias, none])) for weight, bias in hidden]
    for units, ends, before in ((-W2, u1, u0 - b2), (-np.eye(len(l0)), u1 - l1, u0 - l0)):
        weight = np.block([[units, ends], [np.zeros((d, units.shape[1])), eye]])
        result.append((weight, np.concatenate([before + ends @ low, none])))
    first, bias = result[0]
    result[0] = first @ np.vstack([eye, eye]), bias - first[:, -d:] @ low
    slope = W @ l1 + V
    return [*result, (np.hstack([W, slope]), W @ l0 + b + slope @ low)]


def _certified(record: ModelRecord) -> tuple[Specification, Cells]:
    if record.certificate is None:
        raise NotCertifiedError("This model has no certificate. Expected a certified model to export.")
    spec = record.specification
    return spec, cells_of(record.certificate, spec)


def _model(layers: list[tuple[Array, Array]]) -> Any:
    onnx = require("onnx", "ONNX export")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes, initializers, source = [], [], "x"
    for i, (W, b) in enumerate(layers):
        last = i == len(layers) - 1
        output = "y" if last else f"affine_{i}"
        for name, value in ((f"weight_{i}", W), (f"bias_{i}", b)):
            initializers.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value, dtype=np.float32), name))
        nodes.append(helper.make_node("Gemm", [source, f"weight_{i}", f"bias_{i}"], [output], transB=1))
        if not last:
            source = f"relu_{i}"
            nodes.append(helper.make_node("Relu", [output], [source]))
    d, m = layers[0][0].shape[1], layers[-1][0].shape[0]
    graph = helper.make_graph(
        nodes,
        "cell",
        [helper.make_tensor_value_info("x", kind, [1, d])],
        [helper.make_tensor_value_info("y", kind, [1, m])],
        initializers,
    )
    # Verifiers read older operator sets; Gemm and Relu are the same in all of them.
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=7, producer_name="smle")
    onnx.checker.check_model(model)
    return model
