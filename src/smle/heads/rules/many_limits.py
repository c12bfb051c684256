"""A clip list with many limits: only the few that may be active at a point are examined.

The range of every input is cut into equal parts. A table lists the limits that may be active in a part, by the input
that narrows each limit down most; pairs of a row and such a limit are then compared with the limit's own constants. No
limit is missed: the part of an input never falls as the input rises, and the same operations find the parts of a
limit's ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.programs.source import columns_read
from smle_check.heads.sums import WIDE
from smle_check.program import Gate, Op

__all__ = ["LimitPairs"]

Array = npt.NDArray[Any]
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_WIDE = float(WIDE)
_PARTS, _FINE = (4096, 1024), 64  # parts of the range of an input, for few inputs and for more
_BLOCK = 1024  # rows answered at once, to stay in the processor's cache


class _Range(NamedTuple):
    """The range low <= x <= high without the points `not_low` and `not_high` (NaN: no such point)."""

    low: Any
    high: Any
    not_low: Any = np.nan
    not_high: Any = np.nan

    def up_to(self, value: Any, strict: bool) -> _Range:
        """Intersect with `x <= value` (`<` if strict)."""
        if value > self.high or (value == self.high and not strict):
            return self
        return self._replace(high=value, not_high=value if strict else np.nan)

    def from_(self, value: Any, strict: bool) -> _Range:
        """Intersect with `x >= value` (`>` if strict)."""
        if value < self.low or (value == self.low and not strict):
            return self
        return self._replace(low=value, not_low=value if strict else np.nan)


class LimitPairs:
    """A clip list that compares only pairs of a row and a limit active there: (features, answer) -> answers.

    `share`: the share of the limits examined for a row, averaged over the ranges of the inputs.
    """

    def __init__(self, ops: Sequence[Op], tensors: Mapping[str, Array], fmt: str) -> None:
        self.tensors = tensors = {name.replace(f"_{fmt}", "_F"): value for name, value in tensors.items()}
        # If no limit reads an input, the first one stands for all.
        self.columns = np.array(columns_read(ops, tensors) or [0], dtype=np.intp)
        self.all_columns = np.array_equal(self.columns, np.arange(len(tensors["domain.lower_F"])))
        self.lower, self.upper = (tensors[f"domain.{side}_F"][self.columns] for side in ("lower", "upper"))
        self.default = tensors["clips.default"].astype(_FLOAT64)
        (gate,) = (op for op in ops if op.kind == "active")
        self.coefficients = tensors["gate.coefficients"][:, self.columns] if gate.fixed.oblique else None
        self.thresholds = tensors["gate.thresholds"][:, None]
        stages = [op for op in ops if op.kind in ("raise_to", "lower_to")]
        self.lowering = [op.kind == "lower_to" for op in stages]
        self.read_limits(stages)
        self.read_gate(gate.fixed, tensors["gate.constants_F"])
        self.strict = any(own.strict for own in gate.fixed.comparisons)

    def read_limits(self, stages: list[Op]) -> None:
        """Read the numbers of all limits. Upper ones are negated, so that the largest always counts."""
        bits, stage, outputs, values, slopes = [], [], [], [], []
        for i, op in enumerate(stages):
            sign = -1 if self.lowering[i] else 1
            bits += op.fixed.bits
            stage += [i] * len(op.fixed.bits)
            outputs += op.fixed.outputs
            values.append(sign * self.tensors[str(op.args[2])].astype(_FLOAT64))
            own = np.zeros((len(op.fixed.bits), len(self.columns)))
            if op.args[4] is not None:
                own = sign * self.tensors[op.args[4]].astype(_FLOAT64)[:, self.columns]
            slopes.append(own)
        self.bits, self.stage, self.outputs = bits, np.array(stage), np.array(outputs)
        self.values, self.slopes = np.concatenate(values), np.concatenate(slopes)
        # Terms of a limit side by side, padded to the longest with 0 times the first column.
        width = int((self.slopes != 0).sum(axis=1).max(initial=0))
        order = np.argsort(self.slopes == 0, axis=1, kind="stable")[:, :width]
        self.terms = [(order[:, j].copy(), self.slopes[np.arange(len(order)), order[:, j]]) for j in range(width)]

    def read_gate(self, gate: Gate, constants: Array) -> None:
        """Read where each limit is active: a box of inputs, and oblique rows."""
        place = {int(column): i for i, column in enumerate(self.columns)}
        boxes: list[dict[int, _Range] | None] = []
        for rows in gate.members:
            box: dict[int, _Range] = {}
            for row in (row for row in rows if row < len(constants)):
                (column, negative, strict), constant = gate.comparisons[row], constants[row]
                k = place[column]
                own = box.get(k) or _Range(self.lower[k], self.upper[k])
                box[k] = own.from_(-constant, strict) if negative else own.up_to(constant, strict)
            boxes.append(box if all(own.low <= own.high for own in box.values()) else None)
        oblique = [[row - len(constants) for row in rows if row >= len(constants)] for rows in gate.members]
        self.dense = [j for j, bit in enumerate(self.bits) if boxes[bit] == {}]
        self.dense_rows = [oblique[self.bits[j]] for j in self.dense]
        sparse = {j: box for j, bit in enumerate(self.bits) if (box := boxes[bit])}
        self.tabulate(sparse)
        self.asked = []
        total = len(self.bits)
        everywhere = (0, _Range(self.lower[0], self.upper[0]))
        for slot in range(max(map(len, sparse.values()), default=0)):
            parts = [(list(sparse.get(j, {}).items())[slot : slot + 1] or [everywhere])[0] for j in range(total)]
            ends = [np.array(part) for part in zip(*(own for _, own in parts), strict=True)]
            self.asked.append((np.array([k for k, _ in parts], dtype=np.intp), *ends))
        if self.asked:  # inputs are then found from the position of a limit's first one
            first = self.asked[0][0]
            self.asked = [(columns - first, *ends) for columns, *ends in self.asked]
            self.terms = [(columns - first, factors) for columns, factors in self.terms]
        self.oblique = []
        for slot in range(max((len(oblique[self.bits[j]]) for j in sparse), default=0)):
            last = [(oblique[bit][slot : slot + 1] or [len(self.thresholds)])[0] for bit in self.bits]
            self.oblique.append(np.array(last, dtype=np.intp))  # the row after the last one always holds

    def tabulate(self, sparse: dict[int, dict[int, _Range]]) -> None:
        """List the limits that may be active in each part of each input."""
        kind = self.lower.dtype.type
        with np.errstate(over="ignore"):
            width = self.upper - self.lower
        parts_of = _PARTS[len(width) > _FINE]
        fine = (width >= 2.0**-100) & (width <= 2.0**100)  # others have one part
        self.origin = np.where(fine, self.lower, kind(0))
        self.scale = np.where(fine, kind(parts_of) / np.where(fine, width, kind(1)), kind(0))
        self.bases = np.arange(len(width)) * (parts_of + 2)
        lists: list[list[int]] = [[] for _ in range(len(width) * (parts_of + 2))]
        for j, box in sparse.items():
            ends = {k: [self.part(np.array(end, dtype=kind), k) for end in own[:2]] for k, own in box.items()}
            k = min(box, key=lambda k: ends[k][1] - ends[k][0] if fine[k] else parts_of)
            sparse[j] = {k: box[k]} | box  # that input first
            for part in range(ends[k][0], ends[k][1] + 1):
                lists[part].append(j)
        # The first limit of each list, the second, ..., counted from 1; 0 if there is none.
        small, longest = np.min_scalar_type(len(self.bits)), max(map(len, lists))
        self.listed = [np.array([own[i] + 1 if i < len(own) else 0 for own in lists], small) for i in range(longest)]
        self.share = (sum(map(len, lists)) / parts_of + len(self.dense)) / max(1, len(self.bits))

    def part(self, x: Array, k: Any = slice(None)) -> Any:
        """Return the parts in which values of inputs lie."""
        parts = ((x - self.origin[k]) * self.scale[k]).astype(np.intp)
        parts += self.bases[k]
        return parts

    def __call__(self, features: Array, answer: Array) -> Array:
        """Return the answers (batch, m), moved within the limits."""
        if len(answer) <= _BLOCK:
            return self.block(features, answer)
        starts = range(0, len(answer), _BLOCK)
        return np.concatenate([self.block(features[i : i + _BLOCK], answer[i : i + _BLOCK]) for i in starts])

    def block(self, features: Array, answer: Array) -> Array:
        """Return the answers to at most `_BLOCK` rows."""
        batch, outputs = answer.shape
        read = features if self.all_columns else features.take(self.columns, 1)
        x = np.fmax(read, self.lower)
        np.fmin(x, self.upper, out=x)
        wide = x.astype(_FLOAT64) if self.coefficients is not None or self.dense else x
        holds = self.holds(wide, batch)
        most = np.full((len(self.lowering), batch, outputs), -np.inf)
        if self.listed:
            row, limit, place = self.active(x, holds)
            values, flat = self.values.take(limit), x.ravel()
            for shift, factors in self.terms:
                values += flat.take(shift.take(limit) + place).astype(_FLOAT64) * factors.take(limit)
            row += self.stage.take(limit) * batch
            np.maximum.at(most.ravel(), row * outputs + self.outputs.take(limit), values)
        for j, rows in zip(self.dense, self.dense_rows, strict=True):
            values = wide.dot(self.slopes[j]) + self.values[j]
            for oblique in rows:
                values[~holds[oblique]] = -np.inf
            cell = most[self.stage[j], :, self.outputs[j]]
            np.maximum(cell, values, out=cell)
        q = answer.astype(_FLOAT64)
        if not q.ravel().dot(q.ravel()) <= _WIDE**2:
            q = np.where(np.abs(q) <= _WIDE, q, self.default)
        for lowering, limits in zip(self.lowering, most, strict=True):
            if lowering:
                np.minimum(q, np.negative(limits, out=limits), out=q)
            else:
                np.maximum(q, limits, out=q)
        return q.astype(_FLOAT32)

    def holds(self, wide: Array, batch: int) -> Array:
        """Return which oblique rows hold, and a last row that always does."""
        if self.coefficients is None:
            return np.ones((1, batch), dtype=bool)
        return np.concatenate([self.coefficients.dot(wide.T) <= self.thresholds, np.ones((1, batch), dtype=bool)])

    def active(self, x: Array, holds: Array) -> tuple[Array, Array, Array]:
        """Return pairs of a row and a limit that is active there, and where the limit's first input is in x."""
        parts, flat = self.part(x).ravel(), x.ravel()
        place, places, limits = np.arange(0), list[Array](), list[Array]()
        for i, listed in enumerate(self.listed):
            number = listed.take(parts)
            some = np.flatnonzero(number != 0)
            parts, place = parts.take(some), place.take(some) if i else some
            places.append(place)
            limits.append(number.take(some))
        place, limit = np.concatenate(places), np.concatenate(limits).astype(np.intp)
        limit -= 1
        for i, (shift, *_) in enumerate(self.asked):
            value = flat.take(shift.take(limit) + place if i else place)
            chosen = np.flatnonzero(self.inside(i, limit, value))
            limit, place = limit.take(chosen), place.take(chosen)
        for rows in self.oblique:
            chosen = np.flatnonzero(holds.ravel().take(rows.take(limit) * len(x) + place // x.shape[1]))
            limit, place = limit.take(chosen), place.take(chosen)
        return place // x.shape[1], limit, place

    def inside(self, i: int, limit: Array, value: Array) -> Array:
        """Return a mask of the values of the limits' i-th inputs that lie in their ranges."""
        _, low, high, not_low, not_high = self.asked[i]
        result = value >= low.take(limit)
        result &= value <= high.take(limit)
        if self.strict:
            result &= value != not_low.take(limit)
            result &= value != not_high.take(limit)
        return np.asarray(result)
