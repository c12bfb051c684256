"""Interpreters of the deployed programs, without torch."""

from smle.programs.box import Box, Perceptron, frozen_heads_of
from smle.programs.candidates import Candidates
from smle.programs.clip_list import ClipList
from smle.programs.head import Program, program_of
from smle.programs.served import (
    MUCH,
    WAYS,
    WIDE,
    Corrections,
    Moves,
    Parts,
    alternatives_of,
    bound_by,
    served_by,
    ways_of,
)
from smle.programs.settled import Settled, SettledBy

__all__ = [
    "MUCH",
    "WAYS",
    "WIDE",
    "Box",
    "Candidates",
    "ClipList",
    "Corrections",
    "Moves",
    "Parts",
    "Perceptron",
    "Program",
    "Settled",
    "SettledBy",
    "alternatives_of",
    "bound_by",
    "frozen_heads_of",
    "program_of",
    "served_by",
    "ways_of",
]
