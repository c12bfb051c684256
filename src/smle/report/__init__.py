"""The assurance report: one self-contained HTML file for auditors and engineers."""

import smle.nn  # noqa: F401  # first: where torch is missing it says what to install
from smle.report.write import Report, write_report

__all__ = ["Report", "write_report"]
