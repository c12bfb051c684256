"""Converters for skl2onnx: its own, mended (trees, graphs that compute in float64), and those of smle networks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.extras import require
from smle_check.onnx.graph import FLOAT, INT64, STRING

__all__ = ["mended_converters", "register_boosters", "register_networks", "unified"]

Converter = Callable[[Any, Any, Any], None]
_WHAT = "Storing an estimator"
_TREES = ("DecisionTree", "ExtraTree", "ExtraTrees", "GradientBoosting", "HistGradientBoosting", "RandomForest")
_KINDS = ("Regressor", "Classifier")
_FLOAT32_ONLY = {"SVMClassifier", "SVMRegressor"}
_ALIKE = {
    "Add", "Concat", "Div", "Equal", "Gemm", "Greater", "Less", "MatMul", "Max", "Min", "Mul", "Pow", "Sub", "Sum",
    "Where",
}  # fmt: skip


# --- trees


@cache
def mended_converters(*, double: bool) -> dict[type, Converter]:
    """Return mended converters by class for `convert_sklearn`, for float64 or float32 graphs."""
    import sklearn.ensemble
    import sklearn.tree
    from sklearn.impute import SimpleImputer

    known = require("skl2onnx._supported_operators", _WHAT).sklearn_operator_name_map
    registered = require("skl2onnx.common._registration", _WHAT).get_converter
    names = [tree + kind for tree in _TREES for kind in _KINDS]
    kinds = [getattr(room, name) for room in (sklearn.ensemble, sklearn.tree) for name in names if hasattr(room, name)]
    result = {kind: _mended(registered(known[kind]), _TreeContainer, double) for kind in kinds if kind in known}
    return result | {SimpleImputer: _mended(registered(known[SimpleImputer]), _ImputerContainer, double)}


def register_boosters(*, double: bool) -> None:
    """Register the models of LightGBM and XGBoost with skl2onnx, if loaded, so that pipelines may contain them."""
    options = {
        "Regressor": {"split": None},
        "Classifier": {"zipmap": [True, False, "columns"], "nocl": [True, False], "raw_scores": [True, False]},
    }
    for package, room, function, names in (
        ("lightgbm", "lightgbm.operator_converters.LightGbm", "convert_lightgbm", ("LGBM",)),
        ("xgboost", "xgboost.operator_converters.XGBoost", "convert_xgboost", ("XGB", "XGBRF")),
    ):
        module = sys.modules.get(package)
        if module is None:
            continue
        shapes = require("skl2onnx.common.shape_calculator", _WHAT)
        register = require("skl2onnx", _WHAT).update_registered_converter
        converters = require(f"onnxmltools.convert.{room}", f"Storing a model of {package}")
        convert = _mended(getattr(converters, function), _TreeContainer, double)
        for name in names:
            for kind in _KINDS:
                shape = getattr(shapes, f"calculate_linear_{kind.lower()}_output_shapes")
                register(getattr(module, name + kind), package + name + kind, shape, convert, options=options[kind])


def _mended(convert: Converter, kind: type[_Container], double: bool) -> Converter:
    def run(scope: Any, operator: Any, container: Any) -> None:
        convert(scope, operator, kind(scope, operator.raw_operator, container, double))

    return run


class _Container:
    """Receives the nodes of a converter and mends those that are wrong."""

    def __init__(self, scope: Any, model: Any, container: Any, double: bool) -> None:
        self._scope, self._model, self._container, self._double = scope, model, container, double

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def _fresh(self, name: str) -> str:
        fresh: str = self._scope.get_unique_variable_name(name)
        return fresh


class _ImputerContainer(_Container):
    """Replaces imputers of float64 graphs: the runtime's Imputer only knows float32."""

    def add_node(self, kind: str, inputs: Any, outputs: Any, **attributes: Any) -> Any:
        """Add a node, mended if needed."""
        if kind != "Imputer" or not self._double or not np.isnan(self._model.missing_values):
            return self._container.add_node(kind, inputs, outputs, **attributes)
        missing, values = self._fresh("missing"), self._fresh("imputed")
        statistics = self._model.statistics_.astype(np.float64)
        double = require("onnx", _WHAT).TensorProto.DOUBLE
        self._container.add_initializer(values, double, list(statistics.shape), statistics)
        self._container.add_node("IsNaN", inputs, missing)
        (source,) = [inputs] if isinstance(inputs, str) else inputs
        return self._container.add_node("Where", [missing, values, source], outputs)


class _TreeContainer(_Container):
    """Mends trees.

    The converters drop where scikit-learn's trees send missing values, and write booleans into integer attributes,
    which protobuf 7 refuses. They round thresholds to the nearest float32, so that rows change sides; rounded down, `x
    <= t` means the same for every float32 x. Trees that compute in float32 get float32 numbers, even in float64 graphs;
    others keep float64 thresholds there. XGBoost's trees for several outputs take turns.
    """

    def add_node(self, kind: str, inputs: Any, outputs: Any, **attributes: Any) -> Any:
        """Add a node, mended if needed."""
        if not kind.startswith("TreeEnsemble"):
            return self._container.add_node(kind, inputs, outputs, **attributes)
        if self._double:
            (source,) = [inputs] if isinstance(inputs, str) else inputs
            inputs, real = self._fresh("cast"), require("onnx", _WHAT).TensorProto
            self._container.add_node("Cast", source, inputs, to=real.DOUBLE if self._wide else real.FLOAT)
        if kind == "TreeEnsembleRegressor" and _is_logarithm(self._model):
            inside = self._fresh("logarithm")
            self._container.add_node(kind, inputs, inside, **self._tree(attributes))
            return self._container.add_node("Exp", inside, outputs)
        return self._container.add_node(kind, inputs, outputs, **self._tree(attributes))

    @property
    def _wide(self) -> bool:
        """Whether thresholds are compared with float64 numbers."""
        return self._double and type(self._model).__name__.startswith(("HistGradientBoosting", "LGBM"))

    def _tree(self, attributes: dict[str, Any]) -> dict[str, Any]:
        own = list(_trees(self._model))
        threshold = np.asarray(attributes["nodes_values"], dtype=np.float64)
        if sum(len(leaf) for leaf, _, _ in own) == len(threshold):
            leaf, exact, missing = (np.concatenate(part) for part in zip(*own, strict=True))
            threshold = np.where(leaf, 0.0, exact)
            attributes["nodes_missing_value_tracks_true"] = np.where(leaf, 0, missing)
        down = np.array([mode in ("BRANCH_LEQ", b"BRANCH_LEQ") for mode in attributes["nodes_modes"]])
        real = np.float64 if self._wide else np.float32
        if not self._wide:
            threshold = np.where(down, _below(threshold), threshold)
        attributes["nodes_values"] = threshold
        for name in ("base_values", "class_weights", "nodes_hitrates", "nodes_values", "target_weights"):
            if name in attributes:
                values = np.ravel(np.asarray(attributes.pop(name), dtype=real))
                if self._wide:
                    attributes[f"{name}_as_tensor"] = require("onnx", _WHAT).numpy_helper.from_array(values, name)
                    attributes["op_version"] = 3
                else:
                    attributes[name] = values
        if attributes.get("n_targets", 1) > 1 and type(self._model).__name__.startswith("XGB"):
            attributes["target_ids"] = np.asarray(attributes["target_treeids"]) % attributes["n_targets"]
        return {name: _whole(value) for name, value in attributes.items()}


def _trees(model: Any) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    """Yield for each tree: which nodes are leaves, the thresholds, and whether missing values go left."""
    for stage in getattr(model, "_predictors", []):
        for tree in stage:
            yield tuple(tree.nodes[name] for name in ("is_leaf", "num_threshold", "missing_go_to_left"))
    for each in np.ravel(getattr(model, "estimators_", [model])):
        tree = getattr(each, "tree_", None)
        if tree is not None:
            yield tree.children_left < 0, tree.threshold, tree.missing_go_to_left


def _is_logarithm(model: Any) -> bool:
    """Return whether gradient boosting predicts logarithms (Poisson, gamma), which its converter ignores."""
    link = getattr(getattr(model, "_loss", None), "link", None)
    return type(model).__name__.startswith("HistGradient") and type(link).__name__ == "LogLink"


def _below(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round down to float32."""
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    return np.where(near.astype(np.float64) > values, np.nextafter(near, np.float32(-np.inf)), near)


def _whole(value: Any) -> Any:
    """Convert lists of integers or booleans to Python integers."""
    if isinstance(value, np.bool_ | np.integer):
        return int(value)
    if isinstance(value, list | np.ndarray) and len(value) and isinstance(value[0], bool | np.bool_ | int | np.integer):
        return [int(item) for item in value]
    return value


# --- graphs that compute in float64


def unified(onnx: Any, nodes: list[Any], inputs: list[Any], constants: Iterable[Any]) -> list[Any]:
    """Insert casts into a graph wherever a node would mix float32 and float64.

    Converters ignore that some nodes always answer in float32, and that others only read float32. A float32 graph is
    unchanged.
    """
    real = onnx.TensorProto
    types = {value.name: value.type.tensor_type.elem_type for value in inputs}
    if real.DOUBLE not in types.values():
        return nodes
    types |= {constant.name: constant.data_type for constant in constants}
    result: list[Any] = []

    def wide(name: str) -> str:
        if types.get(name) != real.FLOAT:
            return name
        if f"{name}/wide" not in types:
            result.append(onnx.helper.make_node("Cast", [name], [f"{name}/wide"], to=real.DOUBLE))
            types[f"{name}/wide"] = real.DOUBLE
        return f"{name}/wide"

    for node in nodes:
        found = [types.get(name) for name in node.input]
        if node.op_type in _FLOAT32_ONLY and found[0] == real.DOUBLE:
            result.append(onnx.helper.make_node("Cast", [node.input[0]], [f"{node.output[0]}/narrow"], to=real.FLOAT))
            node.input[0] = f"{node.output[0]}/narrow"
        if node.op_type in _ALIKE and {real.FLOAT, real.DOUBLE} <= set(found):
            for i, name in enumerate(node.input):
                node.input[i] = wide(name)
        result.append(node)
        for i, name in enumerate(node.output):
            types[name] = _type(onnx, node, i, [types.get(name) for name in node.input])
    return result


def _type(onnx: Any, node: Any, output: int, inputs: list[int | None]) -> int | None:
    """Return the type of a node's output, as far as it matters here."""
    attributes = {item.name: item for item in node.attribute}
    if node.op_type == "Cast":
        return int(attributes["to"].i)
    if node.op_type == "Constant" and "value" in attributes:
        return int(attributes["value"].t.data_type)
    if node.op_type in ("OneHotEncoder", "Scaler", "Normalizer", "LinearRegressor", "SVMRegressor"):
        return int(onnx.TensorProto.FLOAT)
    if node.op_type.startswith("TreeEnsemble"):
        return int(onnx.TensorProto.FLOAT) if node.op_type.endswith("Regressor") or output else None
    if node.op_type in ("ArgMax", "ArgMin", "Equal", "Greater", "IsNaN", "LabelEncoder", "Less", "Not", "Shape"):
        return None
    real = [kind for kind in inputs if kind in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)]
    return real[0] if real else inputs[0] if inputs else None


# --- smle networks inside pipelines and wrappers; on their own they are stored as arrays


@cache
def register_networks() -> None:
    """Register `NetworkRegressor` and `NetworkClassifier` with skl2onnx; they must be loaded."""
    module = sys.modules["smle.estimators.networks"]
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
        raise ValueError("a network of several labels is stored by itself, not inside another estimator")
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
        raise ValueError("a network inside another estimator reads one matrix of numbers")
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
