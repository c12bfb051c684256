"""Checked candidates behind any model (certificate format, section 13): only answers that pass the check are served.

An answer that the rules allow stays. Any other gives way to the nearest proposal that passes or, if none passes, to the
stored safe answer. The check and the safe answers are proved; proposals need not be.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.certificates.document import Certificate
from smle.heads.rules.checks import BlockCheck, Check, CheckedColumns, CheckedRows, as_stored, row
from smle.heads.rules.clip_list import MANY_LIMITS, ClipList
from smle.heads.slopes import Limits, SlopePart, Slopes, changed_bits
from smle.nearest import BlockPoints, Clauses, Proposals
from smle.nearest.alternatives import NearestPoints
from smle.nearest.blocks import Block
from smle.nearest.nearest_slopes import Faces
from smle.quiet import quiet
from smle_check.floats import TINY
from smle_check.heads.clips import STAGES, limits_of
from smle_check.heads.sums import WIDE
from smle_check.program import Op, gate_of, gated

__all__ = ["Candidates"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_FEW_ROWS = 8  # rows answered one by one
_FEW_BLOCKS = 8  # up to this many blocks, all are solved; with more, only blocks that do not pass
_AT_POINT = 2.0**-12  # how far a point may be moved inward, in units, without counting as a move to the safe answer


class Candidates(ClipList):
    """A program whose answers obey the rules: (inputs, answers) -> answers, in float32."""

    def __init__(self, certificate: Certificate) -> None:
        super().__init__(certificate)
        spec, regions = self.specification, self.regions
        self._check = Check(spec, regions, self.stored)
        if self._limits > MANY_LIMITS:  # clips have a separate program
            ops = gated(gate_of(spec, regions), wide=bool(self._check.moving))
            self._behind = [*ops, Op("given", "q", ("answer",)), Op("narrow", "y", ("q",))]
        self._few = _FEW_ROWS if self._check.is_short and self._limits <= MANY_LIMITS else 0
        self._clauses = Clauses.of(spec, self.labels)
        of_part = [[self._place[region] for region in spec.rules[r].regions] for r in self._clauses.parts.tolist()]
        starts, places = np.cumsum([0, *map(len, of_part)]), np.array([*chain(*of_part)], dtype=np.intp)
        self._of_part = places if len(places) == len(of_part) else None  # the only region of its rule
        ones = np.ones(len(places), dtype=np.float32)
        self._switches = as_stored(sparse.csc_matrix((ones, places, starts), (len(regions), len(of_part))))
        self._one_at_a_time = Lock()  # proposals cache what they prepare
        self._proposals: Proposals | None = None
        self._blocks: BlockCheck | None = None
        _ALIVE.add(self)

    def __call__(self, X: Array, answers: Array) -> Array:
        """Return the answers (n, m) in float32."""
        return self.explained(X, answers)[0]

    @quiet
    def explained(self, X: Array, answers: Array) -> tuple[Array, npt.NDArray[np.int8]]:
        """Return the answers, and how each row was served.

        0: the answer itself, 1: the nearest allowed one, 2: the stored safe answer, 3: a near one, because the search
        for the nearest was cut short.
        """
        y, bad, bits = self._run(X, answers)
        by = np.zeros(len(y), dtype=np.int8)
        if len(bad):
            rows = np.asarray(bad, dtype=np.intp)
            with self._one_at_a_time:
                given = np.asarray(answers).take(rows, 0)
                asked = X.take(rows, 0), given, y.take(rows, 0), np.asarray(bits, dtype=bool)
                y[rows], served = self._repaired(*asked)
            by[rows] = 1 if served is None else served
        return y, by

    def _repaired(
        self, X: Array, answers: Array, clipped: Array, bits: Mask
    ) -> tuple[Array, npt.NDArray[np.int8] | None]:
        """Return answers for rows that do not pass, and how they were found (see `explained`; None: all nearest)."""
        first, found = self._first_proposals(X, answers, clipped, bits)
        y, bad, _ = self._run(X, first.astype(np.float32))
        short, flat = found.cut, first.ravel()
        if not len(bad) and not short and flat.dot(flat) < np.inf:  # no NaN
            return y, None
        proposals = self.proposals.further(first, found, lambda: self._safe(X, bits).astype(np.float64))
        next(proposals)
        by = np.where(np.any(short, axis=0), 3, 1).astype(np.int8) if short else np.ones(len(y), dtype=np.int8)
        by[np.isnan(first).any(axis=1)] = 3  # the default stands in for what was not found
        left = np.arange(len(y))
        while len(bad):
            open_ = np.zeros(len(left), dtype=bool)
            open_[bad] = True
            left = left[open_]
            try:
                proposed, way = proposals.send(open_)
            except StopIteration:
                y[left], by[left] = self._safe(X[left], bits[left]), 2
                break
            y[left], bad, _ = self._run(X[left], proposed.astype(np.float32))
            by[left] = np.where(np.isnan(proposed).any(axis=1), 3, by[left] if way == 1 else way)
        return y, by

    def _first_proposals(self, X: Array, answers: Array, clipped: Array, bits: Mask) -> tuple[Array, BlockPoints]:
        """Return the first proposals for rows that do not pass; `clipped` has their answers after the clips."""
        proposals, active, given = self.proposals, self._active(bits), self._given(answers)
        x = self._inside(X) if proposals.reads_inputs or self._blocks is not None else X
        passed = None if self._blocks is None else self._blocks.passed(x, given, clipped, active)
        return proposals.first(active, x, given, passed)

    def _active(self, bits: Mask) -> Mask:
        """Return a mask of the parts that bind: the parts of rules with an active region."""
        if self._of_part is not None:
            return np.asarray(bits.take(self._of_part, 1))
        return np.asarray(bits.astype(np.float32) @ self._switches > 0)

    def _given(self, answers: Array) -> Array:
        """Round answers to float32 and return them in float64."""
        if answers.dtype != np.float32:
            answers = answers.astype(np.float32)
        return answers.astype(np.float64)

    @property
    def proposals(self) -> Proposals:
        """The search for answers that obey, created on first use."""
        if self._proposals is None:
            clauses, aims = self._deployed()
            self._proposals = Proposals(clauses, self.stored["check.scale"], aims, self.stored["clips.default"])
            if self._check.clauses and len(self._proposals.parts) > _FEW_BLOCKS:
                part_of = {rule: part for part, rule in enumerate(clauses.parts.tolist())}
                self._blocks = BlockCheck(self._check, [part.outputs for part in self._proposals.parts], part_of)
        return self._proposals

    def start_anew(self) -> None:
        """Reset after a fork, if a thread of the parent process held the lock."""
        if self._one_at_a_time.locked():
            self._proposals, self._one_at_a_time = None, Lock()

    def _deployed(self) -> tuple[Clauses, Array]:
        """Return the clauses that proposals aim at, and the bounds with which the head compares their literals.

        A limit has its clip's numbers: the clip would move a proposal that only obeys the stated limit, perhaps too
        far.
        """
        spec, clauses = self.specification, self._clauses
        outputs, inputs, aims = list(clauses.outputs), list(clauses.inputs), clauses.h.copy()
        stated = [(i, c) for i, rule in enumerate(spec.rules) for c in range(len(rule.clauses))]
        first = dict(zip(stated, np.searchsorted(clauses.clause, np.arange(len(stated))).tolist(), strict=True))
        clipped: dict[int, float] = {}
        limits = limits_of(spec)
        for stage in STAGES:
            own = [limit for limit in limits if limit.stage == stage]
            slopes = self.stored.get(f"clips.{stage}_slope", np.zeros((len(own), clauses.width)))
            for limit, offset, slope in zip(own, self.stored[f"clips.{stage}"].tolist(), slopes, strict=True):
                k = first[limit.rule, limit.clause]
                if limit.slope:
                    outputs[k] = {limit.output: float(-limit.side)}
                    inputs[k] = {int(j): float(limit.side * slope[j]) for j in np.flatnonzero(slope)}
                # A clause has a clip in each region of its rule; take the tightest. A table's clips are all the same.
                clipped[k] = min(clipped.get(k, np.inf), outputs[k][limit.output] * offset)
        checked = np.ones(len(aims), dtype=bool)
        checked[list(clipped)] = False
        listed = [k for _, own in self._check.clauses for k in own]
        aims[checked] = self._check.thresholds[listed]
        for place, k in zip(np.flatnonzero(checked).tolist(), listed, strict=True):
            if k < self._check.moving and any(clauses.group[j] >= 0 for j in inputs[place]):  # numbers of tables
                inputs[place] = dict(row(self._check.inputs, k))
        aims[list(clipped)] = list(clipped.values())
        return replace(clauses, outputs=outputs, inputs=inputs), aims

    # --- the program

    def _for_rows(self, fmt: str) -> Any:
        return CheckedRows(self._ops, self.stored, fmt, self._check).function()

    def _for_columns(self, fmt: str) -> Any:
        if self._limits <= MANY_LIMITS:
            return CheckedColumns(self._ops, self.stored, fmt, self._check).function()
        clips = super()._for_columns(fmt)
        check: Any = CheckedColumns(self._behind, self.stored, fmt, self._check).function()
        return lambda features, answer: check(features, clips(features, answer))

    def _safe(self, X: Array, bits: Mask) -> Array:
        """Return safe answers (n, m) in float32, clipped with the same bits that choose their leaves.

        The proof of a leaf fixes every bit. The printed functions sum in another order, so at the border of an oblique
        row they may see the other value. Candidates may be clipped by them, since they are checked afterwards.
        """
        wide = self._inside(X)
        q = self._stored(wide, bits).astype(np.float64)
        for output, raises, limits, _ in self._limits_at(wide, bits):
            column = q[:, output]
            q[:, output] = np.maximum(column, limits.max(axis=1)) if raises else np.minimum(column, limits.min(axis=1))
        y = q.astype(np.float32)
        y[np.abs(y) < np.float32(float(TINY))] = 0.0
        return y

    def _stored(self, wide: Array, bits: Mask) -> Array:
        """Return the stored answers (n, m) of the leaves, in float32, before the clips."""
        result = np.zeros((len(wide), len(self.stored["check.scale"])), dtype=np.float32)
        for rows, slope, offset in self._leaves(len(bits), self._held(bits)):
            sums = wide[rows] @ slope.T.astype(np.float64) if slope.any() else 0.0
            result[rows] = sums + offset.astype(np.float64)
        return result

    def _held(self, bits: Mask) -> Callable[[int, Numbers], Mask]:
        """Return a function that tells in which rows a region holds."""
        return lambda region, rows: bits[rows, self._place[region]]

    # --- derivatives

    @property
    def moves(self) -> bool:
        """Whether a requirement of some rule, or a safe answer, reads a number."""
        stated = any(self._is_number[list(form)].any() for form in self._clauses.inputs)
        return bool(stated or self.stored["safe.slope"][:, :, self._is_number].any())

    @quiet
    def slopes(self, X: Array, answers: Array, served: Array) -> Slopes:
        """Return derivatives of what was served.

        Answers that only clips moved follow their limits. Nearest answers keep their tight rows tight, and move with
        their bounds. Labels that were turned do not move.
        """
        changed = changed_bits(answers, served)
        rows = np.flatnonzero(changed.any(axis=1))
        with self._one_at_a_time:
            _, bad, bits = self._run(X[rows], answers[rows])
            clipped = np.ones(len(rows), dtype=bool)
            clipped[bad] = False
            own = rows[clipped]
            parts: list[SlopePart] = [self._at_limits(own, X[own], answers[own], self.bits_of(X[own]))]
            kept, own = ~changed, rows[~clipped]
            if len(own):
                parts += self._repairs(own, X[own], answers[own], served[own], np.asarray(bits, dtype=bool), kept)
        return Slopes(kept, np.abs(answers) <= float(WIDE), self._in_domain(X), parts)

    def _repairs(
        self, rows: Numbers, X: Array, answers: Array, served: Array, bits: Mask, kept: Mask
    ) -> list[SlopePart]:
        """Return derivatives of what was served to rows that do not pass; clear `kept` for numbers that blocks move."""
        x, y = self._inside(X), served.astype(np.float64)
        _, found = self.proposals.first(self._active(bits), x, self._given(answers))
        clipped = self._at_limits(rows, X, answers, bits)
        alone = ~np.isin(clipped.outputs, np.concatenate([block.outputs for block in self.proposals.parts]))
        parts: list[SlopePart] = [Limits(clipped.rows[alone], clipped.outputs[alone], clipped.slopes[alone])]
        for number, block in enumerate(self.proposals.parts):
            if kept[np.ix_(rows, block.outputs)].all():
                continue
            points = found.of(number)
            if not isinstance(block, Block) or not isinstance(points, NearestPoints):
                continue
            kept[np.ix_(rows, block.outputs)] = False
            own = y[:, block.outputs]
            z, on = points.tight(own)
            size = 1.0 + np.abs(own / block.unit).max(axis=1)
            away = np.flatnonzero(~(np.abs((own - z) / block.unit).max(axis=1) <= _AT_POINT * size))
            weight = np.ones(len(rows))
            if len(away):  # toward the safe answer, or all the way
                safe = self._safe(X[away], bits[away])[:, block.outputs].astype(np.float64)
                share = _share((own[away] - z[away]) / block.unit, (safe - z[away]) / block.unit)
                parts.append(self._safe_slopes(rows[away], x[away], bits[away], block.outputs, share))
                weight[away] -= share
            parts.append(Faces(block, rows, on & (weight > 0)[:, None], weight))
        return parts

    def _safe_slopes(self, rows: Numbers, wide: Array, bits: Mask, outputs: Numbers, share: Array) -> Limits:
        """Return how shares (n,) of safe answers move with inputs."""
        slopes = np.zeros((len(rows), self.width, wide.shape[1]))
        for own, slope, _ in self._leaves(len(bits), self._held(bits)):
            slopes[own] = slope
        moved = self._moved(self._stored(wide, bits).astype(np.float64), wide, bits, slopes)
        listed = (share[:, None, None] * moved[:, outputs]).reshape(-1, wide.shape[1])
        return Limits(np.repeat(rows, len(outputs)), np.tile(outputs, len(rows)), listed)


def _share(gone: Array, way: Array) -> Array:
    """Return the share of its way that each row has gone (n,); 1 if its start is unknown."""
    share = (gone * way).sum(axis=1) / (way * way).sum(axis=1)
    return np.where(np.isnan(share), 1.0, np.clip(share, 0.0, 1.0))


_ALIVE: WeakSet[Candidates] = WeakSet()


def _start_anew() -> None:
    for program in list(_ALIVE):
        program.start_anew()


if hasattr(os, "register_at_fork"):  # a child process lacks the threads that would release locks
    os.register_at_fork(after_in_child=_start_anew)
