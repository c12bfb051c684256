"""Certificates for every part of the format, also for what nothing issues: accepted, and close to refused."""

from fractions import Fraction

import numpy as np
import pytest

import smle_check
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.regions.cell_search import find_cells
from smle.regions.cells import regions_of
from smle.rules import Specification
from smle_check.reading import number
from support.builder import CASES, Package, accepted, case, clause_proof, of_rules, unit_box, without_gate, written
from support.exact_judge import Judge, doubts

ZERO = Head(np.zeros((1, 1), "f4"), np.zeros(1, "f4"), fallback=np.zeros(1, "f4"))


def one_head(yaml: str, head: Head, proofs: list, *, bounds=None) -> Package:
    """A package with one head for all inputs and proofs by hand."""
    spec = Specification.from_yaml(yaml)
    bounds = unit_box(head.W.shape[1]) if bounds is None else bounds
    return written(spec, without_gate(regions_of(spec)), FrozenHeads(bounds, (head,)), proofs)


@pytest.mark.parametrize("name", list(CASES))
def test_builder_agrees_with_smle(name):
    """The constants of domain and gate written from the format's text are those of smle, bit by bit."""
    package = case(name)
    found = of_rules(package)[1]
    assert set(found) == {key for key in package.weights if key.startswith(("domain.", "gate."))}
    for key, value in found.items():
        assert value.dtype == package.weights[key].dtype, key
        assert value.shape == package.weights[key].shape, key
        assert value.tobytes() == package.weights[key].tobytes(), key


def leaves(package: Package) -> list[dict]:
    """The cases that are proved by multipliers."""
    proofs = package.document["proof"]["obligations"]
    return [node for proof in proofs for node in proof.get("cases", ()) if "lambda" in node]


def test_lambda_is_a_direction():
    """Only the ratio of lambda counts, in whatever way it is written."""
    for scale in (Fraction(1), Fraction(1, 3), Fraction(10**30), Fraction(1, 10**30)):
        package = case("clauses")
        for proof in leaves(package):
            proof["lambda"] = [str(number(w, "lambda") * scale) for w in proof["lambda"]]
            proof["mu"] = [[r, str(number(v, "mu") * scale)] for r, v in proof["mu"]]
        assert {p.margin for p in package.seal().check()} == {p.margin for p in case("clauses").check()}


def test_rational_multipliers_by_hand():
    """z in [a + b, a + b + 1/16], y = z: y <= 1.1 where a + b <= 1 is proved by mu = 1, with the residual priced."""
    yaml = """
inputs: {a: [0, 1], b: [0, 1]}
outputs: [y]
rules: [{name: corner, when: a + b <= 1, then: y <= 1.1}]
"""
    slope = np.ones((1, 2), "f4")
    bounds = Bounds(np.float32([0.0]), np.float32([0.0625]), slope, slope)
    head = Head(np.float32([[1.0]]), np.float32([0.0]))

    def margin(mu: Fraction) -> bool:
        return accepted(one_head(yaml, head, [clause_proof([1], [[0, mu]], region=0)], bounds=bounds))

    assert margin(Fraction(1))
    assert margin(Fraction(99, 100))  # pays 1/100 of the domain's size for the rest
    assert not margin(Fraction(9, 10))
    assert margin(Fraction(101, 100))
    assert not margin(Fraction(2))


def test_x_terms_pay_for_the_cast():
    """y = x exactly, but y <= x is not proved: inputs in float64 are cast, and sums are rounded."""
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= x + %s}]\n"
    head = Head(np.zeros((1, 1), "f4"), np.zeros(1, "f4"), V=np.ones((1, 1), "f4"))
    for allowance, expected in (("0", False), ("1/33554432", False), ("1/1048576", True)):
        spec = Specification.from_yaml(yaml % allowance.replace("1/33554432", "2.9e-8").replace("1/1048576", "9.5e-7"))
        over = FrozenHeads(unit_box(1), (head,))
        package = written(spec, without_gate(regions_of(spec)), over, [clause_proof([1], region=0)])
        assert accepted(package) is expected


def test_constant_literals_are_judged_by_strictness():
    """The bound is exactly 0: enough for <=, not for <."""
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= 1}]\n"
    for strict, expected in ((False, True), (True, False)):
        package = one_head(yaml, ZERO, [clause_proof([1], region=0)])
        literal = {"y": [], "x": [], "bound": "0", "strict": strict}
        package.document["specification"]["rules"][0]["clauses"] = [[literal]]
        assert accepted(package.seal()) is expected


def test_mixture_at_zero_needs_weight_on_a_non_strict_literal():
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= 1}]\n"
    for weights, expected in ((["1", "0"], False), (["0", "1"], True), (["1", "1/1000"], True)):
        package = one_head(yaml, ZERO, [])
        zero = {"y": [], "x": [], "bound": "0"}
        package.document["specification"]["rules"][0]["clauses"] = [
            [{**zero, "strict": True}, {**zero, "strict": False}]
        ]
        package.document["proof"]["obligations"] = [clause_proof(weights, region=0)]
        assert accepted(package.seal()) is expected


def test_huge_numbers_are_no_trouble_where_the_claim_is_true():
    package = case("strict")
    package.document["specification"]["rules"][0]["clauses"][0][0]["bound"] = "9" * 500
    assert package.seal().check()


def test_strict_comparisons_conflict_in_both_formats():
    """speed < 0.3 and speed >= 0.3 share no float32 and no float64 number, though 0.3 is neither."""
    package = case("strict")
    (conflict,) = package.document["proof"]["coverage"]["conflicts"]
    assert conflict["regions"] == [0, 1]
    below, above = package.weights["gate.constants_float32"]
    assert -above == np.float32(0.3)
    assert below == np.float32(0.3)  # the program compares strictly


def test_plain_comparisons_that_touch_are_no_conflict():
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: [y]\nrules:\n"
        "  - {name: low, when: x <= 0.3, then: y <= 1}\n  - {name: high, when: x >= 0.3, then: y >= -1}\n"
    )
    cells = find_cells(spec)
    assert cells.conflicts == ()
    heads = (ZERO,) * (len(cells) - cells.free_cell) + (None,) * cells.free_cell
    proofs = [
        clause_proof([1], head=h, rule=r)
        for h, cell in enumerate(cells)
        for r in range(2)
        if any(r in cells.rules[g] for g in cell)
    ]
    over = FrozenHeads(unit_box(1), heads)
    assert accepted(written(spec, cells, over, proofs))
    false = [{"regions": [0, 1], "multipliers": [[0, "1"], [1, "1"]]}]
    with pytest.raises(smle_check.Rejected, match="prove nothing"):
        written(spec, cells, over, proofs, conflicts=false).check()


def test_categories_exclude_each_other_by_their_one_hot_rows():
    package = case("roads")
    stated = len(package.document["specification"]["rows"])
    used = {row for c in package.document["proof"]["coverage"]["conflicts"] for row, _ in c["multipliers"]}
    assert used & {stated, stated + 1}, "the proof uses that at most one column is 1"
    package.document["specification"]["one_hot"] = []
    assert not accepted(package.seal())


def test_categories_in_multipliers_of_clauses():
    """One head for all roads: its bounds on y hold only because exactly one column is 1."""
    package = case("roads without gate")
    stated = len(package.document["specification"]["rows"])
    assert any(row >= stated for proof in leaves(package) for row, _ in proof["mu"])


def test_emptiness_frees_from_obligations():
    """A region that meets no input of the cell needs no clause, if multipliers say so."""
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: never, when: x >= 0.5 and x <= 0.25, then: y <= -9}]\n"
    package = one_head(yaml, ZERO, [{"head": 0, "region": 0, "empty": [[0, "1"], [1, "1"]]}])
    assert package.check() == []
    assert doubts(package.document, package.weights) is None
    package = one_head(yaml, ZERO, [{"head": 0, "region": 0, "empty": [[0, "1"], [1, "1/2"]]}])
    assert not accepted(package)


def test_emptiness_of_touching_strict_regions_is_not_claimed():
    """x < 1/2 and x >= 1/2 share no input, but a cell's polytope is closed: 0 < 0 does not hold."""
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: never, when: x < 0.5 and x >= 0.5, then: y <= -9}]\n"
    assert not accepted(one_head(yaml, ZERO, [{"head": 0, "region": 0, "empty": [[0, "1"], [1, "1"]]}]))


def test_rule_with_several_regions_binds_in_each():
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: ends, when: x <= 0.25 or x >= 0.75, then: y <= 1}]\n"
    both = [clause_proof([1], region=0), clause_proof([1], region=1)]
    assert len(one_head(yaml, ZERO, both).check()) == 2
    for missing in (both[:1], both[1:]):
        with pytest.raises(smle_check.Rejected, match="no proof"):
            one_head(yaml, ZERO, missing).check()


def test_constant_bounds_that_cross_are_kept_as_one_value_and_refused_otherwise():
    """Where l > u the clip gives l, which upper = lower says, too; runtimes differ in what they do with l > u."""
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: -1 <= y <= 1}]\n"
    proofs = [clause_proof([1], region=0), clause_proof([1], region=0, clause=1)]
    head = Head(np.float32([[1.0]]), np.float32([0.0]), fallback=np.float32([0.0]))
    crossing = one_head(yaml, head, proofs, bounds=Bounds(np.float32([0.25]), np.float32([-2.0])))
    assert crossing.weights["bounds.upper"] == crossing.weights["bounds.lower"] == 0.25
    assert accepted(crossing)
    crossing.weights["bounds.upper"] = np.float32([-0.25])
    with pytest.raises(smle_check.Rejected, match="a constant lower bound above its upper one"):
        crossing.seal().check()


@pytest.mark.parametrize("name", list(CASES))
def test_margins_are_not_above_the_exact_optimum(name):
    """What the checker calls the margin is at most the true one (an exact linear program)."""
    package = case(name)
    judge = Judge(package.document, package.weights, package.block)
    optima = [program.value() for what, program, _ in judge.obligations() if "fallback" not in what]
    best = -max(value for value in optima if value is not None)
    assert min(item.margin for item in package.check()) <= best


def test_free_head_is_not_bound():
    package = case("strict")
    package.weights["free.weight"] = package.weights["free.weight"] * np.float32(1e30)
    assert accepted(package.seal())


def test_backbone_may_be_anything():
    package = case("strict")
    package.weights["backbone.0.weight"] = np.float32([np.nan, np.inf])
    package.weights["backbone.1.mean"] = np.float64([1e300])
    assert accepted(package.seal())
