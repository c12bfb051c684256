"""Turns ONNX files of other shapes into models of tables: (rows, columns) -> (rows, answers).

A file with a free first dimension gets a reshape in front. One made for a single row is run row by row by a `Loop` in
the graph, so that each row is answered as if it came alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.errors import ModelFormatError
from smle.extras import require
from smle.graphs.backbone import inlined, standard
from smle.graphs.head_graph import IR_VERSION, LATER
from smle.nearest.onnx.writer import Writer
from smle.serving.fronts import NUMBERS, is_table, runtime_errors, session_of
from smle_check.onnx.graph import BOOL, DOUBLE, FLOAT, INT64, OPSET

__all__ = ["model_of_rows"]

_SAME = 1e-4  # tolerance between a file and its form for tables, relative to the largest answer


class _RowInput(NamedTuple):
    """An input: the first of its columns, and its shape without a free first dimension."""

    name: str
    start: int
    shape: tuple[int, ...]
    is_free: bool

    @property
    def width(self) -> int:
        return math.prod(self.shape)


def model_of_rows(data: bytes, columns: Sequence[str]) -> bytes:
    """Return an ONNX model as a model of tables; one that already is stays unchanged.

    The inputs of any other model receive the columns in order, row by row. Raises ModelFormatError if it reads another
    number of columns, or has a free size that is not the number of rows.
    """
    session = session_of(data)
    inputs = session.get_inputs()
    if not inputs or any(item.type not in NUMBERS for item in inputs):
        return data  # running it raises with the reason
    if is_table([(item.name, item.shape) for item in inputs]):
        if len(inputs) > 1 or inputs[0].shape[1] == 1 or _takes_two_rows(session, len(columns)):
            return data
        parts = [
            _RowInput(inputs[0].name, 0, (1, len(columns)), False)
        ]  # the file claims to take more rows, but does not
    else:
        parts = _parts(inputs, columns)
    kinds = {NUMBERS[item.type] for item in inputs}
    kind = FLOAT if kinds == {np.float32} else DOUBLE
    made = _built(data, parts, kind, columns)
    _require_same(session, made, parts, len(columns))
    return made


def _parts(inputs: Sequence[Any], columns: Sequence[str]) -> list[_RowInput]:
    parts, start = [], 0
    for item in inputs:
        is_free = bool(item.shape) and not isinstance(item.shape[0], int)
        shape = item.shape[1:] if is_free else item.shape
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise _refused(inputs, "sizes that are not fixed, beside the rows")
        parts.append(_RowInput(item.name, start, tuple(shape), is_free))
        start += parts[-1].width
    if start != len(columns):
        raise _refused(inputs, f"{start} numbers, where the rules have {len(columns)} columns ({', '.join(columns)})")
    return parts


def _refused(inputs: Sequence[Any], what: str) -> ModelFormatError:
    listed = ", ".join(f"'{item.name}' [{', '.join(map(str, item.shape))}]" for item in inputs)
    return ModelFormatError(
        f"Expected an ONNX model that reads the columns of the rules, in their order: any number of rows, or a single "
        f"one. Got {what}: {listed}. Export it anew with rows as a free first dimension, or correct a function that "
        "calls it: smle.correct(lambda table: ..., spec)."
    )


def _takes_two_rows(session: Any, width: int) -> bool:
    """Return whether a model runs on two rows, as it claims. If it runs on none, the caller finds out."""
    item = session.get_inputs()[0]
    if isinstance(item.shape[1], int) and item.shape[1] != width:
        return True
    for rows in (2, 1):
        try:
            with runtime_errors():
                found = session.run(None, {item.name: np.zeros((rows, width), dtype=NUMBERS[item.type])})[0]
        except ModelFormatError:
            continue
        return len(np.shape(found)) > 0 and np.shape(found)[0] == rows == 2
    return True


def _built(data: bytes, parts: list[_RowInput], kind: int, columns: Sequence[str]) -> bytes:
    onnx = require("onnx", "Correcting an ONNX file of such a shape")
    helper = onnx.helper
    model, opsets = standard(onnx, onnx.load_from_string(data))
    by_row = not all(part.is_free for part in parts)
    source = columns[0] if len(columns) == 1 else "features"
    wanted = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    w, scope = Writer("rows/"), {}
    if by_row:
        w.last("Identity", ["rows/go"], "rows/on")
    read = w.add("Gather", [source, "rows/number"], axis=0) if by_row else source
    for part in parts:
        own, shape = read, part.shape if by_row else (-1, *part.shape)
        if len(parts) > 1:
            ends = (part.start, part.start + part.width, 0 if by_row else 1)
            own = w.add("Slice", [own, *(w.constant(np.array([end], dtype=np.int64)) for end in ends)])
        if by_row and part.is_free:
            shape = (1, *shape)
        scope[part.name] = w.add("Cast", [w.shaped(own, *shape)], to=wanted[part.name])
    inner, initializers, answer = inlined(onnx, model.graph, scope)
    w.nodes += inner
    answer_kind = model.graph.output[0].type.tensor_type.elem_type
    if by_row:
        row, info = w.shaped(answer, -1), helper.make_tensor_value_info
        body = helper.make_graph(
            w.nodes,
            "row",
            [info("rows/number", INT64, []), info("rows/go", BOOL, [])],
            [info("rows/on", BOOL, []), info(row, answer_kind, [None])],
        )
        nodes = [
            helper.make_node("Shape", [source], ["rows/count"], start=0, end=1),
            helper.make_node("Loop", ["rows/count", ""], ["answers"], body=body),
        ]
    else:
        w.last("Flatten", [answer], "answers", axis=1)
        nodes = w.nodes
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info(source, kind, ["N", len(columns)])],
        [helper.make_tensor_value_info("answers", answer_kind, ["N", None])],
        [*initializers, *w.initializers],
    )
    version = IR_VERSION if opsets[""] <= OPSET else LATER
    imports = [helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    whole = helper.make_model(graph, opset_imports=imports, ir_version=version, producer_name="smle")
    return bytes(whole.SerializeToString(deterministic=True))


def _require_same(session: Any, made: bytes, parts: list[_RowInput], width: int) -> None:
    """Raise ModelFormatError unless the new form answers two rows as the file answers each alone.

    Rows that the file itself cannot answer are skipped.
    """
    rows = np.random.default_rng(0).uniform(size=(2, width))  # as integers these are 0
    kinds = {value.name: NUMBERS[value.type] for value in session.get_inputs()}
    try:
        with runtime_errors():
            wanted = [np.asarray(session.run(None, _fed(row, parts, kinds))[0], dtype=np.float64) for row in rows]
    except ModelFormatError:
        return
    other = session_of(made)
    item = other.get_inputs()[0]
    with runtime_errors():
        found = np.asarray(other.run(None, {item.name: rows.astype(NUMBERS[item.type])})[0], dtype=np.float64)
    alone = np.stack([answer.reshape(-1) for answer in wanted])
    allowed = _SAME * np.nanmax(np.abs(alone), initial=1e-30)
    if alone.shape != found.shape or not np.allclose(alone, found, rtol=0, atol=allowed, equal_nan=True):
        raise ModelFormatError(
            f"This ONNX file gives other answers once converted to operator set {OPSET}, as its form for tables needs. "
            "Export it anew with rows as a free first dimension."
        )


def _fed(row: npt.NDArray[Any], parts: list[_RowInput], kinds: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of the file for a single row."""
    feed = {}
    for part in parts:
        own = row[part.start : part.start + part.width].astype(kinds[part.name])
        feed[part.name] = own.reshape((1, *part.shape) if part.is_free else part.shape)
    return feed
