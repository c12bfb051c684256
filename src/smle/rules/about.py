"""Who says so: what a rule or a file of rules is for, where it comes from, who answers for it, and since when.

Nothing of it changes what a rule means, and nothing of it is proved. It is part of the rules file, which a certificate
binds.
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
    """What is said about a rule or a file of rules; None: nothing.

    * `description`: what it is for, in a sentence.
    * `source`: where it comes from: a law, a policy, a minute.
    * `owner`: who answers for it.
    * `since`: the date from which it holds, as in 2024-01-31.
    """

    description: str | None = None
    source: str | None = None
    owner: str | None = None
    since: str | None = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield what is said, by name."""
        return ((field.name, value) for field in fields(self) if (value := getattr(self, field.name)) is not None)


ABOUT = tuple(field.name for field in fields(About))
NOTHING = About()


def about_of(stated: Mapping[Any, Any], what: str) -> About:
    """Return what a mapping says under these keys; texts of several lines become one.

    Raises:
        RuleError: If a text is empty, long or not printable, or `since` is no date.
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
