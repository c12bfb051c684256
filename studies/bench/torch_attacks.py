"""The torch door in every mode: what a network serves while torch flushes, casts, records, compiles or differentiates.

The module in front passes on what the attacker chose, with gradients where a mode has them.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from smle.heads.box.network.assurance import CertifiedNetwork
from smle.heads.box.network.box_network import BoxNetwork
from smle.nn import SafeNetwork
from studies.bench.soundness_attacks import KINDS, Attacker, Batch
from studies.bench.soundness_programs import torch_threads
from tests.support.sampling import FloatArray

__all__ = ["MODES", "Passes", "in_modes", "learned_modes", "torch_modes"]

Array = npt.NDArray[np.float32]
Mode = Callable[[nn.Module, Tensor, Tensor], Tensor]
Draw = Callable[[int, type[np.floating]], tuple[FloatArray, Array]]
"""(rows, format of inputs) -> inputs, and what a model may compute at them."""
_ROWS = 3  # at which a recorder looks
_THREADS = 4


class Passes(nn.Module):
    """Answers what it is given."""

    def forward(self, answers: Tensor) -> Tensor:
        """Return what was passed."""
        return answers


def _quiet(context: Callable[[], Any]) -> Mode:
    def run(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
        with context():
            found: Tensor = network(x, z)
        return found

    return run


def _gradients(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    found: Tensor = network(x, z.clone().requires_grad_())
    return found


def _training(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    network.train()
    try:
        with torch.no_grad():
            found: Tensor = network(x, z)
    finally:
        network.eval()
    return found


def _in_format(dtype: torch.dtype) -> Mode:
    def run(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
        found: Tensor = network(x, z.to(dtype).requires_grad_())
        return found

    return run


def _by_default(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return _gradients(network, x, z)
    finally:
        torch.set_default_dtype(torch.float32)


def _recorded(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    found: Tensor = make_fx(network)(x.flip(0), z.flip(0))(x, z)
    return found


def _exported(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    rows = {0: torch.export.Dim("rows", min=2)}
    program = torch.export.export(network, (x[-_ROWS:], z[-_ROWS:]), dynamic_shapes=(rows, (rows,)))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    found: Tensor = torch.export.load(file).module()(x, z)
    return found


def _compiled(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    torch._dynamo.reset()
    function = torch.compile(network, fullgraph=True, backend="aot_eager")
    function(x[-_ROWS:], z[-_ROWS:])
    found: Tensor = function(x, z.clone().requires_grad_())
    return found


def _mapped(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    found: Tensor = torch.func.vmap(network)(x[:, None], z[:, None])[:, 0]
    return found


def _pulled(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    found: Tensor = torch.func.vjp(lambda answers: network(x, answers), z)[0]
    return found


def _pushed(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    found: Tensor = torch.func.jvp(lambda answers: network(x, answers), (z,), (torch.ones_like(z),))[0]
    return found


def _hooked(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    try:
        return _gradients(network, x, z)
    finally:
        handle.remove()


def _threaded(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(network, x.chunk(_THREADS), z.chunk(_THREADS)))
    return torch.cat(parts)


MODES: dict[str, Mode] = {
    "gradients": _gradients,
    "no_grad": _quiet(torch.no_grad),
    "inference mode": _quiet(torch.inference_mode),
    "autocast": _quiet(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "no mode": _quiet(nullcontext),
    "training mode, no_grad": _training,
    "answers in float64": _in_format(torch.float64),
    "answers in half": _in_format(torch.float16),
    "answers in bfloat16": _in_format(torch.bfloat16),
    "float64 by default": _by_default,
    "make_fx": _recorded,
    "export": _exported,
    "compile": _compiled,
    "vmap": _mapped,
    "vjp": _pulled,
    "jvp": _pushed,
    "hooks for all modules": _hooked,
    "threads": _threaded,
}


UNPROVED = ("training mode, no_grad",)
"""Modes in which a learned box is trained: nothing is claimed of what it then computes."""


def torch_modes(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve by a network in every mode of torch, subnormal numbers flushed and not; some answers are subnormal."""
    spec, certificate = attacker.spec, attacker.certificate
    is_box = certificate.document["program"]["head"] == "box"
    network = (CertifiedNetwork if is_box else SafeNetwork.of)(Passes(), spec, certificate)
    yield from in_modes(network, attacker.zeros, count, attacker.rng)


def learned_modes(network: BoxNetwork, attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve by a network of the paper itself, whose heads were projected, in every mode but that of training."""
    passing = copy.deepcopy(network)
    passing.backbone = Passes()
    yield from in_modes(passing, attacker.zeros, count, attacker.rng, without=UNPROVED)


def in_modes(
    network: nn.Module, draw: Draw, count: int, rng: np.random.Generator, *, without: Collection[str] = ()
) -> Iterator[Batch]:
    """Serve about so many points of both formats by a network that passes on what is drawn, in every mode."""
    network.eval()
    share = max(8, count // (4 * (len(MODES) - len(without))))
    for name, mode in MODES.items():
        if name in without:
            continue
        for flush in (False, True):
            for dtype in KINDS:
                X, Z = draw(share, dtype)
                tiny = rng.random(Z.shape) < 0.05
                Z[tiny] = rng.choice(np.array([1e-40, -1e-40, 1e-45, -1e-45], dtype=np.float32), int(tiny.sum()))
                with warnings.catch_warnings(), torch_threads(1, flush=flush):
                    warnings.simplefilter("ignore")
                    Y = mode(network, torch.from_numpy(X), torch.from_numpy(Z)).detach().numpy()
                yield Batch(X, X, Z, Y, f"torch, {name}{', flush to zero' if flush else ''}")
