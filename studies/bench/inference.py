"""Cost of an answer: a model with a head behind it against the model alone, by batch size, in NumPy, torch and ONNX.

Ratios are those of the least processor time over rounds taken in turns, on one thread.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from smle import correct
from smle.graphs.certified_files import write_certified
from smle.heads.box.network.assurance import certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import certify_head, program_of
from smle.nearest.oracle import nearest_outputs
from smle.networks.onnx_export import torch_backbone, write_network
from smle.nn import SafeNetwork
from smle.rules import Number, Specification
from studies.attacks.points import Attention, Given, Messages, edges_of
from studies.attacks.subjects import RULES
from studies.experiments.networks import relu_layers
from studies.harness import Array, Table, asked, bench, interleaved, seeded
from tests.support.exported import session

Call = Callable[[], Any]
Pair = Callable[[Array], Mapping[str, Call]]
"""Inputs (rows, 3) -> the model alone, and what is compared with it."""

# --- rules

_ASKED = {
    ("NumPy", "one constant"): {0: 1.5},
    ("NumPy", "one affine"): {0: 1.9},
    ("NumPy", "ten mixed"): {0: 2.6},
    ("onnxruntime", "one constant"): {1: 2.1, 1024: 2.1},
    ("onnxruntime", "one affine"): {1: 2.1, 1024: 2.1},
    ("onnxruntime", "ten mixed"): {1: 3.0, 1024: 1.5},
    ("onnxruntime, one tensor", "20 shares of 1"): {1: 4.0, 1024: 9.0},
    ("torch", "one constant"): {256: 2.0},
    ("torch", "one affine"): {256: 2.0},
    ("torch", "ten mixed"): {256: 2.0},
    ("torch, learned box", "one constant"): {0: 1.5, 1024: 1.25},
    ("torch, learned box", "one affine"): {0: 1.5, 1024: 1.25},
    ("torch, learned box", "ten mixed"): {0: 2.5, 1024: 2.0},
}
"""Ratios that are asked for: of onnxruntime at these sizes, of others from them on (up to the next)."""


def _cases() -> list[tuple[str, str, Specification, float]]:
    """Return name, share of rows that are repaired, rules, and the level around which a model answers."""
    limits = ("one constant", "one affine", "ten mixed")
    cases = [(name, "", Specification.from_yaml(RULES[name]), 0.0) for name in limits]
    for name in ("A: 3 rows, 2 outputs", "B: 10 literals, 4 outputs"):
        for share, level in ((0.0, 0.0), (0.1, 5.0), (1.0, 5.0)):
            text = RULES[name].replace("SHARE", str(share))
            cases.append((name, f"{share:.0%}", Specification.from_yaml(text), level))
    parts = [f"s{i}" for i in range(20)]
    rules = {"r0": f"{' + '.join(parts)} == 1", "r1": " and ".join(f"0 <= {part} <= 0.2" for part in parts)}
    inputs, outputs = dict.fromkeys("abc", (0, 1)), {part: dict[str, Any]() for part in parts}
    shares = Specification.build(inputs=inputs, outputs=outputs, rules=rules)
    return [*cases, ("cents", "", Specification.from_yaml(RULES["cents"]), 0.05), ("20 shares of 1", "", shares, 0.05)]


# --- runtimes: a 3-64-64-64-m network, with and without a head


def _weights(spec: Specification, level: float) -> list[tuple[Array, Array]]:
    """Return the layers of a network whose answers are around a level."""
    rng, sizes = np.random.default_rng(0), (len(spec.columns), 64, 64, 64, len(spec.targets))
    layers = [
        ((rng.normal(size=(outer, inner)) / 8).astype(np.float32), np.full(outer, 0.1, dtype=np.float32))
        for inner, outer in itertools.pairwise(sizes)
    ]
    return [*layers[:-1], ((layers[-1][0] / 20).astype(np.float32), np.full(sizes[-1], level, dtype=np.float32))]


def _answers(weights: list[tuple[Array, Array]], x: Any) -> Any:
    for weight, bias in weights[:-1]:
        x = x @ weight.T
        x += bias
        np.maximum(x, 0, out=x)
    return x @ weights[-1][0].T + weights[-1][1]


def _in_numpy(spec: Specification, level: float) -> Pair:
    weights, program = _weights(spec, level), cast(Any, program_of(certify_head(spec)))
    return lambda x: {"model": lambda: _answers(weights, x), "NumPy": lambda: program(x, _answers(weights, x))}


def _by_solver(spec: Specification, level: float) -> Pair:
    weights = _weights(spec, level)
    return lambda x: {
        "model": lambda: _answers(weights, x),
        "a QP solver": lambda: nearest_outputs(spec, x, _answers(weights, x).astype(np.float64)),
    }


def _network(spec: Specification, level: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for weight, bias in _weights(spec, level):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval().requires_grad_(False)


def _in_torch(spec: Specification, level: float) -> Pair:
    plain = _network(spec, level)
    networks = {"model": plain, "torch": correct(plain, spec).eval()}
    if spec.output_kind == "numbers" and len(spec.targets) == 1 and spec.grid is None:
        networks["torch, learned box"] = BoxNetwork(plain[:-1], spec, embedding=64, bounds="fixed").eval()

    def pair(x: Array) -> Mapping[str, Call]:
        rows = torch.from_numpy(x)
        return {name: asked(network, rows) for name, network in networks.items()}

    return pair


def _in_files(spec: Specification, level: float) -> Pair:
    plain = _network(spec, level)
    with tempfile.TemporaryDirectory() as folder:
        names = ("model", "onnxruntime", *(["onnxruntime, one tensor"] if len(spec.targets) > 1 else []))
        paths = {name: Path(folder) / f"{name}.onnx" for name in names}
        _write_plain(plain, spec, paths["model"], stacked=True)
        for name in names[1:]:
            correct(plain, spec).to_onnx(paths[name], monitor=False, stacked="," in name)
        sessions = {name: session(path) for name, path in paths.items()}

    def pair(x: Array) -> Mapping[str, Call]:
        feed = dict(zip("abc", np.ascontiguousarray(x.T)[:, :, None], strict=True))
        return {name: partial(running.run, None, feed) for name, running in sessions.items()}

    return pair


def _write_plain(network: nn.Module, spec: Specification, path: Path, *, stacked: bool) -> None:
    """Write a network as a file of named columns, without rules; its answers have names, too, or are one tensor."""
    without = replace(spec, rules=(), outputs=tuple(Number(name) for name in spec.targets))
    part = torch_backbone(network, (torch.zeros(3, len(spec.columns)),), features=True)
    write_certified(without, None, {}, part, path, monitor=False, stacked=stacked)


# --- measuring


@bench("Inference: cost of an answer")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Measure all heads; `quick` takes few sizes and rounds."""
    return (
        _heads(quick, passed),
        _many_limits(quick, passed),
        _boxes("A 128-128-64 backbone", (128, 128), 64, quick, passed),
        _boxes("The paper's network for 8 inputs and 4 outputs (32-64-32)", (32, 64), 32, quick, {}),
        sequence_costs(quick, passed),
    )


def _heads(quick: bool, passed: dict[str, bool]) -> Table:
    sizes = (1, 64, 1024) if quick else tuple(2**i for i in range(14))
    rows: list[tuple[object, ...]] = []
    for name, share, spec, level in _cases():
        found: dict[str, list[float]] = {}
        for made in (_in_numpy, _in_torch, _in_files, *([_by_solver] if share == "100%" else [])):
            pair = made(spec, level)
            for size in sizes if made is not _by_solver else sizes[:2] if quick else sizes[:7]:
                x = np.random.default_rng(1).random((size, 3), dtype=np.float32)
                for runtime, ratio in ratios_of(pair(x), quick)[0].items():
                    found.setdefault(runtime, []).append(ratio)
        for runtime, ratios in found.items():
            rows.append((name, share, runtime, *ratios, *["-"] * (len(sizes) - len(ratios))))
            limits = _ASKED.get((runtime, name), {})
            for start, end in itertools.pairwise([*limits, 1 << 20]):
                last = start if "onnxruntime" in runtime else end - 1
                own = [ratio for size, ratio in zip(sizes, ratios, strict=True) if start <= size <= last]
                limit, where = limits[start], f"at {start:,}" if last == start else f"from {max(start, 1):,} rows on"
                passed[f"{runtime}, {name}: at most {limit}x the model {where} ({max(own):.2f}x)"] = max(own) <= limit
    return Table(
        "A 3-64-64-64-m network, with a head behind it",
        ("rules", "rows repaired", "runtime", *(f"{size:,}" for size in sizes)),
        tuple(rows),
        "Ratio to the network alone in the same runtime by batch size. In NumPy the program behind a network, in torch "
        "`smle.correct` of a module, and a learned box in the place of the last layer; in onnxruntime both in one file "
        "with named inputs, monitor=False, the answers by name, or in one tensor as the network's; at last a QP solver "
        "behind the network in NumPy. Rows that the rules allow pay for the check; nearest allowed answers are looked "
        "for where a row breaks a rule.",
    )


def _many_limits(quick: bool, passed: dict[str, bool], count: int = 1000) -> Table:
    rng, rules = np.random.default_rng(0), {}
    for i in range(count):
        start, column, other = 0.99 * rng.random(), rng.integers(50), rng.integers(50)
        side, ahead = (">=", -1) if i % 2 else ("<=", 1)
        limit = f"{rng.random():.4f} * x{other} + {ahead}" if i % 4 < 2 else f"{ahead * (1 + rng.random()):.4f}"
        when = f"{start:.4f} <= x{column} <= {start + 0.01:.4f}"
        rules[f"r{i}"] = when, f"y{i % 5} {side} {limit}"
    inputs = {f"x{i}": (0, 1) for i in range(50)}
    spec = Specification.build(inputs=inputs, outputs=[f"y{i}" for i in range(5)], rules=rules)
    start = time.process_time()
    certificate = certify_rules(spec)
    made = time.process_time() - start
    certificate.check()
    checked = time.process_time() - start - made
    sizes, pair = (1, 64, 1024) if quick else (1, 8, 64, 1024, 8192), _in_numpy(spec, 0.0)
    ratios = [ratios_of(pair(rng.random((size, 50), dtype=np.float32)), quick)[0]["NumPy"] for size in sizes]
    ratio = ratios[sizes.index(1024)]
    passed[f"{count:,} limits: set-up in 10 s ({made:.1f} s), check in 30 s ({checked:.1f} s)"] = (
        made <= 10 > checked / 3
    )
    passed[f"{count:,} limits: at most 2x the model at batch 1,024 ({ratio:.2f}x)"] = ratio <= 2
    return Table(
        f"Many limits: a 50-64-64-64-5 network, {count:,} limits, ten of them active on average",
        ("set-up (s)", "check (s)", *(f"ratio at {size:,}" for size in sizes)),
        ((made, checked, *ratios),),
        "Each limit holds on an interval of one input, of a hundredth of its range; half of them move with an input.",
    )


# --- learned boxes


def _boxes(title: str, hidden: tuple[int, ...], embedding: int, quick: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    for gate, limits in {"no gate": (1.5, 1.1), "one gated rule": (2.0, 1.25)}.items():
        for bounds in ("fixed", "affine"):
            safe, plain = _pair(hidden, embedding, bounds, gated=gate != "no gate")
            runtimes: dict[str, tuple[Any, Any]] = {
                "torch": (plain, SafeNetwork.of(safe.backbone, safe.spec, certify(safe)).eval())
            }
            runtimes |= {"onnxruntime": _box_files(safe)} if bounds == "fixed" else {}
            for runtime, (theirs, ours) in runtimes.items():
                for batch in (1, 1024, 8192):
                    x = 2 * torch.rand(batch, 8, generator=torch.Generator().manual_seed(0)) - 1
                    calls = {name: asked(one, x) for name, one in (("plain", theirs), ("safe", ours))}
                    found, seconds = ratios_of(calls, quick)
                    shown = (seconds * 1e6, seconds * found["safe"] * 1e6, found["safe"])
                    rows.append((gate, "constant" if bounds == "fixed" else bounds, runtime, batch, *shown))
                    if bounds == "fixed":
                        limit = limits[batch > 1]
                        what = f"{gate}, {runtime}, batch {batch:,}: at most {limit}x a plain network"
                        passed[f"{what} ({found['safe']:.2f}x)"] = found["safe"] <= limit
    return Table(
        title,
        ("gate", "bounds", "runtime", "batch", "plain (us)", "safe (us)", "safe / plain"),
        tuple(rows),
        "8 inputs, 4 outputs; the plain network has the same backbone and one linear layer. With a gate there is a "
        "certified head inside the rule's region and a free one outside. The process keeps freed memory, so that page "
        "faults of large buffers are not measured. A safe network that is deployed runs its backbone without the calls "
        "of torch's modules; the plain one is called as modules are.",
    )


def _pair(hidden: tuple[int, ...], embedding: int, bounds: str, *, gated: bool) -> tuple[BoxNetwork, nn.Module]:
    asked = "a <= 1 and b - c <= 0.5"
    spec = Specification.build(
        inputs={f"x{i}": (-1, 1) for i in range(8)}, outputs=["a", "b", "c", "d"],
        rules={"rule": ("x0 <= 0.2 and x1 >= 0.1", asked) if gated else asked},
    )  # fmt: skip
    with seeded(0):
        body = nn.Sequential(*relu_layers(8, *hidden), nn.Linear(hidden[-1], embedding))
        safe = BoxNetwork(body, spec, embedding=embedding, bounds=bounds)
        plain = nn.Sequential(body, nn.Linear(embedding, 4))
    return project(safe), plain.eval().requires_grad_(False)


def _box_files(safe: BoxNetwork) -> tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]:
    """Return a network without rules and the box, both as exported, in onnxruntime; both answer, and nothing else."""
    plain = nn.Sequential(safe.backbone, nn.Linear(safe.embedding, len(safe.spec.targets))).eval()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.onnx" for name in ("plain", "safe")]
        _write_plain(plain, safe.spec, paths[0], stacked=False)
        write_network(safe, paths[1], monitor=False)
        sessions = [session(path) for path in paths]

    def answer(running: Any) -> Callable[[Tensor], Any]:
        names = [item.name for item in running.get_inputs()]
        wanted = [item.name for item in running.get_outputs()][:4]
        return lambda x: running.run(wanted, dict(zip(names, x.numpy().T.reshape(len(names), -1, 1), strict=True)))

    return answer(sessions[0]), answer(sessions[1])


# --- sequences and graphs: trained networks against the modules inside of them


def ratios_of(contenders: Mapping[str, Call], quick: bool, *, budget: float = 1.0) -> tuple[dict[str, float], float]:
    """Return what each takes beside the first, and the seconds of the first."""
    for call in contenders.values():
        call()  # programs are printed when they are first asked
    times = interleaved(contenders, rounds=20 if quick else 300, budget=budget, clock=time.thread_time)
    least = {name: min(timing.seconds) for name, timing in times.items()}
    base, *others = least
    return {name: least[name] / least[base] for name in others}, least[base]


def sequence_costs(quick: bool, passed: dict[str, bool]) -> Table:
    """Compare trained networks with the modules inside of them."""
    rows: list[tuple[object, ...]] = []
    for title, rules, module in (
        ("Transformer, 64 wide, 2 layers", "sequences", Attention(2, 16, 64, 2)),
        ("graph network, 64 wide", "graphs", Messages(3, 16, 64)),
    ):
        rng = np.random.default_rng(0)
        torch.manual_seed(0)
        network: Any = _fitted(rules, module, rng, 5 if quick else 150)
        for count in (1_000, 10_000) if quick else (1_000, 3_000, 10_000, 100_000):
            x, given, _ = _drawn(rules, count, rng)
            alone = partial(lambda inside, given, x: inside(**given), network.backbone, given)
            contenders = {"plain": alone, "safe": partial(network, **given)}
            found, seconds = ratios_of({name: asked(one, x) for name, one in contenders.items()}, quick, budget=15.0)
            moved = network.counts["moved"] / network.counts["rows"]
            rows.append((title, x.shape[:-1].numel(), f"{moved:.1%}", seconds * 1e3, found["safe"]))
            network.counts.update(dict.fromkeys(network.counts, 0))
            if not quick:
                passed[f"{title}: at most 1.3 times the plain model at {count:,} positions"] = found["safe"] <= 1.3
    return Table("Sequences and graphs", ("network", "positions", "moved", "plain (ms)", "ratio"), tuple(rows))


def _drawn(rules: str, count: int, rng: np.random.Generator) -> tuple[Tensor, Given, Tensor]:
    """Return features, what the module reads, and targets."""
    if rules == "sequences":
        x = torch.from_numpy(rng.uniform([40, -20], [80, 40], (count // 100, 100, 2)).astype(np.float32))
        load = x[..., 0] + 6 * torch.sin(x[..., 1] / 8)
        given = {"x": (x - torch.tensor([60.0, 10.0])) / torch.tensor([20.0, 20.0])}
        return x, given, torch.stack([load, 0.15 * load], dim=-1)
    x = torch.from_numpy(rng.uniform([0, 0, 0], [10, 10, 1], (count, 3)).astype(np.float32))
    need = 0.6 * (x[..., 1] - x[..., 0]).clamp(min=0) + 0.5
    wanted = torch.stack([need, need + 5 * (x[..., 2] >= 0.5)], dim=-1).clamp(max=10)
    return x, {"x": x / torch.tensor([10.0, 10.0, 1.0]), "edges": edges_of(np.full(count // 100, 100), rng)}, wanted


def _fitted(rules: str, module: nn.Module, rng: np.random.Generator, steps: int) -> nn.Module:
    x, _, wanted = _drawn(rules, 2_000, rng)
    network = SafeNetwork(module, Specification.from_yaml(RULES[rules]), embedding=16, example=(x, wanted))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):
        x, given, wanted = _drawn(rules, 2_000, rng)
        optimizer.zero_grad()
        torch.autograd.backward((network(x, **given) - wanted).square().mean())
        optimizer.step()
    return network.eval()
