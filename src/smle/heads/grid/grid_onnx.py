"""Proposals of a grid head in an ONNX graph: whole numbers of steps near the model's answers. Nothing is proved.

The head makes proposals whole, checks them, and serves the stored safe answer if none passes, so a mistake here only
costs accuracy. As in `grid_program.py`, outputs that no rule ties together are separate problems. Sums with
limits are solved by a few steps of Newton's method, everything else by ADMM.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.heads.grid.grid_program import GridProgram
from smle.heads.grid.rounding import THETA
from smle.heads.grid.step_blocks import GridBlock
from smle.nearest.onnx.pieces import Backbone
from smle.nearest.onnx.writer import Writer
from smle_check.onnx.graph import BOOL, DOUBLE
from smle_check.onnx.nodes import PROPOSAL

__all__ = ["grid_proposals"]

Array = npt.NDArray[Any]
_FAR = 2.0**52
_NEWTON, _STEPS = 40, 80
_FEW, _AROUND = 3, (-1, 0, 1, 2)  # up to this many free outputs, all whole points around the real one are tried
_MOVES = (2.0**-10, 2.0**-4, 0.3)  # toward the safe answer
_DENSE = 64  # up to this many outputs, sums are a product with a square matrix, which takes fewer nodes
_CLOSE = 1e-3  # steps by which the sum of real points may be off


def grid_proposals(certificate: Certificate) -> tuple[list[Backbone], int]:
    """Return nodes that make PROPOSAL for rows that do not pass, and how many candidates per row."""
    program = GridProgram(certificate)
    w = Writer()
    near = w.add("LessOrEqual", [w.add("Abs", ["repair/targets"]), w.number(_FAR)])
    p = w.add("Where", [near, "repair/targets", "repair/safe"])
    reduction = program.proposals.reduction
    c = ""  # if nothing is derived from inputs, sums do not read it
    if reduction.T.any():
        moved = w.add("MatMul", [w.constant(reduction.T.astype(np.float64)), "repair/read"])
        c = w.add("Add", [moved, w.column(reduction.t)])
    elif not all(block.is_sum for block in program.proposals.blocks):
        c = w.add("Add", [w.column(reduction.t), w.add("Sub", [p, p])])  # (m, rows)
    # Limits and sums are solved exactly; otherwise the way to the safe answer is tried, too.
    simple = all(block.is_sum or len(block.outputs) == 1 for block in program.proposals.blocks)
    moves = () if simple else _MOVES
    candidates: list[list[str]] = [[] for _ in range(1 + len(moves))]
    for block in program.proposals.blocks:
        part = _BlockNodes(w, program, block, p, c)
        real = part.nearest()
        candidates[0].append(part.around(real) if part.is_few else part.rounded(real))
        safe = w.rows("repair/safe", block.outputs.tolist()) if moves else ""
        for number, share in enumerate(moves):
            moved = w.add("Add", [real, w.add("Mul", [w.add("Sub", [safe, real]), w.number(share)])])
            candidates[number + 1].append(part.rounded(moved))
    order = np.concatenate([block.outputs for block in program.proposals.blocks])
    wholes = [w.placed(order, w.joined(own), "", len(order)) for own in candidates]
    w.last("Concat" if len(wholes) > 1 else "Identity", wholes, PROPOSAL, **({"axis": 1} if len(wholes) > 1 else {}))
    return [Backbone(w.nodes, w.initializers)], len(wholes)


@dataclass
class _BlockNodes:
    """One problem, as nodes. Values are (outputs of the block, rows)."""

    w: Writer
    program: GridProgram
    block: GridBlock
    targets: str
    base: str

    def __post_init__(self) -> None:
        w, block = self.w, self.block
        every = len(block.outputs) == len(self.program.lower)
        self.p = self.targets if every else w.rows(self.targets, block.outputs.tolist())
        self.c = self.base if every or not self.base else w.rows(self.base, block.outputs.tolist())
        self.sides: dict[int, str] = {}
        self.numbers: set[str] = set()  # limits that all outputs share
        self.single = [k for k in range(len(block.literals)) if block.single[k]] if len(block.free) else []

    @property
    def is_few(self) -> bool:
        """Whether all whole points around the real one are tried."""
        block = self.block
        return 0 < len(block.free) <= _FEW and len(block.outputs) > 1 and not block.is_sum

    # --- which rows bind

    def right(self, literal: int) -> str:
        """Return the right side of a literal of the block (1, rows), infinite where its rule does not apply."""
        w, program = self.w, self.program
        number = int(self.block.literals[literal])
        value = w.add("Add", [w.rows("repair/right", [number]), self.zeros()])
        clauses = [c for c, own in enumerate(program.clauses) if number in own]
        if any(program.always[c] for c in clauses):
            return value
        regions = sorted({g for c in clauses for g in program.of_rule[c]})
        on = w.add("Cast", [w.reduced("ReduceMax", w.rows("repair/bits", regions), 0, keep=True)], to=BOOL)
        return w.add("Where", [on, value, w.number(np.inf)])

    def zeros(self) -> str:
        """Return zeros (1, rows)."""
        one = self.w.rows(self.p, [0])
        return self.w.add("Sub", [one, one])

    def rights(self) -> dict[int, str]:
        """Return right sides of literals; in a clause with alternatives, only the one violated least binds."""
        w, block = self.w, self.block
        if block.is_sum:
            return {k: self.right(k) for k in self.single}
        sides = {k: self.right(k) for k in range(len(block.literals))}
        for own in block.of_clause:
            if len(own) == 1:
                continue
            norms = np.sqrt((block.C[own] ** 2).sum(axis=1, keepdims=True))
            sums = w.add("MatMul", [w.constant(block.C[own] / norms), self.p])
            limits = w.add("Div", [w.add("Concat", [sides[k] for k in own], axis=0), w.constant(norms)])
            excess = w.add("Sub", [sums, limits])
            least = w.reduced("ReduceMin", excess, 0, keep=True)
            for place, k in enumerate(own):
                chosen = w.add("LessOrEqual", [w.rows(excess, [place]), least])
                sides[k] = w.add("Where", [chosen, sides[k], w.number(np.inf)])
        return sides

    def ends(self, sides: dict[int, str]) -> tuple[str, str]:
        """Return whole limits of single outputs: (outputs, rows), (outputs, 1), or () if all share one."""
        w, block = self.w, self.block
        ups: dict[int, list[str]] = {}
        downs: dict[int, list[str]] = {}
        for k in self.single:
            i = int(np.flatnonzero(block.C[k])[0])
            value = w.add("Div", [sides[k], w.number(block.C[k, i])])
            if block.C[k, i] > 0:
                ups.setdefault(i, []).append(w.add("Floor", [value]))
            else:
                downs.setdefault(i, []).append(w.add("Ceil", [value]))
        return self.joined("Max", downs, block.lower), self.joined("Min", ups, block.upper)

    def joined(self, op: str, found: dict[int, list[str]], fixed: Array) -> str:
        """Return one limit for each output, from fixed ones and those found."""
        w = self.w
        if not found:
            if (fixed != fixed[0]).any():
                return w.column(fixed)
            self.numbers.add(w.number(float(fixed[0])))
            return w.number(float(fixed[0]))
        rows = []
        for i in range(len(fixed)):
            own = w.add("Add", [w.constant(np.array([[fixed[i]]])), self.zeros()])
            rows.append(w.add(op, [own, *found[i]]) if i in found else own)
        return w.joined(rows)

    # --- nearest real points

    def nearest(self) -> str:
        """Return real points (outputs, rows) near the targets that nearly obey."""
        w, block = self.w, self.block
        if not len(block.free):
            return self.c
        sides = self.sides = self.rights()
        lower, upper = self.ends(sides)
        if len(block.outputs) == 1:
            return self.clipped(self.p, lower, upper)
        if block.is_sum:
            return self.on_sum(lower, upper)
        if not len(block.sums):
            return self.clipped(self.p, lower, upper)
        rows = block.C[block.sums]
        return self.split(lower, upper, rows, w.joined([sides[int(k)] for k in block.sums]))

    def clipped(self, z: str, lower: str, upper: str, w: Writer | None = None) -> str:
        """Clip numbers to limits."""
        w = w or self.w
        if {lower, upper} <= self.numbers:
            return w.add("Clip", [z, lower, upper])
        return w.add("Min", [w.add("Max", [z, lower]), upper])

    def on_sum(self, lower: str, upper: str) -> str:
        """Return nearest points with a given sum, between limits, by a few steps of Newton's method."""
        w, block = self.w, self.block
        turned = bool((block.signs < 0).any())
        p, signs = self.p, ""
        if turned:
            signs = w.column(block.signs)
            p = w.add("Mul", [self.p, signs])
            ends = w.add("Mul", [lower, signs]), w.add("Mul", [upper, signs])
            lower, upper = w.add("Min", list(ends)), w.add("Max", list(ends))
        reduction = self.program.proposals.reduction
        moving, m = bool(reduction.T.any()), len(block.outputs)
        total = np.array([[float(block.signs @ reduction.t[block.outputs])]])
        target = w.add("MatMul", [w.constant(block.signs[None]), self.c]) if moving else w.constant(total)
        share = 1.0 / block.w**2
        share = (share / share.sum())[:, None]
        column, ones = w.constant(share), w.constant(np.ones((1, m)))

        def off(w: Writer, z: str) -> str:
            """Return by how much sums are off (1, rows)."""
            return w.add("Gemm", [ones, z, target], beta=-1.0)

        def is_far(w: Writer, gap: str) -> str:
            """Return whether any sum is far off."""
            most = w.add("ReduceMax", [w.add("Abs", [gap])], keepdims=0)
            return w.add("Greater", [most, w.number(_CLOSE)])

        if m <= _DENSE:
            more = w.add("Mul", [column, target]) if moving else w.constant(share * total)
            first = w.add("Gemm", [w.constant(np.eye(m) - share), p, more])
        else:
            first = w.add("Sub", [p, w.add("Mul", [off(w, p), column])])

        def body(inner: Writer, names: list[str]) -> tuple[list[str], str, list[str]]:
            mu, low, high, z, gap = names
            inside = inner.add("And", [inner.add("Greater", [z, lower]), inner.add("Less", [z, upper])])
            slope = inner.add("MatMul", [inner.constant(share.T), inner.add("Cast", [inside], to=DOUBLE)])
            least = inner.add("Max", [slope, inner.number(float(share.min()) / 8)])
            fresh = inner.add("Add", [mu, inner.add("Div", [gap, least])])
            more = inner.add("Greater", [gap, inner.number(0.0)])
            low, high = inner.add("Where", [more, mu, low]), inner.add("Where", [more, high, mu])
            middle = inner.add("Mul", [inner.add("Add", [low, high]), inner.number(0.5)])
            within = inner.add("And", [inner.add("Greater", [fresh, low]), inner.add("Less", [fresh, high])])
            far = inner.add("Greater", [inner.add("Abs", [gap]), inner.number(_CLOSE)])
            chosen = inner.add("Where", [far, inner.add("Where", [within, fresh, middle]), mu])
            moved = inner.add("Sub", [first, inner.add("Mul", [chosen, column])])
            point = self.clipped(moved, lower, upper, inner)
            after = off(inner, point)
            return [chosen, low, high, point, after], is_far(inner, after), []

        z = self.clipped(first, lower, upper)
        gap = off(w, z)  # where no limit binds, that is all
        starts = [w.constant(np.full((1, 1), value)) for value in (0.0, -np.inf, np.inf)]
        some = w.add("Concat", [gap, w.constant(np.zeros((1, 1)))], axis=1)  # there may be no rows
        z = w.loop(_NEWTON, [*starts, z, gap], body, start=is_far(w, some))[3]
        return w.add("Mul", [z, signs]) if turned else z

    def split(self, lower: str, upper: str, rows: Array, right: str) -> str:
        """Return nearest points between limits and under rows, by ADMM, in outputs divided by their weights."""
        w, block = self.w, self.block
        m, norms = len(block.outputs), np.sqrt(((rows / block.w) ** 2).sum(axis=1))
        A = np.vstack([np.eye(m), rows / block.w / norms[:, None]])
        rho, weight = 2.0, w.column(block.w)
        inverse = np.linalg.inv(np.eye(m) + rho * A.T @ A)
        p = w.add("Mul", [self.p, weight])
        high = w.add("Div", [right, w.constant(norms[:, None])])
        finite = w.add("Where", [w.add("Less", [high, w.number(np.inf)]), high, w.number(1e300)])
        low = w.add("Where", [w.constant(block.equal[:, None]), finite, w.number(-1e300)])
        zeros = w.add("Sub", [p, p])
        ends = [w.add("Add", [w.add("Mul", [side, weight]), zeros]) for side in (lower, upper)]
        bottom, top = (w.add("Concat", pair, axis=0) for pair in ((ends[0], low), (ends[1], finite)))
        back, forth = w.constant(rho * A.T), w.constant(A)
        solve = w.constant(inverse)
        v = self.clipped(w.add("MatMul", [forth, p]), bottom, top)
        u = w.add("Sub", [v, v])

        def body(inner: Writer, names: list[str]) -> tuple[list[str], None, list[str]]:
            v, u = names
            goal = inner.add("Add", [p, inner.add("MatMul", [back, inner.add("Sub", [v, u])])])
            seen = inner.add("MatMul", [forth, inner.add("MatMul", [solve, goal])])
            moved = inner.add("Add", [seen, u])
            fresh = inner.add("Min", [inner.add("Max", [moved, bottom]), top])
            return [fresh, inner.add("Sub", [moved, fresh])], None, []

        v, _ = w.loop(_STEPS, [v, u], body)
        return w.add("Div", [w.rows(v, list(range(m))), weight])

    # --- whole numbers

    def around(self, z: str) -> str:
        """Return the nearest whole points around real ones that obey, or some point around them if none does."""
        w, block = self.w, self.block
        f, J = len(block.free), len(block.A)
        shifts = np.array(list(product(_AROUND, repeat=f)), dtype=np.float64).T  # (f, s)
        count = shifts.shape[1]
        u = w.add("Sub", [w.rows(z, block.places.tolist()), w.rows(self.c, block.places.tolist())])
        first = w.shaped(w.add("Floor", [w.add("Add", [u, w.number(1e-6)])]), f, 1, -1)
        trial = w.add("Add", [first, w.constant(shifts[:, :, None])])  # (f, s, rows)
        flat = w.shaped(trial, f, -1)
        parts: list[str] = []
        if len(block.literals):
            right = w.joined([self.sides[k] for k in range(len(block.literals))])
            parts.append(w.add("Sub", [right, w.add("MatMul", [w.constant(block.C), self.c])]))
        parts += [w.add("Sub", [w.column(block.upper), self.c]), w.add("Sub", [self.c, w.column(block.lower)])]
        limits = w.add("Floor", [w.add("Div", [w.add("Concat", parts, axis=0), w.column(block.divisor)])])
        sums = w.shaped(w.add("MatMul", [w.constant(block.A), flat]), J, count, -1)
        held = w.add("LessOrEqual", [sums, w.add("Add", [w.shaped(limits, J, 1, -1), w.number(1e-6)])])
        good = w.reduced("ReduceMin", w.add("Cast", [held], to=DOUBLE), 0)  # (s, rows)
        goal = w.add("MatMul", [w.constant(block.P), w.add("Sub", [self.p, self.c])])
        gap = w.shaped(w.add("Sub", [trial, w.shaped(goal, f, 1, -1)]), f, -1)
        far = w.add("MatMul", [w.constant(block.R), gap])
        cost = w.shaped(w.reduced("ReduceSum", w.add("Mul", [far, far]), 0), count, -1)
        bad = w.add("Mul", [w.add("Sub", [w.number(1.0), good]), w.number(1e30)])
        best = w.add("ArgMin", [w.add("Add", [cost, bad])], axis=0, keepdims=1)
        index = w.add("Add", [best, w.constant(np.zeros((f, 1, 1), dtype=np.int64))])
        found = w.shaped(w.add("GatherElements", [trial, index], axis=1), f, -1)
        return w.add("Add", [w.add("MatMul", [w.constant(block.B), found]), self.c])

    def rounded(self, z: str) -> str:
        """Round so that sums of neighbors keep their limits, and equalities hold."""
        w, block = self.w, self.block
        if not len(block.free):
            return self.c
        if len(block.outputs) == 1:
            return w.add("Floor", [w.add("Add", [z, w.number(0.5)])])
        if len(block.outputs) <= _DENSE:
            picked = np.eye(len(block.outputs))[block.base]
            sums = w.add("Gemm", [w.constant(np.cumsum(picked, axis=0)), z, w.number(THETA)])
            apart = picked.T @ (np.eye(len(block.base)) - np.eye(len(block.base), k=-1))
            back = apart if block.is_sum else block.differences.T
            k = w.add("MatMul", [w.constant(back), w.add("Floor", [sums])])
            return k if block.is_sum else w.add("Add", [k, self.c])
        base = z if np.array_equal(block.base, np.arange(len(block.outputs))) else w.rows(z, block.base.tolist())
        sums = w.add("CumSum", [base, w.constant(np.int64(0))])
        whole = w.add("Floor", [w.add("Add", [sums, w.number(THETA)])])
        count = len(block.base)
        if count == 1:
            k = whole
        else:
            later, before = w.rows(whole, list(range(1, count))), w.rows(whole, list(range(count - 1)))
            k = w.add("Concat", [w.rows(whole, [0]), w.add("Sub", [later, before])], axis=0)
        if block.is_sum:  # all are parts of the sum
            return k if np.array_equal(block.base, np.arange(count)) else w.rows(k, np.argsort(block.base).tolist())
        free = w.rows(k, block.free_of_base.tolist())
        return w.add("Add", [w.add("MatMul", [w.constant(block.B), free]), self.c])
