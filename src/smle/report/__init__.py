"""Self-contained HTML files: the assurance report of a model, and a page about rules before training.

Names are loaded on first use, so that the page about rules does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Report": "smle.report.write",
    "write_report": "smle.report.write",
    "write_rules_page": "smle.report.rules_page",
}

__all__ = ["Report", "write_report", "write_rules_page"]

if TYPE_CHECKING:
    from smle.report.rules_page import write_rules_page
    from smle.report.write import Report, write_report


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'smle.report' has no attribute '{name}'")
