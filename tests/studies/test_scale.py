"""The scale bench: exponents, its subjects, and a quick run from end to end."""

from __future__ import annotations

import pytest

from smle.heads.box.network.assurance import verify
from studies.bench.scale import AXES, Axis


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_subjects_grow_along_their_axis_and_hold(axis: Axis) -> None:
    small, large = (axis.subject(size) for size in axis.quick[:2])
    network = small.network()
    grown = large.network()
    sizes = [
        (one.embedding, len(one.spec.columns), len(one.spec.targets), len(net.cells),
         sum(len(r.requirement.clauses) for r in one.spec.rules))
        for one, net in ((small, network), (large, grown))
    ]  # fmt: skip
    changed = [b / a for a, b in zip(*sizes, strict=True) if a != b]
    assert changed
    assert all(change > 1 for change in changed)
    assert verify(network).hold
    assert verify(grown).hold


def test_cells_are_as_many_as_asked_for() -> None:
    (cells,) = [axis for axis in AXES if axis.name == "cells"]
    assert len(cells.subject(8).network().cells) == 8
