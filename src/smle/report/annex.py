"""The report as technical documentation: what Annex IV of the EU AI Act (Regulation (EU) 2024/1689) asks for.

A reading aid, not legal advice. It claims little: no point is filled by a report alone, and a section that the page
does not have answers nothing. The points, and what to say of each, are in assets/annex.json.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from importlib import resources
from typing import Any

__all__ = ["annex_view"]


def annex_view(contents: Collection[tuple[str, str]], *, proved: bool) -> list[dict[str, Any]]:
    """Return one row per point of the annex: what it asks for, what the page has of it, what has to be added.

    Args:
        contents: Anchors and titles of the page's sections.
        proved: Whether the certificate was accepted. Otherwise nothing is claimed at all.
    """
    titles = dict(contents)
    points = json.loads((resources.files("smle.report") / "assets" / "annex.json").read_text(encoding="utf-8"))
    rows = []
    for point in points:
        sections = [(anchor, titles[anchor]) for anchor in point["sections"] if anchor in titles and proved]
        answer = {"state": "partly"} if sections else {"state": "open", "here": "", "missing": "everything"}
        rows.append({**point, **answer, "sections": sections})
    return rows
