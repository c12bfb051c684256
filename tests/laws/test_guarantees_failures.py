"""Every injected failure of a solver ends in Unknown, never in Holds (unless it is proved without the solver)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import smle.heads.box.proof.clause_lp as clause_lp
import smle.regions.geometry as geometry
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import run_pdcg
from smle.heads.box.algorithms.projection import project
from smle.heads.box.proof.verdict import Holds, NotProved, Unknown
from smle.heads.box.proof.verify import verify
from smle.solvers import Solution, Status
from support.guarantee_instances import random_instance

FAILURES = [status for status in Status if status is not Status.OPTIMAL]


class Broken:
    def __init__(self, status: Status) -> None:
        self.status = status

    def solve(self, _: object = None) -> Solution:
        return Solution(self.status, message="injected")


@pytest.mark.parametrize("status", FAILURES, ids=lambda s: s.name)
def test_a_failing_lp_is_unknown_or_proved_without_it(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = {}
    for literals in (1, 2):
        for seed in range(6):
            instance = random_instance(seed, affine=True, literals=literals)
            for o, v in verify(instance.over, instance.spec, instance.cells):
                truth[literals, seed, o] = v
    monkeypatch.setattr(geometry, "open_session", lambda *_, **__: Broken(status))
    monkeypatch.setattr(geometry, "solve", lambda *_, **__: Solution(status, message="injected"))
    monkeypatch.setattr(clause_lp, "solve", lambda *_, **__: Solution(status, message="injected"))
    unknown = 0
    for literals in (1, 2):
        for seed in range(6):
            instance = random_instance(seed, affine=True, literals=literals)
            for o, v in verify(instance.over, instance.spec, instance.cells):
                if isinstance(v, Holds):
                    # Only what is true may still be proved, with multipliers that need no solver.
                    known = truth[literals, seed, o]
                    assert isinstance(known, Holds)
                    assert v.margin <= known.margin + 1e-7
                    continue
                unknown += isinstance(v, Unknown)
                assert isinstance(v, Unknown | NotProved)
                if isinstance(v, NotProved):
                    assert not isinstance(truth[literals, seed, o], Holds)
    assert unknown


def test_a_lying_lp_never_makes_a_clause_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that answers with wrong points and random duals costs margin, not soundness."""
    rng = np.random.default_rng(0)
    honest = {
        (seed, o): v for seed in range(15) for o, v in verify(*_unpack(random_instance(seed, affine=True, literals=2)))
    }

    def lie(problem: object, **_: object) -> Solution:
        m, n = problem.size  # type: ignore[attr-defined]
        return Solution(Status.OPTIMAL, x=rng.uniform(size=n), objective=-1e9, row_duals=-rng.uniform(size=m))

    class Liar:
        def __init__(self, problem: object) -> None:
            self.problem = problem

        def solve(self, _: object = None) -> Solution:
            return lie(self.problem)

    monkeypatch.setattr(geometry, "open_session", lambda problem, **_: Liar(problem))
    monkeypatch.setattr(geometry, "solve", lie)
    monkeypatch.setattr(clause_lp, "solve", lie)
    for seed in range(15):
        for o, v in verify(*_unpack(random_instance(seed, affine=True, literals=2))):
            if isinstance(v, Holds):
                known = honest[seed, o]
                assert isinstance(known, Holds)
                assert v.margin <= known.margin + 1e-6


def _unpack(instance):  # type: ignore[no-untyped-def]
    return instance.over, instance.spec, instance.cells


@pytest.mark.parametrize("status", FAILURES, ids=lambda s: s.name)
def test_a_failing_qp_gives_a_reason_and_no_head(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    import smle.heads.box.algorithms.pdcg as pdcg_module
    import smle.heads.box.algorithms.projection as project_module
    from smle.solvers import QuadraticProgram, solve

    def fail(problem: object, **options: object) -> Solution:
        if isinstance(problem, QuadraticProgram):
            return Solution(status, message="injected")
        return solve(problem, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(project_module, "solve", fail)
    monkeypatch.setattr(pdcg_module, "solve", fail)
    failed = gave_up = 0
    for seed in range(6):
        instance = random_instance(seed)
        projection = project(*_unpack(instance))
        for c, result in enumerate(projection.heads):
            assert result is not None
            if result.head is None:
                failed += 1
                assert result.reason
                assert not projection.succeeded
                head = instance.over.heads[c]
                assert head is not None
                run = run_pdcg(head, HeadProblem.of(*_unpack(instance), c), n_it=3, n_xs=3)
                if run.succeeded:  # never more than one violated row at a time: that is a formula, not a program
                    heads = tuple(run.head if k == c else other for k, other in enumerate(instance.over.heads))
                    verdicts = verify(replace(instance.over, heads=heads), instance.spec, instance.cells)
                    assert all(isinstance(v, Holds) for o, v in verdicts if o.head == c)
                else:
                    assert run.reason
                    gave_up += 1
    assert failed
    assert gave_up
