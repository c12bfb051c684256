"""Grid heads: every changed constant is refused, and so are documents that a hostile author might write."""

import copy
import struct

import pytest

import smle_check
from smle.heads.grid.author import certify_grid
from smle.rules import Specification

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


@pytest.fixture(scope="module")
def issued():
    return certify_grid(Specification.from_yaml(RULES))


def checked(certificate, document, tensors):
    """Seal a changed document and check it."""
    made = {key: value for key, value in document.items() if key != "digest"}
    made["binds"] = smle_check.bindings(tensors, certificate.block, {})
    made["digest"] = smle_check.sha256(smle_check.canonical(made))
    return smle_check.check_certificate(smle_check.canonical(made) + b"\n", tensors, certificate.block, {})


def test_what_is_issued_is_accepted(issued):
    assert len(checked(issued, issued.document, issued.tensors)) == len(issued.proved) > 5


def changed_numbers(tensor):
    code = {"F64": "d", "F32": "f"}[tensor.dtype]
    numbers = list(struct.unpack(f"<{len(tensor.data) // struct.calcsize(code)}{code}", tensor.data))
    for place, value in enumerate(numbers):
        for other in {value + 1, value - 1, value * 1.5 + 0.25, -value}:
            if other != value:
                changed = [*numbers[:place], other, *numbers[place + 1 :]]
                yield tensor._replace(data=struct.pack(f"<{len(numbers)}{code}", *changed))


@pytest.mark.parametrize("unit", [0.0, -1.0, 1e-300, 1e300])
def test_units_that_nobody_can_count_in_are_refused(issued, unit):
    scale = issued.tensors["check.scale"]
    changed = scale._replace(data=struct.pack("<d", unit) + scale.data[8:])
    with pytest.raises(smle_check.Rejected, match=r"check\.scale"):
        checked(issued, issued.document, {**issued.tensors, "check.scale": changed})


def test_every_changed_constant_is_refused(issued):
    """All but the units of distances, which no proof reads, and safe answers that happen to obey as well."""
    spec = Specification.from_yaml(RULES)
    refused = accepted = 0
    for name, tensor in issued.tensors.items():
        if name == "check.scale":
            continue
        for changed in list(changed_numbers(tensor))[:60]:
            try:
                checked(issued, issued.document, {**issued.tensors, name: changed})
            except smle_check.Rejected:
                refused += 1
            else:
                assert name.startswith("safe."), name
                assert _obeys(issued, {**issued.tensors, name: changed}, spec)
                accepted += 1
    assert refused > 200
    assert accepted < refused / 3


def _obeys(issued, tensors, spec):
    """Whether stored safe answers obey at many inputs, judged apart from the checker."""
    import numpy as np

    from smle.certificates.document import Certificate
    from smle.heads.grid.program import GridProgram
    from support.grid_rules import GridJudge, hard_inputs

    program = GridProgram(Certificate(issued.text, issued.block, tensors, {}))
    X = hard_inputs(np.random.default_rng(0), spec, 60, np.float64)
    read = program.read(X)
    served = program.values(program.safe(read, program.bits(read, X.dtype), len(X)))
    return len(GridJudge(spec).wrong(X, served)) == 0


def test_missing_and_further_tensors_are_refused(issued):
    for name in issued.tensors:
        rest = {key: value for key, value in issued.tensors.items() if key != name}
        with pytest.raises(smle_check.Rejected):
            checked(issued, issued.document, rest)
    with pytest.raises(smle_check.Rejected, match="not part of"):
        checked(issued, issued.document, {**issued.tensors, "clips.default": issued.tensors["grid.lower"]})


def put(*path_and_value):
    *path, value = path_and_value

    def change(document):
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def drop(*path):
    def change(document):
        place = document
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


SPEC = "specification"
HOSTILE = {
    "a softer claim": (put("statement", smle_check.STATEMENT), "statement"),
    "a box's program": (put("program", "head", "rules"), "statement|steps|unknown"),
    "no steps of inputs": (drop(SPEC, "inputs", 0, "step"), "step"),
    "no step of an output": (drop(SPEC, "outputs", 0, "step"), "field"),
    "a step of null": (put(SPEC, "outputs", 0, "step", None), "number"),
    "a step of 0": (put(SPEC, "outputs", 0, "step", "0"), "step"),
    "a negative step": (put(SPEC, "outputs", 0, "step", "-1"), "step|range"),
    "an input's step of 0": (put(SPEC, "inputs", 0, "step", "0"), "range|step"),
    "a finer step": (put(SPEC, "outputs", 2, "step", "1/1000"), "prescribe"),
    "a step that float32 cannot tell apart": (put(SPEC, "outputs", 2, "step", "1/100000000"), "apart|digits"),
    "a step of many digits": (put(SPEC, "outputs", 2, "step", "1000001/100000003"), "digits"),
    "a wider range": (put(SPEC, "outputs", 2, "upper", "90"), "prescribe"),
    "an empty range": (put(SPEC, "outputs", 2, "upper", "-1"), "no multiple"),
    "a range beyond float32": (put(SPEC, "outputs", 2, "upper", "1000000"), "apart"),
    "a range beyond everything": (put(SPEC, "outputs", 2, "upper", "1" + "0" * 500), "range"),
    "a real input made whole": (put(SPEC, "inputs", 2, "step", "1"), "prescribe|no multiple"),
    "a whole input made real": (put(SPEC, "inputs", 0, "step", None), "prescribe|slope|one_hot"),
    "an end next to 0": (put(SPEC, "inputs", 2, "upper", "1/" + str(2**110)), "close to 0|prescribe"),
    "another rule": (put(SPEC, "rules", 1, "clauses", 0, 0, "bound", "1"), "prescribe"),
    "a stricter rule": (put(SPEC, "rules", 4, "clauses", 0, 0, "strict", True), "prescribe"),
    "another tree": (put("program", "tree", [0, None, None]), "tensor|tree|range"),
    "a tree of an unknown region": (put("program", "tree", [99, None, None]), "region"),
    "a cut of no input": (put("program", "tree", [{"input": 9, "at": "1"}, None, None]), "index"),
    "a cut between steps": (put("program", "tree", [{"input": 0, "at": "1/2"}, None, None]), "whole number"),
    "a cut between floats": (put("program", "tree", [{"input": 2, "at": "1/10"}, None, None]), "float32"),
    "a cut beyond floats": (put("program", "tree", [{"input": 2, "at": "1" + "0" * 60}, None, None]), "float32"),
    "a cut with more to say": (put("program", "tree", [{"input": 2, "at": "0", "x": 1}, None, None]), "unknown field"),
    "a cut that is no number": (put("program", "tree", [{"input": 2, "at": 1}, None, None]), "number"),
    "a tree that is a text": (put("program", "tree", "null"), "tree"),
    "a field more": (put("program", "precision", "float32"), "unknown field"),
    "a proof for nothing": (
        put("proof", "safe", [{"leaf": 7, "rule": 0, "region": 0, "clause": 0, "literal": 0, "mu": []}]),
        "no obligation",
    ),
    "a proof of another kind": (put("proof", {"safe": [], "pairs": []}), "unknown field"),
    "another gate": (put("gate", "regions", [0]), "gate"),
    "labels that exclude each other": (put(SPEC, "rules", 0, "exclusions", {"offset": 0, "count": 0}), "prescribe|"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_are_refused(issued, name):
    change, reason = HOSTILE[name]
    document = copy.deepcopy(issued.document)
    change(document)
    if name == "labels that exclude each other":  # none are named: nothing is said
        checked(issued, document, issued.tensors)
        return
    with pytest.raises(smle_check.Rejected, match=reason):
        checked(issued, document, issued.tensors)


def test_steps_in_other_heads_are_refused():
    from smle.heads.rules.author import certify_rules

    spec = Specification.from_yaml("inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: 0 <= y <= 1}]\n")
    plain = certify_rules(spec)
    document = copy.deepcopy(plain.document)
    document["specification"]["inputs"][0]["step"] = None
    with pytest.raises(smle_check.Rejected, match="only a grid head"):
        checked(plain, document, plain.tensors)


def safe_changed(issued, name, place, value):
    numbers = list(struct.unpack(f"<{len(issued.tensors[name].data) // 8}d", issued.tensors[name].data))
    numbers[place] = value
    return {**issued.tensors, name: issued.tensors[name]._replace(data=struct.pack(f"<{len(numbers)}d", *numbers))}


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
def test_safe_answers_that_are_not_whole_or_too_large_are_refused(issued, name, place, value, reason):
    with pytest.raises(smle_check.Rejected, match=reason):
        checked(issued, issued.document, safe_changed(issued, name, place, value))
