"""Everything a safe network can output, frozen: the interface between the proofs and torch.

For a cell with head (W, V, b) the reachable outputs are `{W z + V x + b : l(x) <= z <= max(l(x), u(x)), x in cell}`.
Arrays hold the deployed float32 numbers; none is a torch tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Bounds", "FrozenHeads", "Head", "Layer"]

Array = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def _frozen(array: npt.ArrayLike, *shape: int) -> Array:
    result = np.array(array, dtype=np.float32)
    if result.shape != shape:
        raise ValueError(f"Expected an array of shape {shape}. Got {result.shape}.")
    if not np.isfinite(result).all():
        raise ValueError("Expected finite numbers. Got NaN or infinity.")
    result.setflags(write=False)
    return result


class Layer(NamedTuple):
    """One dense layer: weight x + bias. Shapes: weight (out, in), bias (out,)."""

    weight: Array
    bias: Array


@dataclass(frozen=True, eq=False)
class Bounds:
    """l(x) = lower + lower_slope h and u(x) = upper + upper_slope h. Without slopes the bounds are constant.

    `hidden`: layers with a ReLU after each; h is the output of the last one, or x if there is none. Shapes: lower,
    upper (n,), slopes (n, len(h)).

    Bounds may cross: where l > u the clip gives l. So constant bounds that cross are stored with upper = lower. Bounds
    by a network cannot cross if `lower <= upper` holds entry by entry, offsets and slopes, because h >= 0.
    """

    lower: Array
    upper: Array
    lower_slope: Array | None = None
    upper_slope: Array | None = None
    hidden: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.lower)
        object.__setattr__(self, "lower", _frozen(self.lower, n))
        object.__setattr__(self, "upper", _frozen(self.upper, n))
        if (self.lower_slope is None) != (self.upper_slope is None):
            raise ValueError("Expected slopes of both bounds or of none. Got those of one.")
        if self.lower_slope is None or self.upper_slope is None:
            if self.hidden:
                raise ValueError("Expected slopes behind hidden layers. Got none.")
            object.__setattr__(self, "upper", _frozen(np.maximum(self.lower, self.upper), n))
            return
        d = np.shape(self.lower_slope)[1]
        object.__setattr__(self, "lower_slope", _frozen(self.lower_slope, n, d))
        object.__setattr__(self, "upper_slope", _frozen(self.upper_slope, n, d))
        hidden = tuple(Layer(_frozen(w, *np.shape(w)), _frozen(b, len(w))) for w, b in self.hidden)
        object.__setattr__(self, "hidden", hidden)
        widths = [*(np.shape(weight)[::-1] for weight, _ in hidden), (d, n)]
        if any(first[1] != second[0] for first, second in pairwise(widths)):
            raise ValueError("Expected layers that fit together. Got different widths.")

    @property
    def kind(self) -> str:
        """The name of this kind in certificates."""
        return "network" if self.hidden else "constant" if self.lower_slope is None else "affine"

    @property
    def slopes(self) -> tuple[Doubles, Doubles] | None:
        """The slopes of lower and upper bounds in float64, None for constant bounds."""
        if self.lower_slope is None or self.upper_slope is None:
            return None
        return self.lower_slope.astype(np.float64), self.upper_slope.astype(np.float64)

    def at(self, x: Doubles) -> tuple[Doubles, Doubles]:
        """Return (l(x), u(x)) in float64, not widened; they may cross."""
        lower, upper = self.lower.astype(np.float64), self.upper.astype(np.float64)
        slopes = self.slopes
        if slopes is None:
            return lower, upper
        for weight, bias in self.hidden:
            x = np.maximum(weight.astype(np.float64) @ x + bias, 0.0)
        return lower + slopes[0] @ x, upper + slopes[1] @ x

    @classmethod
    def of_stored(cls, arrays: Mapping[str, npt.ArrayLike]) -> Bounds:
        """Read bounds from arrays, named as in the model file: `lower`, ..., `hidden.0.weight`, `hidden.0.bias`, ..."""
        own: dict[str, Any] = {name: value for name, value in arrays.items() if not name.startswith("hidden.")}
        layers = range((len(arrays) - len(own)) // 2)
        hidden = (Layer(*(np.asarray(arrays[f"hidden.{i}.{part}"]) for part in Layer._fields)) for i in layers)
        return cls(**own, hidden=tuple(hidden))

    def stored(self) -> dict[str, Array]:
        """Return the arrays that `of_stored` reads."""
        arrays = {name: array for name, array in vars(self).items() if name != "hidden" and array is not None}
        return arrays | {
            f"hidden.{i}.{name}": part for i, layer in enumerate(self.hidden) for name, part in layer._asdict().items()
        }

    @property
    def width(self) -> int:
        """Number of embedding units."""
        return len(self.lower)


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


_PARTS = {"weight": "W", "bias": "b", "passthrough": "V", "fallback": "fallback"}
"""Fields of a head by their names in the model file."""


@dataclass(frozen=True, eq=False)
class FrozenHeads:
    """Bounds shared by all cells, and one head per cell, in the order of `Cells`.

    The last cell may be free: nothing is required there. Then the last of `heads` is None, and `free`, once there is
    one, serves that cell with W and b alone.
    """

    bounds: Bounds
    heads: tuple[Head | None, ...]
    free: Head | None = None

    @property
    def serving(self) -> tuple[Head | None, ...]:
        """The heads with the free one in its place."""
        return self.heads if self.free is None else (*self.heads[:-1], self.free)

    @classmethod
    def of_stored(cls, tensors: Mapping[str, Any]) -> FrozenHeads:
        """Read bounds and heads from arrays, named as in the model file."""
        bounds = {name.removeprefix("bounds."): value for name, value in tensors.items() if name.startswith("bounds.")}
        own = {field: tensors[f"heads.{name}"] for name, field in _PARTS.items() if f"heads.{name}" in tensors}
        heads = [Head(**{field: value[c] for field, value in own.items()}) for c in range(len(own["W"]))]
        if "free.weight" not in tensors:
            return cls(Bounds.of_stored(bounds), tuple(heads))
        return cls(Bounds.of_stored(bounds), (*heads, None), Head(tensors["free.weight"], tensors["free.bias"]))

    def stored(self) -> dict[str, Array]:
        """Return the arrays that `of_stored` reads."""
        arrays = {f"bounds.{name}": value for name, value in self.bounds.stored().items()}
        certified = [head for head in self.heads if head is not None]
        for name, field in _PARTS.items():
            if certified and getattr(certified[0], field) is not None:
                arrays[f"heads.{name}"] = np.stack([getattr(head, field) for head in certified])
        if self.free is not None:
            arrays |= {"free.weight": self.free.W, "free.bias": self.free.b}
            if not certified:  # no rule ever applies
                arrays |= {"heads.weight": self.free.W[None][:0], "heads.bias": self.free.b[None][:0]}
        return arrays
