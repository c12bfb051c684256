"""What the paper reports (Francobaldi and Lombardi, 2025): the numbers behind its figures and its ablation table.

Medians and quartiles are over tasks, one run each. Nothing here was computed by this package.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ABLATION", "GROUPS", "SCORES", "SLOWDOWN", "VIOLATIONS", "Quartiles"]


class Quartiles(NamedTuple):
    """Median, first and third quartile."""

    median: float
    q1: float
    q3: float


GROUPS = {
    "synthetic": ("P1", "P2", "P3", "P4", "P5", "P6"),
    "forecasting": ("1.00", "0.95", "0.90"),
    "classification": ("0.0", "0.3", "0.6"),
}
"""Properties in the paper's order, easy ones first: six random ones, or quantiles."""


def _table(benchmark: str, *triples: tuple[float, float, float]) -> dict[str, Quartiles]:
    return {group: Quartiles(*triple) for group, triple in zip(GROUPS[benchmark], triples, strict=True)}


SCORES: dict[str, dict[str, dict[str, Quartiles]]] = {
    "synthetic": {
        "oracle": _table(
            "synthetic",
            (1.000, 1.000, 1.000),
            (0.987, 0.982, 0.996),
            (0.963, 0.896, 0.984),
            (0.880, 0.824, 0.961),
            (0.743, 0.644, 0.786),
            (0.603, 0.553, 0.696),
        ),
        "preprocess": _table(
            "synthetic",
            (0.996, 0.994, 0.998),
            (0.989, 0.979, 0.996),
            (0.972, 0.906, 0.979),
            (0.917, 0.883, 0.968),
            (0.766, 0.702, 0.857),
            (0.670, 0.621, 0.723),
        ),
        "postprocess": _table(
            "synthetic",
            (0.996, 0.993, 0.997),
            (0.986, 0.967, 0.993),
            (0.942, 0.891, 0.983),
            (0.879, 0.818, 0.957),
            (0.741, 0.643, 0.785),
            (0.600, 0.552, 0.690),
        ),
        "smle": _table(
            "synthetic",
            (0.975, 0.971, 0.988),
            (0.972, 0.966, 0.984),
            (0.889, 0.881, 0.944),
            (0.874, 0.747, 0.908),
            (0.672, 0.600, 0.708),
            (0.538, 0.513, 0.647),
        ),
    },
    "forecasting": {
        "oracle": _table("forecasting", (1.000, 1.000, 1.000), (1.000, 1.000, 1.000), (0.999, 0.998, 1.000)),
        "preprocess": _table("forecasting", (0.986, 0.948, 0.993), (0.982, 0.959, 0.992), (0.980, 0.959, 0.992)),
        "postprocess": _table("forecasting", (0.983, 0.949, 0.991), (0.983, 0.956, 0.991), (0.982, 0.956, 0.991)),
        "smle": _table("forecasting", (0.980, 0.961, 0.989), (0.977, 0.951, 0.983), (0.973, 0.945, 0.979)),
    },
    "classification": {
        "oracle": _table("classification", (1.000, 1.000, 1.000), (0.990, 0.978, 0.993), (0.947, 0.908, 0.959)),
        "preprocess": _table("classification", (0.706, 0.676, 0.766), (0.713, 0.696, 0.762), (0.705, 0.692, 0.766)),
        "postprocess": _table("classification", (0.716, 0.707, 0.759), (0.714, 0.707, 0.761), (0.716, 0.689, 0.764)),
        "smle": _table("classification", (0.709, 0.685, 0.752), (0.725, 0.702, 0.766), (0.702, 0.691, 0.758)),
    },
}
"""Q1: test score by benchmark, method and property."""

VIOLATIONS: dict[str, dict[str, dict[str, Quartiles]]] = {
    "synthetic": {
        "preprocess": _table(
            "synthetic",
            (0.020, 0.011, 0.032),
            (0.032, 0.015, 0.086),
            (0.072, 0.031, 0.138),
            (0.119, 0.039, 0.169),
            (0.174, 0.092, 0.265),
            (0.135, 0.088, 0.228),
        )
    }
}
"""Q2: share of test examples that violate the property by more than 1e-6."""

SLOWDOWN: dict[str, dict[str, dict[str, Quartiles]]] = {
    "classification": {
        "postprocess": _table(
            "classification", (127.351, 98.580, 151.049), (294.775, 228.305, 2041.633), (2946.184, 1009.360, 7159.224)
        ),
        "smle": _table("classification", (2.516, 2.362, 2.534), (2.280, 2.271, 2.328), (2.324, 2.317, 2.478)),
    }
}
"""Q2: inference time per test example, as a multiple of `preprocess`."""

ABLATION: dict[str, tuple[tuple[str, str, float], ...]] = {
    "synthetic": (
        ("auxiliary complexity", "constant", 0.814),
        ("auxiliary complexity", "linear", 0.819),
        ("embedding size", "small", 0.819),
        ("embedding size", "large", 0.823),
    ),
    "forecasting": (
        ("auxiliary complexity", "constant", 0.958),
        ("auxiliary complexity", "linear", 0.953),
        ("embedding size", "small", 0.962),
        ("embedding size", "large", 0.958),
        ("embedding type", "ReLU", 0.958),
        ("embedding type", "LSTM", 0.950),
    ),
}
"""Q3: mean R2 over tasks and properties, by factor and variant."""
