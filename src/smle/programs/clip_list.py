"""The clip list in NumPy: limits on single outputs behind any model's answers (certificate format, section 12)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle_check.floats import FORMATS
from smle_check.heads.clips import STAGES, WIDE, Limit, limits_of

__all__ = ["ClipList"]

Array = npt.NDArray[Any]
_WIDE = float(WIDE)


class ClipList:
    """Moves answers inside the limits that are active at their inputs; leaves them alone where the rules allow them.

    Everything is computed in float64 on the inputs as passed, and cast once, at the end.
    """

    def __init__(self, certificate: Certificate) -> None:
        spec = smle_check.Specification(certificate.document["specification"], certificate.block)
        self._tensors = arrays_of(certificate.tensors)
        limits = limits_of(spec)
        regions = sorted({limit.region for limit in limits})
        used = sorted({row for region in regions for row in spec.regions[region]})
        rows = [spec.rows[row] for row in used]
        compared = [(k, sign, row.strict) for row in rows if len(row.terms) == 1 for k, sign in row.terms.items()]
        self._columns = np.array([k for k, _, _ in compared], dtype=np.intp)
        self._negative = np.array([sign < 0 for _, sign, _ in compared], dtype=bool)
        self._strict = np.array([strict for _, _, strict in compared], dtype=bool)
        order = sorted(used, key=lambda row: len(spec.rows[row].terms) > 1)  # comparisons first
        member = [[row in spec.regions[region] for region in regions] for row in order]
        self._member = np.array(member, dtype=np.float32).reshape(len(order), len(regions))
        self._stages = [(stage, *_stage(stage, limits, regions)) for stage in STAGES]

    def __call__(self, X: Array, answers: Array) -> Array:
        """Return the answers (n, m) in float32, moved inside the limits at X (n, d), which is float32 or float64."""
        x = self._clamped(X)
        wide = x.astype(np.float64)
        active = self._active(x, wide)
        with np.errstate(invalid="ignore", over="ignore"):
            q = np.asarray(answers, dtype=np.float32).astype(np.float64)
            q = np.where(np.abs(q) <= _WIDE, q, self._tensors["clips.default"].astype(np.float64))
        for stage, bits, outputs in self._stages:
            lower = stage.endswith("lower")
            values = self._tensors[f"clips.{stage}"].astype(np.float64)
            if stage.startswith("affine"):
                values = wide @ self._tensors[f"clips.{stage}_slope"].T.astype(np.float64) + values
            limits = np.where(active[:, bits], values, -2 * _WIDE if lower else 2 * _WIDE)
            for output in np.unique(outputs):
                own = limits[:, outputs == output]
                v = own.max(axis=1) if lower else own.min(axis=1)
                column = q[:, output]
                q[:, output] = np.where(column >= v if lower else column <= v, column, v)
        return q.astype(np.float32)

    def _clamped(self, X: Array) -> Array:
        kind = X.dtype.newbyteorder("=")
        if kind not in (np.float32, np.float64):  # a conversion may round, and the limits would hold elsewhere
            raise TypeError(f"Expected inputs in float32 or float64. Got {X.dtype}.")
        x = X.astype(kind, copy=False)
        lower, upper = (self._tensors[f"domain.{end}_{kind.name}"] for end in ("lower", "upper"))
        x = np.where(x >= lower, x, lower)
        return np.where(x <= upper, x, upper)

    def _active(self, x: Array, wide: Array) -> Array:
        """Return which regions hold, (n, regions)."""
        kind = FORMATS[x.dtype == np.float64].name
        constants = self._tensors[f"gate.constants_{kind}"]
        chosen = x[:, self._columns]
        signed = np.where(self._negative, -chosen, chosen)  # a product might flush subnormal numbers to zero
        fails = np.where(self._strict, signed >= constants, signed > constants)
        above = wide @ self._tensors["gate.coefficients"].T > self._tensors["gate.thresholds"]
        outside = np.concatenate([fails, above], axis=1).astype(np.float32) @ self._member
        return np.asarray(outside == 0)


def _stage(stage: str, limits: list[Limit], regions: list[int]) -> tuple[Array, Array]:
    """Return, for the clips of a stage, the places of their bits and their outputs."""
    own = [limit for limit in limits if limit.stage == stage]
    bits = np.array([regions.index(limit.region) for limit in own], dtype=np.intp)
    return bits, np.array([limit.output for limit in own], dtype=np.intp)
