"""The clip list: limits on single outputs behind any model's answers (certificate format, section 12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.heads.contract import FORMATS, AnswersProgram
from smle.heads.rules.many_limits import LimitPairs
from smle.heads.slopes import Limits, Slopes, changed_bits
from smle.programs.numpy_operations import TABLE
from smle.programs.source import Columns, Function, PrintedRows
from smle.quiet import quiet
from smle_check.heads.clips import limits_of
from smle_check.heads.sums import WIDE
from smle_check.program import Stage, clip_list, needed, prepared, run

__all__ = ["ClipList"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_FEW_ROWS, _MANY_ROWS = 8, 32  # rows answered one by one: the first number plus two per limit, at most the second
MANY_LIMITS, _FEW_WITH_MANY_LIMITS = 40, 2  # more limits than this are looked up, except for so few rows
_SHARE = 0.15  # limits are looked up if a row then examines less than this share of them
_MOST_PRINTED = 3000  # more limits than this are never printed one by one
_LONG_SUM = 16
_AT_ONCE = 1024  # rows whose limits are compared at once, for derivatives


class ClipList(AnswersProgram):
    """A program that moves answers within the limits active at their inputs; allowed answers stay.

    In a head with checked candidates, it runs before the check.
    """

    def __init__(self, certificate: Certificate) -> None:
        super().__init__(certificate)
        spec = self.specification
        limits = limits_of(spec)
        self._ops = clip_list(spec, limits, self.regions)
        self._of_rows: dict[Any, Function] = {}
        self._of_columns: dict[Any, Function] = {}
        self._limits, self._few = len(limits), min(_FEW_ROWS + 2 * len(limits), _MANY_ROWS)
        if len(limits) > MANY_LIMITS:
            self._few = _FEW_WITH_MANY_LIMITS if len(limits) <= _MOST_PRINTED else 0
        # Printed functions look up long sums over categories; pairs of a row and a limit would add them term by term.
        self._long = any(len(limit.slope) > _LONG_SUM for limit in limits)
        self._stages = [op for op in self._ops if isinstance(op.fixed, Stage)]
        self._is_number = np.ones(len(spec.inputs), dtype=bool)  # numbers, not members of a one-hot group
        self._is_number[[k for group in spec.groups for k in group]] = False

    @quiet
    def __call__(self, X: Array, answers: Array) -> Array:
        """Return the answers (n, m) in float32, moved within the limits at X (n, d), in float32 or float64."""
        return self._run(X, answers)  # type: ignore[no-any-return]

    def bits_of(self, X: Array) -> npt.NDArray[np.bool_]:
        """Return a mask of the gate's regions that each row lies in (n, regions)."""
        kind = X.dtype.newbyteorder("=")
        steps = prepared(needed(self._ops, ("bits",)), self.stored, TABLE, kind.name)
        return run(steps, {"features": X.astype(kind, copy=False)})  # type: ignore[no-any-return]

    def _limits_at(self, wide: Array, bits: Mask) -> Iterator[tuple[int, bool, Array, Array]]:
        """Yield (output, whether limits raise it, limits (n, own), slopes (own, d)), stage by stage.

        Inactive limits are infinite.
        """
        for op in self._stages:
            values = self.stored[str(op.args[2])].astype(np.float64)
            slopes = np.zeros((len(values), self._shape[0]))
            if op.args[4] is not None:
                slopes = self.stored[op.args[4]].astype(np.float64)
                values = wide @ slopes.T + values
            raises = op.kind == "raise_to"
            limits, outputs = np.where(bits[:, op.fixed.bits], values, -np.inf if raises else np.inf), op.fixed.outputs
            for output in set(outputs):
                own = np.array(outputs) == output
                yield output, raises, limits[:, own], slopes[own]

    # --- derivatives

    @property
    def moves(self) -> bool:
        """Whether some limit reads a number."""
        slopes = [self.stored[op.args[4]] for op in self._stages if op.args[4] is not None]
        return any(bool(own[:, self._is_number].any()) for own in slopes)

    @quiet
    def slopes(self, X: Array, answers: Array, served: Array) -> Slopes:
        """Return derivatives of what was served: outputs at a limit move with it, others with the answers."""
        changed = changed_bits(answers, served)
        rows = np.flatnonzero(changed.any(axis=1))
        part = self._at_limits(rows, X[rows], answers[rows], self.bits_of(X[rows]))
        return Slopes(~changed, np.abs(answers) <= float(WIDE), self._in_domain(X), [part])

    def _in_domain(self, X: Array) -> Mask:
        lower, upper = self._domain[X.dtype.itemsize]
        return np.asarray((lower <= X) & (upper >= X))

    def _at_limits(self, rows: Numbers, X: Array, answers: Array, bits: Mask) -> Limits:
        """Return how the answers that clips put at a limit move with it, for some rows."""
        found = [(np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp), np.empty((0, X.shape[1])))]
        for start in range(0, len(rows) if self.moves else 0, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            q = np.where(np.abs(answers[part]) <= float(WIDE), answers[part], self.stored["clips.default"])
            slopes = self._moved(q.astype(np.float64), self._inside(X[part]), bits[part])
            at, outputs = np.nonzero(slopes.any(axis=2))
            found.append((rows[part][at], outputs, slopes[at, outputs]))
        return Limits(*(np.concatenate(own) for own in zip(*found, strict=True)))

    def _moved(self, q: Array, wide: Array, bits: Mask, slopes: Array | None = None) -> Array:
        """Return how numbers q (n, m) move with inputs after the clips (n, m, d); `slopes` is how they move before."""
        moved = np.zeros((*q.shape, wide.shape[1])) if slopes is None else slopes
        span = np.arange(len(q))
        for output, raises, limits, own in self._limits_at(wide, bits):
            place = limits.argmax(axis=1) if raises else limits.argmin(axis=1)
            limit, column = limits[span, place], q[:, output]
            binds = limit > column if raises else limit < column
            q[binds, output] = limit[binds]
            moved[binds, output] = own[place[binds]]
        moved[:, :, ~self._is_number] = 0.0
        return moved

    # --- the program

    def _run(self, X: Array, answers: Array) -> Any:
        """Choose a printed function and call it."""
        rows, (columns, outputs) = len(answers), self._shape
        if X.shape != (rows, columns) or answers.shape != (rows, outputs):
            raise self._wrong_shapes(X, answers)
        if answers.dtype is not FORMATS[0]:
            answers = np.asarray(answers, dtype=np.float32)
        few = 0 < rows <= self._few
        function = (self._of_rows if few else self._of_columns).get(X.dtype)
        if function is None:
            X, function = self._first(X, few)
        return function(X, answers)

    def _first(self, X: Array, few: bool) -> tuple[Array, Function]:
        """Return inputs in this machine's byte order, and the function for their format."""
        X = self._native(X)
        known, made = (self._of_rows, self._for_rows) if few else (self._of_columns, self._for_columns)
        if X.dtype not in known:
            known[X.dtype] = made(X.dtype.name)
        return X, known[X.dtype]

    def _for_rows(self, fmt: str) -> Function:
        return PrintedRows(self._ops, self.stored, fmt, self.specification.groups).function()

    def _for_columns(self, fmt: str) -> Function:
        if self._limits > MANY_LIMITS and not self._long:
            pairs = LimitPairs(self._ops, self.stored, fmt)
            if pairs.share < _SHARE or self._limits > _MOST_PRINTED:
                return pairs
        return Columns(self._ops, self.stored, fmt, self.specification.groups).function()
