"""Exclusions as arrays: the compact forms agree, and a million pairs are read in seconds."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smle.errors import RuleError
from smle.rules import Specification, membership, mutually_exclusive, rule
from smle.rules.exclusions import NeverTogether, ranges_text
from smle.rules.formula import unique_pairs


def labels(count):
    return [f"label{i}" for i in range(count)]


def stated(count, pairs, when=None):
    return Specification.build(
        inputs={"x": (0, 1)},
        outputs=["y"],
        labels=labels(count),
        rules=[rule("never", when, mutually_exclusive(pairs))],
    )


def random_pairs(count, number, seed=0):
    first, second = np.triu_indices(count, 1)
    pick = np.random.default_rng(seed).permutation(len(first))[:number]
    return np.stack([first[pick], second[pick]], axis=1)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda p: p[0] != p[1]), min_size=1))
def test_ranges_read_back(pairs):
    array = unique_pairs(np.array(pairs))
    again = NeverTogether({str(k): v for k, v in ranges_text(array).items()}).numbers(labels(10))
    assert np.array_equal(again, array)
    assert {tuple(p) for p in array.tolist()} == {tuple(sorted(p)) for p in pairs}


@pytest.mark.parametrize("number", [1, 20, 21, 500, 3000])
@pytest.mark.parametrize("when", [None, "x <= 0.5"])
def test_every_size_survives_the_round_trip(number, when):
    specification = stated(100, random_pairs(100, number), when)
    text = specification.to_yaml()
    assert Specification.from_yaml(text) == specification
    assert len(specification.rules[0].requirement) == number


def test_side_files_say_the_same(tmp_path):
    pairs = random_pairs(50, 200)
    expected = stated(50, pairs)
    np.save(tmp_path / "pairs.npy", pairs.astype(np.uint16))
    (tmp_path / "names.csv").write_text("\n".join(f"label{a},label{b}" for a, b in pairs.tolist()), encoding="utf-8")
    (tmp_path / "numbers.csv").write_text("\n".join(f"{a}, {b}" for a, b in pairs.tolist()), encoding="utf-8")
    head = f"inputs: {{x: [0, 1]}}\noutputs: [y]\nlabels: [{', '.join(labels(50))}]\n"
    for name in ("pairs.npy", "names.csv", "numbers.csv"):
        (tmp_path / "r.yaml").write_text(f"{head}rules: [{{name: never, never_together: {name}}}]\n", encoding="utf-8")
        assert Specification.from_file(tmp_path / "r.yaml") == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", b"not an array"),
        ("b.npy", b""),
        ("c.csv", b"label0,label1,label2\n"),
        ("d.csv", b"label0,nobody\n"),
        ("e.csv", b"\xff\xfe,\x00\n"),
        ("f.csv", b""),
        ("missing.npy", None),
        ("../up.npy", None),
        ("pairs.pkl", b""),
        ("g.csv", b"0,99999999999999\n"),
    ],
)
def test_bad_side_files_are_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    text = f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(labels(5))}]\nrules: [{{name: r, never_together: {name}}}]\n"
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RuleError, match=r"r\.yaml"):
        Specification.from_file(tmp_path / "r.yaml")


def test_a_pickle_in_an_array_file_is_not_loaded(tmp_path):
    np.save(tmp_path / "pairs.npy", np.array([[object(), 1]], dtype=object), allow_pickle=True)
    (tmp_path / "r.yaml").write_text(
        "inputs: {x: [0, 1]}\nlabels: [a, b]\nrules: [{name: r, never_together: pairs.npy}]\n", encoding="utf-8"
    )
    with pytest.raises(RuleError, match=r"pairs\.npy"):
        Specification.from_file(tmp_path / "r.yaml")


@pytest.mark.parametrize(
    "pairs",
    [
        np.array([[0.0, 1.0]]),
        np.array([0, 1]),
        np.empty((0, 2), dtype=int),
        np.array([[-1, 0]]),
        np.array([[0, 5]]),
        np.array([[3, 3]]),
        np.array([[2**63, 0]], dtype=np.uint64),
        [],
        [("label0",)],
        [("label0", 1)],
    ],
)
def test_arrays_that_are_no_pairs_are_refused(pairs):
    with pytest.raises(RuleError):
        stated(5, pairs)


@pytest.mark.parametrize("text", ["0: 1-99999999999", "0: 5-2", "a: 1", "0: x", "0: -3", "0: 1-2-3", "-1: 2"])
def test_ranges_that_are_none_are_refused(text):
    with pytest.raises(RuleError):
        Specification.from_yaml(
            f"inputs: {{x: [0, 1]}}\nlabels: [a, b, c]\nrules:\n  - name: r\n    never_together:\n      {text}\n"
        )


def test_a_million_pairs_load_in_seconds(tmp_path):
    pairs = random_pairs(2000, 1_000_000)
    np.save(tmp_path / "pairs.npy", pairs)
    text = f"inputs: {{x: [0, 1]}}\noutputs: [y]\nlabels: [{', '.join(labels(2000))}]\n"
    (tmp_path / "r.yaml").write_text(text + "rules: [{name: never, never_together: pairs.npy}]\n", encoding="utf-8")
    start = time.process_time()
    specification = Specification.from_file(tmp_path / "r.yaml")
    assert time.process_time() - start < 40
    requirement = specification.rules[0].requirement
    assert requirement.clauses == ()
    assert requirement.exclusions.shape == (1_000_000, 2)
    assert specification.rules[0].then == "never together: 1000000 pairs of labels"
    start = time.process_time()
    assert Specification.from_yaml(specification.to_yaml()) == specification
    assert time.process_time() - start < 80


@pytest.mark.parametrize("count", ["at_most_one(", "at_most(1, "])
def test_at_most_one_of_many_labels_makes_no_clause_objects(count):
    text = f"{count}{', '.join(labels(1000))})"
    specification = Specification.build(inputs={"x": (0, 1)}, labels=labels(1000), rules={"r": text})
    requirement = specification.rules[0].requirement
    assert requirement.clauses == ()
    assert len(requirement.exclusions) == 1000 * 999 // 2


@pytest.mark.parametrize("few", [0, 1_000])
def test_excluded_pairs_are_found_one_by_one_and_by_looking_them_up(monkeypatch, few):
    monkeypatch.setattr(membership, "_FEW_PAIRS", few)
    rng = np.random.default_rng(0)
    for m, count in ((2, 1), (7, 5), (40, 200)):
        pairs = np.array([rng.choice(m, 2, replace=False) for _ in range(count)], dtype=np.int32)
        on = rng.random((50, m)) < rng.random((50, 1))
        wanted = [any(row[h] and row[k] for h, k in pairs.tolist()) for row in on]
        np.testing.assert_array_equal(membership.excluded(on, pairs), wanted)
