"""Constructed models whose worst corner is reachable: violations of 2^-10 .. 2^-22 or 0, and margins of those sizes.

A violation is never accepted, and the torch program shows that it is real. A margin above the rounding bound is
always accepted. Below it "not proved" is the right answer.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.regions.cells import regions_of
from smle.rules import Specification
from support.builder import Package, accepted, clause_proof, deployed_head, without_gate, written

TINY = Fraction(1, 2**126)
RUNGS = [Fraction(sign, 2**k) for k in range(10, 23) for sign in (1, -1)] + [Fraction(0)]


def rounding_bound(weights: np.ndarray, sizes: np.ndarray, bias: float) -> Fraction:
    """The error of one output, as the format states it: gamma_(n+1) S + underflow."""
    w, s = [Fraction(float(v)) for v in weights], [Fraction(float(v)) for v in sizes]
    n = len(w)
    gamma = Fraction(n + 1, 2**24 - n - 1)
    size = sum((abs(a) * b for a, b in zip(w, s, strict=True)), abs(Fraction(float(bias))))
    spread = sum((abs(a) + b for a, b in zip(w, s, strict=True)), Fraction(0))
    return gamma * size + TINY * (2 * n + 1 + spread) * (1 + gamma)


def zero_one(n: int) -> Bounds:
    return Bounds(np.zeros(n, "f4"), np.ones(n, "f4"))


def package_of(yaml: str, head: Head, proofs: list, bounds) -> Package:
    spec = Specification.from_yaml(yaml)
    return written(spec, without_gate(regions_of(spec)), FrozenHeads(bounds, (head,)), proofs)


def output(package: Package, x: float, z: float) -> list[Fraction]:
    """Run the deployed program on a backbone that answers z in every unit; exact values."""
    n = package.weights["bounds.lower"].shape[0]
    y = deployed_head(package)(np.array([[x]], dtype=np.float32), np.full((1, n), z, dtype=np.float32))
    return [Fraction(float(v)) for v in y[0]]


AT_MOST = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= 1}]\n"
# A package, an input and an answer of the backbone that reach its worst corner, the outputs there, and whether it must
# be accepted; None: either will do.
Rung = tuple[Package, tuple[float, float], list[Fraction], bool | None]


def single(n: int, operator: str, excess: Fraction) -> Rung:
    """y = sum z_i / (2 n) + 1/2 + excess over [0, 1]^n reaches exactly 1 + excess."""
    W, b = np.full((1, n), 0.5 / n, "f4"), np.float32([0.5 + float(excess)])
    head = Head(W, b, fallback=np.float32([0.5]))
    package = package_of(AT_MOST.replace("<=", operator), head, [clause_proof([1], region=0)], zero_one(n))
    tiny = TINY * sum(Fraction(float(v)) for v in W[0])  # zero is an end of the box: flush-to-zero
    bound = rounding_bound(W[0], 1 + np.zeros(n) + 2 * float(TINY), b[0])
    near = abs(-excess - bound) <= Fraction(1, 2**60) + tiny
    return package, (0.5, 100.0), [1 + excess], None if near else -excess > bound


def exclusions(excess: Fraction) -> Rung:
    """Both logits reach `excess` at the same corner: together they are a violation unless excess < 0."""
    W, b = np.full((2, 2), 0.25, "f4"), np.full(2, -0.5 + float(excess), "f4")
    head = Head(W, b, fallback=np.float32([-1, -1]))
    package = package_of(
        "inputs: {x: [0, 1]}\nlabels: [a, b]\nrules: [{name: r, then: 'at_most_one(a, b)'}]\n", head, [], zero_one(2)
    )
    weights = {"offset": len(package.block)}
    package.block += np.float32([0.5, 0.5]).tobytes()
    package.document["proof"]["obligations"] = [
        {"head": 0, "rule": 0, "region": 0, "exclusions": {"weights": weights, "cases": []}}
    ]
    return package.seal(), (0.5, 100.0), [excess] * 2, -excess > rounding_bound(W[0], np.ones(2), b[0])


def mixture(excess: Fraction) -> Rung:
    """p + q is constant: p > 1 and q > 1 - excess cannot be told apart by one literal alone."""
    W, b = np.float32([[0.5], [-0.5]]), np.float32([0.75, 1.25]) + np.float32(excess)
    head = Head(W, b, fallback=np.float32([0, 0]))
    yaml = "inputs: {x: [0, 1]}\noutputs: [p, q]\nrules: [{name: r, then: p <= 1 or q <= 1}]\n"
    package = package_of(yaml, head, [clause_proof([1, 1], region=0)], zero_one(1))
    bound = sum(rounding_bound(row, np.ones(1), offset) for row, offset in zip(W, b, strict=True)) / 2
    return package, (0.5, 0.5), [1 + excess] * 2, -excess > bound


def affine(excess: Fraction) -> Rung:
    """z is held at x, and the rule speaks of x <= 3/4 alone: the worst corner is at x = 3/4.

    The computed bounds cost gamma_2 |x|, the head gamma_2 (|z| + |b|): about 2^-22 altogether.
    """
    one, head = np.ones((1, 1), "f4"), Head(np.float32([[1.0]]), np.float32([0.25 + float(excess)]))
    bounds, proof = Bounds(np.float32([0.0]), np.float32([0.0]), one, one), clause_proof([1], [[0, 1]], region=0)
    package = package_of(AT_MOST.replace("then", "when: x <= 0.75, then"), head, [proof], bounds)
    wanted = True if -excess >= Fraction(1, 2**21) else False if -excess < Fraction(1, 2**23) else None
    return package, (0.75, -100.0), [1 + excess], wanted


def pass_through(excess: Fraction) -> Rung:
    """y = (1/2 + excess) x against y <= x / 2: violated most at x = 1, the margin is least at x = 1/2."""
    yaml = "inputs: {x: [0.5, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= 0.5 * x}]\n"
    head = Head(np.zeros((1, 1), "f4"), np.float32([0.0]), V=np.float32([[0.5 + float(excess)]]))
    package = package_of(yaml, head, [clause_proof([1], region=0)], zero_one(1))
    return package, (1.0, 0.0), [Fraction(1, 2) + excess], True if -excess >= Fraction(1, 2**20) else None


def fallback(excess: Fraction) -> Rung:
    """NaN takes the fallback: an output like any other, and exact."""
    head = Head(np.float32([[0.25]]), np.float32([0.25]), fallback=np.float32([1 + float(excess)]))
    package = package_of(AT_MOST, head, [clause_proof([1], region=0)], zero_one(1))
    return package, (0.5, float("nan")), [1 + excess], excess <= 0


LADDERS: dict[str, Callable[[Fraction], Rung]] = {
    **{f"y {op} 1, {n} units": partial(single, n, op) for n in (1, 8, 64) for op in ("<=", "<")},
    **{made.__name__: made for made in (exclusions, mixture, affine, pass_through, fallback)},
}


@pytest.mark.parametrize("name", LADDERS)
def test_a_violation_is_never_accepted_and_room_above_rounding_always(name):
    verdicts = set()
    for excess in RUNGS:
        package, (x, z), reached, wanted = LADDERS[name](excess)
        assert output(package, x, z) == reached, "the corner is reached, and nothing is rounded there"
        verdict, spec = accepted(package), Specification.from_yaml(package.files["rules"].decode())
        assert not (verdict and spec.violated([Fraction(x)], reached)), f"a violation by {excess} was accepted"
        assert wanted is None or verdict is wanted, excess
        verdicts.add(verdict)
    assert verdicts == {True, False}


@pytest.mark.parametrize("n", [1, 4, 16])
def test_steps_of_an_ulp_around_the_rounding_bound(n):
    """Every step of 2^-25: accepted exactly where the margin exceeds the bound."""
    seen = set()
    for step in range(4 * (n + 3)):
        b = np.float32([0.5 - step * 2.0**-25])
        W = np.full((1, n), 0.5 / n, "f4")
        package = package_of(AT_MOST, Head(W, b, fallback=b), [clause_proof([1], region=0)], zero_one(n))
        bound = rounding_bound(W[0], np.ones(n), b[0])
        expected = Fraction(step, 2**25) > bound
        assert accepted(package) is expected
        seen.add(expected)
    assert seen == {True, False}


def test_nan_and_infinities_in_the_embedding_stay_inside():
    """The NaN-safe clip: whatever the backbone says, the output is one of the box."""
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: 0 <= y <= 1}]\n"
    proofs = [clause_proof([1], region=0), clause_proof([1], region=0, clause=1)]
    head = Head(np.float32([[0.5]]), np.float32([0.25]), V=np.zeros((1, 1), "f4"))
    package = package_of(yaml, head, proofs, zero_one(1))
    assert accepted(package)
    for z in (float("nan"), float("inf"), float("-inf"), 1e38, -1e38, 1e-45):
        (y,) = output(package, 0.5, z)
        assert Fraction(1, 4) <= y <= Fraction(3, 4)


def test_a_proof_for_float64_weights_is_not_one_for_float32():
    """0.1 + 0.2 <= 0.3 in the reals; the stored float32 numbers exceed it."""
    yaml = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= 0.3}]\n"
    head = Head(np.float32([[0.2]]), np.float32([0.1]), fallback=np.float32([0.1]))
    package = package_of(yaml, head, [clause_proof([1], region=0)], zero_one(1))
    (y,) = output(package, 0.5, 1.0)
    assert y > Fraction(3, 10)
    assert not accepted(package)
