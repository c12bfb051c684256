"""The command: check a model folder or an ONNX file, and print what is proved."""

import os
import sys
from typing import NamedTuple

from smle_check.check import check_certificate, read_folder
from smle_check.onnx.check_file import check_onnx, read_onnx
from smle_check.reading import Rejected, read_json
from smle_check.stated import StatedSpecification
from smle_check.words import Proved, assumptions_text, domain_text, head_text, print_lines, proved_text

USAGE = "usage: smle-check MODEL      (a model folder, or an ONNX file with its certificate beside it)"


class CheckedModel(NamedTuple):
    """What is proved, and the lines to print about it."""

    proved: list[Proved]
    lines: list[str]


def check(path: str | os.PathLike[str]) -> CheckedModel:
    """Check a model folder, or an ONNX file with its certificate beside it. Raises Rejected if anything is wrong."""
    place = os.fspath(path)
    return _check_folder(place) if os.path.isdir(place) else _check_file(place)


def _check_folder(folder: str) -> CheckedModel:
    certificate, tensors, block, files = read_folder(folder)
    proved = check_certificate(certificate, tensors, block, files)
    document = read_json(certificate, "certificate")
    spec = StatedSpecification(document["specification"], block)
    found = head_text(document["program"]["head"], tensors, files)
    return CheckedModel(
        proved, _lines(domain_text(spec), proved, found, assumptions_text(None, None, document["program"]["head"]))
    )


def _check_file(path: str) -> CheckedModel:
    result = check_onnx(*read_onnx(path))
    found = [f"matched: {result.nodes} nodes and {result.constants} constants with the certified head"]
    found += [f"asserted by the exporter: {line}" for line in result.asserted]
    return CheckedModel(result.proved, _lines(result.domain, result.proved, found, result.assumptions))


def _lines(domain: list[str], proved: list[Proved], found: list[str], assumptions: list[str]) -> list[str]:
    assumed = [f"assumed: {line}" for line in assumptions]
    end = f"PROVED: {len(proved)} statements, in exact arithmetic, for every input of the domain."
    return [*domain, *map(proved_text, proved), *found, *assumed, end]


def main(arguments: list[str] | None = None) -> int:
    """Check a model; return the exit code: 0 proved, 1 rejected, 2 wrong call."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1 or not os.path.lexists(arguments[0]):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        lines = check(arguments[0]).lines
    except Rejected as reason:
        print_lines([f"REJECTED: {reason}"])
        return 1
    print_lines(lines)
    return 0
