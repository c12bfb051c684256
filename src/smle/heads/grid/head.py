"""The grid head as an entry of the table of heads."""

from __future__ import annotations

from collections.abc import Mapping

from smle.heads.contract import HeadKind
from smle.heads.grid.author import certify_grid
from smle.heads.grid.onnx import grid_proposals
from smle.heads.grid.program import GridProgram
from smle.rules import Specification

__all__ = ["GRID"]


def _words(program: Mapping[str, str]) -> str:
    return "whole numbers of steps, behind the model: answers that the rules allow pass, others give way to the nearest"


def _suits(spec: Specification) -> bool:
    return spec.grid is not None


GRID = HeadKind(certify_grid, GridProgram, grid_proposals, _words, _suits)
