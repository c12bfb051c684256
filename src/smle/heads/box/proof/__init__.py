"""Proofs for frozen heads behind a box: obligations, verdicts, and the certificate that is issued on them."""

from smle.heads.box.proof.verdict import Holds, NotProved, Obligation, Unknown, Verdict, Verdicts, Violated

__all__ = ["Holds", "NotProved", "Obligation", "Unknown", "Verdict", "Verdicts", "Violated"]
