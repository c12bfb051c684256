"""The table of docs/howto/torch-model.md: what torch makes of a network, at every door. Each cell is run.

What is served obeys, whoever computes it: an exact judge says so. In torch it is the bits of the certified program.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smle.errors import ModelFormatError
from support.sampling import Judge
from support.torch_doors import DOORS, FURTHER, TRANSFORMS, X, require_same_bits, served

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)
PAGE = Path(__file__).parents[2] / "docs/howto/torch-model.md"
UNAIDED, TRACED = "`torch.onnx.export` of a module around it", "`torch.jit.trace`"
REFUSED = {(UNAIDED, door): "to_onnx" for door in DOORS}
REFUSED["`network.half()`", "`BoxNetwork`"] = "Convert the backbone alone"
REFUSED["`DistributedDataParallel`", "stored box"] = "any parameter that requires a gradient"
ROUNDED = {"`autocast`": 2e-2, "`network.half()`": 2e-2}  # the backbone computes less exactly
ROUNDED |= dict.fromkeys(("`network.to_onnx`", "`smle.export.write_module` of it"), 1e-5)  # another runtime
WITH_GRADIENTS = {
    (TRACED, "`BoxNetwork`"): "Graphs differed"
}  # refused where they are asked for, by the tracer's own check
ASK_ANYWAY = {UNAIDED, *ROUNDED} - {"`autocast`"}  # the same, with gradients and without
ASK_ANYWAY |= {"compiled steps of training", "`jacrev`, `jacfwd`, `hessian`", "`DistributedDataParallel`"}


@cache
def door(name: str) -> nn.Module:
    return {**DOORS, **FURTHER}[name]()


@pytest.fixture(scope="module", autouse=True)
def _let_go() -> Iterator[None]:
    """Recorded programs find a head by its digest: those of this file would serve those of the next."""
    yield
    door.cache_clear()
    torch._dynamo.reset()
    gc.collect()


CELLS = [
    (transform, mode) for transform in TRANSFORMS for mode in (False, True) if not mode or transform not in ASK_ANYWAY
]


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize(("transform", "gradients"), CELLS)
def test_cell(transform: str, name: str, gradients: bool) -> None:
    network = copy.deepcopy(door(name))
    refused = REFUSED.get((transform, name)) or (WITH_GRADIENTS.get((transform, name)) if gradients else None)
    if refused is not None:
        with pytest.raises(Exception, match=refused) as caught, torch.set_grad_enabled(gradients):
            TRANSFORMS[transform](network, X)
        assert transform != UNAIDED or ModelFormatError.__name__ in str(caught.value)
        return
    with torch.set_grad_enabled(gradients):
        found = TRANSFORMS[transform](network, X).detach().reshape(-1, *X.shape)
    judge = Judge(network.spec)
    for y in found:
        assert judge.violations(X.numpy(), y.numpy()) == []
        if transform in ROUNDED:
            size = ROUNDED[transform]
            np.testing.assert_allclose(y.numpy(), served(door(name), X), rtol=size, atol=size)
        else:
            require_same_bits(y, network)


@pytest.mark.parametrize("name", FURTHER)
def test_further_doors(name: str) -> None:
    """Other formats of the backbone, training mode without gradients, a network that was stored."""
    left = {UNAIDED, "`jacrev`, `jacfwd`, `hessian`", *ROUNDED}
    if name == "training":  # asks for gradients: these are the backbone's own answers
        left |= {"compiled steps of training", "`DistributedDataParallel`"}
    failed = []
    for transform, run in TRANSFORMS.items():
        if transform in left:
            continue
        network = copy.deepcopy(door(name))
        try:
            with torch.no_grad():
                found = run(network, X).reshape(-1, *X.shape)
            for y in found:
                assert Judge(network.spec).violations(X.numpy(), y.numpy()) == []
                require_same_bits(y, network)
        except Exception as error:  # noqa: BLE001  # all cells are run
            failed.append(f"{transform}: {type(error).__name__}: {str(error)[:300]}")
    assert not failed, "\n".join(failed)


def test_the_page_has_the_same_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(f"| | {' | '.join(DOORS)} |")
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in text[start:].split("\n\n")[0].splitlines()]
    found = {row[0]: row[1:] for row in rows[2:]}
    assert list(found) == list(TRANSFORMS)
    for transform, cells in found.items():
        for name, cell in zip(DOORS, cells, strict=True):
            key = transform, name
            expected = "refused" if key in REFUSED else "in `no_grad`" if key in WITH_GRADIENTS else "yes"
            assert cell == expected, (transform, name)
