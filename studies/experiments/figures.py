"""Figures from rows of results: box plots of ours, the paper's medians and quartiles as marks beside them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smle.errors import MissingDependencyError
from smle.training.options import History
from studies.experiments.tables import (
    METHODS,
    SCORES,
    SLOWDOWN,
    VIOLATIONS,
    Published,
    Row,
    beside,
    groups_of,
    quartiles,
    slowdowns,
    values,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors: apart from each other for every kind of color vision, and in grey by their lightness.
_COLORS = {"oracle": "#999999", "preprocess": "#E69F00", "postprocess": "#56B4E9", "smle": "#009E73"}
_XLABEL = {
    "synthetic": "property, easy to hard",
    "forecasting": "property: quantile of the allowed change",
    "classification": "property: quantile of forbidden pairs",
}
_DPI = 130

Numbers = Callable[[str, str], list[float]]


def draw_scores(rows: Sequence[Row], benchmark: str, *, title: str) -> Figure:
    """Draw Q1: test score by property and method.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    published = beside(SCORES, rows, benchmark)
    figure, axes, numbers = _panel(rows, benchmark, "score", METHODS, published, title)
    _cut(axes, METHODS, groups_of(rows, benchmark), numbers, published)
    axes.set_ylabel("average class accuracy (test)" if benchmark == "classification" else "$R^2$ (test)")
    return figure


def draw_violations(rows: Sequence[Row], benchmark: str, *, title: str) -> Figure:
    """Draw Q2: share of test examples that violate the property, by property and method.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    published = beside(VIOLATIONS, rows, benchmark)
    figure, axes, _ = _panel(rows, benchmark, "violations", METHODS[1:], published, title)
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("violating test examples")
    axes.set_ylim(bottom=min(-0.02 * axes.get_ylim()[1], -0.0005))
    return figure


def _panel(
    rows: Sequence[Row], benchmark: str, field: str, names: Sequence[str], published: Published, title: str
) -> tuple[Figure, Axes, Numbers]:
    """Return a figure of one panel with a box per property and method, and the numbers behind the boxes."""
    figure = blank(8.6, 4.0)
    axes = figure.subplots()

    def numbers(name: str, group: str) -> list[float]:
        return values(rows, field, method=name, group=group)

    _boxes(axes, names, groups_of(rows, benchmark), numbers, published)
    axes.set_xlabel(_XLABEL[benchmark])
    axes.set_title(title, fontsize=11)
    axes.grid(visible=True, axis="y", alpha=0.25)
    _legend(figure, names, marks=bool(published))
    return figure, axes, numbers


def draw_inference(rows: Sequence[Row], benchmark: str, *, title: str) -> Figure:
    """Draw Q2: inference time as a multiple of that of `preprocess`, one example at a time and as a batch.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    figure = blank(9.6, 4.0)
    panels = figure.subplots(1, 2, sharey=True)
    groups, names, published = groups_of(rows, benchmark), METHODS[2:], beside(SLOWDOWN, rows, benchmark)
    for axes, field, label in zip(
        panels,
        ("seconds_per_example", "seconds_per_row_batch"),
        ("one example at a time", "the whole test set as one batch, as in the paper"),
        strict=True,
    ):

        def numbers(name: str, group: str, field: str = field) -> list[float]:
            return slowdowns(rows, field, method=name, group=group)

        _boxes(axes, names, groups, numbers, published if field == "seconds_per_row_batch" else {})
        axes.set_yscale("log", base=2)
        _label_medians(axes, names, groups, numbers)
        axes.axhline(1.0, color="#444444", linewidth=0.8, linestyle=":")
        axes.set_title(label, fontsize=10)
        axes.set_xlabel(_XLABEL[benchmark])
        axes.grid(visible=True, axis="y", alpha=0.25)
    panels[0].set_ylabel("time / time of preprocess")
    figure.suptitle(title, fontsize=11)
    _legend(figure, names, marks=bool(published))
    return figure


def picture(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of a "png" or an "svg" file; the same figure gives the same bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "smle", "svg.fonttype": "path"}):
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


# --- projections of one training

_WINDOW = 50  # steps over which the success rate is averaged


def draw_projections(history: History, *, title: str) -> Figure:
    """Draw the strength of each counterexample, the share of runs without one, and the milliseconds of each run.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    runs = {name: np.asarray(values, dtype=float) for name, values in history.projections.items()}
    within = runs["step"] > 0
    step, strength = runs["step"][within], runs["strength"][within]
    figure = blank(8.6, 6.4)
    top, middle, bottom = figure.subplots(3, sharex=True)
    found = strength > 0
    top.semilogy(step[found], strength[found], ".", markersize=2)
    top.set_ylabel("strength")
    top.set_title(f"{title}; at the end {runs['iterations'][~within].sum():.0f} projections")
    width = min(_WINDOW, len(step))
    if width:
        share = np.convolve(runs["succeeded"][within], np.ones(width) / width, mode="valid")
        middle.plot(step[width - 1 :], share)
    middle.set_ylim(-0.02, 1.02)
    middle.set_ylabel("no counterexample")
    bottom.plot(step, 1000 * runs["seconds"][within], ".", markersize=2)
    bottom.set_ylabel("ms")
    bottom.set_xlabel("gradient step")
    return figure


# --- parts


def blank(width: float, height: float) -> Figure:
    """Return a figure of a size in inches.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("Figures need matplotlib. Run: pip install matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def _places(count: int) -> tuple[list[float], float]:
    """Return offsets of the boxes of a group around its center, and the width of a box."""
    step = 0.84 / count
    return [(i - (count - 1) / 2) * step for i in range(count)], 0.56 * step


def _boxes(axes: Axes, names: Sequence[str], groups: Sequence[str], numbers: Numbers, published: Published) -> None:
    """Draw one box per property and method, the paper's median (diamond) and quartiles (line) at its right side."""
    offsets, width = _places(len(names))
    for name, offset in zip(names, offsets, strict=True):
        for place, group in enumerate(groups):
            found = numbers(name, group)
            box = quartiles(found)
            if box is not None:
                flat = box.q3 - box.q1 <= 1e-9
                axes.boxplot(
                    [found],
                    positions=[place + offset],
                    widths=width,
                    patch_artist=True,
                    manage_ticks=False,
                    boxprops={"facecolor": _COLORS[name], "edgecolor": "#333333", "linewidth": 0.8},
                    # A box without height is all median: it keeps the color of its method.
                    medianprops={"color": _COLORS[name] if flat else "black", "linewidth": 2.4 if flat else 1.6},
                    whiskerprops={"color": "#333333", "linewidth": 0.8},
                    capprops={"color": "#333333", "linewidth": 0.8},
                    flierprops={"marker": "o", "markersize": 2.8, "markerfacecolor": _COLORS[name],
                                "markeredgecolor": "#333333", "markeredgewidth": 0.4},
                )  # fmt: skip
            paper = published.get(name, {}).get(group)
            if paper is not None:
                x = place + offset + 0.78 * width
                axes.vlines(x, paper.q1, paper.q3, color="black", linewidth=0.9)
                axes.plot([x], [paper.median], marker="D", markersize=3.8, color=_COLORS[name], markeredgecolor="black")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.58, len(groups) - 0.42)
    for border in range(1, len(groups)):
        axes.axvline(border - 0.5, color="#dddddd", linewidth=0.8, zorder=0)


def _label_medians(axes: Axes, names: Sequence[str], groups: Sequence[str], numbers: Numbers) -> None:
    """Write each median beside its box; on a logarithmic axis it is hard to read off."""
    offsets, width = _places(len(names))
    for name, offset in zip(names, offsets, strict=True):
        for place, group in enumerate(groups):
            box = quartiles(numbers(name, group))
            if box is not None:
                spot = (place + offset - 0.55 * width, box.median)
                axes.annotate(
                    f"{box.median:,.0f}" if box.median >= 100 else f"{box.median:.3g}",
                    spot,
                    ha="right",
                    va="center",
                    fontsize=7,
                )


def _cut(axes: Axes, names: Sequence[str], groups: Sequence[str], numbers: Numbers, published: Published) -> None:
    """Cut the axis below the boxes; a run that falls out is shown at the border with its value."""
    floors, lowest = [], math.inf
    for name in names:
        for group in groups:
            box, paper = quartiles(numbers(name, group)), published.get(name, {}).get(group)
            if box is not None:
                floors.append(max(min(numbers(name, group)), box.q1 - 2.5 * (box.q3 - box.q1) - 0.05))
                lowest = min(lowest, *numbers(name, group))
            if paper is not None:
                floors.append(paper.q1)
    floor = min(floors, default=0.0)
    top = axes.get_ylim()[1]
    bottom = floor - 0.04 * (top - floor)
    axes.set_ylim(bottom, top)
    if lowest >= bottom:
        return
    offsets, _ = _places(len(names))
    for name, offset in zip(names, offsets, strict=True):
        for place, group in enumerate(groups):
            below = sorted(value for value in numbers(name, group) if value < bottom)
            if below:
                axes.plot([place + offset], [bottom + 0.015 * (top - bottom)], marker="v", markersize=5,
                          color=_COLORS[name], markeredgecolor="#333333", markeredgewidth=0.5)  # fmt: skip
                text = f"{below[0]:.2f}" + (f" (+{len(below) - 1})" if len(below) > 1 else "")
                axes.annotate(text, (place + offset, bottom + 0.035 * (top - bottom)), ha="center", fontsize=6.5)


def _legend(figure: Figure, names: Sequence[str], *, marks: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=_COLORS[name], edgecolor="#333333", label=name) for name in names]
    if marks:
        style: dict[str, Any] = {"marker": "D", "markersize": 4, "markerfacecolor": "white", "linewidth": 0.9}
        handles.append(Line2D([], [], color="black", label="paper: median, quartiles", **style))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
