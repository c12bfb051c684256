"""Even whole numbers between constant limits: 2 * floor(t / 2 + 1 / 2) in float64, clipped, cast to float32.

Obligations. E1: `even.lower` and `even.upper` (m,) in float32 are even whole numbers, at most 2^24 in size, the lower
one not above. E2: every rule is on everywhere and limits one output by a constant, and the end that the limit reaches
obeys it, exactly. E3: every output has the step 2, and its range contains both ends.

Then whatever t is, the answer is even and obeys: the clip ends at an even number, a float32 number up to 2^24 is cast
without rounding, and twice a whole number stays even in float64, where all whole numbers beyond 2^53 are even. NaN fails
the first comparison, and becomes the lower end.
"""

from fractions import Fraction

from smle_check.claims import Claim, DerivedObligation, Unproved
from smle_check.guard import check_guard
from smle_check.heads.kind import Deployed, Kind
from smle_check.onnx.graph import DOUBLE, FLOAT
from smle_check.onnx.nodes import Value, floats_of
from smle_check.onnx.operation_nodes import Printer
from smle_check.program import Op, gate_of, gated
from smle_check.reading import fields, require
from smle_check.statement import STATEMENT

MOST = 1 << 24


def ends_of(claim: Claim, name: str) -> list[Fraction]:
    """Return the stored ends of the outputs, one float32 number for each."""
    tensor = claim.tensors.get(name)
    require(tensor is not None and (tensor.dtype, tensor.shape) == ("F32", (len(claim.spec.outputs),)), f"no {name}")
    values = floats_of(tensor)
    require(all(abs(value) <= MOST for value in values), f"{name}: too large")  # refuses NaN, too
    return [Fraction(value) for value in values]


def check_limits(
    claim: Claim, lower: list[Fraction], upper: list[Fraction]
) -> list[tuple[DerivedObligation, Fraction]]:
    """Settle every clause: a constant limit of one output, everywhere."""
    spec, settled = claim.spec, []
    require(claim.gated == [], "gate: this head has none")
    require(all(a <= b for a, b in zip(lower, upper, strict=True)), "ends: the lower one is above")
    for r, rule in enumerate(spec.rules):
        require(len(rule.exclusions) == 0, "rules: only limits")
        for region in rule.regions:
            require(not spec.regions[region], "rules: only those that are on everywhere")
            for c, clause in enumerate(rule.clauses):
                require(len(clause) == 1 and len(clause[0].y) == 1 and not clause[0].x, "rules: only constant limits")
                ((output, g),) = clause[0].y.items()
                margin = clause[0].bound - g * (upper if g > 0 else lower)[output]
                obligation = DerivedObligation(0, r, region, (), c)
                if margin < 0 or (clause[0].strict and margin == 0):
                    raise Unproved(obligation, "the end of the clip breaks it")
                settled.append((obligation, margin))
    return settled


def check_even(claim: Claim) -> list[tuple[DerivedObligation, Fraction]]:
    """Settle what the claim of this head owes."""
    fields(claim.program, "head", "program")
    fields(claim.proof, "", "proof")
    lower, upper = ends_of(claim, "even.lower"), ends_of(claim, "even.upper")
    require(all(value % 2 == 0 for value in (*lower, *upper)), "ends: expected even whole numbers")
    for (low, high, step), a, b in zip(claim.spec.output_steps, lower, upper, strict=True):
        require(step == 2 and low <= a and b <= high, "outputs: expected steps of 2, and a range around the ends")
    require(not claim.spec.input_steps or all(step is None for step in claim.spec.input_steps), "inputs: no steps")
    check_guard(claim.spec, claim.tensors, [])
    return check_limits(claim, lower, upper)


class EvenPrinter(Printer):
    """Puts down the program as nodes, number by number."""

    def even(self, op: Op) -> None:
        """EMBEDDING -> even whole numbers between the ends."""
        p, m = self.program, self.tensor("even.lower").shape[0]
        wide = p.add("Cast", [p.answer(m)], "even/wide", to=DOUBLE)
        half = p.doubles("even.half", [0.5], ())
        near = p.add("Add", [p.add("Mul", [wide, half], "even/halves"), half], "even/near")
        whole = p.add("Mul", [p.add("Floor", [near], "even/floor"), p.doubles("even.two", [2.0], ())], "even/whole")
        low, high = (
            p.add("Cast", [p.stored(f"even.{end}", self.tensor(f"even.{end}"))], f"even/{end}", to=DOUBLE)
            for end in ("lower", "upper")
        )
        raised = p.add("Where", [p.add("GreaterOrEqual", [whole, low], "even/above"), whole, low], "even/raised")
        y = p.add("Where", [p.add("LessOrEqual", [raised, high], "even/below"), raised, high], "even/inside")
        self.values[op.out] = Value(p.add("Cast", [y], "even/y", to=FLOAT), False)


def print_even(head: Deployed) -> Printer:
    """Print this head."""
    ops = [*gated(gate_of(head.spec, [])), Op("even", "y", ("answer",))]
    return EvenPrinter(head.program, head.interface, head.tensors, ops, across=True, direct=False)


CLAIM = {
    **STATEMENT,
    "claim": "For every input in the domain, and whatever the model in front of the head answers, every output is an "
    "even whole number and satisfies every rule, exactly.",
}
EVEN = Kind(
    check_even, print_even, "even whole numbers: rounded to the nearest one, and clipped", statement=CLAIM,
    reads_steps=True,
)  # fmt: skip
