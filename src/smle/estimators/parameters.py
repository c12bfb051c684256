"""Parameters of estimators, validated with one shape of message when fitting starts."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smle.errors import ModelFormatError

__all__ = ["TUNED", "by_name", "plain_parameters", "require_parameters", "stored_parameters"]

TUNED = ("balanced_accuracy", "f1")
"""What thresholds can be tuned for."""


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value > 0)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)  # parameter grids hold the latter


def _widths(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(_whole(width) for width in value)


def _named(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


def _estimator(value: Any) -> bool:
    return not isinstance(value, type) and all(hasattr(value, name) for name in ("fit", "predict", "get_params"))


def _enforcement(value: Any) -> bool:
    training = sys.modules.get("smle.training.enforcement")  # whoever has such an object has loaded it
    return training is not None and isinstance(value, training.Enforcement)


def _chance(value: Any) -> bool:
    return _number(value) and bool(0 < value < 1)


def _each(allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(allowed, value.values()))


_LOSSES = ("squared_error", "absolute_error", "quantile", "poisson")
_KNOWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "estimator": (lambda v: v is None or _estimator(v), "an estimator (not its class) or None"),
    "hidden_layer_sizes": (_widths, "a tuple of positive whole numbers"),
    "embedding": (_whole, "a positive whole number"),
    "bounds": (_named("auto", "fixed", "affine", "network"), "'auto', 'fixed', 'affine' or 'network'"),
    "learning_rate": (lambda v: _number(v) and v > 0, "a positive number"),
    "weight_decay": (lambda v: v is None or (_number(v) and v >= 0), "a number from 0 on or None"),
    "loss": (lambda v: _named(*_LOSSES)(v) or callable(v), f"{', '.join(map(repr, _LOSSES))} or a function"),
    "quantile": (_chance, "a number between 0 and 1"),
    "class_weight": (
        lambda v: v is None or _named("balanced")(v) or _each(lambda w: _number(w) and w > 0)(v),
        "None, 'balanced' or a dict of positive numbers",
    ),
    "calibrate": (_flag, "True or False"),
    "thresholds": (
        lambda v: v is None or _chance(v) or _named(*TUNED)(v) or _each(_chance)(v),
        f"None, a number between 0 and 1, a dict of such by label, or {' or '.join(map(repr, TUNED))}",
    ),
    "warm_start": (_flag, "True or False"),
    "device": (lambda v: isinstance(v, str), "a text such as 'auto', 'cpu' or 'cuda'"),
    "callbacks": (lambda v: isinstance(v, Sequence) and all(map(callable, v)), "a list of functions"),
    "batch_size": (_whole, "a positive whole number"),
    "max_epochs": (_whole, "a positive whole number"),
    "patience": (lambda v: v is None or _whole(v), "a positive whole number or None"),
    "validation_fraction": (lambda v: _number(v) and 0 < v < 1, "a number between 0 and 1"),
    "schedule": (lambda v: v is None or _named("plateau", "cosine")(v), "'plateau', 'cosine' or None"),
    "final_epochs": (lambda v: v is None or (_number(v) and v == 0) or _whole(v), "a whole number from 0 on or None"),
    "enforcement": (lambda v: _named("correct", "pdcg")(v) or _enforcement(v), "'correct', 'pdcg' or an Enforcement"),
    "refit_heads": (_flag, "True or False"),
    "gate": (_flag, "True or False"),
    "out_of_domain": (_named("raise", "warn", "clip"), "'raise', 'warn' or 'clip'"),
    "checkpoint": (lambda v: v is None or isinstance(v, str | os.PathLike), "a path or None"),
    "compare": (_flag, "True or False"),
    "verbose": (lambda v: v is None or _flag(v), "True, False or None"),
}


def by_name(parameter: str, given: Mapping[Any, Any], names: Sequence[str], usual: float) -> Any:
    """Return numbers in the order of names, the usual one where none is given.

    Raises:
        ValueError: If a name is unknown.
    """
    strange = [name for name in given if name not in names]
    if strange:
        raise ValueError(f"Expected {parameter} by name ({', '.join(names)}). Got {strange[0]!r}.")
    return np.array([float(given.get(name, usual)) for name in names])


_OF_LEARNED_HEADS = {"bounds": "auto", "gate": True}


def require_parameters(values: dict[str, Any]) -> None:
    """Raise ValueError if a parameter has a value that it cannot have: `Expected NAME to be ... Got ...`."""
    for name, (allowed, what) in _KNOWN.items():
        if name in values and not allowed(values[name]):
            raise ValueError(f"Expected {name} to be {what}. Got {values[name]!r}.")
    if values.get("enforcement") == "correct":
        for name, usual in _OF_LEARNED_HEADS.items():
            if name in values and values[name] != usual:
                raise ValueError(
                    f"Expected {name} to be {usual!r} with enforcement='correct': answers are corrected, and there are "
                    f"no learned heads. Got {values[name]!r}. For a learned box pass enforcement='pdcg'."
                )


_NOT_STORED = ("spec", "estimator", "checkpoint", "device", "callbacks", "verbose")  # of other files, machines, runs


def plain_parameters(model: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that model.json can hold."""
    values = {name: value for name, value in model.get_params(deep=False).items() if name not in _NOT_STORED}
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None or values[name] is None}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; None if it has none."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)) else None


def stored_parameters(known: Sequence[str], description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that model.json holds, for an estimator that has these.

    Raises:
        ModelFormatError: If one is unknown, or has a value that it cannot have.
    """
    values = description.get("parameters", {})
    if not isinstance(values, dict):
        raise ModelFormatError("model.json: expected `parameters` as an object.")
    for name in values:
        if name not in known or name in _NOT_STORED:
            raise ModelFormatError(f"model.json: unknown parameter '{name}'.")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        require_parameters(values)
    except ValueError as error:
        raise ModelFormatError(f"model.json: {error}") from None
    return values
