"""Proposals in an ONNX graph: answers near those of the model that obey the rules. Nothing here is proved.

The head checks what is proposed, so that a mistake here costs accuracy and no more. As in `smle.programs.proposals`,
outputs that no rule ties together are separate problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.export.backbone import Backbone
from smle.export.labels import label_points
from smle.export.nearest import number_points
from smle.export.writer import Writer
from smle.programs import Candidates
from smle.programs.label_sets import Labels
from smle_check.heads.clips import limits_of
from smle_check.onnx.candidates import Table
from smle_check.onnx.graph import DOUBLE, FLOAT
from smle_check.onnx.program import PROPOSALS, Program

__all__ = ["proposals_of"]

Array = npt.NDArray[Any]
_MOVES = (2.0**-16, 2.0**-8)  # toward the safe answer, directly after the nearest point
_LATER = (2.0**-3,)  # after all points


def proposals_of(certificate: Certificate) -> tuple[Backbone, int]:
    """Return nodes that make PROPOSALS in the branch for rows whose answers break a rule, and how many each row has."""
    program = Candidates(certificate)
    head, spec = program.proposals, program.specification
    w = Writer()
    given = _given(w, program)
    safe = w.add("Cast", ["safe/single"], to=DOUBLE)
    on = _rules_on(w, certificate, program, int(head.rules.max()) + 1)
    ranks: list[list[tuple[Sequence[int], str]]] = [[]]
    for part in head.parts:
        if isinstance(part, Labels):
            points = [label_points(w, part, given, on, head.rules)]
        else:
            points = number_points(w, part, given, on, head.rules, len(spec.inputs))
        while len(ranks) < len(points):
            ranks.append(ranks[0][: len(ranks[0])])
        for rank, found in enumerate(ranks):
            found.append((part.outputs.tolist(), points[min(rank, len(points) - 1)]))
    m = len(spec.outputs)
    whole = [_assembled(w, given, found, m) for found in ranks]
    apart = w.add("Sub", [safe, whole[0]])
    moved = [_moved(w, whole[0], apart, share) for share in (*_MOVES, *_LATER)]
    candidates = [whole[0], *moved[: len(_MOVES)], *whole[1:], *moved[len(_MOVES) :]]
    w.last("Cast", [w.add("Concat", candidates, axis=1)], PROPOSALS, to=FLOAT)
    return Backbone(w.nodes, w.initializers), len(candidates)


def _given(w: Writer, program: Candidates) -> str:
    """Return the answers (m, rows) in float64, numbers that the head would accept."""
    wide = w.add("Cast", ["repair/answers"], to=DOUBLE)
    small = w.add("LessOrEqual", [w.add("Abs", [wide]), w.number(2.0**100)])
    known = w.add("Where", [small, wide, w.column(program.stored["clips.default"])])
    reach = program.stored["check.range"]
    return w.add("Max", [w.add("Min", [known, w.column(reach)]), w.column(-reach)])


def _rules_on(w: Writer, certificate: Certificate, program: Candidates, rules: int) -> str | None:
    """Return which of the first rules are on (rules, rows), by the bits of the check; None: all of them, always."""
    spec, gated = program.specification, certificate.document["gate"]["regions"]
    limits = bool(limits_of(spec))
    table = Table(Program(), spec, gated, certificate.tensors, bounded=limits)
    if not any(table.regions[g] for rule in spec.rules for g in rule.regions):
        return None
    bits = w.add("Gather", ["check/bits/float", "repair/chosen"], axis=1)
    regions = [(i, g) for i, rule in enumerate(spec.rules[:rules]) for g in rule.regions]
    members = np.zeros((len(regions), len(table.rows)), dtype=np.float32)
    for row, (_, region) in enumerate(regions):
        members[row, table.regions[region]] = 1
    needs = members.sum(axis=1, keepdims=True) - np.float32(0.5)
    held = w.add("Greater", [w.add("MatMul", [w.constant(members), bits]), w.constant(needs)])
    on = w.add("Cast", [held], to=FLOAT)
    if len(regions) == rules:
        return on
    switches = np.zeros((rules, len(regions)), dtype=np.float32)
    switches[[i for i, _ in regions], range(len(regions))] = 1
    return w.add("Min", [w.add("MatMul", [w.constant(switches), on]), w.constant(np.float32(1))])


def _assembled(w: Writer, given: str, parts: list[tuple[Sequence[int], str]], m: int) -> str:
    """Put the outputs of all parts in order; the others are as given."""
    listed = [i for outputs, _ in parts for i in outputs]
    rest = [i for i in range(m) if i not in set(listed)]
    pieces = [node for _, node in parts]
    if rest:
        pieces.append(w.rows(given, rest))
    order = np.argsort([*listed, *rest], kind="stable")
    joined = pieces[0] if len(pieces) == 1 else w.add("Concat", pieces, axis=0)
    return joined if (order == np.arange(m)).all() else w.rows(joined, order.tolist())


def _moved(w: Writer, point: str, apart: str, share: float) -> str:
    return w.add("Add", [point, w.add("Mul", [apart, w.number(share)])])
