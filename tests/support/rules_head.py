"""The head of rules in plain Python, read off docs/certificate-format.md (0, 12, 13): slow, free to sum in any order.

It shares no code with the programs that are deployed, so that both can be compared with each other and with the judge.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate
from smle_check.heads.candidates import checked_of, gated_regions
from smle_check.heads.clips import STAGES, limits_of

TINY = 2.0**-126
_KINDS = {"F32": "<f4", "F64": "<f8"}


def summed(terms: list[float], order: random.Random) -> float:
    """Add numbers in a random order, as a random tree."""
    terms = list(terms) or [0.0]
    while len(terms) > 1:
        a = terms.pop(order.randrange(len(terms)))
        b = terms.pop(order.randrange(len(terms)))
        terms.append(a + b)
    return terms[0]


class Reference:
    """One row after the other; `serve` returns what is served and by which candidate (None: the safe answer)."""

    def __init__(self, certificate: Certificate, seed: int = 0) -> None:
        document = certificate.document
        self.spec = smle_check.Specification(document["specification"], certificate.block)
        self.tree = document["program"]["tree"]
        self.tensors = {
            name: np.frombuffer(t.data, _KINDS[t.dtype]).reshape(t.shape) for name, t in certificate.tensors.items()
        }
        self.order = random.Random(seed)
        self.limits, self.checked, self.regions = limits_of(self.spec), checked_of(self.spec), gated_regions(self.spec)
        if not self.checked.is_empty:
            self.tensors |= self.matrices()

    def matrices(self) -> dict[str, npt.NDArray[Any]]:
        """Numbers of the check with zeros in the place of what is not stored, a row for each literal."""
        outputs = [list(literal.y) for literal in self.checked.literals]
        inputs = []
        for literal in self.checked.literals[: self.checked.moving]:
            group = next((set(g) for g in self.spec.groups if set(literal.x) <= set(g)), None)
            inputs.append(sorted(group) if group is not None and len(literal.y) == 1 else list(literal.x))
        made = {}
        for name, columns, width in (
            ("check.outputs", outputs, len(self.spec.outputs)),
            ("check.sizes", outputs, len(self.spec.outputs)),
            ("check.inputs", inputs, len(self.spec.inputs)),
        ):
            made[name], stored = np.zeros((len(columns), width)), iter(self.tensors[name].tolist())
            for k, own in enumerate(columns):
                made[name][k, own] = [next(stored) for _ in own]
            assert next(stored, None) is None
        return made

    def clamped(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        low, high = (self.tensors[f"domain.{end}_{x.dtype.name}"] for end in ("lower", "upper"))
        raised = [a if not v >= a else v for v, a in zip(x, low, strict=True)]
        return np.array([b if not v <= b else v for v, b in zip(raised, high, strict=True)], x.dtype)

    def bits(self, x: npt.NDArray[Any]) -> dict[int, bool]:
        used = sorted({r for g in self.regions for r in self.spec.regions[g]})
        comparisons = [r for r in used if len(self.spec.rows[r].terms) == 1]
        oblique = [r for r in used if len(self.spec.rows[r].terms) > 1]
        holds = {}
        for i, r in enumerate(comparisons):
            ((k, sign),) = self.spec.rows[r].terms.items()
            value, constant = float(x[k]), float(self.tensors[f"gate.constants_{x.dtype.name}"][i])
            value = value if sign > 0 else -value
            holds[r] = value < constant if self.spec.rows[r].strict else value <= constant
        for i, r in enumerate(oblique):
            terms = [float(c) * float(v) for c, v in zip(self.tensors["gate.coefficients"][i], x, strict=True) if c]
            holds[r] = not summed(terms, self.order) > float(self.tensors["gate.thresholds"][i])
        return {g: all(holds[r] for r in self.spec.regions[g]) for g in self.regions}

    def clipped(self, x: npt.NDArray[Any], bits: dict[int, bool], t: Sequence[float]) -> npt.NDArray[np.float32]:
        q = [float(v) if abs(v) <= 2.0**100 else float(self.tensors["clips.default"][i]) for i, v in enumerate(t)]
        place = dict.fromkeys(STAGES, 0)
        for limit in self.limits:
            i = place[limit.stage]
            place[limit.stage] += 1
            if not bits[limit.region]:
                continue
            v = float(self.tensors[f"clips.{limit.stage}"][i])
            if limit.slope:
                slope = self.tensors[f"clips.{limit.stage}_slope"][i]
                v = summed([v, *(float(s) * float(xk) for s, xk in zip(slope, x, strict=True) if s)], self.order)
            inside = q[limit.output] >= v if limit.side > 0 else q[limit.output] <= v
            q[limit.output] = q[limit.output] if inside else v
        y = np.array(q, dtype=np.float32)
        y[np.abs(y) < np.float32(TINY)] = 0
        return y

    def ok(self, x: npt.NDArray[Any], bits: dict[int, bool], y: npt.NDArray[np.float32]) -> bool:
        on = {i for i, rule in enumerate(self.spec.rules) if any(bits[g] for g in rule.regions)}
        holds = []
        for k, literal in enumerate(self.checked.literals):
            terms = [float(self.tensors["check.outputs"][k, i]) * float(y[i]) for i in literal.y]
            terms += [float(self.tensors["check.sizes"][k, i]) * abs(float(y[i])) for i in literal.y]
            if k < self.checked.moving:
                terms += [float(self.tensors["check.inputs"][k, j]) * float(x[j]) for j in literal.x]
            holds.append(summed(terms, self.order) <= float(self.tensors["check.thresholds"][k]))
        for clause in self.checked.clauses:
            if clause.rule in on and not any(holds[k] for k in clause.literals):
                return False
        return not any(
            y[h] >= 0 and y[k] >= 0 for r in self.checked.excluding if r in on for h, k in self.spec.rules[r].exclusions
        )

    def leaf(self, bits: dict[int, bool]) -> int:
        def width(tree: Any) -> int:
            return 1 if tree is None else width(tree[1]) + width(tree[2])

        tree, number = self.tree, 0
        while tree is not None:
            region, inside, outside = tree
            number, tree = (number, inside) if bits[region] else (number + width(inside), outside)
        return number

    def serve(
        self, x: npt.NDArray[Any], candidates: Sequence[Sequence[float]]
    ) -> tuple[npt.NDArray[np.float32], int | None]:
        x = self.clamped(x)
        bits = self.bits(x)
        for number, candidate in enumerate(candidates):
            y = self.clipped(x, bits, candidate)
            if self.checked.is_empty or self.ok(x, bits, y):
                return y, number
        leaf = self.leaf(bits)
        slope, offset = self.tensors["safe.slope"][leaf], self.tensors["safe.offset"][leaf]
        answer = [
            np.float32(summed([float(b), *(float(s) * float(v) for s, v in zip(row, x, strict=True) if s)], self.order))
            for row, b in zip(slope, offset, strict=True)
        ]
        return self.clipped(x, bits, [float(v) for v in answer]), None
