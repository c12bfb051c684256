"""The page itself: a template, one style sheet and one script, all inside one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

__all__ = ["json_for_script", "render"]

_SCRIPTS = ("program.js", "head.js", "page.js", "explorer.js")


def render(view: Mapping[str, Any], explorer: Mapping[str, Any] | None) -> str:
    """Return the HTML text of a view; everything in it that is not markup is escaped."""
    style = _asset("report.css")
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    return _template().render(
        **view,
        explorer=explorer,
        explorer_json=None if explorer is None else json_for_script(explorer),
        style=Markup(style),  # noqa: S704  our own files, which hold no user text
        script=Markup(script),  # noqa: S704
        policy=_policy(style, script),
    )


def json_for_script(value: Mapping[str, Any]) -> Markup:
    r"""Return JSON that no HTML parser can leave: `<`, `>` and `&` are written as \u003c, \u003e, \u0026."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704  nothing is left to escape


def _policy(style: str, script: str) -> str:
    """Allow exactly the style sheet and the script of the page, and nothing else from anywhere."""

    def source(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return resources.files("smle.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_asset("report.html"))
