"""The program of a certified head as an ONNX graph: what the graph of an exported file must be."""

import struct
from typing import NamedTuple

from smle_check.guard import guard_tensors
from smle_check.onnx.graph import BOOL, DOUBLE, FLOAT, STRING, Constant, Node
from smle_check.reading import Tensor
from smle_check.specification import Specification

NAN = b"\x00\x00\xc0\x7f"
FEATURES, EMBEDDING = "inputs/features", "backbone/embedding"  # (batch, d) and (batch, n)


class Input(NamedTuple):
    """A named input: a number, or one of several categories.

    `fill`: the float32 that stands in for NaN, or None. `default`: the category that stands in for unknown ones;
    `blank`: whether the empty text counts as that category. `whole`: whether `in_domain` asks for a whole number.
    """

    name: str
    categories: tuple[str, ...] = ()
    fill: bytes | None = None
    default: int = 0
    blank: bool = False
    whole: bool = False


class Output(NamedTuple):
    """A named output: `number`, `label` or `choice`; for a choice its options and ArgMax or ArgMin."""

    kind: str
    name: str
    options: tuple[str, ...] = ()
    pick: str = "ArgMax"

    @property
    def columns(self) -> list[str]:
        """Names of the graph's float outputs."""
        if self.kind == "choice":
            return [f"score({self.name}={option})" for option in self.options]
        return [f"logit({self.name})" if self.kind == "label" else self.name]


class Gate(NamedTuple):
    """The half-spaces that some regions use, comparisons (column, sign, strict) first, and which regions they make."""

    comparisons: list[tuple[int, int, bool]]
    oblique: int
    members: list[list[int]]  # half-spaces x regions
    constants: bytes  # of the comparisons
    coefficients: Tensor
    thresholds: bytes


class Monitor(NamedTuple):
    """What `active_rules` reports. `gate`: a gate of its own, where the head's does not have all regions."""

    gate: Gate | None
    rules: list[list[int]]  # regions x rules
    always: list[int]  # rules with a region that is the whole domain


class Program:
    """Nodes and constants, put down one after the other."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}

    def add(self, op: str, inputs: list[str], output: str, **attributes: int) -> str:
        """Append a node with one output; return its name."""
        self.nodes.append(Node(op, tuple(inputs), (output,), attributes))
        return output

    def split(self, source: str, sizes: str, outputs: list[str]) -> None:
        """Split columns into named outputs (batch, 1)."""
        self.integers(sizes, [1] * len(outputs), (len(outputs),))
        self.nodes.append(Node("Split", (source, sizes), tuple(outputs), {"axis": 1}))

    def put(self, name: str, constant: Constant) -> str:
        """Note a constant; return its name."""
        self.constants[name] = constant
        return name

    def floats(self, name: str, values: list[float] | list[int], shape: tuple[int, ...]) -> str:
        """Note a float32 constant of small whole numbers or halves."""
        return self.put(name, Constant("F32", shape, struct.pack(f"<{len(values)}f", *values)))

    def integers(self, name: str, values: list[int], shape: tuple[int, ...]) -> str:
        """Note an int64 constant."""
        return self.put(name, Constant("I64", shape, struct.pack(f"<{len(values)}q", *values)))

    def texts(self, name: str, values: tuple[str, ...], shape: tuple[int, ...]) -> str:
        """Note a constant of texts."""
        return self.put(name, Constant("STRING", shape, tuple(v.encode() for v in values)))

    def encode(self, inputs: tuple[Input, ...]) -> list[str]:
        """Named inputs -> FEATURES (batch, d). Return the texts compared with the known ones (batch, categories)."""
        parts, known = [], []
        for i, item in enumerate(inputs):
            base = f"inputs/{i}/"
            if not item.categories:
                parts.append(item.name)
                if item.fill is not None:
                    fill = self.put(base + "fill", Constant("F32", (1, 1), item.fill))
                    missing = self.add("IsNaN", [item.name], base + "missing")
                    parts[-1] = self.add("Where", [missing, fill, item.name], base + "filled")
                continue
            k = len(item.categories)
            names = self.texts(base + "categories", item.categories, (1, k))
            equal = self.add("Equal", [item.name, names], base + "equal")
            # Exactly one column is 1, whatever the text: an unknown one counts as the default.
            otherwise = self.floats(base + "otherwise", [int(j == item.default) for j in range(k)], (1, k))
            score = self.add("Where", [equal, self.floats("constants/two", [2], ()), otherwise], base + "score")
            best = self.add("ArgMax", [score], base + "index", axis=1, keepdims=1)
            positions = self.integers(base + "positions", list(range(k)), (1, k))
            parts.append(self.cast(self.add("Equal", [best, positions], base + "hot")))
            known.append(equal)
        self.add("Concat", parts, FEATURES, axis=1)
        return known

    def cast(self, source: str) -> str:
        """Turn truth values into float32 zeros and ones, once."""
        output = source + "/float"
        if all(output not in node.outputs for node in self.nodes):
            self.add("Cast", [source], output, to=FLOAT)
        return output

    def clip(self, source: str, lower: str, upper: str, output: str) -> str:
        """The NaN-safe clip: NaN becomes lower, and where lower > upper the result is upper."""
        above = self.add("GreaterOrEqual", [source, lower], output + "/above")
        raised = self.add("Where", [above, source, lower], output + "/raised")
        below = self.add("LessOrEqual", [raised, upper], output + "/below")
        return self.add("Where", [below, raised, upper], output)

    def domain(self, tensors: dict[str, Tensor]) -> str:
        """FEATURES -> features clamped to the domain, one row per column (d, batch): runtimes are faster that way."""
        d = tensors["domain.lower_float32"].shape[0]
        ends = [self.stored(f"domain.{side}_float32", tensors, d, 1) for side in ("lower", "upper")]
        return self.clip(self.add("Transpose", [FEATURES], "head/columns"), ends[0], ends[1], "head/x")

    def in_domain(self, inputs: tuple[Input, ...], known: list[str]) -> None:
        """`in_domain` (batch,): clamping changed nothing, whole numbers are whole, and texts are known (or blank)."""
        inside = self.cast(self.add("Equal", ["head/x", "head/columns"], "domain/inside"))
        first = self.integers("constants/first", [0], (1,))
        flags = [self.add("ReduceMin", [inside, first], "domain/least", keepdims=0)]
        whole = whole_columns(inputs)
        if whole:
            picks = self.integers("domain.whole", whole, (len(whole),))
            values = self.add("Gather", ["head/columns", picks], "domain/values", axis=0)
            equal = self.add("Equal", [values, self.add("Floor", [values], "domain/floor")], "domain/equal")
            flags.append(self.add("ReduceMin", [self.cast(equal), first], "domain/unbroken", keepdims=0))
        for (i, item), equal in zip(
            [(i, item) for i, item in enumerate(inputs) if item.categories], known, strict=True
        ):
            base, k = f"inputs/{i}/", len(item.categories)
            if item.blank:
                accepted = self.texts(base + "known", (*item.categories, ""), (1, k + 1))
                equal = self.add("Equal", [item.name, accepted], base + "accepted")
            axes = self.integers("constants/second", [1], (1,))
            flags.append(self.add("ReduceMax", [self.cast(equal), axes], base + "any", keepdims=0))
        everything = self.add("Min", flags, "domain/everything") if len(flags) > 1 else flags[0]
        self.add("Cast", [everything], "in_domain", to=BOOL)

    def active(self, x: str, gate: Gate, name: str = "gate") -> str:
        """Clamped features -> which regions are active (regions, batch). Each half-space is evaluated once.

        A row s x <= c fails where s x > c. A strict one, s x < c, holds where -s x > -c: it counts as -1, and a region
        is active where no row fails and all strict ones hold.
        """
        beyond, d = [], gate.coefficients.shape[1]
        strict = [row[2] for row in gate.comparisons]
        if gate.comparisons:
            turned = [(sign < 0) is not strict for _, sign, strict in gate.comparisons]
            rows, source = [row[0] + d * turn for row, turn in zip(gate.comparisons, turned, strict=True)], x
            if any(turned):  # a change of sign is exact, also for subnormal numbers
                source = self.add("Concat", [x, self.add("Neg", [x], f"{name}/negative")], f"{name}/both", axis=0)
            picks = self.integers(f"{name}.columns", rows, (len(rows),))
            values = self.add("Gather", [source, picks], f"{name}/compared", axis=0)
            parts = [gate.constants[4 * i : 4 * i + 4] for i in range(len(rows))]
            limits = b"".join(negated(p) if turn else p for p, turn in zip(parts, strict, strict=True))
            limit = self.put(f"{name}.limits", Constant("F32", (len(rows), 1), limits))
            beyond.append(self.add("Greater", [values, limit], f"{name}/beyond"))
        if gate.oblique:
            coefficients = self.put(f"{name}.coefficients", Constant(*gate.coefficients))
            wide = self.add("Cast", [x], f"{name}/wide", to=DOUBLE)
            sums = self.add("MatMul", [coefficients, wide], f"{name}/sums")
            threshold = self.put(f"{name}.thresholds", Constant("F64", (gate.oblique, 1), gate.thresholds))
            beyond.append(self.add("Greater", [sums, threshold], f"{name}/above"))
        stacked = beyond[0] if len(beyond) == 1 else self.add("Concat", beyond, f"{name}/rows", axis=0)
        count, regions = len(gate.members), len(gate.members[0])
        minus = strict + [False] * gate.oblique
        signed = [[-bit if turn else bit for bit in row] for row, turn in zip(gate.members, minus, strict=True)]
        entries = [row[g] for g in range(regions) for row in signed]
        members = self.floats(f"{name}.members", entries, (regions, count))
        least = [sum(min(row[g], 0) for row in signed) for g in range(regions)]
        found = self.add("MatMul", [members, self.cast(stacked)], f"{name}/count")
        return self.add("Equal", [found, self.floats(f"{name}.least", least, (regions, 1))], f"{name}/active")

    def inside(self, inputs: tuple[Input, ...], gate: Gate) -> str:
        """Named inputs -> whether the one gated region, made of comparisons, is active (batch, 1).

        For limits strictly inside of the range (see `is_direct`) this is what comparing clamped inputs gives, NaN
        included: clamped to the lower end, it is not above any limit and reaches none.
        """
        names: list[str] = []
        for i, item in enumerate(inputs):
            names += [item.name if item.fill is None else f"inputs/{i}/filled"] * max(1, len(item.categories))
        beyond: list[str] = []
        within: list[str] = []
        for i, (column, sign, strict) in enumerate(gate.comparisons):
            limit = gate.constants[4 * i : 4 * i + 4]
            constant = self.put(f"gate.limits.{i}", Constant("F32", (1, 1), limit if sign > 0 else negated(limit)))
            op = "GreaterOrEqual" if strict is (sign > 0) else "Greater"
            (beyond if sign > 0 else within).append(self.add(op, [names[column], constant], f"gate/row/{i}"))
        parts = [self.add("Not", [self.joined(beyond, "Or", "gate/Or")], "gate/below")] if beyond else []
        parts = ([self.joined(within, "And", "gate/And")] if within else []) + parts
        return parts[0] if len(parts) == 1 else self.add("And", parts, "gate/inside")

    def joined(self, parts: list[str], op: str, output: str) -> str:
        """Join truth values by And or Or."""
        result = parts[0]
        for i, part in enumerate(parts[1:]):
            result = self.add(op, [result, part], f"{output}/{i}")
        return result

    def active_rules(self, active: str | None, monitor: Monitor) -> None:
        """`active_rules` (batch, rules)."""
        rules = len(monitor.always)
        if active is None:  # no rule has a condition
            count = self.integers("rules.count", [rules], (1,))
            shape = self.add("Concat", [self.rows(), count], "rules/shape", axis=0)
            self.add("Expand", [self.put("constants/true", Constant("BOOL", (), b"\x01")), shape], "active_rules")
            return
        entries = [bit for row in monitor.rules for bit in row]
        members = self.floats("rules.members", entries, (len(monitor.rules), rules))
        always = self.floats("rules.always", monitor.always, (rules,))
        total = self.add("Gemm", [self.cast(active), members, always], "rules/total", transA=1)
        self.add("Cast", [total], "active_rules", to=BOOL)

    def rows(self) -> str:
        """How many rows the inputs have, (1,)."""
        if all("inputs/rows" not in node.outputs for node in self.nodes):
            self.add("Shape", [FEATURES], "inputs/rows", start=0, end=1)
        return "inputs/rows"

    def embedding(self, n: int) -> str:
        """EMBEDDING -> the embedding (batch, n): as many rows as the inputs have, or the runtime stops.

        Nothing else says that a backbone makes one row per input, and runtimes differ in what they do if it does not.
        """
        width = self.integers("head.width", [n], (1,))
        shape = self.add("Concat", [self.rows(), width], "head/shape", axis=0)
        return self.add("Reshape", [EMBEDDING, shape], "head/embedding", allowzero=1)

    def cell(self, bits: str, signatures: Tensor) -> str:
        """Bits of the gate (regions, batch) in float32 -> number of the cell (batch, 1)."""
        count, regions = signatures.shape
        rows = [signatures.data[c * regions : (c + 1) * regions] for c in range(count)]
        # bits.(2 s - 1) - |s| is 0 where s equals bits and at most -1 elsewhere; small whole numbers, so exact. The
        # certificate proves that every signature has a head; should one not, the last column sends it to the strictest.
        sums = [sum(row) for row in rows]
        entries = [entry for g in range(regions) for entry in (*(2 * row[g] - 1 for row in rows), 0)]
        match = self.floats("gate.match", entries, (regions, count + 1))
        targets = self.floats("gate.targets", [*(-total for total in sums), -0.5], (count + 1,))
        score = self.add("Gemm", [bits, match, targets], "gate/score", transA=1)
        best = self.add("ArgMax", [score], "gate/best", axis=1, keepdims=1)
        cells = self.integers("gate.cells", [*range(count), sums.index(max(sums))], (count + 1,))
        return self.add("Gather", [cells, best], "gate/cell", axis=0)

    def stored(self, name: str, tensors: dict[str, Tensor], *shape: int) -> str:
        """Note a certified tensor, reshaped."""
        return self.put(name, Constant("F32", shape or tensors[name].shape, tensors[name].data))

    def heads(
        self, x: str | None, active: str | None, inside: str | None, clip: str, tensors: dict[str, Tensor]
    ) -> str:
        """Clamped features (where needed), EMBEDDING (batch, n) and active regions -> outputs (batch, m).

        `inside`: whether the one gated region is active (batch, 1), where it is known directly.
        """
        count, m, n = tensors["heads.weight"].shape
        z = self.embedding(n)
        clipped = self.clipped(z, x, clip, tensors)
        W, b = self.stored("heads.weight", tensors, count * m, n), self.stored("heads.bias", tensors, count * m)
        y = self.add("Gemm", [clipped, W, b], "head/affine", transB=1)
        if "heads.passthrough" in tensors and x is not None:
            V = self.stored("heads.passthrough", tensors, count * m, tensors["heads.passthrough"].shape[2])
            y = self.add("Add", [y, self.add("Gemm", [x, V], "head/passed", transA=1, transB=1)], "head/sum")
        free = None
        if "free.weight" in tensors:
            parameters = [self.stored("free.weight", tensors), self.stored("free.bias", tensors)]
            free = self.add("Gemm", [z, *parameters], "head/free", transB=1)
        fallback = tensors["heads.fallback"].data if "heads.fallback" in tensors else None
        if inside is not None:
            return self.one_of_two(y, free, inside, fallback, m)
        if active is None:
            return self.guarded(y, None if fallback is None else self.fallback(fallback, 1, m), m)
        if tensors["gate.signatures"].data == b"\x01\x00":
            return self.one_of_two(y, free, self.add("Transpose", [active], "gate/inside"), fallback, m)
        if free is not None:
            y = self.add("Concat", [y, free], "head/all", axis=1)
            fallback = None if fallback is None else fallback + NAN * m
        cell, total = self.cell(self.cast(active), tensors["gate.signatures"]), count + (free is not None)
        choices = self.add("Reshape", [y, self.integers("head.shape", [0, total, m], (3,))], "head/choices")
        y = self.add("GatherND", [choices, cell], "head/picked", batch_dims=1)
        if fallback is None:
            return y
        safe = self.add("GatherND", [self.fallback(fallback, total, m), cell], "head/safe", batch_dims=0)
        return self.guarded(y, safe, m)

    def one_of_two(self, y: str, free: str | None, inside: str, fallback: bytes | None, m: int) -> str:
        """One gated region: the first head where it is active (batch, 1), the second or the free one elsewhere."""
        if free is not None:
            safe = None if fallback is None else self.fallback(fallback, 1, m)
            return self.add("Where", [inside, self.guarded(y, safe, m), free], "head/picked")
        parts = ("head/first", "head/second")
        self.nodes.append(Node("Split", (y, self.integers("head.sizes", [m, m], (2,))), parts, {"axis": 1}))
        y = self.add("Where", [inside, *parts], "head/picked")
        if fallback is None:
            return y
        ends = [self.fallback(fallback[: 4 * m], 1, m), self.fallback(fallback[4 * m :], 1, m, ".second")]
        return self.guarded(y, self.add("Where", [inside, *ends], "head/safe"), m)

    def fallback(self, data: bytes, count: int, m: int, suffix: str = "") -> str:
        """Note safe outputs."""
        return self.put("heads.fallback" + suffix, Constant("F32", (count, m), data))

    def guarded(self, y: str, safe: str | None, m: int) -> str:
        """Put safe outputs where any of the m outputs is NaN; the NaN-safe clip (safe is None) needs no guard."""
        if safe is None:
            return y
        total = y
        if m > 1:
            # A sum with NaN in it is NaN. Should huge finite numbers cancel to NaN, the row becomes safe all the same.
            axes = self.integers("constants/second", [1], (1,))
            total = self.add("ReduceSum", [y, axes], "head/total", keepdims=1)
        return self.add("Where", [self.add("IsNaN", [total], "head/nan"), safe, y], "head/guarded")

    def clipped(self, z: str, x: str | None, clip: str, tensors: dict[str, Tensor]) -> str:
        """The embedding, clipped into the bounds. Clip is used for one pair of bounds under a guard against NaN."""
        lower, upper = tensors["bounds.lower"].data, tensors["bounds.upper"].data
        if clip == "clamp" and lower == lower[:4] * (len(lower) // 4) and upper == upper[:4] * (len(upper) // 4):
            low = self.put("bounds.lower", Constant("F32", (), lower[:4]))
            high = self.put("bounds.upper", Constant("F32", (), upper[:4]))
            return self.add("Clip", [z, low, high], "head/clipped")
        ends = [self.stored(f"bounds.{side}", tensors) for side in ("lower", "upper")]
        if "bounds.lower_slope" in tensors and x is not None:
            slopes = [self.stored(f"bounds.{side}_slope", tensors) for side in ("lower", "upper")]
            low = self.add("Gemm", [x, slopes[0], ends[0]], "head/lower", transA=1, transB=1)
            high = self.add("Gemm", [x, slopes[1], ends[1]], "head/upper", transA=1, transB=1)
            ends = [low, high]
        return self.clip(z, ends[0], ends[1], "head/clipped")

    def outputs(self, y: str, outputs: tuple[Output, ...]) -> None:
        """Split the outputs into named ones; labels and choices are read off the logits and scores."""
        columns = [name for item in outputs for name in item.columns]
        if len(columns) == 1:  # what was computed last takes the name
            last = self.nodes.pop()
            y = self.add(last.op, list(last.inputs), columns[0], **last.attributes)
        else:
            self.split(y, "outputs.sizes", columns)
        starts = [sum(len(other.columns) for other in outputs[:i]) for i in range(len(outputs))]
        labels = [(item.name, start) for item, start in zip(outputs, starts, strict=True) if item.kind == "label"]
        if labels:
            logits = y
            if len(labels) < len(columns):
                places = self.integers("labels.columns", [start for _, start in labels], (len(labels),))
                logits = self.add("Gather", [y, places], "labels/logits", axis=1)
            alone = labels[0][0] if len(labels) == 1 else "labels/on"
            self.add("GreaterOrEqual", [logits, self.floats("constants/zero", [0], ())], alone)
            if len(labels) > 1:
                self.split("labels/on", "labels.sizes", [name for name, _ in labels])
        for i, (item, start) in enumerate(zip(outputs, starts, strict=True)):
            if item.kind == "choice":
                k, base = len(item.options), f"choices/{i}/"
                places = self.integers(base + "columns", list(range(start, start + k)), (k,))
                scores = self.add("Gather", [y, places], base + "scores", axis=1)
                best = self.add(item.pick, [scores], base + "index", axis=1, keepdims=1)
                options = self.texts(base + "options", item.options, (k,))
                self.add("Gather", [options, best], item.name, axis=0)


class Interface(NamedTuple):
    """Named inputs and outputs, and whether `in_domain` and `active_rules` are among the latter."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    monitored: bool = True


def program_of(
    face: Interface, spec: Specification, gated: list[int], clip: str, tensors: dict[str, Tensor]
) -> Program:
    """Return the whole program but for the backbone, which maps FEATURES (or other inputs) to EMBEDDING."""
    program, gate = Program(), gate_of(spec, gated)
    known = program.encode(face.inputs)
    direct = is_direct(face, gate, tensors)
    searched = bool(gate.members) and not direct
    reads = "bounds.lower_slope" in tensors or "heads.passthrough" in tensors
    x = program.domain(tensors) if face.monitored or searched or reads else None
    inside = program.inside(face.inputs, gate) if direct else None
    active = program.active(x, gate) if x is not None and searched else None
    if face.monitored and x is not None:
        program.in_domain(face.inputs, known)
        monitor = monitor_of(spec, gated)
        reported = active if monitor.gate is None else program.active(x, monitor.gate, "monitor")
        program.active_rules(reported, monitor)
    program.outputs(program.heads(x, active, inside, clip, tensors), face.outputs)
    return program


def is_direct(face: Interface, gate: Gate, tensors: dict[str, Tensor]) -> bool:
    """Whether named inputs are compared as they are: one region, of comparisons of numbers with limits in their range.

    A limit t of `x <= t` or `x > t` has lower <= t < upper, one of `x >= t` or `x < t` has lower < t <= upper. Then x
    may be compared in place of clamped x. With other limits, or where regions are reported, inputs are clamped first.
    """
    if face.monitored or gate.oblique or tensors["gate.signatures"].data != b"\x01\x00":
        return False
    numbers = [not item.categories for item in face.inputs for _ in range(max(1, len(item.categories)))]
    lower, upper = (floats_of(tensors[f"domain.{side}_float32"].data) for side in ("lower", "upper"))
    limits = floats_of(gate.constants)
    for (column, sign, strict), limit in zip(gate.comparisons, limits, strict=True):
        low, high = (lower[column], upper[column]) if sign > 0 else (-upper[column], -lower[column])
        if not (numbers[column] and (low < limit <= high if strict else low <= limit < high)):
            return False
    return bool(limits)


def floats_of(data: bytes) -> tuple[float, ...]:
    """Read float32 numbers."""
    return struct.unpack(f"<{len(data) // 4}f", data)


def negated(data: bytes) -> bytes:
    """Turn the sign of one float32, as bytes: exact."""
    return data[:3] + bytes([data[3] ^ 128])


def whole_columns(inputs: tuple[Input, ...]) -> list[int]:
    """Return the columns of inputs that `in_domain` asks to be whole numbers."""
    columns = [item.whole for item in inputs for _ in range(max(1, len(item.categories)))]
    return [column for column, whole in enumerate(columns) if whole]


def output_types(face: Interface, rules: int) -> dict[str, tuple[int, tuple[int | None, ...]]]:
    """Return names, types and shapes of the graph's outputs, in their order."""
    result: dict[str, tuple[int, tuple[int | None, ...]]] = {}
    for item in face.outputs:
        if item.kind != "number":
            result[item.name] = BOOL if item.kind == "label" else STRING, (None, 1)
        result.update(dict.fromkeys(item.columns, (FLOAT, (None, 1))))
    if face.monitored:
        result["in_domain"] = BOOL, (None,)
        if rules:
            result["active_rules"] = BOOL, (None, rules)
    return result


def gate_of(spec: Specification, regions: list[int]) -> Gate:
    """Return the gate of some regions that the certificate's specification prescribes."""
    used = sorted({r for g in regions for r in spec.regions[g]})
    order = sorted(used, key=lambda r: len(spec.rows[r].terms) > 1)  # comparisons first
    rows = [spec.rows[r] for r in order if len(spec.rows[r].terms) == 1]
    comparisons = [(column, int(sign), row.strict) for row in rows for column, sign in row.terms.items()]
    members = [[int(r in spec.regions[g]) for g in regions] for r in order]
    tensors = guard_tensors(spec, regions)
    constants, thresholds = tensors["gate.constants_float32"].data, tensors["gate.thresholds"].data
    return Gate(comparisons, len(order) - len(rows), members, constants, tensors["gate.coefficients"], thresholds)


def stated_regions(spec: Specification) -> list[int]:
    """Return the regions that have a condition."""
    return [g for g, rows in enumerate(spec.regions) if rows]


def monitor_of(spec: Specification, gated: list[int]) -> Monitor:
    """Return which regions make which rules. The head's gate serves if it has all regions with a condition."""
    stated = stated_regions(spec)
    own = set(stated) == set(gated)
    rules = [[int(g in rule.regions) for rule in spec.rules] for g in (gated if own else stated)]
    always = [int(any(not spec.regions[g] for g in rule.regions)) for rule in spec.rules]
    return Monitor(None if own else gate_of(spec, stated), rules, always)
