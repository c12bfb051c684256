"""Search for violations inside the regions of rules: random points, corners, gradient ascent, borders, answers.

What counts is judged exactly, on the float32 outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.rules import Clause, Specification
from studies.bench.acasxu_data import rule_box, sample_box
from studies.bench.sampling import Judge, hard_points

__all__ = ["Attack", "Effort", "attack_answers", "attack_borders", "attack_rule", "corners"]

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How hard to search: random points, starts and steps of gradient ascent per clause, border points."""

    random: int = 100_000
    starts: int = 512
    steps: int = 60
    borders: int = 100_000


@dataclass(frozen=True)
class Attack:
    """Points tried, points that break the rule, and the worst excess (positive: broken; in score units)."""

    tried: int
    broken: int
    worst: float


def corners(box: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Return all corners of a box (2^d, d)."""
    return np.array(list(product(*zip(*box, strict=True))), dtype=np.float32)


def attack_rule(
    model: Callable[[Tensor], Tensor], spec: Specification, rule: int, *, effort: Effort, rng: np.random.Generator
) -> Attack:
    """Search the region of one rule for outputs that break it: random points and corners, then ascent from the worst.

    Args:
        model: Inputs (batch, d) to outputs (batch, m), differentiable.
        spec: The rules.
        rule: Which one.
        effort: How hard.
        rng: Random numbers.

    """
    box = rule_box(spec, rule)
    first = np.concatenate([sample_box(box, effort.random, rng), corners(box)])
    batches = [first]
    clauses = spec.rules[rule].requirement.expanded()
    with torch.no_grad():
        outputs = model(torch.from_numpy(first))
    for clause in clauses:
        order = torch.argsort(clause_excess(clause, outputs), descending=True)[: effort.starts // 2].numpy()
        starts = np.concatenate([first[order], sample_box(box, effort.starts - len(order), rng)])
        batches.extend(_ascent(model, clause, starts, box, effort.steps))
    judge, broken, worst = Judge(spec), 0, -np.inf
    for X in batches:
        with torch.no_grad():
            y = model(torch.from_numpy(X))
        broken += sum(v.rule == spec.rules[rule].name for v in judge.violations(X, y.numpy()))
        worst = max(worst, *(float(clause_excess(clause, y).max()) for clause in clauses))
    return Attack(sum(map(len, batches)), broken, worst)


def clause_excess(clause: Clause, outputs: Tensor) -> Tensor:
    """Return min over literals of g.y - h (batch,), in floats: positive where the clause is broken."""
    parts = []
    for literal in clause.literals:
        total = outputs.new_full((len(outputs),), -float(literal.bound))
        for column, value in literal.outputs:
            total = total + float(value) * outputs[:, column]
        parts.append(total)
    return torch.stack(parts).amin(dim=0)


def _ascent(
    model: Callable[[Tensor], Tensor], clause: Clause, starts: FloatArray, box: tuple[FloatArray, FloatArray],
    steps: int,
) -> Iterator[FloatArray]:  # fmt: skip
    """Yield the points of projected sign-gradient ascent; a step that does not help is taken back and halved."""
    lower, upper = (torch.from_numpy(end) for end in box)
    x = torch.from_numpy(starts)
    size = torch.full((len(x), 1), 0.1)
    for _ in range(steps):
        x.requires_grad_(True)
        excess = clause_excess(clause, model(x))
        (gradient,) = torch.autograd.grad(excess.sum(), x)
        x = x.detach()
        tried = (x + size * (upper - lower) * gradient.sign()).clamp(lower, upper)
        yield tried.numpy().copy()
        with torch.no_grad():
            better = (clause_excess(clause, model(tried)) > excess).unsqueeze(1)
        x, size = torch.where(better, tried, x), torch.where(better, size, size / 2)


def attack_borders(
    model: nn.Module, spec: Specification, *, effort: Effort, rng: np.random.Generator
) -> tuple[int, int]:
    """Try points on and one ulp around the borders of all regions; return (tried, broken)."""
    judge, tried, broken = Judge(spec), 0, 0
    for X in hard_points(spec, rng, effort.borders):
        with torch.no_grad():
            y = model(torch.from_numpy(X)).numpy()
        tried, broken = tried + len(X), broken + len(judge.violations(X, y))
    return tried, broken


def attack_answers(
    head: Callable[[Tensor, Tensor], Tensor], spec: Specification, *, effort: Effort, rng: np.random.Generator
) -> tuple[int, int]:
    """Let the network say anything: random scores, ties, scores at the borders, huge numbers, infinities, NaN.

    Returns:
        (tried, broken): points in all regions, and how many of them break a rule.

    """
    judge, tried, broken = Judge(spec), 0, 0
    share = max(16, effort.borders // len(spec.rules))
    for rule in range(len(spec.rules)):
        X = sample_box(rule_box(spec, rule), share, rng)
        t = _wild(rng, share, len(spec.targets))
        with torch.no_grad():
            y = head(torch.from_numpy(X), torch.from_numpy(t)).numpy()
        tried, broken = tried + share, broken + len(judge.violations(X, y))
    return tried, broken


def _wild(rng: np.random.Generator, rows: int, outputs: int) -> FloatArray:
    """Return answers (rows, outputs): few values, so that many are equal, and rows with numbers that are none."""
    t = np.where(
        rng.random((rows, 1)) < 0.5, rng.choice([-1.0, 0.0, 1.0], (rows, outputs)), rng.normal(size=(rows, outputs))
    )
    odd = rng.random((rows, outputs)) < 0.1
    strange = rng.choice([np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-40], (rows, outputs))
    t = np.where(odd & (rng.random((rows, 1)) < 0.2), strange, t)
    return t.astype(np.float32)
