"""Heads behind a box in NumPy (certificate format, section 0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.errors import ModelFormatError
from smle.heads.box.box_slopes import ClippedUnits
from smle.heads.box.quick_box import QuickBox
from smle.heads.contract import AsksOnce
from smle.heads.slopes import Slopes
from smle.programs.numpy_operations import TABLE
from smle.quiet import quiet
from smle_check.program import Op, Step, box, gate_of, needed, prepared, run

__all__ = ["Box"]

Array = npt.NDArray[Any]
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class Box(AsksOnce):
    """(features, embedding) -> outputs, with every intermediate value by name. Samples are rows of matrices.

    Sums are NumPy's, so the last bits may differ from other engines.
    """

    reads_answers = False

    def __init__(self, ops: Sequence[Op], tensors: Mapping[str, Array]) -> None:
        self.ops, self.tensors = ops, MappingProxyType(dict(tensors))
        self._steps: dict[tuple[str | None, np.dtype[Any]], list[Step]] = {}
        self._quick: dict[np.dtype[Any], QuickBox] = {}
        self._widths = len(tensors["domain.lower_float32"]), len(tensors.get("bounds.lower", ()))

    @classmethod
    def of(cls, certificate: Certificate) -> Box:
        """Return the program of a certificate. Raises ModelFormatError if tensors are missing."""
        document, arrays = certificate.document, arrays_of(certificate.tensors)
        spec = smle_check.StatedSpecification(document["specification"], certificate.block)
        stated = document["program"]
        ops = box(gate_of(spec, document["gate"]["regions"]), stated["clip"], stated["bounds"], arrays)
        made = {op.out for op in ops} | {"features", "answer"}
        for name in {name for op in ops for name in op.args if name is not None and name not in made}:
            for fmt in ("float32", "float64"):
                if name.replace("_F", f"_{fmt}") not in arrays:
                    raise ModelFormatError(f"model.safetensors: expected '{name}', a tensor of the head. Got none.")
        return cls(ops, arrays)

    @property
    def heads(self) -> int:
        """Number of heads, including the free one."""
        return len(self.tensors["heads.weight"]) + ("free.weight" in self.tensors)

    @property
    def width(self) -> int:
        """Width of the embedding."""
        return self._widths[1]

    @quiet
    def __call__(self, features: Array, embedding: Array) -> Array:
        """Return the outputs (batch, m) in float32 at features (batch, d), in float32 or float64."""
        rows, (columns, units) = len(embedding), self._widths
        if features.shape != (rows, columns) or embedding.shape != (rows, units):
            raise ValueError(
                f"Expected features of shape {(rows, columns)} and an embedding of shape {(rows, units)}. Got "
                f"{features.shape} and {embedding.shape}."
            )
        quick = self._quick.get(features.dtype)
        if quick is None:
            quick = self._quick[features.dtype] = QuickBox(self.ops, self.tensors, TABLE, _format(features))
        return quick(features, np.asarray(embedding, dtype=_FLOAT32))

    @quiet
    def values(self, features: Array, embedding: Array, wanted: str | None = None) -> dict[str, Any]:
        """Return the result of each operation by name, such as `bits`, `cell` and `clipped`.

        Operations that `wanted` does not need are skipped.
        """
        key = wanted, features.dtype  # dtypes hash faster than their names
        steps = self._steps.get(key)
        if steps is None:
            ops = self.ops if wanted is None else needed(self.ops, (wanted,))
            steps = self._steps[key] = prepared(ops, self.tensors, TABLE, _format(features))
        env = {"features": features, "answer": np.asarray(embedding, dtype=_FLOAT32)}
        run(steps, env)
        return env

    @property
    def moves(self) -> bool:
        """Whether bounds or heads depend on the inputs."""
        return "heads.passthrough" in self.tensors or "bounds.lower_slope" in self.tensors

    def slopes(self, X: Array, answers: Array, served: Array) -> Slopes:
        """Return the derivatives of outputs with respect to features and embeddings."""
        answer = np.asarray(answers, dtype=_FLOAT32)
        part = ClippedUnits.of(self.values(X, answer), self.tensors, answer)
        lower, upper = (self.tensors[f"domain.{end}_{_format(X)}"] for end in ("lower", "upper"))
        kept, usable = np.zeros(served.shape, dtype=bool), np.ones(answer.shape, dtype=bool)
        return Slopes(kept, usable, np.asarray((lower <= X) & (upper >= X)), [part])

    def cell_of(self, features: Array) -> npt.NDArray[np.intp]:
        """Return the head that serves each row (batch,)."""
        if not any(op.out == "cell" for op in self.ops):
            return np.zeros(len(features), dtype=np.intp)
        nothing = np.zeros((len(features), 0), dtype=_FLOAT32)
        return self.values(features, nothing, "cell")["cell"]  # type: ignore[no-any-return]

    def bits_of(self, features: Array) -> npt.NDArray[np.bool_]:
        """Return a mask of the gate's regions that each row lies in (batch, regions)."""
        nothing = np.zeros((len(features), 0), dtype=_FLOAT32)
        if not any(op.out == "bits" for op in self.ops):
            return np.zeros((len(features), 0), dtype=bool)
        return self.values(features, nothing, "bits")["bits"]  # type: ignore[no-any-return]

    def clipped_share(self, features: Array, embedding: Array) -> npt.NDArray[np.float32]:
        """Return the share of each row's units that the clip changes (batch,); NaN counts as changed."""
        inside = self.values(features, embedding, "clipped")["clipped"]
        return (inside != embedding).mean(axis=1, dtype=_FLOAT32)  # type: ignore[no-any-return]


def _format(features: Array) -> str:
    """Return the name of the features' format. Raises TypeError unless it is float32 or float64."""
    if features.dtype not in (_FLOAT32, _FLOAT64) or not features.dtype.isnative:
        raise TypeError(f"Expected inputs in float32 or float64. Got {features.dtype}.")
    return features.dtype.name
