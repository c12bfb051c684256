"""Models that do not answer row by row are refused where they are handed over, with what to do instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from smle import Specification, correct, project
from smle.errors import ModelFormatError
from smle.graphs.backbone import onnx_backbone
from smle.nn import BoxNetwork
from smle_check.onnx.program import Input

COLUMNS = [f"X_{i}" for i in range(5)]
FIVE = Specification.from_yaml(
    f"inputs: {{{', '.join(f'{name}: [-1, 1]' for name in COLUMNS)}}}\noutputs: [y]\n"
    "rules: [{name: cap, then: y <= 1}]\n"
)


def onnx_model(*shapes: list[object]) -> onnx.ModelProto:
    """Return a model that adds up each row of its first input, or makes a column of numbers."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    axes = onnx.numpy_helper.from_array(np.arange(1, len(shapes[0]), dtype=np.int64), "axes")
    first = helper.make_node("ReduceSum", ["input", "axes"], ["sum"], keepdims=0)
    if len(shapes[0]) == 1:
        first = helper.make_node("Identity", ["input"], ["sum"])
    nodes = [first, helper.make_node("Unsqueeze", ["sum", "one"], ["y"])]
    one = onnx.numpy_helper.from_array(np.array([1], dtype=np.int64), "one")
    names = ["input", *(f"other_{i}" for i in range(1, len(shapes)))]
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in zip(names, shapes, strict=True)]
    outputs = [helper.make_tensor_value_info("y", kind, [None, 1])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [axes, one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


SHAPES = {
    "rank 4, one row": ([1, 1, 1, 5],),
    "rank 4": ([None, 1, 1, 5],),
    "one row": ([1, 5],),
    "2,000 rows": ([2000, 5],),
    "rank 1": ([None],),
    "two wide inputs": (["N", 5], ["N", 3]),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_onnx_files_that_are_no_models_of_tables_are_refused(tmp_path: Path, kind: str) -> None:
    """They failed in predict, and their export had the inputs of the rules beside inputs of its own."""
    model = onnx_model(*SHAPES[kind])
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelFormatError, match=r"a free first dimension.*smle\.correct\(lambda table"):
        correct(tmp_path / "model.onnx", FIVE)
    with pytest.raises(ModelFormatError, match="any number of rows"):
        onnx_backbone(model, columns=[Input(name, ()) for name in COLUMNS])


def test_onnx_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    onnx.save(onnx_model(["N", 4]), tmp_path / "model.onnx")
    with pytest.raises(ModelFormatError, match=r"the 5 columns of the rules \(X_0, .*reads 4"):
        correct(tmp_path / "model.onnx", FIVE)


@pytest.mark.parametrize("shape", [["N", 5], [None, 5], ["rows", "columns"], [None, None]])
def test_models_of_tables_are_corrected_and_exported(tmp_path: Path, shape: list[object]) -> None:
    onnx.save(onnx_model(shape), tmp_path / "model.onnx")
    model = correct(tmp_path / "model.onnx", FIVE)
    table = pd.DataFrame({name: [0.1, 0.5] for name in COLUMNS})
    np.testing.assert_allclose(model.predict(table), [0.5, 1.0], rtol=1e-6)
    model.to_onnx(tmp_path / "safe.onnx")
    assert [value.name for value in onnx.load(tmp_path / "safe.onnx").graph.input] == COLUMNS


class Steps(nn.Module):
    """A Transformer over steps: without a batch it takes rows for the steps of one sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.last = nn.Linear(2, 8), nn.Linear(8, width)
        self.steps = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.steps(self.up(x)))


class Centered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] - x[:, :1].mean()


RULES = Specification.from_yaml(
    "inputs: {a: [-1, 1], b: [-1, 1]}\noutputs: [p]\nrules: [{name: r, when: a >= 0.2, then: p <= 0.1}]\n"
)


@pytest.mark.parametrize("kind", ["rules", "box", "mean"])
def test_backbones_that_mix_rows_are_not_exported(tmp_path: Path, kind: str) -> None:
    """The file answered N rows as one sequence of N steps."""
    torch.manual_seed(0)
    module = Centered() if kind == "mean" else Steps(4 if kind == "box" else 1)
    network = project(BoxNetwork(module, RULES, embedding=4)) if kind == "box" else correct(module, RULES)
    with pytest.raises(ModelFormatError, match="answers each row by itself"):
        _export(network, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def _export(network: nn.Module, path: Path) -> None:
    from smle.networks.onnx import write_network

    write_network(network, path)


def test_sequences_are_exported_as_rows_with_an_example(tmp_path: Path) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = Steps(1)

        def forward(self, sequence: Tensor) -> Tensor:
            return self.steps(sequence)[:, -1]

    torch.manual_seed(0)
    network = correct(Last(), RULES)
    network.to_onnx(tmp_path / "model.onnx", example=torch.rand(4, 6, 2))
    assert [value.name for value in onnx.load(tmp_path / "model.onnx").graph.input] == ["a", "b", "sequence"]
