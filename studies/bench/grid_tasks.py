"""Grid heads at work: a hierarchy of M4 series beside MinT, invoices and pieces beside their optimum, basal rates."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.heads.grid.author import certify_grid
from smle.heads.grid.program import GridProgram
from smle.rules import Specification
from studies.bench.harness import BenchResult, Table
from studies.experiments.data import SOURCES, locate

__all__ = ["basal_rates", "hierarchy", "invoices", "pieces", "run"]

Array = npt.NDArray[np.float64]
_LAGS, _WINDOW = 8, 700
_INVOICE = """
inputs: {pages: {range: [1, 20], integer: true}}
outputs: {net: {step: 0.01}, vat: {step: 0.01}, total: {step: 0.01}}
rules:
  - {name: amounts, then: 0 <= net <= 100000}
  - {name: tax, then: abs(vat - 0.19 * net) <= 0.005}
  - {name: total, then: total == net + vat}
"""
_CAPS = (60, 50, 40, 30, 25, 15)
_PIECES = (
    "inputs: {demand: {range: [0, 220], integer: true}}\noutputs: {"
    + ", ".join(f"w{i}: {{integer: true}}" for i in range(6))
    + "}\nrules:\n  - {name: all, then: "
    + " + ".join(f"w{i}" for i in range(6))
    + " == demand}\n  - {name: stock, then: "
    + " and ".join(f"0 <= w{i} <= {cap}" for i, cap in enumerate(_CAPS))
    + "}\n"
)
_RATES = """
inputs:
  weight: {range: [20, 150], step: 0.1}
  scheduled: {range: [0, 4], step: 0.05}
outputs: {rate: {step: 0.05}}
rules:
  - {name: never negative, then: rate >= 0}
  - {name: weight, then: rate <= 0.03 * weight}
  - {name: schedule, then: rate <= 3 * scheduled + 0.5}
"""


def run(quick: bool = False) -> BenchResult:
    """Measure; `quick` takes few rows."""
    series = hierarchy(locate(SOURCES["series"]), folds=1 if quick else 4)
    rows = 2_000 if quick else 20_000
    ratio, broken, safe = invoices(rows)
    best, asked = pieces(200 if quick else 1_457)
    wrong, nearest = basal_rates(10 * rows)
    tables = (
        Table("M4 series in three levels", ("method", "scaled MSE", "sums broken", "below 0"), series),
        Table(
            "Beside the optimum",
            ("task", "rows", "measured"),
            (
                ("invoice: L1 against the best", rows, round(ratio, 4)),
                ("invoice: rules broken", rows, broken),
                ("invoice: served by the stored answer", rows, safe),
                ("pieces: at the optimum", asked, best),
                ("basal rates: beyond a limit", 10 * rows, wrong),
                ("basal rates: not the nearest allowed step", 10 * rows, nearest),
            ),
        ),
    )
    return BenchResult("grid_tasks", "Sums and steps at work", tables, passed={}, quick=quick)


# --- a hierarchy


def hierarchy(path: Path, *, folds: int = 4) -> tuple[tuple[object, ...], ...]:
    """Forecast a day ahead by autoregression, each series for itself; reconcile; score on what follows.

    The bottom are the series, the middle sums by kind, the top is the sum of all. Numbers are tenths. Squared errors
    count in units of the naive forecast's.
    """
    bottom, kinds = _series(path)
    names = sorted(set(kinds))
    sums = np.array([[1.0] * len(kinds), *([float(k == name) for k in kinds] for name in names), *np.eye(len(kinds))])
    series = bottom @ sums.T
    tops = 1 + len(names)
    spec = _rules(sums, tops, float(series.max()))
    found: dict[str, list[tuple[float, float, float]]] = {}
    block = (_WINDOW // 2) // folds
    for fold in range(folds):
        start = _WINDOW // 2 + fold * block
        base, errors = _forecasts(series, start, block)
        truth, naive = series[start : start + block], series[start - 1 : start + block - 1]
        covariance = _shrunk(errors)
        mint = _reconciled(base, sums, covariance)
        methods = {
            "base": base,
            "bottom-up": base[:, tops:] @ sums.T,
            "MinT": mint,
            "MinT, clipped": np.clip(mint[:, tops:], 0, None) @ sums.T,
        }
        units = {"": None, ", in units of examples": series[:start].std(axis=0)}
        units[", in units of errors"] = np.sqrt(np.diag(covariance))
        for title, scale in units.items():
            program = GridProgram(certify_grid(spec, default=series[:start].mean(axis=0), scale=scale))
            X = np.zeros((block, 1))
            for name in ("MinT", "base"):
                methods[f"smle behind {name}{title}"] = program(X, methods[name].astype(np.float32)).astype(np.float64)
        usual = ((truth - naive) ** 2).mean(axis=0)
        for name, made in methods.items():
            single = made.astype(np.float32).astype(np.float64)
            exact = np.rint(single * 10) if name.startswith("smle") else single
            apart = float((exact != exact[:, tops:] @ sums.T).any(axis=1).mean())
            error = float((((made - truth) ** 2).mean(axis=0) / usual).mean())
            found.setdefault(name, []).append((error, apart, float((made < 0).any(axis=1).mean())))
    means = {name: [round(float(v), 4) for v in np.mean(rows, axis=0)] for name, rows in found.items()}
    return tuple((name, *row) for name, row in means.items())


def _series(path: Path) -> tuple[Array, list[str]]:
    """Return the last values of all series that are long enough, in tenths, and their kinds."""
    values: dict[str, list[float]] = {}
    kinds: dict[str, str] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values.setdefault(row["id"], []).append(float(row["value"]))
            kinds[row["id"]] = row["category"]
    long = [name for name, own in values.items() if len(own) >= _WINDOW and max(own[-_WINDOW:]) < 20_000]
    return np.round(np.array([values[name][-_WINDOW:] for name in long]).T, 1), [kinds[name] for name in long]


def _rules(sums: Array, tops: int, most: float) -> Specification:
    m, names = len(sums), [f"y{i}" for i in range(len(sums))]
    rules = [f"  - {{name: r{i}, then: {names[i]} == {_sum(names, tops, sums[i])}}}" for i in range(1, tops)]
    middle = " + ".join(names[1:tops])
    rules.append(f"  - {{name: total, then: {names[0]} == {middle}}}")
    rules += [f"  - {{name: p{i}, then: {names[i]} >= 0}}" for i in range(tops, m)]
    outputs = [f"  {name}: {{step: 0.1, range: [0, {int(2 * most)}]}}" for name in names]
    return Specification.from_yaml("\n".join(["inputs: {t: [0, 1]}", "outputs:", *outputs, "rules:", *rules]) + "\n")


def _sum(names: list[str], tops: int, row: Array) -> str:
    return " + ".join(names[tops + k] for k in np.flatnonzero(row))


def _forecasts(series: Array, start: int, block: int) -> tuple[Array, Array]:
    """Return forecasts of a block, one step ahead, and the errors before it."""
    made, errors = [], []
    for own in series.T:
        lagged = np.stack([own[_LAGS - k - 1 : len(own) - k - 1] for k in range(_LAGS)], axis=1)
        change, target = np.diff(lagged, axis=1), own[_LAGS:] - lagged[:, 0]
        seen = slice(0, start - _LAGS)
        A = np.hstack([change, np.ones((len(change), 1))])
        weights = np.linalg.lstsq(A[seen].T @ A[seen] + 1e-3 * np.eye(_LAGS), A[seen].T @ target[seen], rcond=None)[0]
        fitted = lagged[:, 0] + A @ weights
        made.append(fitted[start - _LAGS : start - _LAGS + block])
        errors.append((own[_LAGS:] - fitted)[seen])
    return np.array(made).T, np.array(errors).T


def _shrunk(errors: Array) -> Array:
    """Return the covariance of errors, shrunk toward its diagonal by as much as its own noise says."""
    n = len(errors)
    z = (errors - errors.mean(axis=0)) / errors.std(axis=0)
    r = z.T @ z / n
    noise = (((z[:, :, None] * z[:, None, :] - r) ** 2).sum(axis=0)) / n / (n - 1)
    off = ~np.eye(len(r), dtype=bool)
    share = min(1.0, max(0.0, float(noise[off].sum() / (r[off] ** 2).sum())))
    spread = errors.std(axis=0)
    return np.asarray((np.where(off, (1 - share) * r, 1.0)) * np.outer(spread, spread))


def _reconciled(base: Array, sums: Array, covariance: Array) -> Array:
    inverse = np.linalg.pinv(covariance)
    return np.asarray(base @ (sums @ np.linalg.solve(sums.T @ inverse @ sums, sums.T @ inverse)).T)


# --- beside the optimum


def invoices(rows: int, *, seed: int = 0) -> tuple[float, int, int]:
    """Return our L1 distance over the least one, how many rows break a rule, and how many the stored answer serves."""
    rng = np.random.default_rng(seed)
    net = np.round(rng.lognormal(6, 1.5, rows).clip(1, 90_000), 2)
    true = np.stack([net, np.round(0.19 * net, 2), np.round(net + np.round(0.19 * net, 2), 2)], axis=1)
    read = (true + rng.normal(0, 0.02, true.shape)).astype(np.float32)
    program = GridProgram(certify_grid(Specification.from_yaml(_INVOICE), scale=np.ones(3)))
    k, by = program.in_steps(np.ones((rows, 1)), read)
    cents = read.astype(np.float64) * 100
    broken = (k[:, 2] != k[:, 0] + k[:, 1]) | (np.abs(100 * k[:, 1] - 19 * k[:, 0]) > 50)
    best = np.full(rows, np.inf)
    first = np.rint(cents[:, 0])
    for shift in range(-40, 41):
        own = np.maximum(first + shift, 0)
        low, high = np.ceil((19 * own - 50) / 100), np.floor((19 * own + 50) / 100)
        for vat in (low, high):
            far = np.abs(np.stack([own, vat, own + vat], axis=1) - cents).sum(axis=1)
            best = np.minimum(best, np.where(low <= high, far, np.inf))
    return float(np.abs(k - cents).sum() / best.sum()), int(broken.sum()), int((by == 2).sum())


def pieces(rows: int, *, seed: int = 0) -> tuple[int, int]:
    """Return how many plans are at the optimum of their distance, and of how many that do not stay."""
    rng = np.random.default_rng(seed)
    program = GridProgram(certify_grid(Specification.from_yaml(_PIECES)))
    demand = rng.integers(0, 221, rows)
    plan = (demand[:, None] * rng.dirichlet(np.array(_CAPS) / 12, rows) * rng.normal(1, 0.1, (rows, 1))).astype(
        np.float32
    )
    k, by = program.in_steps(demand[:, None].astype(np.float64), plan)
    cost = 1.0 / program.stored["check.scale"] ** 2
    tally: Counter[bool] = Counter()
    for row in np.flatnonzero(by > 0):
        p = plan[row].astype(np.float64)
        least = _allotted(p, int(demand[row]), cost)
        tally[bool((cost * (k[row] - p) ** 2).sum() <= least * (1 + 1e-9) + 1e-12)] += 1
    return tally[True], tally.total()


def _allotted(p: Array, total: int, cost: Array) -> float:
    """Return the least distance of whole pieces with a sum: piece by piece, exact for such costs."""
    k, caps = np.zeros(len(p)), np.array(_CAPS)
    for _ in range(total):
        more = np.where(k < caps, cost * (2 * (k - p) + 1), np.inf)
        k[int(more.argmin())] += 1
    return float((cost * (k - p) ** 2).sum())


def basal_rates(rows: int, *, seed: int = 0) -> tuple[int, int]:
    """Return how many rates are beyond a limit, and how many are not the nearest allowed step."""
    rng = np.random.default_rng(seed)
    tenths, twentieths = rng.integers(200, 1501, rows), rng.integers(0, 81, rows)
    wanted = rng.uniform(-0.5, 6, rows).astype(np.float32)
    program = GridProgram(certify_grid(Specification.from_yaml(_RATES)))
    wrong = other = 0
    largest = np.minimum(tenths * 3 // 50, 3 * twentieths + 10)
    nearest = np.clip(np.floor(wanted.astype(np.float64) * 20 + 0.5), 0, largest)
    for dtype in (np.float32, np.float64):
        X = np.stack([tenths / 10, twentieths / 20], axis=1).astype(dtype)
        k = program.in_steps(X, wanted[:, None])[0][:, 0]
        wrong, other = wrong + int((k > largest).sum()), other + int((k != nearest).sum())
    return wrong, other


if __name__ == "__main__":
    import sys

    _parts: dict[str, Any] = {
        "invoices": lambda: invoices(20_000),
        "pieces": lambda: pieces(1_457),
        "rates": lambda: basal_rates(200_000),
        "hierarchy": lambda: hierarchy(Path(sys.argv[2])),
    }
    print(_parts[sys.argv[1]]())
