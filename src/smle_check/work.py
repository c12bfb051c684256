"""Counts the work that a document asks for, before it is done (section 9)."""

from collections.abc import Iterable
from fractions import Fraction
from math import lcm

from smle_check.reading import require

BASE, PER_BYTE = 20_000_000, 100  # steps of about a microsecond each
WORD = 64  # bits of a denominator that cost nothing more


class Work:
    """The steps left: a fixed number for every document, and more for each of its bytes.

    Exact sums cost as many steps as their common denominator has words, squared. Denominators of the numbers that a
    document states are collected here; every other part counts its own.
    """

    def __init__(self, size: int = 1 << 30) -> None:
        self.left = BASE + PER_BYTE * size
        self.common, self.count = 1, 0  # of all stated numbers

    def plan(self, steps: int, what: str) -> None:
        """Declare steps; refuse the document if none are left."""
        self.left -= steps * self.words(self.common)
        require(self.left >= 0, f"{what}: more work than a document of this size may ask for")

    @staticmethod
    def words(denominator: int) -> int:
        """Return how much longer sums with a common denominator take."""
        return 1 + denominator.bit_length() // WORD

    def state(self, numbers: Iterable[Fraction], what: str) -> None:
        """Declare numbers of the specification: sums over any of them share a common denominator."""
        self.common, count = self.joined(self.common, self.count, numbers, what)
        self.count = count

    def use(self, numbers: Iterable[Fraction], what: str) -> None:
        """Declare numbers that only one proof reads."""
        common, count = self.joined(1, 0, numbers, what)
        self.plan(count * self.words(common) ** 2, what)

    def joined(self, common: int, count: int, numbers: Iterable[Fraction], what: str) -> tuple[int, int]:
        """Return the common denominator and count with further numbers; refuse what grows too long."""
        for value in numbers:
            count += 1
            if common % value.denominator:
                common = lcm(common, value.denominator)
            steps = count * self.words(common) ** 2
            require(steps <= self.left, f"{what}: denominators that are too long together")
        return common, count
