"""Exported networks of sequences and graphs answer as in torch at other sizes than those of the example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from smle import Specification
from smle.errors import ModelFormatError
from smle.export import check_onnx
from smle.nn import SafeNetwork
from support.sampling import Judge

SPEC = Specification.from_yaml("""
inputs: {a: [-1, 1], b: [-1, 1]}
outputs: [p, q]
rules:
  - {name: shared, then: p + q <= a + 1 and p >= 0 and q >= 0}
""")


class Attending(nn.Module):
    """Sequences (..., T, 2) -> answers (..., T, 2); padding is not attended to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(2, 8), nn.Linear(8, 2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, steps: Tensor, padding: Tensor | None = None) -> Tensor:
        return 3 * self.down(self.layer(self.up(steps), src_key_padding_mask=padding))


class Passing(nn.Module):
    """Nodes (n, 2) and edges (2, e) -> answers (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.along, self.down = nn.Linear(2, 8), nn.Linear(16, 8), nn.Linear(8, 2)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = torch.relu(self.up(nodes))
        messages = torch.relu(self.along(torch.cat([h[edges[0]], h[edges[1]]], dim=-1)))
        return 3 * self.down(h + torch.zeros_like(h).index_add(0, edges[1], messages))


def uniform(*shape: int) -> Tensor:
    return 2 * torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape))) - 1


def served(path: Path, x: Tensor, **own: Tensor) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rows = x.reshape(-1, 2).numpy()
    feed = {"a": rows[:, :1], "b": rows[:, 1:], **{name: value.numpy() for name, value in own.items()}}
    return np.concatenate(session.run(["p", "q"], feed), axis=1)


def require_same(path: Path, network: SafeNetwork, x: Tensor, **own: Tensor) -> None:
    found = served(path, x, **own)
    with torch.no_grad():
        np.testing.assert_allclose(found, network(x, **own).reshape(-1, 2), atol=1e-5)
    assert not Judge(SPEC).violations(x.reshape(-1, 2).numpy(), found)


def test_sequences_of_any_length(tmp_path: Path) -> None:
    network = SafeNetwork(Attending(), SPEC).eval()
    network.to_onnx(tmp_path / "m.onnx", example={"steps": uniform(3, 6, 2), "padding": torch.zeros(3, 6).bool()})
    check_onnx(tmp_path / "m.onnx")
    for count, length in ((1, 5), (2, 200), (5, 1)):
        x = uniform(count, length, 2)
        padding = (torch.arange(length) > torch.arange(count)[:, None] + 3).clone()
        require_same(tmp_path / "m.onnx", network, x, steps=x.clone(), padding=padding)


def test_graphs_of_any_size_also_without_edges(tmp_path: Path) -> None:
    network = SafeNetwork(Passing(), SPEC).eval()
    network.to_onnx(tmp_path / "m.onnx", example=(uniform(5, 2), torch.randint(0, 5, (2, 7))))
    shapes = {item.name: item.shape for item in onnxruntime.InferenceSession(tmp_path / "m.onnx").get_inputs()}
    assert shapes["nodes"][1] == 2  # the module takes no other width
    for nodes, edges in ((3, 4), (50, 300), (3, 0), (1, 1)):
        x = uniform(nodes, 2)
        require_same(tmp_path / "m.onnx", network, x, nodes=x, edges=torch.randint(0, nodes, (2, edges)))


def test_rows_are_one_sequence_where_somebody_says_so(tmp_path: Path) -> None:
    network = SafeNetwork(Attending(), SPEC).eval()
    with pytest.raises(ModelFormatError, match=r'dynamic_shapes=\(\{0: "positions"\},\)'):
        network.to_onnx(tmp_path / "m.onnx")
    network.to_onnx(tmp_path / "m.onnx", dynamic_shapes={0: "positions"})
    for length in (1, 5, 60):
        require_same(tmp_path / "m.onnx", network, uniform(length, 2))


class Nested(nn.Module):
    def forward(self, batch: dict[str, Tensor], pair: tuple[Tensor, Tensor], factor: float = 1.0) -> Tensor:
        return factor * (batch["rows"] + pair[0] - pair[1])


def test_dicts_and_tuples_are_inputs_of_their_own(tmp_path: Path) -> None:
    network, x = SafeNetwork(Nested(), SPEC).eval(), uniform(4, 2)
    network.to_onnx(tmp_path / "m.onnx", example=({"rows": x}, (x, 2 * x), 2.0))
    own = {"batch.rows": uniform(9, 2), "pair.0": uniform(9, 2) + 1, "pair.1": uniform(9, 2) / 3}
    wanted = network(uniform(9, 2), {"rows": own["batch.rows"]}, (own["pair.0"], own["pair.1"]), 2.0)
    np.testing.assert_allclose(served(tmp_path / "m.onnx", uniform(9, 2), **own), wanted, atol=1e-5)


class Branching(nn.Module):
    """Answers short sequences otherwise; a recorder sees one of the two."""

    def forward(self, steps: Tensor) -> Tensor:
        return steps.sum(dim=1) if steps.shape[1] > 4 else steps.mean(dim=1)


class Whole(nn.Module):
    """Takes six steps for something else than all others."""

    def forward(self, steps: Tensor) -> Tensor:
        return steps[:, 2] if steps.shape[1] == 6 else steps[:, 0]


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Branching(), {"example": uniform(3, 6, 2)}, "answers otherwise than in torch"),
        (Whole(), {"example": uniform(3, 6, 2)}, r"or fails, .*dynamic_shapes=\(\{0: \"rows\"\}"),
        (Nested(), {"example": (1, 2)}, "to hold tensors.*Got tuple without any"),
        (
            Passing(),
            {"example": (uniform(5, 2), torch.zeros(2, 3).long()), "dynamic_shapes": {0: "rows"}},
            "in the form of the example, for nodes, edges",
        ),
    ],
)
def test_what_does_not_hold_at_other_sizes_is_refused(
    tmp_path: Path, module: nn.Module, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        SafeNetwork(module, SPEC).to_onnx(tmp_path / "m.onnx", **options)
    assert not (tmp_path / "m.onnx").exists()


def test_axes_stay_fixed_where_somebody_says_so(tmp_path: Path) -> None:
    network = SafeNetwork(Whole(), SPEC).eval()
    network.to_onnx(tmp_path / "m.onnx", example=uniform(3, 6, 2), dynamic_shapes={0: "rows"})
    require_same(tmp_path / "m.onnx", network, uniform(4, 2), steps=uniform(4, 6, 2))
