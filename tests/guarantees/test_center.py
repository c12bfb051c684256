"""Centers leave room in every clause, stay near the preferred point, and refuse what has none."""

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smle.errors import ContradictionError, RuleError
from smle.guarantees.box.center import find_center
from smle.guarantees.regions.search import find_cells
from smle.rules import CNF, Label, NumericInput, Polytope, Rule, Specification

F = Fraction


def spec_of(outputs, *rules, inputs="{a: [0, 1], w: [0, 100]}"):
    lines = [f"inputs: {inputs}", outputs, "rules:"]
    lines += [
        f"  - {{name: r{i}, when: '{when}', then: '{then}'}}" if when else f"  - {{name: r{i}, then: '{then}'}}"
        for i, (when, then) in enumerate(rules)
    ]
    return Specification.from_yaml("\n".join(lines) + "\n")


def holds_everywhere(spec, cells, cell, center, generator, count=200):
    """Sample inputs of a cell; the center must satisfy every rule that is active there."""
    low = np.array([float(v) for v in spec.lower])
    high = np.array([float(v) for v in spec.upper])
    for x in generator.uniform(low, high, (count, len(low))):
        y = center.y0 + (center.Y @ x if center.Y is not None else 0)
        point = [F(float(v)) for v in x]
        if all(cells.polytope(r).contains(point) for r in cells[cell]):
            names = {spec.rules[k].name for r in cells[cell] for k in cells.rules[r]}
            names |= {rule.name for rule in spec.rules if not rule.regions[0].rows}
            assert not names & set(spec.violated(point, [F(float(v)) for v in y]))


def test_the_center_has_the_most_room():
    spec = spec_of("outputs: [u]", ("", "0 <= u <= 1"), ("a >= 0.5", "u >= 0.8"))
    cells = find_cells(spec)
    assert find_center(spec, cells, 0).y0[0] == pytest.approx(0.9, abs=0.02)
    assert find_center(spec, cells, 1).y0[0] == pytest.approx(0.5, abs=0.02)


def test_it_stays_near_the_preferred_point():
    spec = spec_of("outputs: [u, v]", ("", "0 <= u <= 1 and u + v <= 3 and v >= -50"))
    cells = find_cells(spec)
    inside = find_center(spec, cells, 0, prefer=[0.2, 1.0])
    assert inside.slacks.min() > 0
    near = find_center(spec, cells, 0, prefer=[0.2, 1.0], share=0.99)
    assert np.abs(near.y0 - [0.2, 1.0]).max() < 0.02
    outside = find_center(spec, cells, 0, prefer=[7.0, 0.0], share=0.99)
    assert 0.9 < outside.y0[0] < 1


def test_affine_where_rules_mention_inputs():
    spec = spec_of("outputs: [dose]", ("", "dose <= 0.5 * w + 1"), ("", "dose >= 0.4 * w"))
    cells = find_cells(spec)
    center = find_center(spec, cells, 0)
    assert center.Y is not None
    assert center.slacks.min() > 0.05
    holds_everywhere(spec, cells, 0, center, np.random.default_rng(0))


def test_mixtures_of_literals_where_no_single_one_works():
    # Neither literal holds on the whole domain; under equal weights the clause reads u <= 0.5.
    spec = spec_of("outputs: [u]", ("", "u <= a or u <= 1 - a"), ("", "u >= -1"))
    cells = find_cells(spec)
    center = find_center(spec, cells, 0)
    assert center.slacks.min() > 0
    holds_everywhere(spec, cells, 0, center, np.random.default_rng(0))


def test_slacks_are_the_room_of_clauses_and_exclusions():
    spec = spec_of("labels: [cat, dog, animal]", ("", "at_most_one(cat, dog)"), ("", "dog implies animal"))
    center = find_center(spec, find_cells(spec), 0)
    assert len(center.slacks) == 2
    assert (center.slacks > 0).all()
    # At (-1, -1) the half-space y_0 + y_1 < 0 is farther away than either label's own: its room is 1.
    exclusive = spec_of("labels: [cat, dog]", ("", "at_most_one(cat, dog)"))
    pair = find_center(exclusive, find_cells(exclusive), 0, prefer=[-1, -1])
    y = pair.y0
    assert pair.slacks == pytest.approx([(y @ y) / -y.sum()])


def test_labels_prefer_what_the_data_prefers():
    spec = spec_of("labels: [cat, dog, car]", ("", "at_most_one(cat, dog, car)"))
    center = find_center(spec, find_cells(spec), 0, prefer=[-2, 3, 1])
    assert center.y0[1] > 0
    assert center.y0[0] < 0
    assert center.y0[2] < 0


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([("", "u <= 0"), ("", "u >= 1")], "'r0', 'r1'"),
        ([("", "u <= v"), ("", "v <= u")], "Leave a band"),
        ([("", "u >= a and u >= 1 - a"), ("", "u <= a + 0.2 or u <= 1.2 - a")], "No single affine answer"),
    ],
)
def test_what_has_no_center_is_refused(rules, message):
    spec = spec_of("outputs: [u, v]", *rules)
    with pytest.raises(ContradictionError, match=message):
        find_center(spec, find_cells(spec), 0)


def test_bad_arguments():
    spec = spec_of("outputs: [u]", ("", "u <= 0"))
    with pytest.raises(ValueError, match="finite numbers in prefer"):
        find_center(spec, find_cells(spec), 0, prefer=[float("nan")])
    with pytest.raises(ValueError, match="share"):
        find_center(spec, find_cells(spec), 0, share=1.0)


def test_many_exclusions_are_fast():
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, 1000, (300_000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    rule = Rule("exclusions", (Polytope(),), CNF((), pairs), None, "")
    labels = tuple(Label(f"l{i}") for i in range(1000))
    spec = Specification((NumericInput("x", F(0), F(1)),), labels, (rule,))
    center = find_center(spec, find_cells(spec), 0, prefer=generator.normal(size=1000))
    on = center.y0 >= 0
    assert on.any()
    assert not (on[pairs[:, 0]] & on[pairs[:, 1]]).any()
    assert center.slacks.min() > 0


@pytest.mark.parametrize("prefers", [False, True])
def test_hierarchies_of_labels_are_fast(prefers):
    m = 300
    rules = [("", f"y{i} implies y{i // 2}") for i in range(1, m)] + [("a > 0.5", "at_least_one(y7, y8, y9)")]
    spec = spec_of(f"labels: [{', '.join(f'y{i}' for i in range(m))}]", *rules)
    cells = find_cells(spec)
    prefer = np.random.default_rng(0).normal(size=m) if prefers else None
    start = time.process_time()
    center = find_center(spec, cells, 0, prefer=prefer)
    assert time.process_time() - start < 10
    assert center.slacks.min() > 0.05
    assert (center.y0[7:10] > 0).any()


LITERALS = ["u <= {0}", "u >= {0}", "v <= {0}", "u + v >= {0}", "u - v <= {0}", "u <= {0} * a", "v >= {0} - 2 * a"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a <= 0.4", "a + w <= 30", "w > 70.1"]),
            st.lists(st.tuples(st.sampled_from(LITERALS), st.integers(-5, 5)), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 1000),
)
def test_centers_satisfy_the_rules(parts, seed):
    rules = [(when, " or ".join(text.format(value) for text, value in literals)) for when, literals in parts]
    try:
        spec = spec_of("outputs: [u, v]", *rules)
    except RuleError:  # asks nothing
        assume(False)
    cells = find_cells(spec)
    generator = np.random.default_rng(seed)
    for cell in range(len(cells)):
        try:
            center = find_center(spec, cells, cell, prefer=generator.normal(0, 3, 2))
        except ContradictionError:
            continue
        assert center.slacks.min(initial=1) > 0
        holds_everywhere(spec, cells, cell, center, generator, count=60)
