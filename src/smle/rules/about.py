"""Metadata of a rule or a rules file: its purpose, source, owner and start date.

Metadata does not change what a rule means, and nothing about it is proved. It is part of the rules file, which the
certificate binds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from smle.errors import RuleError
from smle.rules.dates import day_of, is_date
from smle.rules.expressions import shown
from smle.rules.lines import located

__all__ = ["ABOUT", "NOTHING", "About", "about_of"]

_LONGEST = 2000  # characters of one text


@dataclass(frozen=True)
class About:
    """Metadata of a rule or a rules file; a field is None if not stated.

    * `description`: what it is for, in a sentence.
    * `source`: where it comes from, such as a law or a policy.
    * `owner`: who is responsible for it.
    * `since`: the date it took effect, such as 2024-01-31.
    """

    description: str | None = None
    source: str | None = None
    owner: str | None = None
    since: str | None = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield (field, value) for the fields that are stated."""
        return ((field.name, value) for field in fields(self) if (value := getattr(self, field.name)) is not None)


ABOUT = tuple(field.name for field in fields(About))
NOTHING = About()


def about_of(stated: Mapping[Any, Any], what: str) -> About:
    """Read the metadata keys of a mapping; line breaks in a text become spaces.

    Raises RuleError if a text is empty, too long or not printable, or `since` is not a date.
    """
    found = {}
    for key in ABOUT:
        value = stated.get(key)
        if value is None:
            continue
        text = " ".join(str(value).split())
        with located(value):
            if isinstance(value, list | dict) or not text or not text.isprintable() or len(text) > _LONGEST:
                raise RuleError(f"{what}, {key}: expected a text of 1 to {_LONGEST} characters. Got {shown(value)}.")
            if key == "since" and not is_date(text):
                raise RuleError(f"{what}, since: expected a date such as 2024-01-31. Got {shown(text)}.")
            if key == "since":
                day_of(text)
        found[key] = text
    return About(**found)
