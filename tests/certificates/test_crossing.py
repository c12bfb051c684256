"""Certificates of boxes whose bounds cross: the truth is certified, cuts cover, and changed proofs are refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import smle_check
from smle.errors import NotCertifiedError
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.regions.cell_search import find_cells
from smle.rules import Specification
from support.builder import CROSSING, Package, case, crossing, crossing_bounds, deployed_head, issued
from support.exact_judge import doubts


def refused(package: Package, reason: str) -> None:
    with pytest.raises(smle_check.Rejected, match=reason):
        package.seal().check()


def entry(package: Package, kind: str) -> dict:
    return next(proof for proof in package.document["proof"]["obligations"] if kind in proof)


def test_cuts_and_gaps_are_used() -> None:
    package = case("crossing")
    nodes = entry(package, "cases")["cases"]
    assert sum("unit" in node for node in nodes) >= 1
    assert [gap[0] for gap in entry(package, "gaps")["gaps"]] == [0, 1, 2]
    rows = len(package.document["specification"]["rows"])
    assert any(row >= rows for node in nodes for row, _ in node.get("mu", ()))  # a cut is a row
    exclusions = entry(case("crossing labels"), "exclusions")["exclusions"]
    assert exclusions["weights"] is not None
    assert exclusions["cases"]


@pytest.mark.parametrize("exponent", [4, 7, 10, 13, 16, 18])
def test_truth_ladder(exponent: int) -> None:
    """The worst case is known exactly: room above rounding is certified, a violation never is."""
    package = crossing(2.0**-exponent)
    margin = min(item.margin for item in package.check())
    assert 0 < margin < Fraction(1, 2**exponent)
    assert float(margin) > 2.0**-exponent - 4e-6
    assert doubts(package.document, package.weights, package.block) is None
    with pytest.raises(NotCertifiedError, match="Rule 'top' is not proved"):
        crossing(-(2.0**-exponent))


def test_exact_touch_is_not_certified() -> None:
    with pytest.raises(NotCertifiedError, match="Rule 'top' is not proved"):
        crossing(0.0)


def test_deployed_program_reaches_the_margin_and_no_further() -> None:
    """Corners through the deployed program: y <= 1 holds, and by no more than was left."""
    package = crossing(2.0**-10)
    head = deployed_head(package)
    x = np.array([[1, -0.5], [1, -1], [-1, -1], [-1, 1], [-0.5, 1]], "f4")
    for value in (np.inf, np.nan, 3e38):
        y = head(x, np.full((5, 3), value, "f4"))
        assert (y <= 1).all()
        assert y.max() > 1 - 2.0**-9
    lower = head(x, np.full((5, 3), -np.inf, "f4"))
    bounds = crossing_bounds()
    z = bounds.lower + x @ bounds.lower_slope.T
    weight, bias = package.weights["heads.weight"][0, 0], package.weights["heads.bias"][0, 0]
    np.testing.assert_allclose(lower[:, 0], z @ weight + bias, rtol=1e-5)


# --- Changed proofs ---------------------------------------------------------------------------------------------------


def test_missing_surplus_and_swapped_cases_are_refused() -> None:
    count = len(entry(case("crossing"), "cases")["cases"])
    for at in range(count):
        package = case("crossing")
        del entry(package, "cases")["cases"][at]
        refused(package, "without a proof|belong to no cut|not proved|does not bind here|index below|same unit")
    package = case("crossing")
    nodes = entry(package, "cases")["cases"]
    nodes.append(nodes[-1])
    refused(package, "belong to no cut")
    package = case("crossing")
    entry(package, "cases")["cases"] = entry(package, "cases")["cases"][::-1]
    refused(package, "belong to no cut|without a proof|does not bind here|index below|not proved")
    package = case("crossing")
    nodes = entry(package, "cases")["cases"]
    leaf = next(node for node in nodes if "lambda" in node)
    entry(package, "cases")["cases"] = [{**leaf, "mu": []}]
    refused(package, "not proved")  # the line above max(l, u) is not enough


@pytest.mark.parametrize(
    ("unit", "reason"),
    [(3, "index below 3"), (-1, "index below"), ("0", "index below"), (None, "index"), (True, "index")],
)
def test_cuts_name_a_unit(unit: object, reason: str) -> None:
    package = case("crossing")
    next(node for node in entry(package, "cases")["cases"] if "unit" in node)["unit"] = unit
    refused(package, reason)


def test_a_unit_is_cut_once_on_the_way() -> None:
    package = case("crossing")
    nodes = entry(package, "cases")["cases"]
    nodes[1] = dict(nodes[0])
    refused(package, "the same unit twice")


def test_cuts_have_no_other_fields() -> None:
    package = case("crossing")
    entry(package, "cases")["cases"][0]["crossed"] = True
    refused(package, "unknown field")


def test_a_cut_is_a_row_behind_it_only() -> None:
    """The row of a cut is not there in cases that it does not lead to, nor that of a unit without a cut."""
    rows = len(case("crossing").document["specification"]["rows"])
    package = case("crossing")
    leaf = next(node for node in entry(package, "cases")["cases"] if "lambda" in node)
    leaf["mu"] = [[rows + 2, "1"]]
    refused(package, "does not bind here|index below")
    package = case("affine")
    node = package.document["proof"]["obligations"][0]["cases"][0]
    node["mu"] = [[len(package.document["specification"]["rows"]), "1"]]
    refused(package, "does not bind here|index below")


def test_emptiness_is_not_believed() -> None:
    package = case("crossing")
    nodes = entry(package, "cases")["cases"]
    nodes[next(i for i, node in enumerate(nodes) if "lambda" in node)] = {"empty": []}
    refused(package, "not proved empty")


def test_without_gaps_less_is_proved() -> None:
    """Over the whole domain the lines above max(l, u) are higher: gaps are hints, and needed here."""
    package = case("crossing")
    package.document["proof"]["obligations"].remove(entry(package, "gaps"))
    refused(package, "not proved")


GAPS = {
    "slope above 1": (lambda gap: [gap[0], "2", *gap[2:]], "slope in 0 .. 1"),
    "slope below 0": (lambda gap: [gap[0], "-1/2", *gap[2:]], "slope in 0 .. 1"),
    "slope that is no float32": (lambda gap: [gap[0], "1/3", *gap[2:]], "slope in 0 .. 1"),
    "another unit": (lambda gap: [gap[0] + 1, *gap[1:]], "the same unit twice"),
    "no such unit": (lambda gap: [3, *gap[1:]], "index below 3"),
    "a part missing": (lambda gap: gap[:3], r"expected \[unit"),
    "a negative multiplier": (lambda gap: [*gap[:3], [[0, "-1"]]], "negative multiplier"),
    "a row that does not bind": (lambda gap: [*gap[:3], [[1, "1"]]], "does not bind here|index below"),
    "a cut as a row": (lambda gap: [*gap[:3], [[2, "1"]]], "does not bind here|index below"),
}


@pytest.mark.parametrize("what", list(GAPS))
def test_hostile_gaps_are_refused(what: str) -> None:
    change, reason = GAPS[what]
    package = case("crossing")
    gaps = entry(package, "gaps")["gaps"]
    gaps[0] = change(gaps[0])
    refused(package, reason)


def test_gaps_without_their_multipliers_prove_less() -> None:
    package = case("crossing")
    for gap in entry(package, "gaps")["gaps"]:
        gap[1:] = ["1", [], []]
    refused(package, "not proved")


def test_gaps_belong_to_a_region_with_rules_and_to_affine_bounds() -> None:
    package = case("crossing")
    package.document["proof"]["obligations"].append({"head": 1, "region": None, "gaps": []})
    refused(package, "is for no obligation")
    package = case("crossing")
    package.document["proof"]["obligations"].append(entry(package, "gaps"))
    refused(package, "given twice")
    package = case("braking")
    package.document["proof"]["obligations"].append({"head": 0, "region": None, "gaps": []})
    refused(package, "only affine bounds")


def test_exclusions_by_cases_and_by_weights_cover_all_pairs() -> None:
    package = case("crossing labels")
    entry(package, "exclusions")["exclusions"]["cases"] = []
    refused(package, "is not proved|outside of certificate.bin")
    package = case("crossing labels")
    entry(package, "exclusions")["exclusions"]["weights"] = None
    refused(package, "one proof per pair")
    package = case("crossing labels")
    cases = entry(package, "exclusions")["exclusions"]["cases"]
    cases.append(cases[0])
    refused(package, "a pair given twice")
    package = case("crossing labels")
    entry(package, "exclusions")["exclusions"]["cases"][0][0] = 3
    refused(package, "index below 3")
    package = case("crossing labels")
    entry(package, "exclusions")["exclusions"]["cases"][0] = [1]
    refused(package, "expected .pair, cases")


def test_too_many_cuts_on_the_way_are_refused() -> None:
    """A chain of cuts longer than any proof needs is refused before it costs much."""
    n = 300
    spec = Specification.from_yaml(CROSSING)
    cells = find_cells(spec)
    slope = np.tile(np.array([[0.5, 0.25]], "f4"), (n, 1))
    bounds = Bounds(np.full(n, -0.25, "f4"), np.full(n, 0.25, "f4"), slope, slope)
    head = Head(np.full((1, n), 2.0**-10, "f4"), np.zeros(1, "f4"))
    package = issued(spec, cells, FrozenHeads(bounds, (head,) * (len(cells) - 1) + (None,)))
    (leaf,) = entry(package, "cases")["cases"]
    for depth, reason in ((200, None), (n, "too many units")):
        chain = [{"unit": i} for i in range(depth)] + [leaf] * (depth + 1)
        entry(package, "cases")["cases"] = chain
        if reason is None:
            assert package.seal().check()
        else:
            refused(package, reason)
