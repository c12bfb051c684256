"""ACAS Xu: networks that provably obey their properties, and how often they give the original's advice.

The original network with a certified head behind it (`smle.correct`), which leaves its scores alone where the
properties allow them. Networks, properties and points are read from the folder that SMLE_DATA names; `quick` uses a
small generated network instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np
import torch

from smle import attack, correct
from smle.networks.safe_network import SafeNetwork
from studies.harness import Table, asked, bench, interleaved
from tests.support.acasxu_data import FloatArray, Task, advice, points_of, read_tasks, stand_in
from tests.support.sampling import Judge

_WANTED = 0.995
_PUBLISHED = "96.1 % on average, published safe training at 100 % certified"
_MOVED = 1e-5

Rows = list[tuple[object, ...]]


@bench("ACAS Xu: provably safe networks that keep the advice")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Build, certify, compare and attack; `quick` takes a small generated network and few points.

    Raises:
        DataError: If the data are not found (not with `quick`).
    """
    wrong = 0
    made: Rows = []
    agreement: Rows = []
    attacks: Rows = []
    costs: Rows = []
    for task in [stand_in()] if quick else read_tasks():
        network, facts = _made(task)
        regions = [_compared(task, network, rule, 2000 if quick else 100_000) for rule in range(len(task.rules))]
        compared, same, broken, kept = zip(*regions, strict=True)
        worst, advised = min(same), advice(task.scores(task.test))
        at_test = float((advised == advice(_scores(network, task.test))).mean())
        made.append((task.name, len(task.rules), *facts[:2], _percent(at_test), _percent(worst), *facts[2:]))
        agreement += compared
        attacks += [_attacked(task, network, rule, 2000 if quick else 20_000) for rule in task.rules]
        wrong += sum(broken)
        costs += _costs(task, network, quick=quick)
        passed[f"{task.name}: every property is proved by the exact checker"] = facts[0] == _percent(1.0)
        passed[f"{task.name}: the same advice wherever the original keeps the properties"] = not any(kept)
        if not quick:  # a random network breaks its rules often, so that agreement cannot be high
            wanted = f"same advice at {100 * _WANTED:g} % of the"
            passed[f"{task.name}: {wanted} test points ({_percent(at_test)})"] = at_test >= _WANTED
            passed[f"{task.name}: {wanted} points of every region (worst {_percent(worst)})"] = worst >= _WANTED
    tried = sum(int(str(row[4])) for row in attacks) + sum(int(str(row[2])) for row in agreement)
    clean = wrong == 0 and all(row[5] == "none" for row in attacks)
    passed[f"no violation after correction ({tried:,} points tried)"] = clean
    return (
        Table(
            "Certified, and how often the advice is the original's",
            ("network", "properties", "certified", "statements proved", "same advice, test points",
             "same advice, worst region", "built and certified (CPU s)", "certificate (bytes)", "check (CPU s)"),
            tuple(made),
            f"Advice: the smallest of five scores. To compare: {_PUBLISHED}. The original network with a certified "
            "head behind it; nothing is trained.",
        ),
        Table(
            "New points inside the region of each property",
            ("network", "property", "points", "original breaks it", "corrected breaks a rule", "same advice",
             "changed where broken", "changed where kept", f"scores moved > {_MOVED:g}", "largest move"),
            tuple(agreement),
            "'Changed where broken': the advice differs at points where the original breaks a property, so that "
            "something has to change; 'changed where kept': it differs although it need not.",
        ),
        Table(
            "Attacks on each property: original and corrected",
            ("network", "property", "points tried, original", "strongest violation", "points tried, corrected",
             "strongest violation "),
            tuple(attacks),
            "`smle.attack`: points inside of regions, at their borders and corners, and gradient ascent from the worst "
            "ones until a violation is found. Violations are judged exactly on float32 outputs, in the units of the "
            "scores. What attackers find who choose the scores themselves is on the page about soundness.",
        ),
        Table(
            "Cost of an answer, torch, one thread",
            ("network", "batch", "original (us)", "corrected (us)", "ratio"),
            tuple(costs),
            "The fastest of up to 50 rounds taken in turns.",
        ),
    )  # fmt: skip


def _made(task: Task) -> tuple[SafeNetwork, tuple[object, ...]]:
    """Return the corrected network, and what the exact checker says about it; processor seconds."""
    start = time.process_time()
    network: SafeNetwork = correct(task.model, task.spec, task.train).eval()
    built = time.process_time()
    certificate = network.certificate_
    proved = certificate.check()
    checked = time.process_time()
    certified = len({p.rule for p in proved} & set(task.rules)) / len(task.rules)
    size = len(certificate.text) + len(certificate.block)
    return network, (_percent(certified), len(proved), built - start, size, checked - built)


def _scores(network: SafeNetwork, X: FloatArray) -> FloatArray:
    with torch.no_grad():
        y: FloatArray = network(torch.from_numpy(X)).numpy()
    return y


def _percent(share: float) -> str:
    return f"{100 * share:.3f} %"


def _compared(task: Task, network: SafeNetwork, rule: int, count: int) -> tuple[tuple[object, ...], float, int, int]:
    """Compare advice and scores at new points of a rule's region.

    Return the row of the table; the share of points with the same advice; how many break a rule after correction; and
    how many get other advice although the original breaks no rule there.
    """
    X = points_of(task.spec, rule, count, np.random.default_rng([1, rule]))
    original, corrected = task.scores(X), _scores(network, X)
    judge = Judge(task.spec)
    before, after = judge.judge(X, original), judge.judge(X, corrected)
    changed, moved = advice(corrected) != advice(original), np.abs(corrected - original).max(axis=1)
    same, needed = 1.0 - float(changed.mean()), int(changed[before.rows].sum())
    wrong, kept = len(after.rows), int(changed.sum()) - needed
    row = (
        task.name, task.rules[rule], len(X), len(before.broken.get(rule, ())), wrong, _percent(same), needed, kept,
        _percent(float((moved > _MOVED).mean())), float(moved.max()),
    )  # fmt: skip
    return row, same, wrong, kept


def _attacked(task: Task, network: SafeNetwork, rule: str, tries: int) -> tuple[object, ...]:
    """Return what `smle.attack` finds against one property, in the original and in the corrected network."""
    row: list[object] = [task.name, rule]
    for model in (task.model, network):
        found = attack(model, task.spec, rules=[rule], tries=tries)
        violation = found.violation
        row += [found.tried, "none" if violation is None else float(violation.excess or math.nan)]
    return tuple(row)


def _costs(task: Task, network: SafeNetwork, *, quick: bool) -> Rows:
    rows: Rows = []
    for batch in (1, 1024):
        x = torch.from_numpy(task.test[:batch])
        contenders = {"original": asked(task.model, x), "corrected": asked(network, x)}
        times = interleaved(contenders, rounds=5 if quick else 50, budget=2.0)
        original, ours = (min(times[name].seconds) * 1e6 for name in contenders)
        rows.append((task.name, batch, original, ours, ours / original))
    return rows
