"""Heads behind bounds by a network: one `Head` for every box of inputs (section 6.1)."""

import math
from fractions import Fraction
from typing import Any

from smle_check.heads.box import Bounds, Box, Head, Hidden
from smle_check.reading import Tensor, read_block, require, values
from smle_check.specification import Specification


def hidden_layers(tensors: dict[str, Tensor]) -> int:
    """Count the hidden layers of bounds by a network."""
    count = 0
    while f"bounds.hidden.{count}.bias" in tensors:
        count += 1
    return count


class Relaxed:
    """A head under bounds by a network: one `Head` for every box and slopes that a proof uses."""

    def __init__(
        self, spec: Specification, tensors: dict[str, Tensor], block: bytes, weights: tuple[list[Fraction], ...]
    ) -> None:
        self.spec, self.tensors, self.block, self.weights = spec, tensors, block, weights
        self.layers, d = [], len(spec.inputs)
        self.width = math.prod(tensors["bounds.lower"].shape)
        for i in range(hidden_layers(tensors)):
            k = math.prod(tensors[f"bounds.hidden.{i}.bias"].shape)
            require(k > 0, "bounds: a hidden layer without units")
            flat = values(tensors, f"bounds.hidden.{i}.weight", "F32", (k, d))
            bias = values(tensors, f"bounds.hidden.{i}.bias", "F32", (k,))
            self.layers.append(([flat[j * d : (j + 1) * d] for j in range(k)], bias))
            d = k
        self.units = sum(len(bias) for _, bias in self.layers)
        self.known: dict[tuple[Any, ...], Head] = {}

    def over(self, box: Box, offset: Any) -> Head:
        """Return the head over a box, with the slopes at an offset of certificate.bin."""
        slopes = read_block(self.block, offset, self.units, "f", "slopes")
        key = (offset, *box[0], *box[1])
        if key not in self.known:
            hidden: Hidden | None = None
            for layer in self.layers:
                hidden = Hidden(layer, box, slopes, hidden)
                slopes = slopes[2 * len(layer[1]) :]
            bounds = Bounds(self.spec, self.tensors, "network", hidden)
            self.known[key] = Head(self.spec, bounds, *self.weights)
        return self.known[key]
