"""Heads behind a box in NumPy, and the networks that are stored with them (certificate format, section 0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.errors import ModelFormatError
from smle.guarantees import Bounds, FrozenHeads, Head, NetworkBounds
from smle.programs.quick_box import QuickBox
from smle.tables.further import FurtherColumns
from smle_check.program import Gate, Op, Step, Table, box, needed, prepared, run
from smle_check.reading import BACKBONE

__all__ = ["Box", "Perceptron", "frozen_heads_of"]

Array = npt.NDArray[Any]
Made = Callable[..., Any]
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_ZERO = np.float32(0)
_FEW_HEADS = 2  # are all computed, and each row picks its own
_MOST_BITS = 62  # of a number that stands for them
_ROWS = 1024  # per pass through the layers of a network, so that its values stay in the cache


class Box:
    """(features, embedding) -> outputs, all the values of a program by their names. Rows are rows of matrices.

    Sums are NumPy's, so that the last bits of what is computed may differ from those of other engines.
    """

    def __init__(self, ops: Sequence[Op], tensors: Mapping[str, Array]) -> None:
        self.ops, self.tensors = ops, MappingProxyType(dict(tensors))
        self._steps: dict[tuple[str | None, np.dtype[Any]], list[Step]] = {}
        self._quick: dict[np.dtype[Any], QuickBox] = {}
        self._widths = len(tensors["domain.lower_float32"]), len(tensors.get("bounds.lower", ()))

    @classmethod
    def of(cls, certificate: Certificate) -> Box:
        """Return the program that the certificate of a box speaks of.

        Raises:
            ModelFormatError: If tensors are missing.
        """
        document, arrays = certificate.document, arrays_of(certificate.tensors)
        spec = smle_check.Specification(document["specification"], certificate.block)
        stated = document["program"]
        ops = box(spec, document["gate"]["regions"], stated["clip"], stated["bounds"], arrays)
        made = {op.out for op in ops} | {"features", "answer"}
        for name in {name for op in ops for name in op.args if name is not None and name not in made}:
            for fmt in ("float32", "float64"):
                if name.replace("_F", f"_{fmt}") not in arrays:
                    raise ModelFormatError(f"model.safetensors: expected '{name}', a tensor of the head. Got none.")
        return cls(ops, arrays)

    @property
    def heads(self) -> int:
        """How many heads there are, the free one included."""
        return len(self.tensors["heads.weight"]) + ("free.weight" in self.tensors)

    @property
    def units(self) -> int:
        """Width of the embedding."""
        return len(self.tensors["bounds.lower"])

    def __call__(self, features: Array, embedding: Array) -> Array:
        """Return the outputs (batch, m) in float32 at features (batch, d), which are float32 or float64.

        Raises:
            TypeError: If features have another kind of numbers.
            ValueError: If there is not one row of features for each embedding, or a column too many or too few.
        """
        rows, (columns, units) = len(embedding), self._widths
        if features.shape != (rows, columns) or embedding.shape != (rows, units):
            raise ValueError(
                f"Expected features of shape {(rows, columns)} and an embedding of shape {(rows, units)}. Got "
                f"{features.shape} and {embedding.shape}."
            )
        quick = self._quick.get(features.dtype)
        if quick is None:
            quick = self._quick[features.dtype] = QuickBox(self.ops, self.tensors, TABLE, _format(features))
        with np.errstate(all="ignore"):
            return quick(features, np.asarray(embedding, dtype=_FLOAT32))

    def values(self, features: Array, embedding: Array, wanted: str | None = None) -> dict[str, Any]:
        """Return what each operation makes, by its name: `bits`, `cell` and `clipped` among them.

        Operations that a `wanted` value does not need are left out.
        """
        key = wanted, features.dtype  # its name takes longer than a product
        steps = self._steps.get(key)
        if steps is None:
            ops = self.ops if wanted is None else needed(self.ops, (wanted,))
            steps = self._steps[key] = prepared(ops, self.tensors, TABLE, _format(features))
        env = {"features": features, "answer": np.asarray(embedding, dtype=_FLOAT32)}
        with np.errstate(all="ignore"):
            run(steps, env)
        return env

    def cell_of(self, features: Array) -> npt.NDArray[np.intp]:
        """Return which head serves each row (batch,)."""
        if not any(op.out == "cell" for op in self.ops):
            return np.zeros(len(features), dtype=np.intp)
        nothing = np.zeros((len(features), 0), dtype=_FLOAT32)
        return self.values(features, nothing, "cell")["cell"]  # type: ignore[no-any-return]

    def bits_of(self, features: Array) -> npt.NDArray[np.bool_]:
        """Return which regions of the gate each row lies in (batch, regions)."""
        nothing = np.zeros((len(features), 0), dtype=_FLOAT32)
        if not any(op.out == "bits" for op in self.ops):
            return np.zeros((len(features), 0), dtype=bool)
        return self.values(features, nothing, "bits")["bits"]  # type: ignore[no-any-return]

    def clipped_share(self, features: Array, embedding: Array) -> npt.NDArray[np.float32]:
        """Return the share of each row's units that are moved into the box (batch,); NaN is."""
        inside = self.values(features, embedding, "clipped")["clipped"]
        return (inside != embedding).mean(axis=1, dtype=_FLOAT32)  # type: ignore[no-any-return]


def _format(features: Array) -> str:
    """Return the name of the features' format.

    Raises:
        TypeError: If it is none of the gate's.
    """
    if features.dtype not in (_FLOAT32, _FLOAT64) or not features.dtype.isnative:
        raise TypeError(f"Expected inputs in float32 or float64. Got {features.dtype}.")
    return features.dtype.name


def _clamp(op: Op, x: None, lower: Array, upper: Array) -> Made:
    # fmax and fmin take the other one in place of NaN.
    return lambda x: np.fmin(np.fmax(x, lower), upper)


def _cast(op: Op, x: None) -> Made:
    kind = _FLOAT32 if op.kind == "single" else _FLOAT64
    return lambda x: x.astype(kind, copy=False)


def _active(
    op: Op, x: None, wide: None, constants: Array | None, coefficients: Array | None, thresholds: Array | None
) -> Made:
    gate: Gate = op.fixed
    tests = []
    for comparison, constant in zip(gate.comparisons, () if constants is None else constants, strict=True):
        column, negative, strict = comparison
        signs = (np.greater, np.greater_equal) if negative else (np.less, np.less_equal)
        # The sign is turned in the constant: a product may flush a small input to zero.
        tests.append((column, signs[not strict], -constant if negative else constant))

    def active(x: Array, wide: Array | None = None) -> Array:
        holds = [compare(x[:, column], constant) for column, compare, constant in tests]
        if wide is not None and coefficients is not None:
            holds += list(~(wide @ coefficients.T > thresholds).T)
        bits = np.ones((len(x), len(gate.members)), dtype=bool)
        for region, rows in enumerate(gate.members):
            for row in rows:
                bits[:, region] &= holds[row]
        return bits

    return active


def _cell(op: Op, bits: None, signatures: Array) -> Made:
    regions = signatures.shape[1]
    strictest = int(signatures.sum(axis=1).argmax())
    if regions <= _MOST_BITS:
        powers = 1 << np.arange(regions)
        codes = signatures.astype(np.int64) @ powers
        order = codes.argsort()
        known = codes[order]

        def searched(bits: Array) -> Array:
            code = bits @ powers
            place = np.minimum(known.searchsorted(code), len(known) - 1)
            return np.where(known[place] == code, order[place], strictest)

        return searched
    table = {row.tobytes(): number for number, row in enumerate(signatures.astype(bool))}
    return lambda bits: np.array([table.get(row.tobytes(), strictest) for row in bits], dtype=np.intp)


def _hidden(op: Op, v: None, weight: Array, bias: Array) -> Made:
    return lambda v: np.maximum(v @ weight.T + bias, _ZERO)


def _affine(op: Op, v: None, slope: Array, offset: Array) -> Made:
    return lambda v: v @ slope.T + offset


def _clip(op: Op, z: None, lower: Array | None, upper: Array | None) -> Made:
    low, high = (np.fmax, np.fmin) if op.fixed == "where" else (np.maximum, np.minimum)  # the latter keep NaN

    def clip(z: Array, lower: Any = lower, upper: Any = upper) -> Array:
        inside: Array = high(z, upper)
        low(inside, lower, out=inside)
        return inside

    return clip


def _affine_at(
    op: Op, place: None, v: None, weight: Array, bias: Array, x: None, slope: Array | None,
    z: None, free_weight: Array | None, free_bias: Array | None,
) -> Made:  # fmt: skip
    names = [
        name for name, given in zip(("c", "v", "x", "z"), (op.args[i] for i in (0, 1, 4, 6)), strict=True) if given
    ]

    def served(head: int, values: dict[str, Array], rows: Any) -> Any:
        """Return what one head answers to some rows."""
        if head == len(weight):
            return values["z"][rows] @ free_weight.T + free_bias  # type: ignore[union-attr]
        y = values["v"][rows] @ weight[head].T + bias[head]
        return y if slope is None else y + values["x"][rows] @ slope[head].T

    def affine_at(*arguments: Array) -> Any:
        values = dict(zip(names, arguments, strict=True))
        everything = slice(None)
        if "c" not in values:
            return served(0, values, everything)
        cell, heads = values["c"], len(weight) + (free_weight is not None)
        if heads <= _FEW_HEADS:
            y = served(0, values, everything)
            return y if heads == 1 else np.where((cell == 0)[:, None], y, served(1, values, everything))
        result = np.empty((len(cell), bias.shape[1]), dtype=_FLOAT32)
        for head in np.unique(cell):
            rows = np.flatnonzero(cell == head)
            result[rows] = served(head, values, rows)
        return result

    return affine_at


def _or_fallback(op: Op, y: None, place: None, fallback: Array) -> Made:
    def or_fallback(y: Array, cell: Array | None = None) -> Array:
        lost = np.asarray(np.isnan(y).any(axis=1))
        if not lost.any():
            return y
        if cell is None:
            return np.where(lost[:, None], fallback, y)
        free = np.full((1, y.shape[1]), np.nan, dtype=y.dtype)  # where nothing is claimed
        return np.where(lost[:, None], np.concatenate([fallback, free])[cell], y)

    return or_fallback


TABLE: Table = {
    "clamp": _clamp,
    "single": _cast,
    "wide": _cast,
    "active": _active,
    "cell": _cell,
    "hidden": _hidden,
    "affine": _affine,
    "clip": _clip,
    "affine_at": _affine_at,
    "or_fallback": _or_fallback,
}


class Perceptron:
    """The backbone of stored networks: (x - shift) / scale, ReLU layers, a linear layer.

    Attributes:
        tensors: The weights `backbone.*` as they are stored. Nothing can be written into them.
        widths: Of the inputs, the hidden layers and the answer.
        further: Columns of the table that it reads behind the inputs of the rules; None: none.
    """

    kind = "network"
    onnx = None

    def __init__(self, tensors: Mapping[str, smle_check.Tensor], further: FurtherColumns | None = None) -> None:
        self.further = further if further is not None and further.width else None
        self.tensors = {name: tensor for name, tensor in tensors.items() if name.startswith(BACKBONE)}
        own = {name.removeprefix(BACKBONE): value for name, value in arrays_of(self.tensors).items()}
        count = (len(own) - 2) // 2
        try:
            self._shift, self._scale = own.pop("0.shift"), own.pop("0.scale")
            layers = [(own.pop(f"{2 * i + 1}.weight"), own.pop(f"{2 * i + 1}.bias")) for i in range(count)]
            self.widths = [len(self._shift)]
            for weight, bias in layers:
                if weight.shape != (len(bias), self.widths[-1]) or weight.dtype != _FLOAT32:
                    raise KeyError
                self.widths.append(len(bias))
            if own or not layers or self._shift.shape != self._scale.shape or self._shift.dtype != _FLOAT32:
                raise KeyError
        except (KeyError, TypeError):
            raise ModelFormatError("model.safetensors: expected the layers of a perceptron as the backbone.") from None
        *self._hidden, self._last = [(weight.T, bias) for weight, bias in layers]

    def __reduce__(self) -> tuple[Any, ...]:
        return Perceptron, (self.tensors, self.further)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """What it reads by name beside the inputs of the rules; None: nothing."""
        return None if self.further is None else self.further.names

    @property
    def texts(self) -> tuple[str, ...]:
        """What it reads as text beside the inputs of the rules."""
        return () if self.further is None else tuple(self.further.texts)

    @property
    def inputs(self) -> int:
        """How many of its inputs are the inputs of the rules."""
        return self.widths[0] - (0 if self.further is None else self.further.width)

    @property
    def layers(self) -> list[tuple[Array, Array]]:
        """Weight (out, in) and bias (out,) of each layer, behind `scaling`."""
        return [(weight.T, bias) for weight, bias in (*self._hidden, self._last)]

    @property
    def scaling(self) -> tuple[Array, Array]:
        """Shift and scale of the inputs."""
        return self._shift, self._scale

    def answers(self, table: Any, encoded: Array) -> Array:
        """Return what it makes of encoded rows and further columns of their table, (rows, n) in float32."""
        return self(self.features(table, encoded))

    def features(self, table: Any, encoded: Array) -> Array:
        """Return what it reads: the inputs of the rules (rows, d), and further columns of their table behind them."""
        return encoded if self.further is None else np.hstack([encoded, self.further.read(table)])

    def __call__(self, features: Array) -> Array:
        """Return the embedding, or the answers, (batch, n) in float32."""
        with np.errstate(all="ignore"):
            if len(features) <= _ROWS:
                return self._passed(features)
            parts = [self._passed(features[i : i + _ROWS]) for i in range(0, len(features), _ROWS)]
        return np.concatenate(parts)

    def _passed(self, features: Array) -> Array:
        x = features.astype(_FLOAT32)
        x -= self._shift
        x /= self._scale
        for weight, bias in self._hidden:
            x = x @ weight
            x += bias
            np.maximum(x, _ZERO, out=x)
        weight, bias = self._last
        answer: Array = x @ weight
        answer += bias
        return answer


def frozen_heads_of(tensors: Mapping[str, Array]) -> FrozenHeads:
    """Return what the stored heads behind a box can reach."""
    box = {name.removeprefix("bounds."): value for name, value in tensors.items() if name.startswith("bounds.")}
    bounds = NetworkBounds.of_stored(box) if "hidden.0.weight" in box else Bounds(**box)
    names = {"weight": "W", "bias": "b", "passthrough": "V", "fallback": "fallback"}
    own = {field: tensors[f"heads.{name}"] for name, field in names.items() if f"heads.{name}" in tensors}
    heads = [Head(**{field: value[c] for field, value in own.items()}) for c in range(len(own["W"]))]
    return FrozenHeads(bounds, (*heads, None) if "free.weight" in tensors else tuple(heads))
