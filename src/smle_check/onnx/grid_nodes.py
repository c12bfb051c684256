"""The grid head as nodes, in float64: a check of whole numbers of steps, and a branch with proposals where it fails.

Values are (columns, batch). Comparisons are made number by number, and only zeros and ones are counted afterwards, so
that NaN is never reduced.
"""

from fractions import Fraction
from typing import Any

from smle_check.heads.grid import cut_place, listed_of
from smle_check.heads.steps import SMALLEST_INPUT, Lattice, rows_of
from smle_check.onnx.graph import BOOL, DOUBLE, FLOAT, INT64, Branch, Constant
from smle_check.onnx.nodes import PROPOSAL, Interface, Program, Value, floats_of
from smle_check.onnx.operation_nodes import Printer, Tensors
from smle_check.program import Op
from smle_check.reading import require
from smle_check.stated import StatedLiteral, StatedSpecification

MOST = 1 << 24  # numbers of a table of conditions
READABLE = ("repair/targets", "repair/read", "repair/right", "repair/safe", "repair/bits", "repair/chosen")


def signed(literal: StatedLiteral, sign: int) -> tuple[frozenset[tuple[int, Fraction]], ...]:
    """Return the numbers of a literal, or their opposites."""
    return tuple(
        frozenset((i, sign * v) for i, v in part.items()) for part in (literal.y, literal.x, {0: literal.bound})
    )


class GridPrinter(Printer):
    """The printer of a grid head. `count`: proposals per row in the graph."""

    def __init__(
        self, program: Program, interface: Interface, tensors: Tensors, stated: StatedSpecification, gated: list[int],
        tree: Any, count: int,
    ) -> None:  # fmt: skip
        clamp = Op("clamp", "x", ("features", "domain.lower_F", "domain.upper_F"))
        super().__init__(program, interface, tensors, [clamp], across=True, direct=False)
        self.spec: Lattice = Lattice.read(stated)
        self.listed = listed_of(self.spec)
        self.gated, self.tree, self.count = gated, tree, count
        self.m, self.d = len(self.spec.outputs), len(self.spec.inputs)
        self.used = {row: i for i, row in enumerate(rows_of(self.spec, gated))}
        program.readable |= set(READABLE)

    def print(self, kept: set[str]) -> str:
        """Write the program; return the outputs (batch, m). If the graph reports, also write whole numbers."""
        p = self.program
        monitored, stepped = "x" in kept, any(step is not None for step in self.spec.input_steps)
        if monitored or self.reads:
            self.clamp(self.ops[0])
        read = self.read() if self.reads or (monitored and stepped) else ""
        self.bits(read)
        right = self.right(read)
        answers = p.answer(self.m, across=True)
        targets = p.add("Cast", [answers], "grid/answers", to=DOUBLE)
        if self.scaled("grid.denominator"):
            targets = p.add("Mul", [targets, self.column("grid.denominator", self.m)], "grid/scaled")
        if self.scaled("grid.numerator"):
            targets = p.add("Div", [targets, self.column("grid.numerator", self.m)], "grid/targets")
        k = self.whole(targets, "grid")
        name = "steps" if self.interface.steps else "grid/whole"
        if self.pinned and self.count == 1:
            return self.served(self.together(k, targets, read, right, name))
        broken = self.broken(k, right, "bits" in self.values, "grid")
        total = p.add("ReduceSum", [broken], "grid/total", keepdims=0)
        fails = p.add("Cast", [total], "grid/fails", to=BOOL)
        if "bits" in self.values:
            p.cast(self.values["bits"].node)  # outside branches, where others can read it
        outer, p.nodes = p.nodes, []
        own = p.add("Cast", [p.add("Transpose", [k], "grid/own")], "grid/kept", to=INT64)
        whole = Branch(p.nodes, [own], INT64)
        p.nodes = []
        repaired = Branch(p.nodes, [self.repaired(k, broken, targets, read, right)], INT64)
        p.nodes = outer
        return self.served(p.branch(fails, name, {"then_branch": repaired, "else_branch": whole}))

    def served(self, whole: str) -> str:
        """Write what whole numbers of steps (batch, m), int64 and at most 2^24 in size, stand for; none is -0."""
        p = self.program
        parts = [(op, f"grid.{name}") for op, name in (("Mul", "numerator"), ("Div", "denominator"))]
        parts = [(op, name) for op, name in parts if self.scaled(name)]
        if not parts:
            return p.add("Cast", [whole], "grid/y", to=FLOAT)
        y = p.add("Cast", [whole], "grid/wide", to=DOUBLE)
        for op, name in parts:
            y = p.add(op, [y, p.doubles(f"{name}s", floats_of(self.tensors[name]), (self.m,))], f"grid/{op}")
        return p.add("Cast", [y], "grid/y", to=FLOAT)

    # --- parts

    def column(self, name: str, count: int) -> str:
        """Write numbers of the certificate, one for each row of a value."""
        return self.program.doubles(name, floats_of(self.tensors[name]), (count, 1))

    def scaled(self, name: str) -> bool:
        """Return whether some numbers of a part of the steps are not 1."""
        return any(value != 1 for value in floats_of(self.tensors[name]))

    def number(self, name: str, value: float) -> str:
        """Write a float64 number."""
        return self.program.doubles(name, [value], ())

    def read(self) -> str:
        """Write the inputs as they are held (d, batch): whole numbers of steps, or numbers."""
        p, steps = self.program, [step is not None for step in self.spec.input_steps]
        wide = self.widened()
        small = p.add(
            "Less", [p.add("Abs", [wide], "read/size"), self.number("read.tiny", float(SMALLEST_INPUT))], "read/tiny"
        )
        real = p.add("Where", [small, self.number("constants/zero64", 0.0), wide], "read/real")
        if not any(steps):
            return real
        names = ("numerator", "denominator", "lower", "upper")
        num, den, low, high = (self.column(f"grid.input_{name}", self.d) for name in names)
        scaled = p.add("Div", [p.add("Mul", [wide, den], "read/scaled"), num], "read/steps")
        whole = p.add(
            "Floor", [p.add("Add", [scaled, self.number("constants/half64", 0.5)], "read/shifted")], "read/floor"
        )
        whole = p.add("Min", [p.add("Max", [whole, low], "read/raised"), high], "read/whole")
        marks = p.put("read.steps", Constant("BOOL", (self.d, 1), bytes(steps)))
        return p.add("Where", [marks, whole, real], "read/inputs")

    def bits(self, read: str) -> None:
        """Write whether rows hold (rows, batch), and which regions are active (regions, batch)."""
        p, used = self.program, self.used
        if not used:
            return
        rows = p.doubles("gate.rows", floats_of(self.tensors["gate.rows"]), (len(used), self.d))
        limits = self.column("gate.thresholds_float32", len(used))
        held = p.add("LessOrEqual", [p.add("MatMul", [rows, read], "gate/sums"), limits], "gate/held")
        regions = self.gated
        p.reserve(len(regions) * len(used))
        entries = [int(row in self.spec.regions[g]) for g in regions for row in used]
        members = p.floats("gate.members", entries, (len(regions), len(used)))
        off = p.cast(p.add("Not", [held], "gate/beyond"))
        count = p.add("MatMul", [members, off], "gate/count")
        active = p.add("Equal", [count, p.floats("constants/none", [0], ())], "gate/active")
        self.values["bits"] = Value(active, True)

    def right(self, read: str) -> str:
        """Write what C k is compared with (literals, batch), or (literals, 1) if no literal reads inputs."""
        p, listed = self.program, self.listed
        count = len(listed.literals)
        right = self.column("check.thresholds", count)
        steps = floats_of(self.tensors["check.steps"])
        if any(steps):
            matrix = p.doubles("check.steps", steps, (count, self.d))
            right = p.add("Sub", [right, p.add("MatMul", [matrix, read], "check/moved")], "check/stepped")
        if listed.moving:  # 0 for the other literals
            more = count - listed.moving
            inputs = [*floats_of(self.tensors["check.inputs_float32"]), *([0.0] * (more * self.d))]
            fractions = [*floats_of(self.tensors["check.fractions_float32"]), *([0.0] * more)]
            matrix = p.doubles("check.inputs", inputs, (count, self.d))
            column = p.doubles("check.fractions", fractions, (count, 1))
            total = p.add("Add", [p.add("MatMul", [matrix, read], "check/real"), column], "check/total")
            right = p.add("Add", [right, p.add("Floor", [total], "check/floor")], "check/right")
        return right

    def whole(self, targets: str, name: str) -> str:
        """Round to whole numbers: floor(. + 1/2)."""
        p = self.program
        return p.add(
            "Floor", [p.add("Add", [targets, self.number("constants/half64", 0.5)], f"{name}/shifted")], f"{name}/k"
        )

    def broken(self, k: str, right: str, gated: bool, name: str, regions: str | None = None) -> str:
        """Count the conditions that whole numbers (m, n) miss: (n,) in float32, 0 where all are met."""
        p, spec, listed = self.program, self.spec, self.listed
        if self.plain:
            missed = p.cast(p.add("Not", [self.held(k, right, name)], f"{name}/missed"))
            return p.add("ReduceSum", [missed, p.integers("constants/first", [0], (1,))], f"{name}/broken", keepdims=0)
        low, high = self.column("grid.lower", self.m), self.column("grid.upper", self.m)
        above = p.add("GreaterOrEqual", [k, low], f"{name}/above")
        inside = p.add("And", [above, p.add("LessOrEqual", [k, high], f"{name}/below")], f"{name}/inside")
        first = p.integers("constants/first", [0], (1,))
        outside = p.cast(p.add("Not", [inside], f"{name}/outside"))
        parts = [p.add("ReduceSum", [outside, first], f"{name}/out", keepdims=0)]
        if listed.clauses:
            count = len(listed.literals)
            p.reserve(2 * count * self.m)
            matrix = p.doubles("check.outputs", floats_of(self.tensors["check.outputs"]), (count, self.m))
            held = p.add("LessOrEqual", [p.add("MatMul", [matrix, k], f"{name}/sums"), right], f"{name}/held")
            bits, width = p.cast(held), count
            if gated:
                active = p.cast(self.values["bits"].node) if regions is None else regions
                bits = p.add("Concat", [bits, active], f"{name}/bits", axis=0)
                width += len(self.gated)
            conditions: list[tuple[tuple[int, ...], int | None]] = []
            for rule, _, own in listed.clauses:
                for g in spec.rules[rule].regions:
                    conditions.append((own, count + self.gated.index(g) if gated and spec.regions[g] else None))
            require(len(conditions) * width <= MOST, "onnx: too many clauses for a graph")
            p.reserve(len(conditions) * width)
            entries, needs = [], []
            for own, region in conditions:
                row = [0.0] * width
                for literal in set(own):
                    row[literal] = -1.0
                if region is not None:
                    row[region] = 1.0
                entries += row
                needs.append(0.0 if region is not None else 1.0)
            weights = p.floats("check.weights", entries, (len(conditions), width))
            needed = p.floats("check.needs", needs, (len(conditions), 1))
            short = p.add("Relu", [p.add("Gemm", [weights, bits, needed], f"{name}/short")], f"{name}/unmet")
            parts.append(p.add("ReduceSum", [short, first], f"{name}/missed", keepdims=0))
        return parts[0] if len(parts) == 1 else p.add("Add", parts, f"{name}/broken")

    def held(self, k: str, right: str, name: str) -> str:
        """Compare where all literals must hold: k <= high, -k <= -low and C k <= right, all at once (all, n)."""
        p, low, high = self.program, *(floats_of(self.tensors[f"grid.{side}"]) for side in ("lower", "upper"))
        limits, parts = [*high, *(0.0 - value for value in low)], [k, p.add("Neg", [k], f"{name}/negative")]
        if self.listed.clauses:
            count = len(self.listed.literals)
            p.reserve(2 * count * self.m)
            matrix = p.doubles("check.outputs", floats_of(self.tensors["check.outputs"]), (count, self.m))
            sums = p.add("MatMul", [matrix, k], f"{name}/sums")
            # A difference is at most 0 exactly if its first part is at most its second.
            parts.append(p.add("Sub", [sums, right], f"{name}/excess") if self.moving else sums)
            limits += [0.0] * count if self.moving else floats_of(self.tensors["check.thresholds"])
        column = p.doubles("check.limits", limits, (len(limits), 1))
        return p.add("LessOrEqual", [p.add("Concat", parts, f"{name}/all", axis=0), column], f"{name}/held")

    @property
    def plain(self) -> bool:
        """Whether all literals must hold, everywhere."""
        return not self.used and all(len(set(own)) == 1 for *_, own in self.listed.clauses)

    @property
    def pinned(self) -> bool:
        """Whether all literals must hold, and two make an equality: hardly any answer of a model passes."""
        found = {sign: {signed(each, sign) for each in self.listed.literals} for sign in (1, -1)}
        return self.plain and not found[1].isdisjoint(found[-1])

    # --- answers and proposals, checked together

    def together(self, k: str, targets: str, read: str, right: str, name: str) -> str:
        """Return whole numbers of all rows (batch, m): answers that pass, else proposals that do, else safe ones."""
        p = self.program
        p.add("Identity", [targets], "repair/targets")
        p.add("Identity", [right], "repair/right")
        own = p.add("Identity", [read], "repair/read") if self.reads else None
        safe = self.safe(own, None)
        shape = p.add("Concat", [p.integers("repair.width", [self.m], (1,)), p.rows()], "repair/shape", axis=0)
        proposed = p.add("Reshape", [PROPOSAL, shape], "repair/proposed", allowzero=1)
        proposal = p.add("Floor", [proposed], "repair/proposals")
        both = p.add("Concat", [k, proposal], "repair/both", axis=1)
        sides = p.add("Concat", [right, right], "repair/sides", axis=1) if self.moving else right
        held = p.cast(self.held(both, sides, "repair/check"))  # zeros and ones: NaN fails every comparison
        least = p.add("ReduceMin", [held, p.integers("constants/first", [0], (1,))], "repair/least", keepdims=0)
        good = p.add("Cast", [least], "repair/good", to=BOOL)
        halves = p.add("Concat", [p.rows(), p.rows()], "repair/halves", axis=0)  # runtimes cannot halve zero rows
        first, second = p.several("Split", [good, halves], ["repair/first", "repair/second"], axis=0)
        found = p.add("Where", [first, k, p.add("Where", [second, proposal, safe], "repair/found")], "repair/all")
        return p.add("Cast", [p.add("Transpose", [found], "repair/turned")], name, to=INT64)

    # --- rows that fail

    def repaired(self, k: str, broken: str, targets: str, read: str, right: str) -> str:
        """Return whole numbers for all rows (batch, m): failing ones get the first passing proposal, or safe ones."""
        p, m, count = self.program, self.m, self.count
        first = p.integers("constants/first", [0], (1,))
        failing = p.add("NonZero", [broken], "repair/rows")
        places = p.add("Transpose", [failing], "repair/places")
        chosen = p.add("Squeeze", [failing, first], "repair/chosen")
        p.add("Gather", [targets, chosen], "repair/targets", axis=1)
        own = p.add("Gather", [read, chosen], "repair/read", axis=1) if self.reads else None
        moving = self.moving
        sides = p.add("Gather", [right, chosen], "repair/right", axis=1) if moving else right
        if not moving:
            p.add("Identity", [right], "repair/right")
        gated = "bits" in self.values
        active = None
        if gated:
            active = p.add("Gather", [p.cast(self.values["bits"].node), chosen], "repair/bits", axis=1)
        found = self.safe(own, active)
        number = p.integers("repair.proposals", [count], (1,))
        size = p.add("Mul", [p.add("Shape", [chosen], "repair/count"), number], "repair/number")
        shape = p.add("Concat", [p.integers("repair.width", [m], (1,)), size], "repair/shape", axis=0)
        proposed = p.add("Reshape", [PROPOSAL, shape], "repair/proposed", allowzero=1)
        candidates = p.add("Floor", [proposed], "repair/proposals")
        if moving and count > 1:
            sides = p.add("Concat", [sides] * count, "repair/sides", axis=1)
        tiled = active
        if active is not None and count > 1:
            tiled = p.add("Concat", [active] * count, "repair/active", axis=1)
        missed = self.broken(candidates, sides, gated, "repair/check", tiled)
        good = p.add("Equal", [missed, p.floats("constants/none", [0], ())], "repair/good")
        if count > 1:
            good = p.add("Reshape", [good, p.integers("repair.table", [count, -1], (2,))], "repair/table")
            candidates = p.add(
                "Reshape", [candidates, p.integers("repair.split", [m, count, -1], (3,))], "repair/split"
            )
        for i in reversed(range(count)):  # the safe answer, which is proved, serves if none passes
            passes, answer = good, candidates
            if count > 1:
                place = p.integers(f"repair.place.{i}", [i], ())
                passes = p.add("Gather", [good, place], f"repair/passes/{i}", axis=0)
                answer = p.add("Gather", [candidates, place], f"repair/answer/{i}", axis=1)
            found = p.add("Where", [passes, answer, found], f"repair/found/{i}")
        kept = p.add("Transpose", [k], "repair/kept")
        put = p.add("ScatterND", [kept, places, p.add("Transpose", [found], "repair/turned")], "repair/all")
        return p.add("Cast", [put], "repair/whole", to=INT64)

    @property
    def moving(self) -> bool:
        """Whether right sides of literals move with inputs."""
        return bool(self.listed.moving) or any(floats_of(self.tensors["check.steps"]))

    @property
    def reads(self) -> bool:
        """Whether anything but the model reads inputs."""
        parts = ("check.steps", "check.inputs_float32", "safe.slope")
        return self.tree is not None or bool(self.used) or any(any(floats_of(self.tensors[name])) for name in parts)

    def safe(self, read: str | None, active: str | None) -> str:
        """Return the stored safe answers (m, rows) in whole numbers, or (m, 1) if they are constant."""
        p, m = self.program, self.m
        leaves = self.tensors["safe.offset"].shape[0]
        if read is None or (leaves == 1 and not any(floats_of(self.tensors["safe.slope"]))):
            return p.add("Identity", [self.column("safe.offset", m)], "repair/safe")
        p.reserve(2 * leaves * m * self.d)
        slopes = p.doubles("safe.slope", floats_of(self.tensors["safe.slope"]), (leaves * m, self.d))
        offsets = p.doubles("safe.offset", floats_of(self.tensors["safe.offset"]), (leaves * m, 1))
        moved = p.add("MatMul", [slopes, read], "safe/moved")
        if leaves == 1:
            return p.add("Add", [moved, offsets], "repair/safe")
        values = p.add("Add", [moved, offsets], "safe/values")
        sizes = p.integers("safe.sizes", [m] * leaves, (leaves,))
        parts = p.several("Split", [values, sizes], [f"safe/leaf/{i}" for i in range(leaves)], axis=0)
        grown = self.grown(self.tree, read, active, iter(parts))
        return p.add("Identity", [grown], "repair/safe")

    def grown(self, tree: Any, read: str, active: str | None, leaves: Any) -> str:
        """Return the value of the leaf that a tree leads to; leaves come in the order in which they are written."""
        if tree is None:
            return str(next(leaves))
        p, question = self.program, tree[0]
        inside, outside = (self.grown(part, read, active, leaves) for part in tree[1:])
        name = f"safe/tree/{len(p.nodes)}"
        if isinstance(question, dict):
            j = question["input"]
            place = p.integers(f"safe.input.{j}", [j], (1,))
            row = p.add("Gather", [read, place], f"{name}/input", axis=0)
            limit = self.number(f"{name}/at", float(cut_place(self.spec, j, question["at"])))
            bit = p.add("LessOrEqual", [row, limit], f"{name}/bit")
        elif active is None or not self.spec.regions[question]:
            return inside
        else:
            place = p.integers(f"safe.region.{question}", [self.gated.index(question)], (1,))
            row = p.add("Gather", [str(active), place], f"{name}/region", axis=0)
            bit = p.add("Cast", [row], f"{name}/bit", to=BOOL)
        return p.add("Where", [bit, inside, outside], name)

    def on_steps(self) -> str | None:
        """Return a mask (d, batch) of inputs that equal the float32 number they are read as, or have no step."""
        p = self.program
        if all(step is None for step in self.spec.input_steps):
            return None
        num, den = (self.column(f"grid.input_{name}", self.d) for name in ("numerator", "denominator"))
        values = p.add("Div", [p.add("Mul", ["read/whole", num], "domain/multiple"), den], "domain/value")
        equal = p.add("Equal", [p.add("Cast", [values], "domain/single", to=FLOAT), "head/columns"], "domain/near")
        real = p.put("domain.real", Constant("BOOL", (self.d, 1), bytes(s is None for s in self.spec.input_steps)))
        return p.add("Or", [equal, real], "domain/fits")
