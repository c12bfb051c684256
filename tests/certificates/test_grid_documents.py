"""Grid heads: every changed constant is refused, and so are documents that a hostile author might write."""

import re
from functools import cache

import numpy as np
import pytest
from test_hostile_documents import SPEC, gone, put

import smle_check
from smle.certificates.document import Certificate
from smle.heads.grid.grid_author import certify_grid
from smle.heads.grid.grid_program import GridProgram
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from support.builder import accepted, refusal, repacked
from support.grid_rules import GridJudge, hard_inputs

RULES = """
inputs:
  demand: {range: [0, 20], integer: true}
  weight: {range: [0, 4], step: 0.1}
  t: [-1, 1]
outputs: {a: {integer: true}, b: {integer: true}, price: {step: 0.01}}
rules:
  - {name: caps, then: 0 <= a <= 12 and 0 <= b <= 12 and 0 <= price <= 50}
  - {name: sum, then: a + b == demand}
  - {name: moving, then: price <= 3 + 0.7 * t + 2 * weight}
  - {name: night, when: t + weight >= 1, then: price >= 0.5 or a >= 1}
  - {name: most, when: weight > 1.3, then: price <= 4}
"""


@cache
def issued():
    return certify_grid(Specification.from_yaml(RULES))


def made():
    return repacked(issued())


def test_what_is_issued_is_accepted():
    assert len(made().seal().check()) == len(issued().proved) > 5


@pytest.mark.parametrize("unit", [0.0, -1.0, 1e-300, 1e300])
def test_units_that_nobody_can_count_in_are_refused(unit):
    package = made()
    package.weights["check.scale"][0] = unit
    assert "check.scale" in refusal(package)


def test_every_changed_constant_is_refused():
    """All but the units of distances, which no proof reads, and safe answers that happen to obey as well."""
    refused = kept = 0
    for name, numbers in made().weights.items():
        changes = [(i, v) for i, old in enumerate(numbers.flat) for v in (old + 1, old - 1, old * 1.5 + 0.25, -old)]
        for place, value in [] if name == "check.scale" else changes[:60]:
            package = made()
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
    spec = Specification.from_yaml(RULES)
    program = GridProgram(Certificate(package.text, package.block, package.tensors, {}))
    X = hard_inputs(np.random.default_rng(0), spec, 60, np.float64)
    read = program.read(X)
    served = program.values(program.safe(read, program.bits(read, X.dtype), len(X)))
    return len(GridJudge(spec).wrong(X, served)) == 0


def test_missing_and_further_tensors_are_refused():
    for name in issued().tensors:
        package = made()
        del package.weights[name]
        refusal(package)
    package = made()
    package.weights["clips.default"] = package.weights["grid.lower"]
    assert "not part of" in refusal(package)


HOSTILE = {
    "a softer claim": (put("statement", smle_check.STATEMENT), "statement"),
    "a box's program": (put("program/head", "rules"), "statement|steps|unknown"),
    "no steps of inputs": (gone(f"{SPEC}/inputs/0/step"), "step"),
    "no step of an output": (gone(f"{SPEC}/outputs/0/step"), "field"),
    "a step of null": (put(f"{SPEC}/outputs/0/step", None), "number"),
    "a step of 0": (put(f"{SPEC}/outputs/0/step", "0"), "step"),
    "a negative step": (put(f"{SPEC}/outputs/0/step", "-1"), "step|range"),
    "an input's step of 0": (put(f"{SPEC}/inputs/0/step", "0"), "range|step"),
    "a finer step": (put(f"{SPEC}/outputs/2/step", "1/1000"), "prescribe"),
    "a step that float32 cannot tell apart": (put(f"{SPEC}/outputs/2/step", "1/100000000"), "apart|digits"),
    "a step of many digits": (put(f"{SPEC}/outputs/2/step", "1000001/100000003"), "digits"),
    "a wider range": (put(f"{SPEC}/outputs/2/upper", "90"), "prescribe"),
    "an empty range": (put(f"{SPEC}/outputs/2/upper", "-1"), "no multiple"),
    "a range beyond float32": (put(f"{SPEC}/outputs/2/upper", "1000000"), "apart"),
    "a range beyond everything": (put(f"{SPEC}/outputs/2/upper", "1" + "0" * 500), "range"),
    "a real input made whole": (put(f"{SPEC}/inputs/2/step", "1"), "prescribe|no multiple"),
    "a whole input made real": (put(f"{SPEC}/inputs/0/step", None), "prescribe|slope|one_hot"),
    "an end next to 0": (put(f"{SPEC}/inputs/2/upper", "1/" + str(2**110)), "close to 0|prescribe"),
    "another rule": (put(f"{SPEC}/rules/1/clauses/0/0/bound", "1"), "prescribe"),
    "a stricter rule": (put(f"{SPEC}/rules/4/clauses/0/0/strict", True), "prescribe"),
    "another tree": (put("program/tree", [0, None, None]), "tensor|tree|range"),
    "a tree of an unknown region": (put("program/tree", [99, None, None]), "region"),
    "a cut of no input": (put("program/tree", [{"input": 9, "at": "1"}, None, None]), "index"),
    "a cut between steps": (put("program/tree", [{"input": 0, "at": "1/2"}, None, None]), "whole number"),
    "a cut between floats": (put("program/tree", [{"input": 2, "at": "1/10"}, None, None]), "float32"),
    "a cut beyond floats": (put("program/tree", [{"input": 2, "at": "1" + "0" * 60}, None, None]), "float32"),
    "a cut with more to say": (put("program/tree", [{"input": 2, "at": "0", "x": 1}, None, None]), "unknown field"),
    "a cut that is no number": (put("program/tree", [{"input": 2, "at": 1}, None, None]), "number"),
    "a tree that is a text": (put("program/tree", "null"), "tree"),
    "a field more": (put("program/precision", "float32"), "unknown field"),
    "a proof for nothing": (
        put("proof/safe", [{"leaf": 7, "rule": 0, "region": 0, "clause": 0, "literal": 0, "mu": []}]),
        "no obligation",
    ),
    "a proof of another kind": (put("proof", {"safe": [], "pairs": []}), "unknown field"),
    "another gate": (put("gate/regions", [0]), "gate"),
}


@pytest.mark.parametrize(("change", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_documents_are_refused(change, reason):
    package = made()
    change(package)
    assert re.search(reason, refusal(package))


def test_exclusions_that_name_no_labels_say_nothing():
    package = made()
    put(f"{SPEC}/rules/0/exclusions", {"offset": 0, "count": 0})(package)
    assert package.seal().check()


def test_steps_in_other_heads_are_refused():
    spec = Specification.from_yaml("inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: 0 <= y <= 1}]\n")
    package = repacked(certify_rules(spec))
    put(f"{SPEC}/inputs/0/step", None)(package)
    assert "only a grid head" in refusal(package)


@pytest.mark.parametrize(
    ("name", "place", "value", "reason"),
    [
        ("safe.offset", 0, 0.5, "whole"),
        ("safe.offset", 0, 13.0, "range|not proved"),
        ("safe.offset", 0, float(2**53), "2\\^53|beyond"),
        ("safe.slope", 2, 1.0, "without a step"),
        ("safe.slope", 0, 2.0**50, "2\\^53"),
        ("safe.offset", 0, float("nan"), "NaN"),
    ],
)
def test_safe_answers_that_are_not_whole_or_too_large_are_refused(name, place, value, reason):
    package = made()
    package.weights[name].flat[place] = value
    assert re.search(reason, refusal(package))
