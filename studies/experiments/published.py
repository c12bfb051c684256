"""What the paper reports: the numbers behind its figures and its ablation table (published.yaml).

Nothing here was computed by this package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Quartiles(NamedTuple):
    """Median, first and third quartile."""

    median: float
    q1: float
    q3: float


Reported = dict[str, dict[str, dict[str, Quartiles]]]
"""Quartiles by benchmark, method and property."""
_STORED: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _read(name: str) -> Reported:
    return {
        benchmark: {method: {key: Quartiles(*own) for key, own in table.items()} for method, table in methods.items()}
        for benchmark, methods in _STORED[name].items()
    }


SCORES, VIOLATIONS, SLOWDOWN = (_read(name) for name in ("scores", "violations", "slowdown"))
GROUPS = {benchmark: tuple(methods["oracle"]) for benchmark, methods in SCORES.items()}
"""Properties in the paper's order, easy ones first: six random ones, or quantiles."""
ABLATION: dict[str, tuple[tuple[str, str, float], ...]] = {
    benchmark: tuple((str(factor), str(variant), mean) for factor, variant, mean in rows)
    for benchmark, rows in _STORED["ablation"].items()
}
"""Mean R2 by factor and variant."""
