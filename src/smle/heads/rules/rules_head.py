"""The head of rules as an entry of the table of heads."""

from __future__ import annotations

from smle.certificates.document import Certificate
from smle.heads.contract import HeadKind
from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.clip_list import ClipList
from smle.heads.rules.rules_author import certify_rules
from smle.heads.rules.rules_onnx import proposals_of
from smle.nearest.onnx.pieces import Backbone

__all__ = ["RULES"]


def _has_check(certificate: Certificate) -> bool:
    """Return whether there is a check after the clips, and stored safe answers."""
    return "check.scale" in certificate.tensors


def _program(certificate: Certificate) -> ClipList:
    return Candidates(certificate) if _has_check(certificate) else ClipList(certificate)


def _nodes(certificate: Certificate) -> tuple[list[Backbone], int]:
    return proposals_of(certificate) if _has_check(certificate) else ([], 1)


_WORDS = "head of rules, behind the model: answers that the rules allow pass, others are moved or replaced"

RULES = HeadKind(certify_rules, _program, _nodes, words=lambda _: _WORDS, suits=lambda _: True)
