"""The largest answer over three neighbouring values of one input, between constant limits.

The model is asked at x, and at x with the input `program.input` moved down and up by `program.by`; what it answers is
not known, and neither is whether it was asked there. The answer is the largest of the three, clipped: obligation E2 of
`even.py` for the ends `largest.lower` and `largest.upper`. A NaN is skipped; three NaN become the lower end.
"""

from fractions import Fraction

from smle_check.claims import Claim, DerivedObligation
from smle_check.heads.even import check_limits, ends_of
from smle_check.heads.kind import Deployed, Kind
from smle_check.onnx.operation_nodes import Printer
from smle_check.reading import Rejected, fields, index, number, require


def check_largest(claim: Claim) -> list[tuple[DerivedObligation, Fraction]]:
    """Settle what the claim of this head owes."""
    _, moved, by = fields(claim.program, "head input by", "program")
    fields(claim.proof, "", "proof")
    index(moved, len(claim.spec.inputs), "program: input")
    require(number(by, "program: by") > 0, "program: by: expected a positive number")
    return check_limits(claim, ends_of(claim, "largest.lower"), ends_of(claim, "largest.upper"))


def print_largest(head: Deployed) -> Printer:
    """Refuse: a graph would hold the model three times."""
    raise Rejected("this head has no ONNX program")


LARGEST = Kind(check_largest, print_largest, "the largest answer over three neighbouring inputs, clipped")
