"""Stored networks in NumPy: the same numbers as torch's, but for last bits. Golden answers are in tests/golden."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smle.certificates.document import tensors_of
from smle.errors import ModelFormatError
from smle.networks.backbones import MLP
from smle.serving.perceptron import Perceptron
from support.golden_models import built, in_numpy, read


def perceptron(backbone: torch.nn.Module, **changes: np.ndarray) -> Perceptron:
    weights = {f"backbone.{name}": value.numpy() for name, value in backbone.state_dict().items()}
    return Perceptron(tensors_of(weights | changes))


@pytest.mark.parametrize("hidden", [(), (5,), (16, 8)])
def test_a_perceptron_is_that_of_torch(hidden):
    torch.manual_seed(0)
    backbone = MLP(hidden, 7, shift=[1.0, -2, 3], scale=[0.5, 2, 1]).requires_grad_(False)
    X = np.random.default_rng(0).normal(size=(50, 3))
    X[0, 0], X[1, 1] = np.nan, 1e300
    found, wanted = perceptron(backbone)(X), backbone(torch.tensor(X).float()).numpy()
    assert found.dtype == np.float32
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not np.allclose(found[2:], wanted[::-1][:-2])


def test_other_backbones_are_refused():
    backbone = MLP((5,), 7, shift=[1.0], scale=[0.5])
    for change in ({"backbone.9.weight": np.zeros(1)}, {"backbone.1.weight": np.zeros((5, 2))}):
        with pytest.raises(ModelFormatError, match="layers of a perceptron"):
            perceptron(backbone.requires_grad_(False), **change)
    with pytest.raises(ModelFormatError, match="layers of a perceptron"):
        Perceptron(tensors_of({"backbone.weight": np.zeros((1, 1))}))


@pytest.mark.parametrize("kind", [np.int64, np.float16, ">f8"])
def test_inputs_of_other_kinds_are_refused(kind):
    program = in_numpy(built(read("cells"), with_backbone=False))
    rows = read("cells").rows["float64"]
    with pytest.raises(TypeError, match="Expected inputs in float32 or float64"):
        program(np.zeros_like(rows.features).astype(kind), rows.embedding)


def test_values_are_there_for_whoever_watches():
    golden = read("cells")
    network, rows = built(golden, with_backbone=False), golden.rows["float64"]
    values = in_numpy(network).values(rows.features, rows.embedding)
    regions = [tuple(np.flatnonzero(bits)) for bits in values["bits"]]
    cells = [tuple(network.cells.gated.index(region) for region in cell) for cell in network.cells]
    assert regions == [cells[cell] for cell in values["cell"]]
    assert len(set(values["cell"])) > 2
