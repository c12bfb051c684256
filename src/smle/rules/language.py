"""Readable rules (YAML, Python text, Python operators) to a Specification, and back to text."""

from smle.rules.build import build
from smle.rules.yaml_reader import read_yaml
from smle.rules.yaml_writer import write_yaml

__all__ = ["build", "read_yaml", "write_yaml"]
