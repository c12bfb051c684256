"""Issue the certificate of a box from its verdicts, if the exact checker accepts it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

import smle_check
from smle.certificates.document import Certificate
from smle.certificates.issue import compiled, sealed, stated_terms
from smle.errors import NotCertifiedError
from smle.heads.box.proof.frozen_heads import FrozenHeads
from smle.heads.box.proof.pairs import PairValues
from smle.heads.box.proof.verdict import (
    Cut,
    ExclusionVerdicts,
    Holds,
    NotProved,
    ProvedCase,
    UnitCut,
    Unknown,
    Verdict,
    Verdicts,
    Violated,
)
from smle.heads.box.proof.verify import verify
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox
from smle.regions.cells import Cells
from smle.regions.conflicts import COMPLEMENT
from smle.regions.geometry import Domain
from smle.rules import Specification, number_text

__all__ = ["issue", "require_proved"]


_MANY_PAIRS = 1_000
"""Beyond this many exclusions, store weights per label."""


_CHUNK_PAIRS = 1 << 11


Mu = tuple[tuple[int, float], ...]


def issue(
    spec: Specification,
    cells: Cells,
    over: FrozenHeads,
    *,
    tensors: dict[str, smle_check.Tensor],
    files: dict[str, bytes],
) -> Certificate:
    """Prove every rule for the frozen heads and return a certificate that the exact checker accepted.

    Raises NotCertifiedError with the rule that is not proved and by how much it is missed.
    """
    verdicts = verify(over, spec, cells)
    require_proved(verdicts, spec)
    block = bytearray()
    specification = compiled(spec, cells, block)
    proofs = _Proofs(verdicts, block).entries(over, spec)
    nan_safe = "heads.fallback" not in tensors
    stated = {
        "program": {
            "head": "box",
            "precision": "float32",
            "clip": "where" if nan_safe else "clamp",
            "bounds": over.bounds.kind,
        },
        "specification": specification,
        "gate": {"regions": list(cells.gated)},
        "proof": {"coverage": _coverage(cells), "obligations": proofs},
    }
    return sealed(stated, bytes(block), tensors, files)


def _coverage(cells: Cells) -> dict[str, Any]:
    implications = []
    for implication in cells.implications:
        proofs = []
        ordered = sorted(zip(cells.regions[implication.implied], implication.multipliers, strict=True))
        for _, multipliers in ordered:
            weights = dict(multipliers)
            complement = weights.pop(COMPLEMENT, Fraction(0))
            proofs.append({"complement": str(complement), "rows": stated_terms(tuple(sorted(weights.items())))})
        implications.append(
            {"regions": list(implication.regions), "implied": implication.implied, "multipliers": proofs}
        )
    return {
        "conflicts": [
            {"regions": list(c.regions), "multipliers": stated_terms(tuple(sorted(c.multipliers)))}
            for c in cells.conflicts
        ],
        "implications": implications,
    }


class _Proofs:
    """The proofs of a certificate, as it stores them; arrays are appended to the binary block."""

    def __init__(self, verdicts: Verdicts, block: bytearray) -> None:
        self.verdicts, self.block = verdicts, block
        self._slopes: dict[bytes, int] = {}
        self._empty: dict[tuple[int, int | None], Mu] = {}  # proofs that no input reaches a region
        for obligation, verdict in verdicts:
            assert isinstance(verdict, Holds)
            if verdict.multipliers.empty and not verdict.multipliers.cases:
                self._empty.setdefault((obligation.head, obligation.region), verdict.multipliers.rows)

    def entries(self, over: FrozenHeads, spec: Specification) -> list[dict[str, Any]]:
        """Return all proofs: of empty regions, of clauses, of exclusions."""
        proofs: list[dict[str, Any]] = [
            {"head": head, "region": region, "empty": _multipliers(rows)}
            for (head, region), rows in self._empty.items()
        ]
        for item in self.verdicts.gaps:
            if (item.head, item.region) not in self._empty:
                gaps = [[i, float(share).hex(), *map(_multipliers, ends)] for i, share, *ends in item.units]
                proofs.append({"head": item.head, "region": item.region, "gaps": gaps})
        for obligation, verdict in self.verdicts:
            if (obligation.head, obligation.region) not in self._empty:
                assert isinstance(verdict, Holds)
                place = {name: getattr(obligation, name) for name in ("head", "rule", "region", "clause")}
                nodes = verdict.multipliers.cases or (ProvedCase(verdict.multipliers, None),)
                proofs.append({**place, "cases": [self._node(node) for node in nodes]})
        for block in self.verdicts.exclusions:
            if (block.head, block.region) not in self._empty:
                place = {name: getattr(block, name) for name in ("head", "rule", "region")}
                proofs.append({**place, "exclusions": self._exclusions(block, over, spec)})
        return proofs

    def _node(self, node: Cut | UnitCut | ProvedCase) -> dict[str, Any]:
        if isinstance(node, Cut):
            return {"input": node.input, "at": float(node.at).hex()}
        if isinstance(node, UnitCut):
            return {"unit": node.unit}
        rows = _multipliers(node.multipliers.rows)
        if node.multipliers.empty:
            return {"empty": rows}
        leaf: dict[str, Any] = {"lambda": [float(w).hex() for w in node.multipliers.weights], "mu": rows}
        if node.slopes is not None:
            data = node.slopes.astype("<f4").tobytes()
            if data not in self._slopes:
                self._slopes[data] = len(self.block)
                self.block.extend(data)
            leaf["slopes"] = self._slopes[data]
        return leaf

    def _exclusions(self, item: ExclusionVerdicts, over: FrozenHeads, spec: Specification) -> dict[str, Any]:
        cases = [[p, [self._node(node) for node in nodes]] for p, nodes in sorted(item.cases.items())]
        others = np.array([p for p in range(len(item.pairs)) if p not in item.cases], dtype=np.intp)
        if not len(others):
            return {"weights": None, "cases": cases}
        rest, compact = replace(item, pairs=item.pairs[others], weights=item.weights[others]), None
        if len(others) > _MANY_PAIRS and self._alone(item):
            head, domain = over.heads[item.head], Domain.of(spec)
            assert head is not None
            envelope = WidenedBox.of(over.bounds, domain)
            values = PairValues.of(HeadNumbers.of(head, envelope, domain), envelope, domain)
            compact = _weights_of_labels(rest, values, self.block)
        if compact is None:
            compact = {"offset": len(self.block)}
            self.block.extend(rest.weights.astype("<f4").tobytes())
        return {"weights": compact, "cases": cases}

    def _alone(self, item: ExclusionVerdicts) -> bool:
        """Return whether no bounds cross, so that the box is the same over every region."""
        return all((gaps.head, gaps.region) != (item.head, item.region) for gaps in self.verdicts.gaps)


def _multipliers(rows: Mu) -> list[list[Any]]:
    return [[row, float(mu).hex()] for row, mu in sorted(rows)]


def _weights_of_labels(item: ExclusionVerdicts, values: PairValues, block: bytearray) -> dict[str, int] | None:
    """Write one weight per label, and single weights for the few pairs these do not prove; None if there are many."""
    scales = values.scales()
    # Multiples of 2^-23 keep the checker's integers small.
    weights = np.maximum(np.round(scales / scales.max() * 2.0**23), 1.0) / 2.0**23
    first, second = item.pairs[:, 0], item.pairs[:, 1]
    proved = np.empty(len(item.pairs), dtype=bool)
    for start in range(0, len(proved), _CHUNK_PAIRS):
        h, k = first[start : start + _CHUNK_PAIRS], second[start : start + _CHUNK_PAIRS]
        bound, _ = values.bound(h, k, weights[h] / (weights[h] + weights[k]))
        proved[start : start + _CHUNK_PAIRS] = bound < 0
    exceptions = np.flatnonzero(~proved)
    if 2 * len(exceptions) > len(proved):
        return None
    labels, size = len(block), len(weights) + len(weights) % 2
    block.extend(np.resize(weights, size).astype("<f4").tobytes())
    named = np.unique(item.pairs[exceptions], axis=0, return_index=True)
    result = {"labels": labels, "exceptions": len(block), "count": len(named[0])}
    block.extend(named[0].astype("<u4").tobytes())
    block.extend(item.weights[exceptions[named[1]]].astype("<f4").tobytes())
    return result


def require_proved(verdicts: Verdicts, spec: Specification) -> None:
    """Raise NotCertifiedError for the worst obligation that is not proved; a real violation comes first."""
    if verdicts.hold:
        return
    failures = verdicts.failures()
    obligation, verdict = next((f for f in failures if isinstance(f[1], Violated)), failures[0])
    rule = spec.rules[obligation.rule]
    pair = obligation.clause - len(rule.requirement.clauses)
    which = f"Rule '{rule.name}'"
    if pair >= 0:
        h, k = rule.requirement.exclusions[pair]
        which += f" ('{spec.targets[h]}' and '{spec.targets[k]}' never together)"
    raise NotCertifiedError(f"{which} is not proved: {_reason(verdict, spec)}", refuted=isinstance(verdict, Violated))


def _reason(verdict: Verdict, spec: Specification) -> str:
    if isinstance(verdict, NotProved | Violated):
        where = ", ".join(f"{name}={number_text(value)}" for name, value in zip(spec.columns, verdict.x, strict=True))
        missed = -verdict.margin if isinstance(verdict, NotProved) else verdict.excess
        if not missed > 0:
            return f"no room is left for rounding, for example at {where}."
        kind = "the over-approximation misses it" if isinstance(verdict, NotProved) else "the model breaks it"
        return f"{kind} by {missed:.3g}, for example at {where}."
    assert isinstance(verdict, Unknown)
    return verdict.reason
