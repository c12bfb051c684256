"""The deployed program of a head, defined once: a short list of row operations (section 0; 12 for the clip list).

A certificate states the kind of a head and the shapes of its tensors; the program follows from these. It reads
`features` (batch, d), all float32 or all float64 (format F), and `answer` (batch, n) in float32: the embedding of a box
head, the model's answer for the others. The last result is what the head answers. An interpreter is a table with one
function per kind of operation. It may work in any way that keeps this meaning; the section in parentheses says how far
its numbers may be off.

clamp(x, lower, upper)                  x moved into [lower, upper] in F, exact; NaN becomes lower (0)
single(x)                               x in float32 (2, error of a cast)
wide(x)                                 x in float64, exact (0)
active(x, X, constants, coefficients, thresholds) Gate        bits of regions, set where all half-spaces hold:
                                        comparisons of x in F, exact; oblique: not coefficients X > thresholds (5)
cell(bits, signatures)                  the signature that equals the bits; if none does, the one with most ones (0)
hidden(v, weight, bias)                 max(weight v + bias, 0) in float32 (6.1)
affine(v, slope, offset)                slope v + offset in float32 (6)
clip(z, lower, upper) "where"|"clamp"   max(lower, min(upper, z)) in float32, exact; the kinds differ in NaN (0)
affine_at(c, v, weight, bias, x, V, z, free weight, free bias)        weight[c] v + V[c] x + bias[c] in the format of v,
                                        c = 0 if there is none (6); free weight z + free bias behind the last c
or_fallback(y, c, fallback)             y; where a row has a NaN, and not in the free cell, fallback[c] (0)
within(t, default)                      t in float64 if |t| <= 2^100, else default, number by number, exact (12)
raise_to, lower_to(q, bits, values, X, slopes) Stage          q, or the largest (smallest) limit of its output that is
                                        active and beyond it: values, or slopes X + values in float64 (12)
narrow(q)                               q in float32 (12)

A sum may be evaluated in any order, fused or not, and flushed to zero. No sign is changed by a product.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from smle_check.heads.clips import STAGES, Limit
from smle_check.stated import StatedSpecification


class Op(NamedTuple):
    """One operation; `out` names its result.

    `args` are names of earlier results, or of tensors (a final `_F` stands for the format of the features), or None for
    an absent argument. `fixed` comes from the rules alone and does not depend on the numbers.
    """

    kind: str
    out: str
    args: tuple[str | None, ...]
    fixed: Any = None


class Comparison(NamedTuple):
    """A half-space of one input: `x <= c`, or `-x <= c` if negative; `<` if strict."""

    column: int
    negative: bool
    strict: bool


class Gate(NamedTuple):
    """The half-spaces that regions are made of, comparisons first, then the oblique ones.

    `members`: for every region, the positions of its half-spaces in that order. A region without any is always active.
    """

    comparisons: tuple[Comparison, ...]
    oblique: int
    members: tuple[tuple[int, ...], ...]


class Stage(NamedTuple):
    """Limits of one stage of the clip list, in order: the bit and the output of each."""

    bits: tuple[int, ...]
    outputs: tuple[int, ...]


def gate_of(spec: StatedSpecification, regions: Sequence[int]) -> Gate:
    """Return the half-spaces of some regions; `smle_check.guard.guard_tensors` has their constants."""
    used = sorted({row for region in regions for row in spec.regions[region]})
    order = sorted(used, key=lambda row: len(spec.rows[row].terms) > 1)  # comparisons first
    place = {row: i for i, row in enumerate(order)}
    single = [spec.rows[row] for row in order if len(spec.rows[row].terms) == 1]
    comparisons = [Comparison(k, sign < 0, row.strict) for row in single for k, sign in row.terms.items()]
    members = tuple(tuple(sorted(place[row] for row in spec.regions[region])) for region in regions)
    return Gate(tuple(comparisons), len(order) - len(single), members)


def gated(gate: Gate, *, wide: bool = False) -> list[Op]:
    """Return the operations in front of every head: `x` in the domain, `X` if needed, `bits` of regions."""
    ops = [Op("clamp", "x", ("features", "domain.lower_F", "domain.upper_F"))]
    if wide or gate.oblique:
        ops.append(Op("wide", "X", ("x",)))
    if gate.members:
        compared = "gate.constants_F" if gate.comparisons else None
        oblique = ("gate.coefficients", "gate.thresholds") if gate.oblique else (None, None)
        ops.append(Op("active", "bits", ("x", "X" if gate.oblique else None, compared, *oblique), gate))
    return ops


def box(gate: Gate, clip: str, bounds: str, names: Collection[str]) -> list[Op]:
    """Return the program of heads behind a box (section 0). The values `bits`, `cell` and `clipped` are kept.

    The certificate states `clip` and `bounds`; `names` are the names of the head's tensors.
    """
    ops, place = gated(gate), None
    if gate.members:
        place = "cell"
        ops.append(Op("cell", place, ("bits", "gate.signatures")))
    passed = "heads.passthrough" if "heads.passthrough" in names else None
    if bounds != "constant" or passed:
        ops.append(Op("single", "x32", ("x",)))
    ends = ["bounds.lower", "bounds.upper"]
    if bounds != "constant":
        last, layer = "x32", 0
        while f"bounds.hidden.{layer}.weight" in names:
            stored = (f"bounds.hidden.{layer}.weight", f"bounds.hidden.{layer}.bias")
            ops.append(Op("hidden", f"h{layer}", (last, *stored)))
            last, layer = f"h{layer}", layer + 1
        ops += [Op("affine", end.removeprefix("bounds."), (last, f"{end}_slope", end)) for end in ends]
        ends = ["lower", "upper"]
    ops.append(Op("clip", "clipped", ("answer", *ends), clip))
    extra = ("x32", passed) if passed else (None, None)
    free = ("answer", "free.weight", "free.bias") if "free.weight" in names else (None, None, None)
    ops.append(Op("affine_at", "y", (place, "clipped", "heads.weight", "heads.bias", *extra, *free)))
    if clip == "clamp":
        ops.append(Op("or_fallback", "guarded", ("y", place, "heads.fallback")))
    return ops


def clip_list(spec: StatedSpecification, limits: Sequence[Limit], regions: Sequence[int] | None = None) -> list[Op]:
    """Return the program of a clip list (section 12); stages without limits are left out.

    `regions`: the regions of the gate, by default the regions of the limits.
    """
    regions = sorted({limit.region for limit in limits}) if regions is None else regions
    place = {region: i for i, region in enumerate(regions)}
    ops = gated(gate_of(spec, regions), wide=any(limit.slope for limit in limits))
    ops.append(Op("within", "q", ("answer", "clips.default")))
    for stage in STAGES:
        own = [limit for limit in limits if limit.stage == stage]
        if own:
            sloped = ("X", f"clips.{stage}_slope") if stage.startswith("affine") else (None, None)
            fixed = Stage(tuple(place[limit.region] for limit in own), tuple(limit.output for limit in own))
            kind = "raise_to" if stage.endswith("lower") else "lower_to"
            ops.append(Op(kind, stage, (ops[-1].out, "bits", f"clips.{stage}", *sloped), fixed))
    return [*ops, Op("narrow", "y", (ops[-1].out,))]


def needed(ops: Sequence[Op], wanted: Collection[str], given: Collection[str] = ()) -> list[Op]:
    """Return the operations that make the wanted values, if others are given."""
    names, kept = set(wanted), []
    for op in reversed(ops):
        if op.out in names and op.out not in given:
            kept.append(op)
            names.update(name for name in op.args if name is not None)
    return kept[::-1]


Table = Mapping[str, Callable[..., Callable[..., Any]]]
Step = tuple[str, Callable[..., Any], tuple[str, ...]]


def prepared(ops: Sequence[Op], tensors: Mapping[str, Any], table: Table, fmt: str) -> list[Step]:
    """Return the program for features of a format, ready to `run`: (out, function, names of values) for each operation.

    `table[kind](op, *tensors)` is called once, with None for values and absent tensors, and returns a function of the
    values alone.
    """
    made, steps = {"features", "answer"}, []
    for op in ops:
        values = tuple(name for name in op.args if name in made and name is not None)
        stored = [None if n is None or n in made else tensors[n.replace("_F", f"_{fmt}")] for n in op.args]
        steps.append((op.out, table[op.kind](op, *stored), values))
        made.add(op.out)
    return steps


def run(steps: Sequence[Step], env: dict[str, Any]) -> Any:
    """Run a prepared program. `env` has `features` and `answer`, and gets every value by name."""
    for out, function, names in steps:
        env[out] = function(*[env[name] for name in names])
    return env[steps[-1][0]]
