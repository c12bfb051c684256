"""Settings of `smle train`: defaults, a YAML file, and options of the command line, which win."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

__all__ = ["TrainSettings"]


@dataclass(frozen=True)
class TrainSettings:
    """How to train from the command line; names are those of the options and of the keys in a settings file."""

    hidden: tuple[int, ...] = (64, 64, 64)
    embedding: int = 64
    bounds: str = "auto"
    enforcement: str = "gauge"
    learning_rate: float = 1e-2
    batch_size: int = 256
    epochs: int = 500
    patience: int = 50
    final_epochs: int | None = None
    seed: int = 0
    gate: bool = True
    refit: bool = True
    validation_share: float = 0.2
    test_share: float = 0.2
    twin: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", _widths(self.hidden))
        if isinstance(self.test_share, bool | str) or not 0 <= self.test_share < 1:
            raise ValueError(f"Expected test_share to be a number from 0 up to 1. Got {self.test_share!r}.")
        if not isinstance(self.twin, bool):
            raise ValueError(f"Expected twin to be true or false. Got {self.twin!r}.")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ValueError(f"Expected seed to be a whole number from 0 to 4294967295. Got {self.seed!r}.")

    @classmethod
    def read(cls, path: Path | None, given: Mapping[str, Any]) -> TrainSettings:
        """Return the defaults, changed by a settings file, changed by what was given (None: not given).

        Raises:
            ValueError: If the file is not readable, or has a key that is unknown or a value that does not fit.
        """
        stated = {} if path is None else _read_file(path)
        known = [field.name for field in fields(cls)]
        for key in stated:
            if key not in known:
                close = difflib.get_close_matches(str(key).replace("-", "_"), known, n=1)
                hint = f" Did you mean '{close[0]}'?" if close else f" Known are: {', '.join(known)}."
                raise ValueError(f"{path}: unknown setting '{key}'.{hint}")
        chosen = {key: value for key, value in given.items() if value is not None}
        try:
            settings = cls(**stated)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
        return replace(settings, **chosen)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the estimators."""
        return {
            "hidden": self.hidden,
            "embedding": self.embedding,
            "bounds": self.bounds,
            "enforcement": self.enforcement,
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "max_epochs": self.epochs,
            "patience": self.patience,
            "final_epochs": self.final_epochs,
            "random_state": self.seed,
            "gate": self.gate,
            "refit": self.refit,
            "validation_share": self.validation_share,
        }


def _widths(value: Any) -> tuple[int, ...]:
    """Return widths given as `64,64`, a list, or one number."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    parts = [str(item).strip() for item in items]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"Expected hidden to be positive whole numbers such as 64,64. Got {value!r}.")
    return tuple(int(part) for part in parts)


def _read_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"Cannot read '{path}': no such file. Expected a YAML file with settings.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable as YAML ({' '.join(str(error).split())}).") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected lines such as `epochs: 200`. Got {type(content).__name__}.")
    return content
