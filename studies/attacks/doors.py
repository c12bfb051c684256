"""Doors through which a head is asked: NumPy, torch in every mode, the format written down again, onnxruntime.

A door takes an attacker and about how many points it may spend, and yields batches.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from smle.nn import SafeNetwork
from smle.rules import Literals
from studies.attacks.files import BATCHES, levels, versions, wrong_rows
from studies.attacks.points import KINDS, Attacker, Batch, BoxAttacker, Drawn, Float, chunks, in_batches, plural
from tests.support.written_again import ORDERS, written_again

Array = npt.NDArray[np.float32]
Door = Callable[[Any, int], Iterator[Batch]]
_ROWS = 3  # at which a recorder looks
_THREADS = 4


@contextmanager
def torch_threads(count: int, *, flush: bool = False) -> Iterator[None]:
    """Set torch's number of threads, and flush subnormal numbers to zero, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    flushed = flush and torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if flushed:
            torch.set_flush_denormal(False)


# --- the deployed head


def outside(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Pass NaN, infinities and numbers outside of the domain: the rules hold at the clamped input."""
    for size, dtype in chunks(count, attacker.chunk):
        X, Z = attacker.mixture(size, dtype)
        odd = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-310], dtype=dtype)
        spoiled = np.where(attacker.rng.random(X.shape) < 0.3, attacker.rng.choice(odd, size=X.shape), X)
        spoiled[:, attacker.one_hot] = X[:, attacker.one_hot]
        low, high = attacker.ends(dtype)
        yield Batch(spoiled, np.fmin(np.fmax(spoiled, low), high), Z, attacker.deployed(spoiled, Z), attacker.way)


def few_rows(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve small batches, odd ones, and with two threads."""
    for threads, batch, rows in ((1, 1, 0.01), (1, 3, 0.02), (1, 33, 0.1), (1, 1000, 0.4), (2, 50_000, 0.47)):
        for dtype in KINDS:
            X, Z = attacker.mixture(max(8, int(rows * count / 2)), dtype)
            with torch_threads(threads):
                Y = in_batches(attacker.deployed, batch, X, Z)
            yield Batch(X, X, Z, Y, f"{attacker.way}, batch {batch:,}, {plural(threads)}")


def flushed(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Flush subnormal numbers to zero in every operation; inputs are not subnormal (an assumption of the claim)."""
    for dtype in KINDS:
        X, Z = attacker.zeros(max(8, count // 2), dtype)
        for batch in (len(X), *BATCHES):
            part = slice(0, min(len(X), 60 * batch))
            with torch_threads(1, flush=True):
                Y = in_batches(attacker.deployed, batch, X[part], Z[part])
            yield Batch(X[part], X[part], Z[part], Y, f"{attacker.way}, flush to zero")


def orders(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve by the format's program in NumPy with other orders of summation, fused or not."""
    for name, order in ORDERS.items():
        program = written_again(attacker.subject.certificate, order)
        share = max(8, count // (20 if "fused" in name else 9))  # rationals are slow
        for size, dtype in chunks(share, attacker.chunk // 4):
            X, Z = attacker.mixture(size, dtype)
            yield Batch(X, X, Z, program(X, Z), f"the format, {name}")


def gradient(attacker: BoxAttacker, count: int) -> Iterator[Batch]:
    """Ascend the excess of a random clause through backbone, clip and head; every step is judged."""
    spec, network, model, rng = attacker.spec, attacker.subject.network, attacker.subject.model, attacker.rng
    assert network is not None
    assert model is not None
    steps, size = 10, min(1 << 14, max(1, count // 10))
    low, high = (torch.from_numpy(end.copy()) for end in attacker.ends(np.float32))
    movable = torch.ones(len(spec.columns))
    for group in spec.one_hot:
        movable[list(group)] = 0
    clauses = [clause for rule in spec.rules for clause in rule.requirement.expanded()]
    for _ in range(-(-count // (steps * size))):
        stated = Literals.of_clauses(clauses[rng.integers(len(clauses))], len(spec.targets), len(spec.columns))
        g, s = (torch.from_numpy(part.T).float() for part in (stated.g, stated.s))
        x = torch.from_numpy(attacker.facets(size, np.float32)).requires_grad_()
        for step in range(steps):
            X, y = x.detach().numpy().copy(), network(x)
            yield Batch(X, X, model(X), y.detach().numpy(), "torch")
            excess = (y @ g + x @ s).amin(dim=1)
            (slope,) = torch.autograd.grad(excess.sum(), x)
            move = torch.nan_to_num(slope).sign() * movable * (high - low) * (0.1 * 0.6**step)
            x = (x.detach() + move).clamp(low, high).requires_grad_()


# --- torch

Mode = Callable[[Any, Tensor, Tensor], Any]
"""(network, inputs, embeddings or answers) -> what is served."""


class Passes(nn.Module):
    """Answers what it is given."""

    def forward(self, answers: Tensor) -> Tensor:
        """Return what was passed."""
        return answers


def _quiet(context: Callable[[], Any]) -> Mode:
    def run(network: Any, x: Tensor, z: Tensor) -> Any:
        with context():
            return network(x, z)

    return run


def _in_format(dtype: torch.dtype) -> Mode:
    return lambda network, x, z: network(x, z.to(dtype, copy=True).requires_grad_())


def _training(network: Any, x: Tensor, z: Tensor) -> Any:
    network.train()
    try:
        with torch.no_grad():
            return network(x, z)
    finally:
        network.eval()


def _by_default(network: Any, x: Tensor, z: Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return network(x, z.clone().requires_grad_())
    finally:
        torch.set_default_dtype(torch.float32)


def _exported(network: Any, x: Tensor, z: Tensor) -> Any:
    rows = {0: torch.export.Dim("rows", min=2)}
    program = torch.export.export(network, (x[-_ROWS:], z[-_ROWS:]), dynamic_shapes=(rows, (rows,)))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()(x, z)


def _compiled(network: Any, x: Tensor, z: Tensor) -> Any:
    torch._dynamo.reset()
    function: Any = torch.compile(network, fullgraph=True, backend="aot_eager")
    function(x[-_ROWS:], z[-_ROWS:])
    return function(x, z.clone().requires_grad_())


def _pushed(network: Any, x: Tensor, z: Tensor) -> Any:
    return torch.func.jvp(lambda answers: network(x, answers), (z,), (torch.ones_like(z),))[0]


def _hooked(network: Any, x: Tensor, z: Tensor) -> Any:
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    try:
        return network(x, z.clone().requires_grad_())
    finally:
        handle.remove()


def _threaded(network: Any, x: Tensor, z: Tensor) -> Any:
    with ThreadPoolExecutor(_THREADS) as pool:
        return torch.cat(list(pool.map(network, x.chunk(_THREADS), z.chunk(_THREADS))))


MODES: dict[str, Mode] = {
    "gradients": _in_format(torch.float32),
    "no_grad": _quiet(torch.no_grad),
    "inference mode": _quiet(torch.inference_mode),
    "autocast": _quiet(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "no mode": _quiet(nullcontext),
    "training mode, no_grad": _training,
    "answers in float64": _in_format(torch.float64),
    "answers in half": _in_format(torch.float16),
    "answers in bfloat16": _in_format(torch.bfloat16),
    "float64 by default": _by_default,
    "make_fx": lambda network, x, z: make_fx(network)(x.flip(0), z.flip(0))(x, z),
    "export": _exported,
    "compile": _compiled,
    "vmap": lambda network, x, z: torch.func.vmap(network)(x[:, None], z[:, None])[:, 0],
    "vjp": lambda network, x, z: torch.func.vjp(lambda answers: network(x, answers), z)[0],
    "jvp": _pushed,
    "hooks for all modules": _hooked,
    "threads": _threaded,
}


def torch_modes(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve by a network in every mode of torch, subnormal numbers flushed and not; some answers are subnormal."""
    network = SafeNetwork.of(Passes(), attacker.spec, attacker.subject.certificate)
    yield from in_modes(network, attacker.zeros, count, attacker.rng)


def learned_modes(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve by the network of the paper that a box was made of; nothing is claimed of what it computes in training."""
    if attacker.subject.learned is None:
        return
    passing = copy.deepcopy(attacker.subject.learned)
    passing.backbone = Passes()
    for batch in in_modes(passing, attacker.zeros, count, attacker.rng, without=("training mode, no_grad",)):
        yield Batch(batch.X, batch.at, batch.Z, batch.Y, f"not certified yet: {batch.way}")


def in_modes(
    network: nn.Module,
    draw: Callable[[int, Float], Drawn],
    count: int,
    rng: np.random.Generator,
    *,
    without: Collection[str] = (),
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


DOORS: dict[str, tuple[Door, dict[str, float]]] = {
    "gradient ascent in the inputs": (gradient, {"box": 0.08}),
    "inputs outside of the domain": (outside, {"box": 0.03, "rules": 0.05, "grid": 0.05}),
    "orders of summation, fused or not": (orders, {"box": 0.05, "rules": 0.06}),
    "batch sizes and threads": (few_rows, {"box": 0.02, "rules": 0.06, "grid": 0.05}),
    "flush to zero": (flushed, {"box": 0.03, "rules": 0.05, "grid": 0.05}),
    "torch, in every mode": (torch_modes, {"box": 0.02, "rules": 0.08, "grid": 0.3}),
    "torch, in every mode, before it is certified": (learned_modes, {"box": 0.01}),
    "onnxruntime, levels, batches, threads": (levels, {"box": 0.06, "rules": 0.12, "grid": 0.15}),
    "versions of onnxruntime, flush modes, exact zeros": (versions, {"box": 0.02, "rules": 0.04, "grid": 0.1}),
    "backbones with the wrong number of rows": (wrong_rows, {"box": 0.001}),
}
"""Doors, which are asked about points of all kinds, with the share of all points by family of heads."""
