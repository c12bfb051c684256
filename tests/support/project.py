"""What pyproject.toml says."""

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).parents[2]


def project() -> dict[str, Any]:
    """Return the table `project`: dependencies, extras, versions of Python."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found
