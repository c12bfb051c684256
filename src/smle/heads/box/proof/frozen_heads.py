"""Everything a safe network can output, frozen: the interface between the proofs and torch.

For a cell with head (W, V, b) the reachable outputs are `{W z + V x + b : l(x) <= z <= max(l(x), u(x)), x in cell}`.
Arrays hold the deployed float32 numbers; none is a torch tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

__all__ = ["Bounds", "FrozenHeads", "Head", "Layer", "NetworkBounds"]

Array = npt.NDArray[np.float32]


def _frozen(array: npt.ArrayLike, *shape: int) -> Array:
    result = np.array(array, dtype=np.float32)
    if result.shape != shape:
        raise ValueError(f"Expected an array of shape {shape}. Got {result.shape}.")
    if not np.isfinite(result).all():
        raise ValueError("Expected finite numbers. Got NaN or infinity.")
    result.setflags(write=False)
    return result


@dataclass(frozen=True, eq=False)
class Bounds:
    """l(x) = lower + lower_slope x and u(x) = upper + upper_slope x. Shapes: (n,), (n,), and (n, d) twice or None.

    Without slopes the bounds are constant. Since the clip gives l where l > u, constant bounds that cross are stored
    with upper = lower.
    """

    lower: Array
    upper: Array
    lower_slope: Array | None = None
    upper_slope: Array | None = None

    def __post_init__(self) -> None:
        n = len(self.lower)
        object.__setattr__(self, "lower", _frozen(self.lower, n))
        object.__setattr__(self, "upper", _frozen(self.upper, n))
        if self.lower_slope is None and self.upper_slope is None:
            object.__setattr__(self, "upper", _frozen(np.maximum(self.lower, self.upper), n))
        if (self.lower_slope is None) != (self.upper_slope is None):
            raise ValueError("Expected slopes of both bounds or of none. Got those of one.")
        if self.lower_slope is not None and self.upper_slope is not None:
            d = np.shape(self.lower_slope)[1]
            object.__setattr__(self, "lower_slope", _frozen(self.lower_slope, n, d))
            object.__setattr__(self, "upper_slope", _frozen(self.upper_slope, n, d))

    @property
    def kind(self) -> str:
        """The name of this kind in certificates."""
        return "constant" if self.lower_slope is None else "affine"

    @property
    def slopes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """The slopes of lower and upper bounds in float64, None for constant bounds."""
        if self.lower_slope is None or self.upper_slope is None:
            return None
        return self.lower_slope.astype(np.float64), self.upper_slope.astype(np.float64)

    def stored(self) -> dict[str, Array]:
        """Return the arrays, named as in the model file."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @property
    def width(self) -> int:
        """Number of embedding units."""
        return len(self.lower)


@dataclass(frozen=True, eq=False)
class Layer:
    """One dense layer: weight x + bias. Shapes: weight (out, in), bias (out,)."""

    weight: Array
    bias: Array

    def __post_init__(self) -> None:
        rows, columns = np.shape(self.weight)
        object.__setattr__(self, "weight", _frozen(self.weight, rows, columns))
        object.__setattr__(self, "bias", _frozen(self.bias, rows))


@dataclass(frozen=True, eq=False)
class NetworkBounds:
    """l(x) = lower(h(x)) and u(x) = upper(h(x)) with h the hidden layers, at least one, ReLU after each.

    If `lower <= upper` holds entry by entry, the bounds cannot cross, because h >= 0. Otherwise they may: where l > u
    the clip gives l.
    """

    kind: ClassVar[str] = "network"
    hidden: tuple[Layer, ...]
    lower: Layer
    upper: Layer

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("Expected at least one hidden layer. Got none.")
        for first, second in pairwise((*self.hidden, self.lower)):
            if second.weight.shape[1] != first.weight.shape[0]:
                raise ValueError("Expected layers that fit together. Got different widths.")
        if self.lower.weight.shape != self.upper.weight.shape:
            raise ValueError("Expected as many lower as upper bounds. Got different shapes.")

    @classmethod
    def of_stored(cls, arrays: Mapping[str, npt.ArrayLike]) -> NetworkBounds:
        """Read bounds from arrays, named as in the model file.

        `hidden.0.weight` (k, d), `hidden.0.bias` (k,), further hidden layers; `lower`, `upper` (n,) and `lower_slope`,
        `upper_slope` (n, k).
        """

        def layer(weight: str, bias: str) -> Layer:
            return Layer(np.asarray(arrays[weight], np.float32), np.asarray(arrays[bias], np.float32))

        count = sum(name.startswith("hidden.") for name in arrays) // 2
        hidden = tuple(layer(f"hidden.{i}.weight", f"hidden.{i}.bias") for i in range(count))
        return cls(hidden, layer("lower_slope", "lower"), layer("upper_slope", "upper"))

    def stored(self) -> dict[str, Array]:
        """Return the arrays that `of_stored` reads."""
        arrays: dict[str, Array] = {}
        for i, layer in enumerate(self.hidden):
            arrays |= {f"hidden.{i}.weight": layer.weight, f"hidden.{i}.bias": layer.bias}
        for name, last in (("lower", self.lower), ("upper", self.upper)):
            arrays |= {name: last.bias, f"{name}_slope": last.weight}
        return arrays

    def at(self, x: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return (l(x), u(x)) in float64, not widened; they may cross."""
        for layer in self.hidden:
            x = np.maximum(layer.weight.astype(np.float64) @ x + layer.bias, 0.0)
        lower, upper = (last.weight.astype(np.float64) @ x + last.bias for last in (self.lower, self.upper))
        return lower, upper

    @property
    def width(self) -> int:
        """Number of embedding units."""
        return len(self.lower.bias)


@dataclass(frozen=True, eq=False)
class Head:
    """y = W z + V x + b. Shapes: W (m, n), V (m, d) or None, b (m,); fallback (m,) or None.

    `fallback` is the output of the deployed program where the backbone gives NaN (clip by `clamp`). It is None with the
    clip by comparisons, which is safe for NaN.
    """

    W: Array
    b: Array
    V: Array | None = None
    fallback: Array | None = None

    def __post_init__(self) -> None:
        m, n = np.shape(self.W)
        object.__setattr__(self, "W", _frozen(self.W, m, n))
        object.__setattr__(self, "b", _frozen(self.b, m))
        if self.V is not None:
            object.__setattr__(self, "V", _frozen(self.V, m, np.shape(self.V)[1]))
        if self.fallback is not None:
            object.__setattr__(self, "fallback", _frozen(self.fallback, m))

    def vector(self) -> npt.NDArray[np.float64]:
        """Return theta_g, the parameters as one vector: W, V (if any) and b of the first output, then of the next."""
        parts = [self.W] if self.V is None else [self.W, self.V]
        return np.hstack([*parts, self.b[:, None]]).astype(np.float64).reshape(-1)

    @classmethod
    def from_vector(cls, vector: npt.NDArray[np.float64], like: Head) -> Head:
        """Return the head with these parameters, rounded to float32, with shapes and fallback of `like`."""
        m, n = like.W.shape
        table = vector.reshape(m, -1).astype(np.float32)
        return cls(table[:, :n], table[:, -1], V=None if like.V is None else table[:, n:-1], fallback=like.fallback)


@dataclass(frozen=True, eq=False)
class FrozenHeads:
    """Bounds shared by all cells, and one head per cell, in the order of `Cells`.

    The head of a free cell, where nothing is required, is None.
    """

    bounds: Bounds | NetworkBounds
    heads: tuple[Head | None, ...]
