"""Models that do not answer row by row are refused where they are handed over, with what to do instead."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from smle import Specification, attack, correct, load, project
from smle.errors import ModelFormatError
from smle.export import check_onnx, load_onnx
from smle.graphs.backbone import onnx_backbone
from smle.nn import BoxNetwork
from smle_check.onnx.nodes import Input
from support.acasxu_data import read_tasks

COLUMNS = [f"X_{i}" for i in range(5)]
FIVE = Specification.from_yaml(
    f"inputs: {{{', '.join(f'{name}: [-1, 1]' for name in COLUMNS)}}}\noutputs: [y]\n"
    "rules: [{name: cap, then: y <= 1}]\n"
)


def onnx_model(*shapes: list[object], rows: int | None = None) -> onnx.ModelProto:
    """Return a model that adds up 1, 2, 4, ... times the numbers of each row; `rows`: what it is made for, inside."""
    helper, tensor = onnx.helper, onnx.numpy_helper.from_array
    constants = [tensor(np.array([-1 if rows is None else rows, 1], dtype=np.int64), "one")]
    inputs, nodes, done = [], [], 0
    for i, shape in enumerate(shapes):
        inner = [size for size in shape[1:] if isinstance(size, int)] if len(shape) > 1 else [shape[0] or 1]
        inner = shape if shape == [5, 1] else inner
        width = int(np.prod(inner)) if len(shape) == 1 or len(inner) == len(shape) - 1 else 5 - done
        inputs.append(helper.make_tensor_value_info(f"in_{i}", onnx.TensorProto.FLOAT, shape))
        constants.append(tensor(2.0 ** np.arange(done, done + width, dtype=np.float32)[:, None], f"w_{i}"))
        constants.append(tensor(np.array([-1, width], dtype=np.int64), f"shape_{i}"))
        nodes.append(helper.make_node("Reshape", [f"in_{i}", f"shape_{i}"], [f"flat_{i}"]))
        nodes.append(helper.make_node("MatMul", [f"flat_{i}", f"w_{i}"], [f"sum_{i}"]))
        done += width
    nodes.append(helper.make_node("Sum", [f"sum_{i}" for i in range(len(shapes))], ["sum"]))
    nodes.append(helper.make_node("Reshape", ["sum", "one"], ["y"]))
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, 1])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


OTHERS = {
    "2,000 rows": [[2000, 5]],
    "too many numbers": [["N", 5], ["N", 3]],
    "a free width": [["N", 1, None]],
    "one number": [[None]],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_onnx_files_that_do_not_read_rows_of_the_rules_are_refused(tmp_path: Path, kind: str) -> None:
    onnx.save(onnx_model(*OTHERS[kind]), tmp_path / "model.onnx")
    with pytest.raises(ModelFormatError, match=r"a single one.*a free first dimension.*smle\.correct\(lambda table"):
        correct(tmp_path / "model.onnx", FIVE)


SHAPES = {
    "rank 4, one row": ([[1, 1, 1, 5]], 1),
    "rank 4": ([[None, 1, 1, 5]], None),
    "rank 3": ([["N", 5, 1]], None),
    "one row": ([[1, 5]], 1),
    "no rows at all": ([[5]], 1),
    "a column": ([[5, 1]], 1),
    "two wide inputs": ([["N", 2], ["N", 3]], None),
    "two wide inputs, one row": ([[1, 2], [1, 1, 3]], 1),
    "several shapes, one is fixed": ([["N", 2], [1, 3]], 1),
    "says any number and takes one": ([["N", 5]], 1),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_files_of_other_shapes_are_corrected_as_they_are(tmp_path: Path, kind: str) -> None:
    """Alone as in a batch, from a folder and in an exported file; 405 of 468 files of VNN-COMP 2025 are of one row."""
    shapes, rows = SHAPES[kind]
    model = onnx_model(*shapes, rows=rows)
    onnx.save(model, tmp_path / "model.onnx")
    X = np.random.default_rng(0).uniform(-1, 1, (7, 5)).astype(np.float32)
    table = pd.DataFrame(X, columns=COLUMNS)
    plain = X @ 2.0 ** np.arange(5, dtype=np.float32)
    safe = correct(tmp_path / "model.onnx", FIVE)
    found = safe.predict(table)
    np.testing.assert_allclose(found, np.minimum(plain, 1), rtol=1e-5)
    np.testing.assert_array_equal(found, [safe.predict(table[i : i + 1])[0] for i in range(7)])
    assert safe.predict(table[:0]).shape == (0,)
    safe.save(tmp_path / "folder")
    np.testing.assert_array_equal(load(tmp_path / "folder").predict(table), found)
    safe.to_onnx(tmp_path / "safe.onnx")
    assert [value.name for value in onnx.load(tmp_path / "safe.onnx").graph.input] == COLUMNS
    exported = load_onnx(tmp_path / "safe.onnx")
    np.testing.assert_allclose(exported.predict(table)["y"], found, rtol=1e-6)
    assert len(exported.predict(table[:0])) == 0
    assert not attack(tmp_path / "safe.onnx", FIVE, tries=300).found
    assert attack(tmp_path / "model.onnx", FIVE, tries=300).found
    if len(shapes) > 1 or len(shapes[0]) != 2 or isinstance(shapes[0][0], int):
        with pytest.raises(ModelFormatError, match="any number of rows"):
            onnx_backbone(model, columns=[Input(name, ()) for name in COLUMNS])


@pytest.mark.skipif("SMLE_DATA" not in os.environ, reason="needs SMLE_DATA")
def test_the_networks_of_acas_xu_are_corrected_as_they_are(tmp_path: Path) -> None:
    for path, task in zip(sorted((Path(os.environ["SMLE_DATA"]) / "acasxu").glob("*.onnx")), read_tasks(), strict=True):
        safe, X = correct(path, task.spec), pd.DataFrame(task.test[:500], columns=task.spec.columns)
        np.testing.assert_allclose(safe.model.answers(X, task.test[:500]), task.scores(task.test[:500]), atol=1e-6)
        found = safe.predict(X)
        assert list(found[:20]) == [safe.predict(X[i : i + 1])[0] for i in range(20)]
        safe.to_onnx(tmp_path / "safe.onnx")
        assert len(check_onnx(tmp_path / "safe.onnx").proved) == len(safe.certificate_.proved)
        assert list(load_onnx(tmp_path / "safe.onnx").predict(X)["advice"]) == list(found)
        assert not attack(safe, tries=2_000).found


def test_onnx_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    onnx.save(onnx_model(["N", 4]), tmp_path / "model.onnx")
    with pytest.raises(ModelFormatError, match=r"the 5 columns of the rules \(X_0, .*reads 4"):
        correct(tmp_path / "model.onnx", FIVE)


@pytest.mark.parametrize("shape", [["N", 5], [None, 5], ["rows", "columns"], [None, None]])
def test_models_of_tables_are_corrected_and_exported(tmp_path: Path, shape: list[object]) -> None:
    onnx.save(onnx_model(shape), tmp_path / "model.onnx")
    model = correct(tmp_path / "model.onnx", FIVE)
    table = pd.DataFrame({name: [0.01, 0.5] for name in COLUMNS})
    np.testing.assert_allclose(model.predict(table), [0.31, 1.0], rtol=1e-6)
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
    from smle.networks.onnx_export import write_network

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
