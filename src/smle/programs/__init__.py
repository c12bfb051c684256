"""Interpreters of the deployed programs, without torch."""

from smle.programs.candidates import Candidates
from smle.programs.clip_list import ClipList
from smle.programs.head import Program, explained, program_of

__all__ = ["Candidates", "ClipList", "Program", "explained", "program_of"]
