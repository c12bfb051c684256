"""HTML pages: a template, a style sheet and a script in one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import smle
from smle.files import reason_of, replacing

__all__ = ["json_for_script", "render", "require_page", "stamped", "write_page"]

_EXPLORER = ("program.js", "head.js", "grid.js", "page.js", "explorer.js")


def render(template: str, view: Mapping[str, Any], explorer: Mapping[str, Any] | None = None) -> str:
    """Render a view as HTML; everything that is not markup is escaped."""
    style = _asset("report.css")
    script = _asset("page.js") + "\nsetUpPage();\n"
    if template == "report.html":
        script = "\n".join(_asset(name) for name in _EXPLORER)
    return (
        _templates()
        .get_template(template)
        .render(
            **view,
            explorer=explorer,
            explorer_json=None if explorer is None else json_for_script(explorer),
            style=Markup(style),  # noqa: S704  our own files, which hold no user text
            script=Markup(script),  # noqa: S704
            policy=_policy(style, script),
        )
    )


def stamped() -> dict[str, str]:
    """Return the date, and the version of smle, for the page."""
    now = datetime.now(timezone.utc)
    return {
        "version": smle.__version__,
        "date": f"{now.day} {now:%B %Y, %H:%M} UTC",
        "date_iso": now.isoformat(timespec="seconds"),
    }


def require_page(target: Path, kept: Mapping[str, Path]) -> None:
    """Raise ValueError unless the page may be written to `target`.

    It may replace web pages, but no folder, and none of the files in `kept`, a dict by description.
    """
    if target.is_dir():
        raise ValueError(f"Cannot write '{target}': it is a folder. Name a file, such as report.html.")
    if not target.exists():
        return
    for what, file in kept.items():
        if file.exists() and target.samefile(file):
            raise ValueError(f"'{target}' is {what}. Name another file for the page.")
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"'{target}' exists and is not called .html. Name another file for the page.")


def write_page(target: Path, text: str) -> None:
    """Write a file completely or not at all; an OSError names it."""
    try:
        with replacing(target) as (fresh,):
            fresh.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(f"Cannot write '{target}': {reason_of(error)}. Name another place.") from error


def json_for_script(value: Mapping[str, Any]) -> Markup:
    r"""Return JSON that is safe inside HTML: `<`, `>` and `&` are written as \u003c, \u003e, \u0026."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704  nothing is left to escape


def _policy(style: str, script: str) -> str:
    """Return a content security policy that allows only the page's own style sheet and script."""

    def source(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return resources.files("smle.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_asset),
    )  # fmt: skip
