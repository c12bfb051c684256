"""Specification: inputs with ranges, outputs, and rules `x in Q => y in R`, in the user's units and names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from smle.errors import RuleError
from smle.rules.about import NOTHING, About
from smle.rules.dates import date_text
from smle.rules.expressions import Node
from smle.rules.formula import CNF, Linear, Polytope, Row
from smle.rules.lookups import Entry, Table
from smle.rules.shown import html_table, number_text, text_table
from smle_check.floats import BINARY32, BINARY64, nearest
from smle_check.names import flag_of, twins, visible

if TYPE_CHECKING:
    from os import PathLike

    from smle.rules.grids import Grid

__all__ = ["Categorical", "Choice", "Label", "Number", "NumericInput", "Rule", "RuleText", "Specification"]

_LISTED = 6  # names in a short description
_SHOWN = 50  # rules that a description lists


def _floats(values: Iterable[Fraction], dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    """Round to the nearest floats of a format. Going through float64 would round float32 twice."""
    fmt = BINARY32 if dtype is np.float32 else BINARY64
    found = np.array([float(nearest(value, fmt)) for value in values], dtype=dtype)
    found.flags.writeable = False
    return found


@dataclass(frozen=True)
class _Named:
    """An input or output with a single column of the same name."""

    name: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (self.name,)


@dataclass(frozen=True)
class NumericInput(_Named):
    """A number in a finite range; `integer` promises whole numbers, `step` multiples of a step. One input column.

    `missing` is the value used in place of a missing one; if None, missing values are refused. `dates` are whole days
    since 1970-01-01.
    """

    lower: Fraction
    upper: Fraction
    integer: bool = False
    missing: Fraction | None = None
    dates: bool = False
    step: Fraction | None = None

    def __post_init__(self) -> None:
        _require_step(f"Input '{self.name}'", self.step)
        if self.step is not None and self.integer:
            raise RuleError(f"Input '{self.name}': expected either 'integer' or 'step'. Got both.")
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
        step = Fraction(1) if self.integer else self.step
        off = value is not None and step is not None and (value / step).denominator != 1
        if value is not None and (not self.lower <= value <= self.upper or off):
            raise RuleError(
                f"Input '{self.name}': expected a stand-in for missing values within the range. Got {value}."
            )

    @property
    def stand_in(self) -> tuple[Fraction, ...]:
        """The values of the column where the input is missing; empty if it may not be."""
        return () if self.missing is None else (self.missing,)

    def text(self, value: float) -> str:
        """Format a value as a date, or as a number with four digits."""
        if self.dates:
            return date_text(value)
        return number_text(value, 4, grouped=True)


@dataclass(frozen=True)
class Categorical(_Named):
    """One of several categories, with a 0/1 input column each, named `name=category`."""

    categories: tuple[str, ...]
    missing: str | None = None
    lower: ClassVar[Fraction] = Fraction(0)
    upper: ClassVar[Fraction] = Fraction(1)
    integer: ClassVar[bool] = True
    step: ClassVar[None] = None
    dates: ClassVar[bool] = False

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

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    @property
    def stand_in(self) -> tuple[Fraction, ...]:
        """The values of the columns where the input is missing; empty if it may not be."""
        return () if self.missing is None else tuple(Fraction(c == self.missing) for c in self.categories)


@dataclass(frozen=True)
class Number(_Named):
    """A real output, or one in whole multiples of a `step`. One output column.

    `lower` and `upper` bound it where no rule does; only outputs in steps need that.
    """

    step: Fraction | None = None
    lower: Fraction | None = None
    upper: Fraction | None = None

    def __post_init__(self) -> None:
        _require_step(f"Output '{self.name}'", self.step)
        if (self.lower is None) != (self.upper is None):
            raise RuleError(f"Output '{self.name}': expected both ends of a range. Got one.")
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise RuleError(
                f"Output '{self.name}': expected a range [low, high] with low < high. Got [{self.lower}, {self.upper}]."
            )


def _require_step(what: str, step: Fraction | None) -> None:
    if step is not None and step <= 0:
        raise RuleError(f"{what}: expected a step above 0. Got {step}.")


@dataclass(frozen=True)
class Label(_Named):
    """A label, predicted if and only if its logit is >= 0. One output column (the logit)."""


@dataclass(frozen=True)
class Choice(_Named):
    """Exactly one of several options: the one with the largest score (`pick="max"`) or the smallest (`pick="min"`).

    One output column (the score) per option, named `name=option`.
    """

    options: tuple[str, ...]
    pick: str = "max"

    def __post_init__(self) -> None:
        if len(self.options) < 2 or len(set(self.options)) != len(self.options):
            raise RuleError(
                f"Choice '{self.name}': expected at least two different options. Got [{', '.join(self.options)}]."
            )
        if self.pick not in ("max", "min"):
            raise RuleError(f"Choice '{self.name}': expected pick: max or pick: min. Got '{self.pick}'.")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(f"{self.name}={option}" for option in self.options)


@dataclass(frozen=True)
class Rule:
    """`x in region => y in requirement`, for each of the regions (an `or` in `when` gives several).

    `when` (None: always) and `then` are canonical text; `trees` holds the trees they were printed from, or None. For
    merged rules, `entries` lists (input column, name) of each.
    """

    name: str
    regions: tuple[Polytope, ...]
    requirement: CNF
    when: str | None
    then: str
    trees: tuple[Node | None, Node | None] = field(default=(None, None), compare=False, repr=False)
    about: About = NOTHING
    entries: tuple[tuple[int, str], ...] = ()

    def name_at(self, x: Sequence[Fraction]) -> str:
        """Return the name of the rule; for merged rules, of the entry that applies at x."""
        return next((name for column, name in self.entries if x[column] == 1), self.name)

    def __str__(self) -> str:
        return f"{self.name}: {'always' if self.when is None else f'when {self.when}, then'} {self.then}"


@dataclass(frozen=True)
class RuleText:
    """A rule before it is compiled, as text or Python conditions. Made by `rule(...)`."""

    name: str
    when: Any
    then: Any
    about: About = NOTHING


def _slices(items: Sequence[_Named]) -> list[slice]:
    ends = list(accumulate(len(item.columns) for item in items))
    return [slice(end - len(item.columns), end) for item, end in zip(items, ends, strict=True)]


def _some_names(items: Sequence[Any]) -> str:
    """Join a few names, and say how many more there are."""
    more = [f"... {len(items) - _LISTED} more"] if len(items) > _LISTED else []
    return ", ".join([item.name for item in items[:_LISTED]] + more)


@dataclass(frozen=True)
class Specification:
    """What must hold: inputs, outputs, constants, tables and rules.

    Columns follow the order of statement; a categorical input or a choice takes several. `flags` are the inputs that
    rules test with `is missing`. Each adds a column `NAME is missing` after all inputs: 1 where the value is missing
    (the input then has its stand-in value), else 0.
    """

    inputs: tuple[NumericInput | Categorical, ...]
    outputs: tuple[Number | Label | Choice, ...]
    rules: tuple[Rule, ...]
    constants: tuple[tuple[str, Fraction], ...] = ()
    about: About = NOTHING
    tables: tuple[Table, ...] = ()
    flags: tuple[str, ...] = ()

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

    def __deepcopy__(self, memo: dict[int, Any]) -> Specification:
        """Return the same object: it is read-only, and a parameter search clones its model many times."""
        return self

    def __repr__(self) -> str:
        """Name some inputs, outputs and rules; `print` lists the rules, and `to_yaml()` returns everything."""
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
        listed = [(item.name, "an input") for item in self.inputs]
        listed += [(item.name, "an output") for item in self.outputs]
        listed += [(name, "a constant") for name, _ in self.constants]
        listed += [(table.name, "a table") for table in self.tables]
        listed += [
            (c, "an input column") for item in self.inputs if isinstance(item, Categorical) for c in item.columns
        ]
        listed += [(flag_of(name), "what rules ask about an input") for name in self.flags]
        listed += [(c, "an output column") for item in self.outputs if isinstance(item, Choice) for c in item.columns]
        same = twins(name for name, _ in listed)
        if same is not None:
            kinds = [kind for name, kind in listed if name in same]
            first, second = map(visible, same)
            raise RuleError(
                f"The name '{first}' is used twice: for {kinds[0]} and for {kinds[1]}. Rename one of them."
                if first == second
                else f"The names '{first}' ({kinds[0]}) and '{second}' ({kinds[1]}) look the same. Rename one of them."
            )
        same = twins(rule.name for rule in self.rules)
        if same is not None:
            first, second = map(visible, same)
            if first == second:
                raise RuleError(f"Two rules are named '{first}'. Give each its own name.")
            raise RuleError(f"The rule names '{first}' and '{second}' look the same. Rename one of them.")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the input columns, with categories expanded and flags of missing values last."""
        return tuple(name for item, _ in self.column_slices for name in item.columns)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Names of the output columns, with options of choices expanded."""
        return tuple(name for item in self.outputs for name in item.columns)

    @cached_property
    def input_slices(self) -> tuple[tuple[NumericInput | Categorical, slice], ...]:
        """Each input with the slice of its columns."""
        return tuple(zip(self.inputs, _slices(self.inputs), strict=True))

    @cached_property
    def column_slices(self) -> tuple[tuple[NumericInput | Categorical, slice], ...]:
        """Each input, then each flag of missing values (0 or 1), with the slice of its columns."""
        ends = Fraction(0), Fraction(1)
        items = (*self.inputs, *(NumericInput(flag_of(name), *ends, integer=True) for name in self.flags))
        return tuple(zip(items, _slices(items), strict=True))

    @cached_property
    def flag_columns(self) -> dict[str, int]:
        """The column that flags each input as missing, by input name."""
        return {name: len(self.columns) - len(self.flags) + i for i, name in enumerate(self.flags)}

    @cached_property
    def flagged(self) -> tuple[tuple[NumericInput | Categorical, slice, int], ...]:
        """Each input with a flag of missing values: (input, its columns, the column of the flag)."""
        flags = self.flag_columns
        return tuple((item, place, flags[item.name]) for item, place in self.input_slices if item.name in flags)

    @cached_property
    def output_slices(self) -> tuple[tuple[Number | Label | Choice, slice], ...]:
        """Each output with the slice of its columns."""
        return tuple(zip(self.outputs, _slices(self.outputs), strict=True))

    @cached_property
    def lower(self) -> tuple[Fraction, ...]:
        """Lower ends of the domain, one per input column."""
        return tuple(item.lower for item, _ in self.column_slices for _ in item.columns)

    @cached_property
    def upper(self) -> tuple[Fraction, ...]:
        """Upper ends of the domain, one per input column."""
        return tuple(item.upper for item, _ in self.column_slices for _ in item.columns)

    def ends(self, dtype: npt.DTypeLike = np.float64) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the lower and upper ends of the domain, shape (d,) each, rounded to the nearest float32 or float64.

        The deployed program clamps to these numbers. The arrays are cached and read-only.
        """
        return self._ends[dtype == np.float32]

    @cached_property
    def _ends(self) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        return [(_floats(self.lower, own), _floats(self.upper, own)) for own in (np.float64, np.float32)]

    @cached_property
    def one_hot(self) -> tuple[tuple[int, ...], ...]:
        """Groups of input columns in which exactly one is 1 and the others are 0."""
        groups = [place for item, place in self.input_slices if isinstance(item, Categorical)]
        return tuple(tuple(range(place.start, place.stop)) for place in groups)

    @cached_property
    def integral(self) -> frozenset[int]:
        """Input columns that hold whole numbers: integers, dates, categories, flags."""
        places = [place for item, place in self.column_slices if item.integer]
        return frozenset(i for place in places for i in range(place.start, place.stop))

    @cached_property
    def dates(self) -> frozenset[int]:
        """Input columns that are dates, in days since 1970-01-01."""
        return frozenset(place.start for item, place in self.input_slices if item.dates)

    @cached_property
    def entries(self) -> tuple[list[list[Entry]], ...]:
        """For every rule and each of its clauses, the tables it looks numbers up in."""
        from smle.rules.vocabulary import entries_of

        return entries_of(self)

    @cached_property
    def merged(self) -> Specification:
        """The specification with rules merged that differ only in category and numbers, as heads of rules prove it."""
        from smle.rules.merging import merged

        return merged(self)

    @cached_property
    def grid(self) -> Grid | None:
        """Steps and ranges of outputs served in whole numbers of steps, or None.

        Raises:
            RuleError: If a step does not fit, or a range is missing.
        """
        from smle.rules.grids import grid_of

        return grid_of(self)

    def with_flags(self, flags: Collection[str]) -> Specification:
        """Return the specification with flag columns for these inputs, which include its own flags."""
        names = tuple(item.name for item in self.inputs if item.name in flags)
        start = len(self.columns) - len(self.flags)
        moved = {column: start + names.index(name) for name, column in self.flag_columns.items()}

        def form(given: Linear) -> Linear:
            return tuple(sorted((moved.get(i, i), v) for i, v in given))

        rules = []
        for rule in self.rules:
            regions = (
                Polytope(tuple(Row(form(r.coefficients), r.bound, r.strict) for r in p.rows)) for p in rule.regions
            )
            rules.append(replace(rule, regions=tuple(regions)))
        return replace(self, rules=tuple(rules), flags=names)

    def with_rules(self, rules: tuple[Rule, ...]) -> Specification:
        """Return the specification with these rules only; steps and ranges of outputs stay the same."""
        made = replace(self, rules=rules)
        made.__dict__["grid"] = self.grid
        return made

    @cached_property
    def output_kind(self) -> str:
        """The kind of prediction: `numbers`, `labels`, one `choice`, or `mixed`."""
        if all(isinstance(item, Number) for item in self.outputs):
            return "numbers"
        if all(isinstance(item, Label) for item in self.outputs):
            return "labels"
        return "choice" if len(self.outputs) == 1 and isinstance(self.outputs[0], Choice) else "mixed"

    def value_text(self, column: int, value: Fraction | float) -> str:
        """Format a value of an input column as a date, or as a number with six digits."""
        return date_text(value) if column in self.dates else number_text(value)

    def violated(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> tuple[str, ...]:
        """Return the names of the rules that the exact pair (x, y) violates."""
        return tuple(
            rule.name
            for rule in self.rules
            if any(region.contains(x) for region in rule.regions) and not rule.requirement.holds(y, x)
        )

    @classmethod
    def build(
        cls,
        *,
        inputs: Mapping[str, Any] | Iterable[NumericInput | Categorical],
        outputs: Mapping[str, Any] | Iterable[Any] = (),
        labels: Iterable[str] = (),
        choices: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
        rules: Mapping[str, Any] | Iterable[Any] = (),
        functions: Mapping[str, Callable[..., Any]] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Specification:
        """State a specification in Python, with the same parts as a rules file.

        Args:
            inputs: Name to range `(low, high)` of numbers or dates, list of categories, or a dict as in the rules file.
            outputs: Names of real outputs, or name to `{"step": 0.01, "integer": True, "range": (0, 100)}` (or Number,
                Label and Choice objects).
            labels: Names of labels.
            choices: Name to list of options, or to `{"options": [...], "pick": "min"}`.
            constants: Name to number.
            tables: Name to numbers by category, as in the rules file: `{"key": "article", "values": {"a": 1, "b": 2}}`.
            rules: Name to text, `(when, then)` or condition; or a list of `rule(...)` and Rule objects.
            functions: Your own functions for rule texts, by name. They take and return numbers, terms and conditions.
                The rule keeps what they return, and does not depend on them.
            about: `description`, `source`, `owner` and `since` of the rules as a whole.

        Raises:
            RuleError: If a part cannot be read; the message names it.
        """
        from smle.rules.build import build

        parts: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "labels": labels}
        parts |= {"choices": choices, "constants": constants, "tables": tables}
        return build(parts, rules, functions, about)

    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> Specification:
        """Read a rules file. `functions` are your own functions that its rules may call, by name.

        Raises:
            RuleError: If the file or its contents cannot be read; the message names the place.
        """
        from smle.rules.yaml_files import read_file

        return read_file(path, functions)

    @classmethod
    def from_yaml(cls, text: str, *, functions: Mapping[str, Callable[..., Any]] | None = None) -> Specification:
        """Read rules from the text of a rules file; `functions` as in `from_file`."""
        from smle.rules.yaml_files import read_yaml

        return read_yaml(text, functions)

    @classmethod
    def of(cls, given: Specification | str | PathLike[str]) -> Specification:
        """Return a Specification unchanged, or read one: a text with a line break is YAML, anything else a path."""
        if isinstance(given, Specification):
            return given
        return cls.from_yaml(given) if isinstance(given, str) and "\n" in given else cls.from_file(given)

    def to_yaml(self) -> str:
        """Print a rules file that reads back as the same specification."""
        return self._yaml

    @cached_property
    def _yaml(self) -> str:
        from smle.rules.yaml_files import write_yaml

        return write_yaml(self)

    @classmethod
    def from_vnnlib(cls, *paths: str | PathLike[str], inputs: Any = None, outputs: Any = None) -> Specification:
        """Read VNN-LIB files. Each asserts a counterexample and becomes the rule that forbids it."""
        from smle.rules.vnnlib import read_vnnlib

        return read_vnnlib(*paths, inputs=inputs, outputs=outputs)
