"""The search for the nearest allowed set of labels: exact, and a function of the row alone."""

from itertools import combinations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from smle.nearest import label_branches, label_diagrams
from smle.nearest.label_branches import Branches
from smle.nearest.label_closures import Closure
from smle.nearest.label_diagrams import Diagram
from smle.nearest.label_search import LabelSearch, prices_of

Clauses = list[list[tuple[int, bool]]]


def random_clauses(rng: np.random.Generator, k: int, count: int) -> Clauses:
    """Clauses that a hidden set of labels meets."""
    hidden = rng.random(k) < 0.4
    found: Clauses = []
    while len(found) < count:
        labels = rng.choice(k, size=int(rng.integers(2, 5)), replace=False)
        clause = [(int(i), bool(rng.random() < 0.5)) for i in labels]
        if any(hidden[i] == on for i, on in clause):
            found.append(clause)
    return found


def hierarchy(rng: np.random.Generator, k: int, parents: int) -> Clauses:
    """Each label implies up to so many before it."""
    return [
        [(i, False), (int(p), True)]
        for i in range(1, k)
        for p in set(rng.integers(0, i, int(rng.integers(0, parents + 1))))
    ]


def at_most(count: int, labels: range) -> Clauses:
    return [[(i, False) for i in some] for some in combinations(labels, count + 1)]


def tree(rng: np.random.Generator, k: int) -> tuple[Clauses, list[tuple[int, int]]]:
    """Labels that imply their parent and one of their children, of which at most one is on."""
    place, parent = rng.permutation(k).tolist(), [(i - 1) // 3 for i in range(k)]
    children = [[place[i] for i in range(1, k) if parent[i] == p] for p in range(k)]
    clauses = [[(place[i], False), (place[parent[i]], True)] for i in range(1, k)]
    clauses += [[(place[p], False), *((i, True) for i in own)] for p, own in enumerate(children) if own]
    return clauses, [pair for own in children for pair in combinations(own, 2)]


SETTLED = [[(0, True)], [(0, False), (1, True)], [(2, False), (1, False)], [(4, True), (5, True)]]
COUNTED = [*at_most(3, range(8)), [(8, False), (9, True), (0, True)], [(10, True), (11, True)]]
CASES = {
    "clauses": lambda rng: (16, random_clauses(rng, 16, 30), []),
    "clauses and pairs": lambda rng: (18, random_clauses(rng, 18, 12), [(0, 1), (1, 2), (3, 9), (4, 9), (5, 17)]),
    "counts": lambda rng: (12, COUNTED, []),
    "settled": lambda rng: (9, SETTLED, [(1, 7)]),
    "forest": lambda rng: (40, hierarchy(rng, 40, 1), []),
    "graph": lambda rng: (40, hierarchy(rng, 40, 3), []),
    "circles": lambda rng: (8, [[(i, False), ((i + 1) % 4, True)] for i in range(4)] + [[(5, False), (0, True)]], []),
    "circles and ties": lambda rng: (
        6,
        [[(0, False), (1, True)], [(1, False), (0, True)], [(2, False), (0, True)], [(2, False), (3, True)]],
        [],
    ),
    "tree of exclusions": lambda rng: (60, *tree(rng, 60)),
    "pairs": lambda rng: (30, [], [(i, k) for i, k in combinations(range(30), 2) if rng.random() < 0.3]),
}
LOGITS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "all on": lambda rng, shape: np.abs(rng.normal(size=shape)),
    "ties": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    "heavy": lambda rng, shape: rng.standard_cauchy(shape),
}


def broken(on: np.ndarray, clauses: Clauses, pairs: list[tuple[int, int]]) -> bool:
    unmet = any(all(on[i] != value for i, value in clause) for clause in clauses)
    return unmet or any(on[i] and on[k] for i, k in pairs)


def ways_of(search: LabelSearch) -> set[type]:
    return {type(part.way) for part in search.parts}


def optimum(logits: np.ndarray, clauses: Clauses, pairs: list[tuple[int, int]]) -> float:
    """Return what the nearest allowed set costs, by a mixed-integer program."""
    every = [*clauses, *([(i, False), (k, False)] for i, k in pairs)]
    matrix, least = sparse.lil_matrix((len(every), len(logits))), np.ones(len(every))
    for row, clause in enumerate(every):
        for label, on in set(clause):
            matrix[row, label] = 1 if on else -1
            least[row] -= not on
    rows = LinearConstraint(matrix.tocsr(), least, np.inf)
    found = milp(-logits, constraints=rows, integrality=np.ones(len(logits)), bounds=Bounds(0, 1))
    return float(found.fun + np.maximum(logits, 0).sum())


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("case", CASES)
def test_sets_are_the_nearest_and_the_same_alone(case: str, kind: str) -> None:
    rng = np.random.default_rng([len(case), len(kind)])
    k, clauses, pairs = CASES[case](rng)
    search, logits = LabelSearch(k, clauses, pairs), LOGITS[kind](rng, (12, k))
    found = search.nearest(logits)
    assert search.is_possible
    assert found.allowed.all()
    assert not found.cut.any()
    for row, on in zip(logits, found.on, strict=True):
        assert not broken(on, clauses, pairs)
        assert np.abs(row)[on != (row >= 0)].sum() <= optimum(row, clauses, pairs) * (1 + 1e-6) + 1e-6
        np.testing.assert_array_equal(search.nearest(row[None]).on[0], on)


@pytest.mark.parametrize("case", ["clauses", "clauses and pairs", "counts", "graph"])
def test_branches_and_diagrams_cost_the_same(case: str) -> None:
    rng = np.random.default_rng(5)
    k, clauses, pairs = CASES[case](rng)
    logits = np.concatenate([LOGITS[kind](rng, (10, k)) for kind in LOGITS])
    on, prices = logits >= 0, prices_of(logits)
    diagram = label_diagrams.diagram_of(k, clauses, np.array(pairs, dtype=np.intp).reshape(-1, 2))
    assert diagram is not None
    sets, allowed, cut = Branches(k, clauses, np.array(pairs, dtype=np.intp).reshape(-1, 2)).nearest(on, prices)
    assert allowed.all()
    assert not cut.any()
    other = diagram.nearest(on, prices)
    np.testing.assert_array_equal(((sets != on) * prices).sum(axis=1), ((other != on) * prices).sum(axis=1))


def test_a_way_for_each_kind_of_rules() -> None:
    rng = np.random.default_rng(0)
    ways = {case: ways_of(LabelSearch(*made(rng))) for case, made in CASES.items()}
    assert ways["clauses"] == ways["counts"] == ways["tree of exclusions"] == {Diagram}
    assert ways["forest"] == ways["graph"] == ways["circles"] == {Closure}


def test_last_bits_decide_nothing() -> None:
    rng = np.random.default_rng(1)
    clauses = random_clauses(rng, 14, 26)
    search = LabelSearch(14, clauses)
    logits = rng.choice([-1.0, 1.0, 2.5, -2.5], (200, 14)) * 1.001
    moved = logits * (1 + rng.choice([-1, 1], logits.shape) * 2.0**-24)
    np.testing.assert_array_equal(search.nearest(logits).on, search.nearest(moved).on)
    changed = (search.nearest(logits).on != (logits >= 0)).any(axis=1)
    assert changed.sum() > 50


def test_of_equal_sets_the_first_labels_stay() -> None:
    search = LabelSearch(3, [[(0, True), (1, True), (2, True)]])
    order = search.parts[0].way.order.tolist()
    (on,) = search.nearest(np.full((1, 3), -1.0)).on
    assert np.flatnonzero(on).tolist() == [order[-1]]
    branches = Branches(3, [[(0, True), (1, True), (2, True)]], np.empty((0, 2), dtype=np.intp))
    (on,) = branches.nearest(np.zeros((1, 3), dtype=bool), np.ones((1, 3), dtype=np.int64))[0]
    assert np.flatnonzero(on).tolist() == [2]


def test_prices_are_rounded_and_never_nothing() -> None:
    (found,) = prices_of(np.array([[0.0, -0.0, 1e-12, 0.5, -1.0, 1 + 2.0**-22, 3e38, np.inf, np.nan]]))
    assert found[:6].tolist() == [1, 1, 1, 2**19, 2**20, 2**20]
    assert (found[6:] >= 2**49).all()
    assert prices_of(np.full((1, 5000), np.inf)).sum() < label_diagrams.DEAD


@pytest.mark.parametrize(
    ("clauses", "pairs"),
    [
        ([[(0, True)], [(0, False)]], []),
        ([[(0, True)], [(1, True)]], [(0, 1)]),
        ([[(0, a), (1, b)] for a in (True, False) for b in (True, False)], []),
    ],
)
def test_contradictions_are_seen(clauses: Clauses, pairs: list[tuple[int, int]]) -> None:
    search = LabelSearch(2, clauses, pairs)
    assert not search.is_possible
    assert not search.nearest(np.ones((3, 2))).allowed.any()


def test_a_search_that_is_cut_short_says_so_and_obeys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_diagrams, "_SIZES", ((5, 0),))
    rng = np.random.default_rng(2)
    clauses = random_clauses(rng, 40, 110)
    search, logits = LabelSearch(40, clauses), rng.normal(size=(8, 40))
    assert Branches in ways_of(search)
    best = search.nearest(logits)
    assert best.allowed.all()
    assert not best.cut.any()
    monkeypatch.setattr(label_branches, "STEPS", 2_000)
    monkeypatch.setattr(label_branches, "_MOST_LITERALS", 0)  # nor does the solver help
    found = search.nearest(logits)
    assert found.cut.any()
    for row, on, allowed, cut, exact in zip(logits, found.on, found.allowed, found.cut, best.on, strict=True):
        assert broken(on, clauses, []) != allowed
        own, least = (np.abs(row)[one != (row >= 0)].sum() for one in (on, exact))
        assert own >= least - 1e-6 or not allowed
        assert cut or own <= least + 1e-6
        np.testing.assert_array_equal(search.nearest(row[None]).on[0], on)


def test_what_the_search_leaves_open_is_settled_by_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_diagrams, "_SIZES", ((5, 0),))
    rng = np.random.default_rng(2)
    clauses, pairs = random_clauses(rng, 40, 110), np.array([[0, 1], [2, 7], [7, 9]])
    search, logits = LabelSearch(40, clauses, pairs), rng.normal(size=(8, 40))
    logits[4:] = np.sign(logits[4:])  # many sets cost the same
    best = search.nearest(logits)
    assert not best.cut.any()
    monkeypatch.setattr(label_branches, "STEPS", 50)
    for nodes in (500, 0):
        monkeypatch.setattr(label_branches, "_NODES", nodes)
        found = search.nearest(logits)
        assert (found.allowed.all() and not found.cut.any()) or nodes == 0
        for row, on, allowed, cut, exact in zip(logits, found.on, found.allowed, found.cut, best.on, strict=True):
            assert broken(on, clauses, pairs.tolist()) != allowed
            own, least = (np.abs(row)[one != (row >= 0)].sum() for one in (on, exact))
            assert own >= least - 1e-5 or not allowed
            assert cut or own <= least + 1e-5
            np.testing.assert_array_equal(search.nearest(row[None]).on[0], on)


def test_many_labels_that_imply_others() -> None:
    rng = np.random.default_rng(0)
    clauses = hierarchy(rng, 3000, 2)
    search, logits = LabelSearch(3000, clauses), rng.normal(size=(3, 3000))
    found = search.nearest(logits)
    lower, upper = np.array([[a, b] for (a, _), (b, _) in clauses]).T
    assert not (found.on[:, lower] & ~found.on[:, upper]).any()
    row, on = logits[0], found.on[0]
    matrix = sparse.csr_matrix(
        (np.repeat([-1.0, 1.0], len(lower)), (np.tile(np.arange(len(lower)), 2), np.concatenate([lower, upper]))),
        (len(lower), 3000),
    )
    relaxed = milp(-row, constraints=LinearConstraint(matrix, 0, np.inf), bounds=Bounds(0, 1))  # its corners are whole
    assert np.abs(row)[on != (row >= 0)].sum() <= (relaxed.fun + np.maximum(row, 0).sum()) * (1 + 1e-6)


def test_thousands_of_labels_in_a_tree_of_exclusions() -> None:
    rng = np.random.default_rng(0)
    clauses, pairs = tree(rng, 1200)
    search, logits = LabelSearch(1200, clauses, pairs), rng.normal(size=(2, 1200))
    assert ways_of(search) == {Diagram}
    found = search.nearest(logits)
    for row, on in zip(logits, found.on, strict=True):
        assert not broken(on, clauses, pairs)
        assert np.abs(row)[on != (row >= 0)].sum() <= optimum(row, clauses, pairs) * (1 + 1e-6)


def test_hundreds_of_thousands_of_exclusions() -> None:
    rng = np.random.default_rng(0)
    one = LabelSearch(600, [], list(combinations(range(600), 2)))  # at most one of them
    logits = rng.normal(size=(20, 600))
    np.testing.assert_array_equal(one.nearest(logits).on, np.eye(600, dtype=bool)[logits.argmax(axis=1)])
    pairs = rng.integers(0, 600, (150_000, 2))
    some = LabelSearch(600, [], pairs[pairs[:, 0] != pairs[:, 1]])
    found = some.nearest(logits)
    assert found.allowed.all()
    assert found.cut.all()  # so many are on: kept from the top
    few = some.nearest(logits - 2)
    assert not few.cut.any()
    for on in (found.on, few.on):
        assert not (on[:, pairs[:, 0]] & on[:, pairs[:, 1]] & (pairs[:, 0] != pairs[:, 1])).any()


def test_huge_and_tiny_logits_together_are_cut_exactly() -> None:
    """What flows does not fit into int32: it is found unit by unit."""
    rng = np.random.default_rng(3)
    clauses = hierarchy(rng, 60, 3)
    logits = rng.normal(size=(20, 60)) * 10.0 ** rng.uniform(-4, 6, (20, 60))
    search = LabelSearch(60, clauses)
    found, prices = search.nearest(logits), prices_of(logits)
    for row, on, price in zip(logits, found.on, prices, strict=True):
        least = round(optimum(np.where(row >= 0, 1.0, -1.0) * price, clauses, []))
        assert abs(int(price[on != (row >= 0)].sum()) - least) <= 1e-9 * least


def test_exclusions_of_labels_that_may_be_on_are_looked_up(monkeypatch):
    monkeypatch.setattr(label_branches, "_AT_ONCE", 3)
    rng = np.random.default_rng(0)
    pairs = rng.permutation(np.stack(np.triu_indices(30, 1), axis=1))[:200]
    search = Branches(30, [], pairs)
    for share in (0.0, 0.1, 0.5, 1.0):
        may = rng.random(30) < share
        assert sorted(map(tuple, search._live(may).tolist())) == sorted(
            map(tuple, pairs[may[pairs].all(axis=1)].tolist())
        )
    monkeypatch.setattr(label_branches, "_MOST_PAIRS", 20)
    assert 20 < len(search._live(np.ones(30, dtype=bool))) < 200
