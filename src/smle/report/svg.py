"""Drawings as SVG text without inline styles: colors come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from smle.report.recorded import RecordedHistory
from smle.report.wording import number

__all__ = ["calibration", "histogram", "history", "named_bars", "range_bar", "scatter", "share_bar"]

Array = npt.NDArray[np.float64]
_WIDTH, _HEIGHT = 440, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 12, 12, 40


def _tag(name: str, *children: Markup | str, **attributes: object) -> Markup:
    """Return an element; attributes, and children that are not markup, are escaped."""
    parts = [f'{key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items()]
    inside = "".join(str(escape(child)) for child in children)
    return Markup(f"<{' '.join([name, *parts])}>{inside}</{name}>")  # noqa: S704  all parts are escaped


def _figure(title: str, *children: Markup, height: float = _HEIGHT) -> Markup:
    return _tag("svg", *children, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=title, class_="plot")


def _track(title: str, *children: Markup) -> Markup:
    """Return a bar that stretches to fit, 1000 wide and 20 high."""
    view = {"viewBox": "0 0 1000 20", "preserveAspectRatio": "none"}
    return _tag("svg", *children, **view, role="img", aria_label=title, class_="track")


def _rect(x: float, width: float, kind: str, *, y: float = 0, height: float = 20) -> Markup:
    return _tag("rect", x=round(x, 2), y=y, width=round(max(width, 0.0), 2), height=height, class_=kind)


def share_bar(share: float, kind: str = "bar", title: str = "") -> Markup:
    """Draw a share of a whole."""
    width = 0.0 if share <= 0 else max(1000 * min(share, 1.0), 4.0)
    return _track(title, _rect(0, 1000, "rail", y=6, height=8), _rect(0, width, kind, y=6, height=8))


def range_bar(
    values: tuple[float, float], middle: tuple[float, float], stated: tuple[float, float], *, title: str
) -> Markup:
    """Draw where all values of an input lie, and where most do, on the stated range."""
    low, high = min(values[0], stated[0]), max(values[1], stated[1])
    room = 0.08 * _size(low, high)

    def at(value: float) -> float:
        return 1000 * (value - low + room) / (high - low + 2 * room)

    def bar(ends: tuple[float, float], kind: str, y: float, height: float) -> Markup:
        return _rect(at(ends[0]), max(at(ends[1]) - at(ends[0]), 3.0), kind, y=y, height=height)

    ends = [at(value) for value in stated]
    forbidden = _rect(0, ends[0], "forbidden"), _rect(ends[1], 1000 - ends[1], "forbidden")
    lines = [_tag("line", x1=round(x, 2), x2=round(x, 2), y1=0, y2=20, class_="limit") for x in ends]
    drawn = bar(values, "reach", 4, 12), bar(middle, "seen", 8, 4)
    return _track(title, _rect(0, 1000, "rail"), *forbidden, *drawn, *lines)


class _Axes:
    """A plot area with two scales."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], *, log: bool = False) -> None:
        self.x, self.y, self.log = _widened(x), y if log else _widened(y), log

    def at_x(self, value: float) -> float:
        low, high = self.x
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(self, value: float) -> float:
        low, high = self.y
        share = math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def frame(self, x_label: str, y_label: str) -> list[Markup]:
        """Return grid lines, tick labels and names of the axes."""
        parts = []
        for value in ticks(*self.x):
            x = round(self.at_x(value), 1)
            parts.append(_tag("text", number(value), x=x, y=_HEIGHT - _BOTTOM + 15, class_="tick middle"))
        for value in _decades(*self.y) if self.log else ticks(*self.y):
            y = round(self.at_y(value), 1)
            parts.append(_tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(_tag("text", number(value), x=_LEFT - 6, y=y + 3.5, class_="tick end"))
        middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
        parts.append(_tag("text", x_label, x=middle_x, y=_HEIGHT - 6, class_="axis middle"))
        turn = f"rotate(-90 12 {middle_y})"
        parts.append(_tag("text", y_label, x=12, y=middle_y, transform=turn, class_="axis middle"))
        return parts

    def path(self, x: Sequence[float], y: Sequence[float], kind: str) -> Markup:
        """Return a line through points."""
        points = " ".join(f"{self.at_x(a):.1f},{self.at_y(b):.1f}" for a, b in zip(x, y, strict=True))
        return _tag("polyline", points=points, class_=kind)


def _size(low: float, high: float) -> float:
    """Return the length of a range, or a fraction of its values' size if it is (nearly) a point."""
    return max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-12)


def _widened(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    room = _size(low, high) - (high - low)
    return low - room, high + room


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round numbers between low and high, about as many as wanted."""
    raw = (high - low) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    return values[:: max(1, len(values) // 5)]


def history(record: RecordedHistory) -> Markup | None:
    """Draw losses by epoch on a logarithmic scale; None if there is nothing positive to draw."""
    series = [s for s in (record.loss, record.validation) if s]
    values = [v for s in series for v in s]
    if not values or min(values) <= 0:
        return None
    low, high = min(values), max(values)
    axes = _Axes((record.epoch[0], record.epoch[-1]), (low / 1.1, high * 1.1), log=True)
    parts = axes.frame("epoch", "loss (log scale)")
    if record.loss:
        parts.append(axes.path(record.epoch, record.loss, "line quiet"))
    if record.validation:
        # The last epochs hold nothing out.
        searched = sum(epoch <= record.epoch[-1] - record.final for epoch in record.epoch)
        parts.append(axes.path(record.epoch[:searched], record.validation[:searched], "line"))
    if record.best is not None and record.epoch[0] <= record.best <= record.epoch[-1]:
        x = round(axes.at_x(record.best), 1)
        parts.append(_tag("line", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="marker"))
    return _figure(f"Training and validation loss over {len(record.epoch)} recorded epochs", *parts)


def scatter(actual: Array, predicted: Array, name: str) -> Markup:
    """Draw predictions against true values; the diagonal is perfect."""
    low, high = float(min(actual.min(), predicted.min())), float(max(actual.max(), predicted.max()))
    axes = _Axes((low, high), (low, high))
    parts = axes.frame(f"true {name}", "predicted")
    parts.append(axes.path(axes.x, axes.x, "diagonal"))
    for a, p in zip(actual.tolist(), predicted.tolist(), strict=True):
        parts.append(_tag("circle", cx=round(axes.at_x(a), 1), cy=round(axes.at_y(p), 1), r=1.8, class_="dot"))
    return _figure(f"Predicted against true {name}", *parts)


def histogram(values: Array, label: str, title: str) -> Markup:
    """Draw a histogram around 0, or on one side if all values are there."""
    low, high = np.quantile(values, (0.005, 0.995))
    size = max(abs(float(low)), abs(float(high)), 1e-12)
    ends = (0.0 if (values >= 0).all() else -size, 0.0 if (values <= 0).all() and values.any() else size)
    counts, edges = np.histogram(np.clip(values, *ends), bins=31, range=ends)
    axes = _Axes(ends, (0.0, float(counts.max())))
    parts = axes.frame(label, "rows")
    for count, left, right in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        top = axes.at_y(count)
        width = axes.at_x(right) - axes.at_x(left) - 1
        parts.append(
            _rect(axes.at_x(left) + 0.5, width, "bar", y=round(top, 1), height=round(_HEIGHT - _BOTTOM - top, 1))
        )
    x = round(axes.at_x(0.0), 1)
    parts.append(_tag("line", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="marker"))
    return _figure(f"{title}; the outermost bars hold everything beyond", *parts)


def named_bars(names: Sequence[str], shares: Sequence[float], rows: Sequence[int], *, label: str) -> Markup:
    """Draw a share for each part of an input, as named bars from left to right."""
    line, width = 19, 190
    height = line * len(names) + 8
    most = max([*shares, 1e-9])
    parts = []
    for index, (name, value, count) in enumerate(zip(names, shares, rows, strict=True)):
        y = 4 + line * index
        long = (_WIDTH - width - 60) * value / most
        text = name if len(name) <= 28 else name[:27] + "…"
        title = _tag("title", f"{label} {name}: {value:.1%} of {count:,} rows")
        parts.append(_tag("text", text, title, x=width - 8, y=y + 12, class_="tick end"))
        parts.append(_rect(width, max(long, 1.0), "bar warn" if value else "rail", y=y + 2, height=line - 5))
        parts.append(_tag("text", f"{value:.1%}", x=round(width + long + 6, 1), y=y + 12, class_="tick"))
    return _figure(f"Share of rows that break the rule, by {label}", *parts, height=height)


def calibration(chance: Array, truth: Array) -> Markup:
    """Draw how often predictions of each probability came true, in ten bins; the diagonal is perfect."""
    axes = _Axes((0.0, 1.0), (0.0, 1.0))
    parts = [*axes.frame("predicted probability", "share that is true"), axes.path((0, 1), (0, 1), "diagonal")]
    bins = np.minimum((chance * 10).astype(int), 9)
    counts = np.bincount(bins, minlength=10)
    points = []
    for b in np.flatnonzero(counts):
        points.append((float(chance[bins == b].mean()), float(truth[bins == b].mean()), int(counts[b])))
    parts.append(axes.path([p[0] for p in points], [p[1] for p in points], "line"))
    for x, y, count in points:
        radius = 2.5 + 5 * math.sqrt(count / counts.max())
        title = _tag("title", f"{count:,} predictions near {x:.2f}: {y:.1%} true")
        parts.append(
            _tag("circle", title, cx=round(axes.at_x(x), 1), cy=round(axes.at_y(y), 1), r=radius, class_="dot")
        )
    return _figure("Calibration: how often a predicted probability came true, in ten bins", *parts)
