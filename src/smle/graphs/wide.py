"""Further columns of a table as graph nodes, in front of a network that reads them (`smle.tables.further`)."""

from __future__ import annotations

import numpy as np

from smle.extras import require
from smle.nearest.onnx.pieces import Backbone
from smle.nearest.onnx.writer import Writer
from smle.tables.further import FurtherColumns
from smle_check.onnx.graph import FLOAT, STRING
from smle_check.onnx.program import FEATURES

__all__ = ["WIDE", "wide_features"]

WIDE = "backbone/wide"  # (batch, D): the inputs of the rules, then the further columns


def wide_features(further: FurtherColumns) -> Backbone:
    """Return nodes that make everything a network reads, with the columns as inputs (N, 1), numbers or text."""
    helper = require("onnx", "ONNX export").helper
    w, parts = Writer("backbone/columns/"), [FEATURES]
    inputs = [helper.make_tensor_value_info(name, FLOAT, ["N", 1]) for name in further.numbers]
    inputs += [helper.make_tensor_value_info(name, STRING, ["N", 1]) for name in further.texts]
    if further.numbers:
        values = w.add("Concat", list(further.numbers), axis=1)
        missing = w.add("IsNaN", [values])
        usual = w.constant(np.array(list(further.numbers.values()), dtype=np.float32))
        parts.append(w.add("Where", [missing, usual, values]))
        if further.flagged:
            names = list(further.numbers)
            places = [names.index(name) for name in further.flagged]
            parts.append(w.rows(w.add("Cast", [missing], to=FLOAT), places, 1))
    for i, (name, known) in enumerate(further.texts.items()):
        stored = helper.make_tensor(f"backbone/columns/text/{i}", STRING, [1, len(known)], [t.encode() for t in known])
        w.initializers.append(stored)
        parts.append(w.add("Cast", [w.add("Equal", [name, stored.name])], to=FLOAT))
    w.last("Concat", parts, WIDE, axis=1)
    return Backbone(w.nodes, w.initializers, inputs)
