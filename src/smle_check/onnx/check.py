"""Is the head in an ONNX file the one that its certificate speaks of?"""

import base64
import binascii
import os
from typing import Any, NamedTuple

from smle_check.check import check_certificate, gated_regions
from smle_check.names import term, visible
from smle_check.onnx.graph import Found, Graph
from smle_check.onnx.program import Input, Interface, Output, floats_of, output_types, program_of, stated_regions
from smle_check.onnx.recover import bounded_work, match, read_inputs, read_outputs, read_tensors
from smle_check.reading import Rejected, canonical, fields, read_file, read_sealed, require, sha256
from smle_check.specification import Specification
from smle_check.statement import VERSION
from smle_check.words import Proved, assumptions_text, domain_text

FORMAT = "smle-onnx-certificate"


class OnnxResult(NamedTuple):
    """What is proved, how much was matched, what is only the exporter's word, and how inputs and outputs are read.

    `domain` and `assumptions` say for which inputs it is proved, and on which conditions.
    """

    proved: list[Proved]
    nodes: int
    constants: int
    asserted: list[str]
    interface: Interface
    domain: list[str]
    assumptions: list[str]


def check_onnx(onnx: bytes, companion: bytes) -> OnnxResult:
    """Check an ONNX file with its certificate file; return what is proved or raise Rejected."""
    names = "onnx model_certificate certificate block model rules"
    outer = read_sealed(companion, "the certificate file", (FORMAT, VERSION), names)
    onnx_digest, source_digest, document, block_text, model, rules = (outer[name] for name in names.split())
    require(onnx_digest == sha256(onnx), "the ONNX file is not the one that was certified: digest differs")
    require(isinstance(document, dict), "certificate: expected an object")
    certificate = canonical(document) + b"\n"
    require(source_digest == sha256(certificate), "the model's certificate was changed: digest differs")
    block = decoded(block_text)
    files = {}
    for role, content in (("model", model), ("rules", rules)):
        require(content is None or isinstance(content, str), f"onnx certificate: {role}: expected a text")
        if content is not None:
            require(is_text(content), f"onnx certificate: {role}: not a text")
            files[role] = content.encode()

    specification, program_data = document.get("specification"), document.get("program")
    spec = Specification(specification, block)
    gated = gated_regions(document.get("gate"), spec)
    head, _, clip, kind = fields(program_data, "head precision clip bounds", "program")
    require(head == "box", "program: unknown kind of head")
    graph = Graph(onnx)
    tensors = read_tensors(graph, spec, gated, clip, kind)
    columns = [entry["name"] for entry in specification["inputs"]]
    targets = [(entry["name"], entry["kind"]) for entry in specification["outputs"]]
    require(all(is_text(name) for name in [*columns, *(name for name, _ in targets)]), "a name is not a text")
    inputs = read_inputs(graph, columns, [sorted(group) for group in specification["one_hot"]])
    outputs = read_outputs(graph, targets)
    face = Interface(inputs, outputs, "in_domain" in graph.outputs)
    if face.monitored:
        stated = stated_regions(spec)
        if stated:
            graph.floats("rules.members", (len(stated), len(spec.rules)))  # bounds the work by the size of the file
        if set(stated) != set(gated):
            bounded_work(graph, spec, stated, "monitor")
    program = program_of(face, spec, gated, clip, tensors)
    rest = match(graph, program, output_types(face, len(spec.rules)))
    titles = [rule["name"] for rule in specification["rules"]]
    require(graph.metadata.get("active_rules") == canonical(titles), "onnx: metadata 'active_rules' differs")
    proved = check_certificate(certificate, tensors, block, files, exported=True)
    words = asserted(graph, inputs, outputs, rest), face, domain_text(spec, "float32"), assumptions(face)
    return OnnxResult(proved, len(program.nodes), len(program.constants), *words)


def asserted(graph: Graph, inputs: tuple[Input, ...], outputs: tuple[Output, ...], rest: list[Found]) -> list[str]:
    """List what the proof does not need and this checker does not vouch for."""
    operators = [visible(op) for found in rest for op in found.operators]
    named = ", ".join(sorted(set(operators)))[:200]
    result = [f"the backbone: {len(operators)} nodes ({named}) compute the embedding, which is clipped"]
    further = sorted(set(graph.inputs) - {item.name for item in inputs})
    if further:
        result.append(f"inputs of the backbone alone: {', '.join(map(term, further))[:200]}")
    for item in inputs:
        if item.categories:
            name, default = map(visible, (item.name, item.categories[item.default]))
            result.append(f"input '{name}': '{default}' stands in for unknown texts")
    for output in outputs:
        if output.kind == "choice":
            which = "largest" if output.pick == "ArgMax" else "smallest"
            result.append(f"output '{visible(output.name)}' is the option with the {which} score")
    return result


def assumptions(face: Interface) -> list[str]:
    """Say what is assumed. Without `in_domain` the graph does not know of whole numbers and of blank texts."""
    filled = [(item.name, f"{floats_of(item.fill)[0]:g}") for item in face.inputs if item.fill is not None]
    blank = [(item.name, item.categories[item.default]) for item in face.inputs if item.blank]
    whole = [item.name for item in face.inputs if item.whole] if face.monitored else None
    return assumptions_text(whole, [*filled, *blank])


def decoded(text: Any) -> bytes:
    """Return the binary block; None: there is none."""
    if text is None:
        return b""
    require(text != "", "onnx certificate: block: empty; expected null")
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise Rejected("onnx certificate: block: expected base64") from None


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8 (JSON allows halves of characters)."""
    return not any(0xD800 <= ord(c) < 0xE000 for c in value)


def read_onnx(path: str) -> tuple[bytes, bytes]:
    """Read an ONNX file and the certificate file beside it."""
    parts = []
    for place in (path, path + ".certificate.json"):
        name = os.path.basename(place)
        data = read_file(place, name)
        if data is None:
            raise Rejected(f"{name}: no such file")
        parts.append(data)
    return parts[0], parts[1]
