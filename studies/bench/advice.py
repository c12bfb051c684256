"""What `fit` advises and what the monitor finds: was it right?

Each table is cut anew. Three quarters of the rows are fitted by the default network, under rules that data hardly meet,
and by scikit-learn's gradient boosting under the same rules; both are scored on the last quarter. `fit` is right if it
advises trees where these do better there, and is silent where they are ahead by 0.02 of R2 or accuracy at most.

The monitor compares 200 pairs of fresh tables of 3,000 rows, without a change and with three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.model_selection import train_test_split

from smle import Specification
from studies.bench.accuracy import BOOSTING, NETWORK, estimators, network, safe
from studies.bench.table_tasks import EXAMPLES, SIMULATIONS, example, rows_of
from studies.harness import Table, bench, quietly
from tests.support.drift_rows import alarms

_CLEAR = 0.02  # of R2 or accuracy, as in `fit`
_RATE = 0.01
_FIRST_SEED = 500  # far from the seeds on which the threshold was chosen


@bench("Advice and alarms")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Fit all tables over several splits, and draw the pages; `quick` takes two tables and few pages."""
    lines: list[tuple[object, ...]] = []
    counts = dict.fromkeys(("advised, right", "advised, wrong", "silent, right", "silent, missed"), 0)
    for name, seed, spec, X, y in _cases(quick):
        known, new, wanted, truth = train_test_split(X, y, test_size=0.25, random_state=seed)
        trees = estimators(spec, known, True, seed)[BOOSTING]
        models, scores, said = {NETWORK: network(spec, quick, seed), BOOSTING: safe(spec, trees)}, {}, ""
        for kind, model in models.items():
            with quietly():
                model.fit(known, wanted)
                scores[kind] = _score(spec, model, new, truth)
            said = model.description_["scores"].get("advice", "") if kind == NETWORK else said
        gain = scores[BOOSTING] - scores[NETWORK]
        right = gain > 0 if said else gain <= _CLEAR
        verdict = f"{'advised' if said else 'silent'}, {'right' if right else 'wrong' if said else 'missed'}"
        counts[verdict] += 1
        lines.append(
            (name, seed, len(known), f"{scores[NETWORK]:.3f}", f"{scores[BOOSTING]:.3f}", f"{gain:+.3f}", verdict)
        )
    columns = ("table", "split", "training rows", "network", "boosting", "gain of trees", "fit")
    note = ", ".join(f"{word}: {count}" for word, count in counts.items())
    passed[f"no advice for trees was wrong ({counts['advised, wrong']})"] = counts["advised, wrong"] == 0
    found = Table("What fit advised", columns, tuple(lines), f"R2, or the share of right answers. {note}.")
    return found, _drift(quick, passed)


def _score(spec: Specification, model: Any, X: pd.DataFrame, y: pd.DataFrame) -> float:
    if spec.output_kind == "numbers":
        return float(model.score(X, y))
    return float((np.asarray(model.predict(X)).reshape(len(y), -1) == y.to_numpy()).mean())


# --- tables


def _cases(quick: bool) -> Iterator[tuple[str, int, Specification, pd.DataFrame, pd.DataFrame]]:
    seeds = range(_FIRST_SEED, _FIRST_SEED + (1 if quick else 3))
    for name in [] if quick else SIMULATIONS:
        spec, simulate = Specification.from_file(EXAMPLES / f"{name}.yaml"), getattr(example(name), SIMULATIONS[name])
        for seed in seeds:
            rows = rows_of(spec, simulate(3000, seed=seed))
            yield name, seed, spec, rows.X, rows.y
    chosen = {"steps": _MADE["steps"], "linear": _MADE["linear"]} if quick else {**_REAL, **_MADE}
    for name, make in chosen.items():
        for seed in seeds:
            X, y = make(np.random.default_rng(seed), 400 if quick else 1500)
            frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
            yield name, seed, _loose(frame, y), frame, pd.DataFrame({"y": y if y.dtype.kind == "f" else y.astype(str)})


def _loose(X: pd.DataFrame, y: np.ndarray) -> Specification:
    """Return rules that no row of a table touches."""
    ends = {name: (float(low), float(high)) for name, low, high in zip(X.columns, X.min(), X.max(), strict=True)}
    inputs = {name: (round(a - 1 - abs(b - a), 3), round(b + 1 + abs(b - a), 3)) for name, (a, b) in ends.items()}
    if y.dtype.kind == "f":
        low, high = float(y.min()), float(y.max())
        room = high - low
        rules = {"range": f"{low - room:.6g} <= y <= {high + room:.6g}"}
        return Specification.build(inputs=inputs, outputs=["y"], rules=rules)
    options = [str(value) for value in sorted(set(y.tolist()))]
    far = f"x0 >= {ends['x0'][1] + 0.5:.6g}"
    return Specification.build(inputs=inputs, choices={"y": options}, rules={"far": (far, f"y == '{options[0]}'")})


Made = tuple[np.ndarray, np.ndarray]
Make = Callable[[np.random.Generator, int], Made]


def _real(load: Callable[..., Any]) -> Make:
    def made(random: np.random.Generator, rows: int) -> Made:
        X, y = load(return_X_y=True)
        order = random.permutation(len(X))
        return X[order], y[order]

    return made


def _function(function: Callable[[np.ndarray], np.ndarray], width: int = 6, noise: float = 0.1) -> Any:
    def made(random: np.random.Generator, rows: int) -> Made:
        X = random.uniform(-1, 1, (rows, width))
        y = function(X).astype(float)
        return X, y + noise * y.std() * random.normal(size=rows)

    return made


def _friedman(make: Callable[..., Made]) -> Make:
    def made(random: np.random.Generator, rows: int) -> Made:
        X, y = make(rows, random_state=int(random.integers(2**31)))
        return X, y + 0.1 * y.std() * random.normal(size=rows)

    return made


_REAL = {
    "diabetes": _real(datasets.load_diabetes),
    "breast cancer": _real(datasets.load_breast_cancer),
    "wine": _real(datasets.load_wine),
}
_MADE: dict[str, Make] = {
    "linear": _function(lambda X: X @ np.arange(1.0, 7.0), noise=0.5),
    "sine": _function(lambda X: np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2]),
    "steps": _function(lambda X: np.floor(2.5 * X[:, 0]) + (X[:, 1] > 0.3) * 2.0 + (X[:, 2] > X[:, 3])),
    "xor": _function(lambda X: np.sign(X[:, 0] * X[:, 1]) + 0.5 * np.sign(X[:, 2]), width=10),
    "sparse steps": _function(lambda X: (X[:, 0] > 0.2) * 3.0 + (X[:, 7] > -0.4), width=25, noise=0.3),
    "noise": _function(lambda X: 0.2 * X[:, 0], noise=5.0),
    **{f"friedman{i}": _friedman(getattr(datasets, f"make_friedman{i}")) for i in (1, 2, 3)},
}


# --- the monitor


def _drift(quick: bool, passed: dict[str, bool]) -> Table:
    pages = 5 if quick else 200
    changes = {
        "nothing": ({}, None),
        "incomes up by 10 %": ({"income": 1.1}, "income"),
        "incomes up by 30 %": ({"income": 1.3}, "income"),
        "a category doubles, from 5 % to 10 %": ({"abroad": 0.1}, "region"),
    }
    lines: list[tuple[object, ...]] = []
    for seed, (what, (changed, name)) in enumerate(changes.items()):
        found = alarms(pages, _RATE, seed=_FIRST_SEED + seed, **changed)
        hits = sum(bool(page) if name is None else name in page for page in found)
        lines.append((what, pages, hits if name is None else "", "" if name is None else hits))
        if name is None:
            passed[f"monitor: false alarms on at most 7 of 200 pages at a stated rate of 1 % ({hits})"] = hits <= 7
        else:
            passed[f"monitor: {what} is found on 95 of 100 pages ({hits} of {pages})"] = hits >= 0.95 * pages
    columns = ("change", "pages", "pages with a false alarm", "pages that find it")
    note = f"3,000 rows before and after, both drawn anew; one false-alarm rate of {_RATE:.0%} for the whole page."
    return Table("What the monitor finds", columns, tuple(lines), note)
