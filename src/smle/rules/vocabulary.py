"""The meaning of names in a rule: columns of inputs and outputs, constants, categories and options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

from smle.errors import RuleError
from smle.rules.dates import date_text
from smle.rules.expressions import Day, Lookup, Name, Negative, Node, Num, Truth, quote, quote_name, to_text
from smle.rules.formula import Clause, Literal
from smle.rules.instead import did_you_mean
from smle.rules.lookups import Entry, entry_text, lookups_in, place_of
from smle.rules.shown import number_text
from smle.rules.specification import Categorical, Choice, Label, NumericInput, Rule, Specification
from smle_check.floats import FORMATS, nearest
from smle_check.names import looks, visible

__all__ = ["Vocabulary", "entries_of", "written"]


def written(node: Node) -> str | None:
    """Return a category or option as written (a name, a number, true or false), or None for anything else."""
    match node:
        case Name(name=name):
            return name
        case Num() | Day() | Truth() | Negative(operand=Num()):
            return to_text(node)
    return None


class Vocabulary:
    """The names that rules may use. Inputs, outputs and constants have different names.

    Constants share no name with categories and options. A category or option may have the name of an input or output:
    next to `==`, `!=` and `in` only a category or option can stand.

    Raises:
        RuleError: If a constant has the name of a category or an option.
    """

    def __init__(self, spec: Specification, hidden: Iterable[str] = ()) -> None:
        self._spec = spec
        self._hidden = frozenset(hidden)
        self.constants = dict(spec.constants)
        self.tables = {table.name: table for table in spec.tables}
        self.inputs = {item.name: item for item in spec.inputs}
        self.outputs = {item.name: item for item in spec.outputs}
        self.columns = {name: i for i, name in enumerate(spec.columns)}
        self.targets = {name: i for i, name in enumerate(spec.targets)}
        self.integral, self.dates = spec.integral, spec.dates
        self.labels = {name: self.targets[name] for name, item in self.outputs.items() if isinstance(item, Label)}
        self._refuse_ambiguous_constants()

    def _refuse_ambiguous_constants(self) -> None:
        constants = {look for name in self.constants for look in looks(name)}
        for item in (*self.inputs.values(), *self.outputs.values()):
            kind, known = _members(item)
            for name in known:
                if not constants.isdisjoint(looks(name)):
                    raise RuleError(
                        f"The name '{visible(name)}' is used twice: for {kind} of '{item.name}' and for a constant. "
                        "Rename one of them."
                    )

    @cached_property
    def inputs_only(self) -> Vocabulary:
        """The vocabulary of a `when`. It knows the outputs, to refuse them by name."""
        return Vocabulary(replace(self._spec, outputs=(), rules=()), hidden=self.outputs)

    @cached_property
    def _options(self) -> dict[str, list[str]]:
        """The choices that have each option, by option."""
        found: dict[str, list[str]] = {}
        for item in self.outputs.values():
            for option in _members(item)[1]:
                found.setdefault(option, []).append(item.name)
        return found

    def extent(self, inputs: Mapping[int, Fraction]) -> tuple[Fraction, Fraction]:
        """Return the least and largest value of a linear form of inputs, including at rounded ends of ranges."""
        low = high = Fraction(0)
        for item, place in self._spec.input_slices:
            factors = [inputs.get(i, Fraction(0)) for i in range(place.start, place.stop)]
            if not any(factors):
                continue
            if isinstance(item, Categorical):
                low, high = low + min(factors), high + max(factors)
                continue
            ends = (item.lower, item.upper)
            values = [factors[0] * v for end in ends for v in (end, *(nearest(end, fmt) for fmt in FORMATS))]
            low, high = low + min(values), high + max(values)
        return low, high

    def range_text(self, column: int) -> str:
        """Return "the range of 'income' is [0, 100]" for an input column."""
        item = next(item for item, place in self._spec.input_slices if place.start <= column < place.stop)
        ends = ", ".join(date_text(end) if item.dates else number_text(end) for end in (item.lower, item.upper))
        return f"the range of '{self._spec.columns[column]}' is [{ends}]"

    def unknown(self, name: str) -> RuleError:
        """Return the error for an unknown name."""
        if name in self._hidden:
            return RuleError(
                f"'{name}' is an output. A 'when' mentions inputs only; write '... implies ...' in 'then' instead."
            )
        for item in (*self.inputs.values(), *self.outputs.values()):
            kind, options = _members(item)
            if name in options:
                return RuleError(f"'{name}' is {kind} of '{item.name}'. Write '{item.name} == {name}'.")
        if name in self.tables:
            return RuleError(f"'{name}' is a table. Write '{name}[{', '.join(self.tables[name].keys)}]'.")
        if name.lower() in ("missing", "known", "null", "none", "nan"):
            return RuleError(f"Unknown name '{name}'. Whether an input is missing is written 'NAME is missing'.")
        known = [*self.inputs, *self.outputs, *self.constants, *self.tables]
        return RuleError(f"Unknown name '{name[:80]}'.{did_you_mean(name, known)}")

    def group(self, node: Node) -> Categorical | Choice | None:
        """Return the categorical input or choice that a node names, if any."""
        if isinstance(node, Name):
            item = self.inputs.get(node.name) or self.outputs.get(node.name)
            if isinstance(item, Categorical | Choice):
                return item
        return None

    def member(self, group: Categorical | Choice, node: Node) -> int:
        """Return the input or output column of the category or option that a node names."""
        kind, known = _members(group)
        text = written(node)
        if text is None:
            squeezed = to_text(node).replace(" ", "")
            meant = next((name for name in known if name.replace(" ", "") == squeezed), None)
            hint = "" if meant is None else f", which computes. Put the name in backticks: `{meant}`"
            raise RuleError(f"Expected {kind} of '{group.name}'. Got {quote(node)}{hint}.")
        columns = self.columns if isinstance(group, Categorical) else self.targets
        if text not in known and isinstance(node, Num | Negative):
            equal = [k for k in known if _same_number(k, text)]
            if len(equal) > 1:
                listed = ", ".join(f"'{k}'" for k in equal)
                raise RuleError(f"{text[:80]} may mean {listed} of '{group.name}'. Write the one you mean in quotes.")
            text = equal[0] if equal else text
        if text not in known:
            raise RuleError(f"'{text[:80]}' is not {kind} of '{group.name}'.{did_you_mean(text, known)}")
        return columns[f"{group.name}={text}"]

    def looked_up(self, node: Lookup) -> tuple[dict[int, Fraction], Fraction]:
        """Return `table[keys]` as a linear form over the columns of one input, plus a constant."""
        table = self.tables.get(node.table)
        if table is None:
            raise RuleError(f"'{node.table[:80]}' is not a table.{did_you_mean(node.table, list(self.tables))}")
        expected = f"{table.name}[{', '.join(table.keys)}]"
        if len(node.keys) != len(table.keys):
            raise RuleError(f"Expected {len(table.keys)} keys, as in '{expected}'. Got {quote(node)}.")
        fixed: list[int | None] = []
        groups = [self.inputs[key] for key in table.keys]
        for key, own in zip(node.keys, groups, strict=True):
            assert isinstance(own, Categorical)
            if isinstance(key, Name) and self.group(key) is not None and key.name != own.name:
                raise RuleError(
                    f"Expected '{own.name}' or one of its categories, as in '{expected}'. Got {quote(node)}."
                )
            fixed.append(None if key == Name(own.name) else self.member(own, key) - self.members(own).start)
        open_ = [own for own, place in zip(groups, fixed, strict=True) if place is None]
        if len(open_) > 1:
            raise RuleError(
                f"{quote(node)} looks up by several inputs at once. Put this lookup into a rule of its own."
            )
        sizes = [len(own.columns) for own in groups]
        found = [table.values[place] for place in place_of(table, fixed, sizes)]
        if not open_:
            return {}, found[0]
        assert isinstance(open_[0], Categorical)
        return {k: value for k, value in zip(self.members(open_[0]), found, strict=True) if value}, Fraction(0)

    def members(self, group: Categorical | Choice) -> range:
        """Return all columns of a categorical input or a choice."""
        places = self.columns if isinstance(group, Categorical) else self.targets
        return range(places[group.columns[0]], places[group.columns[-1]] + 1)

    def missing(self, name: str) -> tuple[Literal, list[Literal]]:
        """Return "the input is missing" as a literal over its flag, and the literals of its stand-in value."""
        item = self.inputs.get(name)
        if item is None:
            if name in self.outputs:
                raise RuleError(f"'{name}' is an output. Only inputs can be missing.")
            raise self.unknown(name)
        if item.missing is None:
            categories = f"categories: [{item.categories[0]}, ...]" if isinstance(item, Categorical) else "range: ..."
            value = item.categories[0] if isinstance(item, Categorical) else "VALUE"
            raise RuleError(
                f"'{name} is missing' never holds: rows without '{name}' are refused. State what stands in for a "
                f"missing value, as in {quote_name(name)}: {{{categories}, missing: {value}}}."
            )
        one, column = Fraction(1), self.columns.get(name)
        asked = Literal((), ((self._spec.flag_columns[name], -one),), -one)
        if isinstance(item, NumericInput) and column is not None and item.missing is not None:
            above = [] if item.missing == item.lower else [Literal((), ((column, -one),), -item.missing)]
            below = [] if item.missing == item.upper else [Literal((), ((column, one),), item.missing)]
            return asked, [*above, *below]
        return asked, [Literal((), ((self.columns[f"{name}={item.missing}"], -one),), -one)]

    def score(self, arguments: tuple[Node, ...]) -> int:
        """Return the output column of `score(option)` or `score(choice, option)`."""
        self._refuse_outputs("score")
        if len(arguments) == 2:
            group = self.group(arguments[0])
            if not isinstance(group, Choice):
                raise RuleError(f"Expected a choice as the first of two arguments of score. Got {quote(arguments[0])}.")
            return self.member(group, arguments[1])
        text = written(arguments[0])
        if len(arguments) != 1 or text is None:
            raise RuleError("Expected score(option) or score(choice, option).")
        owners = self._options.get(text, [])
        if len(owners) == 1:
            return self.targets[f"{owners[0]}={text}"]
        if owners:
            listed = ", ".join(f"'{o}'" for o in owners)
            raise RuleError(f"Option '{text}' belongs to several choices: {listed}. Write score({owners[0]}, {text}).")
        if text in self.labels:
            raise RuleError(f"'{text}' is a label. Write logit({text}).")
        raise RuleError(f"'{text[:80]}' is not an option of a choice.{did_you_mean(text, list(self._options))}")

    def _refuse_outputs(self, function: str) -> None:
        if self._hidden:
            raise RuleError(f"{function}(...) is about outputs. A 'when' mentions inputs only.")

    def logit(self, arguments: tuple[Node, ...]) -> int:
        """Return the output column of `logit(label)`."""
        self._refuse_outputs("logit")
        text = written(arguments[0])
        if len(arguments) != 1 or text is None:
            raise RuleError("Expected logit(label).")
        if text not in self.labels:
            raise RuleError(f"'{text[:80]}' is not a label.{did_you_mean(text, list(self.labels))}")
        return self.labels[text]


def _members(item: object) -> tuple[str, tuple[str, ...]]:
    """Return what the members of an input or output are called, and their names; none for numbers and labels."""
    if isinstance(item, Categorical):
        return "a category", item.categories
    return "an option", item.options if isinstance(item, Choice) else ()


def _same_number(category: str, text: str) -> bool:
    try:
        return len(category) < 40 and Fraction(category) == Fraction(text)
    except (ValueError, ZeroDivisionError):
        return False


def entries_of(spec: Specification) -> tuple[list[list[Entry]], ...]:
    """Return the tables that each clause of each rule looks numbers up in; most clauses have none.

    A clause that reads a multiple of one table names that table; otherwise it names all tables it may read.
    """
    names = Vocabulary(spec)
    found = ((rule, [*_looked_up(rule, names)]) for rule in spec.rules)
    return tuple([_entries(clause, own) for clause in rule.requirement.clauses] for rule, own in found)


def _looked_up(rule: Rule, names: Vocabulary) -> Iterator[tuple[Entry, Mapping[int, Fraction]]]:
    """Yield the tables that a rule looks up by an input, each with its numbers by column."""
    for lookup in lookups_in(*rule.trees):
        for i, name in enumerate(names.tables[lookup.table].keys):
            group = names.inputs[name]
            if lookup.keys[i] == Name(name) and isinstance(group, Categorical):
                columns, keys = names.members(group), [written(key) or "" for key in lookup.keys]
                each = ((*keys[:i], category, *keys[i + 1 :]) for category in group.categories)
                texts = tuple(entry_text(lookup.table, own) for own in each)
                yield Entry(slice(columns.start, columns.stop), texts), names.looked_up(lookup)[0]


def _entries(clause: Clause, found: Sequence[tuple[Entry, Mapping[int, Fraction]]]) -> list[Entry]:
    own: list[Entry] = []
    for literal in clause.literals:
        near: list[tuple[Entry, bool]] = []
        for entry, values in found:
            read = {k: v for k, v in literal.inputs if entry.columns.start <= k < entry.columns.stop}
            multiple = read.keys() == values.keys() and len({read[k] / v for k, v in values.items()}) == 1
            near += [(entry, multiple)] if read else []
        same = [entry for entry, multiple in near if multiple]
        own += [entry for entry in same or [entry for entry, _ in near] if entry not in own]
    return own
