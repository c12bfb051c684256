"""A clip list with many limits, few of them active at a point: only those are looked at.

The range of every input is cut into equal parts. A table says which limits may be active in a part, by the input that
leaves a limit the fewest; pairs of a row and such a limit are then compared with the limit's own constants. Parts only
have to miss nothing: a limit is listed in one part more on either side than its constants fall into, and what the order
or the flushing of operations can change is far less than a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.programs.source import columns_read
from smle_check.heads.clips import WIDE
from smle_check.program import Gate, Op

__all__ = ["Pairs"]

Array = npt.NDArray[Any]
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_PARTS = 1024  # of the range of an input
_BLOCK = 1024  # rows
_LARGE = 1 << 20  # places of a table that float32 tells apart well


class _Range(NamedTuple):
    """Low <= x <= high, without `not_low` and `not_high` (NaN: none is left out)."""

    low: Any
    high: Any
    not_low: Any = np.nan
    not_high: Any = np.nan

    def up_to(self, value: Any, strict: bool) -> _Range:
        """Return what `x <= value` leaves; `<` if strict."""
        if value > self.high or (value == self.high and not strict):
            return self
        return self._replace(high=value, not_high=value if strict else np.nan)

    def from_(self, value: Any, strict: bool) -> _Range:
        """Return what `x >= value` leaves; `>` if strict."""
        if value < self.low or (value == self.low and not strict):
            return self
        return self._replace(low=value, not_low=value if strict else np.nan)


class Pairs:
    """(features, answer) -> answers, by pairs of a row and a limit that is active there.

    `share`: how many of the limits are looked at for a row, at inputs anywhere in their ranges.
    """

    def __init__(self, ops: Sequence[Op], tensors: Mapping[str, Array], fmt: str) -> None:
        self.tensors = tensors = {name.replace(f"_{fmt}", "_F"): value for name, value in tensors.items()}
        self.columns = np.array(columns_read(ops, tensors), dtype=np.intp)
        self.lower, self.upper = (tensors[f"domain.{side}_F"][self.columns, None] for side in ("lower", "upper"))
        self.default = tensors["clips.default"].astype(_FLOAT64)[:, None]
        (gate,) = (op for op in ops if op.kind == "active")
        self.coefficients = tensors["gate.coefficients"][:, self.columns] if gate.fixed.oblique else None
        self.thresholds = tensors["gate.thresholds"][:, None]
        stages = [op for op in ops if op.kind in ("raise_to", "lower_to")]
        self.lowering = [op.kind == "lower_to" for op in stages]
        self.read_limits(stages, len(self.default))
        self.read_gate(gate.fixed, tensors["gate.constants_F"])
        self.strict = any(own.strict for own in gate.fixed.comparisons)

    def read_limits(self, stages: list[Op], outputs: int) -> None:
        """Read the numbers of all limits. Those of upper ones get the other sign: what counts is always the largest."""
        bits, cells, values, slopes = [], [], [], []
        for i, op in enumerate(stages):
            sign = -1 if self.lowering[i] else 1
            bits += op.fixed.bits
            cells += [i * outputs + output for output in op.fixed.outputs]
            values.append(sign * self.tensors[str(op.args[2])].astype(_FLOAT64))
            own = np.zeros((len(op.fixed.bits), len(self.columns)))
            if op.args[4] is not None:
                own = sign * self.tensors[op.args[4]].astype(_FLOAT64)[:, self.columns]
            slopes.append(own)
        self.bits, self.cells = bits, np.array(cells, dtype=np.intp)
        self.values, self.slopes = np.concatenate(values), np.concatenate(slopes)
        # Terms of a limit side by side, as many as the longest has; what is missing is 0 times the first column.
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
                own = box.get(k) or _Range(self.lower[k, 0], self.upper[k, 0])
                box[k] = own.from_(-constant, strict) if negative else own.up_to(constant, strict)
            boxes.append(box if all(own.low <= own.high for own in box.values()) else None)
        oblique = [[row - len(constants) for row in rows if row >= len(constants)] for rows in gate.members]
        self.dense = [j for j, bit in enumerate(self.bits) if boxes[bit] == {}]
        self.dense_rows = [oblique[self.bits[j]] for j in self.dense]
        sparse = {j: box for j, bit in enumerate(self.bits) if (box := boxes[bit])}
        self.tabulate(sparse)
        self.asked = []
        total = len(self.bits)
        everywhere = (0, _Range(self.lower[0, 0], self.upper[0, 0]))
        for slot in range(max(map(len, sparse.values()), default=0)):
            parts = [(list(sparse.get(j, {}).items())[slot : slot + 1] or [everywhere])[0] for j in range(total)]
            ends = [np.array(part) for part in zip(*(own for _, own in parts), strict=True)]
            self.asked.append((np.array([k for k, _ in parts], dtype=np.intp), *ends))
        self.oblique = []
        for slot in range(max((len(oblique[self.bits[j]]) for j in sparse), default=0)):
            last = [(oblique[bit][slot : slot + 1] or [len(self.thresholds)])[0] for bit in self.bits]
            self.oblique.append(np.array(last, dtype=np.intp))  # the row behind the last one always holds

    def tabulate(self, sparse: dict[int, dict[int, _Range]]) -> None:
        """List the limits that may be active in each part of each input."""
        kind = self.lower.dtype.type
        with np.errstate(over="ignore"):
            width = self.upper - self.lower
        fine = (width >= 2.0**-100) & (width <= 2.0**100)  # others have one part
        self.origin = np.where(fine, self.lower, kind(0))
        self.scale = np.where(fine, kind(_PARTS) / np.where(fine, width, kind(1)), kind(0))
        bases = np.arange(len(width))[:, None] * (_PARTS + 2)
        # Half a part more: rounding then never leads to the part before an input's first, and one on either side is
        # listed anyway. Where numbers are too large for that in the format, they are subtracted first.
        self.offset = (bases + 0.5 - self.origin.astype(_FLOAT64) * self.scale).astype(kind)
        self.bases = bases if np.abs(self.origin * self.scale).max() > _PARTS or bases.max() > _LARGE else None
        lists: list[list[int]] = [[] for _ in range(len(width) * (_PARTS + 2))]
        for j, box in sparse.items():
            parts = {
                k: [int(v) for v in ((e - self.origin[k, 0]) * self.scale[k, 0] for e in own[:2])]
                for k, own in box.items()
            }
            k = min(box, key=lambda k: parts[k][1] - parts[k][0] if fine[k, 0] else _PARTS)
            sparse[j] = {k: box[k]} | box  # that input first
            for part in range(max(parts[k][0] - 1, 0), min(parts[k][1] + 1, _PARTS + 1) + 1):
                lists[k * (_PARTS + 2) + part].append(j)
        self.counts = np.array([len(own) for own in lists], dtype=np.intp)
        self.any = self.counts > 0
        self.starts = np.cumsum(self.counts) - self.counts
        self.members = np.array([j for own in lists for j in own], dtype=np.intp)
        self.first = np.array([own[0] if own else 0 for own in lists], dtype=np.intp)
        self.longest = int(self.counts.max(initial=0))
        self.share = (len(self.members) / _PARTS + len(self.dense)) / max(1, len(self.bits))

    def __call__(self, features: Array, answer: Array) -> Array:
        """Return the answers (batch, m), moved inside the limits."""
        if len(answer) <= 2 * _BLOCK:
            return self.block(features, answer)
        starts = range(0, len(answer), _BLOCK)
        return np.concatenate([self.block(features[i : i + _BLOCK], answer[i : i + _BLOCK]) for i in starts])

    def block(self, features: Array, answer: Array) -> Array:
        """Return the answers to so few rows that what is computed for them stays in the processor's cache."""
        batch, outputs = answer.shape
        x = np.fmin(np.fmax(features.T.take(self.columns, 0), self.lower), self.upper)
        wide = x.astype(_FLOAT64) if self.coefficients is not None or self.dense else x
        holds = self.holds(wide, batch)
        most = np.full((len(self.lowering), outputs, batch), -np.inf)
        if len(self.members):
            row, limit = self.active(x, holds, batch)
            values = self.values.take(limit)
            flat = x.ravel()
            for columns, factors in self.terms:
                values += factors.take(limit) * flat.take((columns * batch).take(limit) + row)
            np.maximum.at(most.ravel(), (self.cells * batch).take(limit) + row, values)
        for j, rows in zip(self.dense, self.dense_rows, strict=True):
            values = self.slopes[j].dot(wide) + self.values[j]
            for oblique in rows:
                values[~holds[oblique]] = -np.inf
            cell = most.reshape(-1, batch)[self.cells[j]]
            np.maximum(cell, values, out=cell)
        q = answer.T.astype(_FLOAT64, order="C")
        if not q.ravel().dot(q.ravel()) <= float(WIDE**2):
            q = np.where(np.abs(q) <= float(WIDE), q, self.default)
        for lowering, limits in zip(self.lowering, most, strict=True):
            q = np.minimum(q, np.negative(limits)) if lowering else np.maximum(q, limits)
        return q.T.astype(_FLOAT32, order="C")

    def holds(self, wide: Array, batch: int) -> Array:
        """Return which oblique rows hold, and a last row that always does."""
        if self.coefficients is None:
            return np.ones((1, batch), dtype=bool)
        return np.concatenate([self.coefficients.dot(wide) <= self.thresholds, np.ones((1, batch), dtype=bool)])

    def active(self, x: Array, holds: Array, batch: int) -> tuple[Array, Array]:
        """Return the pairs of a row and a limit that is active there."""
        if self.bases is None:
            entries = (x * self.scale + self.offset).astype(np.int32)
        else:
            entries = ((x - self.origin) * self.scale).astype(np.intp)
            entries += self.bases
        place = np.flatnonzero(self.any.take(entries))
        entry = entries.ravel().take(place)
        limit = self.first.take(entry)
        if self.longest > 1:  # lists of several limits: what follows the first
            counts = self.counts.take(entry)
            longer = np.flatnonzero(counts > 1)
            more = counts.take(longer) - 1
            each = np.repeat(longer, more)
            behind = self.starts.take(entry.take(longer)) - np.cumsum(more) + more + 1
            further = self.members.take(np.repeat(behind, more) + np.arange(len(each)))
            place, limit = np.concatenate([place, place.take(each)]), np.concatenate([limit, further])
        row = place % batch if batch & (batch - 1) else place & (batch - 1)  # the same, faster
        flat = x.ravel()
        for i, (column, low, high, not_low, not_high) in enumerate(self.asked):
            value = flat.take((column * batch).take(limit) + row if i else place)
            keep = value >= low.take(limit)
            keep &= value <= high.take(limit)
            if self.strict:
                keep &= value != not_low.take(limit)
                keep &= value != not_high.take(limit)
            chosen = np.flatnonzero(keep)
            row, limit = row.take(chosen), limit.take(chosen)
        for rows in self.oblique:
            chosen = np.flatnonzero(holds.ravel().take((rows * batch).take(limit) + row))
            row, limit = row.take(chosen), limit.take(chosen)
        return row, limit
