"""Rule sets of real size: lists of categories, many rules, many labels; processor seconds, and bytes of ONNX files."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import smle
from smle import Specification
from smle.certificates.document import Certificate
from smle.errors import ContradictionError
from smle.heads.rules.author import certify_rules
from studies.bench.harness import BenchResult, Table, one_thread

__all__ = ["run"]


def prices(count: int, *, alternatives: bool = False) -> str:
    """Return a price list: a cap for each article, and one alternative, or one in each rule."""
    names = [f"art{i:04d}" for i in range(count)]
    other = " or discount >= 0.1" if alternatives else ""
    caps = [
        f"  - {{name: cap {n}, when: article == {n}, then: price <= {10 + i / 4}{other}}}\n"
        for i, n in enumerate(names)
    ]
    last = "" if alternatives else "  - {name: either, then: price <= 5 or discount >= 0.1}\n"
    articles = f"inputs: {{x: [0, 100], article: {{categories: [{', '.join(names)}]}}}}\n"
    return articles + "outputs: [price, discount]\nrules:\n" + "".join(caps) + last


def many_rules(count: int) -> str:
    """Return rules on overlapping ranges of two inputs, of which 20 have alternatives."""
    plain = [
        f"  - {{name: r{i}, when: x >= {i * 100 / count:.6f} and z <= {100 - i * 50 / count:.6f}, "
        f"then: a <= {200 + i / 100:.4f}}}\n"
        for i in range(count - 20)
    ]
    either = [f"  - {{name: e{i}, when: x >= {5 * i}, then: b <= {10 + i} or c >= {20 - i}}}\n" for i in range(20)]
    return "inputs: {x: [0, 100], z: [0, 100]}\noutputs: [a, b, c]\nrules:\n" + "".join(plain + either)


def hierarchy(count: int) -> str:
    """Return labels of which each implies its parent."""
    rng = np.random.default_rng(0)
    parents = [int(rng.integers(max(0, i // 4 - 3), i // 4 + 1)) for i in range(1, count)]
    rules = [f"  - {{name: h{i}, then: l{i} implies l{p}}}\n" for i, p in enumerate(parents, 1) if p != i]
    return f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(f'l{i}' for i in range(count))}]\nrules:\n" + "".join(rules)


def contradiction(count: int) -> str:
    """Return counts of labels that contradict each other, among rules that do not."""
    labels = [f"l{i}" for i in range(count)]
    rules = [f"{labels[i]} implies {labels[i + 1]}" for i in range(0, count - 1, 2)]
    rules += [f"at_least(4, {', '.join(labels[:6])})", f"at_most(3, {', '.join(labels[:6])})"]
    listed = "".join(f"  - {{name: r{i}, then: '{rule}'}}\n" for i, rule in enumerate(rules))
    return f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(labels)}]\nrules:\n{listed}"


def seconds(call: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """Return how long a call takes of the processor's time, and what it returns; errors are returned, too."""
    start = time.process_time()
    try:
        found = call(*given)
    except ContradictionError as error:
        found = error
    return time.process_time() - start, found


def run(quick: bool = False) -> BenchResult:
    """Measure all rule sets; `quick` takes a tenth of each size."""
    part = 10 if quick else 1
    cases = [
        ("200 prices, one alternative", prices(200 // part), True),
        ("2,000 prices, one alternative", prices(2000 // part), True),
        ("200 prices, an alternative each", prices(200 // part, alternatives=True), True),
        ("2,000 prices, an alternative each", prices(2000 // part, alternatives=True), True),
        ("1,000 rules, 20 alternatives", many_rules(1000 // part), True),
        ("4,000 labels of a hierarchy", hierarchy(4000 // part), False),
        ("100 labels that contradict each other", contradiction(100 // part), True),
    ]
    rows = []
    with one_thread():
        for title, text, diagnosed in cases:
            reading, spec = seconds(Specification.from_yaml, text)
            proving, found = seconds(certify_rules, spec)
            checking = "-"
            if isinstance(found, Certificate):
                again = Certificate(found.text, found.block, found.tensors, found.files)
                checking = f"{seconds(again.check)[0]:.2f}"
            told = f"{seconds(smle.diagnose, spec)[0]:.2f}" if diagnosed else "-"
            outcome = "proved" if isinstance(found, Certificate) else "refused"
            rows.append((title, f"{reading:.2f}", f"{proving:.2f}", checking, told, outcome))
    titles = ("rule set", "read (s)", "certify (s)", "check (s)", "diagnose (s)", "outcome")
    return BenchResult(
        "rule_sets", "Rule sets of real size", (Table("Processor time", titles, tuple(rows)),), quick=quick
    )
