"""The grid head in NumPy: only answers that pass the check are served (certificate format, section 14).

An answer is rounded to the grid, and stays there if the rules allow it. Any other gives way to the nearest proposal
that passes or, if none passes, to the stored safe answer. The check and the safe answers are proved; proposals need not
be.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.heads.contract import FORMATS, AnswersProgram
from smle.heads.grid.reduction import reduce
from smle.heads.grid.step_blocks import Asked, GridBlock
from smle.nearest.clauses import tied_together
from smle.quiet import quiet
from smle_check.heads.grid import listed_of
from smle_check.heads.steps import SMALLEST_INPUT, Lattice, rows_of

__all__ = ["GridProgram", "GridProposals"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_TINY = float(SMALLEST_INPUT)
_MOVES = (2.0**-6, 2.0**-3, 0.25, 0.5)  # toward the safe answer
_FAR = 2.0**52
_AT_ONCE = 1 << 15  # numbers of a batch that stay in the processor's cache; larger batches are split


class GridProgram(AnswersProgram):
    """A program whose answers, in whole numbers of steps, obey the rules: (inputs, answers) -> answers, in float32."""

    def __init__(self, certificate: Certificate) -> None:
        super().__init__(certificate)
        tensors, regions = self.stored, self.regions
        self.lattice = spec = Lattice.read(self.specification)
        self.listed = listed_of(spec)
        self.numerator, self.denominator = tensors["grid.numerator"], tensors["grid.denominator"]
        self.lower, self.upper = tensors["grid.lower"], tensors["grid.upper"]
        self._num, self._den = _single(self.numerator), _single(self.denominator)
        self._low, self._high = _single(self.lower), _single(self.upper)
        self._scaled = bool((self.numerator != 1).any()), bool((self.denominator != 1).any())
        self._stepped = np.array([step is not None for step in spec.input_steps], dtype=bool)
        self._has_steps = bool(self._stepped.any())
        self._is_scaled_input = bool(
            (tensors["grid.input_numerator"] != 1).any() or (tensors["grid.input_denominator"] != 1).any()
        )
        place = {row: i for i, row in enumerate(rows_of(spec, regions))}
        self.members = [[place[row] for row in spec.regions[region]] for region in regions]
        # One line per literal, so that clauses combine whole lines, over all rows at once.
        self._C, self._H = tensors["check.outputs"], tensors["check.thresholds"]
        self._CX = tensors["check.steps"]
        self._short, self._long = (
            (tensors[f"check.inputs_{kind.name}"], tensors[f"check.fractions_{kind.name}"][:, None]) for kind in FORMATS
        )
        self._is_one_form = all(np.array_equal(a, b) for a, b in zip(self._short, self._long, strict=True))
        self._moving = self.listed.moving
        self._gate = np.ascontiguousarray(tensors["gate.rows"].T)
        self.always = [any(not spec.regions[g] for g in spec.rules[rule].regions) for rule, *_ in self.listed.clauses]
        self.clauses = [own for *_, own in self.listed.clauses]
        self.of_rule = [[self._place[g] for g in spec.rules[rule].regions] for rule, *_ in self.listed.clauses]
        self._is_plain = all(self.always) and all(len(own) == 1 for own in self.clauses)
        sloped = bool(tensors["safe.slope"].any()) or self.tree is not None
        self._reads = bool(self._CX.any() or self._moving or self._gate.size)
        self._reads_later = self._reads or sloped
        self._part = max(_AT_ONCE // max(*self._shape, len(self._H), 1), 64)

    def __call__(self, X: Array, answers: Array) -> Array:
        """Return the answers (n, m) in float32 that obey the rules at X (n, d), in float32 or float64."""
        return self.values(self.in_steps(X, answers)[0])

    def explained(self, X: Array, answers: Array) -> tuple[Array, npt.NDArray[np.int8]]:
        """Return the answers, and how each row was served: 0 the answer itself, 1 a proposal, 2 the safe answer."""
        k, by = self.in_steps(X, answers)
        return self.values(k), by

    def values(self, k: Array) -> Array:
        """Return the nearest float32 numbers to whole numbers of steps."""
        if self._scaled[0]:
            k = k * self._num
        if self._scaled[1]:
            k = k / self._den
        y = k.astype(np.float32)
        y += np.float32(0.0)  # no -0
        return y

    @quiet
    def in_steps(self, X: Array, answers: Array) -> tuple[Array, npt.NDArray[np.int8]]:
        """Return the served whole numbers of steps (n, m), in float64, and how each row was served (n,)."""
        rows, (columns, outputs) = len(answers), self._shape
        if X.shape != (rows, columns) or answers.shape != (rows, outputs):
            raise self._wrong_shapes(X, answers)
        X = X if X.dtype in FORMATS else self._native(X)
        if rows <= 2 * self._part:
            return self._served(X, answers)
        k, by = np.empty((rows, self._shape[1])), np.empty(rows, dtype=np.int8)
        for own in (slice(i, i + self._part) for i in range(0, rows, self._part)):
            k[own], by[own] = self._served(X[own], answers[own])
        return k, by

    def _served(self, X: Array, answers: Array) -> tuple[Array, npt.NDArray[np.int8]]:
        rows = len(answers)
        if answers.dtype != np.float32:
            answers = answers.astype(np.float32)
        p = answers.astype(np.float64)
        if self._scaled[1]:
            p *= self._den
        if self._scaled[0]:
            p /= self._num
        k = p + 0.5
        np.floor(k, out=k)
        read = self.read(X) if self._reads else None
        bits = self.bits(read, X.dtype) if self._gate.size else None
        right = self.right(read, short=X.dtype == np.float32)
        good = self.passes(k, right, bits)
        by = np.zeros(rows, dtype=np.int8)
        if good.all():
            return k, by
        read = self.read(X) if read is None and self._reads_later else read
        if not good.any():  # without copies
            return self._repaired(p, read, right, bits)
        bad = (~good).nonzero()[0]
        own = [part if part is None else part.take(bad, axis=0) for part in (read, bits)]
        right = right if right.ndim == 1 else right.take(bad, axis=0)
        k[bad], by[bad] = self._repaired(p.take(bad, axis=0), own[0], right, own[1])
        return k, by

    # --- the program, step by step

    def read(self, X: Array) -> Array:
        """Return inputs as they are read (n, d) in float64: whole numbers of steps, or numbers."""
        wide = self._inside(X)
        real = np.where(np.abs(wide) < _TINY, 0.0, wide)
        if not self._has_steps:
            return real
        tensors = self.stored
        if self._is_scaled_input:
            wide = wide * tensors["grid.input_denominator"] / tensors["grid.input_numerator"]
        whole = np.minimum(np.maximum(np.floor(wide + 0.5), tensors["grid.input_lower"]), tensors["grid.input_upper"])
        return np.where(self._stepped, whole, real)

    def bits(self, read: Array | None, kind: Any) -> Mask:
        """Return a mask of the active regions of the gate (n, regions)."""
        assert read is not None
        held = read @ self._gate <= self.stored[f"gate.thresholds_{np.dtype(kind).name}"]
        return np.stack([held[:, own].all(axis=1) for own in self.members], axis=1)

    def bits_of(self, X: Array) -> Mask:
        """Return a mask of the gate's regions that each row lies in (n, regions)."""
        return self.bits(self.read(X), X.dtype)

    def right(self, read: Array | None, *, short: bool = False) -> Array:
        """Return what C k is compared with: (n, literals), or (literals,) where no literal reads inputs.

        `short`: whether all real inputs are known to be float32 numbers, whose products lose fewer digits.
        """
        if read is None:
            return self._H
        right = self._H[:, None] - self._CX @ read.T
        if self._moving:
            right[: self._moving] += self._floors(read, short or self._is_one_form)
        return np.asarray(right.T)

    def _floors(self, read: Array, short: bool) -> Array:
        """Return whole parts of what moves with real inputs (moving literals, n)."""
        M, F = self._short
        floors = np.asarray(np.floor(M @ read.T + F))
        if short:
            return floors
        long = (M != 0) @ (read != read.astype(np.float32)).T  # literals with an input that is not a float32 number
        M, F = self._long
        return np.asarray(np.where(long, np.floor(M @ read.T + F), floors))

    def passes(self, k: Array, right: Array, bits: Mask | None) -> Mask:
        """Return a mask of the rows in range that obey every clause of every active rule (n,)."""
        good = self._obeys(k, right, bits)
        if not good.any():
            return good
        inside = (k >= self._low) & (k <= self._high)
        return good if inside.all() else np.asarray(good & inside.all(axis=1))

    def _obeys(self, k: Array, right: Array, bits: Mask | None) -> Mask:
        sums = self._C @ k.T  # (literals, n)
        held = sums <= (right[:, None] if right.ndim == 1 else right.T)
        if self._is_plain:
            return np.asarray(held[0] if len(held) == 1 else held.all(axis=0))
        good = np.ones(len(k), dtype=bool)
        for own, regions, always in zip(self.clauses, self.of_rule, self.always, strict=True):
            met = held[own[0]] if len(own) == 1 else held[list(own)].any(axis=0)
            if not always:
                assert bits is not None
                met = met | ~bits[:, regions].any(axis=1)
            good &= met
        return good

    def on(self, bits: Mask | None, rows: int) -> Mask:
        """Return a mask of the clauses whose rule applies (n, clauses)."""
        found = np.ones((rows, len(self.clauses)), dtype=bool)
        for c, (regions, always) in enumerate(zip(self.of_rule, self.always, strict=True)):
            if not always:
                assert bits is not None
                found[:, c] = bits[:, regions].any(axis=1)
        return found

    def safe(self, read: Array | None, bits: Mask | None, rows: int) -> Array:
        """Return the stored safe answers (n, m) in whole numbers."""
        result = np.empty((rows, self._shape[1]))

        def holds(question: Any, chosen: Numbers) -> Mask:
            if isinstance(question, dict):
                assert read is not None
                return np.asarray(read[chosen, question["input"]] <= float(Fraction(question["at"])))
            return np.ones(len(chosen), dtype=bool) if bits is None else bits[chosen, self._place[question]]

        for chosen, slope, offset in self._leaves(rows, holds):
            moved = read[chosen] @ slope.T if read is not None and slope.any() else 0.0
            result[chosen] = moved + offset
        return result

    # --- proposals

    @cached_property
    def proposals(self) -> GridProposals:
        """The search for whole numbers that obey, created on first use."""
        return GridProposals(self)

    def _repaired(
        self, p: Array, read: Array | None, right: Array, bits: Mask | None
    ) -> tuple[Array, npt.NDArray[np.int8]]:
        """Return whole numbers for rows that do not pass: proposals (1) or safe answers (2)."""
        n = len(p)
        candidates = self.proposals.candidates(p, read, right, bits)
        k = next(candidates) + 0.5
        np.floor(k, out=k)  # whole, whatever is proposed
        good, by = self.passes(k, right, bits), np.ones(n, dtype=np.int8)
        if good.all():
            return k, by
        left = (~good).nonzero()[0]
        for proposed in candidates:
            chosen = np.floor(proposed[left] + 0.5)
            own = None if bits is None else bits[left]
            good = self.passes(chosen, right if right.ndim == 1 else right[left], own)
            k[left[good]] = chosen[good]
            left = left[~good]
            if not len(left):
                return k, by
        k[left], by[left] = self.safe(read, bits, n)[left], 2
        return k, by


class GridProposals:
    """Whole numbers of steps near a model's answers that obey the rules, for rows that do not pass. Nothing is proved.

    Outputs that no rule ties together are separate problems. If their proposals do not pass, real points move toward
    the safe answer.
    """

    def __init__(self, program: GridProgram) -> None:
        spec, self._program = program.lattice, program
        self.reduction = reduce(spec, program.listed)
        steps = np.array([float(own.step) for own in spec.output_steps])
        weight = steps / program.stored["check.scale"]
        C = program.stored["check.outputs"]
        self._T, self._t = self.reduction.T.astype(np.float64), self.reduction.t.astype(np.float64)
        self._moves, self._always = bool(self._T.any()), all(program.always)
        ties = [{i, *self.reduction.free[np.flatnonzero(row)].tolist()} for i, row in enumerate(self.reduction.B)]
        ties += [set(np.flatnonzero(C[list(own)].any(axis=0)).tolist()) for own in program.clauses]
        groups = tied_together(ties, [], len(steps))
        self.blocks = [GridBlock(program, self.reduction, C, weight, outputs) for outputs in groups]
        first = self.blocks[0]
        counts = len(groups), len(first.literals), len(first.clauses)
        self._is_one = counts == (1, len(C), len(program.clauses))

    def candidates(self, p: Array, read: Array | None, right: Array, bits: Mask | None) -> Iterator[Array]:
        """Yield candidates (n, m) for targets p in steps, nearest first."""
        near = np.abs(p) <= _FAR
        if not near.all():
            p = np.where(near, p, self._program.safe(read, bits, len(p)))
        c = self._t + read @ self._T.T if self._moves and read is not None else self._t[None]
        right = right if right.ndim == 2 else right[None]
        on = None if self._always else self._program.on(bits, len(p))
        if self._is_one:
            k, real = self.blocks[0].nearest(Asked(p, c, right, on))  # without copies
        else:
            k, real = np.empty_like(p), np.empty_like(p)
            for block in self.blocks:
                outputs, own = block.outputs, None if on is None else on[:, block.clauses]
                asked = Asked(p[:, outputs], c[:, outputs], right[:, block.literals], own)
                k[:, outputs], real[:, outputs] = block.nearest(asked)
        yield k
        safe, k = self._program.safe(read, bits, len(p)), k.copy()
        for share in _MOVES:
            moved = real + share * (safe - real)
            for block in self.blocks:
                k[:, block.outputs] = block.rounded(moved[:, block.outputs], c[:, block.outputs])
            yield k


def _single(values: Array) -> Any:
    """Return a single number if all are equal, since it is read faster, else the numbers."""
    return values[0] if len(values) and (values == values[0]).all() else values
