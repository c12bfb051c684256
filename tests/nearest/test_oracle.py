"""The nearest allowed outputs: allowed, nearest, fast."""

import itertools
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smle.errors import DataError, RuleError
from smle.nearest import unions
from smle.nearest.oracle import EPSILON, common_units, most_likely_labels, nearest_outputs, to_scores, weights_of
from smle.rules import CNF, Label, NumericInput, Polytope, Rule, Specification
from smle.rules.membership import broken
from smle.solvers import QuadraticProgram, Status, solve
from support.scip import solve_miqp

F = Fraction


def read(outputs, *rules, inputs="{a: [0, 1], b: [0, 1]}"):
    lines = [f"inputs: {inputs}", outputs, "rules:"]
    for i, (when, then) in enumerate(rules):
        condition = f"when: '{when}', " if when else ""
        lines.append(f"  - {{name: r{i}, {condition}then: '{then}'}}")
    return Specification.from_yaml("\n".join(lines) + "\n")


def test_allowed_outputs_do_not_move():
    spec = read("outputs: [u, v]", ("a >= 0.1", "u <= 0.3 and u + v <= 1"))
    X, Y = np.array([[0.5, 0], [0.0, 0], [0.1, 0]]), np.array([[0.3, 0.7], [9.0, 9.0], [0.2, -0.1]])
    assert (nearest_outputs(spec, X, Y) == Y).all()


def test_ends_are_met_exactly():
    spec = read("outputs: [u]", ("", "0.1 <= u < 0.3"))
    result = nearest_outputs(spec, np.zeros((2, 2)), np.array([[5.0], [-5.0]]))
    assert F(result[0, 0]) < F(3, 10)
    assert F(result[1, 0]) >= F(1, 10)
    assert result[:, 0] == pytest.approx([0.3, 0.1], abs=1e-15)


def test_regions_are_read_as_the_guard_reads_them():
    spec = read("outputs: [u]", ("a <= 0.1", "u <= 0"))
    assert F(0.1) > F(1, 10)
    X = np.array([[0.1, 0], [np.nextafter(0.1, 1), 0]])
    assert nearest_outputs(spec, X, np.ones((2, 1)))[:, 0].tolist() == [0, 1]
    assert nearest_outputs(spec, X.astype(np.float32), np.ones((2, 1)))[:, 0].tolist() == [0, 0]


def test_numbers_of_similar_spread_have_one_unit_and_others_their_own():
    labels = np.array([False, False, True, False, False])
    units = common_units([0.5, 2.0, 7.0, 3000.0, 800.0], labels)
    assert units[0] == units[1] == pytest.approx(1.0)
    assert units[2] == 7.0
    assert units[3] == units[4] == pytest.approx(np.sqrt(3000 * 800))
    shared = Specification.from_yaml("inputs: {x: [0, 1]}\noutputs: [a, b]\nrules: [{name: sum, then: a + b <= 1}]")
    # One unit: both move by the same. Units a thousandfold apart: the large one moves.
    assert nearest_outputs(shared, np.zeros((1, 1)), [[1.0, 1.0]], scale=[1, 3]) == pytest.approx(
        np.array([[0.5, 0.5]])
    )
    far = nearest_outputs(shared, np.zeros((1, 1)), [[1.0, 1.0]], scale=[1, 1000])
    assert far == pytest.approx(np.array([[1.0, 0.0]]), abs=1e-5)


def test_rows_without_allowed_output_are_nan():
    spec = read("outputs: [u, v]", ("a >= 0.5", "u + v <= 0 and u + v >= 1"))
    result = nearest_outputs(spec, np.array([[0.7, 0], [0.2, 0]]), np.ones((2, 2)))
    assert np.isnan(result[0]).all()
    assert (result[1] == 1).all()


def test_choices_follow_the_rule():
    spec = read(
        "choices: {advice: [clear, left, right]}", ("a >= 0.5", "advice != clear"), ("b >= 0.5", "advice == right")
    )
    X, Y = np.array([[0.9, 0], [0.9, 0.9], [0, 0]]), np.array([[1.0, 0.2, 0], [1, 0, 0], [1, 0, 0]])
    assert nearest_outputs(spec, X, Y).argmax(axis=1).tolist() == [1, 2, 0]


def test_bad_tables():
    spec = read("labels: [cat, dog]", ("", "at_most_one(cat, dog)"))
    with pytest.raises(DataError, match="labels between 0 and 1"):
        nearest_outputs(spec, np.zeros((1, 2)), np.array([[3.0, 0]]))
    with pytest.raises(DataError, match="outputs"):
        nearest_outputs(spec, np.zeros((1, 2)), np.zeros((1, 3)))


def test_labels_tied_to_numbers():
    spec = read("outputs: [u]\nlabels: [alarm]", ("", "u <= 1 or alarm"))
    result = nearest_outputs(spec, np.zeros((2, 2)), np.array([[5.0, 0.4], [1.1, 0.0]]))
    assert result[0].tolist() == [5, 1]
    assert result[1] == pytest.approx([1, 0])


LITERALS = ["u <= {0}", "u >= {0} * a", "v <= {0} + b", "u + v >= {0}", "u - 2 * v < {0}", "v > {0}"]
CLAUSE = st.lists(st.tuples(st.sampled_from(LITERALS), st.integers(-3, 3)), min_size=1, max_size=3)


def reference(spec, x, y):
    """Try every choice of literals with the QP solver."""
    clauses = [
        [
            (
                np.array([float(dict(lit.outputs).get(i, 0)) for i in range(2)]),
                float(lit.bound - sum((v * F(float(x[i])) for i, v in lit.inputs), F(0))),
            )
            for lit in clause.literals
        ]
        for rule in spec.rules
        for clause in rule.requirement.clauses
    ]
    best = np.inf
    for choice in itertools.product(*clauses):
        G, h = np.array([g for g, _ in choice]), np.array([b for _, b in choice])
        free = np.full(2, np.inf)
        found = solve(QuadraticProgram(np.eye(2), -y, G, np.full(len(h), -np.inf), h, -free, free), backend="highs")
        if found.status is Status.OPTIMAL and (G @ found.x <= h + 1e-6).all():
            best = min(best, float(((found.x - y) ** 2).sum()))
    return best


@settings(max_examples=40, deadline=None)
@given(st.lists(CLAUSE, min_size=1, max_size=4), st.integers(0, 10_000))
def test_equals_the_best_of_all_choices(clauses, seed):
    text = " and ".join("(" + " or ".join(t.format(v) for t, v in clause) + ")" for clause in clauses)
    try:
        spec = read("outputs: [u, v]", ("", text))
    except RuleError:  # asks nothing, or an equality
        assume(False)
    generator = np.random.default_rng(seed)
    X, Y = generator.uniform(0, 1, (4, 2)), generator.normal(0, 3, (4, 2))
    result = nearest_outputs(spec, X, Y)
    strict = any(lit.strict for c in spec.rules[0].requirement.clauses for lit in c.literals)
    for x, y, found in zip(X, Y, result, strict=True):
        best = reference(spec, x, y)
        if np.isnan(found).any():
            # only the closure may be met: strict literals, or a border that no float hits
            assert best == np.inf or strict
        else:
            assert not spec.violated([F(float(v)) for v in x], [F(float(v)) for v in found])
            assert ((found - y) ** 2).sum() == pytest.approx(best, rel=1e-4, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(0, 14),
    st.lists(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=3), max_size=3),
    st.integers(0, 10_000),
)
@pytest.mark.parametrize("by", ["search", "program"])
def test_labels_equal_brute_force(by, m, count, clauses, seed):
    generator = np.random.default_rng(seed)
    pairs = generator.integers(0, m, (count, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0).astype(np.int32)
    clauses = [[(label % m, on) for label, on in clause] for clause in clauses]
    probabilities = generator.uniform(0, 1, (3, m)).round(2)
    with pytest.MonkeyPatch.context() as patch:
        if by == "program":
            patch.setattr("smle.nearest.label_diagrams._SIZES", ())
            patch.setattr("smle.nearest.label_branches.STEPS", -1)
            patch.setattr("smle.nearest.label_branches._MOST_LITERALS", 0)
        result = most_likely_labels(probabilities, pairs, clauses)
    for p, found in zip(probabilities, result, strict=True):
        best = -np.inf
        for pattern in itertools.product((0, 1), repeat=m):
            if any(pattern[h] and pattern[k] for h, k in pairs):
                continue
            if all(any(pattern[label] == on for label, on in clause) for clause in clauses):
                best = max(best, float(np.array(pattern) @ weights_of(p)))
        if np.isnan(found).any():
            assert best == -np.inf
        else:
            assert not any(found[h] and found[k] for h, k in pairs)
            assert found @ weights_of(p) == pytest.approx(best, abs=1e-5)  # prices have 20 digits


def test_weights_are_the_cross_entropy_with_epsilon():
    p = np.array([0.0, 0.5, 1.0])
    on, off = -np.log(p + EPSILON), -np.log(1 - p + EPSILON)
    assert weights_of(p) == pytest.approx(off - on)


@pytest.mark.parametrize(
    ("then", "limit"),
    [("0 <= u <= 0.3", 10), ("u + 0.3 * v - w <= 0.3 and 2 * u - v <= 1 and u + v + w <= 0.7 and w >= 0.1 * a", 20)],
)
def test_a_hundred_thousand_rows_take_seconds(then, limit):
    spec = read("outputs: [u, v, w]", ("", then), ("a + b <= 1", "v <= 0.2"))
    generator = np.random.default_rng(0)
    X, Y = generator.uniform(0, 1, (100_000, 2)), generator.normal(0, 1, (100_000, 3))
    start = time.process_time()
    result = nearest_outputs(spec, X, Y)
    assert time.process_time() - start < limit
    assert not np.isnan(result).any()
    assert not broken(spec, X, to_scores(spec, result)).any()


def test_bounded_changes():
    names = [f"y{i}" for i in range(12)]
    then = " and ".join(f"abs({p} - {q}) <= 0.5" for p, q in itertools.pairwise(names))
    spec = read(f"outputs: [{', '.join(names)}]", ("", then))
    generator = np.random.default_rng(0)
    X, Y = np.zeros((300, 2)), generator.normal(0, 1, (300, 12))
    result = nearest_outputs(spec, X, Y)
    assert not broken(spec, X, result).any()
    again = nearest_outputs(spec, X, result)
    assert (again == result).all()
    # the direction to the given point makes an obtuse angle with every allowed one
    for other in result[:20]:
        assert ((Y - result) * (other - result)).sum(axis=1).max() < 1e-6


def test_exclusions_with_many_rows():
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, 300, (20_000, 2))
    rule = Rule("exclusions", (Polytope(),), CNF((), pairs[pairs[:, 0] != pairs[:, 1]]), None, "")
    labels = tuple(Label(f"l{i}") for i in range(300))
    spec = Specification((NumericInput("x", F(0), F(1)),), labels, (rule,))
    Y = (generator.uniform(size=(500, 300)) < 0.03).astype(float)
    result = nearest_outputs(spec, np.zeros((500, 1)), Y)
    assert not broken(spec, np.zeros((500, 1)), to_scores(spec, result)).any()
    assert (result <= Y).all()


def many_choices(seed, *, points=4, m=3, clauses=6, literals=3):
    rng = np.random.default_rng(seed)
    k = clauses * literals
    G = rng.normal(size=(k, m))
    G /= np.linalg.norm(G, axis=1, keepdims=True)
    H = np.tile(rng.normal(size=k) - 1.0, (points, 1))
    numbers = np.arange(k).reshape(clauses, literals).tolist()
    return unions.Choices(G, H, tuple(map(tuple, numbers))), rng.normal(0, 2, (points, m))


def by_miqp(choices, y, h):
    """The same as one MIQP with big-M; binaries choose the literals."""
    k, m = choices.G.shape
    big = 100.0
    A = np.zeros((k + len(choices.clauses), m + k))
    A[:k, :m], A[:k, m:] = choices.G, big * np.eye(k)
    for c, clause in enumerate(choices.clauses):
        A[k + c, m + np.array(clause)] = 1.0
    lower = np.concatenate([np.full(k, -np.inf), np.ones(len(choices.clauses))])
    upper = np.concatenate([h - choices.G @ y + big, np.full(len(choices.clauses), np.inf)])
    box = np.concatenate([np.full(m, 50.0), np.ones(k)])
    whole = np.arange(m + k) >= m
    low = np.where(whole, 0.0, -50.0)
    found = solve_miqp(np.where(whole, 0.0, 2.0), np.zeros(m + k), (A, lower, upper), low, box, whole)
    assert found.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return found.objective if found.status is Status.OPTIMAL else np.inf


@pytest.mark.parametrize(("seed", "shared"), [(1, 5_000), (2, 3)])
def test_the_nearest_of_thousands_of_choices_equals_the_miqp(monkeypatch, seed, shared):
    """3^6 choices, together or point by point: the MIQP agrees."""
    monkeypatch.setattr(unions, "SHARED_NODES", shared)
    choices, Y = many_choices(seed)
    points = unions.nearest_in_union(choices, Y)
    room = choices.H - points @ choices.G.T
    assert all((room[:, list(clause)].max(axis=1) >= -1e-8).all() for clause in choices.clauses)
    distance = ((points[0] - Y[0]) ** 2).sum()
    assert distance == pytest.approx(by_miqp(choices, Y[0], choices.H[0]), rel=1e-4, abs=1e-5)


def test_a_search_that_is_cut_off_says_so(monkeypatch):
    """Allowed points come back, with a warning that counts those that may not be the nearest."""
    monkeypatch.setattr(unions, "SHARED_NODES", 12)
    choices, Y = many_choices(1, points=20)
    exact = unions.nearest_in_union(choices, Y)
    monkeypatch.setattr(unions, "MAX_NODES", 3)
    with pytest.warns(UserWarning, match="may not be the nearest") as caught:
        points = unions.nearest_in_union(choices, Y)
    assert "of 20 rows" in str(caught[0].message)
    found = ~np.isnan(points).any(axis=1)
    room = (choices.H - points @ choices.G.T)[found]
    assert all((room[:, list(clause)].max(axis=1) >= -1e-8).all() for clause in choices.clauses)
    farther = ((points - Y) ** 2).sum(axis=1) - ((exact - Y) ** 2).sum(axis=1)
    assert (farther[found] >= -1e-9).all()
    assert (farther[found] > 1e-6).any()


LABELS = "outputs: [u]\nlabels: [p, q, r]"
TIED = ["u <= 1 or p", "not (p and q)", "not q or r", "u >= -1 or not r", "q or u <= 3"]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_labels_tied_to_numbers_and_to_each_other_equal_brute_force(count):
    """Labels enter with the squared error of p - 1/2: half of it is free, the rest is paid for crossing 1/2."""
    spec = read(LABELS, *(("", then) for then in TIED[:count]))
    rng = np.random.default_rng(count)
    Y = np.concatenate([rng.normal(0, 3, (12, 1)), rng.uniform(0, 1, (12, 3))], axis=1)
    result = nearest_outputs(spec, np.zeros((12, 2)), Y)
    assert not broken(spec, np.zeros((12, 2)), to_scores(spec, result)).any()
    for y, found in zip(Y, result, strict=True):
        best = np.inf
        for pattern in itertools.product([0.0, 1.0], repeat=3):
            moved = sum((p - 0.5) ** 2 for p, on in zip(y[1:], pattern, strict=True) if on != (p >= 0.5))
            for u in (y[0], 1.0, -1.0, 3.0):
                allowed = not broken(spec, np.zeros((1, 2)), to_scores(spec, np.array([[u, *pattern]]))).any()
                best = min(best, moved + (u - y[0]) ** 2 if allowed else np.inf)
        moved = sum((p - 0.5) ** 2 for p, on in zip(y[1:], found[1:], strict=True) if on != (p >= 0.5))
        assert moved + (found[0] - y[0]) ** 2 == pytest.approx(best, rel=1e-4, abs=1e-4)


def test_too_many_exclusions_of_tied_labels_are_refused():
    spec = read("outputs: [u]\nlabels: [" + ", ".join(f"l{i}" for i in range(70)) + "]", ("", "u <= 1 or l0"))
    first, second = np.triu_indices(70, 1)
    rule = Rule("exclusions", (Polytope(),), CNF((), np.stack([first, second], axis=1)), None, "")
    both = Specification(spec.inputs, spec.outputs, (*spec.rules, rule))
    with pytest.raises(DataError, match="at most 2,000 exclusions"):
        nearest_outputs(both, np.zeros((1, 2)), np.zeros((1, 71)))


def test_outputs_in_different_units_weigh_the_same():
    """Nearest in units of the outputs is nearest after the rules are stated in these units."""
    spec = read("outputs: [u, v]", ("", "u <= 1000 * v and v <= 2"), ("", "u >= 3000 or v >= 1"))
    small = read("outputs: [u, v]", ("", "u <= v and v <= 2"), ("", "u >= 3 or v >= 1"))
    generator = np.random.default_rng(0)
    Z = generator.normal(size=(40, 2)) * 3
    X, unit = np.zeros((40, len(spec.columns))), np.array([1000.0, 1.0])
    found = nearest_outputs(spec, X, Z * unit, scale=unit)
    np.testing.assert_allclose(found / unit, nearest_outputs(small, X, Z), atol=1e-6)
    raw = nearest_outputs(spec, X, Z * unit)
    distance = [(((rows / unit - Z) ** 2).sum(axis=1)) for rows in (found, raw)]
    assert (distance[0] <= distance[1] + 1e-6).all()
    assert (distance[0] < distance[1] - 0.1).any()  # else this test says nothing
