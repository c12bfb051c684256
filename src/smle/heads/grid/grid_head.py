"""The grid head as an entry of the table of heads."""

from __future__ import annotations

from smle.heads.contract import HeadKind
from smle.heads.grid.grid_author import certify_grid
from smle.heads.grid.grid_onnx import grid_proposals
from smle.heads.grid.grid_program import GridProgram

__all__ = ["GRID"]


_WORDS = "whole numbers of steps, behind the model: answers that the rules allow pass, others give way to the nearest"

GRID = HeadKind(certify_grid, GridProgram, grid_proposals, lambda _: _WORDS, suits=lambda spec: spec.grid is not None)
