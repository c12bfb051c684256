"""Converts smle networks inside pipelines and wrappers, for skl2onnx. On their own they are stored as arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from smle.extras import require
from smle_check.onnx.graph import FLOAT, INT64, STRING

__all__ = ["register_networks"]

_WHAT = "Storing an estimator"


def register_networks() -> None:
    """Register `NetworkRegressor` and `NetworkClassifier` with skl2onnx, if loaded."""
    module = sys.modules.get("smle.estimators.networks")
    if module is None:
        return
    register = require("skl2onnx", _WHAT).update_registered_converter
    shapes = require("skl2onnx.common.shape_calculator", _WHAT)
    options = {"zipmap": [True, False, "columns"], "nocl": [True, False], "raw_scores": [True, False]}
    register(module.NetworkRegressor, "SmleNetworkRegressor", _shape, _regressor)
    shape = shapes.calculate_linear_classifier_output_shapes
    register(module.NetworkClassifier, "SmleNetworkClassifier", shape, _classifier, options=options)


def _shape(operator: Any) -> None:
    kind = require("skl2onnx.common.data_types", _WHAT).FloatTensorType
    operator.outputs[0].type = kind([None, operator.raw_operator.network_.widths[-1]])


def _regressor(scope: Any, operator: Any, container: Any) -> None:
    container.add_node("Identity", _answers(scope, operator, container), operator.outputs[0].full_name)


def _classifier(scope: Any, operator: Any, container: Any) -> None:
    task = operator.raw_operator.task_
    if not hasattr(task, "order"):
        raise ValueError("a network of several labels is stored by itself, not inside of another estimator")
    label, chances = (output.full_name for output in operator.outputs)
    scores, place = (scope.get_unique_variable_name(name) for name in ("scores", "place"))
    order = _constant(scope, container, task.order.astype(np.int64))
    signed = scope.get_unique_variable_name("signed")
    sign = _constant(scope, container, np.array([task.sign], dtype=np.float32))
    container.add_node("Gather", [_answers(scope, operator, container), order], scores, axis=1)
    container.add_node("Mul", [scores, sign], signed)
    container.add_node("Softmax", signed, chances, axis=1, op_version=13)
    container.add_node("ArgMax", signed, place, axis=1, keepdims=0, op_version=13)
    classes = np.asarray(task.classes)
    numbers = classes.dtype.kind in "iub"
    known = _constant(scope, container, classes.astype(np.int64) if numbers else classes.astype(str).astype(object))
    container.add_node("Gather", [known, place], label, axis=0)


def _answers(scope: Any, operator: Any, container: Any) -> str:
    """Write the layers; return the name of their answer (N, m)."""
    network = operator.raw_operator.network_
    further = network.further
    if network.inputs or further is None or further.texts or len(operator.inputs) != 1:
        raise ValueError("a network inside of another estimator reads one matrix of numbers")
    fresh = scope.get_unique_variable_name
    source, usual = fresh("numbers"), np.array(list(further.numbers.values()), dtype=np.float32)
    container.add_node("Cast", operator.inputs[0].full_name, source, to=FLOAT)
    missing, filled = fresh("missing"), fresh("filled")
    container.add_node("IsNaN", source, missing)
    container.add_node("Where", [missing, _constant(scope, container, usual), source], filled)
    if further.flagged:
        flags, wide = fresh("flags"), fresh("wide")
        places = [list(further.numbers).index(name) for name in further.flagged]
        container.add_node("Cast", missing, f"{flags}_all", to=FLOAT)
        container.add_node("Gather", [f"{flags}_all", _constant(scope, container, np.array(places))], flags, axis=1)
        container.add_node("Concat", [filled, flags], wide, axis=1)
        filled = wide
    shift, scale = (_constant(scope, container, part) for part in network.scaling)
    moved, value = fresh("moved"), fresh("scaled")
    container.add_node("Sub", [filled, shift], moved)
    container.add_node("Div", [moved, scale], value)
    for i, (weight, bias) in enumerate(network.layers):
        if i:
            relu = fresh("relu")
            container.add_node("Relu", value, relu)
            value = relu
        layer = fresh("layer")
        parts = [_constant(scope, container, np.ascontiguousarray(part)) for part in (weight, bias)]
        container.add_node("Gemm", [value, *parts], layer, transB=1)
        value = layer
    return str(value)


def _constant(scope: Any, container: Any, values: Any) -> str:
    name: str = scope.get_unique_variable_name("constant")
    kinds = {"f": FLOAT, "i": INT64, "O": STRING}
    flat = [text.encode() for text in values] if values.dtype == object else values.ravel()
    container.add_initializer(name, kinds[values.dtype.kind], list(values.shape), flat)
    return name
