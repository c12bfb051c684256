"""What has to be proved, one obligation at a time."""

from typing import Any, NamedTuple

from smle_check.reading import Rejected, Tensor
from smle_check.stated import StatedSpecification


class Claim(NamedTuple):
    """What a certificate states about one head and its tensors. Only its kind of head reads `program` and `proof`."""

    spec: StatedSpecification
    tensors: dict[str, Tensor]
    gated: list[int]
    program: Any
    proof: Any
    block: bytes


class DerivedObligation(NamedTuple):
    """A clause of a rule (None: its exclusions) that one head has to obey wherever the rows hold (all by number).

    `region` switches the rule on; None means a region of the head's cell.
    """

    head: int
    rule: int
    region: int | None
    rows: tuple[int, ...]
    clause: int | None


class Unproved(Rejected):
    """The certificate does not prove an obligation."""

    def __init__(self, obligation: DerivedObligation, reason: str) -> None:
        super().__init__(reason)
        self.obligation = obligation
