"""The table of heads, by the name in `program`. Each kind reads its own fields of `program` and `proof`."""

from smle_check.claims import DerivedObligation
from smle_check.heads.candidates import check_rules, checked_of
from smle_check.heads.clips import is_limit, limits_of
from smle_check.heads.grid import check_grid
from smle_check.heads.kind import Deployed, Kind
from smle_check.obligations import check_box
from smle_check.onnx.candidate_nodes import CheckPrinter
from smle_check.onnx.grid_nodes import GridPrinter
from smle_check.onnx.limits import LimitPrinter
from smle_check.onnx.operation_nodes import BoxPrinter, Printer, is_direct, is_one_of_two
from smle_check.program import box, clip_list, gate_of
from smle_check.stated import StatedSpecification
from smle_check.statement import GRID_STATEMENT


def print_box(head: Deployed) -> Printer:
    """Print heads behind a box."""
    gate, tensors = gate_of(head.spec, head.gated), head.tensors
    ops = box(gate, head.stated["clip"], head.stated["bounds"], tensors)
    direct = is_one_of_two(tensors["gate.signatures"]) and is_direct(head.interface, gate, tensors)
    return BoxPrinter(head.program, head.interface, tensors, ops, across=True, direct=direct)


def print_rules(head: Deployed) -> Printer:
    """Print a head of rules: a clip list, followed by a check if clips are not enough."""
    program, interface, spec, gated, stated, tensors, proposals = head
    if not checked_of(spec).is_empty:
        return CheckPrinter(program, interface, tensors, spec, gated, stated["tree"], proposals)
    ops = clip_list(spec, limits_of(spec), gated)
    return LimitPrinter(program, interface, tensors, ops, gate_of(spec, gated), len(spec.outputs))


def print_grid(head: Deployed) -> Printer:
    """Print a head in whole numbers of steps."""
    return GridPrinter(
        head.program, head.interface, head.tensors, head.spec, head.gated, head.stated["tree"], head.proposals
    )


def clip_or_check(spec: StatedSpecification, obligation: DerivedObligation) -> str:
    """Return what enforces a clause in a head of rules."""
    clause = obligation.clause
    return "clip" if clause is not None and is_limit(spec.rules[obligation.rule].clauses[clause]) else "check"


BOX = "a box: an embedding is clipped into it, and mapped by the head of the active regions"
RULES = (
    "read off the rules: a limit of one output is a clip; what else the rules ask is a check, and an answer "
    "that fails it gives way to one that passes, or to a stored safe answer"
)
GRID = (
    "whole numbers of steps: what the rules ask is checked in whole numbers, exactly, and an answer that fails "
    "gives way to one that passes, or to a stored safe answer"
)

HEADS = {
    "box": Kind(check_box, print_box, BOX),
    "rules": Kind(check_rules, print_rules, RULES, clip_or_check),
    "grid": Kind(check_grid, print_grid, GRID, lambda spec, obligation: "check", GRID_STATEMENT, reads_steps=True),
}
