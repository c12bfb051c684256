"""Files with all answers in one tensor: the same numbers as files with named outputs, and as little to forge."""

from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch

import smle_check
from smle import Specification, correct
from smle.errors import RuleError
from smle.export import load_onnx, write_onnx
from smle_check import Rejected
from support.exported import HAND_MADE, MIXED, columns_of, hand_made, resealed, run, session, untrained

LABELS = """
inputs: {speed: {range: [0, 40], missing: 7.5}, road: {categories: [dry, wet, icy]}}
outputs: [brake]
labels: [warn, stop]
rules:
  - {name: icy, when: road == icy and speed > 10, then: brake >= 0.5}
  - {name: heavy, when: speed >= 20, then: warn}
  - {name: never both, then: not (warn and stop)}
"""
SHARES = """
inputs: {x: [0, 1]}
outputs: {a: {step: 0.01}, b: {step: 0.01}, c: {step: 0.01}}
rules:
  - {name: sum, then: a + b + c == 1}
  - {name: each, then: 0 <= a <= 0.5 and 0 <= b <= 0.5 and 0 <= c <= 0.5}
"""


def companion(path: Path) -> bytes:
    return path.with_name(path.name + ".certificate.json").read_bytes()


@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize("name", [*HAND_MADE, "labels and numbers"])
def test_the_same_numbers_as_with_names(name: str, monitor: bool, tmp_path: Path) -> None:
    made = untrained(LABELS) if name == "labels and numbers" else hand_made(name)
    rng = np.random.default_rng(0)
    low, high = (np.array([float(v) for v in ends]) for ends in (made.spec.lower, made.spec.upper))
    x = rng.uniform(low, high, (200, len(low))).astype(np.float32)
    for group in made.spec.one_hot:
        x[:, list(group)] = np.eye(len(group), dtype=np.float32)[rng.integers(0, len(group), 200)]
    found = {}
    for stacked in (False, True):
        path = tmp_path / f"{stacked}.onnx"
        write_onnx(made.record, path, monitor=monitor, stacked=stacked)
        assert smle_check.check_onnx(path.read_bytes(), companion(path)).interface.stacked is stacked
        found[stacked] = run(session(path.read_bytes()), made.spec, x)
    named, tensors = found[False], found[True]
    np.testing.assert_array_equal(tensors["outputs"], columns_of(made.spec, named))
    labels = [item.name for item in made.spec.outputs if f"logit({item.name})" in named]
    assert ("labels" in tensors) == bool(labels)
    if labels:
        np.testing.assert_array_equal(tensors["labels"], np.hstack([named[label] for label in labels]))
    assert ("active_rules" in tensors) == monitor
    for report in {"in_domain", "outside_input", "active_rules"} & set(named):
        np.testing.assert_array_equal(tensors[report], named[report])


def test_tables_are_answered_alike(tmp_path: Path) -> None:
    made = untrained(LABELS)
    speeds = np.linspace(0, 40, 60)
    table = pd.DataFrame({"speed": np.where(speeds > 30, np.nan, speeds), "road": ["dry", "icy", "wet"] * 20})
    answers = []
    for stacked in (False, True):
        write_onnx(made.record, tmp_path / "m.onnx", stacked=stacked)
        answers.append(load_onnx(tmp_path / "m.onnx").predict(table, return_info=True))
    pd.testing.assert_frame_equal(answers[0][0], answers[1][0])
    assert answers[0][0]["warn"].nunique() == 2
    assert answers[0][1]["active_rules"] == answers[1][1]["active_rules"]


def test_sums_and_steps(tmp_path: Path) -> None:
    class Shares(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, 2 * x, 0.3 - x], dim=-1)

    network = correct(Shares(), Specification.from_yaml(SHARES))
    network.to_onnx(tmp_path / "m.onnx", stacked=True)
    x = np.linspace(0, 1, 50, dtype=np.float32)[:, None]
    answers = run(session((tmp_path / "m.onnx").read_bytes()), network.spec, x)
    np.testing.assert_array_equal(answers["steps"].sum(axis=1), 100)
    np.testing.assert_array_equal(answers["outputs"], network(torch.from_numpy(x)).detach().numpy())


def test_columns_cannot_be_called_otherwise(tmp_path: Path) -> None:
    """Whoever reads the file finds the order of the columns in it, so the checker compares it."""
    made = hand_made("affine")
    path = tmp_path / "m.onnx"
    write_onnx(made.record, path, stacked=True)
    model = onnx.load(path)
    names = {item.key: item.value for item in model.metadata_props}
    assert names["outputs"] == smle_check.canonical(list(made.spec.targets)).decode()
    for other in ('["x"]', None):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        kept = {**names, "outputs": other} if other else {key: names[key] for key in names if key != "outputs"}
        onnx.helper.set_model_props(changed, kept)
        data = changed.SerializeToString()
        with pytest.raises(Rejected, match="'outputs' differs"):
            smle_check.check_onnx(data, resealed(companion(path), data))


def test_nothing_stands_behind_the_tensor(tmp_path: Path) -> None:
    made = hand_made("affine")
    path = tmp_path / "m.onnx"
    write_onnx(made.record, path, stacked=True, monitor=False)
    model = onnx.load(path)
    last = next(node for node in model.graph.node if "outputs" in node.output)
    last.output[0] = "head/last"
    model.graph.node.append(onnx.helper.make_node("Neg", ["head/last"], ["outputs"]))
    data = model.SerializeToString()
    with pytest.raises(Rejected, match="not that of the certified head"):
        smle_check.check_onnx(data, resealed(companion(path), data))


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"Choices \(advice, gear\) are texts.*stacked=False"):
        write_onnx(untrained(MIXED).record, tmp_path / "m.onnx", stacked=True)
    spec = "inputs: {x: [0, 1]}\noutputs: [outputs]\nrules: [{name: r, then: outputs <= 1}]\n"
    with pytest.raises(RuleError, match="Rename the output"):
        write_onnx(untrained(spec).record, tmp_path / "m.onnx", stacked=True)
    write_onnx(untrained(spec).record, tmp_path / "m.onnx")
    assert not smle_check.check_onnx((tmp_path / "m.onnx").read_bytes(), companion(tmp_path / "m.onnx"))[4].stacked
    assert list(tmp_path.glob("*.onnx")) == [tmp_path / "m.onnx"]
