"""Line numbers in errors about rules files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smle.errors import RuleError

__all__ = ["located"]


@contextmanager
def located(value: object) -> Iterator[None]:
    """Prefix errors about a value with the line of the file it came from."""
    try:
        yield
    except RuleError as error:
        line = getattr(value, "line", None)
        if line is None or str(error).startswith(("Line ", "Lines ")):
            raise
        last = getattr(value, "last_line", line)
        raise RuleError(f"{f'Line {line}' if last == line else f'Lines {line} to {last}'}: {error}") from None
