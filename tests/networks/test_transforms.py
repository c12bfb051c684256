"""The operator behind which heads run: modes, hooks, keys. `test_transform_table.py` has all transforms and doors."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from smle import Specification, correct
from smle.errors import CertificateError, DataError
from smle.nn import SafeNetwork
from support.processes import environment
from support.torch_doors import COUPLED, DOORS, EXAMPLE, FURTHER, LIMITS, Powers, X, loaded, make_box, require_same_bits

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)

ALL_DOORS = {**DOORS, **FURTHER}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_to_machine_code() -> None:
    network = correct(Powers(2), LIMITS)
    torch._dynamo.reset()
    with torch.no_grad():
        require_same_bits(torch.compile(network, fullgraph=True)(X), network)


def test_symbolic_tracing_by_proxies_is_refused() -> None:
    with pytest.raises((TypeError, torch.fx.proxy.TraceError)):
        torch.fx.symbolic_trace(correct(Powers(2), LIMITS))


# --- modes


@pytest.fixture
def flushed():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    yield
    torch.set_flush_denormal(False)


TINY = Specification.from_yaml("inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: cap, then: y <= 0}]\n")


def answers_tiny() -> SafeNetwork:
    """Return a network whose module answers 1e-40, which is subnormal: an embedding copies bits."""
    network = SafeNetwork(_Looked(), TINY).eval()
    assert (network.backbone(torch.zeros(1, 1)).detach().numpy().view(np.int32) == _TINY).all()
    return network


_TINY = int(np.float32(1e-40).view(np.int32))


class _Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(
            torch.tensor([[_TINY]], dtype=torch.int32).view(torch.float32), freeze=False
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.table(torch.zeros(len(x), dtype=torch.long))


@pytest.mark.parametrize("mode", ["gradients", "no_grad", "inference", "compile", "make_fx", "vmap", "training"])
def test_tiny_answers_are_not_served_where_tiny_numbers_count_as_zero(mode: str, flushed: None) -> None:
    """1e-40 == 0 was true there, and 1e-40 was served under y <= 0."""
    network, x = answers_tiny(), torch.full((3, 1), 0.5)
    run = {
        "compile": lambda: torch.compile(network, fullgraph=True, backend="aot_eager")(x),
        "make_fx": lambda: make_fx(network)(x)(x),
        "vmap": lambda: torch.func.vmap(lambda row: network(row))(x[:, None]),
        "training": lambda: network.train()(x),
    }.get(mode, lambda: network(x))
    quiet = {"inference": torch.inference_mode, "no_grad": torch.no_grad, "training": torch.no_grad}
    with quiet.get(mode, torch.enable_grad)():
        bits = run().detach().numpy().view(np.int32)
    assert (bits & 0x7FFFFFFF == 0).all()


def test_a_moved_tiny_answer_has_no_gradient_and_is_counted(flushed: None) -> None:
    network = answers_tiny()
    network(torch.full((3, 1), 0.5)).sum().backward()
    assert network.backbone.table.weight.grad.item() == 0
    assert network.counts == {"rows": 3, "moved": 3, "replaced": 0}


@pytest.fixture
def double_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("door", ["limits", "coupled outputs", "whole numbers", "`BoxNetwork`"])
def test_other_default_formats(door: str, double_by_default: None) -> None:
    network = ALL_DOORS[door]()
    require_same_bits(network(X), network)


@pytest.mark.parametrize("door", ALL_DOORS)
def test_autocast_and_inference_mode(door: str) -> None:
    network = ALL_DOORS[door]()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        require_same_bits(network(X), network)
    with torch.inference_mode():
        require_same_bits(network(X), network)


@pytest.mark.parametrize("door", ALL_DOORS)
def test_copies_states_and_threads(door: str) -> None:
    network = ALL_DOORS[door]()
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network)), copy.copy(network)):
        other.load_state_dict(network.state_dict())
        with torch.no_grad():
            require_same_bits(other(X), network)
    replicas = [network._replicate_for_data_parallel() for _ in range(4)]
    for replica in replicas:
        replica._modules = dict(network._modules)

    def ask(replica: nn.Module) -> list[Tensor]:
        with torch.no_grad():
            return [replica(X) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(ask, replicas):
            for y in found:
                require_same_bits(y, network)


# --- hooks


def test_hooks_on_a_head_are_refused() -> None:
    for door in ("limits", "stored box"):
        head = ALL_DOORS[door]().head
        for register in (head.register_forward_hook, head.register_forward_pre_hook):
            with pytest.raises(TypeError, match="Register them on the network"):
                register(lambda *arguments: None)


def test_hooks_for_all_modules_do_not_reach_what_a_head_serves() -> None:
    """They are called with the network's own answers, which they see, and with nothing behind its head."""
    network, seen = correct(nn.Sequential(Powers(2)), LIMITS), []

    def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
        seen.append(type(module))

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        with torch.no_grad():
            require_same_bits(network(X), network)
    finally:
        handle.remove()
    assert Powers in seen
    assert SafeNetwork in seen
    assert type(network.head) not in seen


def test_what_a_hook_on_the_network_returns_is_the_users_own() -> None:
    network = correct(Powers(2), LIMITS)
    handle = network.register_forward_hook(lambda module, inputs, output: output + 100)
    assert (network(X) > 50).all()
    handle.remove()
    require_same_bits(network(X), network)


# --- keys


def test_a_recorded_program_needs_its_head_and_no_other_one() -> None:
    network = correct(Powers(2), LIMITS)
    graph = make_fx(network)(EXAMPLE)
    twin = copy.deepcopy(network)
    require_same_bits(graph(X), network)
    del network
    gc.collect()
    require_same_bits(graph(X), twin)  # the same head
    other = correct(Powers(2), COUPLED)
    del twin
    gc.collect()
    with pytest.raises(CertificateError, match="is alive in this process"):
        graph(X)
    assert other is not None
    again = correct(Powers(2), LIMITS)
    require_same_bits(graph(X), again)


def test_a_saved_network_has_the_head_of_the_one_before() -> None:
    network = correct(Powers(2), LIMITS)
    graph = make_fx(network)(EXAMPLE)
    again = loaded(network, 2)
    del network
    gc.collect()
    require_same_bits(graph(X), again)


def test_a_box_that_was_trained_on_is_another_one() -> None:
    network = make_box()
    graph = make_fx(network)(EXAMPLE)
    torch._dynamo.reset()
    follows = torch.compile(network, fullgraph=True, backend="eager")
    for _ in range(12):  # more often than a compiler would compile it anew
        with torch.no_grad():
            require_same_bits(follows(X), network)
        network.train()
        with torch.no_grad():
            network.heads.raw_weight.add_(0.1)
        network.eval()
    with pytest.raises(CertificateError, match="unchanged"):
        graph(X)


@pytest.mark.parametrize("key", ["", ":", "0" * 64, ":99999999", "no such key"])
def test_unknown_keys_are_refused(key: str) -> None:
    with pytest.raises(CertificateError):
        torch.ops.smle.serve(X, X, None, key)


def test_heads_are_not_kept_alive() -> None:
    from smle.networks.served_heads import _alive

    gc.collect()
    before = len(_alive)
    for _ in range(3):
        correct(Powers(2), LIMITS)(X)
    gc.collect()
    assert len(_alive) <= before


def test_recorded_programs_refuse_whole_numbers_that_floats_cannot_hold() -> None:
    """The check used to run once, on the example."""
    rules = """
inputs: {id: [0, 20000000000000000]}
outputs: [y]
rules: [{name: cap, when: id > 9007199254740992, then: y <= 0}]
"""

    class One(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones_like(x, dtype=torch.float32)

    network = correct(One(), Specification.from_yaml(rules))
    small, large = torch.tensor([[5]]), torch.tensor([[2**53 + 1]])
    graph = make_fx(network)(small)
    follows = torch.compile(network, fullgraph=True, backend="eager")
    for run in (network, graph, follows):
        assert run(small).item() == 1
        assert run(torch.tensor([[2**53 + 2]])).item() == 0
        with pytest.raises(DataError, match="cannot be read exactly"):
            run(large)


ASKING = """
import sys, torch, smle
from smle.nn import BoxNetwork
from support.torch_doors import BOXED, Powers
alive = [BoxNetwork(Powers(4), BOXED, embedding=4, bounds="affine").eval() for _ in range(9)]
for key in sys.argv[1:]:
    try:
        torch.ops.smle.serve(torch.zeros(1, 2), torch.zeros(1, 4), None, key)
    except smle.errors.CertificateError:
        print("refused")
"""


def test_keys_of_one_process_find_no_other_head_in_another(tmp_path):
    """What a compiler wrote to a file is about the network of its process, and not about the one made at that place."""
    head = make_box()._head
    asked = subprocess.run(
        [sys.executable, "-c", ASKING, head.key, head.live, *(f":{number}" for number in range(9))],
        capture_output=True, text=True, check=True, env=environment(), cwd=Path(__file__).parent,
    )  # fmt: skip
    assert asked.stdout.split() == ["refused"] * 11
    assert make_box()._head.live != head.live
