"""The backbone of stored networks, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import arrays_of
from smle.errors import ModelFormatError
from smle.tables.further import FurtherColumns
from smle.tables.values import Fault
from smle_check.reading import BACKBONE

__all__ = ["Perceptron"]

Array = npt.NDArray[Any]
_FLOAT32 = np.dtype(np.float32)
_ZERO = np.float32(0)


_ROWS = 1024  # rows per pass through the layers, so that values stay in the cache


class Perceptron:
    """The backbone of stored networks: (x - shift) / scale, ReLU layers, a linear layer.

    Attributes:
        tensors: The weights `backbone.*` as stored; read-only.
        widths: The widths of the inputs, the hidden layers and the answer.
        further: Columns of the table that it reads after the inputs of the rules, or None.
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
        """Columns that it reads by name besides the inputs of the rules; None if there are none."""
        return None if self.further is None else self.further.names

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns that it reads as text besides the inputs of the rules."""
        return () if self.further is None else tuple(self.further.texts)

    @property
    def inputs(self) -> int:
        """How many of its inputs belong to the rules."""
        return self.widths[0] - (0 if self.further is None else self.further.width)

    @property
    def architecture(self) -> dict[str, Any]:
        """The entry of model.json."""
        facts: dict[str, Any] = {"backbone": "mlp", "hidden": self.widths[1:-1], "embedding": self.widths[-1]}
        return facts if self.further is None else {**facts, "further": self.further.to_json()}

    @property
    def layers(self) -> list[tuple[Array, Array]]:
        """The weight (out, in) and bias (out,) of each layer, after `scaling`."""
        return [(weight.T, bias) for weight, bias in (*self._hidden, self._last)]

    @property
    def scaling(self) -> tuple[Array, Array]:
        """The shift and the scale of the inputs."""
        return self._shift, self._scale

    def answers(self, table: Any, encoded: Array) -> Array:
        """Return its answers to encoded rows and the further columns of their table, (rows, n) in float32."""
        return self(self.features(table, encoded))

    def faults(self, table: Any) -> list[Fault]:
        """Return what is wrong with the further columns of a table, by row."""
        return [] if self.further is None else self.further.faults(table)

    def features(self, table: Any, encoded: Array) -> Array:
        """Return the numbers it reads: the inputs of the rules (rows, d), then the further columns of their table."""
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
