"""What is claimed: inputs, outputs, half-spaces, regions, rules; and the domain of the proof (section 3)."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.floats import (
    BINARY32,
    BINARY64,
    FORMATS,
    Binary,
    cast_error,
    constant,
    error64,
    guard_slack,
    nearest,
    threshold_above,
)
from smle_check.names import require_distinct, term, visible
from smle_check.reading import fields, index, items, number, read_block, require, sparse, text
from smle_check.work import Work

PER_PAIR = 10  # steps for each pair that is read


class StatedRow(NamedTuple):
    """One half-space of the input space, as the deployed guard treats it."""

    terms: dict[int, Fraction]  # exact coefficients
    bound: Fraction  # as stated
    strict: bool
    closed: Fraction  # terms . x32 <= closed wherever the guard (or the rule) says inside
    compared: dict[Binary, tuple[Fraction, bool]]  # per input format: bound and strictness on x as passed


class StatedLiteral(NamedTuple):
    """y . outputs + x . inputs <= bound (or <)."""

    y: dict[int, Fraction]
    x: dict[int, Fraction]
    bound: Fraction
    strict: bool


class Exclusions(Sequence[tuple[int, int]]):
    """Pairs of labels, not copied: `flat` has them one after the other. Rules may share them, and there may be many."""

    def __init__(self, flat: Sequence[int] = ()) -> None:
        self.flat = flat

    def __len__(self) -> int:
        return len(self.flat) // 2

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        start = 2 * range(len(self))[place]
        return self.flat[start], self.flat[start + 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = iter(self.flat)
        return zip(numbers, numbers, strict=True)


class StatedRule(NamedTuple):
    """Regions (by number) => all clauses (OR of literals) and exclusions (pairs of labels).

    `entries`: names of the rules it stands for, by the member of a one-hot group that each requires to be 1.
    """

    name: str
    regions: list[int]
    clauses: list[list[StatedLiteral]]
    exclusions: Exclusions
    entries: dict[int, str] = {}  # noqa: RUF012 - never written


class OutputStep(NamedTuple):
    """An output of a grid head: a multiple of the step in [lower, upper]."""

    lower: Fraction
    upper: Fraction
    step: Fraction


def has_step(entry: Any) -> bool:
    """Return whether an input or output has a step, as in a grid head."""
    return isinstance(entry, dict) and "step" in entry


def exclusion(pair: tuple[int, int]) -> list[StatedLiteral]:
    """Return the clause "not both labels"."""
    return [StatedLiteral({label: Fraction(1)}, {}, Fraction(0), True) for label in pair]


class StatedSpecification:
    """What is claimed: inputs, outputs, half-spaces, regions, rules; and the domain of the proof."""

    def __init__(self, data: Any, block: bytes, work: Work | None = None) -> None:
        self.work = work or Work()
        inputs, one_hot, outputs, rows, regions, rules = fields(
            data, "inputs one_hot outputs rows regions rules", "specification"
        )
        self.inputs, self.lower, self.upper, names = [], [], [], []
        self.input_steps: list[Fraction | None] = []  # of a grid head: null is a real number (section 14)
        self.output_steps: list[OutputStep] = []  # of a grid head: one for every output
        for entry in items(inputs, "inputs"):
            name, lower, upper, *step = fields(entry, f"name lower upper{' step' * has_step(entry)}", "input")
            if step:
                self.input_steps.append(None if step[0] is None else number(step[0], "input step"))
            names.append(text(name, "input name"))
            self.inputs.append(term(name))
            self.lower.append(number(lower, "input range"))
            self.upper.append(number(upper, "input range"))
            require(self.lower[-1] <= self.upper[-1], f"input {self.inputs[-1]!r}: empty range")
        self.work.state((*self.lower, *self.upper), "inputs")
        self.outputs = []
        for entry in items(outputs, "outputs"):
            name, kind, *step = fields(entry, f"name kind{' lower upper step' * has_step(entry)}", "output")
            if step:
                self.output_steps.append(OutputStep(*(number(value, "output step") for value in step)))
            require(kind in ("number", "label", "score"), "output: unknown kind")
            names.append(text(name, "output name"))
            self.outputs.append(term(name))
        d, m = len(self.inputs), len(self.outputs)
        require(d > 0 and m > 0, "specification: no inputs or no outputs")
        require_distinct(names, "name")
        # The cast of an input in the domain lies in [low, high], whichever float format it came in.
        self.low = [min(nearest(v, BINARY32), nearest(nearest(v, BINARY64), BINARY32)) for v in self.lower]
        self.high = [max(nearest(v, BINARY32), nearest(nearest(v, BINARY64), BINARY32)) for v in self.upper]
        self.passed = {f: ([constant(v, f) for v in self.lower], [constant(v, f) for v in self.upper]) for f in FORMATS}
        ends = list(zip(*(end for box in self.passed.values() for end in box), strict=True))
        self.sizes: list[Fraction] = [max(map(abs, column)) for column in ends]  # of x as passed
        self.reach = [max(abs(a), abs(b)) for a, b in zip(self.low, self.high, strict=True)]  # of x cast to float32
        self.group: dict[int, int] = {}  # of members of one-hot groups
        self.rows = [self.row(entry, d) for entry in items(rows, "rows")]
        grouped: set[int] = set()
        self.groups: list[list[int]] = []
        for group in items(one_hot, "one_hot"):
            members = [index(i, d, "one_hot") for i in items(group, "one_hot")]
            require(len(set(members)) == len(members) > 1, "one_hot: expected different inputs")
            require(grouped.isdisjoint(members), "one_hot: groups overlap")
            grouped.update(members)
            self.group |= dict.fromkeys(members, len(self.groups))
            self.groups.append(members)
            require(all(self.lower[i] == 0 and self.upper[i] == 1 for i in members), "one_hot: expected 0/1 inputs")
            for sign in (1, -1):  # exactly one member is 1: exact in every format
                form, bound = {i: Fraction(sign) for i in members}, Fraction(sign)
                self.rows.append(StatedRow(form, bound, False, bound, dict.fromkeys(FORMATS, (bound, False))))
        stated = len(self.rows) - 2 * len(one_hot)
        self.stated = stated
        self.regions = [[index(i, stated, "region") for i in items(r, "region")] for r in items(regions, "regions")]
        require(all(sorted(set(r)) == r for r in self.regions), "region: rows must increase")
        self.rules = [self.rule(entry, d, m, block) for entry in items(rules, "rules")]
        named = [name for entry in rules for name in (entry["name"], *(e[1] for e in entry.get("entries", ())))]
        require_distinct(named, "rule name")

    @property
    def is_stepped(self) -> bool:
        """Whether an input or output has a step, as in a grid head."""
        return bool(self.input_steps or self.output_steps)

    def largest(self, slope: dict[int, Fraction], offset: Fraction) -> Fraction:
        """Bound |slope.x + offset| for x as passed; in a one-hot group, only one member counts."""
        return abs(offset) + sum((abs(v) * size for v, size in self.summed(slope)), Fraction(0))

    def summed(self, slope: dict[int, Fraction]) -> list[tuple[Fraction, Fraction]]:
        """Return the products of slope.x that may be rounded, each as a coefficient and the largest |x| for it.

        One member of a one-hot group is 1 and the others are 0: one product is the coefficient itself, the others are
        0, and 0 is added without rounding. So a group counts as one product, with its largest coefficient.
        """
        numbers = [(v, self.sizes[k]) for k, v in slope.items() if k not in self.group]
        most = dict[int, Fraction]()
        for k, v in slope.items():
            if k in self.group:
                most[self.group[k]] = max(abs(v), most.get(self.group[k], Fraction(0)))
        return numbers + [(v, Fraction(1)) for v in most.values()]

    def groups_of(self, form: dict[int, Fraction]) -> set[int | None]:
        """Return the one-hot groups whose columns a form reads, and None if it reads numbers."""
        return {self.group.get(k) for k in form}

    def is_table(self, slope: dict[int, Fraction], offset: Fraction) -> bool:
        """Return whether slope.x + offset is exactly a coefficient, or 0: a sum over one group without an offset.

        Exactly one x_c is 1. The product with it is the coefficient, those with the other members are 0, and sums with
        0 are exact: in any order, fused or not, in float32 and in float64.
        """
        groups = self.groups_of(slope)
        return not offset and len(groups) <= 1 and None not in groups

    def error(self, slope: dict[int, Fraction], offset: Fraction, what: str) -> Fraction:
        """Bound the error of slope.x + offset in float64, for x as passed."""
        if self.is_table(slope, offset):
            return Fraction(0)
        products = self.summed(slope)
        return error64([v for v, _ in products], [size for _, size in products], offset, what)

    def errors(self, slope: dict[int, Fraction], offset: Fraction, what: str) -> tuple[Fraction, dict[int, Fraction]]:
        """Bound the same error as a function of x: a number, and what each member of a group adds where it is 1.

        The bound is linear in the sizes of the coefficients, and in a group only the member that is 1 counts.
        """
        self.error(slope, offset, what)  # nothing overflows, whichever members are 1
        numbers = [(v, self.sizes[k]) for k, v in slope.items() if k not in self.group]
        members = {k: abs(v) for k, v in slope.items() if k in self.group}
        if not members or self.is_table(slope, offset):
            return self.error(slope, offset, what), {}
        groups = len(self.groups_of(members))
        sizes = [size for _, size in numbers] + [Fraction(1)] * groups
        without, one = (
            error64([v for v, _ in numbers] + [Fraction(0)] * (groups - 1) + [last], sizes, offset, what)
            for last in (Fraction(0), Fraction(1))
        )
        return without, {k: v * (one - without) for k, v in members.items()}

    def row(self, entry: Any, d: int) -> StatedRow:
        """Read a half-space and derive what the guard's answer says about x (section 5)."""
        terms_data, bound_data, strict = fields(entry, "terms bound strict", "row")
        terms, bound = sparse(terms_data, d, "row"), number(bound_data, "row")
        self.work.state((*terms.values(), bound), "row")
        require(isinstance(strict, bool) and bool(terms) and all(terms.values()), "row: malformed")
        if len(terms) == 1:  # a comparison is exact, on the input as passed
            require(abs(next(iter(terms.values()))) == 1, "row: a comparison has the coefficient 1 or -1")
            passed = {f: (constant(bound, f), strict) for f in FORMATS}
            closed = max(nearest(v, BINARY32) for v, _ in passed.values())
            return StatedRow(terms, bound, strict, closed, passed)
        slack = guard_slack(terms, self.sizes)
        enlarged = threshold_above(bound + slack) + slack
        closed = enlarged + sum((abs(v) * cast_error(self.sizes[k]) for k, v in terms.items()), Fraction(0))
        return StatedRow(terms, bound, strict, closed, dict.fromkeys(FORMATS, (enlarged, False)))

    def rule(self, entry: Any, d: int, m: int, block: bytes) -> StatedRule:
        """Read a rule."""
        has_entries = isinstance(entry, dict) and "entries" in entry
        stated = "name regions clauses exclusions" + " entries" * has_entries
        name, regions, clauses, exclusions, *entries = fields(entry, stated, "rule")
        name = visible(text(name, "rule name"))
        where = [index(r, len(self.regions), f"rule {name!r}") for r in items(regions, f"rule {name!r}")]
        parsed = []
        for clause in items(clauses, f"rule {name!r}"):
            literals = []
            for literal in items(clause, "clause"):
                y, x, bound, strict = fields(literal, "y x bound strict", "literal")
                require(isinstance(strict, bool), "literal: strict must be true or false")
                form = StatedLiteral(sparse(y, m, "literal"), sparse(x, d, "literal"), number(bound, "literal"), strict)
                self.work.state((*form.y.values(), *form.x.values(), form.bound), "literal")
                literals.append(form)
            require(bool(literals), f"rule {name!r}: empty clause")
            parsed.append(literals)
        pairs = Exclusions()
        if exclusions is not None:
            offset, count = fields(exclusions, "offset count", "exclusions")
            pairs = Exclusions(read_block(block, offset, count, "I", "exclusions"))
            self.work.plan(PER_PAIR * len(pairs), f"rule {name!r}: exclusions")
            require(all(h < k < m for h, k in pairs), f"rule {name!r}: exclusions must be pairs h < k of outputs")
        require(bool(where) and bool(parsed or pairs), f"rule {name!r}: no region or nothing required")
        require(not entries or not pairs, f"rule {name!r}: entries are of clauses, not of exclusions")
        return StatedRule(name, where, parsed, pairs, self.entries(entries[0], where, d, name) if entries else {})

    def entries(self, data: Any, regions: list[int], d: int, name: str) -> dict[int, str]:
        """Read the rules that a table stands for: where its member is 1, each rule says what the table says there.

        A rule follows from the table wherever the table binds. So the rows of a region over the group must hold at
        every member; whatever else the region requires, each of these rules requires too.
        """
        found: dict[int, str] = {}
        for pair in items(data, f"rule {name!r}: entries"):
            require(isinstance(pair, list) and len(pair) == 2, f"rule {name!r}: an entry is a member and a name")
            member = index(pair[0], d, f"rule {name!r}: entries")
            require(member > max(found, default=-1), f"rule {name!r}: members of entries must increase")
            found[member] = visible(text(pair[1], "rule name"))
        require(len({self.group.get(k) for k in found} - {None}) == 1, f"rule {name!r}: entries are of one group")
        require(found.keys() <= self.group.keys(), f"rule {name!r}: entries are of one group")
        (g,) = {self.group[k] for k in found}
        for region in regions:
            rows = [self.rows[r] for r in self.regions[region]]
            for row in rows:
                groups = self.groups_of(row.terms)
                require(g not in groups or groups == {g}, f"rule {name!r}: an entry that a condition mixes with others")
                bounds = row.compared.values() if len(row.terms) == 1 else [(row.bound, row.strict)]
                for k in found if groups == {g} else ():
                    value = row.terms.get(k, Fraction(0))
                    holds = all(value < bound if strict else value <= bound for bound, strict in bounds)
                    require(holds, f"rule {name!r}: the entry {found[k]!r} is where the rule does not bind")
        return found
