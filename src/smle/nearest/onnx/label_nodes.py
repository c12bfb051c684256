"""Allowed sets of labels near a model's logits, as ONNX nodes, for many rows at once.

The graph tries all sets if there are few; otherwise it walks the diagram of `nearest.label_diagrams`, in which rules
that may not apply are extra labels. Prices are rounded as in `label_search`, so that it finds sets of equal cost.
Without a diagram it only finds sets that obey.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.nearest.label_diagrams import DEAD, Diagram, diagram_of
from smle.nearest.label_search import DIGITS, SPLIT, LabelSearch, most_of
from smle.nearest.labels import NEVER, LabelBlock
from smle.nearest.onnx.gates import Gates
from smle.nearest.onnx.writer import Writer
from smle_check.onnx.graph import BOOL, DOUBLE, FLOAT, INT64

__all__ = ["label_points"]

Array = npt.NDArray[Any]
_OFF, _FAR = -1e15, 1e200  # the score of a label not to be kept; the cost of a broken rule
_ALL_LABELS, _ALL_SETS = 12, 4096  # up to this many labels, all sets are listed; most sets
_TIES = 50  # labels of a set whose order fits into one number
_MOST_LABELS = 1_000  # labels of implications that are printed as a diagram


def label_points(w: Writer, labels: LabelBlock, given: str, gates: Gates) -> str:
    """Return logits (k, rows) of the most likely allowed set of labels, if found."""
    on, k = gates.on() if len(labels.switches) else None, len(labels.outputs)
    logits = w.rows(given, labels.outputs.tolist())
    rules = gates.rules[labels.parts].tolist()
    sets = _listed(labels)
    if sets is not None:
        turned = _best_of(w, logits, labels, sets, None if on is None else w.rows(on, rules))
    elif on is not None and labels.switched is not None:
        turned = _switched(w, logits, labels, labels.switched, on)
    elif on is not None and not labels.words:
        turned = _from_the_top(w, logits, labels.pairs, [w.shaped(w.rows(on, [rule]), -1, 1) for rule in rules])
    else:  # sets that obey whichever rules apply
        turned = _searched(w, logits, labels.search(np.ones(len(labels.parts), dtype=bool)), k)
    up, down = w.add("Max", [logits, w.column(labels.least)]), w.add("Min", [logits, w.column(labels.most)])
    return w.add("Where", [turned, up, down])


def _listed(labels: LabelBlock) -> Array | None:
    """Return sets (P, k) that always contain the nearest allowed one, or None if there are too many."""
    k = len(labels.outputs)
    if k <= _ALL_LABELS:
        return np.array(list(product([True, False], repeat=k)))
    if len(labels.switches) or k > _TIES:
        return None
    pairs = np.concatenate([np.empty((0, 2), dtype=np.int32), *labels.pairs])
    diagram = diagram_of(k, labels.words, pairs.astype(np.intp))
    return None if diagram is None else diagram.sets(_ALL_SETS)


def _best_of(w: Writer, logits: str, labels: LabelBlock, sets: Array, on: str | None) -> str:
    """Return the most likely of some sets (P, k) that breaks no applicable part of the rules (None: all): (k, rows)."""
    both = [[[(int(a), False), (int(b), False)] for a, b in own] for own in labels.pairs]
    broken = np.zeros((len(sets), len(labels.parts)), dtype=np.float32)
    everything: list[Sequence[Sequence[tuple[int, bool]]]] = [*([clause] for clause in labels.words), *both]
    for part, listed in enumerate(everything):
        for clause in listed:
            broken[:, part] += ~np.any([sets[:, label] == state for label, state in clause], axis=0)
    if on is None:
        sets = sets[~broken.any(axis=1)]
    states, prices = _states(w, logits, len(labels.outputs))
    signed = w.add("Where", [states, prices, w.add("Neg", [prices])])
    score = w.add("MatMul", [w.constant(sets.astype(np.float64)), signed])
    if on is not None:
        lost = w.add("Cast", [w.add("MatMul", [w.constant(broken), on])], to=DOUBLE)
        score = w.add("Sub", [score, w.add("Mul", [lost, w.number(_FAR)])])
    most = w.reduced("ReduceMax", score, 0, keep=True)
    turning, having = (w.column(weights) for weights in _ties(labels))
    last = w.add("Add", [w.add("Where", [states, w.add("Neg", [turning]), turning]), having])
    order = w.add("MatMul", [w.constant(sets.astype(np.float64)), last])
    order = w.add("Where", [w.add("Equal", [score, most]), order, w.number(_FAR)])
    best = w.shaped(w.add("ArgMin", [order], axis=0, keepdims=0), -1)
    return w.add("Transpose", [w.add("Gather", [w.constant(sets), best], axis=0)], perm=[1, 0])


def _ties(labels: LabelBlock) -> tuple[Array, Array]:
    """Return what decides between sets of equal cost: weights of labels that are turned, or on."""
    k = len(labels.outputs)
    turning, having = np.zeros(k), np.zeros(k)
    if len(labels.switches):
        order = np.arange(k) if labels.switched is None else labels.switched.order
        turning[order[order < k]] = 2.0 ** np.arange(k)[::-1]
        return turning, having
    for part in labels.search(np.ones(len(labels.parts), dtype=bool)).parts:
        if isinstance(part.way, Diagram) and part.way.size:
            turning[part.labels[part.way.order]] = 2.0 ** np.arange(len(part.labels))[::-1]
        else:
            having[part.labels] = 1.0
    return turning, having


def _states(w: Writer, logits: str, k: int) -> tuple[str, str]:
    """Return which labels are on, and the price of turning each, rounded as in `prices_of`: (k, rows)."""
    on = w.add("GreaterOrEqual", [logits, w.number(0.0)])
    size = w.add("Mul", [w.add("Abs", [logits]), w.number(2.0**DIGITS)])
    size = w.add("Min", [size, w.number(most_of(k))])
    wide = w.add("Mul", [size, w.number(SPLIT)])
    coarse = w.add("Sub", [wide, w.add("Sub", [wide, size])])
    fine = w.add("Max", [w.add("Round", [size]), w.number(1.0)])
    large = w.add("GreaterOrEqual", [size, w.number(2.0**DIGITS)])
    return on, w.add("Where", [large, coarse, fine])


def _switched(w: Writer, logits: str, labels: LabelBlock, diagram: Diagram, on: str) -> str:
    """Return sets (k, rows) if some rules may not apply."""
    states, prices = _states(w, logits, len(labels.outputs))
    binds = w.add("Greater", [w.rows(on, labels.switches.tolist()), w.constant(np.float32(0.5))])
    rows = w.rows(prices, [0] * len(labels.switches))
    never = w.add("Add", [w.add("Sub", [rows, rows]), w.number(NEVER)])
    every = [w.add("Concat", pair, axis=0) for pair in ([states, binds], [prices, never])]
    found = _walked(w, diagram, every[0], w.add("Cast", [every[1]], to=INT64))
    return w.rows(found, list(range(len(labels.outputs))))


def _searched(w: Writer, logits: str, search: LabelSearch, k: int) -> str:
    """Return the nearest allowed sets (k, rows) that a search finds; without a diagram, sets that obey if possible."""
    on, sizes = _states(w, logits, k)
    prices = w.add("Cast", [sizes], to=INT64)
    fixed = search.fixed[:, None]
    if fixed.any():
        on = w.add("Where", [w.constant(fixed == 0), on, w.constant(fixed > 0)])
    for part in search.parts:
        diagram = part.way if isinstance(part.way, Diagram) else None
        if diagram is None and len(part.labels) <= _MOST_LABELS:
            diagram = diagram_of(len(part.labels), part.clauses, part.pairs)
        places = part.labels.tolist()
        if diagram is not None and diagram.size:
            found = _walked(w, diagram, w.rows(on, places), w.rows(prices, places))
        else:
            found = w.rows(on, places)
            if len(part.pairs):
                always = w.constant(np.ones((1, 1), dtype=np.float32))
                found = _from_the_top(w, w.rows(logits, places), [part.pairs], [always])
            found = _dropped(w, part.clauses, found, len(places))
        on = w.placed(part.labels, found, on)
    return on


def _walked(w: Writer, diagram: Diagram, on: str, prices: str) -> str:
    """Return the cheapest sets (k, rows): find the best from each node, from the last level up, then follow it down."""
    order, k = diagram.order, len(diagram.order)
    width = max(level.shape[1] for level in diagram.arcs)
    arcs = np.full((k, 2, width), width, dtype=np.int64)
    for i, level in enumerate(diagram.arcs):
        following = diagram.arcs[i + 1].shape[1] if i + 1 < k else 1
        arcs[i, :, : level.shape[1]] = np.where(level == following, width, level)
    keeps = w.rows(on, order[::-1].tolist())
    price = w.rows(prices, order[::-1].tolist())
    nothing = w.add("Sub", [price, price])
    costs = [w.add("Where", [keeps, one, other]) for one, other in ((price, nothing), (nothing, price))]
    first = w.rows(nothing, [0])  # (1, rows)
    dead = w.add("Add", [first, w.constant(np.int64(DEAD))])
    values = w.add("Concat", [first, *[dead] * width], axis=0)  # of the last node, then of dead ends

    def up(inner: Writer, names: list[str]) -> tuple[list[str], None, list[str]]:
        (value,), step = names, inner.step
        sides = []
        for side, cost in enumerate(costs):
            to = inner.add("Gather", [w.constant(arcs[::-1, side]), step], axis=0)
            sides.append(
                inner.add("Add", [inner.add("Gather", [value, to], axis=0), inner.add("Gather", [cost, step], axis=0)])
            )
        off, rise = sides
        kept = inner.add("Gather", [keeps, step], axis=0)
        less, equal = inner.add("Less", [rise, off]), inner.add("Equal", [rise, off])
        turned = inner.add("Or", [less, inner.add("And", [equal, kept])])
        # onnxruntime's Min of int64 compares some numbers above 2^31 as if they were negative.
        best, most = inner.add("Where", [turned, rise, off]), w.constant(np.int64(DEAD))
        best = inner.add("Where", [inner.add("Less", [best, most]), best, most])
        return [inner.add("Concat", [best, dead], axis=0)], None, [turned]

    _, turned = w.loop(k, [values], up, carries=[INT64], scans=[BOOL])  # (k, width, rows), from the last level up

    def down(inner: Writer, names: list[str]) -> tuple[list[str], None, list[str]]:
        (node,), step = names, inner.step  # (1, rows)
        back = inner.add("Sub", [w.constant(np.int64(k - 1)), step])
        chosen = inner.add("GatherElements", [inner.add("Gather", [turned, back], axis=0), node], axis=0)
        place = inner.add("Mul", [inner.add("Cast", [chosen], to=INT64), w.constant(np.int64(width))])
        flat = inner.add("Gather", [w.constant(arcs.reshape(k, -1)), step], axis=0)
        return [inner.add("Gather", [flat, inner.add("Add", [place, node])], axis=0)], None, [chosen]

    _, chosen = w.loop(k, [first], down, carries=[INT64], scans=[BOOL])  # (k, 1, rows)
    return w.rows(w.shaped(chosen, k, -1), np.argsort(order).tolist())


def _dropped(w: Writer, clauses: Sequence[Sequence[tuple[int, bool]]], on: str, k: int) -> str:
    """Turn labels off that imply others which are off: (k, rows). It obeys implications, but is not the nearest set."""
    implied: list[list[int]] = [[] for _ in range(k)]
    for clause in clauses:
        signs = sorted(clause, key=lambda literal: literal[1])
        if [state for _, state in signs] == [False, True]:
            implied[signs[0][0]].append(signs[1][0])
    most = max(map(len, implied))
    if not most:
        return on
    listed = np.array([[*own, *[k] * (most - len(own))] for own in implied], dtype=np.int64).reshape(-1).tolist()
    start = w.add("Cast", [on], to=FLOAT)

    def body(inner: Writer, names: list[str]) -> tuple[list[str], str, list[str]]:
        (own,) = names
        ones = inner.add("Add", [inner.reduced("ReduceMax", own, 0, keep=True), w.constant(np.float32(1))])
        padded = inner.add("Concat", [own, ones], axis=0)
        least = inner.reduced("ReduceMin", inner.shaped(inner.rows(padded, listed), k, most, -1), 1)
        left = inner.add("Min", [own, least])
        changed = inner.add("ReduceMax", [inner.add("Sub", [own, left])], keepdims=0)
        return [left], inner.add("Greater", [changed, w.constant(np.float32(0.5))]), []

    (left,) = w.loop(k, [start], body, carries=[FLOAT])
    return w.add("Greater", [left, w.constant(np.float32(0.5))])


def _from_the_top(w: Writer, logits: str, lists: Sequence[Array], active: Sequence[str]) -> str:
    """Keep labels from the highest score down, unless a kept one excludes them: (k, rows)."""
    k = max(int(pairs.max()) for pairs in lists) + 1
    graphs = []
    for pairs in lists:
        graph = np.zeros((k, k), dtype=np.float32)
        graph[pairs[:, 0], pairs[:, 1]] = graph[pairs[:, 1], pairs[:, 0]] = 1
        graphs.append(graph)
    positive = w.add("GreaterOrEqual", [logits, w.number(0.0)])
    open_ = w.add("Transpose", [w.add("Where", [positive, logits, w.number(_OFF)])], perm=[1, 0])  # (rows, k)
    kept = w.add("Sub", [open_, open_])

    def body(inner: Writer, names: list[str]) -> tuple[list[str], str, list[str]]:
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
        return [left, inner.add("Add", [chosen, inner.add("Cast", [own], to=DOUBLE)])], more, []

    found = w.loop(k, [open_, kept], body)[1]
    return w.add("Greater", [w.add("Transpose", [found], perm=[1, 0]), w.number(0.5)])
