"""Parameters of networks, each stated once: its default, the values that it can have, and what it does.

Estimators inherit these dataclasses; `smle train --set`, the checks of `fit`, model.json and the docs read them.
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
    return isinstance(value, bool | np.bool_)  # parameter grids hold the latter


def share(value: Any) -> bool:
    """Return whether a value is a number between 0 and 1."""
    return _number(value) and bool(0 < value < 1)


def list_of(allowed: Allowed) -> Allowed:
    """Accept lists and tuples of such values."""
    return lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(allowed, value))


def dict_of(allowed: Allowed) -> Allowed:
    """Accept mappings to such values."""
    return lambda value: isinstance(value, Mapping) and all(map(allowed, value.values()))


def named(*names: str) -> Allowed:
    """Accept some texts."""
    return lambda value: isinstance(value, str) and value in names


def or_none(allowed: Allowed) -> Allowed:
    """Accept None as well."""
    return lambda value: value is None or allowed(value)


# --- stating


def stated(default: Any, allowed: Allowed, expected: str, words: str, *, stored: bool = True) -> Any:
    """Return a field: its default, which values it can have, and what it does. `stored`: model.json has it."""
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
    """How a network is trained."""

    _: KW_ONLY
    hidden_layer_sizes: tuple[int, ...] = stated(
        (64, 64, 64), list_of(_whole), "a tuple of positive whole numbers", "Widths of the hidden ReLU layers."
    )
    embedding: int = stated(
        64, _whole, _WHOLE, "Width of the linear layer behind them. Behind it are the answers, or the learned box."
    )
    learning_rate: float = stated(1e-2, lambda v: _number(v) and v > 0, "a positive number", "Step size of Adam.")
    weight_decay: float | None = stated(
        None,
        or_none(lambda v: _number(v) and v >= 0),
        "a number from 0 on or None",
        """How strongly weights are pulled to zero, as in AdamW: by this times the learning rate per step. None: 1 for
        squared errors, less the more of the variance the network explains; 0 for other losses of numbers, for learned
        boxes and in `partial_fit`.""",
    )
    batch_size: int = stated(256, _whole, _WHOLE, "Rows per step.")
    max_epochs: int = stated(500, _whole, _WHOLE, "Upper limit of epochs.")
    patience: int | None = stated(
        50, or_none(_whole), f"{_WHOLE} or None", "Epochs without a better validation loss before training stops."
    )
    validation_fraction: float = stated(
        0.2, share, "a number between 0 and 1", "Share of the rows that is held out for early stopping."
    )
    schedule: str | None = stated(
        "plateau", or_none(named("plateau", "cosine")), "'plateau', 'cosine' or None", "Of the learning rate."
    )
    final_epochs: int | None = stated(
        None,
        lambda v: v is None or (_number(v) and v == 0) or _whole(v),
        "a whole number from 0 on or None",
        """Epochs at the end on all rows, those held out included, with a small learning rate. None: a quarter of
        `max_epochs` for numbers that the network predicts well (nine tenths of the variance of rows held out); 40, and
        at most a quarter, for labels and choices, 0 for learned boxes of these.""",
    )
    device: str = stated(
        "auto",
        lambda v: isinstance(v, str),
        "a text such as 'auto', 'cpu' or 'cuda'",
        "Where it is trained; `auto`: on a GPU if torch has one. Answers are computed on the CPU.",
        stored=False,
    )
    callbacks: Sequence[Any] = stated(
        (),
        list_of(callable),
        "a list of functions",
        "Functions of `smle.training.EpochInfo`, called after each epoch; one that returns True ends training.",
        stored=False,
    )
    checkpoint: str | os.PathLike[str] | None = stated(
        None,
        or_none(lambda v: isinstance(v, str | os.PathLike)),
        "a path or None",
        "File to go on from after an interruption, and to write to after each epoch.",
        stored=False,
    )
    random_state: Any = stated(None, _anything, "a seed", "Seed, for repeatable results.")
    verbose: bool | None = stated(
        None, or_none(flag), f"{_FLAG} or None", "Show a progress bar; None: only on a terminal.", stored=False
    )


@dataclass(eq=False, repr=False)
class RegressionParameters(NetworkParameters):
    """How a network learns numbers."""

    _: KW_ONLY
    loss: Any = stated(
        "squared_error",
        lambda v: named(*_LOSSES)(v) or callable(v),
        f"{', '.join(map(repr, _LOSSES))} or a function",
        """What is learned: `squared_error`, `absolute_error`, `quantile`, `poisson`, or a function of (prediction,
        target), tensors (batch, m), with a value per row or number (it is not stored). `poisson` is for targets from 0
        on: the deviance of the answer itself. There is no exponential behind the network, so rules are about the rate;
        below a hundredth of the mean target the deviance goes on as a straight line.""",
    )
    quantile: float | tuple[float, ...] = stated(
        0.5,
        lambda v: share(v) or (list_of(share)(v) and len(v) > 0),
        "a number between 0 and 1, or several",
        "Of `loss='quantile'`; of several, each is an answer of its own.",
    )


@dataclass(eq=False, repr=False)
class ClassificationParameters(NetworkParameters):
    """How a network learns labels or one choice."""

    _: KW_ONLY
    hidden_layer_sizes: tuple[int, ...] = _again("hidden_layer_sizes", (100,))
    learning_rate: float = _again("learning_rate", 3e-3)
    weight_decay: float | None = _again("weight_decay", 1.0)
    class_weight: str | Mapping[Any, float] | None = stated(
        None,
        lambda v: v is None or named("balanced")(v) or dict_of(lambda w: _number(w) and w > 0)(v),
        "None, 'balanced' or a dict of positive numbers",
        """Weights in the loss: `balanced`, so that the sides of a label and the options of a choice count the same; or
        a dict: of a choice by option, of labels for the rows where the label is on.""",
    )


# --- reading


def documented(kind: Kind) -> Kind:
    """Add what is stated of the parameters of a class to its docstring."""
    lines = [f"        {name}: {words}" for name, words in help_of(kind).items()]
    kind.__doc__ = f"{(kind.__doc__ or '').rstrip()}\n\n    Args:\n" + "\n".join(lines) + "\n"
    return kind


def help_of(kind: Any) -> dict[str, str]:
    """Return what each parameter of a class does, with its default."""
    stated = [item for item in fields(kind) if "words" in item.metadata]
    return {item.name: f"{item.metadata['words']} Default: {item.default!r}." for item in stated}


def require_parameters(kind: Any, values: Mapping[str, Any]) -> None:
    """Raise ValueError if a parameter has a value that it cannot have: `Expected NAME to be ... Got ...`."""
    for item in fields(kind):
        if item.name in values and "allowed" in item.metadata and not item.metadata["allowed"](values[item.name]):
            raise ValueError(f"Expected {item.name} to be {item.metadata['expected']}. Got {values[item.name]!r}.")


def by_name(parameter: str, given: Mapping[Any, Any], names: Sequence[str], usual: float) -> Any:
    """Return numbers in the order of names, the usual one where none is given.

    Raises:
        ValueError: If a name is unknown.
    """
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
    """Return a value as JSON has it; None if it has none."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)) else None


def stored_parameters(kind: Any, values: Any) -> dict[str, Any]:
    """Return the parameters that model.json holds for a class.

    Raises:
        ModelFormatError: If one is unknown, or has a value that it cannot have.
    """
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
