"""Tables and arrays are read alike at every door, of torch, estimators and functions: one function reads numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn

import smle
from smle import SafeRegressor, Specification, correct
from smle.errors import DataError
from smle.nn import BoxNetwork, SafeNetwork

RULES = """
inputs: {x: {range: [0, 1], missing: 0.9}, w: [0, 1]}
outputs: [y]
rules:
  - {name: low, when: x < 0.7, then: y <= 0}
  - {name: high, when: x >= 0.7, then: y >= 1}
"""
SPEC = Specification.from_yaml(RULES)


class Half(nn.Module):
    """Answers 0.5, which every rule moves to its own side."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(*x.shape[:-1], len(self.value))


def stored_box(folder: object) -> nn.Module:
    network = smle.project(BoxNetwork(Half(4), SPEC, embedding=4))
    network.save(f"{folder}/model")
    return smle.load(f"{folder}/model", backbone=Half(4))


def estimator(spec: Specification) -> SafeRegressor:
    X = np.random.default_rng(0).uniform(size=(40, 2))
    inside = make_pipeline(SimpleImputer(), Ridge())
    return SafeRegressor(spec, inside, compare=False).fit(X, np.where(X[:, 0] < 0.7, -1.0, 2.0))


DOORS = {
    "estimator": lambda folder: estimator(SPEC),
    "correct": lambda folder: correct(Half(), SPEC),
    "network": lambda folder: SafeNetwork(Half(), SPEC),
    "stored box": stored_box,
    "function": lambda folder: correct(lambda table: np.full(len(np.asarray(table)), 0.5), SPEC),
}
POINT_SEVEN = np.array([[0.7, 0.5]], dtype=np.float32)  # just below 0.7, but 0.7 as float32 reads the rule
MASKED = np.ma.MaskedArray([[0.1, 0.5], [0.1, 0.5]], mask=[[True, False], [False, False]])
TABLES = {
    "float32": (POINT_SEVEN, [1]),
    "big-endian float32": (POINT_SEVEN.astype(">f4"), [1]),
    "little-endian float32": (POINT_SEVEN.astype("<f4"), [1]),
    "big-endian float32, by name": (pd.DataFrame(POINT_SEVEN.astype(">f4"), columns=["x", "w"]), [1]),
    "float32 in float64": (POINT_SEVEN.astype(np.float64), [0]),
    "big-endian float64": (POINT_SEVEN.astype(">f8"), [0]),
    "float16": (np.array([[0.75, 0.5], [0.5, 0.5]], dtype=np.float16), [1, 0]),
    "masked": (MASKED, [1, 0]),
    "masked, float32": (np.ma.MaskedArray(np.vstack([POINT_SEVEN] * 2), mask=MASKED.mask), [1, 1]),
    "masked, whole": (np.ma.MaskedArray([[0, 1], [0, 1]], mask=[[True, False], [False, False]]), [1, 0]),
    "NaN": (np.array([[np.nan, 0.5], [0.1, 0.5]]), [1, 0]),
    "None": (np.array([[None, 0.5], [0.1, 0.5]], dtype=object), [1, 0]),
    "list with None": ([[None, 0.5], [0.1, 0.5]], [1, 0]),
    "list": ([[0.8, 0.5], [0.1, 0.5]], [1, 0]),
    "table": (pd.DataFrame({"w": [0.5, 0.5], "x": [None, 0.1]}), [1, 0]),
    "whole": (np.array([[1, 0], [0, 1]]), [1, 0]),
    "truth values": (np.array([[True, False], [False, True]]), [1, 0]),
    "beyond": (np.array([[7.0, 0.5], [-7.0, 0.5]]), [1, 0]),
}


@pytest.mark.parametrize("policy", ["raise", "clip"])
@pytest.mark.parametrize("door", DOORS)
def test_every_table_is_read_as_rules_mean_it(door: str, policy: str, tmp_path: object) -> None:
    """Big-endian numbers were read in float64, masks were dropped, and NaN became the lower end."""
    network = DOORS[door](tmp_path)
    for name, (table, sides) in TABLES.items():
        if name == "beyond" and policy == "raise":
            with pytest.raises(DataError, match="outside"):
                network.predict(table)
            continue
        found = np.asarray(network.predict(table, out_of_domain=policy)).ravel()
        assert [int(y > 0.5) for y in found] == sides, name


TENSORS = {
    "float32": torch.tensor(POINT_SEVEN),
    "float64": torch.tensor(POINT_SEVEN).double(),
    "bfloat16": torch.tensor([[0.75, 0.5]], dtype=torch.bfloat16),
    "half": torch.tensor([[0.75, 0.5]], dtype=torch.float16),
    "with gradients": torch.tensor(POINT_SEVEN, requires_grad=True),
    "NaN": torch.tensor([[torch.nan, 0.5]]),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_are_read_so_too(kind: str) -> None:
    network = correct(Half(), SPEC)
    assert network.predict(TENSORS[kind], out_of_domain="clip").item() == (kind != "float64")
    steps = torch.stack([TENSORS[kind]] * 3)
    np.testing.assert_array_equal(network.predict(steps).ravel(), [float(kind != "float64")] * 3)


def test_what_is_missing_without_a_stand_in_is_refused() -> None:
    bare = Specification.from_yaml(RULES.replace("{range: [0, 1], missing: 0.9}", "[0, 1]"))
    network, fitted = correct(Half(), bare), estimator(bare)
    for table in (MASKED, [[None, 0.5]], np.array([[np.nan, 0.5]]), torch.tensor([[torch.nan, 0.5]])):
        with pytest.raises(DataError, match=r"'x': 1 of . values are missing"):
            network.predict(table, out_of_domain="clip")
    for kind in (np.float32, np.float64, object):
        with pytest.raises(ValueError, match=r"missing|NaN"):
            fitted.predict(MASKED.astype(kind))
        assert (fitted.predict(np.ma.MaskedArray(MASKED.data.astype(kind), mask=False)) <= 0).all()


@pytest.mark.parametrize("table", [[[0.1, 0.2], [0.3]], [["a", 0.5]], np.zeros(2), np.zeros((1, 3)), 5.0])
def test_what_is_no_table_of_numbers_is_refused(table: object) -> None:
    with pytest.raises(DataError):
        correct(Half(), SPEC).predict(table)


CATEGORIES = Specification.from_yaml("""
inputs: {a: [0, 1], kind: {categories: [p, q, r], missing: q}}
outputs: [y]
rules:
  - {name: q, when: kind == q, then: y >= 1}
  - {name: others, when: kind != q, then: y <= 0}
""")


def test_columns_of_categories_hold_one_1_among_zeros() -> None:
    network = correct(Half(), CATEGORIES)
    rows = np.array([[0.5, 0, 1, 0], [0.5, 1, 0, 0]])
    assert network.predict(rows).tolist() == [1, 0]
    assert network.predict(rows.astype(np.float32)).tolist() == [1, 0]
    assert network.predict([[0.5, None, None, None], [0.5, 0, 0, 1]]).tolist() == [1, 0]
    for wrong in ([0, 0, 0], [1, 1, 0], [0.5, 0.5, 0], [2, -1, 0], ["p", "q", "r"]):
        with pytest.raises(DataError, match="Input 'kind': expected"):
            network.predict(np.array([[0.5, *wrong]], dtype=object), out_of_domain="clip")


def test_examples_and_targets_are_read_so_too() -> None:
    masked = np.ma.MaskedArray([[1.0], [2.0], [1e6]], mask=[[False], [False], [True]])
    with pytest.raises(DataError, match="missing or infinite"):
        SafeNetwork(Half(), SPEC, example=(np.full((3, 2), 0.5), masked))
    network = SafeNetwork(nn.Linear(2, 4), SPEC, embedding=4, example=MASKED)
    assert network.backbone.standardize.shift[0].item() == pytest.approx(0.5)  # the mean of 0.9 and 0.1
