"""Interpreters of the deployed programs, without torch."""

from smle.programs.candidates import Candidates
from smle.programs.clip_list import ClipList

__all__ = ["Candidates", "ClipList"]
