"""Makes features of named inputs, names outputs, and writes what is reported beside them. ONNX only."""

from typing import NamedTuple

from smle_check.onnx.graph import BOOL, Constant
from smle_check.onnx.nodes import FEATURES, LABELS, STACKED, Input, Interface, Program
from smle_check.reading import require
from smle_check.stated import StatedSpecification

FEW = 4096  # largest matrix of regions and rules; beyond it, each rule picks its region


class Monitor(NamedTuple):
    """What `active_rules` reports.

    `regions`: those whose bits are read, in order. `own`: whether they differ from the gate's.
    """

    regions: list[int]
    own: bool
    rules: list[list[int]]  # regions x rules
    always: list[int]  # rules with a region that is the whole domain


def monitor_of(spec: StatedSpecification, gated: list[int]) -> Monitor:
    """Return which regions belong to which rules. The head's gate is used if it has all regions with a condition."""
    stated = [g for g, rows in enumerate(spec.regions) if rows]
    own = not set(stated) <= set(gated)
    regions = stated if own or not stated else gated
    rules = [[int(g in rule.regions) for rule in spec.rules] for g in regions]
    always = [int(any(not spec.regions[g] for g in rule.regions)) for rule in spec.rules]
    return Monitor(regions, own, rules, always)


def encode(program: Program, inputs: tuple[Input, ...]) -> list[str]:
    """Write FEATURES (batch, d) from named inputs; return which known text each input equals (batch, categories)."""
    parts, known, flags = [], [], []
    for i, item in enumerate(inputs):
        base = f"inputs/{i}/"
        if not item.categories:
            parts.append(item.name)
            if item.fill is not None:
                fill = program.put(base + "fill", Constant("F32", (1, 1), item.fill))
                missing = program.add("IsNaN", [item.name], base + "missing")
                parts[-1] = program.add("Where", [missing, fill, item.name], base + "filled")
                flags += [program.cast(missing)] if item.flagged else []
            continue
        k = len(item.categories)
        names = program.texts(base + "categories", item.categories, (1, k))
        equal = program.add("Equal", [item.name, names], base + "equal")
        # Exactly one column is 1, whatever the text: an unknown one counts as the default.
        otherwise = program.floats(base + "otherwise", [int(j == item.default) for j in range(k)], (1, k))
        score = program.add("Where", [equal, program.floats("constants/two", [2], ()), otherwise], base + "score")
        best = program.add("ArgMax", [score], base + "index", axis=1, keepdims=1)
        positions = program.integers(base + "positions", list(range(k)), (1, k))
        parts.append(program.cast(program.add("Equal", [best, positions], base + "hot")))
        known.append(equal)
        if item.flagged:
            empty = program.texts("constants/empty", ("",), (1, 1))
            flags.append(program.cast(program.add("Equal", [item.name, empty], base + "missing")))
    columns = [*parts, *flags]
    if len(columns) == 1:
        program.add("Identity", columns, FEATURES)
    else:
        program.add("Concat", columns, FEATURES, axis=1)
    return known


def in_domain(program: Program, inputs: tuple[Input, ...], known: list[str], steps: str | None = None) -> None:
    """Write `in_domain` (batch,): clamping changed nothing, whole numbers are whole, and texts are known (or blank).

    `outside_input` (batch,): the number of the last input for which this fails, or -1. `steps`: which inputs of a grid
    head are multiples of their steps (d, batch).
    """
    columns = [i for i, item in enumerate(inputs) for _ in range(item.width)]
    columns += [i for i, item in enumerate(inputs) if item.flagged]
    first, none = program.integers("constants/first", [0], (1,)), program.integers("domain.none", [-1], ())

    def last(fits: str, owners: list[int], name: str) -> str:
        """Reduce (rows, batch), one row per owner, to the last owner of a row that does not fit (batch,), or -1."""
        owner = program.integers(f"domain.{name}.inputs", owners, (len(owners), 1))
        return program.add(
            "ReduceMax",
            [program.add("Where", [fits, none, owner], f"domain/{name}/outside"), first],
            f"domain/{name}",
            keepdims=0,
        )

    inside = program.add("Equal", ["head/x", "head/columns"], "domain/inside")
    inside = inside if steps is None else program.add("And", [inside, steps], "domain/both")
    found = [last(inside, columns, "range")]
    whole = [column for column, asked in enumerate(item.whole for item in inputs for _ in range(item.width)) if asked]
    if whole:
        picks = program.integers("domain.whole", whole, (len(whole),))
        values = program.add("Gather", ["head/columns", picks], "domain/values", axis=0)
        equal = program.add("Equal", [values, program.add("Floor", [values], "domain/floor")], "domain/equal")
        found.append(last(equal, [columns[column] for column in whole], "unbroken"))
    for (i, item), equal in zip([(i, item) for i, item in enumerate(inputs) if item.categories], known, strict=True):
        base, k = f"inputs/{i}/", len(item.categories)
        if item.blank:
            accepted = program.texts(base + "known", (*item.categories, ""), (1, k + 1))
            equal = program.add("Equal", [item.name, accepted], base + "accepted")
        axes, owner = program.integers("constants/second", [1], (1,)), program.integers(base + "number", [i], ())
        strange = program.add("Where", [equal, none, owner], base + "outside")
        found.append(program.add("ReduceMin", [strange, axes], base + "strange", keepdims=0))
    if len(found) > 1:
        program.add("Max", found, "outside_input")
    else:
        program.rename(found[0], "outside_input")
    program.add("Less", ["outside_input", program.integers("domain.first", [0], ())], "in_domain")


def active_rules(program: Program, active: str | None, monitor: Monitor) -> None:
    """Write `active_rules` (batch, rules) from the bits of the regions (regions, batch)."""
    rules = len(monitor.always)
    if active is None:  # no rule has a condition
        count = program.integers("rules.count", [rules], (1,))
        shape = program.add("Concat", [program.rows(), count], "rules/shape", axis=0)
        program.add("Expand", [program.put("constants/true", Constant("BOOL", (), b"\x01")), shape], "active_rules")
        return
    own = [[i for i, row in enumerate(monitor.rules) if row[rule]] for rule in range(rules)]
    if len(monitor.rules) * rules > FEW and all(len(places) == 1 for places in own):
        places = program.integers("rules.regions", [place for (place,) in own], (rules,))
        program.add("Transpose", [program.add("Gather", [active, places], "rules/bits", axis=0)], "active_rules")
        return
    program.reserve(len(monitor.rules) * rules)
    entries = [bit for row in monitor.rules for bit in row]
    members = program.floats("rules.members", entries, (len(monitor.rules), rules))
    always = program.floats("rules.always", monitor.always, (rules,))
    total = program.add("Gemm", [program.cast(active), members, always], "rules/total", transA=1)
    program.add("Cast", [total], "active_rules", to=BOOL)


def outputs(program: Program, y: str, interface: Interface) -> None:
    """Write the outputs, named or as one tensor; labels and choices are read off the logits and scores."""
    items, columns, stacked = interface.outputs, interface.columns, interface.stacked
    if stacked:
        require(all(item.kind != "choice" for item in items), "onnx: choices are not part of one tensor of answers")
        y = program.rename(y, STACKED)
    elif len(columns) == 1:
        y = program.rename(y, columns[0])
    else:
        _split(program, y, "outputs.sizes", columns)
    starts = [sum(len(other.columns) for other in items[:i]) for i in range(len(items))]
    labels = [(item.name, start) for item, start in zip(items, starts, strict=True) if item.kind == "label"]
    if labels:
        logits = y
        if len(labels) < len(columns):
            places = program.integers("labels.columns", [start for _, start in labels], (len(labels),))
            logits = program.add("Gather", [y, places], "labels/logits", axis=1)
        alone = LABELS if stacked else labels[0][0] if len(labels) == 1 else "labels/on"
        program.add("GreaterOrEqual", [logits, program.floats("constants/zero", [0], ())], alone)
        if len(labels) > 1 and not stacked:
            _split(program, "labels/on", "labels.sizes", [name for name, _ in labels])
    for i, (item, start) in enumerate(zip(items, starts, strict=True)):
        if item.kind == "choice":
            k, base = len(item.options), f"choices/{i}/"
            places = program.integers(base + "columns", list(range(start, start + k)), (k,))
            scores = program.add("Gather", [y, places], base + "scores", axis=1)
            best = program.add(item.pick, [scores], base + "index", axis=1, keepdims=1)
            options = program.texts(base + "options", item.options, (k,))
            program.add("Gather", [options, best], item.name, axis=0)


def _split(program: Program, source: str, sizes: str, names: list[str]) -> None:
    program.integers(sizes, [1] * len(names), (len(names),))
    program.several("Split", [source, sizes], names, axis=1)
