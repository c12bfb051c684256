"""Checks that the head in an ONNX file is the one its certificate is about."""

import base64
import binascii
import os
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from smle_check.check import check_certificate, gated_regions
from smle_check.guard import guard_tensors
from smle_check.heads.kind import Deployed
from smle_check.heads.table import HEADS
from smle_check.names import term, visible
from smle_check.onnx.graph import Found, Graph
from smle_check.onnx.interface import active_rules, encode, in_domain, monitor_of, outputs
from smle_check.onnx.match import match, read_inputs, read_outputs, read_proposals
from smle_check.onnx.nodes import STACKED, Interface, Program, output_types
from smle_check.onnx.operation_nodes import Tensors, active
from smle_check.program import gate_of
from smle_check.reading import BACKBONE, Rejected, canonical, read_file, read_sealed, read_weights, require, sha256
from smle_check.stated import StatedSpecification
from smle_check.statement import VERSION
from smle_check.words import Proved, assumptions_text, domain_text

FORMAT = "smle-onnx-certificate"


class OnnxResult(NamedTuple):
    """What is proved, how much was matched, what is only asserted by the exporter, and how inputs and outputs are read.

    `domain` and `assumptions` say for which inputs it is proved, and under which conditions.
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
    names = "onnx model_certificate certificate head block model rules"
    outer = read_sealed(companion, "onnx certificate", (FORMAT, VERSION), names)
    onnx_digest, source_digest, document, head, block_text, model, rules = (outer[name] for name in names.split())
    require(onnx_digest == sha256(onnx), "the ONNX file is not the one that was certified: digest differs")
    require(isinstance(document, dict), "certificate: expected an object")
    certificate = canonical(document) + b"\n"
    require(source_digest == sha256(certificate), "the model's certificate was changed: digest differs")
    block, tensors = decoded(block_text, "block"), read_weights(decoded(head, "head"))
    require(not any(name.startswith(BACKBONE) for name in tensors), "onnx certificate: head: not a tensor of the head")
    files = {}
    for role, content in (("model", model), ("rules", rules)):
        require(content is None or isinstance(content, str), f"onnx certificate: {role}: expected a text")
        if content is not None:
            require(is_text(content), f"onnx certificate: {role}: not a text")
            files[role] = content.encode()
    graph = Graph(onnx)
    proved = check_certificate(certificate, tensors, block, files, exported=True)

    # The certificate proves this; is it what the graph computes?
    specification, stated = document["specification"], document["program"]
    spec = StatedSpecification(specification, block)
    columns = [entry["name"] for entry in specification["inputs"]]
    targets = [(entry["name"], entry["kind"]) for entry in specification["outputs"]]
    require(all(is_text(name) for name in [*columns, *(name for name, _ in targets)]), "a name is not a text")
    inputs = read_inputs(graph, columns, [sorted(group) for group in specification["one_hot"]])
    outputs = read_outputs(graph, targets)
    whole = "steps" in graph.outputs and stated["head"] == "grid"
    stacked = STACKED in graph.outputs and all(item.name != STACKED for item in outputs)
    interface = Interface(inputs, outputs, "in_domain" in graph.outputs, whole, stacked)
    gated, count = gated_regions(document["gate"], spec), read_proposals(graph)
    program = program_of(interface, spec, gated, stated, tensors, proposals=count, room=len(onnx))
    rest = match(graph, program, output_types(interface, len(spec.rules)))
    titles = [rule["name"] for rule in specification["rules"]]
    require(graph.metadata.get("active_rules") == canonical(titles), "onnx: metadata 'active_rules' differs")
    same = not stacked or graph.metadata.get(STACKED) == canonical(interface.columns)
    require(same, f"onnx: metadata '{STACKED}' differs")
    words = (
        asserted(graph, interface, stated["head"], rest),
        interface,
        domain_text(spec, "float32"),
        assumptions(interface, stated["head"]),
    )
    return OnnxResult(proved, len(program.nodes), len(program.constants), *words)


def program_of(
    interface: Interface, spec: StatedSpecification, gated: list[int], stated: Mapping[str, Any], tensors: Tensors,
    *, proposals: int = 1, room: int | None = None,
) -> Program:  # fmt: skip
    """Return the program of a checked head: named inputs -> FEATURES; EMBEDDING -> outputs.

    `stated` is the certificate's statement of the program. `proposals`: how many per row, where candidates are checked.
    `room`: see Program.
    """
    program = Program(room)
    known = encode(program, interface.inputs)
    printer = HEADS[stated["head"]].printer(Deployed(program, interface, spec, gated, stated, tensors, proposals))
    monitor = monitor_of(spec, gated)
    kept = {"x"} if interface.monitored else set()
    if interface.monitored and monitor.regions and not monitor.own:
        kept.add("bits")
    y = printer.print(kept)
    if interface.monitored:
        steps = printer.on_steps()
        in_domain(program, interface.inputs, known, steps)
        bits = printer.values["bits"].node if "bits" in kept else None
        if monitor.own:
            own = gate_of(spec, monitor.regions), guard_tensors(spec, monitor.regions)
            bits = active(program, printer.widened(), *own, "monitor")
        active_rules(program, bits, monitor)
    outputs(program, y, interface)
    return program


def _some(names: list[str]) -> str:
    """List a few names, cut: a file may hold any number of any length."""
    shown = [name[:80] for name in names[:20]]
    return ", ".join(shown) + (f", ... ({len(names):,} in all)" if len(names) > len(shown) else "")


def asserted(graph: Graph, interface: Interface, head: str, rest: list[Found]) -> list[str]:
    """List what the proof does not need and this checker does not vouch for."""
    who, made = (
        ("the backbone", "the embedding, which is clipped")
        if head == "box"
        else ("the model", "the answer, which is corrected")
    )
    operators = [visible(op) for found in rest for op in found.operators]
    result = [f"{who}: {len(operators)} nodes ({_some(sorted(set(operators)))}) compute {made}"]
    further = sorted(set(graph.inputs) - {item.name for item in interface.inputs})
    if further:
        result.append(f"inputs of {who} alone: {_some([*map(term, further)])}")
    for item in interface.inputs:
        if item.categories:
            name, default = map(visible, (item.name, item.categories[item.default]))
            result.append(f"input '{name}': '{default}' stands in for unknown texts")
    for output in interface.outputs:
        if output.kind == "choice":
            which = "largest" if output.pick == "ArgMax" else "smallest"
            result.append(f"output '{visible(output.name)}' is the option with the {which} score")
    return result


def assumptions(interface: Interface, head: str) -> list[str]:
    """Say what is assumed. Without `in_domain`, the graph does not know about whole numbers and blank texts."""
    filled = [
        (item.name, f"{struct.unpack('<f', item.fill)[0]:g}") for item in interface.inputs if item.fill is not None
    ]
    blank = [(item.name, item.categories[item.default]) for item in interface.inputs if item.blank]
    whole = [item.name for item in interface.inputs if item.whole] if interface.monitored else None
    return assumptions_text(whole, [*filled, *blank], head, [item.name for item in interface.inputs if item.flagged])


def decoded(text: Any, what: str) -> bytes:
    """Decode base64; None gives no bytes."""
    if text is None:
        return b""
    require(text != "", f"onnx certificate: {what}: empty; expected null")
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise Rejected(f"onnx certificate: {what}: expected base64") from None


def is_text(value: str) -> bool:
    """Return whether a string can be written as UTF-8 (JSON allows lone surrogates)."""
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
