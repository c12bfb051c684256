"""Verdicts in the user's units, and the corner cases of verification."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from smle.heads.box.algorithms.replay import replayed
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.heads.box.proof.verdict import Holds, NotProved, Obligation, Unknown, Verdicts, Violated
from smle.heads.box.proof.verify import verify
from smle.regions.cell_search import find_cells
from smle.regions.cells import Cells
from smle.rules import CNF, Categorical, Clause, Literal, Number, NumericInput, Polytope, Row, Rule, Specification

ONE = Fraction(1)


def at_most(bound: str, output: int = 0, inputs: tuple[tuple[int, Fraction], ...] = ()) -> Literal:
    return Literal(((output, ONE),), inputs, Fraction(bound))


def at_least(bound: str, output: int = 0) -> Literal:
    return Literal(((output, -ONE),), (), -Fraction(bound))


def specification(*clauses: Clause, rows: tuple[Row, ...] = (), outputs: int = 1) -> tuple[Specification, Cells]:
    region = Polytope(rows)
    spec = Specification(
        (NumericInput("distance", Fraction(0), Fraction(200)), NumericInput("speed", Fraction(0), Fraction(40))),
        tuple(Number(f"y{i}") for i in range(outputs)),
        (Rule("rule", (region,), CNF(clauses), "..." if rows else None, "..."),),
    )
    cells = Cells(
        rows=region.rows,
        regions=(tuple(range(len(region.rows))),),
        rules=((0,),),
        gated=(0,) if rows else (),
        active=((0,), ()) if rows else ((),),
        conflicts=(),
        implications=(),
    )
    return spec, cells


def one_head(head: Head, *, cells: int = 1, bounds: Bounds | None = None) -> FrozenHeads:
    n = head.W.shape[1]
    box = Bounds(np.zeros(n), np.ones(n)) if bounds is None else bounds
    return FrozenHeads(box, (head, *[None] * (cells - 1)))


def only(verdicts: Verdicts) -> Holds | NotProved | Unknown | Violated:
    assert len(verdicts) == 1
    return verdicts.items[0][1]


def test_a_head_that_touches_the_bound_is_not_proved() -> None:
    """Rounding may carry the deployed output over the bound, so a margin of zero is no proof."""
    spec, cells = specification(Clause((at_most("1"),)))
    assert isinstance(only(verify(one_head(Head([[1.0]], [0.0])), spec, cells)), NotProved)
    assert isinstance(only(verify(one_head(Head([[0.999]], [0.0])), spec, cells)), Holds)


def test_a_region_gives_multipliers_for_its_rows() -> None:
    near = Row(((0, ONE),), Fraction(10))
    dose = at_most("0", inputs=((0, Fraction(-1, 2)),))
    spec, cells = specification(Clause((dose,)), rows=(Row(((0, -ONE),), Fraction(-4)), near))
    verdict = only(verify(one_head(Head([[1.0]], [0.5]), cells=2), spec, cells))
    assert isinstance(verdict, Holds)  # y <= 1.5 <= distance / 2 for distance >= 4
    assert verdict.margin == pytest.approx(0.5, rel=1e-4)
    row_numbers = [r for r, _ in verdict.multipliers.rows]
    assert [cells.rows[r].bound for r in row_numbers] == [Fraction(-4)]


def test_an_empty_region_asks_for_nothing() -> None:
    rows = (Row(((0, ONE), (1, ONE)), Fraction(-1)), Row(((0, ONE), (1, -ONE)), Fraction(3)))
    spec, cells = specification(Clause((at_most("0"),)), rows=rows)
    verdict = only(verify(one_head(Head([[1.0]], [1.0]), cells=2), spec, cells))
    assert isinstance(verdict, Holds)
    assert verdict.multipliers.empty
    assert verdict.multipliers.rows


def test_one_hot_columns_add_up_to_one() -> None:
    spec = Specification(
        (Categorical("road", ("dry", "wet", "icy")),),
        (Number("y"),),
        (Rule("rule", (Polytope(),), CNF((Clause((at_most("3/2"),)),)), None, "..."),),
    )
    cells = Cells((), ((),), ((0,),), (), ((),), (), ())
    over = one_head(Head([[0.0]], [0.0], V=[[1.0, 1.0, 1.0]]))
    verdict = only(verify(over, spec, cells))
    assert isinstance(verdict, Holds)  # over the box y reaches 3, with exactly one category only 1
    assert verdict.margin == pytest.approx(0.5, rel=1e-4)
    assert [r for r, _ in verdict.multipliers.rows] == [0]


def test_a_head_that_may_overflow_is_unknown() -> None:
    spec, cells = specification(Clause((at_least("0"),)))
    verdict = only(verify(one_head(Head([[3e38, 3e38]], [0.0])), spec, cells))
    assert isinstance(verdict, Unknown)
    assert "overflow" in verdict.reason


def test_a_fallback_that_breaks_the_rule_is_not_proved() -> None:
    spec, cells = specification(Clause((at_most("1"),)))
    safe, broken = (Head([[0.5]], [0.0], fallback=[value]) for value in (1.0, 1.5))
    assert isinstance(only(verify(one_head(safe), spec, cells)), Holds)
    verdict = only(verify(one_head(broken), spec, cells))
    assert isinstance(verdict, NotProved)
    assert np.isnan(verdict.z).all()


def test_an_exclusion_block_reports_pairs() -> None:
    pairs = np.array([[0, 1], [1, 2]])
    spec = Specification(
        (NumericInput("x", Fraction(0), Fraction(1)),),
        tuple(Number(f"y{i}") for i in range(3)),
        (Rule("rule", (Polytope(),), CNF((), pairs), None, "..."),),
    )
    cells = Cells((), ((),), ((0,),), (), ((),), (), ())
    over = one_head(Head([[1.0], [-1.0], [0.0]], [-0.6, 0.4, 1.0]))
    verdicts = verify(over, spec, cells)
    (block,) = verdicts.exclusions
    assert block.proved.tolist() == [True, False]
    assert block.weights.sum(axis=1) == pytest.approx(1.0)
    assert not verdicts.hold
    assert repr(verdicts).startswith("Verdicts(1 of 2 proved")
    assert verdicts.margin < 0


def test_no_verdict_has_a_truth_value() -> None:
    spec, cells = specification(Clause((at_most("100"),)))
    verdicts = verify(one_head(Head([[1.0]], [0.0])), spec, cells)
    for item in (only(verdicts), verdicts, Unknown("why")):
        with pytest.raises(TypeError):
            bool(item)


def program(value: float) -> SimpleNamespace:
    """A deployed program that answers one number everywhere."""

    def ask(X):
        return X, np.full((len(X), 1), value)

    return SimpleNamespace(dtype=np.float32, ask=ask, pull=lambda X, weights: None)


def test_replay_tells_violations_from_corners_that_are_never_reached() -> None:
    spec, cells = specification(Clause((at_most("40"),)))
    verdicts = verify(one_head(Head([[20.0, -5.0]], [30.0])), spec, cells)
    verdict = only(replayed(verdicts, spec, program(50.0)))
    assert isinstance(verdict, Violated)
    assert verdict.excess == pytest.approx(10.0)
    assert isinstance(only(replayed(verdicts, spec, program(40.0))), NotProved)
    assert isinstance(only(replayed(verdicts, spec, program(50.0), cell_of=lambda X: np.ones(len(X)))), NotProved)


def test_replay_reads_regions_as_the_guard_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.7 in float32 is less than seven tenths, but the guard reads it as 0.7: a rule for x < 0.7 is not on."""
    monkeypatch.setattr("smle.heads.box.algorithms.replay._RULES", 0)  # without a search nearby
    spec = Specification.build(inputs={"x": (0, 1)}, outputs=["y"], rules={"r": ("x < 0.7", "y <= 0")})
    for x, kind in ((0.7, NotProved), (0.69, Violated)):
        reached = NotProved(np.array([x]), np.array([0.0]), -1.0)
        verdicts = Verdicts(((Obligation(0, 0, 0, None), reached),), ())
        assert isinstance(only(replayed(verdicts, spec, program(1.0))), kind)


def test_a_violation_away_from_the_corner_is_searched() -> None:
    spec = Specification.build(inputs={"x": (0, 1)}, outputs=["y"], rules={"r": "y <= 0"})
    verdicts = Verdicts(((Obligation(0, 0, 0, None), NotProved(np.array([0.0]), np.array([0.0]), -1.0)),), ())
    bump = SimpleNamespace(dtype=np.float32, ask=lambda X: (X, np.where(X > 0.6, 1.0, -1.0)), pull=lambda X, w: None)
    assert isinstance(only(replayed(verdicts, spec, bump)), Violated)


def test_exclusions_that_are_not_proved_are_failures_with_an_input() -> None:
    spec = Specification.build(
        inputs={"x": (0, 1)}, labels=["a", "b", "c"], rules={"r": "logit(a) <= 9 and at_most_one(a, b, c)"}
    )
    cells = find_cells(spec)
    head = Head([[1.0], [1.0], [-3.0]], [0.0, 0.5, -0.5])
    verdicts = verify(one_head(head), spec, cells)
    ((obligation, verdict),) = verdicts.failures()
    assert obligation == Obligation(0, 0, 1, 0), "the pair (a, b) follows the one clause"
    assert isinstance(verdict, NotProved)
    y = head.W @ verdict.z + head.b
    assert y[0] >= 0
    assert y[1] >= 0
    assert verdict.margin == pytest.approx(-1.0)
    asked = SimpleNamespace(dtype=np.float32, ask=lambda X: (X, np.ones((len(X), 3))), pull=lambda X, w: None)
    ((_, real),) = replayed(verdicts, spec, asked).failures()
    assert isinstance(real, Violated)


def test_failures_are_sorted_worst_first() -> None:
    spec, cells = specification(Clause((at_most("4"),)), Clause((at_most("1"),)), Clause((at_most("9"),)))
    verdicts = verify(one_head(Head([[5.0]], [0.0])), spec, cells)
    assert [o for o, _ in verdicts.failures()] == [Obligation(0, 0, 1, 0), Obligation(0, 0, 0, 0)]


def test_heads_and_cells_must_match() -> None:
    spec, cells = specification(Clause((at_most("4"),)))
    with pytest.raises(ValueError, match="one head per cell"):
        verify(FrozenHeads(Bounds([0.0], [1.0]), ()), spec, cells)
    with pytest.raises(ValueError, match="Expected a head"):
        verify(FrozenHeads(Bounds([0.0], [1.0]), (None,)), spec, cells)


def test_a_witness_is_a_real_point_of_the_box_and_the_region() -> None:
    """Constant bounds and no inputs in the clause: x plays no part, yet the witness names one inside the region."""
    for rows in ((), (Row(((0, ONE), (1, ONE)), Fraction(30)), Row(((0, -ONE), (1, -ONE)), Fraction(-25)))):
        spec, cells = specification(Clause((at_most("40"),)), rows=rows)
        bounds = Bounds([-3.0, -2.0], [2.0, 5.0])
        over = one_head(Head([[20.0, -5.0]], [30.0]), cells=2 if rows else 1, bounds=bounds)
        verdict = only(verify(over, spec, cells))
        assert isinstance(verdict, NotProved)
        assert verdict.z == pytest.approx([2.0, -2.0])
        assert np.isfinite(verdict.x).all()
        assert all(sum(float(q) * verdict.x[i] for i, q in row.coefficients) <= float(row.bound) + 1e-3 for row in rows)
