"""The assurance report: one self-contained HTML file for auditors and engineers."""

from smle.report.write import Report, write_report

__all__ = ["Report", "write_report"]
