"""Parts of an ONNX graph: the model in front of a head, and proposals of answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from smle_check.onnx.graph import OPSET

__all__ = ["Backbone"]


@dataclass(frozen=True, eq=False)
class Backbone:
    """Nodes that make the embedding (batch, n) from the features (batch, d) or from their own inputs.

    `opsets`: the version of each operator domain they use.
    """

    nodes: list[Any]
    initializers: list[Any]
    inputs: list[Any] = field(default_factory=list)
    opsets: dict[str, int] = field(default_factory=lambda: {"": OPSET})

    def behind(self, first: Backbone) -> Backbone:
        """Return the nodes of both, `first` in front."""
        return Backbone(
            [*first.nodes, *self.nodes],
            [*first.initializers, *self.initializers],
            [*first.inputs, *self.inputs],
            self.opsets,
        )
