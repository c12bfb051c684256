"""Row operations of a head (`smle_check.program`) as nodes, one method per kind: what a graph must be."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from smle_check.floats import BINARY32, below
from smle_check.onnx.graph import BOOL, DOUBLE, Constant
from smle_check.onnx.nodes import FEATURES, Interface, Program, Value, floats_of, negated
from smle_check.program import Gate, Op
from smle_check.reading import Tensor

FEW = 4096  # largest matrix of comparisons; beyond it, each comparison picks its input
NAN = b"\x00\x00\xc0\x7f"
Tensors = dict[str, Tensor]


class Picked(NamedTuple):
    """Outputs of all heads (batch, heads x m), the free ones beside them (batch, m), and which ones serve."""

    y: str
    free: str | None
    place: Value | None
    m: int


class Printer:
    """A printer that writes operations one by one; `values` holds their results by name.

    `direct`: whether the one gated region is read off the named inputs (see `is_direct`); `across`: whether features
    are kept as (d, batch). The methods below serve heads of every kind.
    """

    def __init__(
        self, program: Program, interface: Interface, tensors: Tensors, ops: Sequence[Op], *, across: bool, direct: bool
    ) -> None:
        self.program, self.interface, self.tensors, self.ops = program, interface, tensors, list(ops)
        self.across, self.direct = across, direct
        self.values: dict[str, Value] = {}

    def print(self, kept: set[str]) -> str:
        """Write what the last operation needs, and what is to be kept; return the outputs (batch, m)."""
        needed = {self.ops[-1].out, *kept}
        for op in reversed(self.ops):
            if op.out in needed and not (op.kind == "active" and self.direct):
                needed.update(name for name in op.args if name is not None)
        for op in self.ops:
            if op.out in needed:
                getattr(self, op.kind)(op)
        return self.values[self.ops[-1].out].node

    def value(self, name: str | None) -> Value:
        """Return the result of an operation."""
        return self.values[str(name)]

    def tensor(self, name: str | None) -> Tensor:
        """Return a certified tensor; features are float32."""
        return self.tensors[str(name).replace("_F", "_float32")]

    def clamp(self, op: Op) -> None:
        """Clamp FEATURES to the domain; NaN becomes the lower end."""
        p, (_, *ends) = self.program, op.args
        d = self.tensor(ends[0]).shape[0]
        source = p.add("Transpose", [FEATURES], "head/columns") if self.across else FEATURES
        low, high = (p.stored(str(n).replace("_F", "_float32"), self.tensor(n), *self.along(d)) for n in ends)
        above = p.add("GreaterOrEqual", [source, low], "head/x/above")
        raised = p.add("Where", [above, source, low], "head/x/raised")
        self.values[op.out] = Value(p.add("Min", [raised, high], "head/x"), self.across)

    def along(self, count: int) -> tuple[int, ...]:
        """Return the shape of one number per column."""
        return (count, 1) if self.across else (count,)

    def wide(self, op: Op) -> None:
        """Write features in float64."""
        self.values[op.out] = Value(self.widened(), self.across)

    def on_steps(self) -> str | None:
        """Return which inputs are on their steps (d, batch), or None if the head has none."""
        return None

    def widened(self) -> str:
        """Return clamped features in float64."""
        p = self.program
        return "head/wide" if "head/wide" in p.made else p.add("Cast", ["head/x"], "head/wide", to=DOUBLE)

    def single(self, op: Op) -> None:
        """Keep features in float32, which they already are."""
        self.values[op.out] = self.value(op.args[0])

    def active(self, op: Op) -> None:
        """Write bits of regions (regions, batch), or of the only region (batch, 1)."""
        if self.direct:
            self.values[op.out] = Value(inside(self.program, self.interface, op.fixed, self.tensor(op.args[2])), False)
            return
        self.values[op.out] = Value(active(self.program, self.widened(), op.fixed, self.tensors, "gate"), True)


# --- The gate ----------------------------------------------------------------------------------------------------


def active(program: Program, wide: str, gate: Gate, tensors: Tensors, name: str) -> str:
    """Map features in float64 (d, batch) to active regions (regions, batch): those without a row that fails."""
    d, regions = tensors["gate.coefficients"].shape[1], len(gate.members)
    most = max(map(len, gate.members))
    listed = range(len(gate.comparisons) + gate.oblique)
    order = [own[0] if own else None for own in gate.members] if most == 1 else [*listed]
    if len(order) * d > FEW and not gate.oblique:
        sums, limits = picked(program, wide, gate, tensors, order, name, name)
    else:
        program.reserve(2 * len(order) * d)
        found = list(half_spaces(gate, tensors, order))
        rows = program.doubles(f"{name}.rows", [v for row, _ in found for v in row], (len(order), d))
        limits = program.doubles(f"{name}.thresholds", [threshold for _, threshold in found], (len(order), 1))
        sums = program.add("MatMul", [rows, wide], f"{name}/sums")
    if most == 1:  # at most one half-space for each region
        return program.add("LessOrEqual", [sums, limits], f"{name}/active")
    beyond = program.cast(program.add("Greater", [sums, limits], f"{name}/beyond"))
    program.reserve(regions * len(order))
    entries = [int(r in own) for own in map(set, gate.members) for r in listed]
    members = program.floats(f"{name}.members", entries, (regions, len(order)))
    count = program.add("MatMul", [members, beyond], f"{name}/count")
    return program.add("Equal", [count, program.floats("constants/none", [0], ())], f"{name}/active")


def picked(
    program: Program, wide: str, gate: Gate, tensors: Tensors, order: Sequence[int | None], name: str, stored: str
) -> tuple[str, str]:
    """Return one input for each comparison, with its sign, and what it is compared with: as many numbers as rows.

    A number times 1 or -1 is exact. If there is nothing to compare, an input times 0 gives 0 <= 0: inputs are finite.
    """
    columns = [0 if r is None else gate.comparisons[r].column for r in order]
    signs = [0.0 if r is None else -1.0 if gate.comparisons[r].negative else 1.0 for r in order]
    found = thresholds_of(gate, tensors)
    limits = program.doubles(f"{stored}.thresholds", [0.0 if r is None else found[r] for r in order], (len(order), 1))
    values = program.add(
        "Gather", [wide, program.integers(f"{stored}.columns", columns, (len(order),))], f"{name}/own", axis=0
    )
    turned = program.add("Mul", [values, program.doubles(f"{stored}.signs", signs, (len(order), 1))], f"{name}/sums")
    return turned, limits


def thresholds_of(gate: Gate, tensors: Tensors) -> list[float]:
    """Return the thresholds that the sums of comparisons must not exceed (see `half_spaces`)."""
    constants = [Fraction(value) for value in floats_of(tensors["gate.constants_float32"])]
    strict = [comparison.strict for comparison in gate.comparisons]
    return [float((below(c, BINARY32) + c) / 2 if s else c) for c, s in zip(constants, strict, strict=True)]


def half_spaces(gate: Gate, tensors: Tensors, order: Iterable[int | None]) -> Iterator[tuple[list[float], float]]:
    """Yield half-spaces of a gate as rows over the inputs, each with a threshold that the sum must not exceed.

    For a comparison the sum is one input or its negative, exact in float64, where float32 numbers are normal or 0. A
    strict one, s x < c, fails if s x >= c, that is, above the middle between c and the float32 number below c. None
    stands for the whole domain, 0 <= 0.
    """
    d = tensors["gate.coefficients"].shape[1]
    limits = thresholds_of(gate, tensors)
    oblique, bounds = floats_of(tensors["gate.coefficients"]), floats_of(tensors["gate.thresholds"])
    for r in order:
        row = [0.0] * d
        if r is None:
            yield row, 0.0
        elif r < len(gate.comparisons):
            column, negative, _ = gate.comparisons[r]
            row[column] = -1.0 if negative else 1.0
            yield row, limits[r]
        else:
            r -= len(gate.comparisons)
            yield oblique[r * d : (r + 1) * d], bounds[r]


def is_one_of_two(signatures: Tensor) -> bool:
    """Return whether there is one gated region, with one head inside and another outside."""
    return signatures.shape == (2, 1) and signatures.data == b"\x01\x00"


def is_direct(interface: Interface, gate: Gate, tensors: Tensors) -> bool:
    """Return whether named inputs may be compared unclamped: one region, of comparisons with limits within their range.

    A limit t of `x <= t` or `x > t` has lower <= t < upper, one of `x >= t` or `x < t` has lower < t <= upper. Then x
    may be compared instead of clamped x. With other limits, or if regions are reported, inputs are clamped first.
    """
    if interface.monitored or gate.oblique or sum(bool(own) for own in gate.members) != 1:
        return False
    numbers = [not item.categories for item in interface.inputs for _ in range(item.width)]
    numbers += [False for item in interface.inputs if item.flagged]
    lower, upper = (floats_of(tensors[f"domain.{side}_float32"]) for side in ("lower", "upper"))
    limits = floats_of(tensors["gate.constants_float32"])
    for (column, negative, strict), limit in zip(gate.comparisons, limits, strict=True):
        low, high = (-upper[column], -lower[column]) if negative else (lower[column], upper[column])
        if not (numbers[column] and (low < limit <= high if strict else low <= limit < high)):
            return False
    return True


def inside(program: Program, interface: Interface, gate: Gate, constants: Tensor) -> str:
    """Return whether the one gated region, made of comparisons of named inputs, is active (batch, 1).

    For limits strictly within the range (see `is_direct`) this is the same as comparing clamped inputs, NaN included:
    clamped to the lower end, it is not above any limit and reaches none.
    """
    names: list[str] = []
    for i, item in enumerate(interface.inputs):
        names += [item.name if item.fill is None else f"inputs/{i}/filled"] * item.width
    beyond: list[str] = []
    within: list[str] = []
    for i, (column, negative, strict) in enumerate(gate.comparisons):
        limit = constants.data[4 * i : 4 * i + 4]
        constant = program.put(f"gate.limits.{i}", Constant("F32", (1, 1), negated(limit) if negative else limit))
        op = "Greater" if strict is negative else "GreaterOrEqual"
        (within if negative else beyond).append(program.add(op, [names[column], constant], f"gate/row/{i}"))
    parts = [program.add("Not", [_joined(program, beyond, "Or", "gate/Or")], "gate/below")] if beyond else []
    parts = ([_joined(program, within, "And", "gate/And")] if within else []) + parts
    return parts[0] if len(parts) == 1 else program.add("And", parts, "gate/inside")


def _joined(program: Program, parts: list[str], op: str, output: str) -> str:
    result = parts[0]
    for i, part in enumerate(parts[1:]):
        result = program.add(op, [result, part], f"{output}/{i}")
    return result


# --- Heads behind a box -------------------------------------------------------------------------------------------


class BoxPrinter(Printer):
    """The printer of heads behind a box."""

    picked: Picked

    def embedding(self) -> str:
        """Return the embedding (batch, n)."""
        n = self.tensors["heads.weight"].shape[2]
        return "head/embedding" if "head/embedding" in self.program.made else self.program.answer(n)

    def cell(self, op: Op) -> None:
        """Map bits of the gate to the number of the cell (batch, 1); for one region, to whether it is active."""
        p, bits, signatures = self.program, self.value(op.args[0]), self.tensor(op.args[1])
        if is_one_of_two(signatures):
            turned = p.add("Transpose", [bits.node], "gate/inside") if bits.across else bits.node
            self.values[op.out] = Value(turned, False)
            return
        count, regions = signatures.shape
        rows = [signatures.data[c * regions : (c + 1) * regions] for c in range(count)]
        # bits.(2 s - 1) - |s| is 0 where s equals bits and at most -1 elsewhere; these are small whole numbers, so
        # exact. The certificate proves that every signature has a head; if one did not, the last column sends it to the
        # strictest.
        sums = [sum(row) for row in rows]
        entries = [entry for g in range(regions) for entry in (*(2 * row[g] - 1 for row in rows), 0)]
        match = p.floats("gate.match", entries, (regions, count + 1))
        targets = p.floats("gate.targets", [*(-total for total in sums), -0.5], (count + 1,))
        score = p.add("Gemm", [p.cast(bits.node), match, targets], "gate/score", transA=1)
        best = p.add("ArgMax", [score], "gate/best", axis=1, keepdims=1)
        cells = p.integers("gate.cells", [*range(count), sums.index(max(sums))], (count + 1,))
        self.values[op.out] = Value(p.add("Gather", [cells, best], "gate/cell", axis=0), False)

    def layer(self, op: Op, output: str) -> str:
        """Return weight v + bias (batch, n)."""
        v, *names = op.args
        weight, bias = (self.program.stored(str(name), self.tensor(name)) for name in names)
        value = self.value(v)
        turned = {"transA": 1} if value.across else {}
        return self.program.add("Gemm", [value.node, weight, bias], output, **turned, transB=1)

    def hidden(self, op: Op) -> None:
        """Write a hidden layer of bounds by a network."""
        affine = self.layer(op, f"head/{op.out}/affine")
        self.values[op.out] = Value(self.program.add("Relu", [affine], f"head/{op.out}"), False)

    def affine(self, op: Op) -> None:
        """Write bounds that depend on the input."""
        self.values[op.out] = Value(self.layer(op, f"head/{op.out}"), False)

    def clip(self, op: Op) -> None:
        """Clip the embedding to its bounds.

        If all units share one pair of bounds, the operator Clip does it, and `or_fallback` guards against NaN.
        """
        p, z, ends = self.program, self.embedding(), op.args[1:]
        if ends[0] in self.values:
            low, high = (self.value(end).node for end in ends)
        else:
            lower, upper = (self.tensor(end) for end in ends)
            one = all(end.data == end.data[:4] * (len(end.data) // 4) for end in (lower, upper))
            if op.fixed == "clamp" and one:
                low, high = (p.put(str(n), Constant("F32", (), self.tensor(n).data[:4])) for n in ends)
                self.values[op.out] = Value(p.add("Clip", [z, low, high], "head/clipped"), False)
                return
            low, high = (p.stored(str(end), self.tensor(end)) for end in ends)
        # NaN becomes the upper end; if the lower end is above it, the result is the lower one.
        lowered = p.add(
            "Where", [p.add("LessOrEqual", [z, high], "head/clipped/below"), z, high], "head/clipped/lowered"
        )
        self.values[op.out] = Value(p.add("Max", [lowered, low], "head/clipped"), False)

    def affine_at(self, op: Op) -> None:
        """Write the outputs of all heads, and of the free one; `pick` chooses."""
        p = self.program
        place, v, weight, bias, x, passed, z, free_weight, free_bias = op.args
        count, m, n = self.tensor(weight).shape
        W, b = (
            p.stored(str(weight), self.tensor(weight), count * m, n),
            p.stored(str(bias), self.tensor(bias), count * m),
        )
        y = p.add("Gemm", [self.value(v).node, W, b], "head/affine", transB=1)
        if x is not None:
            V = p.stored(str(passed), self.tensor(passed), count * m, self.tensor(passed).shape[2])
            y = p.add("Add", [y, p.add("Gemm", [self.value(x).node, V], "head/passed", transA=1, transB=1)], "head/sum")
        free = None
        if z is not None:
            parameters = [p.stored(str(name), self.tensor(name)) for name in (free_weight, free_bias)]
            free = p.add("Gemm", [self.embedding(), *parameters], "head/free", transB=1)
        self.picked = Picked(y, free, None if place is None else self.value(place), m)
        if op is self.ops[-1]:
            self.values[op.out] = Value(self.pick(), False)

    def or_fallback(self, op: Op) -> None:
        """Write safe outputs where a certified head gives NaN."""
        self.values[op.out] = Value(self.pick(self.tensor(op.args[2]).data), False)

    def pick(self, fallback: bytes | None = None) -> str:
        """Return the outputs of the serving head, (batch, m)."""
        p, (y, free, place, m) = self.program, self.picked
        if place is None:
            return self.guarded(y, None if fallback is None else self.safe(fallback, 1))
        if is_one_of_two(self.tensors["gate.signatures"]):
            return self.one_of_two(place.node, fallback)
        if free is not None:
            y = p.add("Concat", [y, free], "head/all", axis=1)
            fallback = None if fallback is None else fallback + NAN * m
        total = self.tensors["heads.weight"].shape[0] + (free is not None)
        choices = p.add("Reshape", [y, p.integers("head.shape", [0, total, m], (3,))], "head/choices")
        y = p.add("GatherND", [choices, place.node], "head/picked", batch_dims=1)
        if fallback is None:
            return y
        return self.guarded(y, p.add("GatherND", [self.safe(fallback, total), place.node], "head/safe", batch_dims=0))

    def one_of_two(self, inside: str, fallback: bytes | None) -> str:
        """Choose for one gated region (batch, 1): the first head if it is active, else the second or the free one."""
        p, (y, free, _, m) = self.program, self.picked
        if free is not None:
            safe = None if fallback is None else self.safe(fallback, 1)
            return p.add("Where", [inside, self.guarded(y, safe), free], "head/picked")
        parts = p.several("Split", [y, p.integers("head.sizes", [m, m], (2,))], ["head/first", "head/second"], axis=1)
        y = p.add("Where", [inside, *parts], "head/picked")
        if fallback is None:
            return y
        ends = [self.safe(fallback[: 4 * m], 1), self.safe(fallback[4 * m :], 1, ".second")]
        return self.guarded(y, p.add("Where", [inside, *ends], "head/safe"))

    def safe(self, data: bytes, count: int, suffix: str = "") -> str:
        """Write safe outputs."""
        return self.program.put("heads.fallback" + suffix, Constant("F32", (count, self.picked.m), data))

    def guarded(self, y: str, safe: str | None) -> str:
        """Serve safe outputs if any of the m outputs is NaN; the NaN-safe clip (safe is None) needs no guard."""
        if safe is None:
            return y
        p = self.program
        found = p.add("IsNaN", [y], "head/nan")
        if self.picked.m > 1:  # one by one: runtimes differ in a maximum or sum of NaN
            axes = p.integers("constants/second", [1], (1,))
            found = p.add("ReduceMax", [p.cast(found), axes], "head/nan/any", keepdims=1)
            found = p.add("Cast", [found], "head/broken", to=BOOL)
        return p.add("Where", [found, safe, y], "head/guarded")
