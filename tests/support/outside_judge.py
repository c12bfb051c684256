"""The head of rules, stated for z3, a solver of others: read off docs/certificate-format.md (0, 3, 12, 13) alone.

A float is a real number on its grid: an integer times a power of two, for each power of two that it may have. A rounded
result is a number of the grid that is at most half a step away. So every question below is one of mixed integer
arithmetic, which z3 decides for all float64 inputs at once. (Its theory of floats does so for constant limits only: a
product of an input and a number, bit by bit, is too hard.) Far below the size of a number, where there would be too
many powers of two, whatever is within the error of rounding or of flushing to zero is allowed. That is more than a
machine can do, so "no answer breaks a rule" is proved all the same.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import z3

from smle.certificates.document import Certificate

DEPTH = 30  # binary orders of magnitude in which grids are exact
WIDE = Fraction(2) ** 100
STAGES = ("affine_lower", "affine_upper", "constant_lower", "constant_upper")
WAYS = ("plain", "backwards", "offset first", "fused")
PRECISION = {"float32": 24, "float64": 53}
SMALLEST = {24: -126, 53: -1022}


class Number(NamedTuple):
    """A term of z3, and how large it can be. What is settled is 0 or normal in float32: 1 times it is exact.

    `whole`: it is a multiple of 2^-149, as every float32 number is.
    """

    term: Any
    size: Fraction
    settled: bool = False
    whole: bool = False


def number(text: str) -> Fraction:
    return Fraction(float.fromhex(text)) if "x" in text else Fraction(text)


def constant(value: Fraction | float) -> Any:
    return z3.RealVal(str(Fraction(value)))


def size_of(term: Any) -> Any:
    return z3.If(term >= 0, term, -term)


class Question:
    """Is there an input of a format, and an answer of the model, at which what is served breaks a rule?

    `way` is how sums are taken. With `on_grid` inputs and answers are floats of the grid, so that what is found can be
    tried; without, they may be any real numbers, which is quicker and asks for more.
    """

    def __init__(self, certificate: Certificate, fmt: str, way: str = "plain", *, on_grid: bool = True) -> None:
        document = json.loads(certificate.text)
        self.stated, self.tree, self.fmt, self.way = document["specification"], document["program"]["tree"], fmt, way
        self.gated, self.block, self.on_grid = document["gate"]["regions"], certificate.block, on_grid
        self.tensors = {name: (t.shape, _numbers(t)) for name, t in certificate.tensors.items()}
        self.solver, self.count = z3.Solver(), 0
        low, high = (self.values(f"domain.{end}_{fmt}") for end in ("lower", "upper"))
        self.x = [self.float(f"x{k}", a, b, PRECISION[fmt]) for k, (a, b) in enumerate(zip(low, high, strict=True))]
        for group in self.stated["one_hot"]:
            for k in group:
                self.solver.add(z3.Or(self.x[k].term == 0, self.x[k].term == 1))
            self.solver.add(z3.Sum([self.x[k].term for k in group]) == 1)
        self.rows = [
            ({k: number(v) for k, v in row["terms"]}, number(row["bound"]), row["strict"])
            for row in self.stated["rows"]
        ]
        self.bits = self.gate()

    def values(self, name: str) -> list[Fraction]:
        return self.tensors[name][1]

    def matrix(self, name: str) -> list[list[Fraction]]:
        (rows, width), flat = self.tensors[name]
        return [flat[i * width : (i + 1) * width] for i in range(rows)]

    # --- floats

    def fresh(self, name: str) -> Any:
        self.count += 1
        return z3.Real(f"{name}.{self.count}")

    def cases(self, size: Fraction) -> range:
        top = math.frexp(float(size))[1] if size else 0
        assert top - DEPTH > -126, "grids are those of normal numbers"
        return range(top - DEPTH, top + 1)

    def float(self, name: str, low: Fraction, high: Fraction, precision: int) -> Number:
        """Return a float between two numbers."""
        term, size = self.fresh(name), max(abs(low), abs(high))
        self.solver.add(constant(low) <= term, term <= constant(high))
        if self.on_grid:
            whole, cases = z3.Int(f"{name}.grid"), self.cases(size)
            steps = [(e, constant(Fraction(2) ** (e - precision + 1))) for e in cases]
            below = {e: size_of(term) < constant(Fraction(2) ** (e + 1)) for e in cases}
            on = [z3.And(below[e], term == z3.ToReal(whole) * step) for e, step in steps]
            self.solver.add(z3.Or(*on, size_of(term) < constant(Fraction(2) ** cases[0])))
        return Number(term, size)

    def rounded(self, exact: Number, precision: int) -> Number:
        """Return what a machine may make of an exact result."""
        smallest = Fraction(2) ** SMALLEST[precision]
        term, cases = self.fresh("r"), self.cases(exact.size)
        whole, difference = z3.Int(f"r.{self.count}.grid"), size_of(term - exact.term)
        ways = []
        for e in cases:
            step = Fraction(2) ** (e - precision + 1)
            here = [
                constant(Fraction(2) ** e) <= size_of(exact.term),
                size_of(exact.term) < constant(2 * Fraction(2) ** e),
            ]
            here.append(difference <= constant(step / 2))
            if self.on_grid:
                here.append(term == z3.ToReal(whole) * constant(step))
            ways.append(z3.And(here))
        relative, flushed = constant(Fraction(1, 2**precision)), constant(smallest)
        below = size_of(exact.term) < constant(Fraction(2) ** cases[0])
        same_sign = z3.If(exact.term >= 0, term >= 0, term <= 0)
        ways.append(z3.And(below, same_sign, difference <= relative * size_of(exact.term) + flushed))
        self.solver.add(z3.Or(ways))
        return Number(term, exact.size * (1 + Fraction(1, 2**precision)) + smallest)

    def sum64(self, terms: Sequence[tuple[Fraction, Number]], offset: Fraction | None = None) -> Number:
        """Return a sum of products in float64, in this question's way."""
        terms = [(factor, self.read(v)) for factor, v in terms if factor]
        if self.way == "backwards":
            terms = terms[::-1]
        parts = [] if offset is None else [Number(constant(offset), abs(offset))]
        if self.way == "fused":
            total = parts[0] if parts else None
            for factor, v in terms:
                total = self.product(factor, v) if total is None else self.plus(total, self.exactly(factor, v))
            return total or Number(constant(0), Fraction(0))
        products = [self.product(factor, v) for factor, v in terms]
        parts = parts + products if self.way == "offset first" else products + parts
        total = parts[0] if parts else Number(constant(0), Fraction(0))
        for part in parts[1:]:
            total = self.plus(total, part)
        return total

    def exactly(self, factor: Fraction, v: Number) -> Number:
        return Number(constant(factor) * v.term, abs(factor) * v.size, whole=v.settled and abs(factor) == 1)

    def product(self, factor: Fraction, v: Number) -> Number:
        exact = self.exactly(factor, v)
        return exact if v.settled and abs(factor) == 1 else self.rounded(exact, 53)

    def plus(self, a: Number, b: Number) -> Number:
        exact = Number(a.term + b.term, a.size + b.size)
        if a.whole and b.whole:
            self.solver.add(z3.Or(exact.term == 0, size_of(exact.term) >= constant(Fraction(2) ** -149)))
        return self.rounded(exact, 53)

    def read(self, v: Number) -> Number:
        """Return an operand; a float32 number that is subnormal may count as zero."""
        if self.fmt == "float64" or v.settled:
            return v
        term = self.fresh("read")
        subnormal = size_of(v.term) < constant(Fraction(2) ** -126)
        self.solver.add(z3.Or(term == v.term, z3.And(subnormal, term == 0)))
        return Number(term, v.size)

    # --- the program

    def gate(self) -> dict[int, Any]:
        """Return the bits of the gated regions."""
        used = sorted({r for g in self.gated for r in self.stated["regions"][g]})
        compared = iter(self.values(f"gate.constants_{self.fmt}"))
        oblique = iter(zip(self.matrix("gate.coefficients"), self.values("gate.thresholds"), strict=True))
        self.holds = {}  # comparisons: as stated, too
        seen = {}
        for r in used:
            terms, _, strict = self.rows[r]
            if len(terms) == 1:
                ((k, sign),) = terms.items()
                value, bound = self.x[k].term * (1 if sign > 0 else -1), constant(next(compared))
                seen[r] = self.holds[r] = value < bound if strict else value <= bound
            else:
                coefficients, threshold = next(oblique)
                total = self.sum64(list(zip(coefficients, self.x, strict=True)))
                seen[r] = total.term <= constant(threshold)
        return {g: z3.And([seen[r] for r in self.stated["regions"][g]]) for g in self.gated}

    def limits(self) -> list[tuple[str, int, int, int]]:
        """Return (stage, region, output, side) of all limits in the order of their clips."""
        found = []
        for rule in self.stated["rules"]:
            for clause in rule["clauses"]:
                outputs = [(i, number(v)) for i, v in clause[0]["y"] if number(v)]
                if len(clause) == 1 and len(outputs) == 1:
                    ((i, g),) = outputs
                    side = -1 if g > 0 else 1
                    moving = any(number(v) for _, v in clause[0]["x"])
                    stage = f"{'affine' if moving else 'constant'}_{'lower' if side > 0 else 'upper'}"
                    found += [(stage, region, i, side) for region in rule["regions"]]
        return [limit for stage in STAGES for limit in found if limit[0] == stage]

    def answers(self, most: Fraction = WIDE) -> list[Number]:
        """Return what any model may answer: every number up to 2^100; the others are replaced by such a number."""
        return [self.float(f"t{i}", -most, most, 24) for i in range(len(self.stated["outputs"]))]

    def clipped(self, answers: Sequence[Number]) -> list[Number]:
        """Return float32 numbers behind the clip list."""
        q, y = list(answers), list(answers)
        place = dict.fromkeys(STAGES, 0)
        for stage, region, i, side in self.limits():
            row, place[stage] = place[stage], place[stage] + 1
            offset = self.values(f"clips.{stage}")[row]
            limit = narrow = Number(constant(offset), abs(offset))
            if stage.startswith("affine"):
                limit = self.sum64(list(zip(self.matrix(f"clips.{stage}_slope")[row], self.x, strict=True)), offset)
                narrow = self.rounded(limit, 24)
            beyond = q[i].term < limit.term if side > 0 else q[i].term > limit.term
            acts, size = z3.And(self.bits[region], beyond), max(q[i].size, limit.size)
            q[i] = Number(z3.If(acts, limit.term, q[i].term), size)
            y[i] = Number(z3.If(acts, narrow.term, y[i].term), max(y[i].size, narrow.size))
        return [self.settled(v) for v in y]

    def settled(self, v: Number) -> Number:
        """Return a number, or 0 in place of one that is nearer to it than 2^-126: as flushing may, as a check does."""
        term = self.fresh("y")
        subnormal = size_of(v.term) < constant(Fraction(2) ** -126)
        kept = term == v.term if "check.scale" not in self.tensors else z3.And(z3.Not(subnormal), term == v.term)
        self.solver.add(z3.Or(kept, z3.And(subnormal, term == 0)))
        return Number(term, v.size, settled=True)

    def passes(self, y: Sequence[Number]) -> Any:
        """Return that the check accepts y."""
        literals, numbers = self.checked()
        outputs, sizes, inputs = (iter(self.values(f"check.{name}")) for name in ("outputs", "sizes", "inputs"))
        absolute = [Number(size_of(v.term), v.size, settled=True) for v in y]
        holds = []
        for literal, threshold in zip(literals, self.values("check.thresholds"), strict=True):
            own, read = ([k for k, v in literal[part] if number(v)] for part in "yx")
            group = [g for g in self.stated["one_hot"] if read and set(read) <= set(g)]
            terms = [(next(outputs), y[i]) for i in own] + [(next(sizes), absolute[i]) for i in own]
            terms += [(next(inputs), self.x[k]) for k in (group[0] if group and len(own) == 1 else read)]
            holds.append(self.sum64(terms).term <= constant(threshold))
        result = []
        for r, rule in enumerate(self.stated["rules"]):
            on = z3.Or([self.bits[g] for g in rule["regions"]])
            asked = [z3.Or([holds[k] for k in own]) for number_of_rule, own in numbers if number_of_rule == r]
            asked += [z3.Or(y[h].term < 0, y[k].term < 0) for h, k in self.excluded(rule)]
            result += [z3.Implies(on, one) for one in asked]
        return z3.And(result)

    def checked(self) -> tuple[list[Any], list[tuple[int, list[int]]]]:
        """Return the different literals that are checked, moving ones first, and (rule, literals) of their clauses."""
        found: dict[str, Any] = {}
        clauses = []
        for r, rule in enumerate(self.stated["rules"]):
            for clause in rule["clauses"]:
                if len(clause) > 1 or len([v for _, v in clause[0]["y"] if number(v)]) != 1:
                    keys = [json.dumps(literal, sort_keys=True) for literal in clause]
                    found |= dict(zip(keys, clause, strict=True))
                    clauses.append((r, keys))
        order = sorted(found, key=lambda key: not found[key]["x"])
        return [found[key] for key in order], [(r, [order.index(key) for key in keys]) for r, keys in clauses]

    def excluded(self, rule: Any) -> list[tuple[int, int]]:
        if rule["exclusions"] is None:
            return []
        start, count = rule["exclusions"]["offset"], rule["exclusions"]["count"]
        flat = struct.unpack_from(f"<{2 * count}I", self.block, start)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def safe(self) -> list[Number]:
        """Return the stored answers of the leaf that serves, before the clips."""
        (leaves, m, d), slopes = self.tensors["safe.slope"]
        offsets = self.values("safe.offset")
        made = []
        for row in range(leaves * m):
            terms = [(s, v) for s, v in zip(slopes[row * d : (row + 1) * d], self.x, strict=True) if s]
            exact = self.sum64(terms, offsets[row])
            made.append(self.rounded(exact, 24) if terms else exact)
        numbers = iter(range(leaves))

        def chosen(tree: Any) -> list[Number]:
            if tree is None:
                leaf = next(numbers)
                return made[leaf * m : (leaf + 1) * m]
            inside, outside = chosen(tree[1]), chosen(tree[2])
            pairs = zip(inside, outside, strict=True)
            return [Number(z3.If(self.bits[tree[0]], a.term, b.term), max(a.size, b.size)) for a, b in pairs]

        return chosen(self.tree)

    # --- the rules, exactly

    def broken(self, y: Sequence[Number], *, limits: bool = True) -> Any:
        """Return that an answer breaks some rule; without `limits`, only clauses that are checked count."""
        ways = []
        for rule in self.stated["rules"]:
            inside = z3.Or([z3.And([self.as_stated(r) for r in self.stated["regions"][g]]) for g in rule["regions"]])
            clauses = rule["clauses"] if limits else [c for c in rule["clauses"] if len(c) > 1 or len(c[0]["y"]) != 1]
            failures = [z3.And([z3.Not(self.literal(literal, y)) for literal in clause]) for clause in clauses]
            failures += [z3.And(y[h].term >= 0, y[k].term >= 0) for h, k in self.excluded(rule)]
            ways.append(z3.And(inside, z3.Or(failures)))
        return z3.Or(ways)

    def as_stated(self, r: int) -> Any:
        terms, bound, strict = self.rows[r]
        if len(terms) == 1:
            return self.holds[r]
        total = z3.Sum([constant(v) * self.x[k].term for k, v in terms.items()])
        return total < constant(bound) if strict else total <= constant(bound)

    def literal(self, literal: Any, y: Sequence[Number]) -> Any:
        terms = [constant(number(v)) * y[i].term for i, v in literal["y"]]
        terms += [constant(number(v)) * self.x[k].term for k, v in literal["x"]]
        total, bound = z3.Sum(terms), constant(number(literal["bound"]))
        return total < bound if literal["strict"] else total <= bound

    # --- questions

    def ask(self, *conditions: Any, work: int = 100_000_000) -> str:
        """Return "sat", "unsat" or, after so much work, "unknown"."""
        self.solver.set("rlimit", work)
        self.solver.add(*conditions)
        return str(self.solver.check())

    def found(self, terms: Sequence[Number]) -> list[Fraction]:
        """Return the values of terms in the answer that was found."""
        model = self.solver.model()
        return [Fraction(str(model.eval(v.term, model_completion=True))) for v in terms]


def _numbers(tensor: Any) -> list[Fraction]:
    code = {"F32": "f", "F64": "d"}[tensor.dtype]
    return [Fraction(v) for v in struct.unpack(f"<{len(tensor.data) // struct.calcsize(code)}{code}", tensor.data)]
