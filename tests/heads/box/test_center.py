"""Centers obey every rule of their cell, stay near the preferred point, and are refused where there is none."""

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smle.errors import NotCertifiedError, RuleError
from smle.heads.box.algorithms.center import find_center
from smle.regions.cell_search import find_cells
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
    y0, Y = center
    low = np.array([float(v) for v in spec.lower])
    high = np.array([float(v) for v in spec.upper])
    for x in generator.uniform(low, high, (count, len(low))):
        y = y0 + (Y @ x if Y is not None else 0)
        point = [F(float(v)) for v in x]
        if all(cells.polytope(r).contains(point) for r in cells[cell]):
            names = {spec.rules[k].name for r in cells[cell] for k in cells.rules[r]}
            names |= {rule.name for rule in spec.rules if not rule.regions[0].rows}
            assert not names & set(spec.violated(point, [F(float(v)) for v in y]))


def test_the_center_keeps_half_of_the_most_room():
    spec = spec_of("outputs: [u]", ("", "0 <= u <= 1"), ("a >= 0.5", "u >= 0.8"))
    cells = find_cells(spec)
    assert find_center(spec, cells, 0)[0][0] == pytest.approx(0.85, abs=0.01)
    assert find_center(spec, cells, 1, prefer=[2.0])[0][0] == pytest.approx(0.75, abs=0.01)


def test_it_stays_near_the_preferred_point():
    spec = spec_of("outputs: [u, v]", ("", "0 <= u <= 1 and u + v <= 3 and v >= -50"))
    cells = find_cells(spec)
    y0, Y = find_center(spec, cells, 0, prefer=[0.3, 1.0])
    assert Y is None
    assert y0 == pytest.approx([0.3, 1.0])


def test_affine_where_rules_mention_inputs():
    spec = spec_of("outputs: [dose]", ("", "dose <= 0.5 * w + 1"), ("", "dose >= 0.4 * w"))
    cells = find_cells(spec)
    center = find_center(spec, cells, 0)
    assert center[1] is not None
    holds_everywhere(spec, cells, 0, center, np.random.default_rng(0))


def test_mixtures_of_literals_where_no_single_one_works():
    # Neither literal holds on the whole domain; under equal weights the clause reads u <= 0.5.
    spec = spec_of("outputs: [u]", ("", "u <= a or u <= 1 - a"), ("", "0.2 <= u"))
    cells = find_cells(spec)
    center = find_center(spec, cells, 0, prefer=[0.3])
    holds_everywhere(spec, cells, 0, center, np.random.default_rng(0))


def test_labels_prefer_what_the_data_prefers():
    spec = spec_of("labels: [cat, dog, car]", ("", "at_most_one(cat, dog, car)"))
    y0, _ = find_center(spec, find_cells(spec), 0, prefer=[-2, 3, 1])
    assert y0.tolist() == [-2, 3, -1]


@pytest.mark.parametrize(
    "rules",
    [
        [("", "u <= 0"), ("", "u >= 1")],
        [("", "u <= v"), ("", "v <= u")],
        [("", "u >= a and u >= 1 - a"), ("", "u <= a + 0.2 or u <= 1.2 - a")],
    ],
)
def test_what_has_no_center_is_refused(rules):
    spec = spec_of("outputs: [u, v]", *rules)
    with pytest.raises(NotCertifiedError, match="under the rules 'r0', 'r1' where they are active together"):
        find_center(spec, find_cells(spec), 0)


def test_bad_arguments():
    spec = spec_of("outputs: [u]", ("", "u <= 0"))
    with pytest.raises(ValueError, match="finite numbers in prefer"):
        find_center(spec, find_cells(spec), 0, prefer=[float("nan")])


def test_many_exclusions_are_fast():
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, 1000, (300_000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    rule = Rule("exclusions", (Polytope(),), CNF((), pairs), None, "")
    labels = tuple(Label(f"l{i}") for i in range(1000))
    spec = Specification((NumericInput("x", F(0), F(1)),), labels, (rule,))
    cells = find_cells(spec)
    start = time.process_time()
    y0, _ = find_center(spec, cells, 0, prefer=generator.normal(size=1000))
    assert time.process_time() - start < 5
    assert (y0 >= 0).any()
    assert not (y0[pairs] >= 0).all(axis=1).any()


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
    assert (center[0][7:10] > 0).any()
    holds_everywhere(spec, cells, 0, center, np.random.default_rng(0), count=4)


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
        except NotCertifiedError:
            continue
        holds_everywhere(spec, cells, cell, center, generator, count=60)
