"""What has to be proved, one by one, and what was not."""

from typing import Any, NamedTuple

from smle_check.reading import Rejected, Tensor
from smle_check.specification import Specification


class Claim(NamedTuple):
    """What a certificate states of one head, whose tensors these are; its kind alone reads `program` and `proof`."""

    spec: Specification
    tensors: dict[str, Tensor]
    gated: list[int]
    program: Any
    proof: Any
    block: bytes


class Obligation(NamedTuple):
    """A clause of a rule (None: its exclusions) that one head has to obey wherever the rows hold (all by number).

    `region` switches the rule on; None: one of the regions of the head's cell.
    """

    head: int
    rule: int
    region: int | None
    rows: tuple[int, ...]
    clause: int | None


class Unproved(Rejected):
    """An obligation that the certificate does not prove."""

    def __init__(self, obligation: Obligation, reason: str) -> None:
        super().__init__(reason)
        self.obligation = obligation
