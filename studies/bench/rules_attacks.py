"""Attacks on heads of rules: answers at the borders of rules, and the format's program written down again."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path as File
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.estimators import SafeRegressor
from smle.heads.rules.author import certify_rules
from smle.heads.table import program_of
from smle.regions.cells import regions_of
from smle.rules import Specification
from smle_check.heads.candidates import checked_of, gated_regions
from smle_check.heads.clips import STAGES, limits_of
from smle_check.heads.sums import columns_of
from studies.bench.soundness_attacks import TINY, Attack, Attacker, Batch, chunks
from studies.bench.soundness_programs import ORDERS, Order, Path
from studies.bench.torch_attacks import torch_modes
from tests.support.runtimes import Runtime
from tests.support.sampling import FloatArray, Judge, border_points, corner_points, uniform_points

__all__ = ["ATTACKS", "RulesAttacker", "RulesProgram", "Subject", "corrected", "stated", "unsafe"]

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Subject:
    """A certified head of rules, with the model in front of it if there is one: (inputs) -> answers."""

    name: str
    spec: Specification
    certificate: Certificate
    units: npt.NDArray[np.float64]
    model: Callable[[FloatArray], Array] | None = None
    onnx: bytes | None = None  # the model and its head as one file

    def __post_init__(self) -> None:
        self.certificate.check()

    @property
    def kind(self) -> str:
        """What settles the rules."""
        checked = checked_of(self.stated)
        parts = [f"{len(limits_of(self.stated))} clips"]
        if not checked.is_empty:
            leaves = self.certificate.tensors["safe.offset"].shape[0]
            pairs = sum(len(self.stated.rules[r].exclusions) for r in checked.excluding)
            parts += [f"{len(checked.clauses)} clauses", f"{pairs} pairs", f"{leaves} leaves"]
        return ", ".join(parts)

    @cached_property
    def stated(self) -> smle_check.Specification:
        """The rules as the checker reads them."""
        return smle_check.Specification(self.certificate.document["specification"], self.certificate.block)

    @cached_property
    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The numbers of the head."""
        return arrays_of(self.certificate.tensors)


def stated(name: str, text: str, units: npt.NDArray[np.float64] | None = None) -> Subject:
    """Return the head of rules that are stated, without a model in front of it."""
    spec = Specification.from_yaml(text)
    units = np.ones(len(spec.targets)) if units is None else units
    return Subject(name, spec, certify_rules(spec, scale=units), units)


def corrected(name: str, text: str, estimator: Any, targets: Callable[[Any, Any], Any], *, rows: int) -> Subject:
    """Return a fitted estimator with its head: the stored form, and both as one ONNX file."""
    spec, rng = Specification.from_yaml(text), np.random.default_rng(0)
    X = uniform_points(spec, rng, rows, dtype=np.float64)
    Y = targets(X, rng)
    model: Any = SafeRegressor(spec, estimator=estimator, compare=False).fit(X, Y)
    with tempfile.TemporaryDirectory() as folder:
        place = File(folder) / "model.onnx"
        model.to_onnx(place)
        data = place.read_bytes()
    scale = np.asarray(Y.std(axis=0)).reshape(-1)
    return Subject(name, spec, model.certificate_, scale, _answers(model.deployed_), data)


def _answers(model: Any) -> Callable[[FloatArray], Array]:
    def answers(X: FloatArray) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # at corners of the domain answers are often moved
            found: Array = model.answer(X, count=False).answers.astype(np.float32)
        return found

    return answers


# --- The program of the format, with any order of summation ------------------------------------------------------


class RulesProgram:
    """The program of sections 12 and 13 written down again in NumPy, with an order of summation of its own.

    Candidates of a row are its answer, and the answer of the row before: nothing is assumed about them.
    """

    def __init__(self, subject: Subject, order: Order = ORDERS["in turn"], *, slack: bool = True) -> None:
        self.order, self.spec, self.tensors = order, subject.stated, dict(subject.tensors)
        self.tree = subject.certificate.document["program"]["tree"]
        self.limits, self.checked, self.regions = limits_of(self.spec), checked_of(self.spec), gated_regions(self.spec)
        if not self.checked.is_empty:
            self.tensors |= self.matrices()
        if not slack and not self.checked.is_empty:
            stated = np.array([float(literal.bound) for literal in self.checked.literals])
            rounded = self.tensors["check.sizes"].any(axis=1)  # others are compared exactly
            self.tensors["check.thresholds"] = np.where(rounded, stated, self.tensors["check.thresholds"])
            self.tensors["check.sizes"] = np.zeros_like(self.tensors["check.sizes"])

    def matrices(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the numbers of the check with zeros between them, a row for each literal."""
        read = [columns_of(self.spec, literal) for literal in self.checked.literals]
        m, d = len(self.spec.outputs), len(self.spec.inputs)
        made = {"check.outputs": np.zeros((len(read), m)), "check.sizes": np.zeros((len(read), m))}
        made["check.inputs"] = np.zeros((self.checked.moving, d))
        for name, matrix in made.items():
            own = [columns[name == "check.inputs"] for columns in read[: len(matrix)]]
            places = [(k, i) for k, columns in enumerate(own) for i in columns]
            matrix[tuple(np.array(places, dtype=np.intp).reshape(-1, 2).T)] = self.tensors[name]
        return made

    def sums(self, A: npt.NDArray[Any], v: npt.NDArray[Any], b: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return A v + b for every row: (rows, k)."""
        start = np.zeros(len(A)) if b is None else b.astype(np.float64)
        return np.asarray(self.order(A[None].astype(np.float64), v, np.repeat(start[None], len(v), axis=0)))

    def __call__(self, X: FloatArray, Z: Array) -> Array:
        """Return what is served (rows, m)."""
        low, high = (self.tensors[f"domain.{end}_{X.dtype.name}"] for end in ("lower", "upper"))
        x = np.where(np.greater_equal(X, low), X, low)
        x = np.where(x <= high, x, high)
        wide = x.astype(np.float64)
        bits = self.bits(x, wide)
        y = self.clipped(wide, bits, Z)
        if self.checked.is_empty:
            return y
        good = self.ok(wide, bits, y)
        other = self.clipped(wide, bits, np.roll(Z, 1, axis=0))
        second = ~good & self.ok(wide, bits, other)
        y[second] = other[second]
        left = np.flatnonzero(~(good | second))
        if len(left):
            some = {region: bit[left] for region, bit in bits.items()}
            y[left] = self.clipped(wide[left], some, self.safe(wide[left], some))
        return y

    def bits(self, x: FloatArray, wide: npt.NDArray[np.float64]) -> dict[int, npt.NDArray[np.bool_]]:
        """Return which regions are active."""
        used = sorted({r for g in self.regions for r in self.spec.regions[g]})
        compared = iter(self.tensors[f"gate.constants_{x.dtype.name}"])
        holds = {}
        for r in (r for r in used if len(self.spec.rows[r].terms) == 1):
            ((k, sign),) = self.spec.rows[r].terms.items()
            value, constant = (x[:, k] if sign > 0 else -x[:, k]), next(compared)
            holds[r] = value < constant if self.spec.rows[r].strict else value <= constant
        oblique = [r for r in used if len(self.spec.rows[r].terms) > 1]
        if oblique:
            beyond = self.sums(self.tensors["gate.coefficients"], wide) > self.tensors["gate.thresholds"]
            holds |= {r: ~beyond[:, i] for i, r in enumerate(oblique)}
        everywhere = np.ones(len(x), dtype=bool)
        return {g: np.logical_and.reduce([everywhere, *(holds[r] for r in self.spec.regions[g])]) for g in self.regions}

    def clipped(self, wide: npt.NDArray[Any], bits: dict[int, npt.NDArray[np.bool_]], t: Array) -> Array:
        """Return what the clip list leaves, settled."""
        q = t.astype(np.float64)
        q = np.where(np.abs(q) <= 2.0**100, q, self.tensors["clips.default"])
        for stage in STAGES:
            own = [limit for limit in self.limits if limit.stage == stage]
            if not own:
                continue
            values = np.repeat(self.tensors[f"clips.{stage}"][None].astype(np.float64), len(q), axis=0)
            if stage.startswith("affine"):
                values = self.sums(self.tensors[f"clips.{stage}_slope"], wide, self.tensors[f"clips.{stage}"])
            for i, limit in enumerate(own):
                before, v = q[:, limit.output], values[:, i]
                inside = before >= v if limit.side > 0 else before <= v
                q[:, limit.output] = np.where(inside | ~bits[limit.region], before, v)
        y: Array = q.astype(np.float32)
        y[np.abs(y) < np.float32(TINY)] = 0
        return y

    def ok(self, wide: npt.NDArray[Any], bits: dict[int, npt.NDArray[np.bool_]], y: Array) -> npt.NDArray[np.bool_]:
        """Return which answers pass the check."""
        good = np.ones(len(y), dtype=bool)
        on = [np.logical_or.reduce([bits[g] for g in rule.regions]) for rule in self.spec.rules]
        if self.checked.literals:
            S = np.zeros((len(self.checked.literals), wide.shape[1]))
            S[: self.checked.moving] = self.tensors["check.inputs"]
            values = np.hstack([y.astype(np.float64), np.abs(y.astype(np.float64)), wide])
            sums = self.sums(np.hstack([self.tensors["check.outputs"], self.tensors["check.sizes"], S]), values)
            holds = sums <= self.tensors["check.thresholds"]
            for clause in self.checked.clauses:
                good &= ~on[clause.rule] | holds[:, list(clause.literals)].any(axis=1)
        for r in self.checked.excluding:
            for h, k in self.spec.rules[r].exclusions:
                good &= ~(on[r] & (y[:, h] >= 0) & (y[:, k] >= 0))
        return good

    def safe(self, wide: npt.NDArray[Any], bits: dict[int, npt.NDArray[np.bool_]]) -> Array:
        """Return the stored answers of the leaves, in float32."""
        result = np.zeros((len(wide), len(self.spec.outputs)), dtype=np.float32)
        number, stack = 0, [(self.tree, np.arange(len(wide)))]
        while stack:
            tree, rows = stack.pop()
            if tree is None:
                slope, offset = self.tensors["safe.slope"][number], self.tensors["safe.offset"][number]
                result[rows] = self.sums(slope, wide[rows], offset)
                number += 1
            else:
                inside = bits[tree[0]][rows]
                stack += [(tree[2], rows[~inside]), (tree[1], rows[inside])]
        return result


# --- What an attacker does ---------------------------------------------------------------------------------------


class RulesAttacker(Attacker):
    """Inputs and answers chosen against a head of rules."""

    subject: Subject
    way = "NumPy"

    def __init__(self, subject: Subject, rng: np.random.Generator, runtimes: Sequence[Runtime] = ()) -> None:
        super().__init__(subject, rng, runtimes)
        self.program: Any = program_of(subject.certificate)
        literals = [literal for rule in subject.stated.rules for clause in rule.clauses for literal in clause]
        literals = list({str(literal): literal for literal in literals}.values())
        m, d = len(subject.stated.outputs), len(subject.stated.inputs)
        self.g, self.s = np.zeros((len(literals), m)), np.zeros((len(literals), d))
        self.h = np.array([float(literal.bound) for literal in literals])
        for k, literal in enumerate(literals):
            for i, value in literal.y.items():
                self.g[k, i] = float(value)
            for j, value in literal.x.items():
                self.s[k, j] = float(value)

    def deployed(self, X: FloatArray, Z: Array) -> Array:
        """Return what is served (rows, m)."""
        served: Array = self.program(X, Z)
        return served

    def written_again(self, order: Order) -> Path:
        """Return the format's program with another order of summation."""
        return RulesProgram(self.subject, order)

    def inputs(self, count: int, dtype: type[np.floating]) -> FloatArray:
        """Return points of the domain: uniform, corners, and within a few numbers of the format of every guard row."""
        rows, spec, rng = regions_of(self.spec).rows, self.spec, self.rng
        parts = [uniform_points(spec, rng, count // 4, dtype=dtype), corner_points(spec, rng, count // 4, dtype=dtype)]
        share = -(-count // (2 * len(rows))) if rows else 0
        parts += [border_points(spec, rng, share, row=row, dtype=dtype) for row in rows]
        X = np.concatenate(parts)
        if len(X) < count:
            X = np.concatenate([X, uniform_points(spec, rng, count - len(X), dtype=dtype)])
        return X[rng.permutation(len(X))[:count]]

    def aimed(self, X: FloatArray) -> Array:
        """Return answers on the border of some literal at these inputs, or next to it."""
        n, (L, m), rng = len(X), self.g.shape, self.rng
        size = self.subject.units * 10.0 ** rng.integers(-2, 3, (n, 1))
        t = rng.normal(size=(n, m)) * size
        if not L:
            return t.astype(np.float32)
        for _ in range(2):
            k = rng.integers(L, size=n)
            weights = np.abs(self.g[k]) * rng.random((n, m))
            i = weights.argmax(axis=1)
            moving = np.einsum("nd,nd->n", self.s[k], X.astype(np.float64))
            rest = np.einsum("nm,nm->n", self.g[k], t) - self.g[k, i] * t[np.arange(n), i]
            with np.errstate(all="ignore"):
                t[np.arange(n), i] = (self.h[k] - moving - rest) / self.g[k, i]
        with np.errstate(all="ignore"):
            return self.nudged(t.astype(np.float32))

    def met(self, X: FloatArray, Z: Array) -> FloatArray:
        """Return inputs moved so that answers lie on the border of a literal that moves with them, or next to it.

        Inputs in float64 come nearer to it than any answer in float32 could.
        """
        moving = np.flatnonzero(self.s.any(axis=1) & self.g.any(axis=1))
        if not len(moving) or X.dtype == np.float32:
            return X
        n, X = len(X), X.copy()
        k = self.rng.choice(moving, size=n)
        weights = np.abs(self.s[k]) * self.rng.random((n, X.shape[1]))
        weights[:, self.one_hot] = 0
        j, rows = weights.argmax(axis=1), np.arange(n)
        low, high = (np.array([float(v) for v in ends]) for ends in (self.spec.lower, self.spec.upper))
        with np.errstate(all="ignore"):
            rest = np.einsum("nd,nd->n", self.s[k], X) - self.s[k, j] * X[rows, j]
            at = (self.h[k] - np.einsum("nm,nm->n", self.g[k], Z.astype(np.float64)) - rest) / self.s[k, j]
            at = np.where(self.rng.random(n) < 0.5, np.nextafter(at, self.rng.choice([-np.inf, np.inf], n)), at)
            inside = (weights[rows, j] > 0) & (at >= low[j]) & (at <= high[j]) & (np.abs(at) >= TINY)
        X[rows[inside], j[inside]] = at[inside]
        return X

    def nudged(self, t: Array) -> Array:
        """Return answers moved by up to two numbers of float32."""
        with np.errstate(all="ignore"):
            for _ in range(2):
                side = np.where(self.rng.random(t.shape) < 0.5, -np.inf, np.inf).astype(np.float32)
                t = np.where(self.rng.random(t.shape) < 0.4, np.nextafter(t, side), t)
        return t

    def again(self, X: FloatArray) -> Array:
        """Return what is served to aimed answers, moved by a number or two."""
        return self.nudged(self.program(X, self.aimed(X)))

    def hostile(self, X: FloatArray) -> Array:
        """Return aimed answers spoiled by NaN, infinities, huge and subnormal numbers."""
        t = self.aimed(X)
        odd = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**100, 1e-40, -1e-42, 0.0, -0.0], dtype=np.float32)
        mask = self.rng.random(t.shape) < self.rng.choice([0.05, 0.4, 1.0], size=(len(X), 1))
        t[mask] = self.rng.choice(odd, size=int(mask.sum()))
        return t

    def mixture(self, count: int, dtype: type[np.floating]) -> tuple[FloatArray, Array]:
        """Return inputs and answers of all kinds."""
        X = self.inputs(count, dtype)
        Z = self.aimed(X)
        Z[::4], Z[1::4] = self.hostile(X[::4]), self.again(X[1::4])
        X[1::2] = self.met(X[1::2], Z[1::2])
        return X, Z


def _numpy(answers: str) -> Attack[RulesAttacker]:
    def attack(attacker: RulesAttacker, count: int) -> Iterator[Batch]:
        for size, dtype in chunks(count, RulesAttacker.chunk):
            X = attacker.inputs(size, dtype)
            Z = getattr(attacker, answers)(X)
            X[::2] = attacker.met(X[::2], Z[::2])
            yield Batch(X, X, Z, attacker.program(X, Z), "NumPy")

    return attack


def _own(attacker: RulesAttacker, count: int) -> Iterator[Batch]:
    if attacker.subject.model is not None:
        for size, dtype in chunks(count, RulesAttacker.chunk):
            X = attacker.inputs(size, dtype)
            Z = attacker.subject.model(X)
            yield Batch(X, X, Z, attacker.program(X, Z), "NumPy")


ATTACKS: dict[str, tuple[Attack[RulesAttacker], float]] = {
    "the model's own answers": (_own, 0.08),
    "answers at the borders of rules": (_numpy("aimed"), 0.22),
    "served answers, moved by a number or two": (_numpy("again"), 0.16),
    "NaN, infinite, huge, subnormal answers": (_numpy("hostile"), 0.12),
    "inputs outside of the domain": (RulesAttacker.outside, 0.05),
    "batch sizes and threads": (RulesAttacker.few_rows, 0.06),
    "flush to zero": (RulesAttacker.flushed, 0.05),
    "torch, in every mode": (torch_modes, 0.08),
    "orders of summation, fused or not": (RulesAttacker.orders, 0.06),
    "onnxruntime, levels, batches, threads": (RulesAttacker.onnxruntime, 0.12),
    "versions of onnxruntime, flush modes, exact zeros": (RulesAttacker.versions, 0.04),
}
"""Name -> (attack, share of all points)."""


def unsafe(coupled: Subject, limited: Subject, count: int) -> dict[str, Iterator[tuple[Judge, Batch]]]:
    """Return the same attacks on heads that are not safe, for one reason each, with their judges."""

    def without_slack() -> Iterator[tuple[Judge, Batch]]:
        judge = Judge(coupled.spec)
        attacker = RulesAttacker(coupled, np.random.default_rng(0))
        program = RulesProgram(coupled, slack=False)
        for size, dtype in chunks(count, RulesAttacker.chunk):
            X, Z = attacker.mixture(size, dtype)
            yield judge, Batch(X, X, Z, program(X, Z), "NumPy")

    def by_hand() -> Iterator[tuple[Judge, Batch]]:
        judge = Judge(limited.spec)
        attacker = RulesAttacker(limited, np.random.default_rng(0))
        for size, _ in chunks(count, RulesAttacker.chunk):
            X = attacker.inputs(size, np.float32)
            Y = attacker.aimed(X)
            for limit in limits_of(limited.stated):
                slope = np.zeros(X.shape[1], dtype=np.float32)
                for k, value in limit.slope.items():
                    slope[k] = float(value)
                end = X @ slope + np.float32(Fraction(limit.offset))
                moved = np.maximum(Y[:, limit.output], end) if limit.side > 0 else np.minimum(Y[:, limit.output], end)
                Y[:, limit.output] = moved
            yield judge, Batch(X, X, Y, Y, "NumPy")

    return {
        "the check without slack (ramps)": without_slack(),
        "limits as clips in float32, by hand (limits of the bank)": by_hand(),
    }
