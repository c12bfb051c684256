"""Law: the lean check says what the general one says, up to the float64 error that both pay for."""

from __future__ import annotations

import numpy as np
import pytest

from smle.guarantees.proof.closed_form import ClosedForm
from smle.guarantees.proof.frozen_heads import Bounds, Head
from smle.guarantees.proof.verdict import Holds, NotProved, Unknown
from smle.guarantees.proof.verify import ClauseVerifier
from smle.guarantees.proof.worst_case import HeadNumbers, WidenedBox, float_deduction, worst_case
from smle.guarantees.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import Literals


def _instance(seed: int) -> tuple[Literals, Head, Bounds, Region]:
    rng = np.random.default_rng(seed)
    d, m, k = (int(v) for v in rng.integers(1, 5, size=3))
    n = int(rng.choice([1, 3, 16, 100]))
    scale = 10.0 ** float(rng.integers(-6, 6))
    lower = rng.choice([0.0, -1.0, 1e-42, 0.5], size=n)
    # Widths of zero, and a few below zero: the clip is defined there, too.
    bounds = Bounds(lower, lower + rng.choice([0.0, 1.0, 3.0, -0.125], size=n))
    head = Head(rng.normal(size=(m, n)) * scale, rng.normal(size=m) * scale)
    g = rng.choice([-2.0, -0.1, 0.0, 1.0, 3.0], size=(k, m))
    size = np.abs(g) @ (np.abs(head.W.astype(np.float64)).sum(axis=1) + np.abs(head.b))
    h = rng.normal(size=k) * size * rng.choice([0.1, 3.0])
    domain = Domain(-np.ones(d), np.ones(d), np.ones(d))
    rows = rng.normal(size=(2, d))
    region = Region(domain, (0, 1), rows, np.ones(2)) if seed % 2 else Region.whole(domain)
    return Literals(g, np.zeros((k, d)), h, np.zeros(k, dtype=bool)), head, bounds, region


def _rows(literals: Literals) -> list[Literals]:
    one = (literals.g[:, None], literals.s[:, None], literals.h[:, None], literals.strict[:, None])
    return [Literals(*parts) for parts in zip(*one, strict=True)]


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_lean_bounds_equal_the_general_ones(start: int) -> None:
    kinds = set()
    for seed in range(start, start + 100):
        literals, head, bounds, region = _instance(seed)
        envelope, support = WidenedBox.of(bounds, region.domain), RegionMaximum(region, points=False)
        numbers = HeadNumbers.of(head, envelope, region.domain)
        general = worst_case(literals, numbers, envelope, support)
        lean = ClosedForm.of(literals, envelope, region)
        assert lean is not None
        priced = lean(head)
        assert priced is not None
        bound, _, v = priced
        nothing = np.zeros((len(literals.h), len(region.numbers)))
        allowed = float_deduction(literals, numbers, region, mu=nothing, c=literals.s)
        assert (np.abs(bound - general.bound) <= allowed).all()
        assert np.array_equal(v > 0, general.v > 0)
        check = ClauseVerifier(_rows(literals), envelope, support)
        for fast, slow, slack in zip(check(head), check._in_general(head), allowed, strict=True):
            assert abs(fast.margin - slow.margin) <= slack
            assert type(fast) is type(slow)
            kinds.add(type(fast))
    assert kinds == {Holds, NotProved}


def test_a_head_that_may_overflow_has_no_closed_form() -> None:
    literals, _, bounds, region = _instance(2)
    n, m = bounds.width, literals.g.shape[1]
    head = Head(np.full((m, n), 3e38), np.zeros(m))
    envelope = WidenedBox.of(Bounds(np.ones(n), np.full(n, 2.0)), region.domain)
    lean = ClosedForm.of(literals, envelope, region)
    assert lean is not None
    assert lean(head) is None
    verdicts = ClauseVerifier(_rows(literals), envelope, RegionMaximum(region, points=False))(head)
    assert any(isinstance(verdict, Unknown) for verdict in verdicts)
    assert not any(isinstance(verdict, Holds) for verdict in verdicts)


def test_what_depends_on_inputs_is_left_to_the_general_check() -> None:
    literals, head, bounds, region = _instance(4)
    n, d = bounds.width, len(region.domain.low)
    affine = Bounds(bounds.lower, bounds.upper, np.zeros((n, d)), np.zeros((n, d)))
    assert ClosedForm.of(literals, WidenedBox.of(affine, region.domain), region) is None
    tied = Literals(literals.g, np.ones_like(literals.s), literals.h, literals.strict)
    envelope = WidenedBox.of(bounds, region.domain)
    assert ClosedForm.of(tied, envelope, region) is None
    through = Head(head.W, head.b, V=np.ones((len(head.b), d)))
    check = ClauseVerifier(_rows(literals), envelope, RegionMaximum(region, points=False))
    for plain, passed in zip(check(head), check(through), strict=True):
        assert isinstance(passed, Holds | NotProved)
        assert passed.margin <= plain.margin
