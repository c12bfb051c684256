"""Ways to run a certified head: torch, onnxruntime, and the format's program in NumPy with any order of summation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smle.certificates.document import Certificate
from smle.extras import require
from smle.graphs.graph import certified_program, graph_model, interface_of
from smle.heads.grid.onnx import grid_proposals
from smle.heads.rules.onnx import proposals_of
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Categorical, Specification
from smle_check.floats import BINARY32, nearest
from smle_check.onnx.program import EMBEDDING
from studies.bench.soundness_subjects import Subject

__all__ = [
    "LEVELS",
    "ORDERS",
    "HeadProgram",
    "Order",
    "Path",
    "columns_of",
    "feed",
    "head_file",
    "in_batches",
    "onnx_path",
    "onnx_session",
    "torch_threads",
]

Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.floating]
Path = Callable[[FloatArray, Array], Array]
"""(features (rows, d), embedding (rows, n)) -> outputs (rows, m)."""
Order = Callable[[Array, Array, Array], Array]
"""(A (rows, k, N), v (rows, N), b (rows, k)) -> A v + b (rows, k), in the format of the arguments."""
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
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
    "fused, last to first": _fused_last_to_first,
}  # fmt: skip


# --- The program of the format in NumPy ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeadProgram:
    """The deployed program written down again from docs/certificate-format.md, with an order of summation of its own.

    `slack=False` compares oblique rows with their plain float32 bound instead of the certified threshold.
    """

    subject: Subject
    order: Order = _in_turn
    slack: bool = True

    def __call__(self, X: FloatArray, Z: Array) -> Array:
        """Return the outputs (rows, m)."""
        parts = [slice(i, i + _ROWS) for i in range(0, len(X), _ROWS)]
        return np.concatenate([self._outputs(X[part], Z[part]) for part in parts])

    def _tensor(self, name: str) -> npt.NDArray[Any]:
        stored = self.subject.certificate.tensors[name]
        kind = {"F32": "<f4", "F64": "<f8", "U8": "u1"}[stored.dtype]
        return np.frombuffer(stored.data, dtype=kind).reshape(stored.shape)

    def _outputs(self, X: FloatArray, Z: Array) -> Array:
        known = self.subject.certificate.tensors
        kind = "float64" if X.dtype == np.float64 else "float32"
        x = clamp(X, self._tensor(f"domain.lower_{kind}"), self._tensor(f"domain.upper_{kind}"))
        x32 = x.astype(np.float32)
        cell = self.cells(x)
        lower, upper = self._limits(x32)
        guarded = "heads.fallback" in known
        nan = np.isnan(Z).any(axis=1) & guarded
        z = clip(Z, lower, upper)
        weight, bias = self._tensor("heads.weight"), self._tensor("heads.bias")
        served = np.minimum(cell, len(weight) - 1)
        A, v = weight[served], z
        if "heads.passthrough" in known:
            A, v = np.concatenate([A, self._tensor("heads.passthrough")[served]], axis=2), np.hstack([z, x32])
        y = self.order(A, v, bias[served])
        if guarded:
            y[nan] = self._tensor("heads.fallback")[served[nan]]
        free = cell == len(weight)
        if free.any():
            with np.errstate(all="ignore"):
                y[free] = Z[free] @ self._tensor("free.weight").T + self._tensor("free.bias")
        return y

    def _limits(self, x32: Array) -> tuple[Array, Array]:
        """Return the computed bounds l(x), u(x) of the embedding, (1, n) or (rows, n)."""
        known = self.subject.certificate.tensors
        lower, upper = (self._tensor(f"bounds.{side}")[None] for side in ("lower", "upper"))
        if "bounds.lower_slope" not in known:
            return lower, upper
        hidden = x32
        for layer in range(sum(name.startswith("bounds.hidden.") for name in known) // 2):
            weight, bias = (self._tensor(f"bounds.hidden.{layer}.{part}")[None] for part in ("weight", "bias"))
            hidden = np.maximum(self.order(weight, hidden, np.repeat(bias, len(x32), axis=0)), np.float32(0))
        slopes = [self._tensor(f"bounds.{side}_slope")[None] for side in ("lower", "upper")]
        return tuple(
            self.order(slope, hidden, np.repeat(constant, len(x32), axis=0))
            for slope, constant in zip(slopes, (lower, upper), strict=True)
        )  # type: ignore[return-value]

    def cells(self, x: FloatArray) -> npt.NDArray[np.intp]:
        """Return the cell of each input (rows,); x is clamped to the domain."""
        cells = self.subject.cells
        signatures = self._tensor("gate.signatures")
        used = sorted({row for region in cells.gated for row in cells.regions[region]})
        rows = [cells.rows[r] for r in used]
        inside: dict[int, npt.NDArray[np.bool_]] = {}
        constants = iter(self._tensor("gate.constants_float64" if x.dtype == np.float64 else "gate.constants_float32"))
        oblique = zip(self._tensor("gate.coefficients"), self._tensor("gate.thresholds"), strict=True)
        for number, row in zip(used, rows, strict=True):
            if row.is_comparison:
                ((column, sign),) = row.coefficients
                signed, constant = -x[:, column] if sign < 0 else x[:, column], next(constants)
                inside[number] = signed < constant if row.strict else signed <= constant
                continue
            coefficients, threshold = next(oblique)
            kind = np.float64 if self.slack else np.float32
            if not self.slack:
                threshold = np.float32(float(nearest(row.bound, BINARY32)))
            start = np.zeros((len(x), 1), dtype=kind)
            value = self.order(coefficients[None, None].astype(kind), x.astype(kind), start)
            inside[number] = ~(value[:, 0] > threshold)
        bits = np.ones((len(x), len(cells.gated)), dtype=np.int64)
        for position, region in enumerate(cells.gated):
            for row_number in cells.regions[region]:
                bits[:, position] &= inside[row_number]
        powers = 1 << np.arange(len(cells.gated))
        table = np.full(1 << len(cells.gated), int(signatures.sum(axis=1).argmax()), dtype=np.intp)
        table[signatures.astype(np.int64) @ powers] = np.arange(len(signatures))
        found: npt.NDArray[np.intp] = table[bits @ powers]
        return found


def clamp(x: Any, lower: Any, upper: Any) -> Any:
    """Inputs inside of the domain; NaN becomes the lower end."""
    raised = np.where(x >= lower, x, lower)
    return np.where(raised <= upper, raised, upper)


def clip(z: Any, lower: Any, upper: Any) -> Any:
    """The NaN-safe clip of the format: l where l > u."""
    lowered = np.where(z <= upper, z, upper)
    return np.where(lowered >= lower, lowered, lower)


# --- torch and onnxruntime -----------------------------------------------------------------------------------


@contextmanager
def torch_threads(count: int, *, flush: bool = False) -> Iterator[None]:
    """Set torch's number of threads, and flush subnormal numbers to zero, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    flushed = flush and torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if flushed:
            torch.set_flush_denormal(False)


def in_batches(path: Path, size: int) -> Path:
    """Return a way that takes a few rows at a time."""

    def outputs(X: FloatArray, Z: Array) -> Array:
        return np.concatenate([path(X[i : i + size], Z[i : i + size]) for i in range(0, len(X), size)])

    return outputs


def onnx_path(spec: Specification, data: bytes, *, level: str = "ORT_ENABLE_ALL", threads: int = 1) -> Path:
    """Return an exported head in onnxruntime. Features are float32 there.

    `level`: a name of `LEVELS`, onnxruntime's levels of optimization.

    Raises:
        MissingDependencyError: If onnxruntime is not installed.
    """
    session, names = onnx_session(data, level=level, threads=threads), columns_of(spec)

    def outputs(X: FloatArray, Z: Array) -> Array:
        result: Array = np.concatenate(session.run(names, {**feed(spec, X), EMBEDDING: Z}), axis=1)
        return result

    return outputs


def onnx_session(data: bytes, *, level: str = "ORT_ENABLE_ALL", threads: int = 1) -> Any:
    """Return a file in onnxruntime.

    Raises:
        MissingDependencyError: If onnxruntime is not installed.
    """
    onnxruntime = require("onnxruntime", "The attack on exported heads")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.__members__[level]
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def head_file(spec: Specification, certificate: Certificate, *, monitor: bool = False) -> bytes:
    """Return a certified head as an ONNX file that takes what the model computes as an input."""
    onnx = require("onnx", "ONNX export")
    tensors = {k: v for k, v in certificate.tensors.items() if not k.startswith("backbone.")}
    width = tensors["bounds.lower"].shape[0] if "bounds.lower" in tensors else len(spec.targets)
    value = onnx.helper.make_tensor_value_info(EMBEDDING, onnx.TensorProto.FLOAT, ["N", width])
    interface = interface_of(spec, monitor=monitor, head=certificate.document["program"]["head"])
    proposals = grid_proposals if "grid.numerator" in tensors else proposals_of
    nodes, count = proposals(certificate) if "check.scale" in tensors else ([], 1)
    program = certified_program(interface, certificate, tensors, proposals=count)
    titles = [rule.name for rule in spec.rules]
    data: bytes = graph_model(interface, program, Backbone([], [], [value]), titles, nodes).SerializeToString()
    return data


def columns_of(spec: Specification) -> list[str]:
    """Return the names of the outputs of an exported model that are numbers, in the order of the rules' outputs."""
    return [name for output in interface_of(spec).outputs for name in output.columns]


def feed(spec: Specification, X: FloatArray) -> dict[str, npt.NDArray[Any]]:
    """Return named inputs (rows, 1) from encoded columns (rows, d)."""
    result: dict[str, npt.NDArray[Any]] = {}
    for item, place in spec.input_slices:
        if isinstance(item, Categorical):
            result[item.name] = np.array(item.categories, dtype=object)[X[:, place].argmax(axis=1)][:, None]
        else:
            result[item.name] = np.ascontiguousarray(X[:, place], dtype=np.float32)
    return result
