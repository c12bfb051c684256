"""Figures from rows of results: box plots of ours, the paper's medians and quartiles as marks beside them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from smle.training.options import History
from studies.experiments import tables
from studies.experiments.tables import METHODS, Published, Quartiles, Row, quartiles

# Okabe and Ito's colors: apart from each other for every kind of color vision, and in grey by their lightness.
_COLORS = {"oracle": "#999999", "preprocess": "#E69F00", "postprocess": "#56B4E9", "smle": "#009E73"}
_XLABEL = {
    "synthetic": "property, easy to hard",
    "forecasting": "property: quantile of the allowed change",
    "classification": "property: quantile of forbidden pairs",
}


class Box(NamedTuple):
    """Numbers of a method under a property, where and how wide they are drawn, and the paper's quartiles."""

    method: str
    x: float
    width: float
    numbers: list[float]
    paper: Quartiles | None


def draw_scores(rows: Sequence[Row], benchmark: str, *, title: str) -> Figure:
    """Draw Q1: test score by property and method."""
    figure, axes, boxes = _panel(rows, benchmark, "score", METHODS, tables.SCORES, title)
    _cut(axes, boxes)
    axes.set_ylabel("average class accuracy (test)" if benchmark == "classification" else "$R^2$ (test)")
    return figure


def draw_violations(rows: Sequence[Row], benchmark: str, *, title: str) -> Figure:
    """Draw Q2: share of test examples that violate the property, by property and method."""
    figure, axes, _ = _panel(rows, benchmark, "violations", METHODS[1:], tables.VIOLATIONS, title)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("violating test examples")
    axes.set_ylim(bottom=min(-0.02 * axes.get_ylim()[1], -0.0005))
    return figure


def _panel(
    rows: Sequence[Row], benchmark: str, field: str, names: Sequence[str], published: dict[str, Published], title: str
) -> tuple[Figure, Axes, list[Box]]:
    """Return a figure of one panel with a box per property and method."""
    figure = Figure(figsize=(8.6, 4.0), layout="constrained")
    axes, paper = figure.subplots(), tables.beside(published, rows, benchmark)
    boxes = _boxes(
        axes, rows, benchmark, names, lambda name, group: tables.values(rows, field, method=name, group=group), paper
    )
    axes.set_title(title, fontsize=11)
    _legend(figure, names, marks=bool(paper))
    return figure, axes, boxes


def draw_inference(rows: Sequence[Row], benchmark: str, *, title: str) -> Figure:
    """Draw Q2: inference time as a multiple of that of `preprocess`, one example at a time and as a batch."""
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    panels, published = figure.subplots(1, 2, sharey=True), tables.beside(tables.SLOWDOWN, rows, benchmark)
    for axes, field, label in zip(
        panels,
        ("seconds_per_example", "seconds_per_row_batch"),
        ("one example at a time", "the whole test set as one batch, as in the paper"),
        strict=True,
    ):

        def numbers(name: str, group: str, field: str = field) -> list[float]:
            return tables.slowdowns(rows, field, method=name, group=group)

        paper = published if field == "seconds_per_row_batch" else {}
        boxes = _boxes(axes, rows, benchmark, METHODS[2:], numbers, paper)
        axes.set_yscale("log", base=2)
        for box in boxes:  # on a logarithmic axis medians are hard to read off
            if own := quartiles(box.numbers):
                text = f"{own.median:,.0f}" if own.median >= 100 else f"{own.median:.3g}"
                axes.annotate(text, (box.x - 0.55 * box.width, own.median), ha="right", va="center", fontsize=7)
        axes.axhline(1.0, color="#444444", linewidth=0.8, linestyle=":")
        axes.set_title(label, fontsize=10)
    panels[0].set_ylabel("time / time of preprocess")
    figure.suptitle(title, fontsize=11)
    _legend(figure, METHODS[2:], marks=bool(published))
    return figure


def picture(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of a "png" or an "svg" file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "smle", "svg.fonttype": "path"}):
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=130, metadata=metadata)
    return buffer.getvalue()


# --- projections of one training

_WINDOW = 50  # steps over which the success rate is averaged


def draw_projections(history: History, *, title: str) -> Figure:
    """Draw the strength of each counterexample, the share of runs without one, and the milliseconds of each run."""
    runs = {name: np.asarray(values, dtype=float) for name, values in history.projections.items()}
    within = runs["step"] > 0
    step, strength = runs["step"][within], runs["strength"][within]
    figure = Figure(figsize=(8.6, 6.4), layout="constrained")
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


def _boxes(
    axes: Axes, rows: Sequence[Row], benchmark: str, names: Sequence[str],
    numbers: Callable[[str, str], list[float]], published: Published,
) -> list[Box]:  # fmt: skip
    """Draw one box per property and method, the paper's median (diamond) and quartiles (line) at its right side."""
    groups, step = tables.groups_of(rows, benchmark), 0.84 / len(names)
    boxes = [
        Box(name, place + (i - (len(names) - 1) / 2) * step, 0.56 * step, numbers(name, group),
            published.get(name, {}).get(group))
        for i, name in enumerate(names) for place, group in enumerate(groups)
    ]  # fmt: skip
    for box in boxes:
        color = _COLORS[box.method]
        if own := quartiles(box.numbers):
            flat = own.q3 - own.q1 <= 1e-9
            axes.boxplot(
                [box.numbers],
                positions=[box.x],
                widths=box.width,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": color, "edgecolor": "#333333", "linewidth": 0.8},
                # A box without height is all median: it keeps the color of its method.
                medianprops={"color": color if flat else "black", "linewidth": 2.4 if flat else 1.6},
                whiskerprops={"color": "#333333", "linewidth": 0.8},
                capprops={"color": "#333333", "linewidth": 0.8},
                flierprops={"marker": "o", "markersize": 2.8, "markerfacecolor": color,
                            "markeredgecolor": "#333333", "markeredgewidth": 0.4},
            )  # fmt: skip
        if box.paper is not None:
            x = box.x + 0.78 * box.width
            axes.vlines(x, box.paper.q1, box.paper.q3, color="black", linewidth=0.9)
            axes.plot([x], [box.paper.median], marker="D", markersize=3.8, color=color, markeredgecolor="black")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.58, len(groups) - 0.42)
    for border in range(1, len(groups)):
        axes.axvline(border - 0.5, color="#dddddd", linewidth=0.8, zorder=0)
    axes.set_xlabel(_XLABEL[benchmark])
    axes.grid(visible=True, axis="y", alpha=0.25)
    return boxes


def _cut(axes: Axes, boxes: Sequence[Box]) -> None:
    """Cut the axis below the boxes; a run that falls out is shown at the border with its value."""
    floors = [box.paper.q1 for box in boxes if box.paper is not None]
    for box in boxes:
        if own := quartiles(box.numbers):
            floors.append(max(min(box.numbers), own.q1 - 2.5 * (own.q3 - own.q1) - 0.05))
    floor, top = min(floors, default=0.0), axes.get_ylim()[1]
    bottom = floor - 0.04 * (top - floor)
    axes.set_ylim(bottom, top)
    for box in boxes:
        below = sorted(value for value in box.numbers if value < bottom)
        if below:
            axes.plot([box.x], [bottom + 0.015 * (top - bottom)], marker="v", markersize=5,
                      color=_COLORS[box.method], markeredgecolor="#333333", markeredgewidth=0.5)  # fmt: skip
            text = f"{below[0]:.2f}" + (f" (+{len(below) - 1})" if len(below) > 1 else "")
            axes.annotate(text, (box.x, bottom + 0.035 * (top - bottom)), ha="center", fontsize=6.5)


def _legend(figure: Figure, names: Sequence[str], *, marks: bool) -> None:
    handles: list[Any] = [Patch(facecolor=_COLORS[name], edgecolor="#333333", label=name) for name in names]
    if marks:
        style: dict[str, Any] = {"marker": "D", "markersize": 4, "markerfacecolor": "white", "linewidth": 0.9}
        handles.append(Line2D([], [], color="black", label="paper: median, quartiles", **style))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
