"""The assurance report."""
