"""The box as an entry of the table of heads. It is learned, so rules alone cannot make one for another model."""

from __future__ import annotations

from collections.abc import Mapping

from smle.certificates.document import Certificate
from smle.heads.box.program import Box
from smle.heads.box.proof.issue import issue
from smle.heads.contract import HeadKind
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification

__all__ = ["BOX"]


def _nodes(certificate: Certificate) -> tuple[list[Backbone], int]:
    return [], 1


def _words(program: Mapping[str, str]) -> str:
    precision, bounds, clip = (program.get(part, "") for part in ("precision", "bounds", "clip"))
    return f"box: {precision}, {bounds} bounds, clip by {clip}"


def _suits(spec: Specification) -> bool:
    return False


BOX = HeadKind(issue, Box.of, _nodes, _words, _suits)
