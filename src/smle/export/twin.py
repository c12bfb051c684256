"""Verification twins: one cell of a model as Gemm and Relu alone, with its VNN-LIB property, for outside verifiers.

clip(z, l, u) = u - relu((u - l) - relu(z - l)), which holds for all real z, and gives u where l > u, as the deployed
clip does. Folded into the layers before and behind it:

    t = relu(W2 a + b2 - l),    s = relu(-t + u - l),    y = -W3 s + W3 u + b3

Where bounds or heads read x, it is carried along as relu(x - low) = x - low. Twins are in real arithmetic what the
deployed program is; they are never deployed, because in floats they leave the box by a hair.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.assurance import arrangement_of
from smle.errors import NotCertifiedError
from smle.export.backbone import layers_of
from smle.export.door import require_onnx
from smle.guarantees.arrangement import Arrangement
from smle.rules import Polytope, Rule, Specification

if TYPE_CHECKING:
    from smle.storage import ModelRecord

__all__ = ["cell_specification", "twin_layers", "write_twin", "write_twins"]

Array = npt.NDArray[np.float64]


def write_twin(record: ModelRecord, cell: int, path: str | PathLike[str]) -> None:
    """Write the twin of one cell's head to `path` (ONNX) and its property beside it, with the suffix .vnnlib.

    The ONNX model has one input `x` (1, d) and one output `y` (1, m). A verifier should find the property
    unsatisfiable: no input of the cell's region makes the twin break a rule that is on there.

    Raises:
        NotCertifiedError: If the model has no certificate, or nothing is certified in this cell.
        RuleError: If an input is categorical or integer (VNN-LIB has real inputs only).
        ValueError: If there is no such cell.
    """
    spec, arrangement = _certified(record)
    count = len(arrangement.cells)
    if not 0 <= cell < count:
        raise ValueError(f"Expected a cell in 0 .. {count - 1}. Got {cell}.")
    if cell == count - arrangement.free_cell:
        raise NotCertifiedError(f"Cell {cell} is free: no rule is on there. Expected one of 0 .. {count - 2}.")
    property_text = cell_specification(spec, arrangement, cell).to_vnnlib()
    model = _model(twin_layers(record.weights, cell))
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(model.SerializeToString(deterministic=True))
    place.with_suffix(".vnnlib").write_text(property_text, encoding="utf-8")


def write_twins(record: ModelRecord, folder: str | PathLike[str]) -> list[Path]:
    """Write `cell_0.onnx`, `cell_0.vnnlib`, ... for all certified cells; return the ONNX files."""
    arrangement = _certified(record)[1]
    places = [Path(folder) / f"cell_{c}.onnx" for c in range(len(arrangement.cells) - arrangement.free_cell)]
    for c, place in enumerate(places):
        write_twin(record, c, place)
    return places


def cell_specification(spec: Specification, arrangement: Arrangement, cell: int) -> Specification:
    """Return what is required in one cell: the rules that are on, over the polytope of the cell's regions."""
    active = arrangement.cells[cell]
    shared = {row for region in active for row in arrangement.regions[region]}
    regions: dict[int, list[Polytope]] = {}
    for region, rows in enumerate(arrangement.regions):
        if region in active or region not in arrangement.gated:
            polytope = Polytope(tuple(arrangement.rows[r] for r in sorted(shared | set(rows))))
            for index in arrangement.rules[region]:
                known = regions.setdefault(index, [])
                if polytope not in known:
                    known.append(polytope)
    rules = []
    for index, polytopes in sorted(regions.items()):
        rule = spec.rules[index]
        rules.append(Rule(rule.name, tuple(polytopes), rule.requirement, rule.when, rule.then))
    return replace(spec, rules=tuple(rules))


def twin_layers(weights: dict[str, npt.NDArray[Any]], cell: int) -> list[tuple[Array, Array]]:
    """Return dense layers (weight, bias), relu between them, that compute what the head of a cell outputs."""
    layers = layers_of(weights)
    w = {name: value.astype(np.float64) for name, value in weights.items() if not name.startswith("backbone.")}
    l0, u0 = w["bounds.lower"], w["bounds.upper"]
    d, low = len(w["domain.lower_float32"]), w["domain.lower_float32"]
    W, b = w["heads.weight"][cell], w["heads.bias"][cell]
    V = w["heads.passthrough"][cell] if "heads.passthrough" in w else np.zeros((len(b), d))
    l1, u1 = (w.get(f"bounds.{side}_slope", np.zeros((len(l0), d))) for side in ("lower", "upper"))
    *hidden, (W2, b2) = layers
    if not (V.any() or l1.any() or u1.any()):
        return [*hidden, (W2, b2 - l0), (-np.eye(len(l0)), u0 - l0), (-W, W @ u0 + b)]
    # Carry x' = x - low >= 0 behind the units of every layer.
    eye = np.eye(d)
    result: list[tuple[Array, Array]] = []
    for i, (weight, bias) in enumerate(hidden):
        before = np.vstack([weight, eye]) if i == 0 else _beside(weight, eye)
        result.append((before, np.concatenate([bias, -low if i == 0 else np.zeros(d)])))
    if hidden:
        first = np.vstack([np.hstack([W2, -l1]), np.hstack([np.zeros((d, W2.shape[1])), eye])])
        result.append((first, np.concatenate([b2 - l0 - l1 @ low, np.zeros(d)])))
    else:
        result.append((np.vstack([W2 - l1, eye]), np.concatenate([b2 - l0, -low])))
    width = u1 - l1
    second = np.vstack([np.hstack([-np.eye(len(l0)), width]), np.hstack([np.zeros((d, len(l0))), eye])])
    result.append((second, np.concatenate([u0 - l0 + width @ low, np.zeros(d)])))
    slope = W @ u1 + V
    result.append((np.hstack([-W, slope]), W @ u0 + b + slope @ low))
    return result


def _beside(first: Array, second: Array) -> Array:
    """Return the block-diagonal matrix."""
    result = np.zeros((first.shape[0] + second.shape[0], first.shape[1] + second.shape[1]))
    result[: first.shape[0], : first.shape[1]] = first
    result[first.shape[0] :, first.shape[1] :] = second
    return result


def _certified(record: ModelRecord) -> tuple[Specification, Arrangement]:
    if record.certificate is None:
        raise NotCertifiedError("This model has no certificate. Expected a certified model to make twins of.")
    spec = Specification.from_yaml((record.rules or "") + "\n")
    return spec, arrangement_of(record.certificate, spec)


def _model(layers: list[tuple[Array, Array]]) -> Any:
    onnx = require_onnx()
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
        "twin",
        [helper.make_tensor_value_info("x", kind, [1, d])],
        [helper.make_tensor_value_info("y", kind, [1, m])],
        initializers,
    )
    # Verifiers read older operator sets; Gemm and Relu are the same in all of them.
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=7, producer_name="smle")
    onnx.checker.check_model(model)
    return model
