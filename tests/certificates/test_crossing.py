"""Certificates of boxes whose bounds cross: the truth is certified, cuts cover. test_hostile_documents changes them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from smle.errors import NotCertifiedError
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.regions.cell_search import find_cells
from smle.rules import Specification
from support.builder import CROSSING, Package, case, crossing, crossing_bounds, deployed_head, issued, refusal
from support.exact_judge import doubts


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
            assert reason in refusal(package)
