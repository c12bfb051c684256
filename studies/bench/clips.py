"""Cost of a clip list behind a model's answers, against the model alone, at every batch size."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.heads.rules.author import certify_rules
from smle.heads.rules.clip_list import ClipList
from smle.rules import Specification
from studies.harness import BenchResult, Table, interleaved, keep_memory, one_thread

__all__ = ["HEADER", "RULES", "run"]

Array = npt.NDArray[np.float32]
HEADER = "inputs: {a: [0, 1], b: [0, 1], c: [0, 1]}\noutputs: [y]\nrules:\n"
_TEN = (
    "then: y >= -1",
    "when: a <= 0.5, then: y <= 3",
    "when: b > 0.7, then: y <= 2",
    "when: c < 0.2, then: y >= -0.8",
    "when: a > 0.2 and b <= 0.9, then: y <= 2.5",
    "then: y <= 3 * a + 1",
    "when: b <= 0.4, then: y <= b + c + 1",
    "when: c >= 0.6, then: y >= 0.5 * a - 1",
    "when: a + b <= 1, then: y <= 2 * c + 1",
    "when: a >= 0.9, then: y >= 0.2 * b - 0.9",
)
RULES: dict[str, tuple[tuple[str, ...], float]] = {
    "one constant": (("when: a <= 0.5, then: y <= 0.2",), 1.5),
    "one affine": (("when: a <= 0.5, then: y <= 0.3 * b + 0.1",), 1.9),
    "ten mixed": (_TEN, 2.6),
}
"""Rules, and the ratio that is asked for at every batch size."""

_MANY, _INPUTS, _OUTPUTS = 1000, 50, 5


def run(quick: bool = False) -> BenchResult:
    """Measure all rule sets; `quick` takes few sizes and rounds."""
    keep_memory()
    with one_thread():
        return _run(quick)


def _run(quick: bool) -> BenchResult:
    passed: dict[str, bool] = {}
    sizes = (1, 8, 64, 1024) if quick else tuple(2**i for i in range(14))
    rows: list[tuple[object, ...]] = []
    for name, (rules, limit) in RULES.items():
        text = "".join(f"  - {{name: r{i}, {rule}}}\n" for i, rule in enumerate(rules))
        ratios = [_ratio(_program(HEADER + text), 3, 1, size, quick=quick) for size in sizes]
        rows.append((name, *ratios))
        passed[f"{name}: at most {limit}x the model at every size ({max(ratios):.2f}x)"] = max(ratios) <= limit
    few = Table(
        "A 3-64-64-64-1 network in NumPy, with and without a clip list behind it",
        ("rules", *(f"{size:,}" for size in sizes)),
        tuple(rows),
        "Ratio of both to the network alone by batch size; float32, one thread; the least processor time of rounds "
        "taken in turns.",
    )
    spec, start = Specification.from_yaml(_many()), time.process_time()
    certificate = certify_rules(spec)
    made, start = time.process_time() - start, time.process_time()
    certificate.check()
    checked = time.process_time() - start
    counts = (1, 64, 1024) if quick else (1, 8, 64, 1024, 8192)
    ratios = [_ratio(ClipList(certificate), _INPUTS, _OUTPUTS, size, quick=quick) for size in counts]
    ratio = ratios[counts.index(1024)]
    passed[f"{_MANY:,} limits: set-up in 10 s ({made:.1f} s), check in 30 s ({checked:.1f} s)"] = (
        made <= 10 and checked <= 30
    )
    passed[f"{_MANY:,} limits: at most 2x the model at batch 1,024 ({ratio:.2f}x)"] = ratio <= 2
    many = Table(
        "Many limits: a 50-64-64-64-5 network, 1,000 limits, ten of them active on average",
        ("set-up (s)", "check (s)", *(f"ratio at {size:,}" for size in counts)),
        ((made, checked, *ratios),),
        "Each limit holds on an interval of one input, of a hundredth of its range; half of them move with an input.",
    )
    return BenchResult("clips", "Clip lists: cost of an answer", (few, many), passed=passed, quick=quick)


def _many() -> str:
    rng = np.random.default_rng(0)
    lines = [f"  x{i}: [0, 1]" for i in range(_INPUTS)]
    rules = []
    for i in range(_MANY):
        start, column, other = 0.99 * rng.random(), rng.integers(_INPUTS), rng.integers(_INPUTS)
        side, ahead = (">=", -1) if i % 2 else ("<=", 1)
        limit = f"{rng.random():.4f} * x{other} + {ahead}" if i % 4 < 2 else f"{ahead * (1 + rng.random()):.4f}"
        when = f"{start:.4f} <= x{column} <= {start + 0.01:.4f}"
        rules.append(f"  - {{name: r{i}, when: {when}, then: y{i % _OUTPUTS} {side} {limit}}}")
    outputs = ", ".join(f"y{i}" for i in range(_OUTPUTS))
    return "\n".join(["inputs:", *lines, f"outputs: [{outputs}]", "rules:", *rules]) + "\n"


def _program(rules: str) -> ClipList:
    return ClipList(certify_rules(Specification.from_yaml(rules)))


def _network(inputs: int, outputs: int, rng: np.random.Generator) -> Callable[[Array], Any]:
    sizes = (inputs, 64, 64, 64, outputs)
    weights = [rng.normal(size=s).astype(np.float32) / 8 for s in itertools.pairwise(sizes)]
    biases = [rng.normal(size=size).astype(np.float32) for size in sizes[1:]]

    def network(x: Any) -> Any:
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            x = x @ weight
            x += bias
            np.maximum(x, 0, out=x)
        return x @ weights[-1] + biases[-1]

    return network


def _ratio(program: ClipList, inputs: int, outputs: int, size: int, *, quick: bool) -> float:
    rng = np.random.default_rng(1)
    network, x = _network(inputs, outputs, rng), rng.random((size, inputs)).astype(np.float32)
    contenders = {"model": lambda: network(x), "both": lambda: program(x, network(x))}
    times = interleaved(contenders, rounds=20 if quick else 300, budget=6.0, clock=time.thread_time)
    return min(times["both"].seconds) / min(times["model"].seconds)
