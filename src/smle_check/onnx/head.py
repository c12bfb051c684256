"""The graph that an exported file must have, except for the model in front of the head."""

from collections.abc import Mapping
from typing import Any

from smle_check.guard import guard_tensors
from smle_check.heads.kind import Deployed
from smle_check.heads.table import HEADS
from smle_check.onnx.interface import active_rules, encode, in_domain, monitor_of, outputs
from smle_check.onnx.operations import Tensors, active
from smle_check.onnx.program import Interface, Program
from smle_check.program import gate_of
from smle_check.specification import Specification


def program_of(
    interface: Interface, spec: Specification, gated: list[int], stated: Mapping[str, Any], tensors: Tensors,
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
