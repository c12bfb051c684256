"""Writes files completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["reason_of", "replacing"]


def reason_of(error: OSError) -> str:
    """Return why a file could not be written, in words."""
    in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
    return "a part of the path is a file" if in_the_way else error.strerror or str(error)


@contextmanager
def replacing(*places: Path) -> Iterator[list[Path]]:
    """Yield temporary paths; when the block ends, the files written there are synced and moved to `places`.

    A place holds its old file or its new one, never a part of one; if the block raises, the old one. Creates parent
    folders.
    """
    fresh = [place.with_name(f".{place.name}.{secrets.token_hex(4)}") for place in places]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield fresh
        for path in fresh:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        for path, place in zip(fresh, places, strict=True):
            os.replace(path, place)
    finally:
        for path in fresh:
            path.unlink(missing_ok=True)
