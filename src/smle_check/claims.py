"""What has to be proved, one by one, and what was not."""

from typing import NamedTuple

from smle_check.reading import Rejected


class Obligation(NamedTuple):
    """A clause of a rule (None: its exclusions) that one head has to obey wherever the rows hold (all by number)."""

    head: int
    rule: int
    rows: tuple[int, ...]
    clause: int | None


class Unproved(Rejected):
    """An obligation that the certificate does not prove."""

    def __init__(self, obligation: Obligation, reason: str) -> None:
        super().__init__(reason)
        self.obligation = obligation
