"""Interpreters of the deployed programs, without torch."""

from smle.programs.candidates import Candidates
from smle.programs.clip_list import ClipList
from smle.programs.head import Program, program_of
from smle.programs.served import MUCH, WAYS, Corrections, Moves, Parts, alternatives_of, served_by, ways_of

__all__ = [
    "MUCH",
    "WAYS",
    "Candidates",
    "ClipList",
    "Corrections",
    "Moves",
    "Parts",
    "Program",
    "alternatives_of",
    "program_of",
    "served_by",
    "ways_of",
]
