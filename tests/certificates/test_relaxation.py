"""Certificates for network bounds: what is proved is true, cuts cover. test_hostile_documents changes them."""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smle_check
from smle.errors import NotCertifiedError
from smle.heads.box.proof.frozen_heads import Bounds, Layer
from smle_check.heads.box import Hidden, Relaxed
from support.builder import accepted
from support.mutations import attacked
from support.relaxation_cases import Package, doubts, everywhere
from support.sound import sound


def made(name: str) -> Package:
    return sound(f"network {name}")


def boxes_of(package: Package) -> list[dict]:
    """The longest list of cuts and boxes."""
    return max((p["cases"] for p in package.document["proof"]["obligations"]), key=len)


def test_cuts_and_empty_boxes_are_used() -> None:
    assert sum("at" in node for node in boxes_of(made("everywhere"))) >= 1
    assert any("empty" in node for node in boxes_of(made("wedge")))
    (proof,) = (p for p in made("labels").document["proof"]["obligations"])
    assert len(proof["exclusions"]["cases"]) == 3


# --- Truth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [8, 10, 12, 14, 16, 18, 20])
def test_truth_ladder(exponent: int) -> None:
    """The worst case is known exactly: a violation is never certified; room above rounding is, with enough boxes."""
    with pytest.raises(NotCertifiedError):
        everywhere(-(2.0**-exponent))
    if exponent <= 12:
        assert everywhere(2.0**-exponent).check()
    else:
        try:
            package = everywhere(2.0**-exponent)
        except NotCertifiedError:
            return
        assert doubts(package) is None


def test_exact_touch_is_not_certified() -> None:
    with pytest.raises(NotCertifiedError, match="Rule 'top' is not proved: no room is left for rounding"):
        everywhere(0.0)


def test_networks_that_do_not_fit_together_are_refused() -> None:
    hidden, one = (Layer(np.zeros((3, 2)), np.zeros(3)),), np.zeros(1)
    with pytest.raises(ValueError, match="slopes behind hidden layers"):
        Bounds(one, one, hidden=hidden)
    with pytest.raises(ValueError, match="fit together"):
        Bounds(one, one, np.zeros((1, 2)), np.zeros((1, 2)), hidden)
    with pytest.raises(ValueError, match=r"shape \(1,\)"):
        Bounds(one, np.zeros(2), np.zeros((1, 3)), np.zeros((2, 3)), hidden)


# --- Laws of the relaxation ------------------------------------------------------------------------------------------


def f32(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32)


@st.composite
def relaxations(draw: st.DrawFn) -> Hidden:
    """One or two hidden layers over a random box, with any slopes."""
    widths = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(2, 3)))]
    ends = [sorted(draw(st.lists(f32(-3, 3), min_size=2, max_size=2))) for _ in range(widths[0])]
    box = [Fraction(low) for low, _ in ends], [Fraction(high) for _, high in ends]
    hidden: Hidden | None = None
    for d, k in itertools.pairwise(widths):
        rows = [[Fraction(v) for v in draw(st.lists(f32(-4, 4), min_size=d, max_size=d))] for _ in range(k)]
        bias = [Fraction(v) for v in draw(st.lists(f32(-4, 4), min_size=k, max_size=k))]
        slopes = tuple(draw(st.lists(f32(0, 1), min_size=2 * k, max_size=2 * k)))
        hidden = Hidden((rows, bias), box, slopes, hidden)
    assert hidden is not None
    return hidden


def chain(hidden: Hidden) -> list[Hidden]:
    return [*([] if hidden.previous is None else chain(hidden.previous)), hidden]


def points_of(hidden: Hidden, rng: np.random.Generator) -> list[list[Fraction]]:
    """Corners, random points, and points where a unit of the first layer is zero."""
    low, high = hidden.box
    points = [[lo if rng.random() < 0.5 else hi for lo, hi in zip(low, high, strict=True)] for _ in range(6)]
    points += [
        [lo + (hi - lo) * Fraction(int(rng.integers(65)), 64) for lo, hi in zip(low, high, strict=True)]
        for _ in range(6)
    ]
    first = chain(hidden)[0]
    for row, bias in zip(first.weight, first.bias, strict=True):
        x = list(points[int(rng.integers(len(points)))])
        k = int(rng.integers(len(x)))
        if row[k]:
            x[k] = -(bias + sum(w * v for i, (w, v) in enumerate(zip(row, x, strict=True)) if i != k)) / row[k]
            x[k] = min(max(x[k], low[k]), high[k])
            points.append(x)
    return points


def exact_units(layer: Hidden, v: list[Fraction]) -> list[Fraction]:
    sums = [sum((w * value for w, value in zip(row, v, strict=True)), Fraction(0)) for row in layer.weight]
    return [max(total + bias, Fraction(0)) for total, bias in zip(sums, layer.bias, strict=True)]


@given(hidden=relaxations(), seed=st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_any_slopes_bound_the_network_in_rationals(hidden: Hidden, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q = [Fraction(float(v)) for v in rng.normal(size=len(hidden.bias)).astype("f4")]
    constant, slope = hidden.back(q)
    for x in points_of(hidden, rng):
        h = x
        for layer in chain(hidden):
            h = exact_units(layer, h)
            assert all(lo <= v <= hi for lo, v, hi in zip(layer.bottom, h, layer.top, strict=True))
        assert sum(c * v for c, v in zip(q, h, strict=True)) <= constant + sum(
            c * v for c, v in zip(slope, x, strict=True)
        )


@given(hidden=relaxations(), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_float32_in_any_order_stays_inside_the_error(hidden: Hidden, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = hidden.box
    for point in points_of(hidden, rng):
        x = [Fraction(float(np.float32(float(v)))) for v in point]
        if not all(lo <= v <= hi for lo, v, hi in zip(low, x, high, strict=True)):
            continue
        true, got = x, x
        for layer in chain(hidden):
            true = exact_units(layer, true)
            rounded = []
            for row, bias in zip(layer.weight, layer.bias, strict=True):
                terms = [np.float32(float(w)) * np.float32(float(v)) for w, v in zip(row, got, strict=True)]
                total = np.float32(0)
                for term in rng.permutation(np.array([*terms, float(bias)], "f4")):
                    total = np.float32(total + term)
                rounded.append(max(Fraction(float(total)), Fraction(0)))
            got = rounded
            for a, b, error, reach in zip(got, true, layer.errors, layer.reach, strict=True):
                assert abs(a - b) <= error
                assert a <= reach


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_head_bound_covers_the_float32_program(seed: int) -> None:
    """g.y of the clipped float32 program, sums in random order and z at the worst corner, is below the bound."""
    rng = np.random.default_rng(seed)
    n, d, k, m = 3, 2, 3, 2
    spec = smle_check.StatedSpecification(made("everywhere").document["specification"], b"")
    arrays = {
        "bounds.hidden.0.weight": rng.normal(size=(k, d)), "bounds.hidden.0.bias": rng.normal(size=k),
        "bounds.hidden.1.weight": rng.normal(size=(k, k)), "bounds.hidden.1.bias": rng.normal(size=k),
        "bounds.lower": rng.normal(size=n), "bounds.lower_slope": rng.normal(size=(n, k)),
        "bounds.upper": rng.normal(size=n), "bounds.upper_slope": rng.normal(size=(n, k)),
        "heads.weight": rng.normal(size=(m, n)), "heads.bias": rng.normal(size=m),
    }  # fmt: skip
    arrays = {name: (value * rng.choice([0.01, 1, 100])).astype("f4") for name, value in arrays.items()}
    block = rng.random(4 * k).astype("<f4").tobytes()
    tensors = {name: smle_check.Tensor("F32", value.shape, value.tobytes()) for name, value in arrays.items()}
    W, b = ([Fraction(float(v)) for v in arrays[name].reshape(-1)] for name in ("heads.weight", "heads.bias"))
    spec.outputs = ["y", "w"]
    head = Relaxed(spec, tensors, block, (W, [], b)).over((spec.low, spec.high), 0)
    g = {0: Fraction(int(rng.integers(1, 4))), 1: Fraction(-int(rng.integers(1, 4)))}
    constant, slope = head.worst(g, head.bounds.tops)
    constant += sum(abs(value) * head.errors[j] for j, value in g.items())

    def product(weights: np.ndarray, vector: np.ndarray, offset: np.float32) -> np.float32:
        terms = rng.permutation(np.append(weights * vector, offset).astype("f4"))
        total = np.float32(0)
        for term in terms:
            total = np.float32(total + term)
        return total

    direction = sum(float(v) * arrays["heads.weight"][j] for j, v in g.items())
    for x in [*rng.uniform(-1, 1, (8, d)).astype("f4"), *np.float32([[1, 1], [-1, 1], [1, -1], [-1, -1]])]:
        h = x
        for i in range(2):
            layer = zip(arrays[f"bounds.hidden.{i}.weight"], arrays[f"bounds.hidden.{i}.bias"], strict=True)
            h = np.maximum(np.float32([product(w, h, o) for w, o in layer]), np.float32(0))
        low, high = (
            np.float32(
                [product(w, h, o) for w, o in zip(arrays[f"bounds.{s}_slope"], arrays[f"bounds.{s}"], strict=True)]
            )
            for s in ("lower", "upper")
        )
        z = np.where(direction > 0, np.float32(np.inf), np.float32(-np.inf))
        z = np.where(rng.random(n) < 0.1, np.float32(np.nan), z)
        lowered = np.where(z <= high, z, high)
        clipped = np.where(lowered >= low, lowered, low).astype("f4")
        y = [product(w, clipped, o) for w, o in zip(arrays["heads.weight"], arrays["heads.bias"], strict=True)]
        value = sum(v * Fraction(float(y[j])) for j, v in g.items())
        assert value <= constant + sum(c * Fraction(float(x[at])) for at, c in slope.items())


# --- Changed proofs ---------------------------------------------------------------------------------------------------


def test_moved_cuts_are_accepted_only_if_true() -> None:
    package = made("everywhere")
    next(node for node in boxes_of(package) if "at" in node)["at"] = "3/4"
    try:
        package.seal().check()
    except smle_check.Rejected:
        return
    assert doubts(package) is None


def changed(rng: random.Random, package: Package) -> str:
    """Change a slope, which is a hint, or what else a certificate and its weights hold; digests are made new."""
    if rng.random() < 0.75:
        return attacked(rng, package, rules=False)[0]
    at = 4 * rng.randrange(len(package.block) // 4)
    package.block = package.block[:at] + struct.pack("<f", rng.random()) + package.block[at + 4 :]
    return "slope"


def run_changes(count: int, seed: int) -> Counter:
    rng, tally = random.Random(seed), Counter()
    for _ in range(count):
        package = made(rng.choice(["everywhere", "wedge", "tent"]))
        what = changed(rng, package)
        if not accepted(package.seal()):
            tally["rejected"] += 1
            continue
        assert all(np.isfinite(v).all() for v in package.weights.values())
        reason = doubts(package)
        assert reason is None, f"{what}: accepted, but {reason}"
        tally["accepted, judge agrees"] += 1
    return tally


def test_changed_models_are_accepted_only_if_true() -> None:
    tally = run_changes(120, seed=1)
    assert tally["rejected"] > 30
    assert tally["accepted, judge agrees"] > 10


@pytest.mark.audit
def test_six_hundred_changed_models() -> None:
    assert sum(run_changes(600, seed=2).values()) == 600
