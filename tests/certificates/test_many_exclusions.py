"""Many exclusions: sums in integers are the bound of each pair as a clause, and nothing altered passes."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

import smle_check
from smle.certificates.document import tensors_of
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.heads.box.proof.issue_box import issue
from smle.regions.cells import regions_of
from smle.rules import CNF, Label, NumericInput, Polytope, Rule, Specification
from smle_check.heads import box
from smle_check.stated import exclusion
from support.builder import Package, refusal, unit_box, weights_of, without_gate, written

GRID = 2**23


def head_of(rng: np.random.Generator, m: int, n: int, *, share: float, scale: float = 1.0) -> tuple[Head, Bounds]:
    """A head whose pairs need `share` <= 1 of the reach to hold with equal weights for both labels."""
    lower = rng.uniform(-1, 0, n).astype("f4")
    bounds = Bounds(lower, lower + rng.choice([0.0, 0.5, 2.0], n).astype("f4"))
    W = (rng.normal(size=(m, n)) * scale * 10.0 ** rng.uniform(-3, 0, (m, 1))).astype("f4")
    half = (bounds.upper - bounds.lower) / 2
    bias = -W @ ((bounds.upper + bounds.lower) / 2) - share * np.abs(W) @ half
    return Head(W, bias.astype("f4"), fallback=np.full(m, -1.0, "f4")), bounds


def checked(head: Head, bounds: Bounds) -> box.ExactHead:
    package = written_for(specification(len(head.b)), head, bounds, np.array([[0, 1]]))
    spec = smle_check.StatedSpecification(package.document["specification"], package.block)
    flat = [[Fraction(float(v)) for v in part.reshape(-1)] for part in (head.W, head.b)]
    return box.ExactHead(spec, box.ExactBounds(spec, package.tensors, "constant"), flat[0], [], flat[1])


def specification(m: int) -> Specification:
    names = ", ".join(f"l{i}" for i in range(m))
    return Specification.from_yaml(
        f"inputs: {{x: [0, 1]}}\nlabels: [{names}]\nrules: [{{name: r, then: 'at_most_one(l0, l1)'}}]\n"
    )


def written_for(spec: Specification, head: Head, bounds: Bounds, pairs: np.ndarray) -> Package:
    """A package with these pairs, each with weights in inverse proportion to the sizes of the rows."""
    package = written(spec, without_gate(regions_of(spec)), FrozenHeads(bounds, (head,)), [])
    size = np.abs(head.W.astype("f8")) @ (bounds.upper - bounds.lower).astype("f8") + 1e-30
    w = np.round(size[pairs[:, 1]] / (size[pairs[:, 0]] + size[pairs[:, 1]]) * GRID) / GRID
    block = pairs.astype("<u4").tobytes()
    package.document["specification"]["rules"][0]["exclusions"] = {"offset": 0, "count": len(pairs)}
    package.document["proof"]["obligations"] = [
        {"head": 0, "rule": 0, "region": 0, "exclusions": {"weights": {"offset": len(block)}, "cases": []}}
    ]
    package.block = block + np.stack([w, 1 - w], axis=1).astype("<f4").tobytes()
    return package.seal()


@pytest.mark.parametrize("share", [0.999, 1.0, 1.0 + 2.0**-18, 1.0 + 2.0**-22, 1.1])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_a_pair_is_bounded_as_its_clause_is(share: float, scale: float) -> None:
    """From far off to razor-thin margins, where only all digits decide; with weights of any size."""
    rng = np.random.default_rng(0)
    head, bounds = head_of(rng, 6, int(rng.integers(1, 20)), share=share, scale=scale)
    one = checked(head, bounds)
    for h, k in zip(*np.triu_indices(6, 1), strict=True):
        for weights in [(1.0, 0.0), (0.0, 1.0), (3.0, 5.0), (2.0**-140, 2.0**31), tuple(rng.uniform(0, 1, 2).tolist())]:
            stated = [Fraction(weight) for weight in weights]
            margin = -one.clause_bound(exclusion((int(h), int(k))), stated, [], [], {}, one.bounds.box) / sum(stated)
            if margin > 0:
                assert one.exclusion_margin([(int(h), int(k))], weights, {}) == margin
            else:
                with pytest.raises(smle_check.Rejected, match="is not proved"):
                    one.exclusion_margin([(int(h), int(k))], weights, {})


@pytest.fixture(scope="module")
def package() -> Package:
    rng = np.random.default_rng(1)
    m = 60
    head, bounds = head_of(rng, m, 24, share=1.01)
    pairs = np.stack(np.triu_indices(m, 1), axis=1)
    return written_for(specification(m), head, bounds, pairs)


def test_a_long_list_is_accepted(package: Package) -> None:
    (proved,) = package.check()
    assert proved.margin > 0
    assert "more exclusions" in proved.sentence


def test_a_changed_row_is_rejected(package: Package) -> None:
    changed = package.copy()
    W = changed.weights["heads.weight"].copy()
    sizes = np.abs(W[0]).sum(axis=1)
    W[0, sizes.argmin()] = W[0, sizes.argmax()]
    changed.weights["heads.weight"] = W
    assert f"'l{sizes.argmin()}'" in refusal(changed)


def test_a_changed_offset_of_one_label_is_rejected(package: Package) -> None:
    changed = package.copy()
    b = changed.weights["heads.bias"].copy()
    b[0, 59] *= np.float32(-10)
    changed.weights["heads.bias"] = b
    assert "'l59'" in refusal(changed)


@pytest.mark.audit
def test_a_million_exclusions_in_minutes() -> None:
    """2,000 labels, 256 units, 10^6 pairs: about a minute of one core; 5 minutes are the limit."""
    rng = np.random.default_rng(0)
    m, n = 2000, 256
    head = Head((rng.normal(size=(m, n)) / 16).astype("f4"), np.zeros(m, "f4"), fallback=-np.ones(m, "f4"))
    bias = -np.abs(head.W).sum(axis=1) * np.float32(0.9)
    head = Head(head.W, bias, fallback=-np.ones(m, "f4"))
    first, second = np.triu_indices(m, 1)
    chosen = np.sort(rng.permutation(len(first))[:1_000_000])
    package = written_for(specification(m), head, unit_box(n), np.stack([first[chosen], second[chosen]], axis=1))
    start = time.process_time()
    (proved,) = package.check()
    assert proved.margin > 0
    assert time.process_time() - start < 300


def issued_for(m: int) -> Package:
    """All pairs of m labels through the library; those with the first label need weights of their own."""
    rng = np.random.default_rng(5)
    n = 16
    W = (rng.normal(size=(m, n)) * 10.0 ** rng.uniform(-2, 0, (m, 1))).astype("f4")
    bounds = unit_box(n)
    share = np.where(np.arange(m) == 0, 0.3, 1.05)
    head = Head(W, (-share * np.abs(W).sum(axis=1)).astype("f4"), fallback=np.full(m, -1.0, "f4"))
    pairs = np.stack(np.triu_indices(m, 1), axis=1).astype(np.int32)
    labels = tuple(Label(f"l{i}") for i in range(m))
    rule = Rule("r", (Polytope(),), CNF((), pairs), None, "...")
    spec = Specification((NumericInput("x", Fraction(0), Fraction(1)),), labels, (rule,))
    over = FrozenHeads(bounds, (head,))
    cells = without_gate(regions_of(spec))
    tensors = weights_of(spec, cells, over)
    certificate = issue(spec, cells, over, tensors=tensors_of(tensors), files={})
    return Package(certificate.document, tensors, certificate.block)


@pytest.fixture(scope="module")
def compact() -> Package:
    return issued_for(50)


def test_weights_are_stored_per_label(compact: Package) -> None:
    """1,225 pairs take 8 bytes each for their names, little more for their weights, and some are exceptions."""
    (proof,) = compact.document["proof"]["obligations"]
    weights = proof["exclusions"]["weights"]
    assert set(weights) == {"labels", "exceptions", "count"}
    assert 0 < weights["count"] < 100
    assert len(compact.block) == 1225 * 8 + 50 * 4 + weights["count"] * 16
    (proved,) = compact.check()
    assert proved.margin > 0


def test_every_part_of_the_compact_weights_matters(compact: Package) -> None:
    spot = compact.document["proof"]["obligations"][0]["exclusions"]["weights"]
    zero = compact.copy()
    zero.block = zero.block[: spot["labels"]] + bytes(200) + zero.block[spot["labels"] + 200 :]
    assert "multipliers" in refusal(zero)
    swapped = compact.copy()
    weights = np.frombuffer(swapped.block, "<f4", 50, spot["labels"])[::-1]
    swapped.block = swapped.block[: spot["labels"]] + weights.tobytes() + swapped.block[spot["labels"] + 200 :]
    assert "is not proved" in refusal(swapped)
    without = compact.copy()
    without.document["proof"]["obligations"][0]["exclusions"]["weights"]["count"] = 0
    assert "is not proved" in refusal(without)
    twice = compact.copy()
    entry = slice(spot["exceptions"], spot["exceptions"] + 8)
    data = bytearray(twice.block)
    data[spot["exceptions"] + 8 : spot["exceptions"] + 16] = data[entry]
    twice.block = bytes(data)
    assert "given twice" in refusal(twice)
    for field in ("labels", "exceptions"):
        for value in (-4, 3, 1 << 30, None, "0"):
            moved = compact.copy()
            moved.document["proof"]["obligations"][0]["exclusions"]["weights"][field] = value
            refusal(moved)
    both = compact.copy()
    both.document["proof"]["obligations"][0]["exclusions"]["weights"]["offset"] = 0
    assert "unknown field" in refusal(both)
