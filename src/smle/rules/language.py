"""Readable rules (YAML, Python text, Python operators) to a Specification, and back to text."""

from smle.rules.build import build
from smle.rules.yaml_io import read_yaml, write_yaml

__all__ = ["build", "read_yaml", "write_yaml"]
