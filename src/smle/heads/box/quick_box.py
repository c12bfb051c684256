"""A fast version of `box_program.py`: the answers of a box in few calls, without intermediate values.

For single rows the cost is in calls, for many rows in passes through memory. The gate is printed as source, like that
of clip lists. Offsets are products with a 1 appended to the inputs, which is exact; sums may be taken in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.programs.source import Columns, PrintedRows
from smle_check.program import Op, Table, needed

__all__ = ["QuickBox"]

Array = npt.NDArray[Any]
_FLOAT32 = np.dtype(np.float32)
_FEW_ROWS = 16  # find the regions of up to this many rows one by one
_NUMBERS = 1 << 16  # numbers of an embedding per pass, to stay in the cache
_FEW_HEADS = 8  # compute up to this many heads for all rows, then pick
_MOST_FETCHED = 1 << 14  # up to this many numbers per head, each row fetches its own; else rows are grouped by head
_MOST_LISTED = 12  # up to this many bits form a number that is looked up in a list


class QuickBox:
    """A box for features of one format: (features, embedding) -> outputs, in float32."""

    def __init__(self, ops: Sequence[Op], tensors: Mapping[str, Array], table: Table, fmt: str) -> None:
        kinds = {op.kind: op for op in ops}
        place, _, weight, bias, _, slope, _, free_weight, free_bias = kinds["affine_at"].args
        heads, biases = [tensors[str(weight)]], [tensors[str(bias)]]
        self._free = None
        if free_weight is not None:
            self._free = len(heads[0])
            heads.append(tensors[free_weight][None])
            biases.append(tensors[str(free_bias)][None])
        self._heads, self._bias = _Heads(np.concatenate(heads)), np.concatenate(biases).astype(_FLOAT32)
        count, _, units = self._heads.shape
        self._pass = max(_FEW_ROWS + 1, _NUMBERS // units)
        # Repeated rows add faster, but take memory.
        self._offsets = self._repeated(self._bias[:, None]) if count <= 2 else self._bias[:, None]
        self._slopes = None
        if slope is not None:
            own = np.zeros((*self._bias.shape, tensors[slope].shape[2] + 1))
            own[: len(tensors[slope]), :, :-1], own[:, :, -1] = tensors[slope], self._bias
            self._slopes = _Heads(own)

        clip = kinds["clip"]
        self._low: Any
        self._high: Any
        self._low, self._high = (np.fmax, np.fmin) if clip.fixed == "where" else (np.maximum, np.minimum)
        ends = {op.out: op for op in ops if op.kind == "affine"}
        self._is_constant = not ends
        if ends:
            self._ends = [_with_offsets(ends[str(name)], tensors) for name in clip.args[1:]]
        else:
            self._ends = [self._repeated(tensors[str(name)]) for name in clip.args[1:]]
        self._hidden = [_with_one(_with_offsets(op, tensors)) for op in ops if op.kind == "hidden"]
        self._domain: tuple[Array, Array] | None = None
        if ends or slope is not None:
            lower, upper = (tensors[str(name).replace("_F", f"_{fmt}")] for name in kinds["clamp"].args[1:])
            self._domain = self._repeated(lower), self._repeated(upper)

        self._of_rows = self._of_columns = None
        if place is not None:
            gate = needed(ops, (place,))
            self._of_rows = _RowCells(gate, tensors, fmt).function()
            self._of_columns = _ColumnCells(gate, tensors, fmt, table).function()
        guard = kinds.get("or_fallback")
        self._guard = None if guard is None else table["or_fallback"](guard, None, None, tensors[str(guard.args[2])])

    def _repeated(self, row: Array) -> Array:
        return np.tile(row, (self._pass, 1))

    def __call__(self, features: Array, z: Array) -> Array:
        """Return the outputs (batch, m) at features (batch, d) and embeddings (batch, n)."""
        rows = len(z)
        if rows <= self._pass:
            return self._answers(features, z)  # type: ignore[no-any-return]
        passes = [slice(i, i + self._pass) for i in range(0, rows, self._pass)]
        return np.concatenate([self._answers(features[some], z[some]) for some in passes])

    def _answers(self, features: Array, z: Array) -> Any:
        x = None if self._domain is None else self._inputs(features)
        head = self._head_of(features, z)
        if type(head) is int:
            y = self._answer_of(head, z, x)
        elif self._free == 1:
            y = np.where((head == 0)[:, None], self._answer_of(0, z, x), self._answer_of(1, z, x))
        else:
            v = self._clipped(z, x)
            if self._free is not None:
                free = (head == self._free).nonzero()[0]
                v[free] = z[free]
            y = self._heads.each(v, head)
            y += self._bias.take(head, axis=0) if self._slopes is None else self._slopes.each(x, head)
        if self._guard is not None:
            flat = y.ravel()
            if not flat.dot(flat) >= 0:  # catches NaN
                cell = () if self._of_rows is None else (np.broadcast_to(head, len(y)),)
                return self._guard(y, *cell)
        return y

    def _head_of(self, features: Array, z: Array) -> Any:
        """Return the head of each row, or a single number if all rows share it."""
        if self._of_rows is None or self._of_columns is None:
            return 0
        if not 0 < len(z) <= _FEW_ROWS:
            return self._of_columns(features, z)
        cells: Any = self._of_rows(features, z)
        first = cells[0]
        return first if cells.count(first) == len(cells) else np.array(cells)

    def _inputs(self, features: Array) -> Array:
        """Return the inputs clamped to the domain, in float32, with a 1 appended (batch, d + 1)."""
        assert self._domain is not None
        (rows, columns), (lower, upper) = features.shape, self._domain
        inside = np.fmax(features, lower[:rows])
        np.fmin(inside, upper[:rows], out=inside)
        seen = np.empty((rows, columns + 1), dtype=_FLOAT32)
        seen[:, :-1], seen[:, -1] = inside, 1
        return seen

    def _clipped(self, z: Array, x: Any) -> Array:
        lower, upper = self._ends
        if self._is_constant:
            lower, upper = lower[: len(z)], upper[: len(z)]
        else:
            for weight in self._hidden:
                x = x.dot(weight)
                np.maximum(x, 0, out=x)
            lower, upper = x.dot(lower), x.dot(upper)
        inside: Array = self._high(z, upper)
        self._low(inside, lower, out=inside)
        return inside

    def _answer_of(self, head: int, z: Array, x: Any) -> Any:
        if head == self._free:
            y = self._heads.one(z, head)
        else:
            y = self._heads.one(self._clipped(z, x), head)
            if self._slopes is not None:
                y += self._slopes.one(x, head)
                return y
        y += self._offsets[head, : len(y)]
        return y


class _Heads:
    """Products of rows t (batch, k) with weights (heads, m, k)."""

    def __init__(self, weight: Array) -> None:
        self._weight = np.ascontiguousarray(weight, dtype=_FLOAT32)
        self.shape = count, m, _ = weight.shape
        self._turned = np.ascontiguousarray(self._weight.transpose(0, 2, 1))
        if count <= _FEW_HEADS:
            self._all = np.ascontiguousarray(self._weight.reshape(count * m, -1).T)

    def one(self, t: Any, c: int) -> Any:
        """Return weight[c] t (batch, m)."""
        return t.dot(self._turned[c])

    def each(self, t: Any, c: Array) -> Any:
        """Return weight[c] t (batch, m), with one c per row."""
        count, m, k = self.shape
        rows = len(t)
        if count <= _FEW_HEADS:
            return t.dot(self._all).reshape(rows * count, m).take(np.arange(0, rows * count, count) + c, axis=0)
        if rows * m * k <= _MOST_FETCHED * count:
            return np.einsum("imk,ik->im", self._weight.take(c, axis=0), t)
        y = np.empty((rows, m), dtype=_FLOAT32)
        for head in np.unique(c):
            own = np.flatnonzero(c == head)
            y[own] = t[own].dot(self._turned[head])
        return y


class _RowCells(PrintedRows):
    """The choice of a head from the active regions, printed row by row."""

    start = "    cells = []\n    for x in features.tolist():"
    end = "    return cells"

    def cell(self, op: Op) -> None:
        signatures = self.tensors[str(op.args[1])].astype(bool)
        known = {tuple(row): c for c, row in enumerate(signatures.tolist())}
        strictest = int(signatures.sum(axis=1).argmax())
        bits = "".join("True, " if region in self.always else f"b{region}, " for region in range(signatures.shape[1]))
        self.names["get"] = known.get
        self.lines.append(f"cells.append(get(({bits}), {strictest}))")


class _ColumnCells(Columns):
    """The choice of heads, printed column by column: region bits form one number, looked up in a list of heads."""

    def __init__(self, ops: Sequence[Op], tensors: Mapping[str, Array], fmt: str, table: Table) -> None:
        self._table = table
        super().__init__(ops, tensors, fmt)

    def cell(self, op: Op) -> None:
        signatures = self.tensors[str(op.args[1])]
        regions = signatures.shape[1]
        find = self._table["cell"](op, None, signatures)
        if regions == 1 and not self.always:
            self.names["heads"] = find(np.array([[False], [True]]))
            self.end = "    return heads.take(b0)"
            return
        kind = "float32" if regions <= _MOST_LISTED else "bool"
        self.names |= {"empty": np.empty, "bool": bool, "intp": np.intp}
        self.lines.append(f"bits = empty(({regions}, len(features)), dtype={kind})")
        for region in range(regions):
            self.lines.append(f"bits[{region}] = {'True' if region in self.always else f'b{region}'}")
        if regions > _MOST_LISTED:
            self.names["find"] = find
            self.end = "    return find(bits.T)"
            return
        powers = 1 << np.arange(regions)
        self.names |= {
            "powers": powers.astype(_FLOAT32),
            "heads": find((np.arange(1 << regions)[:, None] & powers) != 0),
        }
        self.end = "    return heads.take(powers.dot(bits).astype(intp))"


def _with_offsets(op: Op, tensors: Mapping[str, Array]) -> Array:
    """Return weight and offset as (k + 1, n), for inputs (batch, k + 1) with a 1 appended."""
    weight, offset = (tensors[str(name)] for name in op.args[1:])
    return np.ascontiguousarray(np.concatenate([weight, offset[:, None]], axis=1).T)


def _with_one(weight: Array) -> Array:
    """Extend a weight to (k + 1, n + 1), so that its outputs, too, have a 1 appended."""
    last = np.zeros((len(weight), 1), dtype=_FLOAT32)
    last[-1] = 1
    return np.concatenate([weight, last], axis=1)
