"""Files of modules that contain certified networks: their heads are made of the nodes that the checker prescribes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from smle import Specification, correct
from smle.errors import ModelFormatError, NotCertifiedError
from smle.export import write_module
from smle.nn import BoxNetwork, SafeNetwork
from smle_check.onnx.nodes import FEATURES
from support.sampling import Judge, hard_points
from support.torch_doors import BOXED, COUPLED, DOORS, LIMITS, Powers, X

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
ROWS = ({0: torch.export.Dim("rows", min=2)},)


class Several(nn.Module):
    """A module that contains networks."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(network(x) for network in self.networks)


def session(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file.read_bytes())


def answers(file: Path, x: np.ndarray) -> list[np.ndarray]:
    own = session(file)
    return own.run(None, {own.get_inputs()[0].name: x})


def body(nodes: list[onnx.NodeProto]) -> list[tuple[str, tuple[str, ...], int]]:
    """Return kinds of nodes, what they make, and how many inputs they read, those of branches behind their node."""
    found = []
    for node in nodes:
        found.append((node.op_type, tuple(node.output), len(node.input)))
        for attribute in node.attribute:
            found += body(list(attribute.g.node))
    return found


@pytest.mark.parametrize("door", ["limits", "coupled outputs", "whole numbers"])
def test_a_head_is_made_of_the_nodes_of_a_certified_file(door: str, tmp_path: Path) -> None:
    network = DOORS[door]()
    network.to_onnx(tmp_path / "certified.onnx", monitor=False, stacked=True)
    write_module(network, tmp_path / "module.onnx", (X,), dynamic_shapes=ROWS)
    certified, written = (onnx.load(tmp_path / f"{name}.onnx") for name in ("certified", "module"))
    (function,) = written.functions
    assert function.domain == "smle"
    proved = body(list(certified.graph.node))
    start = next(i for i, (_, made, _) in enumerate(proved) if FEATURES in made) + 1
    backbone = {name for _, made, _ in proved[start:] for name in made if name.startswith("backbone")}
    behind = [own for own in proved[start:] if not backbone.intersection(own[1])]
    own = body([node for node in function.node if node.op_type != "Constant"])
    assert len(behind) > 10
    assert [one for one in behind if one in own] == behind
    constants = {node.output[0]: node.attribute[0].t for node in function.node if node.attribute}
    for stored in certified.graph.initializer:
        if stored.name in constants:
            assert constants[stored.name].raw_data == stored.raw_data
    assert sum(stored.name in constants for stored in certified.graph.initializer) > 5


def test_several_heads_and_leading_dimensions(tmp_path: Path) -> None:
    module = Several(correct(Powers(2), LIMITS), correct(Powers(2), COUPLED), correct(Powers(2), LIMITS)).train()
    file, x = tmp_path / "module.onnx", X[:6].reshape(3, 2, 2)
    write_module(module, file, (x,), dynamic_shapes=ROWS)
    assert all(part.training for part in module.modules())
    assert len(onnx.load(file).functions) == 2
    with torch.no_grad():
        for one, two in zip(answers(file, x.numpy()), module(x), strict=True):
            np.testing.assert_allclose(one, two.numpy(), atol=1e-5)


@pytest.mark.parametrize("spec", [LIMITS, COUPLED], ids=["limits", "coupled"])
def test_hard_points_obey(spec: Specification, tmp_path: Path) -> None:
    class Wild(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([300 * x[:, 0] - 7 * x[:, 1], 1e20 * x[:, 1] ** 3], dim=1)

    file, judge = tmp_path / "module.onnx", Judge(spec)
    write_module(Several(correct(Wild(), spec)), file, (X,), dynamic_shapes=ROWS)
    for points in hard_points(spec, np.random.default_rng(0), 2000):
        if points.dtype == np.float32:
            (y,) = answers(file, points)
            assert judge.violations(points, y) == []


def test_columns_of_a_category_are_read_as_one(tmp_path: Path) -> None:
    """With two ones, numbers of a table would be added up."""
    rules = """
inputs: {kind: {categories: [low, high]}, a: [0, 1]}
tables: {cap: {key: kind, values: {low: 1, high: 2}}}
outputs: [y]
rules: [{name: cap, then: "y <= cap[kind] + 0.5 * a"}]
"""

    class Much(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, 2:] + 9

    file = tmp_path / "module.onnx"
    x = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])
    write_module(correct(Much(), Specification.from_yaml(rules)), file, (x,), dynamic_shapes=ROWS)
    np.testing.assert_allclose(answers(file, x.numpy())[0], [[1.25], [2.25]], rtol=1e-6)
    both = np.array([[1, 1, 0.5], [0, 0, 0.5]], dtype=np.float32)
    np.testing.assert_allclose(answers(file, both)[0], [[1.25], [1.25]], rtol=1e-6)


def test_wide_features_are_refused(tmp_path: Path) -> None:
    """A file would round them, and rules would hold elsewhere."""
    with pytest.raises(ModelFormatError, match="features in float32"):
        write_module(correct(Powers(2), LIMITS), tmp_path / "module.onnx", (X.double(),))
    assert not (tmp_path / "module.onnx").exists()


def test_a_box_that_is_not_proved_is_refused(tmp_path: Path) -> None:
    network = BoxNetwork(Powers(4), BOXED, embedding=4)
    with torch.no_grad():
        network.heads.raw_weight.add_(5)
    with pytest.raises(NotCertifiedError):
        write_module(Several(network), tmp_path / "module.onnx", (X,))


def test_what_cannot_be_exported_is_told(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ModelFormatError, match="cannot export this module"):
        write_module(Several(SafeNetwork(Odd(), LIMITS)), tmp_path / "module.onnx", (X,))
