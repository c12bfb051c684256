"""Interpreters of deployed programs, without torch."""

from smle.programs.clip_list import ClipList

__all__ = ["ClipList"]
