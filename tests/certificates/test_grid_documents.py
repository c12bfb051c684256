"""Grid heads: every changed constant is refused; test_hostile_documents has what a hostile author might write."""

import numpy as np
from test_hostile_documents import SPEC, put

from smle.certificates.document import Certificate
from smle.heads.grid.grid_program import GridProgram
from smle.rules import Specification
from support.builder import accepted, refusal
from support.grid_rules import GridJudge, hard_inputs
from support.sound import STEPS, sound


def test_every_changed_constant_is_refused():
    """All but the units of distances, which no proof reads, and safe answers that happen to obey as well."""
    refused = kept = 0
    for name, numbers in sound("steps").weights.items():
        changes = [(i, v) for i, old in enumerate(numbers.flat) for v in (old + 1, old - 1, old * 1.5 + 0.25, -old)]
        for place, value in [] if name == "check.scale" else changes[:60]:
            package = sound("steps")
            package.weights[name].flat[place] = value
            if (package.weights[name] == numbers).all():
                continue
            if not accepted(package.seal()):
                refused += 1
                continue
            assert name.startswith("safe."), name
            assert obeys(package)
            kept += 1
    assert refused > 200
    assert kept < refused / 3


def obeys(package):
    """Whether stored safe answers obey at many inputs, judged apart from the checker."""
    spec = Specification.from_yaml(STEPS)
    program = GridProgram(Certificate(package.text, package.block, package.tensors, {}))
    X = hard_inputs(np.random.default_rng(0), spec, 60, np.float64)
    read = program.read(X)
    served = program.values(program.safe(read, program.bits(read, X.dtype), len(X)))
    return len(GridJudge(spec).wrong(X, served)) == 0


def test_missing_tensors_are_refused():
    for name in sound("steps").weights:
        package = sound("steps")
        del package.weights[name]
        refusal(package)


def test_exclusions_that_name_no_labels_say_nothing():
    package = sound("steps")
    put(f"{SPEC}/rules/0/exclusions", {"offset": 0, "count": 0})(package)
    assert package.seal().check()
