"""Allowed sets of labels near a model's logits, as nodes of ONNX, for many rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.export.gates import Gates
from smle.export.writer import Writer
from smle.programs.label_chains import allowed_sets
from smle.programs.label_sets import Labels
from smle_check.onnx.graph import DOUBLE, FLOAT

__all__ = ["label_points"]

Array = npt.NDArray[Any]
_OFF, _FAR = -1e15, 1e200  # the score of a label that is not to be kept; what a broken rule costs
_ALL_SETS = 12  # labels whose sets are all listed


def label_points(w: Writer, labels: Labels, given: str, gates: Gates) -> Callable[[str], str]:
    """Return what puts the likeliest allowed set of labels, if it is found, into answers."""
    on, rules = gates.on(), gates.rules
    logits, k = w.rows(given, labels.outputs.tolist()), len(labels.outputs)
    clauses, pairs, parts = labels.words, labels.pairs, labels.parts
    both = [[[(int(a), False), (int(b), False)] for a, b in own] for own in pairs]
    count = len(clauses) + sum(map(len, both))
    sets = None
    if k <= _ALL_SETS:
        sets = np.array(list(product([True, False], repeat=k)))
    elif k <= 64 and count <= 2016:
        sets = allowed_sets(range(k), [*clauses, *(pair for own in both for pair in own)])
    if sets is None or not len(sets):
        turned = _from_the_top(w, logits, labels, on, rules)
    else:
        broken = np.zeros((len(sets), len(parts)), dtype=np.float32)
        everything: list[Sequence[Sequence[tuple[int, bool]]]] = [*([clause] for clause in clauses), *both]
        for part, listed in enumerate(everything):
            for clause in listed:
                broken[:, part] += ~np.any([sets[:, label] == state for label, state in clause], axis=0)
        if on is None:
            sets, lost = sets[~broken.any(axis=1)], w.number(0.0)
        else:
            lost = w.add("Cast", [w.add("MatMul", [w.constant(broken), w.rows(on, rules[parts].tolist())])], to=DOUBLE)
        gained = w.add("MatMul", [w.constant(sets.astype(np.float64)), logits])
        score = w.add("Sub", [gained, w.add("Mul", [lost, w.number(_FAR)])])
        best = w.shaped(w.add("ArgMax", [score], axis=0, keepdims=0), -1)
        turned = w.add("Transpose", [w.add("Gather", [w.constant(sets), best], axis=0)], perm=[1, 0])
    up, down = w.add("Max", [logits, w.column(labels.least)]), w.add("Min", [logits, w.column(labels.most)])
    return w.placed(labels.outputs, w.add("Where", [turned, up, down]))


def _from_the_top(w: Writer, logits: str, labels: Labels, on: str | None, rules: Array) -> str:
    """Keep labels from the highest score down, unless one that is kept excludes them: (k, rows)."""
    k = len(labels.outputs)
    graphs = []
    for pairs in labels.pairs:
        graph = np.zeros((k, k), dtype=np.float32)
        graph[pairs[:, 0], pairs[:, 1]] = graph[pairs[:, 1], pairs[:, 0]] = 1
        graphs.append(graph)
    lists = rules[labels.parts[len(labels.words) :]].tolist()
    positive = w.add("GreaterOrEqual", [logits, w.number(0.0)])
    open_ = w.add("Transpose", [w.add("Where", [positive, logits, w.number(_OFF)])], perm=[1, 0])  # (rows, k)
    kept = w.add("Sub", [open_, open_])
    always = w.constant(np.ones((1, 1), dtype=np.float32))
    active = [always if on is None else w.shaped(w.rows(on, [rule]), -1, 1) for rule in lists]

    def body(inner: Writer, names: list[str]) -> tuple[list[str], str]:
        scores, chosen = names
        label = inner.add("ArgMax", [scores], axis=1, keepdims=0)
        top = inner.reduced("ReduceMax", scores, 1, keep=True)
        taken = inner.add("Cast", [inner.add("Greater", [top, w.number(_OFF / 2)])], to=FLOAT)
        own = inner.add("Mul", [inner.add("Gather", [w.constant(np.eye(k, dtype=np.float32)), label], axis=0), taken])
        blocked = own
        for graph, binds in zip(graphs, active, strict=True):
            conflicts = inner.add("Gather", [w.constant(graph), label], axis=0)
            blocked = inner.add("Add", [blocked, inner.add("Mul", [conflicts, binds])])
        gone = inner.add("Greater", [blocked, w.constant(np.float32(0.5))])
        left = inner.add("Where", [gone, w.number(_OFF), scores])
        more = inner.add("Greater", [inner.add("ReduceMax", [left], keepdims=0), w.number(_OFF / 2)])
        return [left, inner.add("Add", [chosen, inner.add("Cast", [own], to=DOUBLE)])], more

    found = w.loop(k, [open_, kept], body)[1]
    turned = w.add("Transpose", [found], perm=[1, 0])
    return w.add("Greater", [turned, w.number(0.5)])
