"""The ACAS Xu bench: reading, the head's laws, and the quick run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from smle import correct
from smle.errors import DataError
from smle.networks.safe_network import SafeNetwork
from studies.bench import run_bench
from tests.support.acasxu_data import ADVICE, Task, advice, points_of, read_tasks, stand_in
from tests.support.sampling import Judge
from tests.support.vnnlib import write_vnnlib


@pytest.fixture(scope="module")
def task() -> Task:
    return stand_in()


def test_the_original_breaks_every_rule_somewhere_and_the_corrected_one_none(task: Task) -> None:
    judge, rng = Judge(task.spec), np.random.default_rng(1)
    X = np.concatenate([points_of(task.spec, rule, 1000, rng) for rule in range(len(task.rules))])
    before = {violation.rule for violation in judge.violations(X, task.scores(X))}
    assert before == {rule.name for rule in task.spec.rules}
    network: SafeNetwork = correct(task.model, task.spec, task.train).eval()
    with torch.no_grad():
        assert not judge.violations(X, network(torch.from_numpy(X)).numpy())


# --- data


def write_data(folder: Path, task: Task) -> None:
    """Write the stand-in with the names and formats of the real data, as network 1_1."""
    points = folder / "acasxu" / "points"
    points.mkdir(parents=True)
    for part, X in (("train", task.train), ("test", task.test)):
        np.savez(points / f"acas_art.1.1.{part}.npz", x=X, y=advice(task.scores(X)))
    nodes, constants = [helper.make_node("Sub", ["input", "mean"], ["v0"])], []
    constants.append(numpy_helper.from_array(np.full((1, 1, 1, 5), 0.25, dtype=np.float32), "mean"))
    nodes.append(helper.make_node("Flatten", ["v0"], ["h0"]))
    now = "h0"
    for i, layer in enumerate(task.model):
        if isinstance(layer, nn.Linear):
            constants.append(numpy_helper.from_array(layer.weight.numpy().T.copy(), f"W{i}"))
            constants.append(numpy_helper.from_array(layer.bias.numpy().copy(), f"b{i}"))
            nodes.append(helper.make_node("MatMul", [now, f"W{i}"], [f"m{i}"]))
            nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]))
            now = f"a{i}"
        else:
            nodes.append(helper.make_node("Relu", [now], [f"r{i}"]))
            now = f"r{i}"
    source = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 1, 1, 5])
    target = helper.make_tensor_value_info(now, TensorProto.FLOAT, [1, 5])
    graph = helper.make_graph(nodes, "g", [source], [target], constants)
    onnx.save(helper.make_model(graph), folder / "acasxu" / "ACASXU_run2a_1_1_batch_2000.onnx")
    names = [rule.name for rule in task.spec.rules]
    for number, name in zip((1, 2, 3, 4, 5), (*names, names[-1]), strict=True):
        text = write_vnnlib(task.spec, rule=name)
        (folder / "acasxu" / f"prop_{number}.vnnlib").write_text(text, encoding="utf-8")


def test_networks_properties_and_points_are_read(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    write_data(tmp_path, task)
    monkeypatch.setenv("SMLE_DATA", str(tmp_path))
    (read,) = read_tasks()
    assert read.name == "1_1"
    assert [rule.name for rule in read.spec.rules] == [f"prop_{i}" for i in (1, 2, 3, 4, 5)]
    assert read.spec.rules[2].requirement == task.spec.rules[2].requirement
    assert read.spec.targets == tuple(f"advice={name}" for name in ADVICE)
    np.testing.assert_array_equal(read.test, task.test)
    shifted = read.test + np.float32(0.25)  # the mean that the file subtracts
    np.testing.assert_allclose(read.scores(shifted), task.scores(read.test), atol=1e-5)


def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    monkeypatch.delenv("SMLE_DATA", raising=False)
    with pytest.raises(DataError, match="SMLE_DATA"):
        run_bench("acasxu")
    monkeypatch.setenv("SMLE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"networks \(\*.onnx\)"):
        run_bench("acasxu")
    write_data(tmp_path, task)
    (tmp_path / "acasxu" / "prop_5.vnnlib").unlink()
    with pytest.raises(DataError, match=r"prop_5\.vnnlib"):
        run_bench("acasxu")
