"""The whole graph but for the model in front of the head: what the graph of an exported file must be."""

from collections.abc import Mapping
from typing import Any

from smle_check.guard import guard_tensors
from smle_check.heads.candidates import checked_of
from smle_check.heads.clips import limits_of
from smle_check.onnx.candidates import Checked
from smle_check.onnx.grid import Grid
from smle_check.onnx.interface import active_rules, encode, in_domain, monitor_of, outputs
from smle_check.onnx.limits import Limits
from smle_check.onnx.operations import Box, Printer, Tensors, active, is_direct, is_one_of_two
from smle_check.onnx.program import Interface, Program
from smle_check.program import box, clip_list, gate_of
from smle_check.specification import Specification


def program_of(
    interface: Interface, spec: Specification, gated: list[int], stated: Mapping[str, Any], tensors: Tensors,
    *, proposals: int = 1, room: int | None = None,
) -> Program:  # fmt: skip
    """Return the program of a head that was checked: named inputs -> FEATURES; EMBEDDING -> named outputs.

    `stated` is what the certificate says of the program. `proposals`: how many there are for a row, where candidates
    are checked. `room`: see Program.
    """
    program = Program(room)
    known = encode(program, interface.inputs)
    printer = _printer(program, interface, spec, gated, stated, tensors, proposals)
    monitor = monitor_of(spec, gated)
    kept = {"x"} if interface.monitored else set()
    if interface.monitored and monitor.regions and not monitor.own:
        kept.add("bits")
    y = printer.print(kept)
    if interface.monitored:
        steps = printer.on_steps() if isinstance(printer, Grid) else None
        in_domain(program, interface.inputs, known, steps)
        bits = printer.values["bits"].node if "bits" in kept else None
        if monitor.own:
            own = gate_of(spec, monitor.regions), guard_tensors(spec, monitor.regions)
            bits = active(program, printer.widened(), *own, "monitor")
        active_rules(program, bits, monitor)
    outputs(program, y, interface.outputs)
    return program


def _printer(
    program: Program, interface: Interface, spec: Specification, gated: list[int], stated: Mapping[str, Any],
    tensors: Tensors, proposals: int,
) -> Printer:  # fmt: skip
    if stated["head"] == "grid":
        return Grid(program, interface, tensors, spec, gated, stated["tree"], proposals)
    gate = gate_of(spec, gated)
    if stated["head"] == "box":
        ops = box(spec, gated, stated["clip"], stated["bounds"], tensors)
        direct = is_one_of_two(tensors["gate.signatures"]) and is_direct(interface, gate, tensors)
        return Box(program, interface, tensors, ops, across=True, direct=direct)
    if not checked_of(spec).is_empty:
        return Checked(program, interface, tensors, spec, gated, stated["tree"], proposals)
    return Limits(program, interface, tensors, clip_list(spec, limits_of(spec), gated), gate, len(spec.outputs))
