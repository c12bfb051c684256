"""Counterexamples that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from smle.heads.box.algorithms.counterexample import exclusion_counterexample, linear_counterexample
from smle.heads.box.proof.frozen_heads import Bounds, Head
from smle.heads.box.proof.worst_case import HeadNumbers
from smle.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import Literals
from smle.solvers import Solution, Status
from support.formulations import ReachModel, exclusion_counterexample_milp, linear_counterexample_milp, plain_envelope

DOMAIN = Domain(np.zeros(1), np.ones(1), np.ones(1))
BOX = Bounds([0.0], [1.0])
PAIR = np.array([[0, 1]], dtype=np.int32)


def rows(*pairs: tuple[list[float], float]) -> Literals:
    g = np.array([p[0] for p in pairs])
    h = np.array([p[1] for p in pairs])
    return Literals(g, np.zeros((len(pairs), 1)), h, np.zeros(len(pairs), dtype=bool))


def test_touching_is_no_counterexample() -> None:
    head = Head([[1.0]], [0.0])
    arguments = (HeadNumbers.exact(head), plain_envelope(BOX, DOMAIN), RegionMaximum(Region.whole(DOMAIN)))
    assert linear_counterexample(rows(([1.0], 1.0)), *arguments).none_exists
    found = linear_counterexample(rows(([1.0], 1.0 - 1e-3)), *arguments).found
    assert found is not None
    assert found.strength == pytest.approx(1e-3)


def test_a_logit_of_zero_counts_as_predicted() -> None:
    head = Head([[1.0], [0.0]], [-1.0, 0.0])
    whole = Region.whole(DOMAIN)
    assert exclusion_counterexample(PAIR, HeadNumbers.exact(head), plain_envelope(BOX, DOMAIN), whole).found is not None
    assert exclusion_counterexample_milp(PAIR, BOX, head, whole).found is not None


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OPTIMAL], ids=lambda s: s.name)
def test_a_failing_milp_is_no_answer(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReachModel, "solve", lambda *_, **__: Solution(status, message="injected"))
    head = Head([[1.0], [-1.0]], [0.0, 1.0])
    search = linear_counterexample_milp(rows(([1.0, 0.0], 0.5)), BOX, head, Region.whole(DOMAIN))
    assert search.found is None
    assert not search.none_exists
