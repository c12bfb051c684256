"""Deployed heads written down again from docs/certificate-format.md, in NumPy, with any order of summation.

They share no code with the programs that are deployed, so that both can be compared with each other and with a judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle_check.floats import BINARY32, nearest
from smle_check.heads.candidates import checked_of
from smle_check.heads.clips import STAGES, limits_of

Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.floating]
Doubles = npt.NDArray[np.float64]
Bits = dict[int, npt.NDArray[np.bool_]]
Order = Callable[[Array, Array, Array], Array]
"""(A (rows, k, N), v (rows, N), b (rows, k)) -> A v + b (rows, k), in the format of the arguments."""
_ROWS = 1 << 14
"""Rows per call where all products are kept."""


# --- Orders of summation -------------------------------------------------------------------------------------


def _in_turn(A: Array, v: Array, b: Array) -> Array:
    assert A.shape[-1] == v.shape[1]
    total = b + A[..., 0] * v[:, None, 0]
    for j in range(1, v.shape[1]):
        total += A[..., j] * v[:, None, j]
    return total


def _last_to_first(A: Array, v: Array, b: Array) -> Array:
    return _in_turn(A[..., ::-1], v[:, ::-1], np.zeros_like(b)) + b


def _pairwise(A: Array, v: Array, b: Array) -> Array:
    parts = A * v[:, None, :]
    while parts.shape[-1] > 1:
        if parts.shape[-1] % 2:
            parts = np.concatenate([parts, np.zeros_like(parts[..., :1])], axis=-1)
        parts = parts[..., ::2] + parts[..., 1::2]
    result: Array = parts[..., 0] + b
    return result


def _lanes(count: int) -> Order:
    """Sum in lanes, as vector units do, and the lanes one after the other."""

    def total(A: Array, v: Array, b: Array) -> Array:
        parts = A * v[:, None, :]
        parts = np.pad(parts, [(0, 0), (0, 0), (0, -parts.shape[-1] % count)])
        lanes = parts[..., :count].copy()
        for start in range(count, parts.shape[-1], count):
            lanes += parts[..., start : start + count]
        result: Array = lanes[..., 0] + b
        for lane in range(1, count):
            result = result + lanes[..., lane]
        return result

    return total


def _sorted(sign: int) -> Order:
    """Sum from the smallest product to the largest, or the other way round: partial sums go as far out as they can."""

    def total(A: Array, v: Array, b: Array) -> Array:
        parts = np.sort(A * v[:, None, :], axis=-1)[..., ::sign]
        result = parts[..., 0].copy()
        for j in range(1, parts.shape[-1]):
            result += parts[..., j]
        return result + b

    return total


def _shuffled(A: Array, v: Array, b: Array) -> Array:
    order = np.random.default_rng(v.shape[1]).permutation(v.shape[1])
    return _in_turn(A[..., order], v[:, order], b)


def random_tree(seed: int) -> Order:
    """Return an order that adds two of the parts, drawn at random, until one is left."""
    rng = np.random.default_rng(seed)

    def total(A: Array, v: Array, b: Array) -> Array:
        parts = [b, *(A[..., j] * v[:, None, j] for j in range(v.shape[1]))]
        while len(parts) > 1:
            parts.append(parts.pop(rng.integers(len(parts))) + parts.pop(rng.integers(len(parts))))
        return parts[0]

    return total


def _fused(A: Array, v: Array, b: Array) -> Array:
    assert A.shape[-1] == v.shape[1]
    total = b
    for j in range(v.shape[1]):
        total = fused_multiply_add(A[..., j], v[:, None, j], total)
    return total


def _fused_last_to_first(A: Array, v: Array, b: Array) -> Array:
    return _fused(A[..., ::-1], v[:, ::-1], np.zeros_like(b)) + b


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return a b + c, rounded once to the format of the arguments (finite numbers).

    For float32 the product is exact in float64. The sum is rounded there to odd, so that the second rounding does no
    harm. For float64, where there are few sums, rationals are used.
    """
    if a.dtype == np.float64:
        return np.asarray(_exactly(a, b, c), dtype=np.float64)
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (error != 0) & (total.view(np.int64) & 1 == 0)
    odd = np.where(even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd.astype(np.float32)


_exactly = np.frompyfunc(lambda a, b, c: float(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))), 3, 1)


ORDERS: dict[str, Order] = {
    "in turn": _in_turn, "last to first": _last_to_first, "pairwise": _pairwise, "4 lanes": _lanes(4),
    "8 lanes": _lanes(8), "ascending": _sorted(1), "descending": _sorted(-1), "shuffled": _shuffled, "fused": _fused,
    "fused, last to first": _fused_last_to_first, "a random tree": random_tree(0),
}  # fmt: skip


# --- Programs ------------------------------------------------------------------------------------------------


class _Again:
    """What both heads start with: inputs moved into the domain, and which regions are active."""

    def __init__(self, certificate: Certificate, order: Order, *, slack: bool = True) -> None:
        document = certificate.document
        self.spec = smle_check.StatedSpecification(document["specification"], certificate.block)
        self.tensors, self.order, self.slack = arrays_of(certificate.tensors), order, slack
        self.gated: list[int] = document["gate"]["regions"]

    def clamped(self, X: FloatArray) -> FloatArray:
        """Return inputs inside of the domain; NaN becomes the lower end."""
        low, high = (self.tensors[f"domain.{end}_{X.dtype.name}"] for end in ("lower", "upper"))
        x = np.where(np.greater_equal(X, low), X, low)
        return np.where(x <= high, x, high)

    def sums(self, A: npt.NDArray[Any], v: npt.NDArray[Any], b: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return A v + b in float64 for every row: (rows, k)."""
        start = np.zeros(len(A)) if b is None else b.astype(np.float64)
        return np.asarray(self.order(A[None].astype(np.float64), v, np.repeat(start[None], len(v), axis=0)))

    def bits(self, x: FloatArray) -> Bits:
        """Return which regions are active; without slack oblique rows are compared in plain float32."""
        used = sorted({r for g in self.gated for r in self.spec.regions[g]})
        compared, holds = iter(self.tensors[f"gate.constants_{x.dtype.name}"]), {}
        for r in (r for r in used if len(self.spec.rows[r].terms) == 1):
            ((k, sign),) = self.spec.rows[r].terms.items()
            value, constant = (x[:, k] if sign > 0 else -x[:, k]), next(compared)
            holds[r] = value < constant if self.spec.rows[r].strict else value <= constant
        oblique = [r for r in used if len(self.spec.rows[r].terms) > 1]
        if oblique and self.slack:
            beyond = (
                self.sums(self.tensors["gate.coefficients"], x.astype(np.float64)) > self.tensors["gate.thresholds"]
            )
            holds |= {r: ~beyond[:, i] for i, r in enumerate(oblique)}
        elif oblique:
            bounds = np.array([float(nearest(self.spec.rows[r].bound, BINARY32)) for r in oblique], dtype=np.float32)
            A = self.tensors["gate.coefficients"].astype(np.float32)
            values = self.order(A[None], x.astype(np.float32), np.zeros((len(x), len(A)), dtype=np.float32))
            holds |= {r: ~(values[:, i] > bounds[i]) for i, r in enumerate(oblique)}
        everywhere = np.ones(len(x), dtype=bool)
        return {g: np.logical_and.reduce([everywhere, *(holds[r] for r in self.spec.regions[g])]) for g in self.gated}


class BoxAgain(_Again):
    """The program of a box."""

    def __init__(self, certificate: Certificate, order: Order = _in_turn, *, slack: bool = True) -> None:
        super().__init__(certificate, order, slack=slack)

    def __call__(self, X: FloatArray, Z: Array) -> Array:
        """Return what is served (rows, m)."""
        return np.concatenate([self._served(X[i : i + _ROWS], Z[i : i + _ROWS]) for i in range(0, len(X), _ROWS)])

    def _served(self, X: FloatArray, Z: Array) -> Array:
        x = self.clamped(X)
        x32, known = x.astype(np.float32), self.tensors
        cell, (lower, upper) = self.cells(x), self._limits(x32)
        z = np.where(upper >= Z, Z, upper)
        z = np.where(z >= lower, z, lower)  # l where l > u
        weight = known["heads.weight"]
        served = np.minimum(cell, len(weight) - 1)
        A, v = weight[served], z
        if "heads.passthrough" in known:
            A, v = np.concatenate([A, known["heads.passthrough"][served]], axis=2), np.hstack([z, x32])
        y = self.order(A, v, known["heads.bias"][served])
        if "heads.fallback" in known:
            nan = np.isnan(Z).any(axis=1)
            y[nan] = known["heads.fallback"][served[nan]]
        free = cell == len(weight)
        if free.any():
            with np.errstate(all="ignore"):
                y[free] = Z[free] @ known["free.weight"].T + known["free.bias"]
        return y

    def _limits(self, x32: Array) -> tuple[Array, Array]:
        """Return the computed bounds l(x), u(x) of the embedding, (1, n) or (rows, n)."""
        ends = [self.tensors[f"bounds.{side}"][None] for side in ("lower", "upper")]
        if "bounds.lower_slope" not in self.tensors:
            return ends[0], ends[1]
        hidden = x32
        for layer in range(sum(name.startswith("bounds.hidden.") for name in self.tensors) // 2):
            weight, bias = (self.tensors[f"bounds.hidden.{layer}.{part}"][None] for part in ("weight", "bias"))
            hidden = np.maximum(self.order(weight, hidden, np.repeat(bias, len(x32), axis=0)), np.float32(0))
        slopes = [self.tensors[f"bounds.{side}_slope"][None] for side in ("lower", "upper")]
        lower, upper = (
            self.order(slope, hidden, np.repeat(end, len(x32), axis=0)) for slope, end in zip(slopes, ends, strict=True)
        )
        return lower, upper

    def cells(self, x: FloatArray) -> npt.NDArray[np.intp]:
        """Return the cell of each input (rows,); x is inside of the domain."""
        signatures, bits = self.tensors["gate.signatures"], self.bits(x)
        powers = 1 << np.arange(len(self.gated))
        table = np.full(1 << len(self.gated), int(signatures.sum(axis=1).argmax()), dtype=np.intp)
        table[signatures.astype(np.int64) @ powers] = np.arange(len(signatures))
        code = sum((bits[g] * power for g, power in zip(self.gated, powers, strict=True)), np.zeros(len(x), np.int64))
        return np.asarray(table[code], dtype=np.intp)


class RulesAgain(_Again):
    """The program of a head of rules (sections 12 and 13); nothing is assumed about candidates."""

    def __init__(self, certificate: Certificate, order: Order = _in_turn, *, slack: bool = True) -> None:
        super().__init__(certificate, order)
        self.tree = certificate.document["program"]["tree"]
        self.limits, self.checked = limits_of(self.spec), checked_of(self.spec)
        if self.checked.is_empty:
            return
        self.tensors |= self.matrices()
        if not slack:
            stated = np.array([float(literal.bound) for literal in self.checked.literals])
            rounded = self.tensors["check.sizes"].any(axis=1)  # others are compared exactly
            self.tensors["check.thresholds"] = np.where(rounded, stated, self.tensors["check.thresholds"])
            self.tensors["check.sizes"] = np.zeros_like(self.tensors["check.sizes"])

    def matrices(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the numbers of the check with zeros between them, a row for each literal."""
        outputs, inputs, made = [list(literal.y) for literal in self.checked.literals], [], {}
        for literal in self.checked.literals[: self.checked.moving]:
            group = next((set(g) for g in self.spec.groups if set(literal.x) <= set(g)), None)
            inputs.append(sorted(group) if group is not None and len(literal.y) == 1 else list(literal.x))
        m, d = len(self.spec.outputs), len(self.spec.inputs)
        for name, columns, width in (("outputs", outputs, m), ("sizes", outputs, m), ("inputs", inputs, d)):
            matrix, stored = np.zeros((len(columns), width)), iter(self.tensors[f"check.{name}"].tolist())
            for k, own in enumerate(columns):
                matrix[k, own] = [next(stored) for _ in own]
            assert next(stored, None) is None
            made[f"check.{name}"] = matrix
        return made

    def __call__(self, X: FloatArray, Z: Array) -> Array:
        """Return what is served (rows, m): candidates of a row are its answer, and the answer of the row before."""
        return self.served(X, [Z, np.roll(Z, 1, axis=0)])[0]

    def served(self, X: FloatArray, candidates: Sequence[Array]) -> tuple[Array, npt.NDArray[np.intp]]:
        """Return what is served (rows, m), and by which candidate; -1: by the stored safe answer."""
        x = self.clamped(X)
        wide, all_bits, by = x.astype(np.float64), self.bits(x), np.full(len(X), -1, dtype=np.intp)
        y = np.zeros((len(X), len(self.spec.outputs)), dtype=np.float32)
        for number, t in enumerate((*candidates, None)):
            left = np.flatnonzero(by < 0)
            if not len(left):  # limits alone need no safe answer, and store none
                break
            bits = {region: bit[left] for region, bit in all_bits.items()}
            own = self.clipped(wide[left], bits, self.safe(wide[left], bits) if t is None else t[left])
            good = np.ones(len(left), dtype=bool) if t is None else self.ok(wide[left], bits, own)
            y[left[good]], by[left[good]] = own[good], -1 if t is None else number
        return y, by

    def clipped(self, wide: npt.NDArray[Any], bits: Bits, t: Array) -> Array:
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
        y[np.abs(y) < np.float32(2.0**-126)] = 0
        return y

    def ok(self, wide: npt.NDArray[Any], bits: Bits, y: Array) -> npt.NDArray[np.bool_]:
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

    def safe(self, wide: npt.NDArray[Any], bits: Bits) -> Array:
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


def written_again(certificate: Certificate, order: Order = _in_turn) -> BoxAgain | RulesAgain:
    """Return the program of a certificate, a box or a head of rules."""
    kind = BoxAgain if certificate.document["program"]["head"] == "box" else RulesAgain
    return kind(certificate, order)
