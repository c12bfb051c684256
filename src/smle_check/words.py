"""The words that the checkers print. Nothing here is part of a proof."""

import sys
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import DerivedObligation
from smle_check.digits import decimal, margin_text
from smle_check.heads.table import HEADS
from smle_check.names import escaped, flag_of, is_plain, term, visible
from smle_check.reading import BACKBONE
from smle_check.stated import StatedLiteral, StatedSpecification

LONG, SHOWN = 24, 8  # a sum with more terms than the first number is cut to the second


def linear_text(terms: dict[int, Fraction], names: list[str]) -> str:
    """Print a linear form; a long one, such as a table of many categories, is cut."""
    parts = []
    for key, value in list(terms.items())[: SHOWN if len(terms) > LONG else None]:
        size = "" if abs(value) == 1 else f"{decimal(abs(value))} * "
        parts.append(f"{'-' if value < 0 else '+'} {size}{names[key]}")
    if len(terms) > LONG:
        parts.append(f"+ ({len(terms) - SHOWN:,} more terms, as the certificate states them)")
    joined = " ".join(parts).removeprefix("+ ")
    return "-" + joined[2:] if joined.startswith("- ") else joined or "0"


def comparison_text(terms: dict[int, Fraction], bound: Fraction, strict: bool, names: list[str]) -> str:
    """Print terms <= bound; a form that starts with a minus is turned around."""
    flip = bool(terms) and next(iter(terms.values())) < 0
    sign = -1 if flip else 1
    operator = (">" if flip else "<") + ("" if strict else "=")
    return f"{linear_text({k: sign * v for k, v in terms.items()}, names)} {operator} {decimal(sign * bound)}"


def sentence_of_row(spec: StatedSpecification, row: int) -> str:
    """Print a half-space in the names of the inputs."""
    terms, bound, strict, _, _ = spec.rows[row]
    return comparison_text(terms, bound, strict, spec.inputs)


def sentence_of_literal(spec: StatedSpecification, literal: StatedLiteral) -> str:
    """Print a literal in the names of outputs and inputs."""
    m = len(spec.outputs)
    terms = {**literal.y, **{m + k: v for k, v in literal.x.items()}}
    return comparison_text(terms, literal.bound, literal.strict, spec.outputs + spec.inputs)


def domain_text(spec: StatedSpecification, formats: str = "float32 and float64") -> list[str]:
    """Say for which inputs the proof holds: every part of the domain that it uses."""
    grouped = {k for group in spec.groups for k in group}
    lines = [
        f"for all {name} in [{decimal(spec.lower[k])}, {decimal(spec.upper[k])}]{step_text(spec, k)}"
        for k, name in enumerate(spec.inputs)
        if k not in grouped
    ]
    for group in spec.groups:
        lines.append(
            f"for all inputs in which exactly one of {', '.join(spec.inputs[k] for k in group)} is 1, the others 0"
        )
    return [
        *lines,
        f"for all {formats} numbers there; the ends of a range are read as the nearest numbers of the format",
        *outputs_text(spec),
    ]


def step_text(spec: StatedSpecification, k: int) -> str:
    """Say in which steps an input of a grid head comes."""
    step = spec.input_steps[k] if spec.input_steps else None
    return "" if step is None else f" in steps of {decimal(step)}"


def outputs_text(spec: StatedSpecification) -> list[str]:
    """Say which numbers the outputs of a grid head stand for."""
    lines = []
    for name, (lower, upper, step) in zip(spec.outputs, spec.output_steps, strict=False):
        exact = step.denominator & (step.denominator - 1) == 0
        kind = "" if exact else "; the float32 number is the nearest one, round(float64(y) / step) its number of steps"
        lines.append(f"{name} is a multiple of {decimal(step)} from {decimal(lower)} to {decimal(upper)}{kind}")
    return lines


def assumptions_text(
    whole: list[str] | None, stand_ins: list[tuple[str, str]] | None, head: str = "rules", flags: Sequence[str] = ()
) -> list[str]:
    """Say what the proof assumes, and what was declared with it: whole numbers, stand-ins (None: unknown here)."""
    lines = list(statement_of(head)["assumptions"])
    if whole and not HEADS[head].reads_steps:
        lines.append(
            f"Inputs declared as whole numbers are whole: {', '.join(map(term, whole))}. The proof does not use it; "
            "between them a rule may be read as if it began at the next one."
        )
    for name, value in stand_ins or []:
        lines.append(
            f"A missing value of {term(name)} is read as {visible(value)} by the rules. The proof does not use it: the "
            "rules hold for that value."
        )
    for name in flags:
        lines.append(f"{term(flag_of(name))} is 1 where {term(name)} is missing and has its stand-in, and else 0.")
    facts = [("which inputs are whole numbers", whole), ("what stands in for missing values", stand_ins)]
    unknown = [words for words, known in facts if known is None]
    if unknown:
        lines.append(f"Not stated here, and not used by the proof: {' and '.join(unknown)}. The rules file says it.")
    return lines


def statement_of(kind: str) -> dict[str, Any]:
    """Return what the certificates of a kind of head claim."""
    return HEADS[kind].statement


def head_text(kind: str, tensors: Collection[str], files: Collection[str]) -> list[str]:
    """Say which kind of head was checked, and which part of the model was not."""
    stored = "model.onnx" if "onnx" in files else f"{BACKBONE}* in model.safetensors"
    present = "onnx" in files or any(name.startswith(BACKBONE) for name in tensors)
    rest = f"it is the one that was certified ({stored})" if present else "it is not part of the folder"
    return [
        f"checked: the head, {HEADS[kind].words}",
        f"not proved: the model in front of the head, and how good its answers are. It may answer anything; {rest}.",
    ]


class Proved(NamedTuple):
    """One proved clause (or block of exclusions) in words: head, rule, where it binds, what holds, and its margin.

    `obligation` says the same by numbers. `by` is what enforces it in a head of rules: a `clip` or a `check`. Such a
    head lets answers reach the limits, so its margins say nothing.
    """

    head: int
    rule: str
    where: str
    sentence: str
    margin: Fraction
    obligation: DerivedObligation
    by: str = ""

    def __repr__(self) -> str:
        """Leave out the numbers, which have hundreds of digits."""
        how = f"by a {self.by}" if self.by else f"margin {margin_text(self.margin)}"
        return f"Proved({self.rule!r} {self.where}: {self.sentence}; {how})"


def described(
    spec: StatedSpecification, obligation: DerivedObligation, margin: Fraction, kind: str = "box"
) -> list[Proved]:  # fmt: skip
    """Describe what was proved; for a table that stands for several rules, what each of them says."""
    rule, found = spec.rules[obligation.rule], proved_of(spec, obligation, margin, kind)
    if obligation.clause is None or not rule.entries:
        return [found]
    result, group = [], spec.group[next(iter(rule.entries))]
    rows = [row for row in obligation.rows if not spec.groups_of(spec.rows[row].terms) & {group}]
    for member, name in rule.entries.items():
        where = " and ".join([f"{spec.inputs[member]} is 1", *(sentence_of_row(spec, row) for row in rows)])
        literals = [
            literal._replace(
                x={k: v for k, v in literal.x.items() if spec.group.get(k) != group},
                bound=literal.bound - literal.x.get(member, Fraction(0)),
            )
            for literal in rule.clauses[obligation.clause]
        ]
        sentence = " or ".join(sentence_of_literal(spec, literal) for literal in literals)
        result.append(found._replace(rule=name, where=f"where {where}", sentence=sentence))
    return result


def proved_of(spec: StatedSpecification, obligation: DerivedObligation, margin: Fraction, kind: str) -> Proved:
    """Describe one obligation."""
    rule = spec.rules[obligation.rule]
    rows = " and ".join(sentence_of_row(spec, row) for row in obligation.rows)
    if obligation.clause is not None:
        sentence = " or ".join(sentence_of_literal(spec, literal) for literal in rule.clauses[obligation.clause])
    else:
        names = [f"not ({spec.outputs[h]} and {spec.outputs[k]})" for h, k in rule.exclusions[:3]]
        more = f" and {len(rule.exclusions) - 3:,} more exclusions" if len(rule.exclusions) > 3 else ""
        sentence = "; ".join(names) + more
    by = HEADS[kind].enforced_by(spec, obligation)
    return Proved(
        obligation.head, rule.name, f"where {rows}" if rows else "everywhere", sentence, margin, obligation, by
    )


def failed_text(spec: StatedSpecification, obligation: DerivedObligation, reason: str) -> str:
    """Say what was not proved, and why."""
    item = proved_of(spec, obligation, Fraction(0), "box")
    return f"rule {item.rule!r}, head {item.head}, {item.where}: {item.sentence}: {reason}"


def proved_text(item: Proved) -> str:
    """Print one proved statement."""
    rule = item.rule.replace("'", escaped("'"))
    how = f"by a {item.by}" if item.by else f"margin {margin_text(item.margin)}"
    return f"proved: rule '{rule}': {item.where}: {item.sentence}   ({how})"


def print_lines(lines: Iterable[str]) -> None:
    """Print lines. Characters that are not plainly visible, or cannot be written, are escaped, also in names."""
    for line in lines:
        safe = "".join(c if is_plain(c) or c == "\\" else escaped(c) for c in line)
        encoding = sys.stdout.encoding or "utf-8"
        print(safe.encode(encoding, "backslashreplace").decode(encoding))
