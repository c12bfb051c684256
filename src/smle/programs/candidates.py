"""Checked candidates behind any model's answers (certificate format, section 13): what passes the check is served.

An answer that the rules allow stays. Others are replaced by the nearest proposal that passes; where none does, by the
stored safe answer. Proposals are not proved, the check and the safe answers are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.programs.clip_list import ClipList
from smle.programs.proposals import Proposals
from smle.rules.arrays import ClauseArrays
from smle_check.floats import TINY
from smle_check.heads.candidates import checked_of, gated_regions
from smle_check.heads.clips import STAGES, WIDE, limits_of
from smle_check.program import Op, Stage, clip_list, gate_of

__all__ = ["Candidates", "Served"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
_TINY, _WIDE = np.float32(float(TINY)), float(WIDE)


@dataclass
class Served:
    """How many rows were served by what: the answer itself, a proposal, the stored safe answer."""

    kept: int = 0
    repaired: int = 0
    safe: int = 0


class Candidates:
    """Serves answers that obey the rules: (inputs, answers) -> answers, in float32.

    Attributes:
        served: How many rows were served by what since it was made.
    """

    def __init__(self, certificate: Certificate) -> None:
        self.certificate, self.served = certificate, Served()
        document = certificate.document
        self._clips = ClipList(certificate)
        self.specification = spec = smle_check.Specification(document["specification"], certificate.block)
        self.tensors = arrays_of(certificate.tensors)
        self._tree = document["program"]["tree"]
        self._regions = gated_regions(spec)
        self._gate = gate_of(spec, self._regions)
        self._stages = [op for op in clip_list(spec, limits_of(spec), self._regions) if isinstance(op.fixed, Stage)]
        place = {region: i for i, region in enumerate(self._regions)}
        self._switches = np.zeros((len(self._regions), len(spec.rules)), dtype=np.float32)
        for i, rule in enumerate(spec.rules):
            self._switches[[place[region] for region in rule.regions], i] = 1
        checked = checked_of(spec)
        self._moving = checked.moving
        self._flat = np.array([k for clause in checked.clauses for k in clause.literals], dtype=np.intp)
        sizes = [len(clause.literals) for clause in checked.clauses]
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp) if sizes else np.zeros(0, np.intp)
        self._rule = np.array([clause.rule for clause in checked.clauses], dtype=np.intp)
        self._G, self._S, self._H = (self.tensors[f"check.{name}"] for name in ("outputs", "inputs", "thresholds"))
        self._range = self.tensors["check.range"]
        self._reads = (self._G != 0).T.astype(np.float32)  # (m, literals)
        self._excluded = [(rule, _matrix(spec, rule)) for rule in checked.excluding]
        labels = [i for i, entry in enumerate(document["specification"]["outputs"]) if entry["kind"] == "label"]
        self._clauses = ClauseArrays.of(spec, labels)

    def __reduce__(self) -> tuple[Any, ...]:
        return Candidates, (self.certificate,)

    def __call__(self, X: Array, answers: Array) -> Array:
        """Return the answers (n, m) in float32 that obey the rules at X (n, d), which is float32 or float64.

        Raises:
            TypeError: If X has another kind of numbers.
            ValueError: If there is not one row of inputs for each row of answers, or a column too many or too few.
        """
        return self.explained(X, answers)[0]

    def explained(self, X: Array, answers: Array) -> tuple[Array, npt.NDArray[np.int8]]:
        """Return the answers, and by what each row was served: 0 the answer itself, 1 a proposal, 2 the safe answer."""
        y = _settled(self._clips(X, answers))
        x = self._clamped(X)
        wide = x.astype(np.float64, copy=False)
        bits = self._bits(x, wide)
        on = bits.astype(np.float32) @ self._switches > 0
        moving = wide @ self._S.T if self._moving else np.zeros((len(x), 0))
        by = np.zeros(len(y), dtype=np.int8)
        open_ = np.flatnonzero(~self._ok(y, on, moving))
        if len(open_):
            self._repair(X, np.asarray(answers), y, by, open_, (wide, bits, on, moving))
        counts = np.bincount(by, minlength=3)
        self.served.kept += int(counts[0])
        self.served.repaired += int(counts[1])
        self.served.safe += int(counts[2])
        return y, by

    def _repair(
        self, X: Array, answers: Array, y: Array, by: Array, rows: Array, known: tuple[Array, Mask, Mask, Array]
    ) -> None:
        """Replace the answers of some rows, in place."""
        wide, bits, on, moving = (part[rows] for part in known)
        inputs = X[rows]
        safe = _settled(self._behind_clips(self._safe(wide, bits), wide, bits))
        with np.errstate(over="ignore", invalid="ignore"):
            given = np.asarray(answers[rows], dtype=np.float32).astype(np.float64)
        given = np.where(np.abs(given) <= _WIDE, given, self.tensors["clips.default"].astype(np.float64))
        y[rows], by[rows] = safe, 2
        left = np.arange(len(rows))
        proposals = self.proposals(on[:, self._clauses.parts], np.asarray(wide), given, safe.astype(np.float64))
        proposed = next(proposals, None)
        while proposed is not None and len(left):
            candidate = _settled(self._clips(inputs[left], proposed.astype(np.float32)))
            passed = self._ok(candidate, on[left], moving[left])
            y[rows[left[passed]]], by[rows[left[passed]]] = candidate[passed], 1
            left = left[~passed]
            try:
                proposed = proposals.send(~passed)
            except StopIteration:
                return

    @cached_property
    def proposals(self) -> Proposals:
        """What finds answers that obey; made when the first is asked for."""
        clauses, aims = self._deployed()
        return Proposals(clauses, self.tensors["check.scale"], aims, self._range)

    def _deployed(self) -> tuple[ClauseArrays, Array]:
        """Return the clauses for proposals to aim at, and what the head compares their literals with.

        A limit is what its clip makes of it: a proposal between the two would be moved once more, away from what else
        it obeys.
        """
        spec, clauses = self.specification, self._clauses
        g, s, aims = clauses.g.copy(), clauses.s.copy(), clauses.h.copy()
        stated = [(i, c) for i, rule in enumerate(spec.rules) for c in range(len(rule.clauses))]
        row = dict(zip(stated, np.searchsorted(clauses.clause, np.arange(len(stated))).tolist(), strict=True))
        clipped: dict[int, float] = {}
        limits = limits_of(spec)
        for stage in STAGES:
            own = [limit for limit in limits if limit.stage == stage]
            slopes = self.tensors.get(f"clips.{stage}_slope", np.zeros((len(own), s.shape[1])))
            for limit, offset, slope in zip(own, self.tensors[f"clips.{stage}"].tolist(), slopes, strict=True):
                k = row[limit.rule, limit.clause]
                if limit.slope:
                    g[k, limit.output], s[k] = -limit.side, limit.side * slope.astype(np.float64)
                # A clause has a clip in each region of its rule: the tightest.
                clipped[k] = min(clipped.get(k, np.inf), float(g[k, limit.output]) * offset)
        checked = np.ones(len(aims), dtype=bool)
        checked[list(clipped)] = False
        aims[checked] = self._H[self._flat]
        aims[list(clipped)] = list(clipped.values())
        return replace(clauses, g=g, s=s), aims

    # --- the program

    def _clamped(self, X: Array) -> Array:
        kind = X.dtype.newbyteorder("=")
        lower, upper = (self.tensors[f"domain.{end}_{kind.name}"] for end in ("lower", "upper"))
        return np.asarray(np.fmin(np.fmax(X.astype(kind, copy=False), lower), upper))

    def _bits(self, x: Array, wide: Array) -> Mask:
        """Return which regions hold, (n, regions)."""
        holds = []
        constants = self.tensors[f"gate.constants_{x.dtype.name}"]
        for (column, negative, strict), constant in zip(self._gate.comparisons, constants, strict=True):
            values, limit = x[:, column], -constant if negative else constant
            if negative:
                holds.append(values > limit if strict else values >= limit)
            else:
                holds.append(values < limit if strict else values <= limit)
        if self._gate.oblique:
            sums = wide @ self.tensors["gate.coefficients"].T
            holds += list((sums <= self.tensors["gate.thresholds"]).T)
        bits = np.ones((len(x), len(self._gate.members)), dtype=bool)
        for region, members in enumerate(self._gate.members):
            for row in members:
                bits[:, region] &= holds[row]
        return bits

    def _ok(self, y: Array, on: Mask, moving: Array) -> Mask:
        """Return which rows satisfy the check, (n,)."""
        wide = y.astype(np.float64)
        ok = np.ones(len(y), dtype=bool)
        if len(self._flat):
            sums = wide @ self._G.T
            sums[:, : self._moving] += moving
            holds = sums <= self._H
            beyond = np.abs(wide) > self._range
            if beyond.any():
                holds &= beyond.astype(np.float32) @ self._reads == 0
            satisfied = np.logical_or.reduceat(holds[:, self._flat], self._starts, axis=1)
            ok &= (satisfied | ~on[:, self._rule]).all(axis=1)
        for rule, pairs in self._excluded:
            chosen = (y >= 0).astype(np.float32)
            ok &= ~on[:, rule] | ~((chosen @ pairs) * chosen).any(axis=1)
        return ok

    def _behind_clips(self, answers: Array, wide: Array, bits: Mask) -> Array:
        """Return safe answers behind the clips of the very bits that chose their leaves.

        The proof of a leaf has every bit at one value. At the border of an oblique row the clip list, which sums in
        another way, may see the other one. For candidates that makes no difference: they are checked afterwards.
        """
        q = answers.astype(np.float64)
        for op in self._stages:
            values = self.tensors[str(op.args[2])].astype(np.float64)
            if op.args[4] is not None:
                values = wide @ self.tensors[op.args[4]].T.astype(np.float64) + values
            self._move(q, op, np.where(bits[:, op.fixed.bits], values, -np.inf if op.kind == "raise_to" else np.inf))
        return q.astype(np.float32)

    @staticmethod
    def _move(q: Array, op: Op, limits: Array) -> None:
        """Raise or lower answers to their limits (n, limits of the stage), in place."""
        outputs = np.array(op.fixed.outputs)
        for output in np.unique(outputs):
            own, column = limits[:, outputs == output], q[:, output]
            if op.kind == "raise_to":
                np.maximum(column, own.max(axis=1), out=column)
            else:
                np.minimum(column, own.min(axis=1), out=column)

    def _safe(self, wide: Array, bits: Mask) -> Array:
        """Return the stored answers (n, m) of the leaves, in float32, before the clips."""
        result = np.zeros((len(wide), len(self._range)), dtype=np.float32)
        place = {region: i for i, region in enumerate(self._regions)}
        number = 0
        stack = [(self._tree, np.arange(len(wide)))]
        while stack:
            tree, rows = stack.pop()
            if tree is None:
                slope, offset = self.tensors["safe.slope"][number], self.tensors["safe.offset"][number]
                sums = wide[rows] @ slope.T.astype(np.float64) if slope.any() else 0.0
                result[rows] = sums + offset.astype(np.float64)
                number += 1
            else:
                inside = bits[rows, place[tree[0]]]
                stack += [(tree[2], rows[~inside]), (tree[1], rows[inside])]
        return result


def _settled(y: Array) -> Array:
    """Set numbers nearer to 0 than the smallest normal one to 0, in place."""
    y[np.abs(y) < _TINY] = 0
    return y


def _matrix(spec: smle_check.Specification, rule: int) -> npt.NDArray[np.float32]:
    pairs = np.array(spec.rules[rule].exclusions, dtype=np.intp)
    matrix = np.zeros((len(spec.outputs), len(spec.outputs)), dtype=np.float32)
    matrix[pairs[:, 0], pairs[:, 1]] = 1
    return matrix
