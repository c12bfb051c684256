"""`smle.counterexample`: the paper's strongest one, against enumeration of the corners of small boxes."""

import itertools

import numpy as np
import pandas as pd
import pytest

import smle
from smle.errors import RuleError
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.regions.cell_search import find_cells
from smle.rules import Specification

SPEC = Specification.from_yaml("""
inputs: {a: [0, 3], road: {categories: [dry, icy]}}
outputs: [y, z]
rules:
  - {name: sum, then: 2 * y + z <= 1}
  - {name: low, when: a >= 2, then: 3 * y >= -1}
  - {name: gap, when: road == icy, then: z <= 0 or z >= 3}
""")


class Box:
    """What a network with the paper's box hands over."""

    def __init__(self, spec, heads, low, high):
        self.spec, self.cells = spec, find_cells(spec)
        self._heads = FrozenHeads(Bounds(low, high), heads)

    def frozen_heads(self):
        return self._heads


def corners(low, high):
    return np.array(list(itertools.product(*zip(low, high, strict=True))))


def box(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    cells = find_cells(SPEC)
    heads = tuple(Head(scale * rng.normal(size=(2, 3)), rng.normal(size=2)) for _ in cells)
    return Box(SPEC, heads, -np.ones(3), np.array([1.0, 0.5, 2.0]))


@pytest.mark.parametrize("seed", range(4))
def test_linear_rules_are_broken_as_much_as_a_corner_breaks_them(seed):
    network = box(seed)
    for rule, excess, binds in (
        ("sum", lambda y: 2 * y[:, 0] + y[:, 1] - 1, lambda cell: True),
        ("low", lambda y: -1 - 3 * y[:, 0], lambda cell: any(SPEC.rules[1].regions[0] == p for p in cell)),
    ):
        strengths = []
        for head, active in zip(network.frozen_heads().heads, network.cells, strict=True):
            if binds([network.cells.polytope(region) for region in active]):
                y = corners([-1, -1, -1], [1, 0.5, 2]) @ head.W.T.astype(np.float64) + head.b
                strengths.append(max(0.0, float(excess(y).max())))
        found = smle.counterexample(network, rule)
        assert (0.0 if found is None else found.strength) == pytest.approx(max(strengths), rel=1e-4, abs=1e-5)
        if found is not None:
            assert found.rules == (rule,)
            assert (found.z >= -1).all()
            head = network.frozen_heads().heads[found.head]
            assert list(found.y.values()) == pytest.approx(head.W @ found.z + head.b, rel=1e-6)


def test_all_rules_together_are_summed():
    head = Head(np.array([[1.0], [0.0]]), np.array([0.0, -9.0]))
    spec = Specification.build(inputs={"a": (0, 1)}, outputs=["y", "z"], rules={"p": "y <= 0.5", "q": "2 * y <= 0.4"})
    found = smle.counterexample(Box(spec, (head,), [0.0], [1.0]))
    assert found.strength == pytest.approx(0.5 + 1.6, rel=1e-4)
    assert found.rules == ("q", "p")
    assert found.rule == "q"
    assert found.x.keys() == {"a"}
    assert found.z == pytest.approx([1.0])
    assert "smle.attack" in repr(found)


def test_alternatives_and_exclusions_have_counterexamples():
    head = Head(np.array([[4.0], [-4.0]]), np.array([0.0, 1.0]))
    gap = Specification.build(inputs={"a": (0, 1)}, outputs=["y", "z"], rules={"gap": "y <= 0 or y >= 3"})
    found = smle.counterexample(Box(gap, (head,), [0.0], [1.0]))
    assert found.strength == pytest.approx(1.5, rel=1e-3)
    assert found.y["y"] == pytest.approx(1.5, rel=1e-3)
    labels = Specification.build(inputs={"a": (0, 1)}, labels=["p", "q"], rules={"pair": "not (p and q)"})
    found = smle.counterexample(Box(labels, (head,), [0.0], [1.0]))
    assert found.rule == "pair"
    assert found.strength == pytest.approx(0.5, rel=1e-3), "both are 0.5 where 4 z = 1 - 4 z"
    safe = Head(np.array([[4.0], [-4.0]]), np.array([0.0, -0.5]))
    assert smle.counterexample(Box(labels, (safe,), [0.0], [1.0])) is None


def test_behind_a_head_of_rules_there_is_none_to_search():
    corrected = smle.correct(lambda t: np.zeros((len(t), 2)), SPEC)
    with pytest.raises(TypeError, match=r"checks each answer before it is served.*smle.attack\(model\)"):
        smle.counterexample(corrected)
    with pytest.raises(TypeError, match=r"Got DataFrame.*smle.attack\(model, specification\)"):
        smle.counterexample(pd.DataFrame())
    with pytest.raises(RuleError, match="Known: sum, low, gap"):
        smle.counterexample(box(0), "none")


def test_a_certified_box_has_none():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(0, 3, 80), "road": rng.choice(["dry", "icy"], 80)})
    y = pd.DataFrame({"y": X["a"] / 9, "z": -X["a"]})
    spec = Specification.build(inputs=SPEC.inputs, outputs=SPEC.outputs, rules=SPEC.rules[:2])
    model = smle.SMLERegressor(spec, max_epochs=2).fit(X, y)
    assert smle.counterexample(model) is None
    assert not smle.attack(model, tries=800).found
