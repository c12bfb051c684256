"""Cost of an answer: safe networks against plain ones, torch and onnxruntime."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smle import correct
from smle.heads.box.network.assurance import CertifiedNetwork, certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.networks.quick import Quick
from smle.rules import Specification
from studies.bench.clips import HEADER, RULES
from studies.harness import BenchResult, Table, Timing, interleaved, keep_memory, one_thread

__all__ = ["run", "undisturbed"]

_INPUTS, _OUTPUTS = 8, 4
_LIMITS = {"no gate": (1.5, 1.1), "one gated rule": (2.0, 1.25)}
"""Ratios that are asked for: at batch 1, and at batches of 1,024 and more."""

_BOX_LIMITS = {"one constant": (1.5, 1.25), "one affine": (1.5, 1.25), "ten mixed": (2.5, 2.0)}
"""Ratios that are asked of a learned box in place of the last layer: below 1,024 rows, and from there on."""

_SHORT = "torch, plain without module calls"


def run(quick: bool = False) -> BenchResult:
    """Run all parts; `quick` takes few rounds."""
    passed: dict[str, bool] = {}
    keep_memory()
    with one_thread():
        tables = (
            _table("A 128-128-64 backbone", (128, 128), 64, quick=quick, passed=passed),
            _table("The paper's network for 8 inputs and 4 outputs (32-64-32)", (32, 64), 32, quick=quick),
            _doors(quick, passed),
        )
    return BenchResult("inference", "Inference: cost of an answer", tables, passed=passed, quick=quick)


def _specification(gated: bool) -> Specification:
    inputs = "\n".join(f"  x{i}: [-1, 1]" for i in range(_INPUTS))
    when = "    when: x0 <= 0.2 and x1 >= 0.1\n" if gated else ""
    return Specification.from_yaml(
        f"inputs:\n{inputs}\noutputs: [a, b, c, d]\nrules:\n  - name: rule\n{when}    then: a <= 1 and b - c <= 0.5\n"
    )


def _pair(hidden: tuple[int, ...], embedding: int, bounds: str, *, gated: bool) -> tuple[BoxNetwork, nn.Module]:
    layers: list[nn.Module] = []
    width = _INPUTS
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(*layers, nn.Linear(width, embedding))
        safe = BoxNetwork(body, _specification(gated), embedding=embedding, bounds=bounds)
        plain = nn.Sequential(body, nn.Linear(embedding, _OUTPUTS))
    return project(safe), plain.eval().requires_grad_(False)


def _table(
    title: str, hidden: tuple[int, ...], embedding: int, *, quick: bool, passed: dict[str, bool] | None = None
) -> Table:
    rows: list[tuple[object, ...]] = []
    for gate in _LIMITS:
        for bounds in ("fixed", "affine"):
            safe, plain = _pair(hidden, embedding, bounds, gated=gate != "no gate")
            ours = _torch(CertifiedNetwork(safe.backbone, safe.spec, certify(safe)))
            runtimes = {"torch": (ours, _torch(plain)), _SHORT: (ours, _short(plain))}
            served = _served(safe) if bounds == "fixed" else None
            if served is not None:
                runtimes["onnxruntime"] = served
            for runtime, contenders in runtimes.items():
                for batch in (1,) if runtime == _SHORT else (1, 1024, 8192):
                    ratio, seconds = _compare(*contenders, batch, quick=quick)
                    rows.append((gate, "constant" if bounds == "fixed" else bounds, runtime, batch, *seconds, ratio))
                    if passed is not None and bounds == "fixed" and runtime != _SHORT:
                        limit = _LIMITS[gate][batch > 1]
                        what = f"{gate}, {runtime}, batch {batch:,}: at most {limit}x a plain network ({ratio:.2f}x)"
                        passed[what] = ratio <= limit
    return Table(
        title,
        ("gate", "bounds", "runtime", "batch", "plain (us)", "safe (us)", "safe / plain"),
        tuple(rows),
        "8 inputs, 4 outputs, one thread; the plain network has the same backbone and one linear layer. With a gate "
        "there is a certified head inside the rule's region and a free one outside. First quartile of the processor "
        "time of rounds taken in turns; the process keeps freed memory, so that page faults of large buffers are not "
        "measured. A safe "
        "network that is deployed runs its backbone without the calls of torch's modules; the plain one is called as "
        "modules are, and once in the same short way.",
    )


def _doors(quick: bool, passed: dict[str, bool]) -> Table:
    """Measure heads of rules behind a torch module, and learned boxes under the same rules beside them."""
    sizes = (1, 64, 1024) if quick else tuple(2**i for i in range(14))
    rows: list[tuple[object, ...]] = []
    for name, (rules, _) in RULES.items():
        text = "".join(f"  - {{name: r{i}, {rule}}}\n" for i, rule in enumerate(rules))
        spec = Specification.from_yaml(f"{HEADER}{text}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers: list[nn.Module] = []
            for inner in (3, 64, 64):
                layers += [nn.Linear(inner, 64), nn.ReLU()]
            body, last = nn.Sequential(*layers), nn.Linear(64, 1)
            boxed = BoxNetwork(body, spec, embedding=64, bounds="fixed" if "affine" not in text else "affine")
        plain = nn.Sequential(*body, last).eval().requires_grad_(False)
        contenders = {"plain": plain, "rules": correct(plain, spec).eval(), "box": boxed.eval()}
        found: dict[str, list[float]] = {"rules": [], "box": []}
        for size in sizes:
            x = torch.rand(size, 3, generator=torch.Generator().manual_seed(0))
            calls = {key: _call(network, x) for key, network in contenders.items()}
            for call in calls.values():
                call()  # programs are printed when they are first asked
            times = interleaved(calls, rounds=20 if quick else 200, budget=3.0, clock=time.thread_time)
            for key, ratios in found.items():
                ratios.append(min(times[key].seconds) / min(times["plain"].seconds))
        rows += [(name, "head of rules", *found["rules"]), (name, "learned box", *found["box"])]
        large = max(ratio for size, ratio in zip(sizes, found["rules"], strict=True) if size >= 256)
        passed[f"torch, {name}: below 2x the network from 256 rows on ({large:.2f}x)"] = large < 2
        slower = [size for size, ratio in zip(sizes, found["rules"], strict=True) if ratio > _before(size)]
        passed[f"torch, {name}: slower than before at no size ({slower or 'none'})"] = not slower
        for many, limit in enumerate(_BOX_LIMITS[name]):
            most = max(ratio for size, ratio in zip(sizes, found["box"], strict=True) if (size >= 1024) == bool(many))
            where = "from 1,024 rows on" if many else "below 1,024 rows"
            passed[f"torch, {name}, learned box: at most {limit}x the network {where} ({most:.2f}x)"] = most <= limit
    return Table(
        "A 3-64-64-64-1 network in torch, with a head behind it",
        ("rules", "head", *(f"{size:,}" for size in sizes)),
        tuple(rows),
        "Ratio to the network alone by batch size; one thread; the least processor time of rounds taken in turns. The "
        "head of rules is a program in NumPy behind the module. A learned box takes the place of the last layer. "
        "Before there were heads of rules an answer cost 1.5 times the network at batch 1, 3 or more up to 128, and "
        "1.2 or more at 4,096.",
    )


def _before(size: int) -> float:
    """Return the least ratio that was measured before there were heads of rules."""
    return 1.5 if size == 1 else 3.0 if size <= 128 else 1.2 if size >= 4096 else 2.0


def _call(network: nn.Module, x: Tensor) -> Callable[[], Any]:
    def call() -> Any:
        with torch.inference_mode():
            return network(x)

    return call


def _torch(network: nn.Module) -> Callable[[Tensor], Any]:
    def answer(x: Tensor) -> Any:
        return network(x)

    return answer


def _short(plain: nn.Module) -> Callable[[Tensor], Any]:
    body, last = plain.children()
    answer = Quick.of(nn.Sequential(*body.children(), last))
    assert answer is not None
    return answer


def _compare(
    ours: Callable[[Tensor], Any], theirs: Callable[[Tensor], Any], batch: int, *, quick: bool
) -> tuple[float, tuple[float, float]]:
    x = 2 * torch.rand(batch, _INPUTS, generator=torch.Generator().manual_seed(0)) - 1
    calls = 20 if batch == 1 else 1

    def repeated(answer: Callable[[Tensor], Any]) -> Callable[[], None]:
        def call() -> None:
            with torch.inference_mode():
                for _ in range(calls):
                    answer(x)

        return call

    rounds = 60 if batch <= 1024 else 20
    times = interleaved(
        {"plain": repeated(theirs), "safe": repeated(ours)},
        rounds=rounds if quick else 5 * rounds,
        budget=4.0,
        clock=time.thread_time,
    )
    plain, safe = (undisturbed(times[name]) / calls for name in ("plain", "safe"))
    return safe / plain, (plain * 1e6, safe * 1e6)


def undisturbed(timing: Timing) -> float:
    """Return the first quartile of the seconds: calls that other work on the machine did not interrupt."""
    return float(np.quantile(timing.seconds, 0.25))


def _served(safe: BoxNetwork) -> tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]] | None:
    """Return the network and one without rules, both as exported, in onnxruntime; None if it is not installed."""
    try:
        import onnxruntime

        from smle.graphs.certified_files import write_certified
        from smle.networks.onnx import torch_backbone, write_network
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    body, without = safe.backbone, replace(safe.spec, rules=())
    plain = nn.Sequential(body, nn.Linear(safe.embedding, len(safe.spec.targets))).eval()
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.onnx" for name in ("safe", "plain")]
        write_network(safe, paths[0], monitor=False)  # both answer, and nothing else
        part = torch_backbone(plain, (torch.zeros(3, len(without.columns)),), features=True)
        write_certified(without, None, {}, part, paths[1], monitor=False)
        for path in paths:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            answers.append(_session(session))
    return answers[0], answers[1]


def _session(session: Any) -> Callable[[Tensor], Any]:
    names = [item.name for item in session.get_inputs()]
    wanted = [item.name for item in session.get_outputs()][:_OUTPUTS]

    def answer(x: Tensor) -> Any:
        columns = x.numpy().T.reshape(len(names), -1, 1)
        return session.run(wanted, dict(zip(names, columns, strict=True)))

    return answer
