"""Doors of torch, and what torch makes of a network: two lists, of which a test runs every pair."""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel

import smle
from smle import Specification, correct
from smle.export import write_module
from smle.nn import BoxNetwork, SafeNetwork

INPUTS = "inputs: {a: [-1, 1], b: [-1, 1]}\noutputs: [p, q]\nrules:\n"
LIMITS = Specification.from_yaml(
    INPUTS + "  - {name: r, then: -0.2 <= p <= 0.3}\n  - {name: s, when: a >= 0, then: q <= b}\n"
)
COUPLED = Specification.from_yaml(
    INPUTS
    + "  - {name: r, when: a + 2 * b >= 0.3, then: p + q >= 0}\n  - {name: s, when: b <= 0.4, then: -1 <= p - q <= 1}\n"
)
BOXED = Specification.from_yaml(INPUTS + "  - {name: r, when: a >= 0.2, then: -0.2 <= p <= 0.3}\n")
STEPS = Specification.from_yaml(
    "inputs: {a: [-1, 1], b: [-1, 1]}\noutputs: {p: {integer: true}, q: {integer: true}}\nrules:\n"
    "  - {name: r, then: -1 <= p <= 1 and -4 <= q <= 4}\n  - {name: s, when: a >= 0, then: p + q <= 2}\n"
)


class Powers(nn.Module):
    """Multiplies by powers of two: whoever computes it gets the same bits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([(-2.0) ** k for k in range(1, width + 1)]))

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :1] * self.gain


def plain_layers() -> nn.Module:
    """Layers that run without the calls of modules; each number is one product, so that its bits are known."""
    layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        for layer, weight in ((layers[0], [[1.0, 0.0], [-1.0, 0.0]]), (layers[2], [[-2.0, 2.0], [4.0, -4.0]])):
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.zero_()
    return layers


def points(count: int, seed: int = 0) -> Tensor:
    return 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) - 1


X, EXAMPLE = points(7, seed=2), points(5, seed=1)


def make_box() -> BoxNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return smle.project(BoxNetwork(Powers(4), BOXED, embedding=4, bounds="affine"))


def loaded(network: SafeNetwork | BoxNetwork, width: int) -> nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        network.save(f"{folder}/model")
        return smle.load(f"{folder}/model", backbone=Powers(width))


DOORS: dict[str, Callable[[], nn.Module]] = {
    "limits": lambda: correct(Powers(2), LIMITS),
    "coupled outputs": lambda: correct(Powers(2), COUPLED),
    "plain layers": lambda: correct(plain_layers(), LIMITS),
    "whole numbers": lambda: correct(Powers(2), STEPS),
    "`BoxNetwork`": make_box,
    "stored box": lambda: loaded(make_box(), 4),
}
"""Those of the table in docs/howto/torch-model.md."""
FURTHER: dict[str, Callable[[], nn.Module]] = {
    "float64": lambda: correct(Powers(2).double(), LIMITS),
    "half": lambda: correct(Powers(2).half(), LIMITS),
    "bfloat16": lambda: correct(Powers(2).bfloat16(), LIMITS),
    "training": lambda: correct(Powers(2), LIMITS).train(),
    "loaded": lambda: loaded(correct(Powers(2), LIMITS), 2),
}


def served(network: nn.Module, x: Tensor) -> np.ndarray:
    """Return what the NumPy program makes of the backbone's answers."""
    with torch.no_grad():
        t = network.backbone(x.to(next(network.backbone.parameters()).dtype)).float().numpy()
    program = network.deployed if isinstance(network, BoxNetwork) else network.head.program
    return program(x.numpy(), t)


def require_same_bits(found: Tensor, network: nn.Module, x: Tensor = X) -> None:
    assert found.dtype is torch.float32
    np.testing.assert_array_equal(found.detach().numpy().view(np.int32), served(network, x).view(np.int32))


# --- what torch makes of a network: each returns what is then served at x

Run = Callable[[nn.Module, Tensor], Tensor]


def recorded(mode: str, *, pre_dispatch: bool = False) -> Run:
    def run(network: nn.Module, x: Tensor) -> Tensor:
        at = EXAMPLE if mode == "symbolic" else x.flip(0)
        options = {"tracing_mode": mode, "pre_dispatch": pre_dispatch, "_allow_non_fake_inputs": True}
        graph = make_fx(network, **options)(at)
        assert "smle.serve" in graph.code
        return graph(x)

    return run


def exported(*, strict: bool) -> Run:
    def run(network: nn.Module, x: Tensor) -> Tensor:
        rows = {0: torch.export.Dim("rows", min=2)}
        program = torch.export.export(network, (EXAMPLE,), dynamic_shapes=(rows,), strict=strict)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        return torch.export.load(file).module()(x)

    return run


def compiled(backend: str) -> Run:
    def run(network: nn.Module, x: Tensor) -> Tensor:
        torch._dynamo.reset()
        function = torch.compile(network, fullgraph=True, backend=backend)
        function(EXAMPLE)
        return function(x)

    return run


def gradients(network: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    wanted = [leaf, *(parameter for parameter in network.parameters() if parameter.requires_grad)]
    found = torch.autograd.grad((function(leaf) ** 2).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(one) if own is None else own for one, own in zip(wanted, found, strict=True)]


def compiled_step(network: nn.Module, x: Tensor) -> Tensor:
    """Compile steps of training, on the backbone's own answers and through the head: gradients are those of eager."""
    for mode in (True, False):
        torch._dynamo.reset()
        network.train(mode)
        with torch.enable_grad():
            function = torch.compile(network, fullgraph=True, backend="aot_eager")
            both = gradients(network, network, x), gradients(network, function, x)
        for one, two in zip(*both, strict=True):
            torch.testing.assert_close(two, one)
    return function(x)


def on_meta(network: nn.Module, x: Tensor) -> Tensor:
    found = copy.deepcopy(network).to("meta")(x.to("meta"))
    assert found.is_meta
    assert (found.shape, found.dtype) == (network(x).shape, torch.float32)
    return network(x)


def differentiated(network: nn.Module, x: Tensor) -> Tensor:
    """Derivatives are the same in all ways, and those of autograd; second ones, too."""
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        y = network(leaf)
        rows = [torch.autograd.grad(one, leaf, retain_graph=True)[0] for one in y.flatten()]
        expected = torch.stack(rows).reshape(*y.shape, *x.shape)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(network)(x), expected)
    one_by_one = torch.func.vmap(torch.func.jacrev(lambda row: network(row[None])[0]))(x)
    torch.testing.assert_close(one_by_one, torch.stack([expected[i, :, i] for i in range(len(x))]))
    flat = expected.reshape(y.numel(), x.numel())
    twice = torch.func.hessian(lambda x: (network(x) ** 2).sum())(x).reshape(x.numel(), x.numel())
    torch.testing.assert_close(twice, 2 * flat.T @ flat)
    return torch.func.vjp(network, x)[0]


class Around(nn.Module):
    """A module that contains a network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x + 0)


def surrounded(network: nn.Module, x: Tensor, *, aided: bool = True) -> Tensor:
    rows = ({0: torch.export.Dim("rows", min=2)},)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "module.onnx")
        if aided:
            write_module(Around(network), file, (EXAMPLE,), dynamic_shapes=rows)
        else:
            torch.onnx.export(Around(network), (EXAMPLE,), file, dynamo=True, dynamic_shapes=rows, verbose=False)
        session = onnxruntime.InferenceSession(file.read_bytes())
        return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def to_onnx(network: nn.Module, x: Tensor) -> Tensor:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "network.onnx")
        if isinstance(network, BoxNetwork):
            smle.export.write_network(network, file)
        else:
            network.to_onnx(file)
        session = onnxruntime.InferenceSession(file.read_bytes())
        named = zip(network.spec.columns, x.split(1, dim=1), strict=True)
        return torch.from_numpy(np.hstack(session.run(["p", "q"], {name: column.numpy() for name, column in named})))


def state(network: nn.Module, x: Tensor) -> Tensor:
    other = copy.deepcopy(network)
    with torch.no_grad():
        next(other.backbone.parameters()).mul_(2)
    other.load_state_dict(network.state_dict())
    return other(x)


_GROUPS: list[object] = []
"""Groups that were used. A wrapped network that lets go last waits for their threads, with the lock that they need."""


def distributed(network: nn.Module, x: Tensor) -> Tensor:
    """In a group of one process; two train in `two_processes.py`."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _GROUPS.append(dist.group.WORLD)
    try:
        wrapped = DistributedDataParallel(network, find_unused_parameters=True)
        with torch.enable_grad():
            expected = gradients(network, network, x)[1:]
            network.zero_grad()
            (wrapped(x) ** 2).sum().backward()
            for parameter, own in zip(network.parameters(), expected, strict=True):
                torch.testing.assert_close(torch.zeros_like(own) if parameter.grad is None else parameter.grad, own)
        return wrapped(x)
    finally:
        dist.destroy_process_group()


def with_(mode: Callable[[], object], network: nn.Module, x: Tensor) -> Tensor:
    with mode():  # type: ignore[attr-defined]
        return network(x)


def converted(network: nn.Module, x: Tensor) -> Tensor:
    return network.half()(x)


def all_of(*runs: Run) -> Run:
    def run(network: nn.Module, x: Tensor) -> Tensor:
        return torch.stack([own(copy.deepcopy(network), x) for own in runs])

    return run


TRANSFORMS: dict[str, Run] = {
    "`no_grad`, `inference_mode`": all_of(partial(with_, torch.no_grad), partial(with_, torch.inference_mode)),
    "`autocast`": partial(with_, partial(torch.autocast, "cpu", dtype=torch.bfloat16)),
    "`network.half()`": converted,
    "`torch.compile`, full graph": all_of(compiled("eager"), compiled("aot_eager")),
    "compiled steps of training": compiled_step,
    "`torch.export`": all_of(exported(strict=False), exported(strict=True)),
    "`make_fx`": all_of(*map(recorded, ("real", "fake", "symbolic")), recorded("real", pre_dispatch=True)),
    "`torch.jit.trace`": lambda network, x: torch.jit.trace(network, EXAMPLE)(x),
    "`vmap`": all_of(
        lambda network, x: torch.func.vmap(network)(x[:, None])[:, 0],
        lambda network, x: torch.func.vmap(lambda row: network(row[None])[0])(x),
    ),
    "`functional_call`, `functionalize`": all_of(
        lambda network, x: torch.func.functional_call(network, dict(network.named_parameters()), x),
        lambda network, x: torch.func.functionalize(network)(x),
    ),
    "`jacrev`, `jacfwd`, `hessian`": differentiated,
    "meta tensors": on_meta,
    "`deepcopy`, `pickle`": all_of(
        lambda network, x: copy.deepcopy(network)(x), lambda network, x: pickle.loads(pickle.dumps(network))(x)
    ),
    "`state_dict`": state,
    "`DistributedDataParallel`": distributed,
    "`network.to_onnx`": to_onnx,
    "`torch.onnx.export` of a module around it": partial(surrounded, aided=False),
    "`smle.export.write_module` of it": surrounded,
}
"""Rows of that table."""
