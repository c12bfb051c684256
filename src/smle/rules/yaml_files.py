"""Reads and writes rules files. YAML is read as plain text: no types are guessed, so decimals stay exact."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from smle.errors import RuleError
from smle.rules.about import ABOUT, about_of
from smle.rules.arrays import label_columns
from smle.rules.build import PARTS, build, check_keys
from smle.rules.dates import date_text
from smle.rules.exclusions import NeverTogether, is_summary, pairs_from_file, ranges_text
from smle.rules.expressions import exact_text
from smle.rules.lines import located
from smle.rules.lookups import TableFile, table_lines
from smle.rules.parser import Functions
from smle.rules.specification import Categorical, Choice, Label, Number, NumericInput, Rule, RuleText, Specification

__all__ = ["MAX_BYTES", "read_file", "read_yaml", "write_yaml"]

MAX_BYTES = 16 * 2**20
_MAX_NESTING = 10
_LARGE = 20_000
_LISTED_PAIRS = 2_000


class _Text(str):
    """A scalar as written, with its first and last line."""

    line: int
    last_line: int

    def __new__(cls, text: str, line: int, last_line: int) -> _Text:
        made = super().__new__(cls, text)
        made.line, made.last_line = line, last_line
        return made


def read_file(path: str | os.PathLike[str], functions: Functions | None = None) -> Specification:
    """Read a rules file; `functions` as in `build`. A RuleError has the file name and line."""
    if not isinstance(path, str | os.PathLike):
        raise RuleError(f"Expected the path of a rules file. Got {type(path).__name__}.")
    place = Path(path)
    try:
        return read_yaml(_file_text(place), functions, folder=place.parent)
    except RuleError as error:
        message = str(error)
        raise RuleError(
            f"{place.name}: {message[0].lower() if message.startswith('Line') else message[0]}{message[1:]}"
        ) from None


def _file_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RuleError(f"Expected a rules file of at most {MAX_BYTES:,} bytes. Got {path.stat().st_size:,}.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise RuleError("Expected a text file in UTF-8. Got other bytes.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, RuleError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        hint = " To read YAML text, call Specification.from_yaml(text)." if ": " in str(path) else ""
        raise RuleError(f"Cannot read the rules file '{str(path)[:200]}': {reason}.{hint}") from None


def read_yaml(text: str, functions: Functions | None = None, *, folder: Path | None = None) -> Specification:
    """Read the text of a rules file; `functions` as in `build`. A RuleError has the line.

    Files that it names are looked up in `folder`.
    """
    if not isinstance(text, str):
        raise RuleError(
            f"Expected rules as YAML text. Got {type(text).__name__}. Files: Specification.from_file(path)."
        )
    if len(text) > MAX_BYTES:
        raise RuleError(f"Expected a rules file of at most {MAX_BYTES:,} characters. Got {len(text):,}.")
    data = _load(text)
    if not isinstance(data, dict):
        found = "an empty file" if data is None or data == "" else f"a {'list' if isinstance(data, list) else 'text'}"
        hint = "" if folder or "\n" in text else " To read a file, call Specification.from_file(path)."
        raise RuleError(f"Expected a rules file with inputs, outputs and rules. Got {found}.{hint}")
    check_keys(data, (*PARTS, "rules", *ABOUT), "Rules file")
    for part in ("inputs", "rules"):
        if part not in data:
            raise RuleError(f"Expected the part '{part}' in the rules file. Got {', '.join(data) or 'nothing'}.")
    parts = {**data, "tables": _with_files(data.get("tables"), folder)}
    about = {key: value for key, value in data.items() if key in ABOUT}
    return build(parts, list(_rule_texts(data["rules"], folder)), functions, about)


def _with_files(tables: Any, folder: Path | None) -> Any:
    if not isinstance(tables, Mapping):
        return tables
    return {
        name: {**stated, "file": _table_file(name, stated["file"], folder)}
        if isinstance(stated, Mapping) and "file" in stated
        else stated
        for name, stated in tables.items()
    }


def _table_file(name: str, file: Any, folder: Path | None) -> TableFile:
    with located(file):
        try:
            return TableFile.read(str(file), folder)
        except RuleError as error:
            raise RuleError(f"Table '{name}': {error}") from None


def _rule_texts(rules: Any, folder: Path | None) -> Iterator[RuleText]:
    if not isinstance(rules, list):
        with located(rules):
            raise RuleError("Expected 'rules' to be a list of rules, each with a name and a 'then'.")
    for index, item in enumerate(rules):
        if not isinstance(item, Mapping):
            with located(item):
                raise RuleError(f"Rule {index + 1}: expected name, when (optional) and then. Got '{item}'.")
        first = next(iter(item), None)
        with located(first):
            name = item.get("name", "")
            if not isinstance(name, str) or not name:
                raise RuleError(f"Rule {index + 1}: expected a name. Got none.")
            _refuse_cut_texts(item, name)
            check_keys(item, ("name", "when", "then", "never_together", *ABOUT), f"Rule '{name}'")
            about = about_of(item, f"Rule '{name}'")
            if ("then" in item) == ("never_together" in item):
                raise RuleError(f"Rule '{name}': expected either 'then' or 'never_together'. Got {', '.join(item)}.")
            for part in ("when", "then"):
                value = item.get(part)
                if part in item and (not isinstance(value, str) or not value.strip()):
                    key = next(key for key in item if key == part)
                    with located(key):
                        raise RuleError(f"Rule '{name}', {part}: expected a condition. Got {_kind(value)}.")
            then = item["then"] if "then" in item else _pairs(item["never_together"], name, folder)
        yield RuleText(name, item.get("when"), then, about)


def _refuse_cut_texts(item: Mapping[str, Any], name: str) -> None:
    """Explain `{then: max(a, b) <= 1}`, where YAML ends the text at the comma."""
    for part in ("when", "then"):
        text = item.get(part)
        if isinstance(text, str) and text.count("(") > text.count(")") and any(")" in key for key in item):
            raise RuleError(
                f"Rule '{name}', {part}: the text ends after '{text}', because a comma inside braces ends it. Put "
                f"it in quotes, as in {{{part}: 'max(a, b) <= 1'}}."
            )


def _kind(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        joined = " and ".join(f"({item})" if " " in item else item for item in value)
        return f"a list. Join conditions with 'and', as in '{joined[:100]}', or write a rule for each"
    if isinstance(value, list):
        return "a list; put the text in quotes"
    return "a mapping; put the text in quotes" if isinstance(value, dict) else "nothing"


def _pairs(stated: Any, name: str, folder: Path | None) -> NeverTogether:
    if not isinstance(stated, str):
        return NeverTogether(stated)
    try:
        return pairs_from_file(stated, folder)
    except RuleError as error:
        raise RuleError(f"Rule '{name}', never_together: {error}") from None


def _load(text: str) -> Any:
    """Build plain lists, dicts and texts from YAML events; no tags, anchors or repeated keys."""
    try:
        # libyaml reads megabytes of exclusions much faster, but the Python parser has the better messages.
        loader = yaml.BaseLoader if len(text) < _LARGE else getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        return _document(yaml.parse(text, Loader=loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        where = f"Line {mark.line + 1}: " if mark else ""
        advice = ""
        if "'\\t'" in problem:
            advice = " Indent with spaces, not with tabs."
        elif "mapping values" in problem or "start any token" in problem or problem.startswith("expected"):
            advice = (
                " Put the text in quotes if it contains ': ', brackets or commas, or starts with a special character."
            )
        raise RuleError(f"{where}Not valid YAML: {problem}.{advice}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, RuleError):
            raise
        raise RuleError(f"Not valid YAML: {error}.") from None


def _document(events: Iterator[Any]) -> Any:
    found: Any = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                line = getattr(event.start_mark, "line", 0) + 1
                raise RuleError(f"Line {line}: expected one document. Got a second one after '---'.")
        elif isinstance(event, yaml.NodeEvent):
            found = _value(event, events, 0)
    return found


def _value(event: Any, events: Iterator[Any], depth: int) -> Any:
    """Read the text, list or mapping that starts with an event."""
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise RuleError(f"Line {line}: expected plain YAML. Anchors and aliases (& and *) are not read.")
    if event.tag is not None:
        raise RuleError(f"Line {line}: expected plain YAML. Tags ({str(event.tag)[:40]}) are not read.")
    if isinstance(event, yaml.ScalarEvent):
        end = event.end_mark
        last = line if end is None else end.line + (end.column > 0)  # a block ends where the next line begins
        return _Text(event.value, line, max(line, last))
    if depth >= _MAX_NESTING:
        raise RuleError(f"Line {line}: expected at most {_MAX_NESTING} levels of lists and mappings. Got more.")
    inner = iter(lambda: next(events), None)
    parts = takewhile(lambda part: not isinstance(part, yaml.CollectionEndEvent), inner)
    if isinstance(event, yaml.SequenceStartEvent):
        return [_value(part, events, depth + 1) for part in parts]
    mapping: dict[_Text, Any] = {}
    for part in parts:
        key = _value(part, events, depth + 1)
        line = part.start_mark.line + 1
        if not isinstance(key, _Text):
            raise RuleError(f"Line {line}: expected a name as the key. Got a list or a mapping.")
        if key in mapping:
            raise RuleError(f"Line {line}: the key '{key}' appears twice.")
        mapping[key] = _value(next(events), events, depth + 1)
    return mapping


def write_yaml(specification: Specification) -> str:
    """Print a rules file that reads back as an equal specification, with outputs as numbers, labels, choices."""
    order = [(Number, Label, Choice).index(type(item)) for item in specification.outputs]
    if order != sorted(order):
        raise RuleError(
            "Expected outputs in the order numbers, labels, choices. Got another order, which no rules file can state."
        )
    lines = [f"{key}: {_scalar(text)}" for key, text in specification.about]
    lines.append("inputs:")
    lines += [f"  {_scalar(item.name)}: {_stated_input(item)}" for item in specification.inputs]
    numbers = [o for o in specification.outputs if isinstance(o, Number)]
    labels = [o.name for o in specification.outputs if isinstance(o, Label)]
    choices = [o for o in specification.outputs if isinstance(o, Choice)]
    if any(o.step is not None or o.lower is not None for o in numbers):
        lines.append("outputs:")
        lines += [f"  {_scalar(item.name)}: {_stated_output(item)}" for item in numbers]
    elif numbers:
        lines.append(f"outputs: {_flow(o.name for o in numbers)}")
    if labels:
        lines.append(f"labels: {_flow(labels)}")
    if choices:
        lines.append("choices:")
        lines += [f"  {_scalar(item.name)}: {_stated_choice(item)}" for item in choices]
    if specification.constants:
        lines.append("constants:")
        lines += [f"  {_scalar(name)}: {exact_text(value)}" for name, value in specification.constants]
    if specification.tables:
        categories = {item.name: item.categories for item in specification.inputs if isinstance(item, Categorical)}
        lines.append("tables:")
        for table in specification.tables:
            lines += table_lines(table, [categories[key] for key in table.keys], _scalar)
    lines.append("rules:" if specification.rules else "rules: []")
    for rule in specification.rules:
        lines.append(f"  - name: {_scalar(rule.name)}")
        lines += [f"    {key}: {_scalar(text)}" for key, text in rule.about]
        if rule.when is not None:
            lines.append(f"    when: {_scalar(rule.when)}")
        lines += _stated_pairs(rule, specification) if is_summary(rule.then) else [f"    then: {_scalar(rule.then)}"]
    return "\n".join(lines) + "\n"


def _stated_pairs(rule: Rule, specification: Specification) -> list[str]:
    """Print exclusions as pairs of names or, if there are many, by label number (0 is the first label)."""
    labels = [o.name for o in specification.outputs if isinstance(o, Label)]
    position = np.full(len(specification.targets), -1, dtype=np.int32)
    position[label_columns(specification)] = range(len(labels))
    pairs = position[rule.requirement.exclusions]
    lines = ["    never_together:"]
    if len(pairs) <= _LISTED_PAIRS:
        return lines + [f"      - {_flow([labels[h], labels[k]])}" for h, k in pairs.tolist()]
    return lines + [f"      {label}: {text}" for label, text in ranges_text(pairs).items()]


def _stated_input(item: NumericInput | Categorical) -> str:
    if isinstance(item, Categorical):
        missing = {} if item.missing is None else {"missing": _scalar(item.missing, flow=True)}
        return _braces({"categories": _flow(item.categories)} | missing)
    exact = date_text if item.dates else exact_text
    parts = {"range": f"[{exact(item.lower)}, {exact(item.upper)}]"}
    if item.integer and not item.dates:
        parts["integer"] = "true"
    parts |= {key: exact(value) for key in ("step", "missing") if (value := getattr(item, key)) is not None}
    return _braces(parts) if len(parts) > 1 else parts["range"]


def _stated_output(item: Number) -> str:
    parts = {}
    if item.step is not None:
        parts = {"integer": "true"} if item.step == 1 else {"step": exact_text(item.step)}
    if item.lower is not None and item.upper is not None:
        parts["range"] = f"[{exact_text(item.lower)}, {exact_text(item.upper)}]"
    return _braces(parts)


def _braces(parts: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{key}: {text}' for key, text in parts.items())}}}"


def _stated_choice(item: Choice) -> str:
    options = _flow(item.options)
    return options if item.pick == "max" else f"{{options: {options}, pick: {item.pick}}}"


def _flow(names: Iterable[str]) -> str:
    return f"[{', '.join(_scalar(name, flow=True) for name in names)}]"


_PLAIN_FLOW = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_ .=+-]*[A-Za-z0-9_])?")
_PLAIN_BLOCK = re.compile(r"[A-Za-z_0-9(](?:[A-Za-z0-9_ .=+*/<>!,()\[\]`-]*[A-Za-z0-9_)\]`])?")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def _scalar(text: str, *, flow: bool = False) -> str:
    """Write text as a YAML scalar that every reader takes for text: bare if possible, else in quotes."""
    if not text or not text.isprintable():
        raise RuleError(f"Expected printable names and texts. Got {text!r:.80}; a rules file cannot hold it.")
    pattern = _PLAIN_FLOW if flow else _PLAIN_BLOCK
    numeric = text[0] in "0123456789" and " " not in text
    if pattern.fullmatch(text) and text.lower() not in _YAML_WORDS and not numeric:
        return text
    return "'" + text.replace("'", "''") + "'"
