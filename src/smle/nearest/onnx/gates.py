"""Which rules apply, as ONNX nodes, from the bits of the check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.nearest.blocks import Block
from smle.nearest.onnx.writer import Writer
from smle_check.onnx.candidate_nodes import ComparedRows
from smle_check.onnx.graph import FLOAT
from smle_check.stated import StatedSpecification

__all__ = ["Gates"]

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.intp]
_OFF = 2.0**50  # subtracted from the excess of a row that is not imposed, in units of the outputs


class Gates:
    """The gates of all rules, for the rows of a batch that a graph repairs.

    Attributes:
        rules: The rule of each part of the rules, as in `Clauses.parts`.
        lower, upper: The domain.
        outputs: Number of outputs.
    """

    def __init__(
        self, w: Writer, spec: StatedSpecification, table: ComparedRows, rules: Numbers, domain: tuple[Array, Array]
    ) -> None:
        self._w, self.rules = w, rules
        self.lower, self.upper = domain
        self.outputs = len(spec.outputs)
        self._rows = table.bits
        self._members = [[table.regions[g] for g in rule.regions] for rule in spec.rules[: int(self.rules.max()) + 1]]
        self._known: dict[str, str] = {}

    def bits(self) -> str:
        """Return the bits of the check (rows of its table, rows) in float32."""
        if "bits" not in self._known:
            self._known["bits"] = self._w.add("Gather", ["check/bits/float", "repair/chosen"], axis=1)
        return self._known["bits"]

    def on(self) -> str | None:
        """Return which rules apply (rules, rows) in float32, or None if all always do."""
        w, members = self._w, self._members
        if not any(any(own) for own in members):
            return None
        if "on" not in self._known:
            regions = [(i, region) for i, own in enumerate(members) for region in own]
            counted = np.zeros((len(regions), self._rows), dtype=np.float32)
            for row, (_, region) in enumerate(regions):
                counted[row, region] = 1
            needs = counted.sum(axis=1, keepdims=True) - np.float32(0.5)
            held = w.add("Greater", [w.add("MatMul", [w.constant(counted), self.bits()]), w.constant(needs)])
            on = w.add("Cast", [held], to=FLOAT)
            if len(regions) > len(members):
                switches = np.zeros((len(members), len(regions)), dtype=np.float32)
                switches[[i for i, _ in regions], range(len(regions))] = 1
                on = w.add("Min", [w.add("MatMul", [w.constant(switches), on]), w.constant(np.float32(1))])
            self._known["on"] = on
        return self._known["on"]

    def of_clauses(self, block: Block) -> list[int]:
        """Return the rule of each clause of a block."""
        found: list[int] = self.rules[block.parts].tolist()
        return found

    def of_rows(self, block: Block) -> list[tuple[int, ...] | None]:
        """Return, for each row of a block, the bits that must be set to impose it; None if that is not an AND."""
        found: list[set[tuple[int, ...] | None]] = [set() for _ in block.N]
        for clause, part in zip(block.clauses, block.parts, strict=True):
            own = self._members[self.rules[part]]
            for row in clause:
                found[row].add(tuple(own[0]) if len(own) == 1 else None)
        return [next(iter(own)) if len(own) == 1 else None for own in found]

    def off(self, blocks: Sequence[Block]) -> str | None:
        """Return 0 for imposed rows, far less for others (J x blocks, rows), in float32; None if all are imposed."""
        listed = [self.of_rows(block) for block in blocks]
        needed = [own[row] for row in range(len(listed[0])) for own in listed]
        if not any(needed):
            return None
        counted = np.zeros((len(needed), self._rows), dtype=np.float32)
        for row, bits in enumerate(needed):
            counted[row, list(bits or ())] = _OFF
        w = self._w
        return w.add("Gemm", [w.constant(counted), self.bits(), w.constant(-counted.sum(axis=1, keepdims=True))])
