"""Checked candidates as nodes: answers that obey the rules are served; for others, proposals are tried in a branch.

The check is a list of rows over outputs, their sizes and inputs, each compared with a threshold in float64, and
conditions on the resulting bits. Answers that no clip has seen are also compared with 2^100, so that one product is
enough; a batch in which every row passes is answered at once. For rows that fail, the first proposal is checked in the
same way. If one of these fails, the program runs as stated, with all candidates, the answer itself first.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from smle_check.floats import TINY
from smle_check.guard import guard_tensors
from smle_check.heads.candidates import checked_of
from smle_check.heads.clips import limits_of
from smle_check.heads.sums import WIDE, columns_of
from smle_check.onnx.graph import BOOL, DOUBLE, FLOAT, Branch
from smle_check.onnx.limits import LimitPrinter
from smle_check.onnx.nodes import FURTHER, PROPOSAL, Interface, Program, Value, floats_of, is_sparse, summed
from smle_check.onnx.operation_nodes import FEW, Tensors, active, half_spaces, picked
from smle_check.program import Op, clip_list, gate_of
from smle_check.reading import require
from smle_check.stated import StatedSpecification

MOST = 1 << 20  # conditions


class BitCondition(NamedTuple):
    """Weights of bits, small whole numbers, whose sum must be at least `need`."""

    weights: dict[int, int]
    need: int


def some_of(bits: Iterable[int], failing: Iterable[int]) -> BitCondition:
    """Require that one of some bits is set, or that one of some others is not."""
    others = set(failing)
    return BitCondition({**dict.fromkeys(bits, 1), **dict.fromkeys(others, -1)}, 1 - len(others))


class ComparedRows:
    """What is compared: rows over outputs, their sizes and inputs with thresholds, and the conditions on their bits.

    Literals come first, then labels that exclude others (their bit: y >= 0) and the gate's half-spaces. `stated` are
    the conditions of the program, on numbers after the clip list.

    Answers that no clip has seen (not `bounded`) may be NaN or infinite: they are compared with 2^100 one by one,
    before any sum, which reads 0 in their place. `asked`, the conditions on answers and on the first proposal, has
    these bits, too, after those of the rows.
    """

    def __init__(
        self, program: Program, spec: StatedSpecification, gated: list[int], tensors: Tensors, *, bounded: bool
    ) -> None:
        checked, m, d = checked_of(spec), len(spec.outputs), len(spec.inputs)
        self.m, self.d = m, d
        gate = gate_of(spec, gated)
        rules = [spec.rules[clause.rule] for clause in checked.clauses]
        asked = sum(len(rule.regions) for rule in rules)
        asked += sum(len(spec.rules[r].regions) * len(spec.rules[r].exclusions) for r in checked.excluding)
        require(asked <= MOST, "onnx: too many clauses or exclusions for a graph")
        program.reserve(16 * asked)
        G, K, S = (iter(floats_of(tensors[f"check.{name}"])) for name in ("outputs", "sizes", "inputs"))
        self.rows: list[dict[int, float]] = []
        self.thresholds = floats_of(tensors["check.thresholds"])
        for literal in checked.literals:
            outputs, inputs = columns_of(spec, literal)
            own = {i: next(G) for i in outputs} | {m + i: next(K) for i in outputs}
            own |= {2 * m + k: next(S) for k in inputs}
            self.rows.append({k: v for k, v in own.items() if v})
        labels = {i for rule in checked.excluding for pair in spec.rules[rule].exclusions for i in pair}
        on = {i: self.row({i: -1.0}, 0.0) for i in sorted(labels)}
        first = len(self.rows)
        # Many comparisons are not summed: each picks its input, and their bits come after those of the sums.
        self.gate, self.tensors = gate, tensors
        self.picks = len(gate.comparisons) if len(gate.comparisons) * d > FEW and not gate.oblique else 0
        if not self.picks:
            for row, threshold in half_spaces(gate, tensors, range(len(gate.comparisons) + gate.oblique)):
                self.row({2 * m + k: v for k, v in enumerate(row) if v}, threshold)
        self.bits = len(self.rows) + self.picks
        place = {region: [first + r for r in gate.members[i]] for i, region in enumerate(gated)}
        self.regions = place
        self.stated: list[BitCondition] = []
        for clause in checked.clauses:
            regions = [place[g] for g in spec.rules[clause.rule].regions]
            self.stated += [some_of(clause.literals, failing) for failing in regions]
        for rule in checked.excluding:
            regions = [place[g] for g in spec.rules[rule].regions]
            self.stated += [
                some_of([], [on[h], on[k], *failing]) for h, k in spec.rules[rule].exclusions for failing in regions
            ]
        self.width = self.bits + (0 if bounded else m)
        self.asked = [*self.stated, *(BitCondition({r: 1}, 1) for r in range(self.bits, self.width))]
        read = {k for row in self.rows for k in row}
        self.sized = any(m <= k < 2 * m for k in read)
        self.used = sorted(k - 2 * m for k in read if k >= 2 * m)
        self.moves = bool(self.used or self.picks)

    def row(self, entries: dict[int, float], threshold: float) -> int:
        """Add a row; return its number."""
        self.rows.append(entries)
        self.thresholds.append(threshold)
        return len(self.rows) - 1


class CheckPrinter(LimitPrinter):
    """The printer of the clip list and the check behind it. `count`: further proposals per row in the graph."""

    def __init__(
        self, program: Program, interface: Interface, tensors: Tensors, spec: StatedSpecification, gated: list[int],
        tree: Any, count: int,
    ) -> None:  # fmt: skip
        limits = limits_of(spec)
        ops = clip_list(spec, limits, gated)
        super().__init__(program, interface, tensors, ops, gate_of(spec, gated), len(spec.outputs), across=True)
        self.spec, self.tree, self.count, self.regions = spec, tree, count, gated
        self.table = ComparedRows(program, spec, gated, tensors, bounded=bool(self.stages))
        program.readable |= {"check/bits/float", "repair/chosen", "repair/answers", "repair/wide", "safe/single"}

    def kept(self) -> set[str]:
        """Return the values that the check reads."""
        return {"x"} if self.table.moves else set()

    def print(self, kept: set[str]) -> str:
        """Write the program."""
        return super().print(kept | self.kept())

    def within(self, op: Op) -> None:
        """Write the answer, for the clips; without clips it is checked as it is."""
        if self.stages:
            super().within(op)
        else:
            self.values[op.out] = Value(self.program.answer(self.m, across=True), True)

    def narrow(self, op: Op) -> None:
        """Serve the answers if all pass, else repair those that do not."""
        p, q = self.program, self.value(op.args[0]).node
        y = self.settled(p.add("Cast", [q], "clips/single", to=FLOAT) if self.stages else q, "check")
        bits = self.compared(y, self.widened() if self.table.moves else None, "check", unseen=not self.stages)
        short = p.add("Relu", [self.short(bits, "check")], "check/unmet")
        total = p.add("ReduceSum", [short], "check/total", keepdims=0)
        fails = p.add("Cast", [total], "check/fails", to=BOOL)
        outer, p.nodes = p.nodes, []
        kept = Branch(p.nodes, [p.add("Transpose", [y], "check/kept")])
        p.nodes = []
        repaired = Branch(p.nodes, [self.repaired(y, short)])
        p.nodes = outer
        branches = {"then_branch": repaired, "else_branch": kept}
        self.values[op.out] = Value(p.branch(fails, "check/served", branches), False)

    # --- parts of both checks

    def settled(self, y: str, name: str) -> str:
        """Turn subnormal float32 numbers into 0; NaN stays."""
        p = self.program
        size = p.add("Abs", [y], f"{name}/size")
        tiny = p.add("Less", [size, p.floats("check.tiny", [float(TINY)], ())], f"{name}/tiny")
        return p.add("Where", [tiny, p.floats("constants/none", [0], ()), y], f"{name}/settled")

    def compared(self, y: str, wide: str | None, name: str, *, unseen: bool) -> str:
        """Compare all rows for outputs y (m, n) and inputs in float64 (d, n): bits (rows, n) in float32.

        For outputs that no clip has seen (`unseen`), further bits say that they are at most 2^100 in size, and not NaN.
        """
        p, table, m, sane = self.program, self.table, self.table.m, None
        if unseen:
            sane = p.add("LessOrEqual", [f"{name}/size", p.floats("check.wide", [float(WIDE)], ())], f"{name}/sane")
            y = p.add("Where", [sane, y, p.floats("constants/none", [0], ())], f"{name}/finite")
        parts, used = [p.add("Cast", [y], f"{name}/wide", to=DOUBLE)], [*range(m)]
        if table.sized:
            parts, used = [*parts, p.add("Abs", parts, f"{name}/sizes")], [*range(2 * m)]
        if wide is not None and not table.picks:
            parts, used = [*parts, wide], [*used, *range(2 * m, 2 * m + table.d)]
        elif wide is not None and table.used:
            columns = p.integers("check.columns", table.used, (len(table.used),))
            parts = [*parts, p.add("Gather", [wide, columns], f"{name}/read", axis=0)]
            used = [*used, *(2 * m + k for k in table.used)]
        values = parts[0] if len(parts) == 1 else p.add("Concat", parts, f"{name}/values", axis=0)
        sums = self.sums(used, values, name)
        limits = p.doubles("check.thresholds", table.thresholds, (len(table.rows), 1))
        held = p.add("LessOrEqual", [sums, limits], f"{name}/held" if table.picks else f"{name}/bits")
        if table.picks and wide is not None:
            own = f"{name}/compared"
            inside = p.add("LessOrEqual", [*self.picked(wide, own)], f"{own}/bits")
            held = p.add("Concat", [held, inside], f"{name}/bits", axis=0)
        bits = p.cast(held)
        return bits if sane is None else p.add("Concat", [bits, p.cast(sane)], f"{name}/known", axis=0)

    def sums(self, used: list[int], values: str, name: str) -> str:
        """Return the sums of all rows (rows, n) over the columns used."""
        p, rows = self.program, self.table.rows
        if is_sparse(rows, len(used)):
            place = {k: i for i, k in enumerate(used)}
            return summed(
                p, [{place[k]: v for k, v in row.items()} for row in rows], values, name, "check.rows", p.doubles
            )
        p.reserve(2 * len(rows) * len(used))
        entries = [row.get(k, 0.0) for row in rows for k in used]
        return p.add("MatMul", [p.doubles("check.rows", entries, (len(rows), len(used))), values], f"{name}/sums")

    def picked(self, wide: str, name: str) -> tuple[str, str]:
        """Return the inputs of all comparisons, with their signs, and what they are compared with."""
        table = self.table
        return picked(self.program, wide, table.gate, table.tensors, range(table.picks), name, "check.compared")

    def short(self, bits: str, name: str, *, stated: bool = False) -> str:
        """Return by how much each condition is missed (conditions, n); at most 0 if it is met."""
        p, table = self.program, self.table
        stated = stated or table.width == table.bits
        conditions, stored = (table.stated, "stated") if stated else (table.asked, "asked")
        width = table.bits if stated else table.width
        needs = p.floats(f"check.{stored}.needs", [condition.need for condition in conditions], (len(conditions), 1))
        weights = [{r: -float(w) for r, w in condition.weights.items()} for condition in conditions]
        if is_sparse(weights, width):
            met = summed(p, weights, bits, f"{name}/met", f"check.{stored}", p.floats)
            return p.add("Add", [met, needs], f"{name}/short")
        p.reserve(len(conditions) * width)
        entries = [own.get(r, 0.0) for own in weights for r in range(width)]
        matrix = p.floats(f"check.{stored}.weights", entries, (len(conditions), width))
        return p.add("Gemm", [matrix, bits, needs], f"{name}/short")

    # --- rows that fail

    def repaired(self, y: str, short: str) -> str:
        """Return what is served to all rows (batch, m), repairing those that fail.

        If the first proposal passes the check everywhere, it is served. Otherwise all candidates are tried.
        """
        p = self.program
        first = p.integers("constants/first", [0], (1,))
        failing = p.add("NonZero", [p.add("ReduceSum", [short, first], "repair/unmet", keepdims=0)], "repair/rows")
        places = p.add("Transpose", [failing], "repair/places")
        chosen = p.add("Squeeze", [failing, first], "repair/chosen")
        answers = p.add("Gather", [self.answers(), chosen], "repair/answers", axis=1)
        # The check reads inputs if its literals do; proposals may read them if any limit depends on them.
        sloped = any(op.out in self.limit_of and op.args[4] is not None for op in self.ops)
        wide = self.chosen_inputs(chosen) if self.table.moves or sloped else None
        # There is one answer for each row, whatever is proposed.
        shape = p.add("Shape", [answers], "repair/shape")
        proposal = p.add("Reshape", [PROPOSAL, shape], "first/proposal", allowzero=1)
        # Without clips, NaN need not be replaced: the check refuses it.
        served = self.clipped(proposal, chosen, 1, "first") if self.stages else self.settled(proposal, "first")
        bits = self.compared(served, wide if self.table.moves else None, "first", unseen=not self.stages)
        short = self.short(bits, "first")
        worst = p.add("ReduceMax", [short], "first/worst", keepdims=0)
        fails = p.add("Greater", [worst, p.floats("constants/none", [0], ())], "first/fails")
        outer, p.nodes = p.nodes, []
        passes = Branch(p.nodes, [p.add("Transpose", [served], "first/passed")])
        p.nodes = []
        searched = Branch(p.nodes, [self.searched(answers, proposal, wide, chosen)])
        p.nodes = outer
        update = p.branch(fails, "repair/update", {"then_branch": searched, "else_branch": passes})
        kept = p.add("Transpose", [y], "repair/kept")
        return p.add("ScatterND", [kept, places, update], "repair/served")

    def searched(self, answers: str, proposal: str, wide: str | None, chosen: str) -> str:
        """Return the first candidates that pass (rows, m): the answer, proposals, the safe answer."""
        p, m, all_ = self.program, self.m, self.count + 3
        wide = self.chosen_inputs(chosen) if wide is None else wide
        safe = self.safe(wide, chosen)
        number = p.integers("repair.proposals", [self.count], (1,))
        size = p.add("Mul", [p.add("Shape", [chosen], "search/count"), number], "search/number")
        shape = p.add("Concat", [p.integers("repair.width", [m], (1,)), size], "search/shape", axis=0)
        further = p.add("Reshape", [FURTHER, shape], "search/further", allowzero=1)
        candidates = p.add("Concat", [answers, proposal, further, safe], "search/candidates", axis=1)
        served = self.clipped(candidates, chosen, all_, "search")
        tiled = p.add("Concat", [wide] * all_, "search/tiled", axis=1) if self.table.moves else None
        bits = self.compared(served, tiled, "search", unseen=False)
        short = p.add("Relu", [self.short(bits, "search", stated=True)], "search/unmet")
        unmet = p.add("ReduceSum", [short, "constants/first"], "search/broken", keepdims=0)
        broken = p.add("Reshape", [unmet, p.integers("repair.table", [all_, -1], (2,))], "search/all")
        good = p.cast(p.add("Equal", [broken, p.floats("constants/none", [0], ())], "search/good"))
        # The safe answer comes last and serves if no other passes: the first of the largest is taken.
        last = p.floats("repair.last", [0] * (all_ - 1) + [0.5], (all_, 1))
        best = p.add("ArgMax", [p.add("Max", [good, last], "search/score")], "search/best", axis=0, keepdims=1)
        index = p.add("Add", [best, p.integers("repair.zeros", [0] * m, (m, 1, 1))], "search/index")
        table = p.add("Reshape", [served, p.integers("repair.split", [m, all_, -1], (3,))], "search/table")
        picked = p.add("Transpose", [p.add("GatherElements", [table, index], "search/picked", axis=1)], "search/turned")
        return p.add("Reshape", [picked, p.integers("repair.rows", [-1, m], (2,))], "search/found")

    def chosen_inputs(self, chosen: str) -> str:
        """Return the features of failing rows in float64, computed here if the check does not read them."""
        if "head/x" not in self.program.made:
            self.clamp(next(op for op in self.ops if op.kind == "clamp"))
        return self.program.add("Gather", [self.widened(), chosen], "repair/wide", axis=1)

    def answers(self) -> str:
        """Return the model's answers (m, batch) in float32, unchanged."""
        return "head/answer" if "head/answer" in self.program.made else "head/embedding"

    def clipped(self, candidates: str, chosen: str, count: int, name: str) -> str:
        """Pass candidates in float32 (m, n), `count` for each row, through the clip list, and settle them."""
        p = self.program
        q = self.bounded(candidates, f"{name}/q")
        for op in self.ops:
            if op.out in self.limit_of:
                limit, moves = self.limit_of[op.out]
                if moves:
                    own = f"repair/{op.out}/own"
                    limit = own if own in p.made else p.add("Gather", [limit, chosen], own, axis=1)
                    if count > 1:
                        limit = p.add("Concat", [limit] * count, f"{name}/{op.out}/limits", axis=1)
                q = p.add("Max" if op.kind == "raise_to" else "Min", [q, limit], f"{name}/{op.out}")
        return self.settled(p.add("Cast", [q], f"{name}/single", to=FLOAT), name)

    def safe(self, wide: str, chosen: str) -> str:
        """Return the stored safe answers (m, rows) in float32, before the clips."""
        p, m, d = self.program, self.m, self.table.d
        leaves = self.tensors["safe.offset"].shape[0]
        slopes = p.doubles("safe.slope", floats_of(self.tensors["safe.slope"]), (leaves * m, d))
        offsets = p.doubles("safe.offset", floats_of(self.tensors["safe.offset"]), (leaves * m, 1))
        values = p.add("Gemm", [slopes, wide, offsets], "safe/values")
        if leaves > 1:
            sizes = p.integers("safe.sizes", [m] * leaves, (leaves,))
            parts = p.several("Split", [values, sizes], [f"safe/leaf/{i}" for i in range(leaves)], axis=0)
            regions = sorted(_regions(self.tree))
            bits = self.leaf_bits(regions, wide, chosen)
            columns = [bits]
            if len(regions) > 1:
                ones = p.integers("safe.ones", [1] * len(regions), (len(regions),))
                names = [f"safe/bit/{i}" for i in range(len(regions))]
                columns = p.several("Split", [bits, ones], names, axis=0)
            values = self.grown(self.tree, dict(zip(regions, columns, strict=True)), iter(parts))
        return p.add("Cast", [values], "safe/single", to=FLOAT)

    def leaf_bits(self, regions: list[int], wide: str, chosen: str) -> str:
        """Return the bits (regions, rows) that choose a leaf: the same that gate the clips.

        A leaf is proved with every bit at one value. A sum computed again may fall on the other side.
        """
        p = self.program
        if "bits" not in self.values:  # no clip reads them
            return active(p, wide, gate_of(self.spec, regions), guard_tensors(self.spec, regions), "safe")
        bits = p.add("Gather", [self.value("bits").node, chosen], "safe/own", axis=1)
        places = [self.regions.index(region) for region in regions]
        if places == list(range(len(self.regions))):
            return bits
        return p.add("Gather", [bits, p.integers("safe.bits", places, (len(places),))], "safe/bits", axis=0)

    def grown(self, tree: Any, bits: dict[int, str], leaves: Any) -> str:
        """Return the value of the leaf that a tree leads to; leaves come in the order in which they are written."""
        if tree is None:
            return str(next(leaves))
        inside, outside = self.grown(tree[1], bits, leaves), self.grown(tree[2], bits, leaves)
        return self.program.add("Where", [bits[tree[0]], inside, outside], f"safe/tree/{len(self.program.nodes)}")


def _regions(tree: Any) -> set[int]:
    return set() if tree is None else {tree[0]} | _regions(tree[1]) | _regions(tree[2])
