"""Projection on rules that can be checked by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from smle.heads.box.algorithms.pdcg import Memory
from smle.heads.box.algorithms.projection import project
from smle.heads.box.algorithms.refitting import Samples, refit
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.heads.box.proof.verify import verify
from smle.regions.cells import Cells
from smle.rules import CNF, Clause, Literal, Number, NumericInput, Polytope, Rule, Specification

ONE = Fraction(1)
WHOLE = Cells((), ((),), ((0,),), (), ((),), (), ())


def specification(requirement: CNF, outputs: int = 1) -> Specification:
    return Specification(
        (NumericInput("x", Fraction(-1), Fraction(1)),),
        tuple(Number(f"y{i}") for i in range(outputs)),
        (Rule("rule", (Polytope(),), requirement, None, "..."),),
    )


def between(low: int, high: int) -> CNF:
    return CNF(
        (Clause((Literal(((0, ONE),), (), Fraction(high)),)), Clause((Literal(((0, -ONE),), (), Fraction(-low)),)))
    )


def test_margin_is_kept_free() -> None:
    spec = specification(between(0, 1))
    over = FrozenHeads(Bounds(-np.ones(4), np.ones(4)), (Head(np.ones((1, 4)), [0.0]),))
    result = project(over, spec, WHOLE, margin=0.1)
    assert result.succeeded
    assert result.verdicts.margin > 0.1


def test_a_contradiction_is_an_outcome_with_a_reason() -> None:
    spec = specification(between(2, 1))
    over = FrozenHeads(Bounds([0.0], [1.0]), (Head([[2.0]], [1.0]),))
    result = project(over, spec, WHOLE)
    assert not result.succeeded
    assert result.heads[0] is not None
    assert "no output was found" in result.heads[0].reason
    assert result.over.heads[0] is over.heads[0]


def test_disjoint_literals_go_to_the_nearer_side() -> None:
    """y <= 0 or y >= 10: half of each is 5 <= 0, so a single literal has to be chosen."""
    clause = Clause((Literal(((0, ONE),), (), Fraction(0)), Literal(((0, -ONE),), (), Fraction(-10))))
    spec = specification(CNF((clause,)))
    for start, expected in ((2.0, 0.0), (8.0, 10.0)):
        over = FrozenHeads(Bounds([-1.0], [1.0]), (Head([[0.1]], [start]),))
        result = project(over, spec, WHOLE)
        assert result.succeeded
        head = result.over.heads[0]
        assert head is not None
        assert abs(head.b[0] - expected) < 0.2


def test_exclusions_are_projected_however_many() -> None:
    rng = np.random.default_rng(0)
    labels = 40
    pairs = np.stack(np.triu_indices(labels, 1), axis=1)
    spec = specification(CNF((), pairs), labels)
    head = Head(rng.normal(size=(labels, 6)) * 0.3, rng.normal(size=labels) - 1.0)
    over = FrozenHeads(Bounds(-np.ones(6), np.ones(6)), (head,))
    assert len(pairs) > 500
    assert not verify(over, spec, WHOLE).hold
    result = project(over, spec, WHOLE)
    assert result.succeeded


def test_a_broken_fallback_is_replaced() -> None:
    spec = specification(between(0, 1))
    over = FrozenHeads(Bounds([0.0], [1.0]), (Head([[2.0]], [1.0], fallback=[5.0]),))
    result = project(over, spec, WHOLE)
    assert result.succeeded
    head = result.over.heads[0]
    assert head is not None
    assert head.fallback is not None
    assert 0 <= head.fallback[0] <= 1


def test_memory_forgets_the_oldest_first() -> None:
    memory = Memory(2)
    for value in (1.0, 2.0, 3.0):
        memory.append(np.array([value]), np.array([value]), 0)
    assert [x[0] for x, _, _ in memory.points] == [2.0, 3.0]


def test_refit_is_clipped_least_squares_in_one_dimension() -> None:
    """Targets 2 z, rule y <= 1 on z in [0, 1]: the best safe line ends at 1."""
    spec = specification(CNF((Clause((Literal(((0, ONE),), (), ONE),)),)))
    over = FrozenHeads(Bounds([0.0], [1.0]), (Head([[0.0]], [0.0]),))
    z = np.linspace(0, 1, 101)[:, None]
    data = Samples(z, np.zeros((101, 1)), np.zeros(101, dtype=np.intp), 2 * z)
    found = refit(over, spec, WHOLE, samples=data)
    head = found.heads[0]
    assert head is not None
    assert verify(found, spec, WHOLE).hold
    assert float(head.W[0, 0] + head.b[0]) == pytest.approx(1.0, abs=1e-4)
    # Least squares of 2 z among lines through (1, 1): slope minimizes sum ((a - 2) z + 1 - a)^2.
    best = -((1 - z[:, 0]) @ (2 * z[:, 0] - 1)) / ((1 - z[:, 0]) @ (1 - z[:, 0]))
    assert head.W[0, 0] == pytest.approx(best, abs=1e-2)


def test_samples_must_have_equal_lengths() -> None:
    with pytest.raises(ValueError, match="same number of rows"):
        Samples(np.zeros((2, 1)), np.zeros((3, 1)), np.zeros(2, dtype=np.intp), np.zeros((2, 1)))
