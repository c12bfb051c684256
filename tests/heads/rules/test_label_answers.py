"""Safe sets of labels by search: what is found obeys, what is not found is not there, and conflicts are small."""

import itertools
import random
import time

import numpy as np
import pytest

from smle import Specification
from smle.errors import ContradictionError
from smle.heads.rules.label_answers import LabelRule, obeying, smallest
from smle.heads.rules.rules_author import certify_rules

NONE = np.zeros((0, 2), dtype=np.intp)


def obeys(on, clauses, pairs) -> bool:
    held = all(any(on[label] == value for label, value in clause) for clause in clauses)
    return held and not any(on[h] and on[k] for h, k in pairs)


@pytest.mark.parametrize("seed", range(60))
def test_every_outcome_is_that_of_all_sets(seed):
    rng = random.Random(seed)
    n = rng.randint(2, 7)
    clauses = [
        tuple((i, rng.choice([True, False])) for i in rng.sample(range(n), rng.randint(1, min(3, n))))
        for _ in range(rng.randint(1, 5 * n))
    ]
    pairs = np.array([sorted(rng.sample(range(n), 2)) for _ in range(rng.randint(0, 4))], dtype=np.intp).reshape(-1, 2)
    typical = np.array([rng.random() < 0.3 for _ in range(n)])
    some = any(obeys(on, clauses, pairs) for on in itertools.product([False, True], repeat=n))
    found = obeying([LabelRule(clauses, [pairs])], typical)
    assert (found is not None) == some
    assert found is None or obeys(found, clauses, pairs)
    if obeys(typical, clauses, pairs):
        assert found.tolist() == typical.tolist()  # nothing is changed without need


def test_a_smallest_conflict_needs_every_rule():
    rules = {i: LabelRule([((i, False), (i + 1, True))], []) for i in range(30)}  # each label implies the next
    rules |= {50: LabelRule([((4, True),)], []), 51: LabelRule([((11, False),)], [])}
    rules[52] = LabelRule([], [np.array([[0, 1]])])
    typical = np.zeros(40, dtype=bool)
    found = smallest(rules, typical)
    assert found == (*range(4, 11), 50, 51)
    for r in found:
        assert obeying([rules[k] for k in found if k != r], typical) is not None


@pytest.mark.parametrize("count", [20, 100])
def test_contradictions_of_many_labels_are_refused_at_once(count):
    labels = [f"l{i}" for i in range(count)]
    lines = [f"{labels[i]} implies {labels[i + 1]}" for i in range(0, count - 1, 2)]
    lines += [f"at_least(4, {', '.join(labels[:6])})", f"at_most(3, {', '.join(labels[:6])})"]
    rules = "".join(f"  - {{name: r{i}, then: '{line}'}}\n" for i, line in enumerate(lines))
    spec = Specification.from_yaml(f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(labels)}]\nrules:\n{rules}")
    start = time.process_time()
    with pytest.raises(ContradictionError, match=f"Rules 'r{len(lines) - 2}' and 'r{len(lines) - 1}' contradict"):
        certify_rules(spec)
    assert time.process_time() - start < 3


def test_conditions_that_never_meet_are_no_contradiction():
    """All rules at once have no set; at each input some do."""
    labels = ", ".join(f"l{i}" for i in range(12))
    spec = Specification.from_yaml(
        f"inputs: {{x: [0, 1], z: [0, 1]}}\nlabels: [{labels}]\nrules:\n"
        "  - {name: a, when: x < 0.5, then: 'at_least(7, l0, l1, l2, l3, l4, l5, l6, l7)'}\n"
        "  - {name: b, when: x >= 0.5, then: 'at_most(2, l0, l1, l2, l3, l4, l5, l6, l7)'}\n"
        "  - {name: c, when: x + z >= 1.2, then: l8 or l9}\n"
    )
    assert certify_rules(spec).proved
