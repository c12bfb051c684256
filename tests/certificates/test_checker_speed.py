"""The checker is quick: a hundred rules over 256 units with affine bounds, and exclusions in large numbers."""

import time

import numpy as np

from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.regions.cells import regions_of
from smle.rules import Specification
from support.builder import Package, clause_proof, unit_box, without_gate, written


def many_rules(rules: int, n: int, *, d: int = 8, m: int = 4) -> Package:
    """One head with affine bounds; each rule binds on an interval of its own and uses its multipliers."""
    rng = np.random.default_rng(0)
    lines = [
        "inputs: {" + ", ".join(f"x{i}: [0, 1]" for i in range(d)) + "}",
        "outputs: [" + ", ".join(f"y{i}" for i in range(m)) + "]",
        "rules:",
    ]
    for r in range(rules):
        form = " + ".join(f"0.{rng.integers(1, 9)} * y{i}" for i in range(m))
        region = f"x0 >= {r / rules:.6f} and x0 <= {(r + 1) / rules:.6f}"
        lines.append(f"  - {{name: r{r}, when: {region}, then: {form} <= 5}}")
    spec = Specification.from_yaml("\n".join(lines) + "\n")
    cells = without_gate(regions_of(spec))
    slope = rng.uniform(-0.1, 0.1, (n, d)).astype("f4")
    bounds = Bounds(-np.ones(n, "f4"), np.ones(n, "f4"), slope, slope + np.float32(0.01))
    head = Head((rng.uniform(-1, 1, (m, n)) / n).astype("f4"), np.zeros(m, "f4"))
    proofs = [
        clause_proof([1], [[row, "1/1000"] for row in sorted(cells.regions[r])], rule=r, region=r) for r in range(rules)
    ]
    return written(spec, cells, FrozenHeads(bounds, (head,)), proofs)


def many_pairs(pairs: int, n: int, *, m: int = 500) -> Package:
    rng = np.random.default_rng(0)
    names = ", ".join(f"l{i}" for i in range(m))
    spec = Specification.from_yaml(
        f"inputs: {{x: [0, 1]}}\nlabels: [{names}]\nrules: [{{name: r, then: 'at_most_one(l0, l1)'}}]\n"
    )
    bias = np.full(m, -1.5, "f4")
    head = Head((rng.uniform(-1, 1, (m, n)) / n).astype("f4"), bias, fallback=bias)
    package = written(spec, without_gate(regions_of(spec)), FrozenHeads(unit_box(n), (head,)), [])
    first, second = np.triu_indices(m, 1)
    chosen = rng.permutation(len(first))[:pairs]
    block = np.stack([first[chosen], second[chosen]], axis=1).astype("<u4").tobytes()
    w = np.round(rng.uniform(0.4, 0.6, pairs) * 2**23) / 2**23
    package.document["specification"]["rules"][0]["exclusions"] = {"offset": 0, "count": pairs}
    package.document["proof"]["obligations"] = [
        {"head": 0, "rule": 0, "region": 0, "exclusions": {"weights": {"offset": len(block)}, "cases": []}}
    ]
    package.block = block + np.stack([w, 1 - w], axis=1).astype("<f4").tobytes()
    return package.seal()


def seconds(package: Package) -> float:
    start = time.process_time()
    assert package.check()
    return time.process_time() - start


def test_hundred_rules_and_256_units():
    assert seconds(many_rules(100, 256)) < 10


def test_exclusions_cost_microseconds():
    small, large = seconds(many_pairs(500, 256, m=60)), seconds(many_pairs(1500, 256, m=60))
    assert (large - small) / 1000 < 0.001


def test_hundred_thousand_exclusions():
    assert seconds(many_pairs(100_000, 256)) < 60
