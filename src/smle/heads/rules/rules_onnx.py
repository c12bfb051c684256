"""Proposals in an ONNX graph: answers that obey the rules, near the model's. Nothing here is proved.

The head checks proposals, so a mistake here only costs accuracy. As in `smle.nearest.proposals`, outputs that no rule
ties together are separate problems.
"""

from __future__ import annotations

import numpy as np

from smle.certificates.document import Certificate
from smle.heads.rules.checked_candidates import Candidates
from smle.nearest.alternatives import KEPT
from smle.nearest.blocks import Block
from smle.nearest.labels import LabelBlock
from smle.nearest.onnx.gates import Gates
from smle.nearest.onnx.label_nodes import label_points
from smle.nearest.onnx.numbers import number_points
from smle.nearest.onnx.pieces import Backbone
from smle.nearest.onnx.stacks import stacks_of
from smle.nearest.onnx.writer import Writer
from smle_check.heads.clips import limits_of
from smle_check.onnx.candidate_nodes import ComparedRows
from smle_check.onnx.graph import DOUBLE, FLOAT
from smle_check.onnx.nodes import FURTHER, PROPOSAL, Program

__all__ = ["proposals_of"]

_MOVES = (2.0**-16, 2.0**-8)  # toward the safe answer, directly after the nearest point
_LATER = (2.0**-3,)  # after all points


def proposals_of(certificate: Certificate) -> tuple[list[Backbone], int]:
    """Return nodes that make PROPOSAL and FURTHER for rows that break a rule, and how many of the latter per row."""
    program = Candidates(certificate)
    spec, gated = program.specification, program.regions
    table = ComparedRows(Program(), spec, gated, dict(certificate.tensors), bounded=bool(limits_of(spec)))
    domain = program.stored["domain.lower_float64"], program.stored["domain.upper_float64"]

    def gates(writer: Writer) -> Gates:
        return Gates(writer, spec, table, program.proposals.rules, domain)

    w = Writer()
    # NaN and answers out of range fail the check again; the further proposals handle them.
    (first,) = _nearest(w, program, gates(w), w.add("Cast", ["repair/answers"], to=DOUBLE), 1)
    w.last("Cast", [first], PROPOSAL, to=FLOAT)
    inner = Writer(f"{FURTHER}/", w)
    points = _nearest(inner, program, gates(inner), _given(inner, program), KEPT)
    apart = inner.add("Sub", [inner.add("Cast", ["safe/single"], to=DOUBLE), points[0]])
    moved = [
        inner.add("Add", [points[0], inner.add("Mul", [apart, inner.number(share)])]) for share in (*_MOVES, *_LATER)
    ]
    candidates = [points[0], *moved[: len(_MOVES)], *points[1:], *moved[len(_MOVES) :]]
    inner.last("Cast", [inner.add("Concat", candidates, axis=1)], FURTHER, to=FLOAT)
    return [Backbone(w.nodes, w.initializers), Backbone(inner.nodes, [])], len(candidates)


def _given(w: Writer, program: Candidates) -> str:
    """Return the answers (m, rows) in float64, as numbers that the head accepts."""
    wide = w.add("Cast", ["repair/answers"], to=DOUBLE)
    small = w.add("LessOrEqual", [w.add("Abs", [wide]), w.number(2.0**100)])
    return w.add("Where", [small, wide, w.column(program.stored["clips.default"])])


def _nearest(w: Writer, program: Candidates, gates: Gates, given: str, ranks: int) -> list[str]:
    """Return allowed points (m, rows) near answers in float64, nearest first."""
    blocks = [part for part in program.proposals.parts if isinstance(part, Block)]
    found = [(stack.outputs, number_points(w, stack, given, ranks)) for stack in stacks_of(w, blocks, gates)]
    for part in program.proposals.parts:
        if isinstance(part, LabelBlock):
            found.append((part.outputs, [label_points(w, part, given, gates)]))
    outputs, wholes = np.concatenate([own for own, _ in found]), []
    for rank in range(max(len(points) for _, points in found)):
        own = [points[min(rank, len(points) - 1)] for _, points in found]
        wholes.append(w.placed(outputs, w.joined(own), given, gates.outputs))
    return wholes
