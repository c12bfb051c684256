"""The waist between mathematics and framework: what a safe network can output, frozen.

For a cell with head (W, V, b) the reachable outputs are `{W z + V x + b : l(x) <= z <= u(x), x in cell}`.
Arrays are the float32 numbers that are deployed; nothing here is a torch tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["AffineBounds", "Bounds", "ConstantBounds", "Head", "Layer", "NetworkBounds", "Overapproximation"]

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
class ConstantBounds:
    """l <= z <= u with constant vectors. Shapes: lower (n,), upper (n,)."""

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        n = len(self.lower)
        object.__setattr__(self, "lower", _frozen(self.lower, n))
        object.__setattr__(self, "upper", _frozen(self.upper, n))

    @property
    def width(self) -> int:
        """Number of embedding units."""
        return len(self.lower)


@dataclass(frozen=True, eq=False)
class AffineBounds:
    """l(x) = lower + lower_slope x and u(x) = upper + upper_slope x. Shapes: (n,), (n, d), (n,), (n, d)."""

    lower: Array
    lower_slope: Array
    upper: Array
    upper_slope: Array

    def __post_init__(self) -> None:
        n, d = np.shape(self.lower_slope)
        object.__setattr__(self, "lower", _frozen(self.lower, n))
        object.__setattr__(self, "lower_slope", _frozen(self.lower_slope, n, d))
        object.__setattr__(self, "upper", _frozen(self.upper, n))
        object.__setattr__(self, "upper_slope", _frozen(self.upper_slope, n, d))

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
    """l(x) and u(x) by two small networks of dense layers with ReLU between them (none after the last).

    They may cross: where l > u the deployed clip gives u. What can be deployed and certified are two networks that
    share one hidden layer (`shared`).
    """

    lower: tuple[Layer, ...]
    upper: tuple[Layer, ...]

    @classmethod
    def shared(
        cls,
        *,
        hidden_weight: npt.ArrayLike,
        hidden_bias: npt.ArrayLike,
        lower: npt.ArrayLike,
        lower_slope: npt.ArrayLike,
        upper: npt.ArrayLike,
        upper_slope: npt.ArrayLike,
    ) -> NetworkBounds:
        """Return l = lower + lower_slope h, u = upper + upper_slope h with h = relu(hidden_weight x + hidden_bias).

        Shapes: hidden_weight (k, d), hidden_bias (k,), lower, upper (n,), slopes (n, k). Where `lower <= upper` and
        `lower_slope <= upper_slope` the bounds cannot cross, because h >= 0.
        """
        hidden = Layer(np.asarray(hidden_weight, np.float32), np.asarray(hidden_bias, np.float32))
        last = [
            Layer(np.asarray(weight, np.float32), np.asarray(bias, np.float32))
            for weight, bias in ((lower_slope, lower), (upper_slope, upper))
        ]
        return cls((hidden, last[0]), (hidden, last[1]))

    @property
    def is_shared(self) -> bool:
        """Whether both networks have the same single hidden layer."""
        first, second = self.lower[0], self.upper[0]
        same = first is second or (
            np.array_equal(first.weight, second.weight) and np.array_equal(first.bias, second.bias)
        )
        return len(self.lower) == len(self.upper) == 2 and same

    def stored(self) -> dict[str, Array]:
        """Return the arrays of `shared` by their names in the model file.

        Raises:
            ValueError: If the networks do not share one hidden layer.
        """
        if not self.is_shared:
            raise ValueError("Expected networks that share one hidden layer. Got other ones.")
        (hidden, lower), (_, upper) = self.lower, self.upper
        return {
            "hidden_weight": hidden.weight,
            "hidden_bias": hidden.bias,
            "lower": lower.bias,
            "lower_slope": lower.weight,
            "upper": upper.bias,
            "upper_slope": upper.weight,
        }

    def __post_init__(self) -> None:
        for layers in (self.lower, self.upper):
            if not layers:
                raise ValueError("Expected networks with at least one layer. Got none.")
            for first, second in pairwise(layers):
                if second.weight.shape[1] != first.weight.shape[0]:
                    raise ValueError("Expected layers that fit together. Got different widths.")
        shapes = {(layers[0].weight.shape[1], layers[-1].weight.shape[0]) for layers in (self.lower, self.upper)}
        if len(shapes) != 1:
            raise ValueError("Expected both networks to have the same inputs and outputs. Got different ones.")

    @property
    def width(self) -> int:
        """Number of embedding units."""
        return int(self.lower[-1].weight.shape[0])


Bounds = ConstantBounds | AffineBounds | NetworkBounds


@dataclass(frozen=True, eq=False)
class Head:
    """y = W z + V x + b. Shapes: W (m, n), V (m, d) or None, b (m,); fallback (m,) or None.

    `fallback` is what the deployed program outputs where the backbone gives NaN (clip by `clamp`); with the
    NaN-safe clip by comparisons it is None.
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


@dataclass(frozen=True, eq=False)
class Overapproximation:
    """Bounds shared by all cells, and one head per cell, in the order of `Arrangement.cells`.

    A free cell (nothing is required there) has None for its head.
    """

    bounds: Bounds
    heads: tuple[Head | None, ...]
