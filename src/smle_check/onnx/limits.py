"""The clip list as nodes: limits on single outputs behind the answer of any model."""

from collections.abc import Sequence
from typing import NamedTuple

from smle_check.heads.sums import WIDE
from smle_check.onnx.graph import DOUBLE, FLOAT
from smle_check.onnx.nodes import Interface, Program, Value, floats_of
from smle_check.onnx.operation_nodes import Printer, Tensors, is_direct
from smle_check.program import Gate, Op

FAR = 2 * float(WIDE)  # beyond every answer; stands for inactive limits
STAGES = ("raise_to", "lower_to")


class LimitEntry(NamedTuple):
    """A limit: slope.x + offset. `gated`: whether its region has a condition; `bit`: the position of its bit."""

    output: int
    bit: int
    gated: bool
    slope: tuple[float, ...] | None
    offset: float


class SlotStage(NamedTuple):
    """Limits of one side that act together: `slots` has lists of one limit per output, None if it has none."""

    lower: bool
    slots: list[list[LimitEntry | None]]

    @property
    def entries(self) -> list[LimitEntry]:
        """All limits."""
        return [entry for slot in self.slots for entry in slot if entry is not None]

    @property
    def is_plain(self) -> bool:
        """Whether there is one constant for each output, whatever the input."""
        return not any(entry.gated or entry.slope for entry in self.entries)

    @property
    def far(self) -> float:
        """A limit that moves no answer."""
        return -FAR if self.lower else FAR


def stage_of(op: Op, gate: Gate, tensors: Tensors, m: int) -> SlotStage:
    """Return the limits of an operation, keeping only the strictest of constants that always hold."""
    _, _, values, _, slopes = op.args
    offsets, lower = floats_of(tensors[str(values)]), op.kind == "raise_to"
    rows: list[tuple[float, ...] | None] = [None] * len(offsets)
    if slopes is not None:
        d, numbers = tensors[slopes].shape[1], floats_of(tensors[slopes])
        rows = [tuple(numbers[i * d : (i + 1) * d]) for i in range(len(offsets))]
    own: list[list[LimitEntry]] = [[] for _ in range(m)]
    for bit, output, slope, offset in zip(op.fixed.bits, op.fixed.outputs, rows, offsets, strict=True):
        own[output].append(LimitEntry(output, bit, bool(gate.members[bit]), slope, offset))
    for output, listed in enumerate(own):
        always = [entry for entry in listed if not (entry.gated or entry.slope)]
        if always:
            kept = (max if lower else min)(always, key=lambda entry: entry.offset)
            own[output] = [entry for entry in listed if entry.gated or entry.slope or entry is kept]
    count = max(map(len, own))
    return SlotStage(lower, [[listed[i] if i < len(listed) else None for listed in own] for i in range(count)])


class LimitPrinter(Printer):
    """The printer of the clip list.

    With one limit for each output and stage, all gated alike, numbers are kept as (batch, m), else as (m, batch).
    """

    def __init__(
        self, program: Program, interface: Interface, tensors: Tensors, ops: Sequence[Op], gate: Gate, m: int,
        *, across: bool = False,
    ) -> None:  # fmt: skip
        acting = [op for op in ops if op.kind in STAGES]
        self.stages = {op.out: stage_of(op, gate, tensors, m) for op in acting}
        alike = all(
            len(stage.slots) == 1 and len({entry.gated for entry in stage.entries}) == 1
            for stage in self.stages.values()
        )
        self.gated = any(entry.gated for stage in self.stages.values() for entry in stage.entries)
        direct = is_direct(interface, gate, tensors)
        across = across or interface.monitored or not alike or (self.gated and not direct)
        super().__init__(program, interface, tensors, ops, across=across, direct=direct and not across)
        self.m, self.gate = m, gate
        self.parts: dict[str, str] = {}
        self.limit_of: dict[str, tuple[str, bool]] = {}  # by stage; whether there is a column for each row

    def print(self, kept: set[str]) -> str:
        """Write the program. Bits and features are left out if no limit reads them."""
        read = {"X"} if any(e.slope for stage in self.stages.values() for e in stage.entries) else set()
        read |= {"bits"} if self.gated else set()
        self.ops = [
            op._replace(args=tuple(None if a in {"X", "bits"} - read else a for a in op.args))
            if op.kind in STAGES else op
            for op in self.ops
        ]  # fmt: skip
        return super().print(kept)

    def number(self, name: str, values: list[float]) -> str:
        """Write one number for each output; a single one as a scalar."""
        return self.program.doubles(name, values, () if len(values) == 1 else self.along(len(values)))

    def within(self, op: Op) -> None:
        """Write the answer in float64; NaN and numbers beyond 2^100 become the default."""
        answer = self.program.answer(self.m, across=self.across)
        self.values[op.out] = Value(self.bounded(answer, "clips/within"), self.across)

    def bounded(self, answer: str, name: str) -> str:
        """Return an answer in float64, with the default for NaN and numbers beyond 2^100."""
        p = self.program
        wide = p.add("Cast", [answer], f"{name}/wide", to=DOUBLE)
        size = p.add("Abs", [wide], f"{name}/size")
        small = p.add("LessOrEqual", [size, p.doubles("clips.wide", [float(WIDE)], ())], f"{name}/small")
        default = self.number("clips.default", floats_of(self.tensors["clips.default"]))
        return p.add("Where", [small, wide, default], name)

    def raise_to(self, op: Op) -> None:
        """Raise answers below a limit to that limit."""
        self.moved(op, "Max")

    def lower_to(self, op: Op) -> None:
        """Lower answers above a limit to that limit."""
        self.moved(op, "Min")

    def moved(self, op: Op, extreme: str) -> None:
        """Move answers within the limits of one stage."""
        p, q, stage = self.program, self.value(op.args[0]).node, self.stages[op.out]
        if stage.is_plain:
            offsets = [stage.far if entry is None else entry.offset for entry in stage.slots[0]]
            limit = self.number(f"clips.{op.out}", offsets)
        else:
            limit = self.across_part(op, stage) if self.across else self.part(op, stage)
        self.limit_of[op.out] = limit, not stage.is_plain
        self.values[op.out] = Value(p.add(extreme, [q, limit], f"clips/{op.out}"), self.across)

    def part(self, op: Op, stage: SlotStage) -> str:
        """Return the limits of a stage (batch, m), one for each output; `far` if not active."""
        p, (slot,), name = self.program, stage.slots, f"clips.{op.out}"
        offsets = [stage.far if entry is None else entry.offset for entry in slot]
        if any(entry.slope for entry in stage.entries):
            wide = self.value("X").node
            d = self.tensors["gate.coefficients"].shape[1]
            rows = [(0.0,) * d if entry is None or entry.slope is None else entry.slope for entry in slot]
            slopes = p.doubles(f"{name}_slope", [row[k] for k in range(d) for row in rows], (d, self.m))
            values = p.add("Gemm", [wide, slopes, p.doubles(name, offsets, (self.m,))], f"clips/{op.out}/values")
        else:
            values = self.number(name, offsets)
        if not stage.entries[0].gated:
            return values
        far = p.doubles("clips.lowest" if stage.lower else "clips.highest", [stage.far], ())
        return p.add("Where", [self.value("bits").node, values, far], f"clips/{op.out}/limits")

    def across_part(self, op: Op, stage: SlotStage) -> str:
        """Return the limits of a stage (m, batch): for each output, the strictest that is active."""
        if not self.parts:
            self.all_limits()
        p, part, count, name = self.program, self.parts[op.out], len(stage.slots), f"clips/{op.out}"
        if count == 1:
            return part
        if self.m > 1:
            part = p.add(
                "Reshape", [part, p.integers(f"clips.{op.out}.shape", [count, self.m, -1], (3,))], f"{name}/slots"
            )
        first = p.integers("constants/first", [0], (1,))
        reduce = "ReduceMax" if stage.lower else "ReduceMin"
        return p.add(reduce, [part, first], f"{name}/limits", keepdims=int(self.m == 1))

    def all_limits(self) -> None:
        """Compute all limits that are gated or depend on the input at once (limits, batch)."""
        p, d = self.program, self.tensors["gate.coefficients"].shape[1]
        computed = {out: stage for out, stage in self.stages.items() if not stage.is_plain}
        rows = [(entry, stage.far) for stage in computed.values() for slot in stage.slots for entry in slot]
        count = len(rows)
        p.reserve(2 * count * d)
        offsets = p.doubles("clips.offsets", [far if e is None else e.offset for e, far in rows], (count, 1))
        limits = offsets
        if any(entry is not None and entry.slope for entry, _ in rows):
            # A constant limit has slopes of 0: the sum is exact, as features are finite.
            entries = [v for e, _ in rows for v in ((0.0,) * d if e is None or e.slope is None else e.slope)]
            slopes = p.doubles("clips.slopes", entries, (count, d))
            limits = p.add("Gemm", [slopes, self.value("X").node, offsets], "clips/values")
        if any(entry is not None and entry.gated for entry, _ in rows):
            bits, places = self.value("bits").node, [0 if entry is None else entry.bit for entry, _ in rows]
            if places != list(range(len(self.gate.members))):
                bits = p.add("Gather", [bits, p.integers("clips.bits", places, (count,))], "clips/active", axis=0)
            far = p.doubles("clips.far", [far for _, far in rows], (count, 1))
            limits = p.add("Where", [bits, limits, far], "clips/limits")
        outs, sizes = list(computed), [len(stage.slots) * self.m for stage in computed.values()]
        names = [limits]
        if len(outs) > 1:
            split = p.integers("clips.sizes", sizes, (len(sizes),))
            names = p.several("Split", [limits, split], [f"clips/{out}/part" for out in outs], axis=0)
        self.parts = dict(zip(outs, names, strict=True))

    def narrow(self, op: Op) -> None:
        """Write the answer in float32, (batch, m)."""
        p, q = self.program, self.value(op.args[0]).node
        y = p.add("Cast", [q], "clips/single", to=FLOAT)
        self.values[op.out] = Value(p.add("Transpose", [y], "clips/turned") if self.across else y, False)
