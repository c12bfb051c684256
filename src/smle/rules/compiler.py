"""Compile the `when` of a rule to regions and its `then` to a requirement, in bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from smle.errors import RuleError
from smle.rules.exclusions import SPELLED_OUT, NeverTogether, spelled_out, summary
from smle.rules.expressions import COUNTS, And, Call, Name, Node, quote, to_text
from smle.rules.formula import CNF, Clause, Literal, Polytope, Row, is_held
from smle.rules.normalize import All, Formula, Some, counted, normal_form
from smle.rules.specification import Rule
from smle.rules.vocabulary import Vocabulary

__all__ = [
    "MAX_CLAUSES",
    "MAX_LITERALS",
    "MAX_REGIONS",
    "compile_rule",
    "distribute",
    "plainly_empty",
    "regions_of_rule",
    "tightest",
]

MAX_REGIONS = 1_000
MAX_CLAUSES = 10_000
MAX_LITERALS = 2_000
_MAX_TOTAL = 500_000

Terms = list[tuple[Literal, ...]]


def compile_rule(name: str, when: Node | None, then: Node | NeverTogether, names: Vocabulary) -> Rule:
    """Compile a rule to its regions and its requirement. A RuleError names the rule and the part."""
    try:
        part = "when"
        regions = [()] if when is None else _regions(when, names)
        part = "then"
        if isinstance(then, NeverTogether):
            labels = list(names.labels)
            numbers = then.numbers(labels)
            if len(numbers) > SPELLED_OUT:
                columns = np.array(list(names.labels.values()), dtype=np.int32)[numbers]
                text = None if when is None else to_text(when)
                return Rule(name, _polytopes(regions, names), CNF((), columns), text, summary(numbers), (when, None))
            then = spelled_out(numbers, labels)
        terms, pairs = _requirement(then, names)
        terms, moved = _separate(terms, pairs)
        terms, more = _exclusions(terms, names)
        pairs = np.concatenate([pairs, more])
        regions = [(*region, *moved) for region in regions]
        _refuse_equalities(terms, names)
        requirement = CNF(tuple(map(Clause, terms)), pairs)
    except RuleError as error:
        raise RuleError(f"Rule '{name}', {part}: {error}") from None
    polytopes = _polytopes(regions, names)
    text = None if when is None else to_text(when)
    return Rule(name, polytopes, requirement, text, to_text(then), (when, then))


def regions_of_rule(when: Node | None, names: Vocabulary) -> tuple[Polytope, ...]:
    """Return the regions where a rule with this `when` applies."""
    return _polytopes([()] if when is None else _regions(when, names), names)


def distribute(formula: Formula, outer: type[All] | type[Some], most: int, *, longest: int = MAX_LITERALS) -> Terms:
    """Return an AND of ORs (`outer` is All) or an OR of ANDs (`outer` is Some) as a list of tuples of literals.

    Raises RuleError if there would be more than `most` terms, or a term longer than `longest`.
    """
    if isinstance(formula, Literal):
        return [(formula,)]
    lists = [distribute(part, outer, most, longest=longest) for part in formula.parts]
    if isinstance(formula, outer):
        _refuse_growth(sum(map(len, lists)), sum(len(term) for part in lists for term in part), most)
        return [term for part in lists for term in part]
    # parts with a single term go into every product at once
    joined = [tuple(literal for part in lists if len(part) == 1 for literal in part[0])]
    for part in sorted((part for part in lists if len(part) != 1), key=len):
        total = sum(map(len, joined)) * len(part) + sum(map(len, part)) * len(joined)
        _refuse_growth(len(joined) * len(part), total, most)
        joined = [(*left, *right) for left in joined for right in part]
    if any(len(term) > longest for term in joined):
        raise RuleError(f"Expected at most {longest:,} comparisons in one 'or'. Got more. Split the rule.")
    return joined


def _refuse_growth(terms: int, total: int, most: int) -> None:
    if terms > most or total > _MAX_TOTAL:
        raise RuleError(
            f"Distributing 'and' over 'or' gives more than {most:,} parts, or {_MAX_TOTAL:,} comparisons in all. "
            "Split the rule into simpler ones."
        )


def _regions(when: Node, names: Vocabulary) -> Terms:
    terms = distribute(normal_form(when, names.inputs_only, conjunctive=False), Some, MAX_REGIONS)
    if not terms:
        raise RuleError(f"{quote(when)} is never true, so the rule never applies.")
    return terms


def _polytopes(regions: Iterable[tuple[Literal, ...]], names: Vocabulary) -> tuple[Polytope, ...]:
    """Drop repeated, contained and plainly empty regions; if all are empty, keep one."""
    rows = [tightest(region, names) for region in regions]
    kept = [region for region in rows if not plainly_empty(region)] or rows[:1]
    half_spaces = (tuple(Row(own.inputs, own.bound, own.strict) for own in region) for region in kept)
    polytopes = list(dict.fromkeys(map(Polytope, half_spaces)))
    if len(polytopes) <= 300:
        sets = [frozenset(p.rows) for p in polytopes]
        polytopes = [p for p, s in zip(polytopes, sets, strict=True) if not any(other < s for other in sets)]
    return tuple(polytopes)


def tightest(region: Iterable[Literal], names: Vocabulary) -> list[Literal]:
    """Return conditions on inputs, keeping the tightest of parallel ones; over whole numbers, bounds are whole."""
    return _apart((_whole(literal, names) for literal in region), min)


def _whole(literal: Literal, names: Vocabulary) -> Literal:
    """Round the bound of a condition to a whole number if all its columns are whole numbers."""
    if not all(index in names.integral for index, _ in literal.inputs):
        return literal
    scale = Fraction(
        math.lcm(*(v.denominator for _, v in literal.inputs)), math.gcd(*(v.numerator for _, v in literal.inputs))
    )
    bound = literal.bound * scale
    whole = math.ceil(bound) - 1 if literal.strict else math.floor(bound)
    return replace(literal, bound=whole / scale, strict=False)


def _apart(literals: Iterable[Literal], pick: Callable[..., Literal]) -> list[Literal]:
    """Keep one of parallel literals: the tightest if `pick` is min, the loosest if it is max."""
    parallel: dict[object, list[Literal]] = {}
    for literal in literals:
        parallel.setdefault((literal.outputs, literal.inputs), []).append(literal)
    return [pick(own, key=lambda literal: (literal.bound, not literal.strict)) for own in parallel.values()]


def plainly_empty(region: Iterable[Literal]) -> bool:
    """Return whether two opposite conditions leave nothing between them."""
    return any(gap < 0 or (gap == 0 and strict > 0) for gap, strict in _gaps(region))


def _gaps(literals: Iterable[Literal]) -> Iterator[tuple[Fraction, int]]:
    """Yield how far the borders of opposite literals lie apart, and how many of the two are strict."""
    known = {(literal.outputs, literal.inputs): literal for literal in literals}
    for literal in known.values():
        other = literal.negated
        opposite = known.get((other.outputs, other.inputs))
        if opposite is not None:
            yield literal.bound + opposite.bound, literal.strict + opposite.strict


def _requirement(then: Node, names: Vocabulary) -> tuple[Terms, npt.NDArray[np.int32]]:
    """Return clauses and exclusions, without creating clause objects for large groups of labels."""
    pairs: list[npt.NDArray[np.int32]] = []
    formulas: list[Formula] = []
    for part in then.parts if isinstance(then, And) else (then,):
        group = _label_group(part, names)
        if group is None:
            formulas.append(normal_form(part, names))
            continue
        least, most, labels = group
        if most == 1:
            high, low = np.triu_indices(len(labels), 1)
            columns = np.array(labels, dtype=np.int32)
            pairs.append(np.stack([columns[high], columns[low]], axis=1))
        if least == 1:
            formulas.append(Some(tuple(Literal.of_sign(column, True) for column in labels)))
    terms = distribute(All(tuple(formulas)), All, MAX_CLAUSES)
    if any(not term for term in terms):
        raise RuleError(f"{quote(then)} can never hold: a part of it is always false.")
    clauses = [c for c in (_clause(term) for term in terms) if c is not None]
    clauses = _absorbed(list(dict.fromkeys(clauses)))
    found = np.concatenate(pairs) if pairs else np.empty((0, 2), dtype=np.int32)
    if not clauses and not len(found):
        raise RuleError(f"{quote(then)} is always true, so it has no effect.")
    return clauses, found


def _label_group(node: Node, names: Vocabulary) -> tuple[int, int, list[int]] | None:
    """Return (least, most, label columns) if a node counts distinct labels and least or most is 1, else None."""
    if not isinstance(node, Call) or node.function not in COUNTS:
        return None
    least, most, conditions = counted(node, names)
    columns = [names.labels[c.name] for c in conditions if isinstance(c, Name) and c.name in names.labels]
    if 1 not in (least, most) or len(columns) != len(conditions) or len(set(columns)) != len(columns):
        return None
    return least, most, columns


def _clause(term: tuple[Literal, ...]) -> tuple[Literal, ...] | None:
    """Keep the loosest of parallel literals; return None if two opposite ones cover everything."""
    loosest = _apart(term, max)
    return None if any(gap > 0 or (gap == 0 and strict < 2) for gap, strict in _gaps(loosest)) else tuple(loosest)


def _exclusions(clauses: Terms, names: Vocabulary) -> tuple[Terms, npt.NDArray[np.int32]]:
    """Split off the clauses that are `y_h < 0 or y_k < 0` for two labels."""
    labels = set(names.labels.values())
    rest: Terms = []
    pairs: list[tuple[int, int]] = []
    for clause in clauses:
        signs = [literal.sign for literal in clause]
        columns = [s[0] for s in signs if s is not None and not s[1] and s[0] in labels]
        if len(clause) == 2 and len(columns) == 2:
            pairs.append((columns[0], columns[1]))
        else:
            rest.append(clause)
    return rest, np.array(pairs, dtype=np.int32).reshape(-1, 2)


def _absorbed(clauses: Terms) -> Terms:
    """Drop clauses that contain another clause: they are implied by it."""
    if not 1 < len(clauses) <= 500:
        return clauses
    sets = [frozenset(clause) for clause in clauses]
    keep = []
    for index, (clause, mine) in enumerate(zip(clauses, sets, strict=True)):
        if not any(other < mine or (other == mine and j < index) for j, other in enumerate(sets)):
            keep.append(clause)
    return keep


def _separate(terms: Terms, pairs: npt.NDArray[np.int32]) -> tuple[Terms, tuple[Literal, ...]]:
    """Move a condition on inputs that all clauses share, `(x not in P) or ...`, into the region as `x in P`."""
    conditions = {frozenset(a for a in clause if not a.outputs) for clause in terms}
    if len(pairs) and terms:
        conditions.add(frozenset())
    if len(conditions) > 1:
        raise RuleError(
            "The condition on inputs applies to only a part of the requirement. "
            "Put it into 'when', in a rule of its own."
        )
    (shared,) = conditions or {frozenset()}
    if not shared:
        return terms, ()
    rest = [tuple(a for a in clause if a.outputs) for clause in terms]
    if any(not clause for clause in rest):
        raise RuleError("The requirement mentions no output. A rule says what the outputs must be.")
    order = [a for a in terms[0] if a in shared]
    return rest, tuple(a.negated for a in order)


def _refuse_equalities(terms: Terms, names: Vocabulary) -> None:
    """Refuse equalities among alternatives, and equalities written as two inequalities."""
    targets = list(names.targets)

    def named(literal: Literal) -> str:
        return " and ".join(f"'{targets[i]}'" for i, _ in literal.outputs[:3])

    for clause in terms:
        tied = [literal for literal in clause if literal.equal and not is_held(literal)]
        if len(clause) > 1 and tied:
            own = tied[0]
            raise RuleError(
                f"It requires exact equality of {named(own)} as one of several alternatives, which is not supported "
                "yet. State the equality in a rule of its own, or state a tolerance."
            )
    singles = {clause[0]: clause[0] for clause in terms if len(clause) == 1 and not clause[0].strict}
    for literal in singles:
        opposite = singles.get(literal.opposite)
        if opposite is not None and not (literal.equal and opposite.equal) and not is_held(literal):
            raise RuleError(
                f"It requires exact equality of {named(literal)} by two inequalities. Write '==' if that is meant (the "
                "outputs are then served in steps), or state a tolerance, for example 'abs(y1 - y2) <= 0.01'."
            )
