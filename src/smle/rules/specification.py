"""Specification: inputs with ranges, outputs, and rules `x in Q => y in R`, in the user's units and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from smle.errors import RuleError
from smle.rules.dates import date_text
from smle.rules.expressions import Node
from smle.rules.formula import CNF
from smle.rules.polytope import Polytope
from smle.rules.shown import html_table, number_text, text_table
from smle_check.names import twins, visible

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Categorical", "Choice", "Label", "Number", "NumericInput", "Rule", "RuleText", "Specification"]

_LISTED = 6  # names in a short description
_SHOWN = 50  # rules that a description lists


@dataclass(frozen=True)
class NumericInput:
    """A number in a finite range; `integer` promises whole numbers. One input column.

    `missing` is None (missing values are refused) or the value that stands in for a missing one. `dates` are days,
    as whole numbers counted from 1970-01-01.
    """

    name: str
    lower: Fraction
    upper: Fraction
    integer: bool = False
    missing: Fraction | None = None
    dates: bool = False

    def text(self, value: float) -> str:
        """Return a value as people read it: a date, or a number rounded to four digits."""
        if self.dates:
            return date_text(value)
        return number_text(value, 4, grouped=True)

    def __post_init__(self) -> None:
        if not self.lower < self.upper:
            raise RuleError(
                f"Input '{self.name}': expected a range [low, high] with low < high. Got [{self.lower}, {self.upper}]."
            )
        if self.dates and not self.integer:
            raise RuleError(f"Input '{self.name}': expected integer=True for dates, which are whole days.")
        if self.integer and (self.lower.denominator != 1 or self.upper.denominator != 1):
            raise RuleError(
                f"Input '{self.name}': expected whole numbers as the ends of an integer range. "
                f"Got [{self.lower}, {self.upper}]."
            )
        value = self.missing
        if value is not None and (not self.lower <= value <= self.upper or (self.integer and value.denominator != 1)):
            raise RuleError(
                f"Input '{self.name}': expected a value for missing ones that is in the range. Got {value}."
            )


@dataclass(frozen=True)
class Categorical:
    """One of several categories; one 0/1 input column each, named `name=category`."""

    name: str
    categories: tuple[str, ...]
    missing: str | None = None

    def __post_init__(self) -> None:
        if len(self.categories) < 2 or len(set(self.categories)) != len(self.categories):
            raise RuleError(
                f"Input '{self.name}': expected at least two different categories. Got [{', '.join(self.categories)}]."
            )
        if self.missing is not None and self.missing not in self.categories:
            raise RuleError(
                f"Input '{self.name}': expected a category for missing values. Got '{self.missing}', which is none of "
                f"[{', '.join(self.categories)}]."
            )


@dataclass(frozen=True)
class Number:
    """A real output. One output column."""

    name: str


@dataclass(frozen=True)
class Label:
    """A label, predicted if and only if its logit is >= 0. One output column (the logit)."""

    name: str


@dataclass(frozen=True)
class Choice:
    """Exactly one of several options: the largest score (`pick="max"`) or the smallest (`pick="min"`).

    One output column (the score) per option, named `name=option`.
    """

    name: str
    options: tuple[str, ...]
    pick: str = "max"

    def __post_init__(self) -> None:
        if len(self.options) < 2 or len(set(self.options)) != len(self.options):
            raise RuleError(
                f"Choice '{self.name}': expected at least two different options. Got [{', '.join(self.options)}]."
            )
        if self.pick not in ("max", "min"):
            raise RuleError(f"Choice '{self.name}': expected pick: max or pick: min. Got '{self.pick}'.")


@dataclass(frozen=True)
class Rule:
    """`x in region => y in requirement`, for each of the regions (an `or` in `when` gives several).

    `when` (None: always) and `then` are the readable text in canonical form; `trees` are what they were printed from,
    None where there was no tree.
    """

    name: str
    regions: tuple[Polytope, ...]
    requirement: CNF
    when: str | None
    then: str
    trees: tuple[Node | None, Node | None] = field(default=(None, None), compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {'always' if self.when is None else f'when {self.when}, then'} {self.then}"


@dataclass(frozen=True)
class RuleText:
    """A rule as stated, before it is compiled: text or Python conditions. Made by `rule(...)`."""

    name: str
    when: Any
    then: Any


def _some_names(items: Sequence[Any]) -> str:
    """List a few names, and how many more there are."""
    more = [f"... {len(items) - _LISTED} more"] if len(items) > _LISTED else []
    return ", ".join([item.name for item in items[:_LISTED]] + more)


@dataclass(frozen=True)
class Specification:
    """What must hold: inputs, outputs, named constants, rules.

    Column order is the order of statement; a categorical input and a choice take several columns.
    """

    inputs: tuple[NumericInput | Categorical, ...]
    outputs: tuple[Number | Label | Choice, ...]
    rules: tuple[Rule, ...]
    constants: tuple[tuple[str, Fraction], ...] = ()

    def __post_init__(self) -> None:
        self._refuse_shared_names()
        width, height = len(self.columns), len(self.targets)
        for rule in self.rules:
            rows = [row.coefficients for region in rule.regions for row in region.rows]
            literals = [literal for clause in rule.requirement.clauses for literal in clause.literals]
            columns = [form[-1][0] for form in (*rows, *(literal.inputs for literal in literals)) if form]
            targets = [literal.outputs[-1][0] for literal in literals]
            if len(rule.requirement.exclusions):
                targets.append(int(rule.requirement.exclusions.max()))
            if max(columns, default=-1) >= width or max(targets, default=-1) >= height:
                raise RuleError(
                    f"Rule '{rule.name}': expected columns below {width} (inputs) and {height} (outputs). "
                    f"Got input column {max(columns, default=-1)}, output column {max(targets, default=-1)}."
                )

    def __repr__(self) -> str:
        """Name inputs, outputs and rules; `print` lists the rules, the whole text is `to_yaml()`."""
        parts = (("inputs", self.inputs), ("outputs", self.outputs), ("rules", self.rules))
        return f"Specification({', '.join(f'{part}=[{_some_names(items)}]' for part, items in parts)})"

    def __str__(self) -> str:
        return f"{self._summary()}\n\n{text_table(self._rows())}" if self.rules else self._summary()

    def _repr_html_(self) -> str:
        return html_table(self._summary(), self._rows())

    def _summary(self) -> str:
        parts = ((self.rules, "rule"), (self.inputs, "input"), (self.outputs, "output"))
        counts = [f"{len(items)} {noun}{'s' if len(items) != 1 else ''}" for items, noun in parts]
        named = [_some_names(items) for items in (self.inputs, self.outputs)]
        return f"{counts[0]} about {counts[1]} ({named[0]}) and {counts[2]} ({named[1]})"

    def _rows(self) -> list[tuple[str, str, str]]:
        shown = [(visible(r.name), visible(r.when or "always"), visible(r.then)) for r in self.rules[:_SHOWN]]
        more = [(f"... {len(self.rules) - _SHOWN} more", "", "")] if len(self.rules) > _SHOWN else []
        return [("rule", "when", "then"), *shown, *more]

    def _refuse_shared_names(self) -> None:
        groups = [i for i in self.inputs if isinstance(i, Categorical)]
        listed = [(item.name, "an input") for item in self.inputs]
        listed += [(item.name, "an output") for item in self.outputs]
        listed += [(name, "a constant") for name, _ in self.constants]
        listed += [(f"{g.name}={category}", "an input column") for g in groups for category in g.categories]
        choices = [o for o in self.outputs if isinstance(o, Choice)]
        listed += [(f"{c.name}={option}", "an output column") for c in choices for option in c.options]
        same = twins(name for name, _ in listed)
        if same is not None:
            kinds = [kind for name, kind in listed if name in same]
            first, second = map(visible, same)
            if first == second:
                raise RuleError(
                    f"The name '{first}' is used twice: for {kinds[0]} and for {kinds[1]}. Rename one of them."
                )
            raise RuleError(
                f"The names '{first}' ({kinds[0]}) and '{second}' ({kinds[1]}) look the same. Rename one of them."
            )
        same = twins(rule.name for rule in self.rules)
        if same is not None:
            first, second = map(visible, same)
            if first == second:
                raise RuleError(f"Two rules are named '{first}'. Give each its own name.")
            raise RuleError(f"The rule names '{first}' and '{second}' look the same. Rename one of them.")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the input columns, categories expanded."""
        names: list[str] = []
        for item in self.inputs:
            if isinstance(item, Categorical):
                names.extend(f"{item.name}={category}" for category in item.categories)
            else:
                names.append(item.name)
        return tuple(names)

    @cached_property
    def lower(self) -> tuple[Fraction, ...]:
        """Lower ends of the domain, one per input column."""
        return self._ends(0)

    @cached_property
    def upper(self) -> tuple[Fraction, ...]:
        """Upper ends of the domain, one per input column."""
        return self._ends(1)

    def _ends(self, side: int) -> tuple[Fraction, ...]:
        ends: list[Fraction] = []
        for item in self.inputs:
            if isinstance(item, Categorical):
                ends.extend([Fraction(side)] * len(item.categories))
            else:
                ends.append(item.upper if side else item.lower)
        return tuple(ends)

    @cached_property
    def one_hot(self) -> tuple[tuple[int, ...], ...]:
        """Groups of input columns of which exactly one is 1 and the others are 0."""
        groups: list[tuple[int, ...]] = []
        start = 0
        for item in self.inputs:
            width = len(item.categories) if isinstance(item, Categorical) else 1
            if isinstance(item, Categorical):
                groups.append(tuple(range(start, start + width)))
            start += width
        return tuple(groups)

    @cached_property
    def output_kind(self) -> str:
        """What is predicted: `numbers`, `labels`, one `choice`, or `mixed`."""
        if all(isinstance(item, Number) for item in self.outputs):
            return "numbers"
        if all(isinstance(item, Label) for item in self.outputs):
            return "labels"
        return "choice" if len(self.outputs) == 1 and isinstance(self.outputs[0], Choice) else "mixed"

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Names of the output columns, options of choices expanded."""
        names: list[str] = []
        for item in self.outputs:
            if isinstance(item, Choice):
                names.extend(f"{item.name}={option}" for option in item.options)
            else:
                names.append(item.name)
        return tuple(names)

    def value_text(self, column: int, value: Fraction | float) -> str:
        """Return a value of an input column as people read it: a date, or a number with six digits."""
        return date_text(value) if column in self.dates else number_text(value)

    @cached_property
    def dates(self) -> frozenset[int]:
        """Input columns that are dates, in days from 1970-01-01."""
        names = {item.name for item in self.inputs if isinstance(item, NumericInput) and item.dates}
        return frozenset(i for i, name in enumerate(self.columns) if name in names)

    def violated(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> tuple[str, ...]:
        """Return the names of the rules that the exact pair (x, y) violates."""
        return tuple(
            rule.name
            for rule in self.rules
            if any(region.contains(x) for region in rule.regions) and not rule.requirement.holds(y, x)
        )

    @classmethod
    def build(cls, **parts: Any) -> Specification:
        """State a specification in Python: inputs, outputs, labels, choices, constants and rules.

        See `smle.rules.build.build` for the forms that each part takes.
        """
        from smle.rules.build import build

        return build(**parts)

    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> Specification:
        """Read a rules file. `functions` are functions of your own that its rules may call, by name.

        Raises:
            RuleError: If the file cannot be read, or what it says; the message names the place.
        """
        from pathlib import Path

        return cls.from_yaml(Path(path), functions=functions)

    @classmethod
    def from_yaml(
        cls, source: str | PathLike[str], *, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> Specification:
        """Read rules as YAML text (anything with a line break); a path is read as `from_file` does.

        `functions` are functions of your own that its rules may call, by name: see `smle.rules.build.build`.
        """
        from smle.rules.yaml_reader import read_yaml

        return read_yaml(source, functions)

    def to_yaml(self) -> str:
        """Print the specification as a rules file that reads back as the same specification."""
        from smle.rules.yaml_writer import write_yaml

        return write_yaml(self)

    @classmethod
    def from_vnnlib(cls, *paths: str | PathLike[str], inputs: Any = None, outputs: Any = None) -> Specification:
        """Read VNN-LIB files; each asserts a counterexample and becomes the rule that forbids it."""
        from smle.rules.vnnlib import read_vnnlib

        return read_vnnlib(*paths, inputs=inputs, outputs=outputs)

    def to_vnnlib(self, rule: str | None = None) -> str:
        """Print VNN-LIB 1.0 text that asserts that some rule (or the named one) is broken."""
        from smle.rules.vnnlib import write_vnnlib

        return write_vnnlib(self, rule=rule)
