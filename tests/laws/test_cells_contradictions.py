"""Reported conflicts are real and minimal, and nothing contradictory goes unreported; brute force in rationals."""

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smle.advice.examine import diagnose_arrays as diagnose
from smle.regions.consistency import Consistency
from smle.regions.decide import Decider, HalfSpace, eliminate
from smle.rules import CNF, Clause, Literal, Number, NumericInput, Polytope, Row, Rule, Specification

F = Fraction
small = st.integers(-3, 3).map(F)
GRID = [F(k, 2) for k in range(-11, 12)]


@st.composite
def literals(draw, x_terms):
    slope = draw(st.sampled_from([F(0), F(0), F(1), F(-1)])) if x_terms else F(0)
    return Literal(
        ((0, draw(st.sampled_from([F(1), F(-1)]))),), ((0, slope),) if slope else (), draw(small), draw(st.booleans())
    )


@st.composite
def specifications(draw, *, x_terms=True):
    """One input in [-2, 2], one output: at a given x every question about y is one about points of a line."""

    def rule(i):
        rows = draw(
            st.lists(
                st.builds(
                    Row, st.sampled_from([((0, F(1)),), ((0, F(-1)),)]), small.map(lambda v: v / 2), st.booleans()
                ),
                max_size=2,
            )
        )
        clauses = draw(
            st.lists(
                st.lists(literals(x_terms), min_size=1, max_size=2).map(lambda ls: Clause(tuple(ls))),
                min_size=1,
                max_size=2,
            )
        )
        return Rule(f"r{i}", (Polytope(tuple(rows)),), CNF(tuple(clauses)), "", "")

    rules = tuple(rule(i) for i in range(draw(st.integers(1, 4))))
    return Specification((NumericInput("x", F(-2), F(2)),), (Number("y"),), rules)


def answer_exists(spec, x, rules):
    """Try all borders of literals, the points between them and beyond."""
    cnfs = [spec.rules[r].requirement for r in rules]
    borders = sorted(
        {
            (lit.bound - sum((v * x for _, v in lit.inputs), F(0))) / lit.outputs[0][1]
            for cnf in cnfs
            for clause in cnf.clauses
            for lit in clause.literals
        }
    )
    if not borders:
        return True
    candidates = [borders[0] - 1, borders[-1] + 1, *borders]
    candidates += [(a + b) / 2 for a, b in itertools.pairwise(borders)]
    return any(all(cnf.holds([y], [x]) for cnf in cnfs) for y in candidates)


def inputs(spec):
    ends = {F(-2), F(2), *(row.bound / row.coefficients[0][1] for rule in spec.rules for row in rule.regions[0].rows)}
    ends |= {a + F(k, 64) for a in list(ends) for k in (-1, 1)} | {F(k, 16) for k in range(-32, 33)}
    return sorted(x for x in ends if -2 <= x <= 2)


@settings(max_examples=70, deadline=None)
@given(specifications())
def test_conflicts_are_real_minimal_and_complete(spec):
    index = {rule.name: r for r, rule in enumerate(spec.rules)}
    found = [f for f in diagnose(spec).findings if f.kind == "contradiction"]
    for finding in found:
        rules = [index[name] for name in finding.rules]
        (x,) = finding.witness
        assert all(spec.rules[r].regions[0].contains([x]) for r in rules)
        assert not answer_exists(spec, x, rules)
        for r in rules:
            assert answer_exists(spec, x, [k for k in rules if k != r])
    if not found:
        for x in inputs(spec)[::2]:
            active = [r for r, rule in enumerate(spec.rules) if rule.regions[0].contains([x])]
            assert answer_exists(spec, x, active)


@settings(max_examples=80, deadline=None)
@given(specifications(x_terms=False))
def test_pinned_rules_leave_no_open_interval(spec):
    consistency = Consistency(spec)
    rules = list(range(len(spec.rules)))
    if consistency.satisfiable_at((F(0),), rules) is None:
        return
    pinned = consistency.pinned(rules)
    cnfs = [rule.requirement for rule in spec.rules]
    borders = sorted({lit.bound / lit.outputs[0][1] for cnf in cnfs for c in cnf.clauses for lit in c.literals})
    between = [(a + b) / 2 for a, b in itertools.pairwise(borders)] + [borders[0] - 1, borders[-1] + 1]
    roomy = any(all(cnf.holds([y], [F(0)]) for cnf in cnfs) for y in between)
    assert (pinned is None) == roomy


@settings(max_examples=50, deadline=None)
@given(specifications())
def test_redundant_rules_change_nothing(spec):
    consistency = Consistency(spec)
    alone = {spec.violated([x], [y]) for x in inputs(spec)[::4] for y in GRID}
    for r in range(len(spec.rules)):
        others = [k for k in range(len(spec.rules)) if k != r]
        reasons = consistency.implied_by_others(r, others)
        assert reasons is None or (spec.rules[r].name,) not in alone
        if reasons is not None:
            assert consistency.implied_by_others(r, reasons) is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(small, small, small, small, st.booleans()), min_size=1, max_size=6), st.integers(0, 1000))
def test_projection_keeps_exactly_the_inputs_with_an_answer(rows, seed):
    spaces = [
        HalfSpace(tuple((i, v) for i, v in enumerate(form) if v), bound, strict)
        for *form, bound, strict in rows
        if any(form)
    ]
    shadow = eliminate(spaces, lambda i: i == 2)
    constants = list(_constants(spaces))
    spec = Specification((NumericInput("a", F(-4), F(4)), NumericInput("b", F(-4), F(4))), (Number("y"),), ())
    decider = Decider(spec)
    generator = np.random.default_rng(seed)
    for a, b in generator.integers(-8, 9, (20, 2)).tolist():
        point = (F(a, 2), F(b, 2))
        fixed = [HalfSpace(((i, s),), s * v) for i, v in enumerate(point) for s in (F(1), F(-1))]
        exists = decider.find([*fixed, *spaces]) is not None
        assert exists == (all(row.holds((*point, F(0))) for row in shadow) and all(constants))


def _constants(spaces):
    """Pairs of rows over y alone may contradict each other: such a projection is empty without a row left."""
    ups = [r for r in spaces if dict(r.coefficients).get(2, 0) > 0]
    downs = [r for r in spaces if dict(r.coefficients).get(2, 0) < 0]
    for up in ups:
        for down in downs:
            p, q = dict(up.coefficients), dict(down.coefficients)
            total = {k: p.get(k, F(0)) / p[2] - q.get(k, F(0)) / q[2] for k in {*p, *q}}
            if not any(total.values()):
                bound = up.bound / p[2] - down.bound / q[2]
                yield bound > 0 if up.strict or down.strict else bound >= 0
