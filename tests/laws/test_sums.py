"""What the check accepts obeys its literal, exactly: for every order of summation, fused or not, flushed or not."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

import smle.rules
import smle_check.heads.sums as sums
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import program_of
from smle_check.floats import BINARY64, TINY, coefficient
from smle_check.heads.sums import WIDE, DeployedSum, sum_of
from smle_check.stated import StatedLiteral, StatedSpecification

NORMAL = 2.0**-1022


@dataclass
class Domain:
    """All that a sum asks of a specification."""

    sizes: list[Fraction]
    group: dict[int, int] = field(default_factory=dict)
    groups: list[list[int]] = field(default_factory=list)
    summed, largest, groups_of = StatedSpecification.summed, StatedSpecification.largest, StatedSpecification.groups_of


class Machine:
    """Adds up in float64 in a random order, with products that may be fused and small numbers that may become 0."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.flush, self.fused = rng, rng.random() < 0.5, rng.random() < 0.5

    def kept(self, value: float) -> float:
        return 0.0 if self.flush and abs(value) < NORMAL else value

    def total(self, terms: list[tuple[Fraction, float]]) -> float:
        parts: list[float] = []
        for factor, value in self.rng.sample(terms, len(terms)):
            product = factor * Fraction(value)
            if self.fused and parts:
                parts[-1] = self.kept(float(product + Fraction(parts[-1])))
            else:
                parts.append(self.kept(float(product)))
        while len(parts) > 1:
            a, b = (parts.pop(self.rng.randrange(len(parts))) for _ in range(2))
            parts.append(self.kept(self.kept(a) + self.kept(b)))
        return self.kept(parts[0]) if parts else 0.0

    def accepts(self, numbers: DeployedSum, y: list[float], x: list[float]) -> bool:
        terms = [(v, y[i]) for i, v in numbers.outputs.items()] + [(v, abs(y[i])) for i, v in numbers.sizes.items()]
        read = [0.0 if self.flush and abs(v) < TINY and self.rng.random() < 0.5 else v for v in x]
        return self.total([*terms, *((v, read[k]) for k, v in numbers.inputs.items())]) <= float(numbers.threshold)


def drawn(rng: random.Random) -> tuple[Domain, StatedLiteral, list[float], list[float]]:
    """Draw a literal and an answer next to its border: it is broken, or kept, by next to nothing."""
    m, d = rng.randint(1, 4), rng.choice([0, 0, 1, 2])
    spread = rng.choice([0, 2, 40, 300, 900])

    def number() -> Fraction:
        plain = rng.choice([Fraction(1), Fraction(1, 10), Fraction(1, 3), Fraction(rng.randint(1, 10**6), 10**5)])
        return rng.choice([-1, 1]) * plain * Fraction(2) ** rng.randint(-spread, min(spread, 300))

    def answer() -> float:
        value = float(np.float32(rng.gauss(0, 1) * 2.0 ** rng.choice([0, 3, -120, 60, 95])))
        return value if abs(value) >= TINY and rng.random() < 0.9 else 0.0

    y = [answer() for _ in range(m)]
    x = [rng.choice([rng.gauss(0, 1), 1e-40, -1e-42, 5e-324, 1e3 * rng.random()]) for _ in range(d)]
    domain = Domain([Fraction(abs(v)) * rng.choice([1, 1, 3]) for v in x])
    g, s = {i: number() for i in range(m)}, {k: number() for k in range(d)}
    exact = sum((v * Fraction(y[i]) for i, v in g.items()), Fraction(0))
    exact += sum((v * Fraction(x[k]) for k, v in s.items()), Fraction(0))
    scale = sum((abs(v * Fraction(y[i])) for i, v in g.items()), abs(exact))
    off = rng.choice([-1, 0, 1, 1, 1]) * scale * Fraction(2) ** -rng.choice([49, 50, 51, 52, 53, 54, 60, 200])
    off += rng.choice([-1, 0, 0, 1]) * Fraction(2) ** -rng.choice([1022, 1023, 1030, 1074])
    return domain, StatedLiteral(g, s, exact - off, rng.random() < 0.3), y, x


def drawn_table(rng: random.Random) -> tuple[Domain, StatedLiteral, list[float], list[float]]:
    """Draw a literal that looks numbers up by category, alone or in a sum, and an answer next to its border."""
    domain, literal, y, x = drawn(rng)
    if rng.random() < 0.6:  # a table alone
        literal, y, x, domain = (
            StatedLiteral({0: literal.y[0]}, {}, literal.bound, literal.strict),
            y[:1],
            [],
            Domain([]),
        )
        if rng.random() < 0.5:
            literal = literal._replace(y={0: Fraction(rng.choice([1, -1]))})
    d, k = len(x), rng.randint(2, 5)
    chosen, (_g, *_) = rng.randrange(k), literal.y.values()
    exact = sum((v * Fraction(y[i]) for i, v in literal.y.items()), Fraction(0))
    exact += sum((v * Fraction(x[i]) for i, v in literal.x.items()), Fraction(0))
    scale = abs(exact) + Fraction(2) ** rng.choice([-1000, -140, -10, 0, 20])
    off = rng.choice([-1, 0, 1, 1]) * abs(exact) * Fraction(2) ** -rng.choice([20, 24, 52, 53, 54, 60, 200])
    table = {d + c: Fraction(rng.gauss(0, 1)) * scale for c in range(k)}
    base = rng.choice([Fraction(0), scale])
    table[d + chosen] = base - exact - off  # so that the sum is next to the bound
    literal = literal._replace(x={**literal.x, **{c: v for c, v in table.items() if v}}, bound=base)
    x = [*x, *(float(c == chosen) for c in range(k))]
    members = list(range(d, d + k))
    domain = Domain([*domain.sizes, *[Fraction(1)] * k], dict.fromkeys(members, 0), [members])
    return domain, literal, y, x


def attacked(seed: int, count: int, draw=drawn) -> tuple[int, int]:
    """Return how many answers were accepted, and how many of them break their literal."""
    rng, accepted, wrong = random.Random(seed), 0, 0
    for _ in range(count):
        domain, literal, y, x = draw(rng)
        try:
            numbers = sum_of(domain, literal)
        except OverflowError:
            continue
        if Machine(rng).accepts(numbers, y, x):
            value = sum((v * Fraction(y[i]) for i, v in literal.y.items()), Fraction(0))
            value += sum((v * Fraction(x[k]) for k, v in literal.x.items()), Fraction(0))
            accepted += 1
            wrong += not (value < literal.bound if literal.strict else value <= literal.bound)
    return accepted, wrong


@pytest.mark.parametrize("seed", range(4))
def test_what_is_accepted_obeys(seed):
    accepted, wrong = attacked(seed, 2_000)
    assert accepted > 150
    assert wrong == 0


@pytest.mark.parametrize("seed", range(4))
def test_what_tables_accept_obeys(seed):
    accepted, wrong = attacked(seed, 2_000, drawn_table)
    assert accepted > 150
    assert wrong == 0


@pytest.mark.parametrize("strict", [False, True])
def test_a_table_alone_accepts_all_that_obeys(strict):
    """An allowed answer stays, at the limit itself, too; a number next to it does not."""
    members = [0, 1, 2]
    domain = Domain([Fraction(1)] * 3, dict.fromkeys(members, 0), [members])
    caps = [Fraction(1, 10), Fraction(0), Fraction(5, 2)]
    for sign in (1, -1):
        literal = StatedLiteral(
            {0: Fraction(sign)}, {c: -sign * v for c, v in enumerate(caps) if v}, Fraction(0), strict
        )
        numbers = sum_of(domain, literal)
        for chosen, cap in enumerate(caps):
            x, near = [float(c == chosen) for c in members], np.float32(float(cap))
            for value in (near, np.nextafter(near, np.float32(9)), np.nextafter(near, np.float32(-9)), -near):
                y = float(value) if abs(float(value)) >= float(TINY) else 0.0
                over = sign * (Fraction(y) - cap)
                assert Machine(random.Random(1)).accepts(numbers, [y], x) == (over < 0 if strict else over <= 0)


@pytest.mark.audit
@pytest.mark.parametrize("seed", range(100, 140))
def test_what_is_accepted_obeys_at_length(seed):
    assert attacked(seed, 25_000)[1] == 0


def weakened(monkeypatch, what: str) -> None:
    original = sums.rounded_sum
    if what == "sizes":
        monkeypatch.setattr(
            sums,
            "rounded_sum",
            lambda spec, literal: original(spec, literal)._replace(sizes=dict.fromkeys(literal.y, 0)),
        )
    elif what == "members":  # columns of groups pay for their rounding no more
        monkeypatch.setattr(sums, "member", lambda value, growth: coefficient(value))
    elif what == "underflow":
        monkeypatch.setattr(sums, "underflow", lambda *_: Fraction(0))
    else:  # every literal counts as exact
        monkeypatch.setattr(
            sums,
            "rounded_sum",
            lambda spec, literal: original(spec, literal)._replace(
                sizes={}, threshold=sums.threshold_below(literal.bound, strict=literal.strict)
            ),
        )


@pytest.mark.parametrize("what", ["sizes", "underflow", "members", "everything"])
def test_every_part_of_the_slack_is_needed(monkeypatch, what):
    weakened(monkeypatch, what)
    draw = drawn_table if what == "members" else drawn
    assert sum(attacked(seed, 2_000, draw)[1] for seed in range(4)) > 0


def test_a_large_number_of_one_category_takes_nothing_from_others():
    members, w = [0, 1], 2
    domain = Domain([Fraction(1), Fraction(1), Fraction(100)], dict.fromkeys(members, 0), [members])
    literal = StatedLiteral(
        {0: Fraction(1)}, {0: Fraction(-1), 1: Fraction(-(10**15)), w: Fraction(-1, 10)}, Fraction(0), False
    )
    numbers = sum_of(domain, literal)
    growth = Fraction(5, 2**53 - 5)
    for c in members:
        S, less = numbers.inputs[c], Fraction(float(np.nextafter(float(numbers.inputs[c]), -np.inf)))
        assert literal.x[c] + growth * abs(S) <= S
        assert less < literal.x[c] + growth * abs(less)
    assert abs(numbers.threshold) < 1e-13
    near = float(np.nextafter(np.float32(3), np.float32(0)))
    assert Machine(random.Random(1)).accepts(numbers, [near], [1.0, 0.0, 20.0])


def test_numbers_are_as_large_as_the_proof_allows_and_no_larger():
    rng = random.Random(7)
    for _ in range(300):
        domain, literal, *_ = drawn(rng)
        try:
            numbers = sum_of(domain, literal)
        except OverflowError:
            continue
        if not numbers.sizes:
            continue
        n = 2 * len(literal.y) + len(literal.x)
        growth = Fraction(n + 1, 2**53 - n - 1)
        for i, g in literal.y.items():
            G, K = numbers.outputs[i], numbers.sizes[i]
            assert coefficient(g) == G
            assert K >= NORMAL
            assert float(K) == K
            assert abs(g - G) + growth * (abs(G) + K) <= K
            less = Fraction(float(np.nextafter(float(K), 0)))
            assert K == NORMAL or less < abs(g - G) + growth * (abs(G) + less)
        X, S = domain.sizes, numbers.inputs
        slack = sum((abs(v - S[k]) * X[k] + growth * abs(S[k]) * X[k] for k, v in literal.x.items()), Fraction(0))
        small = [v for v in (*numbers.outputs.values(), *numbers.sizes.values()) if v and abs(v) < Fraction(2) ** -800]
        if literal.x or small:
            total = sum(map(abs, S.values()), Fraction(0))
            slack += (1 + growth) * (Fraction(NORMAL) * (2 * n + 1 + total) + 2 * TINY * total)
        H, value = numbers.threshold, literal.bound - slack
        assert H == 0 or abs(H) >= NORMAL
        assert value > H if literal.strict else value >= H
        above = Fraction(float(np.nextafter(float(H), np.inf)))
        above = Fraction(NORMAL) if 0 < above < NORMAL else Fraction(0) if -NORMAL < above < 0 else above
        assert above >= value if literal.strict else above > value


def test_sums_that_may_overflow_are_refused():
    domain = Domain([])
    for exponent, fits in ((923, True), (924, False)):
        literal = StatedLiteral({0: Fraction(2) ** exponent, 1: Fraction(1)}, {}, Fraction(0), False)
        if fits:
            assert sum_of(domain, literal).outputs[0] * WIDE < BINARY64.largest
        else:
            with pytest.raises(OverflowError, match="overflow"):
                sum_of(domain, literal)


@pytest.mark.parametrize("factor", [Fraction(1), Fraction(-3), Fraction(1, 7), Fraction(1, 10**320)])
def test_one_output_is_compared_exactly_whatever_its_factor(factor):
    for bound in (Fraction(0), Fraction(1, 3), Fraction(-7)):
        for strict in (False, True):
            numbers = sum_of(Domain([]), StatedLiteral({2: factor}, {}, bound, strict))
            assert numbers.outputs == {2: 1 if factor > 0 else -1}
            assert not numbers.sizes
            for y in (0.0, 1.0, -1.0, float(np.float32(float(bound / factor))) if abs(factor) > 1e-300 else 2.0**99):
                holds = factor * Fraction(y) < bound if strict else factor * Fraction(y) <= bound
                assert (float(numbers.outputs[2]) * y <= float(numbers.threshold)) == holds


ORDER = (
    "inputs: {x: [0, 1]}\noutputs: [low, middle, high]\nrules:\n  - {name: r, then: low <= middle and middle %s high}\n"
)


def test_the_order_of_two_outputs_is_compared_exactly():
    rng = np.random.default_rng(3)
    for sign in ("<=", "<"):
        program = program_of(certify_rules(smle.rules.Specification.from_yaml(ORDER % sign)))
        y = np.sort(rng.normal(size=(500, 3)) * 10.0 ** rng.integers(-30, 30, (500, 1)), axis=1).astype(np.float32)
        y[:100, 1] = y[:100, 0]
        y[100:200] = np.float32(0)
        y[200:300, 2] = y[200:300, 1]
        y[300:350, 2] = np.nextafter(y[300:350, 1], np.float32(np.inf))
        allowed = (y[:, 0] <= y[:, 1]) & (y[:, 1] < y[:, 2] if sign == "<" else y[:, 1] <= y[:, 2])
        assert 100 < allowed.sum() < 501
        for kind in (np.float32, np.float64):
            served = program(np.full((500, 1), 0.5, dtype=kind), y)
            assert (served == y).all(axis=1)[allowed].all()
            assert (served[:, 0] <= served[:, 1]).all()
            assert (served[:, 1] < served[:, 2] if sign == "<" else served[:, 1] <= served[:, 2]).all()
            assert not (served == y).all(axis=1)[~allowed].any()


SIZED = """
inputs: {x: [-3, 3]}
outputs: [a, b, c]
rules:
  - {name: band, then: abs(a - (b + c)) <= 0.01}
  - {name: slope, then: 0.1 * a + 3 * b <= 7 or c >= a + x}
"""


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3, 1e9, 1e15, 1e20])
def test_allowed_answers_stay_whatever_their_size(size):
    """They may move only where less than twice the rounding of the sum is left."""
    rng = np.random.default_rng(int(np.log10(size)) + 50)
    spec = smle.rules.Specification.from_yaml(
        "\n".join(line for line in SIZED.splitlines() if size <= 1e9 or "band" not in line)
    )
    program = program_of(certify_rules(spec))
    X = rng.uniform(-3, 3, (4000, 1))
    y = (rng.normal(size=(4000, 3)) * size).astype(np.float32)
    y[:, 0] = (y[:, 1].astype(np.float64) + y[:, 2]).astype(np.float32)
    wide, gamma = y.astype(np.float64), 8 * 2.0**-53
    a, b, c = wide.T
    room = 2 * gamma * np.abs(wide).sum(axis=1) * 3 + 2.0**-50 * 3
    band = (size > 1e9) | (np.abs(a - (b + c)) <= 0.01 - room)
    other = (0.1 * a + 3 * b <= 7 - room) | (c - a - X[:, 0] >= room)
    allowed = band & other
    assert allowed.sum() > (500 if size != 1e9 else 20)
    served = program(X, y)
    assert (served[allowed] == y[allowed]).all()
