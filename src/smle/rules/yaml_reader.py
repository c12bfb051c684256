"""Rules files: YAML read as plain text. No types are guessed, so decimals stay exact."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from smle.errors import RuleError
from smle.rules.build import build, check_keys, located
from smle.rules.exclusions import NeverTogether, pairs_from_file
from smle.rules.parser import Functions
from smle.rules.specification import RuleText, Specification

__all__ = ["MAX_BYTES", "read_yaml"]

MAX_BYTES = 16 * 2**20
_MAX_NESTING = 10
_LARGE = 200_000
_PARTS = ("inputs", "outputs", "labels", "choices", "constants", "rules")


class _Text(str):
    """A scalar as written, with its line."""

    line: int

    def __new__(cls, text: str, line: int) -> _Text:
        made = super().__new__(cls, text)
        made.line = line
        return made


def read_yaml(source: str | os.PathLike[str], functions: Functions | None = None) -> Specification:
    """Read a rules file: a path, or the YAML text itself (anything with a line break); `functions` as in `build`.

    Raises:
        RuleError: If the file cannot be read; the message has the line.

    """
    if isinstance(source, str) and "\n" in source:
        return _specification(source, None, functions)
    if not isinstance(source, str | os.PathLike):
        raise RuleError(f"Expected a path or a YAML text. Got {type(source).__name__}.")
    path = Path(source)
    try:
        text = _file_text(path)
        return _specification(text, path.parent, functions)
    except RuleError as error:
        message = str(error)
        raise RuleError(
            f"{path.name}: {message[0].lower() if message.startswith('Line') else message[0]}{message[1:]}"
        ) from None


def _file_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RuleError(f"Expected a rules file of at most {MAX_BYTES:,} bytes. Got {path.stat().st_size:,}.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise RuleError("Expected a text file in UTF-8. Got other bytes.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = " A YAML text needs a line break to be taken for one." if ":" in str(path) else ""
        raise RuleError(f"Cannot read the rules file '{str(path)[:200]}': {reason}.{hint}") from None


def _specification(text: str, folder: Path | None, functions: Functions | None) -> Specification:
    if len(text) > MAX_BYTES:
        raise RuleError(f"Expected a rules file of at most {MAX_BYTES:,} characters. Got {len(text):,}.")
    data = _load(text)
    if not isinstance(data, dict):
        found = "an empty file" if data is None or data == "" else f"a {'list' if isinstance(data, list) else 'text'}"
        raise RuleError(f"Expected a rules file with inputs, outputs and rules. Got {found}.")
    check_keys(data, _PARTS, "Rules file")
    for part in ("inputs", "rules"):
        if part not in data:
            raise RuleError(f"Expected the part '{part}' in the rules file. Got {', '.join(data) or 'nothing'}.")
    return build(
        inputs=_part(data, "inputs", {}),
        outputs=_part(data, "outputs", []),
        labels=_part(data, "labels", []),
        choices=_part(data, "choices", {}),
        constants=_part(data, "constants", {}),
        rules=list(_rule_texts(data["rules"], folder)),
        functions=functions,
    )


def _part(data: dict[str, Any], key: str, default: Any) -> Any:
    value = data.get(key, default)
    return default if value == "" else value


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
            check_keys(item, ("name", "when", "then", "never_together"), f"Rule '{name}'")
            if ("then" in item) == ("never_together" in item):
                raise RuleError(f"Rule '{name}': expected either 'then' or 'never_together'. Got {', '.join(item)}.")
            for part in ("when", "then"):
                value = item.get(part)
                if part in item and (not isinstance(value, str) or not value.strip()):
                    raise RuleError(f"Rule '{name}', {part}: expected a condition. Got {_kind(value)}.")
            then = item["then"] if "then" in item else _pairs(item["never_together"], name, folder)
        yield RuleText(name, item.get("when"), then)


def _refuse_cut_texts(item: Mapping[str, Any], name: str) -> None:
    """Say what happened to `{then: max(a, b) <= 1}`, where YAML takes the comma for the end of the text."""
    for part in ("when", "then"):
        text = item.get(part)
        if isinstance(text, str) and text.count("(") > text.count(")") and any(")" in key for key in item):
            raise RuleError(
                f"Rule '{name}', {part}: the text ends after '{text}', because a comma inside of braces ends it. Put "
                f"it in quotes, as in {{{part}: 'max(a, b) <= 1'}}."
            )


def _kind(value: object) -> str:
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
    """Build plain lists, dicts and texts from YAML events; no tags, no anchors, no repeated keys."""
    try:
        # libyaml reads megabytes of exclusions much faster; messages of the Python parser are the ones tested.
        loader = yaml.BaseLoader if len(text) < _LARGE else getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        return _Builder().run(yaml.parse(text, Loader=loader))
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
        raise RuleError(f"{where}This is not YAML: {problem}.{advice}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, RuleError):
            raise
        raise RuleError(f"This is not YAML: {error}.") from None


class _Builder:
    """A stack of containers under construction."""

    def __init__(self) -> None:
        self._stack: list[list[Any] | dict[_Text, Any]] = []
        self._keys: list[_Text | None] = []
        self._root: Any = None

    def run(self, events: Iterator[yaml.Event]) -> Any:
        documents = 0
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise RuleError(f"Line {line}: expected one document. Got a second one after '---'.")
            elif isinstance(event, yaml.NodeEvent):
                self._refuse(event, line)
                if isinstance(event, yaml.ScalarEvent):
                    self._place(_Text(event.value, line), line)
                else:
                    self._open([] if isinstance(event, yaml.SequenceStartEvent) else {}, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._stack.pop()
                self._keys.pop()
        return self._root

    @staticmethod
    def _refuse(event: yaml.NodeEvent, line: int) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise RuleError(f"Line {line}: expected plain YAML. Anchors and aliases (& and *) are not read.")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise RuleError(f"Line {line}: expected plain YAML. Tags ({str(tag)[:40]}) are not read.")

    def _open(self, container: list[Any] | dict[_Text, Any], line: int) -> None:
        if len(self._stack) >= _MAX_NESTING:
            raise RuleError(f"Line {line}: expected at most {_MAX_NESTING} levels of lists and mappings. Got more.")
        self._place(container, line)
        self._stack.append(container)
        self._keys.append(None)

    def _place(self, value: Any, line: int) -> None:
        if not self._stack:
            self._root = value
            return
        top, key = self._stack[-1], self._keys[-1]
        if isinstance(top, list):
            top.append(value)
        elif key is None:
            if not isinstance(value, _Text):
                raise RuleError(f"Line {line}: expected a name as the key. Got a list or a mapping.")
            if value in top:
                raise RuleError(f"Line {line}: the key '{value}' appears twice.")
            self._keys[-1] = value
            top[value] = ""
        else:
            top[key] = value
            self._keys[-1] = None
