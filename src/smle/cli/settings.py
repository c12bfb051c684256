"""Settings of `smle train`: defaults, a YAML file, and options of the command line, which win."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from smle.defaults import NETWORK

__all__ = ["TrainSettings"]

_WHOLE = ("embedding", "batch_size", "epochs", "patience", "final_epochs", "seed")
_NUMBERS = (*_WHOLE, "learning_rate", "validation_share", "test_share")
_PARAMETERS = {
    "epochs": "max_epochs", "hidden": "hidden_layer_sizes", "refit": "refit_heads", "seed": "random_state",
    "validation_share": "validation_fraction",
}  # settings with another name in Python  # fmt: skip
# What the estimators do not know, or not in this form; they check the other settings.
_MODELS = ("network", "auto", "hist-gradient-boosting", "random-forest", "extra-trees", "ridge", "xgboost", "lightgbm")
_OWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda v: v in _MODELS, f"one of {', '.join(_MODELS)}"),
    "hidden": (lambda v: v is not None, "positive whole numbers such as 64,64"),
    "test_share": (lambda v: type(v) in (int, float) and 0 <= v < 1, "a number from 0 up to 1"),
    "seed": (lambda v: type(v) is int and 0 <= v < 2**32, "a whole number from 0 to 4294967295"),
}


@dataclass(frozen=True)
class TrainSettings:
    """How to train from the command line; names are those of the options and of the keys in a settings file."""

    model: str = "network"
    hidden: tuple[int, ...] | None = None
    embedding: int = NETWORK.embedding
    bounds: str = NETWORK.bounds
    enforcement: str = NETWORK.enforcement
    learning_rate: float | None = None
    batch_size: int = NETWORK.batch_size
    epochs: int = NETWORK.max_epochs
    patience: int = NETWORK.patience
    final_epochs: int | None = NETWORK.final_epochs
    seed: int = 0
    gate: bool = NETWORK.gate
    refit: bool = NETWORK.refit_heads
    validation_share: float = NETWORK.validation_fraction
    test_share: float = 0.2

    @classmethod
    def read(cls, path: Path | None, given: Mapping[str, Any]) -> TrainSettings:
        """Return the defaults, changed by a settings file, changed by what was given (None: not given).

        Raises:
            ValueError: If the file is not readable, or has a key that is unknown, or a value does not fit.
        """
        stated = {} if path is None else _read_file(path)
        known = [field.name for field in fields(cls)]
        for key in stated:
            if key not in known:
                close = difflib.get_close_matches(str(key).replace("-", "_"), known, n=1)
                hint = f" Did you mean '{close[0]}'?" if close else f" Known are: {', '.join(known)}."
                raise ValueError(f"{path}: unknown setting '{key}'.{hint}")
        values: dict[str, Any] = {}
        for key, value in stated.items():
            try:
                values[key] = _checked(key, value, key)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
        for key, value in given.items():
            if value is not None:
                values[key] = _checked(key, value, "--" + key.replace("_", "-"))
        return cls(**values)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the estimators."""
        by_kind = [name for name in ("hidden", "learning_rate") if getattr(self, name) is None]
        names = [field.name for field in fields(self) if field.name not in ("model", "test_share", *by_kind)]
        return {_PARAMETERS.get(name, name): getattr(self, name) for name in names}


def _checked(name: str, given: Any, shown: str) -> Any:
    """Return the value of a setting; an error names the setting as it was written.

    Raises:
        ValueError: If the setting cannot have this value.
    """
    value = _widths(given) if name == "hidden" else _number(name, given)
    if name in _OWN:
        allowed, what = _OWN[name]
        if not allowed(value):
            raise ValueError(f"Expected {shown} to be {what}. Got {given!r}.")
        return value
    from smle.estimators import SafeRegressor
    from smle.estimators.parameters import require_parameters

    parameter = _PARAMETERS.get(name, name)
    try:
        require_parameters({**SafeRegressor().get_params(deep=False), parameter: value})
    except ValueError as error:
        raise ValueError(str(error).replace(f"Expected {parameter} ", f"Expected {shown} ", 1)) from None
    return value


def _number(name: str, value: Any) -> Any:
    """Return text as a number where one is expected: YAML reads 1e-2 as text."""
    if name not in _NUMBERS or not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if name in _WHOLE and number.is_integer() else number


def _widths(value: Any) -> tuple[int, ...] | None:
    """Return widths given as `64,64`, a list, or one number; None: they are something else."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    parts = [str(item).strip() for item in items]
    fit = all(part.isdecimal() and int(part) > 0 for part in parts)
    return tuple(int(part) for part in parts) if fit else None


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
        raise ValueError(f"{path}: expected lines such as `epochs: 200`. Got {type(content).__name__}.")
    return content
