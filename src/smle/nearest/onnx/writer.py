"""Writes ONNX nodes and constants, for unproved parts of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.extras import require
from smle_check.onnx.graph import BOOL, DOUBLE, INT64
from smle_check.onnx.nodes import is_sparse

__all__ = ["Writer"]

_PREFIX = "proposals/"


class Writer:
    """Nodes and constants under their own names.

    `inside`: the writer of the enclosing graph, whose constants are shared.
    """

    def __init__(self, prefix: str = _PREFIX, inside: Writer | None = None) -> None:
        self._onnx = require("onnx", "ONNX export")
        self.nodes: list[Any] = []
        self.step = ""
        self._prefix = prefix
        self._constants: str = inside._constants if inside else prefix
        self.initializers: list[Any] = inside.initializers if inside else []
        self._known: dict[tuple[Any, ...], str] = inside._known if inside else {}

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node with one output; return its name."""
        return self.last(op, inputs, f"{self._prefix}{len(self.nodes)}", **attributes)

    def last(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Append a node whose output has the given name."""
        self.nodes.append(self._onnx.helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def several(self, op: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Append a node with several outputs."""
        names = [f"{self._prefix}{len(self.nodes)}/{i}" for i in range(count)]
        self.nodes.append(self._onnx.helper.make_node(op, list(inputs), names, **attributes))
        return names

    def constant(self, values: npt.ArrayLike) -> str:
        """Add a constant; return its name."""
        array = np.ascontiguousarray(values)
        key = (array.dtype.str, np.shape(values), array.tobytes())
        if key not in self._known:
            self._known[key] = f"{self._constants}constant/{len(self._known)}"
            stored = self._onnx.numpy_helper.from_array(array.reshape(np.shape(values)), self._known[key])
            self.initializers.append(stored)
        return self._known[key]

    def number(self, value: float) -> str:
        """Add a float64 number."""
        return self.constant(np.float64(value))

    def column(self, values: npt.ArrayLike) -> str:
        """Add float64 numbers, one for each row of a value."""
        return self.constant(np.asarray(values, dtype=np.float64).reshape(-1, 1))

    def rows(self, source: str, places: Sequence[int], axis: int = 0) -> str:
        """Pick rows."""
        return self.add("Gather", [source, self.constant(np.array(places, dtype=np.int64))], axis=axis)

    def shaped(self, source: str, *sizes: int) -> str:
        """Reshape; -1 is the number of rows."""
        return self.add("Reshape", [source, self.constant(np.array(sizes, dtype=np.int64))])

    def reduced(self, op: str, source: str, axis: int, *, keep: bool = False) -> str:
        """Reduce one axis."""
        return self.add(op, [source, self.constant(np.array([axis], dtype=np.int64))], keepdims=int(keep))

    def joined(self, parts: Sequence[str], axis: int = 0) -> str:
        """Put values below each other, or side by side."""
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, axis=axis)

    def product(self, matrix: npt.NDArray[np.float64], values: str) -> str:
        """Return matrix @ values, (..., columns, rows) -> (..., rows of the matrix, rows); sparse ones term by term."""
        forms = [dict(zip(np.flatnonzero(row).tolist(), row[row != 0].tolist(), strict=True)) for row in matrix]
        if not is_sparse(forms, matrix.shape[1]):
            return self.add("MatMul", [self.constant(matrix), values])
        longest = max(map(len, forms))
        terms = [[*form.items()] + [(0, 0.0)] * (longest - len(form)) for form in forms]
        places = np.array([[term[0] for term in own] for own in terms], dtype=np.int64).T
        factors = np.array([[term[1] for term in own] for own in terms]).T[:, :, None]
        picked = self.add("Gather", [values, self.constant(places)], axis=-2)
        return self.reduced("ReduceSum", self.add("Mul", [picked, self.constant(factors)]), -3)

    def any_of(self, values: str, lists: Sequence[Sequence[int]], axis: int = 0) -> str:
        """Return, for each list, the largest of some rows of values that are 0 or 1; 0 for an empty list."""
        longest = max(1, *map(len, lists))
        zero = self.add("Sub", [self.rows(values, [0], axis), self.rows(values, [0], axis)])
        padded = self.add("Concat", [zero, values], axis=axis)
        places = [[0] * (longest - len(own)) + [1 + i for i in own] for own in lists]
        picked = self.add("Gather", [padded, self.constant(np.array(places, dtype=np.int64))], axis=axis)
        return self.reduced("ReduceMax", picked, axis + 1)

    def placed(self, places: npt.NDArray[np.intp], values: str, among: str, count: int | None = None) -> str:
        """Put values (k, rows) in place of some of `count` others (count, rows)."""
        if len(places) != count:
            return self.add("ScatterND", [among, self.constant(np.asarray(places, dtype=np.int64)[:, None]), values])
        order = np.argsort(places)
        return values if (order == np.arange(len(order))).all() else self.rows(values, order.tolist())

    def loop(
        self,
        steps: int,
        carried: Sequence[str],
        body: Callable[[Writer, list[str]], tuple[list[str], str | None, list[str]]],
        *,
        carries: Sequence[int] | None = None,
        scans: Sequence[int] = (),
        start: str | None = None,
    ) -> list[str]:
        """Run a body a number of times. Return the last carried values, then what it noted at each step, stacked.

        The body returns the next values, whether to continue (None: always), and its notes. `carries`: kinds of the
        values, by default numbers; `scans`: kinds of the notes; `start`: whether to begin. `Writer.step` of its writer
        is the number of the step.
        """
        helper = self._onnx.helper
        inner = Writer(f"{self._prefix}{len(self.nodes)}/loop/", self)
        inner.step = f"{inner._prefix}step"
        names = [f"{inner._prefix}in/{i}" for i in range(len(carried))]
        kinds = [DOUBLE] * len(carried) if carries is None else carries
        following, going, noted = body(inner, names)
        going = inner.add("Identity", [f"{inner._prefix}going"]) if going is None else going
        value = helper.make_tensor_value_info
        values = [value(inner.step, INT64, []), value(f"{inner._prefix}going", BOOL, [])]
        values += [value(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
        ends = zip([*following, *noted], [*kinds, *scans], strict=True)
        outputs = [value(going, BOOL, []), *(value(name, kind, None) for name, kind in ends)]
        graph = helper.make_graph(inner.nodes, "step", values, outputs)
        start, count = start or self.constant(np.array(True)), len(carried) + len(scans)
        return self.several("Loop", [self.constant(np.int64(steps)), start, *carried], count, body=graph)
