"""Cost of a training step: safe networks against plain ones, and PDCG against its MILP and MIQP form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor, nn

from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import Memory, memory_clauses, run_pdcg
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.rules import Literals, Specification
from smle.solvers import QuadraticProgram, Solution, solve
from studies.harness import BenchResult, Table, interleaved
from tests.support.formulations import exclusion_counterexample_milp, linear_counterexample_milp, memory_projection_miqp

__all__ = ["run"]

Array = npt.NDArray[np.float64]
_BATCH = 128
_NETWORKS = {
    "synthetic, 4 inputs": (4, 4, (1, 2, 1)),
    "synthetic, 8 inputs": (8, 4, (1, 2, 1)),
    "forecasting": (8, 4, (1, 2, 3, 2, 1)),
}
"""The paper's networks h_1 and h_2: inputs n, outputs m, widths of the ReLU layers in units of n m."""

_KINDS = {
    "constant (-1, 1)": ("fixed", 1.5, 2.0),
    "constant, trained": ("constant", 1.5, 2.0),
    "affine": ("affine", 2.0, 3.0),
}
"""Bounds, and the ratios that are asked for: compiled, eager."""


def run(quick: bool = False) -> BenchResult:
    """Run all parts; `quick` compiles one network only and takes few rounds."""
    passed: dict[str, bool] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tables = (
            _steps(quick, compiled=False, passed=passed),
            _steps(quick, compiled=True, passed=passed),
            _projections(quick, passed),
        )
    finally:
        torch.set_num_threads(threads)
    return BenchResult("training", "Training: cost of a step", tables, passed=passed, quick=quick)


def box_rule(n: int, m: int) -> Specification:
    """Return one rule over a box: four linear inequalities on m outputs."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (4, m)).round(2)
    inputs = "\n".join(f"  x{i}: [-2, 2]" for i in range(n))
    sums = [" + ".join(f"({c}) * y{j}" for j, c in enumerate(row)) + " <= 0.5" for row in rows]
    return Specification.from_yaml(
        f"inputs:\n{inputs}\noutputs: [{', '.join(f'y{j}' for j in range(m))}]\nrules:\n  - name: rule\n"
        f"    when: x0 <= 0.5 and x1 >= -0.5\n    then: {' and '.join(sums)}\n"
    )


def _networks(name: str, bounds: str) -> tuple[BoxNetwork, nn.Module]:
    n, m, widths = _NETWORKS[name]

    def body() -> nn.Sequential:
        layers: list[nn.Module] = []
        width = n
        for factor in widths:
            layers += [nn.Linear(width, factor * n * m), nn.ReLU()]
            width = factor * n * m
        return nn.Sequential(*layers)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        safe = BoxNetwork(body(), box_rule(n, m), embedding=n * m, bounds=bounds)
        return safe, nn.Sequential(body(), nn.Linear(n * m, m))


class _Compiled(nn.Module):
    """A module of our own around a Sequential, whose method `compile` leaves it as it is."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return what the network returns."""
        y: Tensor = self.network(x)
        return y


def _trainer(network: nn.Module, X: Tensor, y: Tensor, steps: int) -> Callable[[], None]:
    optimizer = torch.optim.Adam(network.parameters())

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss = ((network(X) - y) ** 2).mean()
            loss.backward()
            optimizer.step()

    return train


def _steps(quick: bool, *, compiled: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    names = list(_NETWORKS)[:1] if quick and compiled else list(_NETWORKS)
    worst: dict[str, float] = {}
    for name in names:
        n, m, _ = _NETWORKS[name]
        X, y = 2 * torch.rand(_BATCH, n) - 1, torch.rand(_BATCH, m)
        for kind, (bounds, *_) in _KINDS.items():
            if quick and compiled and bounds == "constant":
                continue
            safe, plain = _networks(name, bounds)
            if compiled:
                torch._dynamo.reset()
                plain = _Compiled(plain)
                safe.compile()
                plain.compile()
            steps = 5
            times = interleaved(
                {"plain": _trainer(plain, X, y, steps), "safe": _trainer(safe, X, y, steps)},
                rounds=40 if quick else 150, budget=15.0,
            )  # fmt: skip
            slow, fast = (times[which].undisturbed / steps * 1e6 for which in ("safe", "plain"))
            rows.append((name, kind, fast, slow, slow / fast))
            worst[kind] = max(worst.get(kind, 0.0), slow / fast)
    mode = "torch.compile" if compiled else "eager"
    for kind, (_, *limits) in _KINDS.items():
        limit = limits[0] if compiled else limits[1]
        if kind in worst:  # a quick run leaves some out
            passed[f"{kind} bounds, {mode}: at most {limit}x a plain step (worst {worst[kind]:.2f}x)"] = (
                worst[kind] <= limit
            )
    return Table(
        f"A gradient step, {mode}, batch {_BATCH}, one thread",
        ("network", "bounds", "plain (us)", "safe (us)", "safe / plain"),
        tuple(rows),
        "The paper's networks, one rule over a box with four inequalities, torch.optim.Adam as it comes, without "
        "what PDCG adds after each step (below); first quartile over rounds taken in turns.",
    )


# --- PDCG


def _labels(count: int) -> Specification:
    names = [f"l{i}" for i in range(count)]
    inputs = "\n".join(f"  x{i}: [-2, 2]" for i in range(4))
    listed = ", ".join(names)
    return Specification.from_yaml(
        f"inputs:\n{inputs}\nlabels: [{listed}]\nrules:\n  - name: one\n    then: at_most_one({listed})\n"
    )


def _direct(spec: Specification, bounds: str, units: int) -> tuple[BoxNetwork, FrozenHeads, HeadProblem]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = BoxNetwork(nn.Linear(len(spec.columns), units), spec, embedding=units, bounds=bounds)
        with torch.no_grad():
            network.heads.raw_weight.mul_(2.0)
    over = network.frozen_heads()
    return network, over, HeadProblem.of(over, spec, network.cells, 0)


def _projections(quick: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    cases = [("linear", box_rule(4, 4), bounds, 1) for bounds in ("fixed", "affine")]
    cases.append(("exclusions of 6 labels", _labels(6), "fixed", 10))
    for kind, spec, bounds, memory in cases:
        _, over, problem = _direct(spec, bounds, 16)
        head = over.heads[0]
        assert head is not None
        contenders = {
            "ours": _ours(head, problem, memory),
            "paper": _paper(over, head, problem, memory, exclusions=kind != "linear"),
        }
        times = interleaved(contenders, rounds=5 if quick else 15, budget=20.0)
        ours, paper = (times[which].undisturbed * 1e3 for which in ("ours", "paper"))
        ratio = paper / ours
        rows.append((kind, bounds, memory, ours, paper, ratio))
        passed[
            f"pdcg, {kind}, {bounds} bounds: a step at least 10x cheaper than its MILP / MIQP form ({ratio:.0f}x)"
        ] = ratio >= 10
    return Table(
        "One iteration of PDCG after a gradient step",
        ("rules", "bounds", "memory", "ours (ms)", "MILP + QP / MIQP (ms)", "ratio"),
        tuple(rows),
        "Strongest counterexample and projection over the memory, 16 embedding units. Ours: closed forms and the dual "
        "of the small QP; beside it the paper's MILP and QP / MIQP by HiGHS and SCIP, each written down anew.",
    )


def _ours(head: Head, problem: HeadProblem, memory: int) -> Callable[[], None]:
    def iterate() -> None:
        assert run_pdcg(head, problem, n_it=1, n_xs=memory).iterations == 1

    return iterate


def _paper(over: FrozenHeads, head: Head, problem: HeadProblem, memory: int, *, exclusions: bool) -> Callable[[], None]:
    part = problem.parts[0]

    def iterate() -> None:
        if exclusions:
            search = exclusion_counterexample_milp(part.exclusions, over.bounds, head, part.region)
        else:
            rows = Literals(*(np.concatenate([getattr(a, f) for a in part.stated]) for f in ("g", "s", "h", "strict")))
            search = linear_counterexample_milp(rows, over.bounds, head, part.region)
        assert search.found is not None, search.message
        points = Memory(memory)
        points.append(search.found.x, search.found.z, 0)
        if exclusions:
            found = memory_projection_miqp(head, points, problem, tolerance=1e-6, big=1e3)
        else:
            found = _memory_qp(head, points, problem)
        assert found.x is not None, found.message

    return iterate


def _memory_qp(head: Head, points: Memory, problem: HeadProblem) -> Solution:
    """Solve the paper's QP over the memory, equation polytopes_projection, as it is written."""
    z = points.points[-1][1]
    features = np.append(z, 1.0)
    required = memory_clauses(points, problem, like=head, tolerance=1e-6)
    A = np.vstack([np.einsum("km,s->kms", g, features).reshape(len(g), -1) for _, g, _ in required])
    theta = head.vector()
    size = len(theta)
    return solve(
        QuadraticProgram(
            sparse.identity(size, format="csr"), -theta, A, np.full(len(A), -np.inf),
            np.concatenate([right for *_, right in required]), np.full(size, -np.inf), np.full(size, np.inf),
        )
    )  # fmt: skip
