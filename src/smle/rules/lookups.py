"""Tables of numbers by category, `cap[article]`: reading, printing and use in rules.

A table has a number for every category of its keys. A lookup by one key is linear: exactly one of the 0/1 columns of a
category is 1, so `cap[article]` is the sum of the numbers times these columns. With several keys, all but the longest
become conditions: one rule for each of their categories.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from smle.errors import RuleError
from smle.rules.expressions import Compare, Lookup, Name, Node, conjunction, exact_text, nodes_in, shown, to_text
from smle.rules.instead import did_you_mean
from smle.rules.lines import located

__all__ = ["Entry", "Table", "TableFile", "entry_text", "lookups_in", "place_of", "read_table", "split", "table_lines"]

MAX_CELLS = 200_000
"""Most numbers in a table."""
_MAX_SPLIT = 1_000  # rules that one rule with several keys may expand to
_LISTED = 3  # categories that an error message names
_PARTS = ("key", "keys", "values", "default", "file", "column")


@dataclass(frozen=True)
class Table:
    """Numbers by category: one for every combination of categories of `keys`, the last key varying fastest.

    `keys` are names of categorical inputs.
    """

    name: str
    keys: tuple[str, ...]
    values: tuple[Fraction, ...]


class Entry(NamedTuple):
    """A lookup in a clause: the columns of the input, and a name such as `cap[art017]` for each."""

    columns: slice
    names: tuple[str, ...]


@dataclass(frozen=True)
class TableFile:
    """The rows of a CSV file, each a dict of texts by column name."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]

    @classmethod
    def read(cls, name: str, folder: Path | None) -> TableFile:
        """Read a CSV file whose first row names its columns; the path is relative to the rules file."""
        if folder is None:
            raise RuleError(f"The file '{name[:80]}' can only be named in a rules file on disk.")
        if Path(name).is_absolute() or Path(name).suffix.lower() != ".csv":
            raise RuleError(f"Expected the path of a .csv file, relative to the rules file. Got '{name[:80]}'.")
        try:
            with (folder / name).open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                header = tuple(cell.strip() for cell in next(reader, []))
                if len(set(header)) != len(header) or not all(header):
                    raise RuleError(f"'{name}': expected a first row with different names of columns. Got {header}.")
                rows: list[dict[str, str]] = []
                for cells in reader:
                    if len(cells) != len(header) and cells:
                        raise RuleError(
                            f"'{name}', line {reader.line_num}: expected {len(header)} cells. Got {len(cells)}."
                        )
                    if len(rows) > MAX_CELLS:
                        raise RuleError(f"'{name}': expected at most {MAX_CELLS:,} rows. Got more.")
                    rows += [dict(zip(header, map(str.strip, cells), strict=True))] if cells else []
        except (OSError, ValueError, csv.Error) as error:
            if isinstance(error, RuleError):
                raise
            raise RuleError(f"Cannot read the table in '{name}': {error}.") from None
        return cls(name, header, tuple(rows))


def read_table(name: str, stated: Any, inputs: Mapping[str, Sequence[str]], to_number: Any) -> Table:
    """Read one table.

    Args:
        name: The name of the table.
        stated: `{key: article, values: {a: 1, b: 2}, default: 3}`; `keys: [article, region]` with a mapping for each
            category of the first; or `{key: article, file: TableFile, column: price}`.
        inputs: The categories of the categorical inputs, by name.
        to_number: Reads a number: (value, what it is) -> Fraction.
    """
    what = f"Table '{name}'"
    if isinstance(stated, Table):
        return stated
    if not isinstance(stated, Mapping):
        raise RuleError(f"{what}: expected {{key: INPUT, values: {{CATEGORY: NUMBER, ...}}}}. Got {shown(stated)}.")
    for part in stated:
        if part not in _PARTS:
            raise RuleError(f"{what}: unknown key '{part}'.{did_you_mean(str(part), _PARTS)}")
    if ("key" in stated) == ("keys" in stated) or ("values" in stated) == ("file" in stated):
        raise RuleError(f"{what}: expected 'key' (or 'keys'), and either 'values' or 'file'. Got {', '.join(stated)}.")
    keys = _keys(stated, inputs, what)
    if math.prod(len(inputs[key]) for key in keys) > MAX_CELLS:
        raise RuleError(f"{what}: expected at most {MAX_CELLS:,} numbers. Got more.")
    given = stated.get("values")
    if "file" in stated:
        found = dict(_from_file(stated, name, keys, what))
    elif isinstance(given, Mapping):
        found = dict(_cells(given, len(keys), what))
    else:
        raise RuleError(f"{what}: expected 'values' as a mapping of categories to numbers. Got {shown(given)}.")
    known = [set(inputs[key]) for key in keys]
    for cell in found:
        for category, key, own in zip(cell, keys, known, strict=True):
            if category not in own:
                with located(category):
                    hint = did_you_mean(category, list(inputs[key]))
                    raise RuleError(f"{what}: '{category[:80]}' is not a category of '{key}'.{hint}")
    default = None if "default" not in stated else to_number(stated["default"], f"{what}, default")
    values, missing = [], []
    for cell in product(*(inputs[key] for key in keys)):
        if cell in found:
            values.append(to_number(found[cell], f"{what}, {', '.join(cell)}"))
        elif default is not None:
            values.append(default)
        else:
            missing.append(", ".join(cell))
    if missing:
        more = f" and {len(missing) - _LISTED:,} more" if len(missing) > _LISTED else ""
        listed = ", ".join(f"'{cell}'" for cell in missing[:_LISTED])
        raise RuleError(
            f"{what}: no number for {listed}{more} of {', '.join(map(repr, keys))}. Add a number for each, or state "
            "'default: NUMBER'."
        )
    return Table(name, keys, tuple(values))


def _keys(stated: Mapping[str, Any], inputs: Mapping[str, Sequence[str]], what: str) -> tuple[str, ...]:
    given = stated["keys"] if "keys" in stated else [stated["key"]]
    if not isinstance(given, list | tuple) or not given or not all(isinstance(key, str) for key in given):
        raise RuleError(f"{what}: expected names of categorical inputs as its keys. Got {shown(given)}.")
    for key in given:
        if key not in inputs:
            raise RuleError(f"{what}: '{key[:80]}' is not an input with categories.{did_you_mean(key, list(inputs))}")
    if len(set(given)) != len(given):
        raise RuleError(f"{what}: expected different keys. Got {shown(list(given))}.")
    return tuple(map(str, given))


def _cells(given: Mapping[Any, Any], depth: int, what: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (categories, number) from nested mappings."""
    for category, inner in given.items():
        with located(category):
            if depth == 1:
                if isinstance(inner, Mapping | list | tuple):
                    raise RuleError(f"{what}, {category}: expected a number. Got {shown(inner)}.")
                yield (_category(category),), inner
            elif isinstance(inner, Mapping):
                yield from (((_category(category), *rest), value) for rest, value in _cells(inner, depth - 1, what))
            else:
                raise RuleError(f"{what}, {category}: expected a number for each category of the next key.")


def _category(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _from_file(
    stated: Mapping[str, Any], name: str, keys: tuple[str, ...], what: str
) -> Iterator[tuple[tuple[str, ...], str]]:
    file, column = stated["file"], str(stated.get("column", name))
    if not isinstance(file, TableFile):
        raise RuleError(f"{what}: a file can only be named in a rules file on disk. Got {shown(file)}.")
    for needed in (*keys, column):
        if needed not in file.columns:
            listed = ", ".join(file.columns)
            raise RuleError(
                f"{what}: '{file.name}' has no column '{needed}'. It has {listed}.{did_you_mean(needed, file.columns)}"
            )
    seen: set[tuple[str, ...]] = set()
    for row in file.rows:
        cell = tuple(row[key] for key in keys)
        if cell in seen:
            raise RuleError(f"{what}: '{file.name}' has two rows for {', '.join(cell)}.")
        seen.add(cell)
        yield cell, row[column]


def table_lines(table: Table, categories: Sequence[Sequence[str]], scalar: Any) -> list[str]:
    """Print a table as in a rules file. `scalar` formats a name in a list."""
    keys = ", ".join(scalar(key, flow=True) for key in table.keys)
    lines = [f"  {scalar(table.name)}:", f"    {f'keys: [{keys}]' if len(table.keys) > 1 else f'key: {keys}'}"]
    lines.append("    values:")
    *outer, inner = categories
    for place, names in enumerate(product(*outer)):
        values = table.values[place * len(inner) : (place + 1) * len(inner)]
        depth = 6
        for level, category in enumerate(names):
            if place % math.prod(len(own) for own in outer[level + 1 :]) == 0:
                lines.append(f"{' ' * (depth + 2 * level)}{scalar(category, flow=True)}:")
        indent = " " * (depth + 2 * len(names))
        for category, value in zip(inner, values, strict=True):
            lines.append(f"{indent}{scalar(category, flow=True)}: {exact_text(value)}")
    return lines


# --- Rules that look numbers up ------------------------------------------------------------------------------------


def lookups_in(*trees: Node | None) -> Iterator[Lookup]:
    """Yield the lookups in trees, from left to right."""
    return (node for node in nodes_in(*trees) if isinstance(node, Lookup))


def split(
    when: Node | None, then: Node, tables: Mapping[str, Table], categories: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Node | None, Node]]:
    """Split a rule so that each part looks up by one input at a time; yield (name suffix, `when`, `then`).

    All keys but the longest become conditions: `cap[article, region]` becomes `region == north -> cap[article, north]`
    and so on. Other rules are yielded unchanged. Raises RuleError if there would be too many rules.
    """
    gates: list[str] = []
    for lookup in lookups_in(when, then):
        table = tables.get(lookup.table)
        if table is None or len(table.keys) != len(lookup.keys):
            continue  # refused later, when the rule is compiled
        open_ = [key for key, node in zip(table.keys, lookup.keys, strict=True) if node == Name(key)]
        longest = max(open_, key=lambda key: len(categories[key]), default=None)
        gates += [key for key in open_ if key != longest and key not in gates]
    if not gates:
        yield "", when, then
        return
    if math.prod(len(categories[key]) for key in gates) > _MAX_SPLIT:
        raise RuleError(
            f"A lookup by {', '.join(gates)} and a longer key becomes more than {_MAX_SPLIT:,} rules. Look numbers up "
            "by inputs with fewer categories."
        )
    for chosen in product(*(categories[key] for key in gates)):
        fixed = dict(zip(gates, chosen, strict=True))
        parts = [Compare((Name(key), Name(category)), ("==",)) for key, category in fixed.items()]
        held = conjunction([*([] if when is None else [_fixed(when, fixed, tables)]), *parts])
        named = ", ".join(f"{key} {category}" for key, category in fixed.items())
        yield f" ({named})", held, _fixed(then, fixed, tables)


def _fixed(node: Node, chosen: Mapping[str, str], tables: Mapping[str, Table]) -> Node:
    """Replace the keys of lookups by several inputs with the chosen categories."""
    if isinstance(node, Lookup):
        if sum(isinstance(key, Name) and key.name in tables[node.table].keys for key in node.keys) < 2:
            return node
        keys = tuple(Name(chosen.get(key.name, key.name)) if isinstance(key, Name) else key for key in node.keys)
        return replace(node, keys=keys)

    def inner(value: Any) -> Any:
        if isinstance(value, Node):
            return _fixed(value, chosen, tables)
        return tuple(map(inner, value)) if isinstance(value, tuple) else value

    stated = {name: inner(value) for name, value in vars(node).items() if name != "depth"}
    return type(node)(**stated)


def place_of(table: Table, keys: Iterable[int | None], sizes: Sequence[int]) -> list[int]:
    """Return positions in `values` with some keys fixed, in the order of the categories of the others."""
    ranges = [range(size) if key is None else (key,) for key, size in zip(keys, sizes, strict=True)]
    steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return [sum(k * step for k, step in zip(cell, steps, strict=True)) for cell in product(*ranges)]


def entry_text(name: str, categories: Iterable[str]) -> str:
    """Name a number in a table as a rule would look it up: `cap[art017]`."""
    return to_text(Lookup(name, tuple(map(Name, categories))))
