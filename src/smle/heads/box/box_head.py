"""The box as an entry of the table of heads. It is learned, so rules alone cannot make one for another model."""

from __future__ import annotations

from collections.abc import Mapping

from smle.heads.box.box_program import Box
from smle.heads.box.proof.issue_box import issue
from smle.heads.contract import HeadKind

__all__ = ["BOX"]


def _words(program: Mapping[str, str]) -> str:
    precision, bounds, clip = (program.get(part, "") for part in ("precision", "bounds", "clip"))
    return f"box: {precision}, {bounds} bounds, clip by {clip}"


BOX = HeadKind(issue, Box.of, lambda _: ([], 1), _words, suits=lambda _: False)
