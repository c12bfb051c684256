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
import numpy.typing as npt

from smle.certificates.agreement import cells_of
from smle.errors import NotCertifiedError
from smle.extras import require
from smle.graphs.backbone import layers_of
from smle.regions.cells import Cells
from smle.rules import Clause, Literal, Polytope, Row, Rule, Specification
from tests.support.vnnlib import write_vnnlib

if TYPE_CHECKING:
    from smle.storage import ModelRecord

Array = npt.NDArray[np.float64]


def write_cell(record: ModelRecord, cell: int, path: str | PathLike[str]) -> None:
    """Write the export of one cell's head to `path` (ONNX) and its property beside it, with the suffix .vnnlib.

    The ONNX model has one input `x` (1, d) and one output `y` (1, m). A verifier should find the property
    unsatisfiable: no input of the cell's region makes the export break a rule that is on there.

    Raises:
        NotCertifiedError: If the model has no certificate, or nothing is certified in this cell.
        RuleError: If an input is categorical or integer (VNN-LIB has real inputs only).
        ValueError: If there is no such cell.
    """
    required = _required(record, cell)
    _write(head_layers(record.weights, cell), write_vnnlib(required), Path(path))


def write_plain_cell(record: ModelRecord, cell: int, path: str | PathLike[str]) -> None:
    """Write a export whose property is in the simplest VNN-LIB: ranges of inputs, and outputs compared with zero.

    Many verifiers read nothing else. The last layer computes g.y + s.x - h for every literal of the cell's rules and
    q.x - t for every half-space of its regions, so that

        a rule can be broken  =>  for some clause all literals are >= 0 while all half-spaces are <= 0

    (and the other way round, but for equality). Arguments and errors are those of `write_cell`.
    """
    required = _required(record, cell)
    literals = list(dict.fromkeys(x for _, clause in _clauses(required) for x in clause.literals))
    rows = list(dict.fromkeys(row for region, _ in _clauses(required) for row in region.rows))
    low = record.weights["domain.lower_float32"].astype(np.float64)
    *layers, (M, c) = head_layers(record.weights, cell, carry=True)
    G, S = np.zeros((len(literals) + len(rows), len(c))), np.zeros((len(literals) + len(rows), len(low)))
    h = np.array([float(b) for b in (*(literal.bound for literal in literals), *(row.bound for row in rows))])
    for i, literal in enumerate(literals):
        for form, matrix in ((literal.outputs, G), (literal.inputs, S)):
            for column, value in form:
                matrix[i, column] = float(value)
    for i, row in enumerate(rows, start=len(literals)):
        for column, value in row.coefficients:
            S[i, column] = float(value)
    carried = np.hstack([np.zeros((len(S), M.shape[1] - len(low))), S])
    layers.append((G @ M + carried, G @ c + S @ low - h))
    _write(layers, _plain_property(required, literals, rows), Path(path))


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


def _required(record: ModelRecord, cell: int) -> Specification:
    """Return what is required in a cell that has a certified head and can be written in VNN-LIB."""
    spec, cells = _certified(record)
    count = len(cells)
    if not 0 <= cell < count:
        raise ValueError(f"Expected a cell in 0 .. {count - 1}. Got {cell}.")
    if cell == count - cells.free_cell:
        raise NotCertifiedError(f"Cell {cell} is free: no rule is on there. Expected one of 0 .. {count - 2}.")
    required = cell_specification(spec, cells, cell)
    write_vnnlib(required)  # refuses categorical and integer inputs
    return required


def _write(layers: list[tuple[Array, Array]], property_text: str, place: Path) -> None:
    model = _model(layers)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(model.SerializeToString(deterministic=True))
    place.with_suffix(".vnnlib").write_text(property_text, encoding="utf-8")


def write_cells(record: ModelRecord, folder: str | PathLike[str], *, plain: bool = False) -> list[Path]:
    """Write `cell_0.onnx`, `cell_0.vnnlib`, ... for all certified cells; return the ONNX files."""
    cells = _certified(record)[1]
    places = [Path(folder) / f"cell_{c}.onnx" for c in range(len(cells) - cells.free_cell)]
    for c, place in enumerate(places):
        (write_plain_cell if plain else write_cell)(record, c, place)
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


def head_layers(weights: dict[str, npt.NDArray[Any]], cell: int, *, carry: bool = False) -> list[tuple[Array, Array]]:
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
    # Carry x' = x - low >= 0 behind the units of every layer.
    eye = np.eye(d)
    result: list[tuple[Array, Array]] = []
    for i, (weight, bias) in enumerate(hidden):
        before = np.vstack([weight, eye]) if i == 0 else _beside(weight, eye)
        result.append((before, np.concatenate([bias, -low if i == 0 else np.zeros(d)])))
    if hidden:
        first = np.vstack([np.hstack([-W2, u1]), np.hstack([np.zeros((d, W2.shape[1])), eye])])
        result.append((first, np.concatenate([u0 - b2 + u1 @ low, np.zeros(d)])))
    else:
        result.append((np.vstack([u1 - W2, eye]), np.concatenate([u0 - b2, -low])))
    width = u1 - l1
    second = np.vstack([np.hstack([-np.eye(len(l0)), width]), np.hstack([np.zeros((d, len(l0))), eye])])
    result.append((second, np.concatenate([u0 - l0 + width @ low, np.zeros(d)])))
    slope = W @ l1 + V
    result.append((np.hstack([W, slope]), W @ l0 + b + slope @ low))
    return result


def _beside(first: Array, second: Array) -> Array:
    """Return the block-diagonal matrix."""
    result = np.zeros((first.shape[0] + second.shape[0], first.shape[1] + second.shape[1]))
    result[: first.shape[0], : first.shape[1]] = first
    result[first.shape[0] :, first.shape[1] :] = second
    return result


def _certified(record: ModelRecord) -> tuple[Specification, Cells]:
    if record.certificate is None:
        raise NotCertifiedError("This model has no certificate. Expected a certified model to export.")
    spec = Specification.from_yaml((record.rules or "") + "\n")
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
