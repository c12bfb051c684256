"""Exclusions in float64: the verdicts of the exact checker, and nothing accepted inside the error bound."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from builder import Package
from test_packed_exclusions import GRID, checked, head_of, specification, written_for

from smle.certificates import checker, fast_exclusions
from smle.certificates.document import Certificate
from smle.errors import CertificateError
from smle.guarantees.proof.overapproximation import ConstantBounds, Head

ALL = [(h, k) for h in range(24) for k in range(h + 1, 24)]


def verdict(prove, *arguments) -> Fraction | None:
    try:
        return prove(*arguments)
    except checker.Rejected:
        return None


@pytest.mark.parametrize("seed", range(40))
def test_same_verdicts_and_margins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    share = float(rng.choice([0.8, 0.999, 1.0, 1.0 + 2.0**-18, 1.0 + 2.0**-22, 1.1]))
    head = checked(
        *head_of(rng, 24, int(rng.integers(1, 40)), share=share, scale=float(rng.choice([1e-18, 1.0, 1e18])))
    )
    w = np.round(rng.uniform(0, 1, len(ALL)) * GRID) / GRID
    weights = np.stack([w, 1 - w], axis=1)
    for i in [None, *rng.permutation(len(ALL))[:10]]:
        pairs = ALL if i is None else [ALL[i]]
        lam = tuple((weights if i is None else weights[i]).reshape(-1).tolist())
        exact, fast = (
            verdict(prove, head, pairs, lam)
            for prove in (checker.Head.exclusion_margin, fast_exclusions.exclusion_margin)
        )
        assert (exact is None) == (fast is None)
        if exact is not None:
            assert 0 < fast <= exact
            assert exact - fast <= Fraction(1, 10**6) * max(map(abs, head.middle))


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_margins_inside_the_error_bound_are_left_to_the_exact_checker(monkeypatch, step: int) -> None:
    """Offsets chosen so that a pair holds, just does not, or fails by less than float64 can see."""
    n = 8
    bounds = ConstantBounds(-np.ones(n, "f4"), np.ones(n, "f4"))
    head = checked(Head(np.full((2, n), 0.125, "f4"), np.full(2, -1.0, "f4"), fallback=np.full(2, -1.0, "f4")), bounds)
    # Exactly at the border: sum |a| + top = 1 + top = 0; then a hair of 2^-90 to either side.
    head.middle = [-1 - error + step * Fraction(1, 2**90) for error in head.errors]
    asked = []
    exact = checker.Head.exclusion_margin

    def noted(self, pairs, weights):
        asked.append(len(pairs))
        return exact(self, pairs, weights)

    monkeypatch.setattr(checker.Head, "exclusion_margin", noted)
    assert (verdict(fast_exclusions.exclusion_margin, head, [(0, 1)], (0.5, 0.5)) is not None) == (step < 0)
    assert asked == [1]


@pytest.mark.parametrize("bad", [(0.0, 0.0), (np.nan, 1.0), (-1.0, 2.0), (np.inf, 1.0)])
def test_bad_weights_are_rejected(bad: tuple[float, float]) -> None:
    head = checked(*head_of(np.random.default_rng(0), 4, 5, share=1.5))
    with pytest.raises(checker.Rejected, match="multipliers"):
        fast_exclusions.exclusion_margin(head, [(0, 1), (1, 2)], (0.5, 0.5, *bad))


def certificate(package: Package) -> Certificate:
    return Certificate(package.text, package.block, package.tensors, package.files)


def test_certificates_are_judged_alike() -> None:
    rng = np.random.default_rng(3)
    head, bounds = head_of(rng, 40, 12, share=1.01)
    pairs = np.stack(np.triu_indices(40, 1), axis=1)
    package = written_for(specification(40), head, bounds, pairs)
    (exact,), (fast,) = certificate(package).check(), certificate(package).check(fast=True)
    assert exact[:-1] == fast[:-1]
    assert float(fast.margin) == pytest.approx(float(exact.margin), rel=1e-5)
    for name, row, factor in (("heads.weight", 7, 50.0), ("heads.bias", 9, -10.0)):
        changed = package.copy()
        values = changed.weights[name].copy()
        values[0, row] *= np.float32(factor)
        changed.weights[name] = values
        changed.seal()
        for fast_too in (False, True):
            with pytest.raises(CertificateError, match="is not proved"):
                certificate(changed).check(fast=fast_too)
