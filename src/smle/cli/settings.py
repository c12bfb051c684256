"""Settings of `smle train`: a YAML file, overridden by options on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

__all__ = ["TrainSettings", "checked_parameters"]

_OWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "estimator": (lambda v: isinstance(v, str), "a name"),
    "test_share": (lambda v: type(v) in (int, float) and 0 <= v < 1, "a number from 0 up to 1"),
    "seed": (lambda v: type(v) is int and 0 <= v < 2**32, "a whole number from 0 to 4294967295"),
}
_ELSEWHERE = {
    "random_state": "--seed", "checkpoint": "--checkpoint", "spec": "the rules file", "estimator": "--estimator",
    "callbacks": "Python", "warm_start": "Python",
}  # fmt: skip


@dataclass(frozen=True)
class TrainSettings:
    """How to train from the command line. `parameters` maps names to (value, where it was written)."""

    estimator: str = "network"
    seed: int = 0
    test_share: float = 0.2
    parameters: Mapping[str, tuple[Any, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, assigned: Sequence[str], given: Mapping[str, Any]) -> TrainSettings:
        """Return the defaults, overridden by a YAML file, then by texts such as `max_epochs=50`, then by options.

        Options that were not given are None. Raises ValueError if the file is not readable, or a value does not fit.
        """
        own: dict[str, Any] = {}
        parameters: dict[str, tuple[Any, str]] = {}
        for name, value in ({} if path is None else _read_file(path)).items():
            if name in _OWN:
                own[name] = _checked(name, value, f"{path}: expected {name}")
            else:
                parameters[str(name)] = (_value(value), f"{path}: ")
        for text in assigned:
            name, equals, value = text.partition("=")
            if not equals:
                raise ValueError(f"--set: expected a name and a value, such as max_epochs=50. Got {text!r}.")
            parameters[name.strip().replace("-", "_")] = (_read(value), "--set: ")
        for name, value in given.items():
            if value is not None:
                own[name] = _checked(name, value, f"Expected --{name.replace('_', '-')}")
        return cls(**own, parameters=parameters)


def checked_parameters(parameters: Mapping[str, tuple[Any, str]], *kinds: Any) -> list[dict[str, Any]]:
    """Return for each class the parameters that belong to it.

    Raises ValueError for unknown names or invalid values.
    """
    from smle.parameters import require_parameters

    found: list[dict[str, Any]] = [{} for _ in kinds]
    known = [{item.name: item for item in fields(kind) if item.name not in _ELSEWHERE} for kind in kinds]
    for name, (value, where) in parameters.items():
        if name in _ELSEWHERE:
            raise ValueError(f"{where}'{name}' is set by {_ELSEWHERE[name]}.")
        place = next((i for i, items in enumerate(known) if name in items), None)
        if place is None:
            names = [name for items in known for name in items]
            close = difflib.get_close_matches(name.replace("-", "_"), names, n=1)
            hint = f"Did you mean '{close[0]}'?" if close else f"Known are: {', '.join(names)}."
            raise ValueError(f"{where}unknown parameter '{name}'. {hint}")
        allowed = known[place][name].metadata["allowed"]
        value = (value,) if not allowed(value) and allowed((value,)) else value
        try:
            require_parameters(kinds[place], {name: value})
        except ValueError as error:
            raise ValueError(f"{where}{error}") from None
        found[place][name] = value
    return found


def _checked(name: str, value: Any, shown: str) -> Any:
    """Check the value of an option; an error names it as written."""
    allowed, what = _OWN[name]
    value = _value(value)
    if not allowed(value):
        raise ValueError(f"{shown} to be {what}. Got {value!r}.")
    return value


def _read(text: str) -> Any:
    """Read text as YAML does; numbers separated by commas become a tuple."""
    import yaml

    try:
        return _value(yaml.safe_load(text))
    except yaml.YAMLError:
        return text


def _value(value: Any) -> Any:
    """Turn lists into tuples, and text into numbers that YAML misses: 1e-2, or several separated by commas."""
    if isinstance(value, list):
        return tuple(map(_value, value))
    if not isinstance(value, str):
        return value
    try:
        parts = [int(part) if part.strip().isdecimal() else float(part) for part in value.split(",")]
    except ValueError:
        return value
    return parts[0] if len(parts) == 1 else tuple(parts)


def _read_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"Cannot read '{path}': no such file. Expected a YAML file with settings.") from None
    except IsADirectoryError:
        raise ValueError(f"Cannot read '{path}': it is a folder. Expected a YAML file with settings.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable as YAML ({' '.join(str(error).split())}).") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected lines such as `max_epochs: 200`. Got {type(content).__name__}.")
    return content
