"""Attacks on heads of rules: nothing is found in certified ones, and what is not safe is found out."""

import numpy as np
import pytest

from studies.bench.rules_attacks import RulesAttacker, RulesProgram, stated, unsafe
from studies.bench.soundness import found_in
from studies.bench.soundness_programs import ORDERS
from studies.bench.soundness_rules import LIMITS, RAMPS, RANGES
from studies.bench.soundness_subjects import ADVICE, LABELS, MIXED
from tests.support.sampling import Judge

RULES = {"ramps": RAMPS, "ranges": RANGES, "limits": LIMITS, "labels": LABELS, "choice": ADVICE, "mixed": MIXED}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_program_written_down_again_is_the_deployed_one(name, dtype):
    """The same answers, but for the last bits of sums and what they decide, where the answer itself serves."""
    subject = stated(name, RULES[name])
    attacker = RulesAttacker(subject, np.random.default_rng(0))
    X, Z = attacker.mixture(1500, dtype)
    program, deployed = RulesProgram(subject, ORDERS["pairwise"]), attacker.program
    kept = deployed.explained(X, Z)[1] == 0 if hasattr(deployed, "explained") else np.ones(len(X), dtype=bool)
    ours, theirs = program(X, Z), deployed(X, Z)
    same = np.isclose(ours, theirs, rtol=1e-6, atol=1e-30).all(axis=1)
    assert same[kept].mean() > 0.98
    assert kept.sum() > 50
    assert not len(Judge(subject.spec).judge(X, ours).rows)


def test_heads_that_are_not_safe_are_found_out():
    for name, batches in unsafe(stated("ramps", RAMPS), stated("limits", LIMITS), 20_000).items():
        tally, example = found_in(batches)
        assert tally.violations > 0, name
        assert "rule '" in example
