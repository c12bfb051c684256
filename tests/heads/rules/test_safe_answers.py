"""Safe answers as the NumPy program serves them: chosen and clipped by the same bits."""

from __future__ import annotations

import numpy as np

from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from support.rules_cases import LEAVES
from support.sampling import Judge


def test_safe_answers_go_through_the_clips_of_their_own_bits():
    # At an oblique border one way to sum falls on one side of the threshold and another way on the other side. The
    # answer of the leaf where 'near' is off, clipped as if it were on, broke 'both'.
    spec = Specification.from_yaml(LEAVES)
    certificate = certify_rules(spec)
    assert certificate.document["program"]["tree"] == [0, None, None]
    program = Candidates(certificate)
    coefficients, threshold = program.stored["gate.coefficients"][0], program.stored["gate.thresholds"][0]
    a = np.random.default_rng(0).uniform(0, 9, 20_000)
    X = np.stack([a, (threshold - coefficients[0] * a) / coefficients[1]], axis=1)
    X = X[coefficients[0] * X[:, 0] + coefficients[1] * X[:, 1] == threshold]  # on, in plain arithmetic
    evaluated = program._run

    def a_little_more(X, answers):
        y, bad, bits = evaluated(X, answers)
        bits = np.array(bits, dtype=bool).reshape(len(bad), -1)
        bits[:, 0] = False  # as a sum one rounding larger has it
        return y, bad, bits

    program._run = a_little_more
    judge = Judge(spec)
    for rows in (1, 2, 300, len(X)):
        y, by = program.explained(X[:rows], np.zeros((rows, 2), dtype=np.float32))
        assert not judge.violations(X[:rows], y)
    assert (by == 2).sum() > 1000
