"""VNN-LIB 1.0 in and out, exactly.

A VNN-LIB file asserts a counterexample: inputs in a region and outputs that must not be. Reading it gives the
rule that forbids it: each way `x in P and g_1(x, y) <= 0 and ...` of meeting the assertions becomes the clause
`g_1 > 0 or ...` over the region P. Ways that share a region share a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from smle.errors import RuleError
from smle.rules.build import build, to_fraction
from smle.rules.compiler import distribute
from smle.rules.expressions import Call, Compare, Name, Node, add, conjunction, disjunction, multiply
from smle.rules.normalize import All, Atom, Formula, Some, complement, normal_form
from smle.rules.operators import node_of
from smle.rules.polytope import Linear
from smle.rules.sexpressions import Declared, read_assertions
from smle.rules.specification import Choice, Label, Number, NumericInput, RuleText, Specification
from smle.rules.vnnlib_writer import write_vnnlib
from smle.rules.vocabulary import Vocabulary

__all__ = ["read_vnnlib", "write_vnnlib"]

_MAX_WAYS = 10_000
_MAX_BYTES = 64 * 2**20
Atoms = tuple[Atom, ...]


class _Property(NamedTuple):
    """What one file forbids: for each requirement (a tuple of clauses) the regions where it is asked."""

    name: str
    sizes: tuple[int, int]
    asked: dict[tuple[Atoms, ...], list[Atoms]]


def read_vnnlib(
    *sources: str | PathLike[str],
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
) -> Specification:
    """Read VNN-LIB 1.0 files (paths, or texts with a line break) into one specification.

    Args:
        sources: Files over the same inputs X_0, X_1, ... and outputs Y_0, Y_1, ...
        inputs: The domain: name to (low, high), in the order of X_0, X_1, ...; or a list of (low, high). Default:
            the box around all regions; an input that is held at one value v gets [v - 1, v + 1].
        outputs: Names of the outputs, or Number, Label and Choice objects with as many columns.

    Raises:
        RuleError: If a file cannot be read; the message names the file.
    """
    if not sources:
        raise RuleError("Expected at least one VNN-LIB file. Got none.")
    properties = [_read_one(source, index) for index, source in enumerate(sources)]
    sizes = properties[0].sizes
    for other in properties[1:]:
        if other.sizes != sizes:
            raise RuleError(
                f"Expected files over the same network. '{properties[0].name}' has {sizes[0]} inputs and {sizes[1]} "
                f"outputs, '{other.name}' has {other.sizes[0]} and {other.sizes[1]}."
            )
    made_inputs = _domain(properties, inputs)
    made_outputs = _outputs(outputs, sizes[1])
    x = [Name(item.name) for item in made_inputs]
    y = [node for item in made_outputs for node in _columns(item)]
    rules = [rule for item in properties for rule in _rules(item, x, y)]
    return build(inputs=made_inputs, outputs=made_outputs, rules=_renamed(rules))


def _read_one(source: str | PathLike[str], index: int) -> _Property:
    if isinstance(source, str) and "\n" in source:
        name, text = f"property {index + 1}", source
    else:
        path = Path(source)
        name = path.stem
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise RuleError(f"{path.name}: expected at most {_MAX_BYTES:,} bytes. Got {path.stat().st_size:,}.")
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise RuleError(f"{path.name}: expected a text file in UTF-8. Got other bytes.") from None
        except (OSError, ValueError) as error:
            if isinstance(error, RuleError):
                raise
            raise RuleError(f"Cannot read '{path}': {getattr(error, 'strerror', None) or error}.") from None
    try:
        declared, assertions = read_assertions(text)
        return _Property(name, (declared.inputs, declared.outputs), _forbidden(declared, assertions))
    except RuleError as error:
        raise RuleError(f"{name}: {error}") from None
    except RecursionError:
        raise RuleError(f"{name}: the assertions are nested too deeply.") from None


def _forbidden(declared: Declared, assertions: Sequence[Node]) -> dict[tuple[Atoms, ...], list[Atoms]]:
    """Return the requirements that forbid the assertions, each with its regions."""
    zero, one = Fraction(0), Fraction(1)
    names = Vocabulary(
        [NumericInput(f"X_{i}", zero, one) for i in range(declared.inputs)],
        [Number(f"Y_{i}") for i in range(declared.outputs)],
        {},
    )
    about_inputs: list[Formula] = []
    others: list[Formula] = []
    for assertion in assertions:
        formula = normal_form(assertion, names)
        for part in formula.parts if isinstance(formula, All) else (formula,):
            (others if _mentions_output(part) else about_inputs).append(part)
    regions = distribute(All(tuple(about_inputs)), Some, _MAX_WAYS, longest=200_000)
    ways = distribute(All(tuple(others)), Some, _MAX_WAYS)
    if len(regions) * len(ways) > _MAX_WAYS:
        raise RuleError(f"Expected at most {_MAX_WAYS:,} ways of meeting the assertions. Got more.")
    clauses: dict[frozenset[Atom], tuple[Atoms, list[Atoms]]] = {}
    for region in regions:
        for way in ways:
            rows = _tight((*region, *(a for a in way if not a.outputs)))
            if _plainly_empty(rows):
                continue
            forbidden = tuple(dict.fromkeys(complement(a) for a in way if a.outputs))
            if not forbidden:
                raise RuleError("The assertions can be met whatever the outputs are, so no output could avoid them.")
            clauses.setdefault(frozenset(rows), (rows, []))[1].append(forbidden)
    if not clauses:
        raise RuleError("The assertions can never be met, so the file forbids nothing.")
    asked: dict[tuple[Atoms, ...], list[Atoms]] = {}
    for rows, required in clauses.values():
        asked.setdefault(tuple(dict.fromkeys(required)), []).append(rows)
    return asked


def _mentions_output(formula: Formula) -> bool:
    if isinstance(formula, Atom):
        return bool(formula.outputs)
    return any(_mentions_output(part) for part in formula.parts)


def _tight(atoms: Iterable[Atom]) -> Atoms:
    """Keep the tightest of parallel conditions on inputs."""
    best: dict[Linear, Atom] = {}
    for atom in atoms:
        old = best.get(atom.inputs)
        if old is None or (atom.bound, not atom.strict) < (old.bound, not old.strict):
            best[atom.inputs] = atom
    return tuple(best.values())


def _plainly_empty(rows: Atoms) -> bool:
    """Whether two opposite conditions leave nothing between them: that way of meeting the assertions is none."""
    known = {atom.inputs: atom for atom in rows}
    for atom in rows:
        opposite = known.get(tuple((i, -v) for i, v in atom.inputs))
        if opposite is not None:
            gap = atom.bound + opposite.bound
            if gap < 0 or (gap == 0 and (atom.strict or opposite.strict)):
                return True
    return False


def _domain(properties: Sequence[_Property], stated: Any) -> tuple[NumericInput, ...]:
    count = properties[0].sizes[0]
    if stated is not None:
        listed = isinstance(stated, Sequence) and not isinstance(stated, str)
        items = stated if isinstance(stated, Mapping) else {f"X_{i}": r for i, r in enumerate(stated if listed else ())}
        if len(items) != count:
            raise RuleError(f"Expected ranges of {count} inputs. Got {len(items)}.")
        return tuple(_ranged(str(name), ends) for name, ends in items.items())
    boxes = [_box(rows, item.name, count) for item in properties for found in item.asked.values() for rows in found]
    made = []
    for i in range(count):
        lower, upper = min(box[i][0] for box in boxes), max(box[i][1] for box in boxes)
        if lower == upper:  # a range needs a width; a wider domain leaves the regions as they are
            lower, upper = lower - 1, upper + 1
        made.append(NumericInput(f"X_{i}", lower, upper))
    return tuple(made)


def _ranged(name: str, ends: Any) -> NumericInput:
    if isinstance(ends, NumericInput):
        return ends
    if isinstance(ends, str) or not isinstance(ends, Sequence) or len(ends) != 2:
        raise RuleError(f"Input '{name}': expected a range (low, high). Got {ends!r:.80}.")
    return NumericInput(name, to_fraction(ends[0], f"Input '{name}'"), to_fraction(ends[1], f"Input '{name}'"))


def _box(rows: Atoms, name: str, count: int) -> list[tuple[Fraction, Fraction]]:
    """Return the box that the comparisons of one input with a constant make."""
    lower: dict[int, Fraction] = {}
    upper: dict[int, Fraction] = {}
    for atom in rows:
        if len(atom.inputs) == 1:
            (index, sign), bound = atom.inputs[0], atom.bound
            if sign > 0:
                upper[index] = bound
            else:
                lower[index] = -bound
    for i in range(count):
        if i not in lower or i not in upper:
            raise RuleError(f"{name}: X_{i} has no finite range in the file. State the domain with inputs=...")
    return [(lower[i], upper[i]) for i in range(count)]


def _outputs(stated: Sequence[Any] | None, count: int) -> tuple[Number | Label | Choice, ...]:
    items = [f"Y_{i}" for i in range(count)] if stated is None else list(stated)
    made = tuple(item if isinstance(item, Number | Label | Choice) else Number(str(item)) for item in items)
    width = sum(len(item.options) if isinstance(item, Choice) else 1 for item in made)
    if width != count:
        raise RuleError(f"Expected outputs with {count} columns in all. Got {width}.")
    return made


def _columns(item: Number | Label | Choice) -> list[Node]:
    if isinstance(item, Choice):
        return [Call("score", (Name(item.name), Name(option))) for option in item.options]
    return [Call("logit", (Name(item.name),))] if isinstance(item, Label) else [Name(item.name)]


def _rules(item: _Property, x: Sequence[Node], y: Sequence[Node]) -> list[RuleText]:
    made = []
    for index, (required, regions) in enumerate(item.asked.items()):
        name = item.name if len(item.asked) == 1 else f"{item.name} ({index + 1})"
        when = None if any(not rows for rows in regions) else disjunction(_ranges(rows, x) for rows in regions)
        then = conjunction(disjunction(comparison(a, x, y) for a in clause) for clause in required)
        made.append(RuleText(name, when, then))
    return made


def _renamed(rules: Sequence[RuleText]) -> list[RuleText]:
    """Number the rules of files with the same name apart."""
    used: dict[str, int] = {}
    made = []
    for rule in rules:
        used[rule.name] = used.get(rule.name, 0) + 1
        made.append(rule if used[rule.name] == 1 else RuleText(f"{rule.name} #{used[rule.name]}", rule.when, rule.then))
    return made


def _ranges(rows: Atoms, x: Sequence[Node]) -> Node:
    """Return the rows of a region as text would have them: `0.6 <= X_0 <= 0.7 and ...`."""
    known = {atom.inputs: atom for atom in rows}
    parts: list[Node] = []
    done: set[Linear] = set()
    for atom in rows:
        if atom.inputs in done:
            continue
        opposite = known.get(tuple((i, -v) for i, v in atom.inputs))
        done.add(atom.inputs)
        if len(atom.inputs) > 1 or opposite is None:
            parts.append(comparison(atom, x, ()))
            continue
        done.add(opposite.inputs)
        low, high = (opposite, atom) if atom.inputs[0][1] > 0 else (atom, opposite)
        if -low.bound == high.bound and not (low.strict or high.strict):
            parts.append(Compare((x[atom.inputs[0][0]], node_of(high.bound)), ("==",)))
            continue
        operands = (node_of(-low.bound), x[atom.inputs[0][0]], node_of(high.bound))
        parts.append(Compare(operands, ("<" if low.strict else "<=", "<" if high.strict else "<=")))
    return conjunction(parts)


def comparison(atom: Atom, x: Sequence[Node], y: Sequence[Node]) -> Node:
    """Return an atom as a comparison without minus signs: positive terms on the left, negative ones on the right."""
    terms = [(v, y[i]) for i, v in atom.outputs] + [(v, x[i]) for i, v in atom.inputs]
    left, right = [t for t in terms if t[0] > 0], [(-v, n) for v, n in terms if v < 0]
    operator = "<" if atom.strict else "<="
    if not left:
        left, right, operator = right, left, ">" if atom.strict else ">="
        return Compare((_sum(left), node_of(-atom.bound)), (operator,))
    if not right:
        return Compare((_sum(left), node_of(atom.bound)), (operator,))
    end = _sum(right) if not atom.bound else add(_sum(right), [(1 if atom.bound > 0 else -1, node_of(abs(atom.bound)))])
    return Compare((_sum(left), end), (operator,))


def _sum(terms: Sequence[tuple[Fraction, Node]]) -> Node:
    nodes = [node if value == 1 else multiply(node_of(value), [("*", node)]) for value, node in terms]
    return add(nodes[0], ((1, node) for node in nodes[1:]))
