"""An independent judge of certificates: exact linear programs instead of multipliers, its own formulas, no hints.

It reads what a certificate claims (program, specification, gate) and what the weights are, never the proofs, and
recomputes for every head and clause

    M = max over (x, z, e, r) of min over literals of  g.(W z + V x + b + e) + s.(x + r) - h

over the enlarged cell, the box of the clipped embedding, all rounding errors |e_i| <= E_i and the errors |r_k| of
casting inputs. Which signatures can occur is decided by linear programs too. Nothing of the checker is imported.
Where the checker leaves a choice, the judge takes the sharper bound: what is provable by multipliers it confirms.
"""

from __future__ import annotations

import itertools
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from smle.regions.simplex import ExactInfeasible, ExactOptimal, maximize

ZERO, ONE = Fraction(0), Fraction(1)
U, TINY = Fraction(1, 2**24), Fraction(1, 2**126)
LARGEST = Fraction(float(np.finfo(np.float32).max))
Form = dict[int, Fraction]


class RefusedError(Exception):
    """The judge does not confirm the claim."""


def need(condition: bool, reason: str) -> None:
    if not condition:
        raise RefusedError(reason)


# --- Numbers -----------------------------------------------------------------------------------------------------


def number(text: str) -> Fraction:
    return Fraction(float.fromhex(text)) if "x" in text else Fraction(text)


def to_double(value: Fraction) -> Fraction:
    return Fraction(float(value))  # Python rounds a quotient of integers correctly


def to_single(value: Fraction) -> Fraction:
    """Round to nearest, ties to even, by looking at the neighbors of a first guess."""
    guess = np.float32(float(value))
    options = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    need(all(np.isfinite(options)), "beyond float32")

    def key(option: np.float32) -> tuple[Fraction, int]:
        (bits,) = struct.unpack("<I", struct.pack("<f", option))
        return abs(Fraction(float(option)) - value), bits & 1

    return Fraction(float(min(options, key=key)))


ROUND = {"float32": to_single, "float64": to_double}


def exact(array: np.ndarray) -> list[Fraction]:
    need(bool(np.isfinite(array).all()), "weights with NaN or infinities")
    return [Fraction(float(v)) for v in np.asarray(array).ravel()]


def sum_error(
    weights: Sequence[Fraction], sizes: Sequence[Fraction], offset: Fraction, *, double: bool = False
) -> Fraction:
    """Error of a float32 (or float64) sum of n products and an offset: each term passes at most n + 1 roundings."""
    n = len(weights)
    unit, smallest, largest = (Fraction(1, 2**53), Fraction(1, 2**1022), 2**1023) if double else (U, TINY, LARGEST)
    growth = (1 + unit) ** (n + 1) - 1
    total = abs(offset) + sum((abs(w) * s for w, s in zip(weights, sizes, strict=True)), ZERO)
    # Flush-to-zero: n products, n additions, the offset; and factors that are read as zero.
    tiny = (2 * n + 1 + sum((abs(w) + s for w, s in zip(weights, sizes, strict=True)), ZERO)) * smallest * (1 + growth)
    need((1 + growth) * total + tiny < largest, "overflow")
    return growth * total + tiny


# --- Linear programs ---------------------------------------------------------------------------------------------


@dataclass
class Program:
    """maximize `objective` subject to rows `form <= bound` and ends of variables (None: no end)."""

    objective: Form
    rows: list[tuple[Form, Fraction]]
    ends: list[tuple[Fraction | None, Fraction | None]]

    def value(self) -> Fraction | None:
        """Return the exact optimum, None if there is no feasible point."""
        answer = maximize(
            sorted(self.objective.items()),
            [(sorted(form.items()), bound) for form, bound in self.rows],
            [low for low, _ in self.ends],
            [high for _, high in self.ends],
        )
        if isinstance(answer, ExactInfeasible):
            return None
        assert isinstance(answer, ExactOptimal), "unbounded"
        return answer.value

    def lp_text(self) -> str:
        """Write the program in the LP format, with rational numbers."""

        def print_form(form: Form) -> str:
            parts = [f"{'-' if v < 0 else '+'} {abs(v)} v{i}" for i, v in sorted(form.items()) if v]
            return " ".join(parts) or "0 v0"

        lines = ["Maximize", " obj: " + print_form(self.objective), "Subject To"]
        lines += [f" c{k}: {print_form(form)} <= {bound}" for k, (form, bound) in enumerate(self.rows)]
        lines.append("Bounds")
        used = {i for form in [self.objective, *(form for form, _ in self.rows)] for i, v in form.items() if v}
        for i, (low, high) in enumerate(self.ends):
            if i not in used:
                continue
            lines.append(f" {'-inf' if low is None else low} <= v{i} <= {'inf' if high is None else high}")
        return "\n".join([*lines, "End", ""])


def solve_with_qsopt(program: Program, folder: Path, esolver: str) -> Fraction | None:
    """Solve with QSopt-ex, an exact LP solver by others; None if infeasible."""
    path = folder / "problem.lp"
    path.write_text(program.lp_text())
    answer = folder / "answer.sol"
    answer.unlink(missing_ok=True)
    done = subprocess.run([esolver, "-O", str(answer), "-L", str(path)], capture_output=True, text=True)
    text = answer.read_text() if answer.exists() else done.stdout
    if "INFEASIBLE" in text:
        return None
    assert "status OPTIMAL" in text or "status = OPTIMAL" in text, text + done.stdout + done.stderr
    line = next(line for line in text.splitlines() if "Value" in line)
    return Fraction(line.split("=")[1].strip())


# --- The claim ---------------------------------------------------------------------------------------------------


class Judge:
    """Reads claim and weights; `obligations` yields the linear programs that have to be negative."""

    def __init__(self, document: dict[str, Any], weights: dict[str, np.ndarray], block: bytes) -> None:
        self.weights, self.block = weights, block
        self.program, spec = document["program"], document["specification"]
        self.lower = [number(entry["lower"]) for entry in spec["inputs"]]
        self.upper = [number(entry["upper"]) for entry in spec["inputs"]]
        self.d, self.m = len(spec["inputs"]), len(spec["outputs"])
        self.one_hot: list[list[int]] = spec["one_hot"]
        self.rows = [
            ({i: number(v) for i, v in row["terms"]}, number(row["bound"]), row["strict"]) for row in spec["rows"]
        ]
        self.regions: list[list[int]] = spec["regions"]
        self.rules = spec["rules"]
        self.gated: list[int] = document["gate"]["regions"]
        self.boxes = {
            name: [(fmt(a), fmt(b)) for a, b in zip(self.lower, self.upper, strict=True)] for name, fmt in ROUND.items()
        }
        self.sizes = [max(abs(v) for box in self.boxes.values() for v in box[k]) for k in range(self.d)]
        cast = [[to_single(v) for box in self.boxes.values() for v in box[k]] for k in range(self.d)]
        self.box32 = [(min(ends), max(ends)) for ends in cast]
        self.cast_error = [U * size + TINY for size in self.sizes]
        self._tensors_fit()
        self._domain()
        self._gate()
        self._heads()

    def _tensors_fit(self) -> None:
        """The weights are those of the stated program and no others: a loader may go by what is there."""
        names = {name for name in self.weights if not name.startswith("backbone.")}
        wanted = {f"domain.{s}_{f}" for s in ("lower", "upper") for f in ROUND}
        wanted |= {f"gate.{part}" for part in ("constants_float32", "constants_float64", "coefficients")}
        wanted |= {"gate.thresholds", "gate.signatures", "bounds.lower", "bounds.upper", "heads.weight", "heads.bias"}
        if self.program["bounds"] == "affine":
            wanted |= {"bounds.lower_slope", "bounds.upper_slope"}
        if self.program["clip"] == "clamp":
            wanted |= {"heads.fallback"}
        optional = {"heads.passthrough", "free.weight", "free.bias"}
        need(names - optional == wanted, f"tensors: {sorted((names - optional) ^ wanted)}")

    def _domain(self) -> None:
        """Inputs of the domain are not moved by the clamp."""
        for fmt in ROUND:
            low, high = exact(self.weights[f"domain.lower_{fmt}"]), exact(self.weights[f"domain.upper_{fmt}"])
            for (a, b), stored_low, stored_high in zip(self.boxes[fmt], low, high, strict=True):
                need(stored_low <= a and b <= stored_high, "the domain is cut")
        members = [i for group in self.one_hot for i in group]
        need(len(set(members)) == len(members), "one-hot groups overlap")
        need(all((self.lower[i], self.upper[i]) == (0, 1) for i in members), "one-hot inputs are 0 or 1")

    def _gate(self) -> None:
        """Read what the stored constants say about x, and that no member of a region is turned away."""
        used = sorted({row for region in self.gated for row in self.regions[region]})
        comparisons = [r for r in used if len(self.rows[r][0]) == 1]
        oblique = [r for r in used if len(self.rows[r][0]) > 1]
        self.said_inside: dict[str, dict[int, Fraction]] = {fmt: {} for fmt in ROUND}  # on x as passed
        self.said_outside: dict[str, dict[int, Fraction]] = {fmt: {} for fmt in ROUND}  # terms.x > this
        self.inside32: dict[int, Fraction] = {}
        for fmt, rounded in ROUND.items():
            stored = exact(self.weights[f"gate.constants_{fmt}"])
            for r, constant in zip(comparisons, stored, strict=True):
                terms, bound, strict = self.rows[r]
                need(set(terms.values()) <= {ONE, -ONE}, "a comparison with another coefficient")
                limit = rounded(bound)
                if strict:  # the program compares strictly: up to the number of the format below
                    kind = np.float32 if fmt == "float32" else np.float64
                    limit, constant = (
                        Fraction(float(np.nextafter(kind(float(v)), kind(-np.inf)))) for v in (limit, constant)
                    )
                need(constant >= limit, "the guard turns a member away")
                self.said_inside[fmt][r] = self.said_outside[fmt][r] = constant
                closed = to_single(constant)
                self.inside32[r] = max(self.inside32.get(r, closed), closed)
        coefficients = np.asarray(self.weights["gate.coefficients"]).reshape(len(oblique), self.d)
        for i, r in enumerate(oblique):
            terms, bound, _ = self.rows[r]
            stored = exact(coefficients[i])
            threshold = Fraction(float(self.weights["gate.thresholds"][i]))
            error = self._gate_error(terms, stored)
            need(threshold >= bound + error, "the guard turns a member away")
            for fmt in ROUND:
                self.said_inside[fmt][r] = threshold + error
                self.said_outside[fmt][r] = bound
            cast = sum((abs(v) * self.cast_error[k] for k, v in terms.items()), ZERO)
            self.inside32[r] = threshold + error + cast

    def _gate_error(self, terms: Form, stored: list[Fraction]) -> Fraction:
        """|computed - terms.x|: stored coefficients, products and sums in float64, float32 inputs read as zero."""
        columns = [k for k in range(self.d) if stored[k] or k in terms]
        off = sum((abs(terms.get(k, ZERO) - stored[k]) * self.sizes[k] for k in columns), ZERO)
        lost = 2 * Fraction(1, 2**126) * sum((abs(stored[k]) for k in columns), ZERO)
        return off + lost + sum_error([stored[k] for k in columns], [self.sizes[k] for k in columns], ZERO, double=True)

    def _heads(self) -> None:
        signatures = np.asarray(self.weights["gate.signatures"])
        need(signatures.ndim == 2 and signatures.shape[1] == len(self.gated), "signatures")
        need(signatures.dtype == np.uint8 and bool((signatures <= 1).all()), "signatures")
        self.cells = [tuple(g for g, bit in zip(self.gated, row, strict=True) if bit) for row in signatures]
        need(len(set(self.cells)) == len(self.cells) > 0, "signatures")
        free = self.cells[-1] == () and len(self.gated) == len(self.regions)
        self.heads = len(self.cells) - free
        self.lower_z, self.upper_z = exact(self.weights["bounds.lower"]), exact(self.weights["bounds.upper"])
        self.n = len(self.lower_z)
        affine = self.program["bounds"] == "affine"
        shape = (self.n, self.d)
        self.slopes = []
        for side in ("lower", "upper"):
            array = np.asarray(self.weights[f"bounds.{side}_slope"]) if affine else np.zeros(shape)
            need(array.shape == shape, "slopes")
            self.slopes.append([exact(row) for row in array])
        names = ("heads.weight", "heads.bias", "heads.passthrough", "heads.fallback")
        need(all(self.weights[n].dtype == np.float32 for n in names if n in self.weights), "float32 heads")
        self.W = np.asarray(self.weights["heads.weight"])
        need(self.W.shape == (self.heads, self.m, self.n), "shape of the heads")
        need(self.weights["heads.bias"].shape == (self.heads, self.m), "shape of the heads")
        self.V = self.weights.get("heads.passthrough")
        need(self.V is None or self.V.shape == (self.heads, self.m, self.d), "shape of the heads")
        reach = [max(abs(a), abs(b)) for a, b in self.box32]
        self.extra, self.reach_z = [], []
        for i in range(self.n):
            extra = TINY if min(abs(self.lower_z[i]), abs(self.upper_z[i])) < TINY or affine else ZERO
            if affine:
                both = zip(self.slopes, (self.lower_z[i], self.upper_z[i]), strict=True)
                extra += max(sum_error(slope[i], reach, offset) for slope, offset in both)
            self.extra.append(extra)
        self.can_cross = [self._gap(i) > 0 for i in range(self.n)]
        need(affine or not any(self.can_cross), "constant bounds that cross")

    # --- Which signatures can occur

    def require_coverage(self) -> None:
        known = set(self.cells)
        for bits in itertools.product((True, False), repeat=len(self.gated)):
            inside = tuple(g for g, bit in zip(self.gated, bits, strict=True) if bit)
            if inside in known:
                continue
            outside = [self.regions[g] for g, bit in zip(self.gated, bits, strict=True) if not bit]
            for fmt in ROUND:
                for left in itertools.product(*outside):
                    need(not self._occurs(fmt, inside, left), f"no head for the regions {inside}")

    def _occurs(self, fmt: str, inside: tuple[int, ...], left: tuple[int, ...]) -> bool:
        """Whether some x of a format lies in the rows of `inside` and beyond the rows `left` (strictly)."""
        rows: list[tuple[Form, Fraction]] = self._one_hot_rows()
        for r in {row for g in inside for row in self.regions[g]}:
            rows.append((self.rows[r][0], self.said_inside[fmt][r]))
        for r in set(left):
            form = {k: -v for k, v in self.rows[r][0].items()}
            rows.append(({**form, self.d: ONE}, -self.said_outside[fmt][r]))
        ends: list[tuple[Fraction | None, Fraction | None]] = [*self.boxes[fmt], (ZERO, ONE)]
        value = Program({self.d: ONE}, rows, ends).value()
        return value is not None and (value > 0 or not left)

    def _one_hot_rows(self) -> list[tuple[Form, Fraction]]:
        rows = []
        for group in self.one_hot:
            rows.append((dict.fromkeys(group, ONE), ONE))
            rows.append((dict.fromkeys(group, -ONE), -ONE))
        return rows

    # --- What has to hold

    def obligations(self) -> Iterator[tuple[str, Program, bool]]:
        """Yield (what, program, whether 0 is good enough): the optimum has to be negative."""
        for head in range(self.heads):
            cell = self.cells[head]
            for rule in self.rules:
                for region in self._binding(rule, cell):
                    active = {r for g in cell for r in self.regions[g]}
                    active |= set(() if region is None else self.regions[region])
                    for what, literals in self._clauses(rule):
                        name = f"head {head}, rule {rule['name']}, region {region}, {what}"
                        tight = not all(strict for *_, strict in literals)
                        for crossed in itertools.product(*([False, True] if c else [False] for c in self.can_cross)):
                            yield f"{name}, {crossed}", self.worst(head, active, literals, crossed), tight
                        if self.program["clip"] == "clamp":
                            yield f"fallback of {name}", self.fallback(head, active, literals), tight

    def _binding(self, rule: dict[str, Any], cell: tuple[int, ...]) -> list[int | None]:
        if any(r in cell for r in rule["regions"]):
            return [None]
        return [r for r in rule["regions"] if r not in self.gated]

    def _clauses(self, rule: dict[str, Any]) -> Iterator[tuple[str, list[tuple[Form, Form, Fraction, bool]]]]:
        for c, clause in enumerate(rule["clauses"]):
            literals = []
            for literal in clause:
                y, x = ({i: number(v) for i, v in literal[part]} for part in ("y", "x"))
                literals.append((y, x, number(literal["bound"]), literal["strict"]))
            yield f"clause {c}", literals
        if rule["exclusions"] is not None:
            start, count = rule["exclusions"]["offset"], rule["exclusions"]["count"]
            for h, k in np.frombuffer(self.block, "<u4", 2 * count, start).reshape(-1, 2):
                yield f"pair {h} {k}", [({int(i): ONE}, {}, ZERO, True) for i in (h, k)]

    def _region_rows(self, active: set[int]) -> list[tuple[Form, Fraction]]:
        """The rows of a cell on x32; ungated rows mean the stated half-space, moved by the cast of x."""
        rows = self._one_hot_rows()
        for r in sorted(active):
            terms, bound, _ = self.rows[r]
            if r in self.inside32:
                rows.append((terms, self.inside32[r]))
            elif len(terms) == 1:
                rows.append((terms, max(to_single(rounded(bound)) for rounded in ROUND.values())))
            else:
                rows.append((terms, bound + sum(abs(v) * self.cast_error[k] for k, v in terms.items())))
        return rows

    def worst(
        self, head: int, active: set[int], literals: list[tuple[Form, Form, Fraction, bool]], crossed: tuple[bool, ...]
    ) -> Program:
        """The linear program of one clause, where units are at l >= u or not. Variables: x (d), z (n), e (m), r (d), t.

        The clip gives l where l > u: z lies in [l, max(l, u)].
        """
        d, n, m = self.d, self.n, self.m
        W = [exact(row) for row in self.W[head]]
        b = exact(self.weights["heads.bias"][head])
        V = [[ZERO] * d] * m if self.V is None else [exact(row) for row in self.V[head]]
        reach = [max(abs(a), abs(c)) for a, c in self.box32]
        ends: list[tuple[Fraction | None, Fraction | None]] = [*self.box32]
        rows = self._region_rows(active)
        sizes = []
        for i in range(n):
            low, high = self._range(0, i), self._range(1, i)
            bottom, top = low[0] - self.extra[i], max(low[1], high[1]) + self.extra[i]
            ends.append((bottom, top))
            sizes.append(max(-bottom, top, ZERO))
            if self.program["bounds"] == "affine":
                between = {k: a - b for k, (a, b) in enumerate(zip(self.slopes[0][i], self.slopes[1][i], strict=True))}
                gap, sign = self.lower_z[i] - self.upper_z[i], -1 if crossed[i] else 1
                rows.append(({k: sign * v for k, v in between.items()}, -sign * gap))
                side = 0 if crossed[i] else 1
                lower = {k: s for k, s in enumerate(self.slopes[0][i]) if s}
                upper = {k: -s for k, s in enumerate(self.slopes[side][i]) if s}
                rows.append(({**lower, d + i: -ONE}, self.extra[i] - self.lower_z[i]))
                rows.append(({**upper, d + i: ONE}, self.extra[i] + (self.lower_z, self.upper_z)[side][i]))
        for i in range(m):
            both = (W[i] + V[i], sizes + reach) if self.V is not None else (W[i], sizes)
            error = sum_error(*both, b[i])
            ends.append((-error, error))
        ends += [(-c, c) for c in self.cast_error] + [(None, None)]
        t = d + n + m + d
        for y, x, bound, _ in literals:
            form: Form = {t: ONE}
            constant = -bound
            for j, g in y.items():
                constant += g * b[j]
                for k in range(d):
                    form[k] = form.get(k, ZERO) - g * V[j][k]
                for i in range(n):
                    form[d + i] = form.get(d + i, ZERO) - g * W[j][i]
                form[d + n + j] = form.get(d + n + j, ZERO) - g
            for k, s in x.items():
                form[k] = form.get(k, ZERO) - s
                form[d + n + m + k] = form.get(d + n + m + k, ZERO) - s
            rows.append((form, constant))
        return Program({t: ONE}, rows, ends)

    def _range(self, side: int, i: int) -> tuple[Fraction, Fraction]:
        offset = (self.lower_z, self.upper_z)[side][i]
        low = high = offset
        for (a, b), s in zip(self.box32, self.slopes[side][i], strict=True):
            low, high = low + min(s * a, s * b), high + max(s * a, s * b)
        return low, high

    def _gap(self, i: int) -> Fraction:
        total = self.lower_z[i] - self.upper_z[i]
        for (a, b), s, q in zip(self.box32, self.slopes[0][i], self.slopes[1][i], strict=True):
            total += max((s - q) * a, (s - q) * b)
        return total

    def fallback(self, head: int, active: set[int], literals: list[tuple[Form, Form, Fraction, bool]]) -> Program:
        """The linear program of a clause where the output is the constant that stands in for NaN."""
        y0 = exact(self.weights["heads.fallback"][head])
        t = 2 * self.d
        rows = self._region_rows(active)
        for y, x, bound, _ in literals:
            form: Form = {t: ONE}
            for k, s in x.items():
                form[k] = form[self.d + k] = -s
            rows.append((form, sum((g * y0[j] for j, g in y.items()), ZERO) - bound))
        ends: list[tuple[Fraction | None, Fraction | None]] = [*self.box32]
        ends += [(-c, c) for c in self.cast_error] + [(None, None)]
        return Program({t: ONE}, rows, ends)


def doubts(document: dict[str, Any], weights: dict[str, np.ndarray], block: bytes = b"") -> str | None:
    """Return None if the claim is confirmed, else the reason why it is not."""
    try:
        judge = Judge(document, weights, block)
        judge.require_coverage()
        for what, program, tight in judge.obligations():
            value = program.value()
            need(value is None or value < 0 or (value == 0 and tight), f"{what}: reaches {value and float(value)}")
    except RefusedError as reason:
        return str(reason)
    return None
