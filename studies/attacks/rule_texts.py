"""Rules of the subjects (rules.yaml), and simulated targets for some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

RULES: dict[str, str] = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))
"""Texts of rule sets by name."""
Targets = Callable[[Any, np.random.Generator], Any]
"""(inputs, random numbers) -> what a model is trained on."""


def ten_limits() -> str:
    """Return limits of three outputs in units from 1e-3 to 1e6."""
    units = (1e-3, 1.0, 1e6)
    lines = ["inputs: {a: [-10, 10], b: [0, 1], c: [1, 500]}", "outputs: [y0, y1, y2]", "rules:"]
    whens = ["", "when: a > 0.3, ", "when: b <= 0.7 and c >= 3, ", "when: a + 3.3 * b - 0.1 * c <= 1.7, "]
    for r in range(10):
        unit, side = units[r % 3], ">=" if r % 2 else "<="
        moving = f" + {0.01 * unit:.6g} * c" if r % 3 == 1 else ""
        at = (-1 if r % 2 else 1) * unit * (5 + r)
        lines.append(f"  - {{name: r{r}, {whens[r % 4]}then: y{r % 3} {side} {at:.6g}{moving}}}")
    return "\n".join(lines) + "\n"


def many_limits() -> str:
    """Return 70 limits on intervals of an input, and a coupled rule."""
    rng, lines = np.random.default_rng(0), ["inputs: {a: [0, 100], b: [-1, 1]}", "outputs: [y, w]", "rules:"]
    for r in range(70):
        at = rng.uniform(0, 95)
        lines.append(
            f"  - {{name: r{r}, when: {at:.4f} <= a < {at + 4:.4f}, then: y <= {10 + r % 7}.1 and w >= -3.{r}}}"
        )
    return "\n".join([*lines, "  - {name: tied, when: a + 30 * b >= 20.2, then: y - w <= 9.9}"]) + "\n"


def bank(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules of the bank."""
    income, _, debt = X.T
    limit = 0.3 * income * (1 + 0.3 * rng.normal(size=len(X))) - 0.2 * debt
    return np.stack([limit, 13 - income / 60_000 + 4 * rng.normal(size=len(X))], axis=1)


def shares(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules of shares."""
    raw = np.stack([0.5 + 0.4 * np.sin(X[:, 0]), 0.3 + 0.3 * X[:, 1], 0.2 + 0.1 * X[:, 0]], axis=1)
    return raw + 0.1 * rng.normal(size=raw.shape)


def doses(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules of doses."""
    weight, age, kidney = X.T
    dose = 0.045 * weight * (0.8 + 0.2 * np.sin(age / 15)) + 0.1 * rng.normal(size=len(X))
    return np.stack([dose, 20 / kidney + rng.normal(size=len(X))], axis=1)
