"""Proposals: what is asked again, and parts of what is allowed that are single numbers."""

from __future__ import annotations

import numpy as np
import pytest

from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from support.exported import columns_of, session
from support.joined import asked, joined


def test_open_rows_are_proposed_again_and_others_not():
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: [p, q]\nrules:\n  - {name: r, then: p + q <= 1 and p >= 0}\n"
    )
    proposals = Candidates(certify_rules(spec, scale=[1.0, 1.0])).proposals
    X, t = np.zeros((3, 1)), np.array([[2.0, 2.0], [3.0, 0.0], [-1.0, 0.0]])
    safe = np.full((3, 2), 0.25)
    candidates = proposals.further(*proposals.first(np.ones((3, 2), dtype=bool), X, t), safe)
    first, way = next(candidates)
    assert way == 1
    np.testing.assert_allclose(first, [[0.5, 0.5], [2.0, -1.0], [0.0, 0.0]], atol=1e-6)
    second, _ = candidates.send(np.array([True, False, True]))
    assert second.shape == (2, 2)
    *_, (last, way) = candidates  # nothing passes: at last the safe answer
    assert way == 2
    np.testing.assert_array_equal(last, safe[[0, 2]].astype(np.float32))


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_part_that_is_a_single_number_is_found(unit, sign):
    """y is 0, or beyond 100 units; with 0 the other output has more room."""
    ends = "y >= 0" if sign > 0 else "y <= 0"
    far = f"y <= 0 or y >= {100 * unit:g}" if sign > 0 else f"y >= 0 or y <= {-100 * unit:g}"
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: [a, y]\nrules:\n"
        f"  - {{name: r, then: a {'+' if sign > 0 else '-'} {1 / unit:g} * y <= 1000}}\n"
        f"  - {{name: p, then: {ends}}}\n  - {{name: g, then: {far}}}\n"
    )
    certificate = certify_rules(spec, scale=[1.0, unit], files={"rules": spec.to_yaml().encode()})
    t = np.float32([[1040, sign * 20 * unit], [1010, -sign * 7 * unit], [1000.5, sign * 49 * unit]] * 6)
    X = np.zeros((len(t), 1), dtype=np.float32)
    for rows in (1, 3, len(t)):
        served = Candidates(certificate)(X[:rows], t[:rows])
        assert (served[:, 1] == 0).all()
        assert (served[:, 0] > 999.99).all()
    exported = columns_of(spec, asked(session(joined(spec, certificate).onnx), spec, X, t))
    assert (exported[:, 1] == 0).all()
    assert (exported[:, 0] > 999.9).all()
