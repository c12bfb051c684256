"""JSON Schemas of rules files and certificates, for editors and pipelines. They describe the form, not what holds."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

__all__ = ["NAMES", "schema", "schema_text"]

NAMES = ("rules", "certificate")


def schema_text(name: str) -> str:
    """Return a schema as text: `rules` or `certificate`."""
    if name not in NAMES:
        raise ValueError(f"Expected a schema among {', '.join(NAMES)}. Got {name!r}.")
    return (files(__name__) / f"{name}.schema.json").read_text(encoding="utf-8")


def schema(name: str) -> dict[str, Any]:
    """Return a schema as plain data: `rules` or `certificate`."""
    found: dict[str, Any] = json.loads(schema_text(name))
    return found
