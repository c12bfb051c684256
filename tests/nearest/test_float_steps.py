"""Sums within a tolerance that is narrower than the steps of float32: the nearest answer is served all the same."""

import numpy as np
import pytest

from smle import Specification
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import program_of
from smle.rules.membership import broken


def tree(rng, parents):
    """Return rules for a tree of sums, and the matrix of its equalities."""
    names, sums = ["t"], []
    while len(sums) < parents:
        whole = names[len(sums)]
        parts = [f"{whole}{i}" for i in range(int(rng.integers(2, 5)))]
        names += parts
        sums.append((whole, parts))
    A = np.array([[1.0 if n == whole else -1.0 if n in parts else 0.0 for n in names] for whole, parts in sums])
    rules = {whole: f"abs({whole} - ({' + '.join(parts)})) <= 0.01" for whole, parts in sums}
    return Specification.build(inputs={"x": (0, 1)}, outputs=names, rules=rules), A


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [1.0, 1e4, 1e6, 1e8])
def test_sums_of_sums_in_every_size(seed, size):
    rng = np.random.default_rng(seed)
    spec, A = tree(rng, parents=int(rng.integers(1, 5)))
    program, X = program_of(certify_rules(spec)), np.zeros((100, 1))
    answers = (rng.normal(size=(100, A.shape[1])) * size).astype(np.float32)
    y, by = program.explained(X, answers)
    assert not broken(spec, X, y.astype(np.float64)).any()
    # The nearest point on the equalities is farther away by no more than the tolerances.
    far = np.linalg.norm(answers @ A.T @ np.linalg.inv(A @ A.T) @ A, axis=1)
    own = np.linalg.norm(y.astype(np.float64) - answers, axis=1)
    assert (own <= 1.001 * far).all()
    assert (by == 1).all()
