"""Cost of an answer for sequences and graphs: trained networks against the modules inside of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smle.nn import SafeNetwork
from smle.rules import Specification
from studies.attacks.points import Attention, Given, Messages, edges_of
from studies.attacks.subjects import RULES
from studies.harness import Table, asked, interleaved

Call = Callable[[], Any]


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
            contenders = {"plain": partial(_plain, network, given), "safe": partial(network, **given)}
            found, seconds = ratios_of({name: asked(one, x) for name, one in contenders.items()}, quick, budget=15.0)
            moved = network.counts["moved"] / network.counts["rows"]
            rows.append((title, x.shape[:-1].numel(), f"{moved:.1%}", seconds * 1e3, found["safe"]))
            network.counts.update(dict.fromkeys(network.counts, 0))
            if not quick:
                passed[f"{title}: at most 1.3 times the plain model at {count:,} positions"] = found["safe"] <= 1.3
    return Table("Sequences and graphs", ("network", "positions", "moved", "plain (ms)", "ratio"), tuple(rows))


def _plain(network: Any, given: Given, x: Tensor) -> Any:
    return network.backbone(**given)


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
