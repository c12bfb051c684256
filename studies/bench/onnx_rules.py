"""Cost of a head of rules in onnxruntime: a network with the head behind it, in one file, against the network alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from smle.certificates.document import arrays_of
from smle.export import write_onnx
from smle.heads.rules.author import certify_rules
from smle.rules import Specification
from smle.storage import ModelRecord
from studies.bench.clips import RULES as LIMITS
from studies.harness import BenchResult, Table, interleaved, keep_memory

__all__ = ["run"]

_INPUTS = "inputs: {a: [0, 1], b: [0, 1], c: [0, 1]}\n"
_ASKED = {"one constant": (2.1, 2.1), "one affine": (2.1, 2.1), "ten mixed": (3.0, 1.5)}
"""Ratios that are asked for, at batch 1 and at batch 1,024."""

_COUPLED = {
    "A: one rule, 3 rows, 2 outputs": (2, ("when: a <= {share}, then: p + q <= 1 and p - q <= 0.5 and q - p <= 0.5",)),
    "B: 3 rules, 10 literals, 4 outputs": (
        4,
        (
            "when: a <= {share}, then: p + q <= 1 and p - q <= 0.5 + 0.1 * b and r + s <= 1 and q + r <= 1",
            "when: a <= {share}, then: p + r <= 0.2 or p + r >= 1",
            "when: a <= {share}, then: p + q + r + s <= 2 and r - s <= 0.6 and s - r <= 0.6 and p - s <= 1",
        ),
    ),
}

_TRIED = {
    "A": {1: (2.6, None, 4.9), 64: (2.2, 3.7, 4.8), 1024: (1.8, 2.2, 4.5)},
    "B": {1: (3.2, None, 6.7), 64: (2.6, 5.2, 10.0), 1024: (2.0, 3.6, 14.0)},
}
"""Ratios that a first trial reached: rows repaired none, a tenth, all."""


def run(quick: bool = False) -> BenchResult:
    """Measure limits and coupled outputs; `quick` takes few rounds."""
    keep_memory()
    sizes = (1, 1024) if quick else (1, 8, 64, 1024, 8192)
    passed: dict[str, bool] = {}
    rows: list[tuple[object, ...]] = []
    for name, (rules, _) in LIMITS.items():
        ratios = {size: _ratio(["y"], rules, 0.0, size, quick=quick) for size in sizes}
        rows.append((name, *ratios.values()))
        for size, limit in zip((1, 1024), _ASKED[name], strict=True):
            passed[f"{name}, batch {size:,}: at most {limit}x the network ({ratios[size]:.2f}x)"] = (
                ratios[size] <= limit
            )
    columns = ("rules", *(f"{size:,}" for size in sizes))
    limits = Table(
        "Limits: a 3-64-64-64-1 network",
        columns,
        tuple(rows),
        "Ratio to the network alone by batch size, both with named inputs in onnxruntime; one thread; the least "
        "processor time of rounds taken in turns. Exported with monitor=False.",
    )
    rows, shares = [], (0.0, 0.1, 1.0)
    for name, (m, rules) in _COUPLED.items():
        for share in shares:
            stated = [rule.format(share=share) for rule in rules]
            outputs = ["p", "q", "r", "s"][:m]
            ratios = {size: _ratio(outputs, stated, 5.0 if share else 0.0, size, quick=quick) for size in sizes}
            rows.append((name, f"{share:.0%}", *ratios.values()))
            for size, tried in _TRIED[name[0]].items():
                goal = tried[shares.index(share)]
                if size in ratios and goal is not None:
                    what = f"{name[0]}, batch {size:,}, {share:.0%} repaired: at most as tried, {goal}x"
                    passed[f"{what} ({ratios[size]:.2f}x)"] = ratios[size] <= 1.05 * goal
    coupled = Table(
        "Coupled outputs: a 3-64-64-64-m network",
        ("rules", "rows repaired", *columns[1:]),
        tuple(rows),
        "As above. Rows that the rules allow pay for the check; the nearest allowed answers are searched for inside of "
        "the graph where a row of a batch breaks a rule.",
    )
    return BenchResult("onnx_rules", "Heads of rules in onnxruntime", (limits, coupled), passed=passed, quick=quick)


def _network(m: int, level: float) -> bytes:
    """A network of named columns, whose answers are around a level."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, constants, source = [helper.make_node("Concat", ["a", "b", "c"], ["x"], axis=1)], [], "x"
    for i, (inner, outer) in enumerate(itertools.pairwise((3, 64, 64, 64, m))):
        last = i == 3
        weights = rng.normal(size=(outer, inner)).astype(np.float32) / (160 if last else 8)
        bias = np.full(outer, level if last else 0.1, dtype=np.float32)
        constants += [numpy_helper.from_array(v, f"{n}{i}") for n, v in (("W", weights), ("b", bias))]
        output = "answers" if last else f"h{i}"
        nodes.append(helper.make_node("Gemm", [source, f"W{i}", f"b{i}"], [output], transB=1))
        source = output if last else f"r{i}"
        if not last:
            nodes.append(helper.make_node("Relu", [output], [source]))
    ends = [helper.make_tensor_value_info(name, 1, ["N", 1]) for name in "abc"]
    graph = helper.make_graph(nodes, "g", ends, [helper.make_tensor_value_info("answers", 1, ["N", m])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(model.SerializeToString())


def _ratio(outputs: list[str], rules: Any, level: float, size: int, *, quick: bool) -> float:
    text = "".join(f"  - {{name: r{i}, {rule}}}\n" for i, rule in enumerate(rules))
    spec = Specification.from_yaml(f"{_INPUTS}outputs: [{', '.join(outputs)}]\nrules:\n{text}")
    network = _network(len(outputs), level)
    record = ModelRecord({}, {}, spec.to_yaml(), None, network)
    certificate = certify_rules(spec, files=record.bound_files())
    record = replace(record, weights=arrays_of(certificate.tensors), certificate=certificate)
    with TemporaryDirectory() as folder:
        write_onnx(record, Path(folder) / "joined.onnx", monitor=False)
        joined = (Path(folder) / "joined.onnx").read_bytes()
    columns = np.random.default_rng(1).random((3, size, 1), dtype=np.float32)
    feed = dict(zip("abc", columns, strict=True))
    calls = 5 if size == 1 else 1
    contenders = {name: _asked(data, feed, calls) for name, data in (("network", network), ("both", joined))}
    times = interleaved(contenders, rounds=60 if quick else 2000, budget=6.0, clock=time.thread_time)
    return min(times["both"].seconds) / min(times["network"].seconds)


def _asked(data: bytes, feed: dict[str, Any], calls: int) -> Callable[[], None]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def call() -> None:
        for _ in range(calls):
            session.run(None, feed)

    return call
