"""Proofs for frozen heads behind a box: obligations, verdicts and certificates."""

from smle.heads.box.proof.verdict import Holds, NotProved, Obligation, Unknown, Verdict, Verdicts, Violated

__all__ = ["Holds", "NotProved", "Obligation", "Unknown", "Verdict", "Verdicts", "Violated"]
