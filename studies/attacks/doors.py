"""Ways to ask a head: NumPy, torch in every mode, the format written down again, onnxruntime.

A door takes an attacker and about how many points it may spend, and yields batches.
"""

from __future__ import annotations

import copy
import io
import itertools
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from smle.certificates.document import Certificate
from smle.graphs.certified_files import companion, write_onnx
from smle.graphs.head_graph import interface_of
from smle.nearest.onnx.pieces import Backbone
from smle.networks.folders import weights_of
from smle.nn import SafeNetwork
from smle.rules import Choice, Literals, Specification
from smle.storage import ModelRecord
from smle_check.onnx.nodes import EMBEDDING, STACKED
from studies.attacks import points
from studies.attacks.points import KINDS, Attacker, Batch, BoxAttacker, Drawn, Float, chunks, in_batches, plural
from studies.attacks.subjects import Subject
from studies.harness import Array, quietly
from tests.support.exported import accepted, feed, model_of, resealed, session
from tests.support.runtimes import Case
from tests.support.written_again import ORDERS, written_again

Door = Callable[[Any, int], Iterator[Batch]]
BATCHES = (1, 2, 3, 33)
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
_ROWS = 3  # at which a recorder looks
_THREADS = 4


@contextmanager
def torch_threads(count: int, *, flush: bool = False) -> Iterator[None]:
    """Set torch's number of threads inside the block, and flush subnormal numbers to zero."""
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
        low, high = attacker.spec.ends(dtype)
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
    low, high = (torch.from_numpy(end.copy()) for end in attacker.spec.ends(np.float32))
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

Mode = Callable[[Any, Tensor, Any], Any]
"""(network, inputs, embeddings or answers) -> what is served."""


class Passes(nn.Module):
    """Answers what it is given."""

    def forward(self, answers: Tensor) -> Tensor:
        """Return what was passed."""
        return answers


def _in(context: Callable[[Any], Any], dtype: torch.dtype | None = None) -> Mode:
    """Serve inside a context; with a format, answers are converted to it and require a gradient."""

    def run(network: Any, x: Tensor, z: Tensor) -> Any:
        with context(network):
            return network(x, z if dtype is None else z.to(dtype, copy=True).requires_grad_())

    return run


@contextmanager
def _training(network: Any) -> Iterator[None]:
    network.train()
    try:
        with torch.no_grad():
            yield
    finally:
        network.eval()


@contextmanager
def _by_default(network: Any) -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
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


def _threaded(network: Any, x: Tensor, z: Tensor) -> Any:
    with ThreadPoolExecutor(_THREADS) as pool:
        return torch.cat(list(pool.map(network, x.chunk(_THREADS), z.chunk(_THREADS))))


MODES: dict[str, Mode] = {
    "gradients": _in(nullcontext, torch.float32),
    "no_grad": _in(lambda network: torch.no_grad()),
    "inference mode": _in(lambda network: torch.inference_mode()),
    "autocast": _in(lambda network: torch.autocast("cpu", dtype=torch.bfloat16)),
    "no mode": _in(nullcontext),
    "training mode, no_grad": _in(_training),
    "answers in float64": _in(nullcontext, torch.float64),
    "answers in half": _in(nullcontext, torch.float16),
    "answers in bfloat16": _in(nullcontext, torch.bfloat16),
    "float64 by default": _in(_by_default, torch.float32),
    "make_fx": lambda network, x, z: make_fx(network)(x.flip(0), z.flip(0))(x, z),
    "export": _exported,
    "compile": _compiled,
    "vmap": lambda network, x, z: torch.func.vmap(network)(x[:, None], z[:, None])[:, 0],
    "vjp": lambda network, x, z: torch.func.vjp(lambda answers: network(x, answers), z)[0],
    "jvp": lambda network, x, z: torch.func.jvp(lambda answers: network(x, answers), (z,), (torch.ones_like(z),))[0],
    "hooks for all modules": _in(
        lambda network: nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None),
        torch.float32,
    ),
    "threads": _threaded,
}


def torch_modes(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve in every mode of torch, with and without flushing subnormal numbers; some answers are subnormal."""
    network = SafeNetwork.of(Passes(), attacker.spec, attacker.subject.certificate)
    yield from in_modes(network, attacker.zeros, count, attacker.rng)


def learned_modes(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve by the paper's network that a box was made of; nothing is claimed about it in training mode."""
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
    """Draw about `count` points in both formats, and serve them in every mode by a network that passes answers on."""
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
                with quietly(), torch_threads(1, flush=flush):
                    Y = mode(network, torch.from_numpy(X), torch.from_numpy(Z)).detach().numpy()
                yield Batch(X, X, Z, Y, f"torch, {name}{', flush to zero' if flush else ''}")


# --- onnxruntime


def head_file(spec: Specification, certificate: Certificate, *, monitor: bool = False, stacked: bool = False) -> bytes:
    """Return a certified head as an ONNX file that takes what the model computes as an input."""
    width = certificate.tensors["bounds.lower"].shape[0] if "bounds.lower" in certificate.tensors else len(spec.targets)
    value = onnx.helper.make_tensor_value_info(EMBEDDING, onnx.TensorProto.FLOAT, ["N", width])
    record = ModelRecord({}, {}, spec.to_yaml(), certificate)
    data: bytes = model_of(
        spec, record, Backbone([], [], [value]), monitor=monitor, stacked=stacked
    ).SerializeToString()
    return data


def columns_of(spec: Specification) -> list[str]:
    """Return the names of the outputs of an exported model that are numbers, in the order of the rules' outputs."""
    return interface_of(spec).columns


def answer_of(found: Sequence[Array], rows: int, columns: int) -> Array:
    """Return the answer (rows, columns); an answer with another number of rows counts as NaN."""
    parts = [part.reshape(len(part), -1) for part in found if part.ndim and len(part) == rows]
    together = np.concatenate(parts, axis=1) if len(parts) == len(found) else np.zeros((rows, 0))
    good = together.shape[1] == columns
    return np.asarray(together if good else np.full((rows, columns), np.nan), dtype=np.float32)


def _run(running: Any, names: list[str], spec: Specification, X: Array, Z: Array) -> Array:
    """Ask an exported head. Features are float32 there."""
    return np.concatenate(running.run(names, {**feed(spec, X), EMBEDDING: Z}), axis=1)


def levels(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve at all levels of optimization, several batch sizes, two threads; answers with reports have names."""
    if not attacker.subject.is_exported:
        return
    settings = [(level, 1, monitor, 1 << 15, 0.11) for level in LEVELS for monitor in (False, True)]
    settings += [(LEVELS[-1], 1, False, 1, 0.003), (LEVELS[-1], 1, False, 33, 0.02)]
    settings += [(LEVELS[-1], 2, False, 5000, 0.1)]
    for level, threads, monitor, batch, share in settings:
        stacked = not monitor and not any(isinstance(item, Choice) for item in attacker.spec.outputs)
        data = head_file(attacker.spec, attacker.subject.certificate, monitor=monitor, stacked=stacked)
        running, names = session(data, threads, level=level), [STACKED] if stacked else columns_of(attacker.spec)
        serve = partial(_run, running, names, attacker.spec)
        for size, _ in chunks(max(8, int(share * count)), attacker.chunk):
            X, Z = attacker.mixture(size, np.float32)
            yield Batch(
                X, X, Z, in_batches(serve, batch, X, Z), f"onnxruntime, {level}, batch {batch:,}, {plural(threads)}"
            )


def versions(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve by heads, and models with their heads, in every version of onnxruntime, flushed and not."""
    if not attacker.subject.is_exported or not attacker.runtimes:
        return
    X, Z = attacker.zeros(max(64, count // (4 * len(attacker.runtimes))), np.float32)
    ends = np.cumsum(np.repeat(BATCHES, 5))
    Xs, Zs = ([part for part in np.split(own, ends[ends < len(X)]) if len(part)] for own in (X, Z))
    names, feeds = columns_of(attacker.spec), [feed(attacker.spec, part) for part in Xs]
    chosen = [{**own, EMBEDDING: part} for own, part in zip(feeds, Zs, strict=True)]
    head = head_file(attacker.spec, attacker.subject.certificate)
    cases = {level: Case(head, names, chosen, level) for level in (LEVELS[0], LEVELS[-1])}
    if attacker.subject.onnx is not None:
        cases["model and head"] = Case(attacker.subject.onnx, names, feeds, LEVELS[-1])
    for flush in (False, True):
        yield from _in_runtimes(attacker, cases, Xs, Zs, flush=flush)


def _in_runtimes(
    attacker: Attacker, cases: dict[str, Case], Xs: Sequence[Array], Zs: Sequence[Array], *, flush: bool = False
) -> Iterator[Batch]:
    """Ask every onnxruntime the same calls of all cases; leave out those that it refuses."""
    for runtime in attacker.runtimes:
        found = runtime.answers(list(cases.values()), flush=flush)
        for title, calls in zip(cases, found, strict=True):
            m, asked = len(attacker.spec.targets), zip(Xs, Zs, calls, strict=True)
            done = [(X, Z, answer_of(y, len(X), m)) for X, Z, y in asked if y is not None]
            if done:
                X, Z, Y = (np.concatenate(part) for part in zip(*done, strict=True))
                yield Batch(X, X, Z, Y, f"onnxruntime {runtime.version}, {title}{', flush to zero' if flush else ''}")


# --- backbones that return another number of rows than they are given

Hostile = tuple[str, Callable[[Array], list[Any]], dict[str, Any]]
"""An operator, its inputs as a function of values (64, n), None for the honest embedding, and its attributes."""

HOSTILE: dict[str, Hostile] = {
    "two rows": ("Identity", lambda values: [values[:2]], {}),
    "one row": ("Identity", lambda values: [values[:1]], {}),
    "no axis of rows": ("Identity", lambda values: [values[0]], {}),
    "64 rows": ("Identity", lambda values: [values], {}),
    "no rows": ("Identity", lambda values: [values[:0]], {}),
    "one row more": ("Concat", lambda values: [values[:1], None], {"axis": 0}),
    "one row less": ("Slice", lambda values: [None, np.array([1]), np.array([1 << 40])], {}),
    "one axis more": ("Unsqueeze", lambda values: [None, np.array([1])], {}),
    "rows and columns swapped": ("Transpose", lambda values: [None], {}),
}


def wrong_rows(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Put hostile backbones into the exported file; run what the ONNX checker accepts, in every onnxruntime."""
    subject, spec = attacker.subject, attacker.spec
    if not subject.is_exported or not attacker.runtimes:
        return
    calls = max(2, count // (9 * sum(BATCHES) * len(attacker.runtimes)))
    honest, sealed = exported(subject)
    _, values = attacker.mixture(64, np.float32)
    Xs = [attacker.mixture(size, np.float32)[0] for size in BATCHES for _ in range(calls)]
    cases = {}
    for name, hostile in HOSTILE.items():
        data = spoiled(honest, hostile, values)
        if accepted(data, resealed(sealed, data)) is not None:
            cases[name] = Case(data, columns_of(spec), [feed(spec, X) for X in Xs])
    yield from _in_runtimes(attacker, cases, Xs, [values[:1].repeat(len(X), axis=0) for X in Xs])


def exported(subject: Subject) -> tuple[bytes, bytes]:
    """Return a box with its backbone as an ONNX file, and its certificate."""
    assert subject.network is not None
    record = ModelRecord(weights_of(subject.network), {}, subject.spec.to_yaml(), subject.certificate)
    return file_of(record, monitor=False)


def file_of(record: ModelRecord, *, monitor: bool = True) -> tuple[bytes, bytes]:
    """Return a record as an ONNX file, and its certificate."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.onnx"
        write_onnx(record, place, monitor=monitor)
        return place.read_bytes(), companion(place).read_bytes()


def spoiled(data: bytes, hostile: Hostile, values: Array) -> bytes:
    """Return the file with a hostile node between the backbone and the name under which the head reads it."""
    model = onnx.load_from_string(data)
    nodes = list(model.graph.node)
    at = next(i for i, node in enumerate(nodes) if EMBEDDING in node.output)
    nodes[at].output[0] = "backbone/honest"
    operator, inputs_of, attributes = hostile
    names = []
    for i, value in enumerate(inputs_of(values)):
        names.append("backbone/honest" if value is None else f"backbone/hostile{i}")
        if value is not None:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), names[-1]))
    del model.graph.node[:]
    made = onnx.helper.make_node(operator, names, [EMBEDDING], **attributes)
    model.graph.node.extend([*nodes[: at + 1], made, *nodes[at + 1 :]])
    result: bytes = model.SerializeToString(deterministic=True)
    return result


# --- sequences and graphs

_SHAPE_MODES = ("no_grad", "no mode", "inference mode", "autocast", "training mode, no_grad")


def _in_turns(count: int, make: Callable[[int, int], Batch]) -> Iterator[Batch]:
    """Yield what `make(turn, rows)` returns until there are `count` rows; kinds and modes take turns."""
    chunk, done = min(40_000, max(1_000, count // 25)), 0
    for turn in itertools.count():
        if done >= count:
            return
        batch = make(turn, min(chunk, count - done))
        done += len(batch.X)
        yield batch


def sequences(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve 5 to 200 positions: features per position and per sequence, with and without padding, in a file."""
    network, rng = points.Shaped(attacker, points.Attention), attacker.rng
    running = network.in_file(network.drawn((3, 6), np.float32)[1])

    def batch(turn: int, rows: int) -> Batch:
        length = int(rng.integers(5, 201))
        x, given = network.drawn((max(1, rows // length), length), KINDS[turn % 2])
        mode, name = MODES[_SHAPE_MODES[turn % len(_SHAPE_MODES)]], _SHAPE_MODES[turn % len(_SHAPE_MODES)]
        kind = ("features of each position", "features of each sequence", "padding", "file")[turn // 2 % 4]
        if kind == "features of each sequence":
            y = mode(network, x[:, 0], given)
            x = x[:, :1].expand(x.shape).contiguous()
        elif kind == "padding":
            mask = torch.from_numpy(rng.random(tuple(x.shape[:2])) < 0.8)
            y = mode(network, torch.where(mask[..., None], x, torch.nan), {**given, "mask": mask})
            if not y[~mask].isnan().all():
                raise AssertionError("padding was answered")
            x, y, given = x[mask], y[mask], {"aim": given["aim"][mask]}
        elif kind == "file":
            x, name = x.to(torch.float32), "onnxruntime"
            y = running(x, given)
        else:
            y = mode(network, x, given)
        return points.batch_of(x, given, y, f"Transformer, {kind}, {name}")

    yield from _in_turns(count, batch)


def graphs(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve graphs of 3 to 500 nodes, with and without edges, many at a time, in torch and in a file."""
    network, rng = points.Shaped(attacker, points.Messages), attacker.rng
    running = network.in_file(network.drawn((5,), np.float32)[1] | {"edges": torch.tensor([[0, 1, 2], [1, 2, 4]])})

    def batch(turn: int, rows: int) -> Batch:
        sizes = rng.integers(3, 501, size=max(1, rows // 250))
        x, given = network.drawn((int(sizes.sum()),), KINDS[turn % 2])
        given["edges"] = points.edges_of(sizes, rng) if turn % 5 else torch.zeros(2, 0, dtype=torch.int64)
        name = _SHAPE_MODES[turn % len(_SHAPE_MODES)]
        if turn % 4 == 3:
            x, name = x.to(torch.float32), "onnxruntime"
            y = running(x, given)
        else:
            y = MODES[name](network, x, given)
        return points.batch_of(x, given, y, f"graph network, {name}")

    yield from _in_turns(count, batch)


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
    "sequences": (sequences, {"sequences": 1.0}),
    "graphs": (graphs, {"graphs": 1.0}),
}
"""Doors, which are asked about points of all kinds, with the share of all points by family of heads."""
