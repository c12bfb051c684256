"""The tables of parameters in docs/training.md, from where the parameters are stated.

PYTHONPATH=src:tests python -m support.parameter_tables    # writes them anew
"""

import re
from dataclasses import fields
from pathlib import Path

import smle

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
KINDS = (
    smle.NetworkRegressor, smle.NetworkClassifier, smle.SMLERegressor, smle.SMLEClassifier, smle.SafeRegressor,
    smle.SafeClassifier, smle.SafeQuantileRegressor,
)  # fmt: skip
_PLACE = re.compile(r"(?<=read it there\.\n\n).*?(?=\n\n## )", re.DOTALL)


def parameter_tables() -> str:
    """Return a table for each group of classes that share parameters."""
    homes: dict[tuple[str, str], dict[str, str]] = {}
    for kind in KINDS:
        for item in fields(kind):
            homes.setdefault((item.name, item.metadata["words"]), {})[kind.__name__] = f"`{item.default!r}`"
    groups: dict[str, list[str]] = {}
    for (name, words), found in homes.items():
        line = f"| `{name}` | {' or '.join(dict.fromkeys(found.values()))} | {words} |"
        groups.setdefault(", ".join(f"`{kind}`" for kind in found), []).append(line)
    return "\n\n".join(f"{title}:\n\n| | default | |\n|---|---|---|\n" + "\n".join(v) for title, v in groups.items())


def stated_on_the_page() -> str:
    """Return what the page has."""
    (found,) = _PLACE.findall(PAGE.read_text(encoding="utf-8"))
    return str(found)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(stated_on_the_page(), parameter_tables()), encoding="utf-8")
