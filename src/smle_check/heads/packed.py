"""Many exclusions at once: rows of a head in coarse units, packed into integers."""

import math
from fractions import Fraction


class Packed:
    """The rows a = half-width x W of a head with constant bounds, in coarse units, each packed into one integer.

    `rows` are integers times 2^-grid; `tops` are the logits at the center of the box plus their rounding errors.

    Lane j of a number is coordinate j, so a combination of rows is that of the numbers. A bias keeps lanes from being
    negative: its bit says which v_j are >= 0. Halves of a number are added until one lane, the sum of all, is left.
    """

    def __init__(self, rows: list[list[int]], grid: int, tops: list[Fraction]) -> None:
        n = len(rows[0])
        drop = max(0, max((abs(v) for row in rows for v in row), default=0).bit_length() - 26)
        self.unit = Fraction(1 << drop, 1 << grid)
        rows = [[(v + (1 << drop >> 1)) >> drop for v in row] for row in rows]  # each wrong by half a unit at most
        # Where p + q <= 2^32 no |v_j| exceeds 2^58: biased lanes are below 2^60, and n of them do not fill a lane.
        self.bit, lane = 59, 60 + n.bit_length()
        self.packed = [sum(v << (lane * j) for j, v in enumerate(row)) for row in rows]
        self.ones = sum(1 << (lane * j) for j in range(n))
        self.bias = self.ones << self.bit
        self.halves = [(lane << i, (1 << (lane << i)) - 1) for i in reversed(range(n.bit_length()))]
        # Logit at the center plus rounding error plus the coarseness, less sum_j a_j: sum |v| = 2 sum v+ - sum v.
        ends = [math.ceil(top / self.unit) for top in tops]
        self.rest: list[int] = [end + (n + 1) // 2 - sum(row) for end, row in zip(ends, rows, strict=True)]

    def bound(self, h: int, k: int, p: int, q: int) -> int:
        """Bound sum_j |p a_hj + q a_kj| + p top_h + q top_k from above, in units."""
        v = p * self.packed[h] + q * self.packed[k] + self.bias
        signs = (v >> self.bit) & self.ones
        positive: int = v & ((signs << self.bit) - signs)  # v_j where v_j >= 0, else 0
        for half, low in self.halves:
            positive = (positive >> half) + (positive & low)
        return 2 * positive + p * self.rest[h] + q * self.rest[k]
