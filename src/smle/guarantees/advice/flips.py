"""Label rules whose convex parts are all constant answers.

A head with room around it keeps only label patterns that are connected by single flips. If no label of a group
can flip while the others stay ("exactly one, by thresholds"; "a if and only if b"), every safe head answers with
one pattern, whatever the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smle.rules import Clause, Label, Literal, Specification

__all__ = ["constant_groups"]

SignedLabel = tuple[int, bool]
"""(label, True) reads "the label is on"."""

MAX_STEPS = 20_000


def constant_groups(
    spec: Specification, clauses: Iterable[Clause], pairs: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, ...]]:
    """Return groups of labels (tied by clauses) that may be on or off, but can never flip while the others stay.

    `pairs` are exclusions among the labels of the clauses. What takes too long to decide is left out.
    """
    names = {item.name for item in spec.outputs if isinstance(item, Label)}
    labels = {i for i, name in enumerate(spec.targets) if name in names}
    formula: list[frozenset[SignedLabel]] = []
    mixed: set[int] = set()
    for clause in clauses:
        read = [_signed(literal, labels) for literal in clause.literals]
        if all(item is not None for item in read):
            formula.append(frozenset(item for item in read if item is not None))
        else:
            mixed.update(i for literal in clause.literals for i, _ in literal.outputs)
    formula.extend(frozenset({(h, False), (k, False)}) for h, k in pairs)
    found = []
    for group in _components(formula):
        if group & mixed or len(group) < 2:
            continue
        own = [clause for clause in formula if any(label in group for label, _ in clause)]
        frozen = tuple(label for label in sorted(group) if _is_frozen(own, label))
        if frozen:
            found.append(frozen)
    return found


def _is_frozen(formula: Sequence[frozenset[SignedLabel]], label: int) -> bool:
    """Whether the rules leave a label open, and yet no pattern of the others allows both of its values."""
    if _can_flip(formula, label) is not False:
        return False
    return all(_solve([*formula, frozenset({(label, value)})], MAX_STEPS) for value in (False, True))


def _signed(literal: Literal, labels: set[int]) -> SignedLabel | None:
    """Read a literal about the sign of one logit; None if it says something else."""
    if len(literal.outputs) != 1 or literal.inputs or literal.bound != 0:
        return None
    ((label, value),) = literal.outputs
    # y < 0 is "off"; -y <= 0 is "on"
    if label not in labels or literal.strict != (value > 0):
        return None
    return label, value < 0


def _components(formula: Iterable[frozenset[SignedLabel]]) -> list[set[int]]:
    parent: dict[int, int] = {}

    def root(label: int) -> int:
        parent.setdefault(label, label)
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    for clause in formula:
        labels = [label for label, _ in clause]
        for label in labels:
            parent[root(label)] = root(labels[0])
    groups: dict[int, set[int]] = {}
    for label in list(parent):
        groups.setdefault(root(label), set()).add(label)
    return list(groups.values())


def _can_flip(formula: Sequence[frozenset[SignedLabel]], label: int) -> bool | None:
    """Whether some pattern of the other labels is allowed with the label on and with it off; None if unknown."""
    reduced = [frozenset(item for item in clause if item[0] != label) for clause in formula]
    if any(not clause for clause in reduced):
        return False
    return _solve(list(dict.fromkeys(reduced)), MAX_STEPS)


def _solve(formula: Sequence[frozenset[SignedLabel]], steps: int) -> bool | None:
    """Decide satisfiability by unit propagation and branching; None after too many steps."""
    stack: list[tuple[Sequence[frozenset[SignedLabel]], dict[int, bool]]] = [(formula, {})]
    while stack:
        steps -= 1
        if steps < 0:
            return None
        clauses, known = stack.pop()
        reduced = _propagate(clauses, dict(known))
        if reduced is None:
            continue
        if not reduced[0]:
            return True
        shortest = min(reduced[0], key=_size)
        label, value = next(iter(shortest))
        for choice in (not value, value):
            stack.append(([*reduced[0], frozenset({(label, choice)})], reduced[1]))
    return False


def _size(clause: frozenset[SignedLabel]) -> int:
    return len(clause)


def _propagate(
    clauses: Sequence[frozenset[SignedLabel]], known: dict[int, bool]
) -> tuple[list[frozenset[SignedLabel]], dict[int, bool]] | None:
    while True:
        left: list[frozenset[SignedLabel]] = []
        learned = False
        for clause in clauses:
            if any(known.get(label) is value for label, value in clause):
                continue
            rest = frozenset(item for item in clause if item[0] not in known)
            if not rest:
                return None
            if len(rest) == 1:
                ((label, value),) = rest
                known[label] = value
                learned = True
            else:
                left.append(rest)
        if not learned:
            return left, known
        clauses = left
