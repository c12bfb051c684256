"""Parameters of networks, each stated once: its default, its allowed values, and what it does.

Estimators inherit these dataclasses. `smle train --set`, the checks of `fit`, model.json and the docs read them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from smle.errors import ModelFormatError

__all__ = [
    "ClassificationParameters", "NetworkParameters", "RegressionParameters", "by_name", "dict_of", "documented", "flag",
    "help_of", "list_of", "named", "or_none", "plain_parameters", "require_parameters", "share", "stated",
    "stored_parameters",
]  # fmt: skip

Allowed = Callable[[Any], bool]
Kind = TypeVar("Kind", bound=type)


# --- values


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value > 0)


def flag(value: Any) -> bool:
    """Return whether a value is True or False."""
    return isinstance(value, bool | np.bool_)  # parameter grids hold NumPy booleans


def share(value: Any) -> bool:
    """Return whether a value is a number between 0 and 1."""
    return _number(value) and bool(0 < value < 1)


def list_of(allowed: Allowed) -> Allowed:
    """Return a check that accepts lists and tuples of allowed values."""
    return lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(allowed, value))


def dict_of(allowed: Allowed) -> Allowed:
    """Return a check that accepts mappings to allowed values."""
    return lambda value: isinstance(value, Mapping) and all(map(allowed, value.values()))


def named(*names: str) -> Allowed:
    """Return a check that accepts these texts."""
    return lambda value: isinstance(value, str) and value in names


def or_none(allowed: Allowed) -> Allowed:
    """Return a check that accepts allowed values and None."""
    return lambda value: value is None or allowed(value)


# --- stating


def stated(default: Any, allowed: Allowed, expected: str, words: str, *, stored: bool = True) -> Any:
    """Return a field with its default, its allowed values, and what it does. If `stored`, model.json keeps it."""
    facts = {"allowed": allowed, "expected": expected, "words": " ".join(words.split()), "stored": stored}
    return field(default=default, metadata=facts)


def _again(name: str, default: Any) -> Any:
    """Return a field of `NetworkParameters` with another default."""
    return field(default=default, metadata=NetworkParameters.__dataclass_fields__[name].metadata)


def _anything(value: Any) -> bool:
    return True


_WHOLE, _FLAG = "a positive whole number", "True or False"
_LOSSES = ("squared_error", "absolute_error", "quantile", "poisson")


@dataclass(eq=False, repr=False)
class NetworkParameters:
    """The parameters that say how to train a network."""

    _: KW_ONLY
    hidden_layer_sizes: tuple[int, ...] = stated(
        (64, 64, 64), list_of(_whole), "a tuple of positive whole numbers", "Widths of the hidden ReLU layers."
    )
    embedding: int = stated(
        64,
        _whole,
        _WHOLE,
        "Width of the linear layer after the hidden ones, in front of the answers or the learned box.",
    )
    learning_rate: float = stated(1e-2, lambda v: _number(v) and v > 0, "a positive number", "Step size of Adam.")
    weight_decay: float | None = stated(
        None,
        or_none(lambda v: _number(v) and v >= 0),
        "a number from 0 on or None",
        """Weight decay as in AdamW: each step shrinks the weights by this times the learning rate. None: 1 for squared
        errors, falling with the share of variance that the network explains; 0 for other losses of numbers, for learned
        boxes and in `partial_fit`.""",
    )
    batch_size: int = stated(256, _whole, _WHOLE, "Rows per step.")
    max_epochs: int = stated(500, _whole, _WHOLE, "Largest number of epochs.")
    patience: int | None = stated(
        50, or_none(_whole), f"{_WHOLE} or None", "Epochs without a better validation loss before training stops."
    )
    validation_fraction: float = stated(
        0.2, share, "a number between 0 and 1", "Share of the rows held out for early stopping."
    )
    schedule: str | None = stated(
        "plateau", or_none(named("plateau", "cosine")), "'plateau', 'cosine' or None", "Schedule of the learning rate."
    )
    final_epochs: int | None = stated(
        None,
        lambda v: v is None or (_number(v) and v == 0) or _whole(v),
        "a whole number from 0 on or None",
        """Epochs at the end on all rows, including those held out, with a small learning rate. None: a quarter of
        `max_epochs` for numbers that the network predicts well (nine tenths of the variance of rows held out); 40,
        but at most a quarter, for labels and choices, and 0 for learned boxes of these.""",
    )
    device: str = stated(
        "auto",
        lambda v: isinstance(v, str),
        "a text such as 'auto', 'cpu' or 'cuda'",
        "Where to train; `auto`: on a GPU if torch has one. Answers are computed on the CPU.",
        stored=False,
    )
    callbacks: Sequence[Any] = stated(
        (),
        list_of(callable),
        "a list of functions",
        "Functions called with a `smle.training.EpochInfo` after each epoch; one that returns True ends training.",
        stored=False,
    )
    checkpoint: str | os.PathLike[str] | None = stated(
        None,
        or_none(lambda v: isinstance(v, str | os.PathLike)),
        "a path or None",
        "File to continue from after an interruption, and to write to after each epoch.",
        stored=False,
    )
    random_state: Any = stated(None, _anything, "a seed", "Seed, for repeatable results.")
    verbose: bool | None = stated(
        None, or_none(flag), f"{_FLAG} or None", "Show a progress bar; None: only on a terminal.", stored=False
    )


@dataclass(eq=False, repr=False)
class RegressionParameters(NetworkParameters):
    """The parameters of a network that learns numbers."""

    _: KW_ONLY
    loss: Any = stated(
        "squared_error",
        lambda v: named(*_LOSSES)(v) or callable(v),
        f"{', '.join(map(repr, _LOSSES))} or a function",
        """The loss: `squared_error`, `absolute_error`, `quantile`, `poisson`, or a function of (prediction, target),
        tensors (batch, m), with a value per row or number (it is not stored). `poisson` is for targets from 0 on: the
        deviance of the answer itself. There is no exponential after the network, so rules are about the rate; below a
        hundredth of the mean target the deviance continues as a straight line.""",
    )
    quantile: float | tuple[float, ...] = stated(
        0.5,
        lambda v: share(v) or (list_of(share)(v) and len(v) > 0),
        "a number between 0 and 1, or several",
        "The quantile of `loss='quantile'`; with several, each is a separate answer.",
    )


@dataclass(eq=False, repr=False)
class ClassificationParameters(NetworkParameters):
    """The parameters of a network that learns labels or one choice."""

    _: KW_ONLY
    hidden_layer_sizes: tuple[int, ...] = _again("hidden_layer_sizes", (100,))
    learning_rate: float = _again("learning_rate", 3e-3)
    weight_decay: float | None = _again("weight_decay", 1.0)
    class_weight: str | Mapping[Any, float] | None = stated(
        None,
        lambda v: v is None or named("balanced")(v) or dict_of(lambda w: _number(w) and w > 0)(v),
        "None, 'balanced' or a dict of positive numbers",
        """Weights in the loss: `balanced`, so that both sides of a label and all options of a choice count the same;
        or a dict: for a choice by option, for labels the weight of rows where the label is on.""",
    )


# --- reading


def documented(kind: Kind) -> Kind:
    """Append the descriptions of the parameters of a class to its docstring."""
    lines = [f"        {name}: {words}" for name, words in help_of(kind).items()]
    kind.__doc__ = f"{(kind.__doc__ or '').rstrip()}\n\n    Args:\n" + "\n".join(lines) + "\n"
    return kind


def help_of(kind: Any) -> dict[str, str]:
    """Return what each parameter of a class does, with its default."""
    stated = [item for item in fields(kind) if "words" in item.metadata]
    return {item.name: f"{item.metadata['words']} Default: {item.default!r}." for item in stated}


def require_parameters(kind: Any, values: Mapping[str, Any]) -> None:
    """Raise ValueError if a parameter has an invalid value: `Expected NAME to be ... Got ...`."""
    for item in fields(kind):
        if item.name in values and "allowed" in item.metadata and not item.metadata["allowed"](values[item.name]):
            raise ValueError(f"Expected {item.name} to be {item.metadata['expected']}. Got {values[item.name]!r}.")


def by_name(parameter: str, given: Mapping[Any, Any], names: Sequence[str], usual: float) -> Any:
    """Return the numbers given by name in the order of `names`, else `usual`. Raises ValueError for an unknown name."""
    strange = [name for name in given if name not in names]
    if strange:
        raise ValueError(f"Expected {parameter} by name ({', '.join(names)}). Got {strange[0]!r}.")
    return np.array([float(given.get(name, usual)) for name in names])


def plain_parameters(model: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that model.json can hold."""
    values = {item.name: getattr(model, item.name) for item in fields(model) if item.metadata.get("stored")}
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None or values[name] is None}


def _plain(value: Any) -> Any:
    """Return a value as JSON data, or None if it has no such form."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)) else None


def stored_parameters(kind: Any, values: Any) -> dict[str, Any]:
    """Return the parameters that model.json holds for a class. Raises ModelFormatError if one is invalid."""
    if not isinstance(values, dict):
        raise ModelFormatError("model.json: expected `parameters` as an object.")
    known = {item.name for item in fields(kind) if item.metadata.get("stored")}
    for name in values:
        if name not in known:
            raise ModelFormatError(f"model.json: unknown parameter '{name}'.")
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        require_parameters(kind, found)
    except ValueError as error:
        raise ModelFormatError(f"model.json: {error}") from None
    return found
