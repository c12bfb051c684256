"""A clip list with many limits, few of them active at a point: only those are examined.

The range of every input is cut into equal parts. A table lists the limits that may be active in a part, by the input
that narrows each limit down most; pairs of a row and such a limit are then compared with the limit's own constants.
Parts only must not miss anything: a limit is listed in one more part on either side than its constants fall into, and
the effect of order or flushing of operations is far smaller than a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
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
_TOGETHER = 128  # rows that operations see as one long row, which is faster
_LARGE = 1 << 20  # positions of a table that float32 separates well: its numbers are a sixteenth of one apart
_NEAR = 0.125  # of a part: more than half a distance each in the offset and in the sum, and the rounding of the product


class _Range(NamedTuple):
    """Low <= x <= high, except `not_low` and `not_high` (NaN: no exception)."""

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
    """(features, answer) -> answers, by pairs of a row and a limit that is active there.

    `share`: the share of the limits examined for a row, at inputs anywhere in their ranges.
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
        self.repeated = [np.tile(v, _TOGETHER) for v in (self.lower, self.upper, self.scale, self.offset)]
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
        # After the last one, a limit that changes nothing, for those that turn out to be inactive.
        self.bits, self.stage, self.outputs = bits, np.array([*stage, 0]), np.array([*outputs, 0])
        self.values = np.concatenate([*values, [-np.inf]])
        self.slopes = np.concatenate([*slopes, np.zeros((1, len(self.columns)))])
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
        self.tabulate(sparse, [bool(oblique[bit]) for bit in self.bits])
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
            self.terms = [(columns - np.append(first, 0), factors) for columns, factors in self.terms]
        self.oblique = []
        for slot in range(max((len(oblique[self.bits[j]]) for j in sparse), default=0)):
            last = [(oblique[bit][slot : slot + 1] or [len(self.thresholds)])[0] for bit in self.bits]
            self.oblique.append(np.array(last, dtype=np.intp))  # the row after the last one always holds

    def tabulate(self, sparse: dict[int, dict[int, _Range]], oblique: list[bool]) -> None:
        """List the limits that may be active in each part of each input."""
        kind = self.lower.dtype.type
        with np.errstate(over="ignore"):
            width = self.upper - self.lower
        parts_of = _PARTS[len(width) > _FINE]
        fine = (width >= 2.0**-100) & (width <= 2.0**100)  # others have one part
        self.origin = np.where(fine, self.lower, kind(0))
        self.scale = np.where(fine, kind(parts_of) / np.where(fine, width, kind(1)), kind(0))
        bases = np.arange(len(width)) * (parts_of + 2)
        # Half a part more, so that rounding never leads to the part before an input's first. If numbers are too large
        # for that in the format, they are subtracted first.
        self.offset = (bases + 0.5 - self.origin.astype(_FLOAT64) * self.scale).astype(kind)
        self.bases = bases if np.abs(self.origin * self.scale).max() > parts_of or bases.max() > _LARGE else None
        lists: list[list[int]] = [[] for _ in range(len(width) * (parts_of + 2))]
        unsure = np.zeros(len(lists), dtype=bool)  # parts near an end of a listed limit
        for j, box in sparse.items():
            ends = {k: [self.position(k, end) for end in own[:2]] for k, own in box.items()}
            k = min(box, key=lambda k: ends[k][1] - ends[k][0] if fine[k] else parts_of)
            sparse[j] = {k: box[k]} | box  # that input first
            low, high = ends[k]
            parts = range(max(int(low - _NEAR), bases[k]), min(int(high + _NEAR), bases[k] + parts_of + 1) + 1)
            for part in parts:
                lists[part].append(j)
                inner = int(low + _NEAR) < part < int(high - _NEAR)
                unsure[part] |= not inner or len(box) > 1 or oblique[j]
        longest = max(map(len, lists))
        # The first limit of each list, the second, ..., counted from 1; 0 if there is none. Negative: a part not inside
        # the one listed limit, so that inputs must be compared with what limits ask for.
        small = np.min_scalar_type(-len(self.bits) - 1)
        self.listed = [
            np.array([own[i] + 1 if i < len(own) else 0 for own in lists], dtype=small) for i in range(longest)
        ]
        if self.listed:
            more = np.array([len(own) > 1 for own in lists])
            self.listed[0] *= np.where(more | unsure, -1, 1).astype(small)
        self.share = (sum(map(len, lists)) / parts_of + len(self.dense)) / max(1, len(self.bits))

    def position(self, k: int, value: Any) -> float:
        """Return where a value of input k lies in the table of parts, up to `_NEAR` as `block` computes it."""
        if self.bases is None:
            return float(value) * float(self.scale[k]) + float(self.offset[k])
        return (float(value) - float(self.origin[k])) * float(self.scale[k]) + float(self.bases[k])

    def __call__(self, features: Array, answer: Array) -> Array:
        """Return the answers (batch, m), moved within the limits."""
        if len(answer) <= _BLOCK:
            return self.block(features, answer)
        starts = range(0, len(answer), _BLOCK)
        return np.concatenate([self.block(features[i : i + _BLOCK], answer[i : i + _BLOCK]) for i in starts])

    def block(self, features: Array, answer: Array) -> Array:
        """Return the answers to at most `_BLOCK` rows."""
        batch, outputs = answer.shape
        width = len(self.columns) * gcd(batch, _TOGETHER)
        lower, upper, scale, offset = (own[:width] for own in self.repeated)
        read = features if self.all_columns else features.take(self.columns, 1)
        x = np.fmax(read.reshape(-1, width), lower)
        x = np.fmin(x, upper, out=x).reshape(read.shape)
        wide = x.astype(_FLOAT64) if self.coefficients is not None or self.dense else x
        holds = self.holds(wide, batch)
        most = np.full((len(self.lowering), batch, outputs), -np.inf)
        if self.listed:
            if self.bases is None:
                parts = x.reshape(-1, width) * scale
                parts += offset
                entries = parts.astype(np.int32)
            else:
                entries = ((x - self.origin) * self.scale).astype(np.intp)
                entries += self.bases
            row, limit, place = self.active(x, entries, holds)
            values, flat = self.values.take(limit), x.ravel()
            for shift, factors in self.terms:
                read = shift.take(limit)
                read += place
                term = flat.take(read).astype(_FLOAT64)
                term *= factors.take(limit)
                values += term
            row *= outputs
            row += (self.stage * (batch * outputs) + self.outputs).take(limit)
            np.maximum.at(most.ravel(), row, values)
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

    def active(self, x: Array, entries: Array, holds: Array) -> tuple[Array, Array, Array]:
        """Return the pairs of a row and a limit that is active there, and the position of the limit's first input in x.

        A few inactive ones refer to the last limit, which changes nothing.
        """
        codes, flat = self.listed[0].take(entries).ravel(), x.ravel()
        place = np.flatnonzero(codes != 0)
        code = codes.take(place)
        unsure = np.flatnonzero(code < 0)
        places, limits = [place.take(unsure)], [np.negative(code.take(unsure))]
        entry = entries.ravel().take(places[0])
        for listed in self.listed[1:]:
            more = listed.take(entry)
            longer = np.flatnonzero(more != 0)
            if not len(longer):
                break
            entry = entry.take(longer)
            places.append(places[-1].take(longer))
            limits.append(more.take(longer))
        asked_place, asked_limit = np.concatenate(places), np.concatenate(limits).astype(np.intp)
        asked_limit -= 1
        marked = 2 * len(unsure) <= len(place)  # mark them in place if they are few
        if not marked:
            sure = np.flatnonzero(code > 0)
            place, code = place.take(sure), code.take(sure)
        limit = np.abs(code).astype(np.intp)
        limit -= 1
        active = np.arange(len(asked_limit) if marked else 0)
        for i, (shift, *_) in enumerate(self.asked):
            value = flat.take(shift.take(asked_limit) + asked_place if i else asked_place)
            chosen = np.flatnonzero(self.inside(i, asked_limit, value))
            asked_limit, asked_place = asked_limit.take(chosen), asked_place.take(chosen)
            active = active.take(chosen) if marked else active
        for rows in self.oblique:
            chosen = np.flatnonzero(holds.ravel().take(rows.take(asked_limit) * len(x) + asked_place // x.shape[1]))
            asked_limit, asked_place = asked_limit.take(chosen), asked_place.take(chosen)
            active = active.take(chosen) if marked else active
        first = int(active.searchsorted(len(unsure)))
        if marked:
            limit[unsure] = len(self.bits)
            limit[unsure.take(active[:first])] = asked_limit[:first]
        place, limit = np.concatenate([place, asked_place[first:]]), np.concatenate([limit, asked_limit[first:]])
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
