"""The clip list: limits on single outputs, read off the rules, behind any model (section 12).

A rule asks `y_i >= L(x)` or `y_i <= U(x)` on a region; L and U are constant or affine. Each is one clip with a bit of
its own, so that rules may overlap in any number:

    q = float64(answer of the model);  q = q if |q| <= W else default
    for the clips that are on, in this order: affine lower, affine upper, constant lower, constant upper
        v = s.x + o in float64 (affine)  or  c (constant);     q = q if q >= v else v  (upper clips: <=)
    y = float32(q)

The final value is q or one clip's value, and only a later clip of the other side can undo a rule: pairs suffice.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import Obligation, Unproved
from smle_check.digits import rounded_text
from smle_check.floats import FORMATS, TINY, U
from smle_check.heads.known import Boxes, Facts, Form
from smle_check.heads.sums import WIDE
from smle_check.kernel import bounded
from smle_check.reading import Rejected, Tensor, fields, items, require, values
from smle_check.specification import Literal, Specification

MAX_LIMITS, MAX_PAIRS = 100_000, 5_000_000
STAGES = ("affine_lower", "affine_upper", "constant_lower", "constant_upper")


class Limit(NamedTuple):
    """What a rule asks on a region: side * (y_output - (slope.x + offset)) >= 0, or > 0; side is 1 or -1."""

    rule: int
    clause: int
    region: int
    output: int
    side: int
    slope: Form
    offset: Fraction
    strict: bool

    @property
    def stage(self) -> str:
        """Which group of clips it belongs to."""
        return f"{'affine' if self.slope else 'constant'}_{'lower' if self.side > 0 else 'upper'}"


class Clip(NamedTuple):
    """A limit with the numbers that are deployed for it: slope.x + offset, computed with at most this error."""

    limit: Limit
    slope: Form
    offset: Fraction
    error: Fraction


def is_limit(clause: list[Literal]) -> bool:
    """Whether a clause limits a single output, so that a clip settles it."""
    return len(clause) == 1 and sum(map(bool, clause[0].y.values())) == 1


def limits_of(spec: Specification) -> list[Limit]:
    """Return the limits that the rules state, in the order of their clips. Other clauses are not for clips."""
    found: list[Limit] = []
    require(sum(len(rule.clauses) * len(rule.regions) for rule in spec.rules) <= MAX_LIMITS, "rules: too many limits")
    for i, rule in enumerate(spec.rules):
        for c, clause in enumerate(rule.clauses):
            if not is_limit(clause):
                continue
            literal = clause[0]
            ((output, g),) = ((k, v) for k, v in literal.y.items() if v)
            slope = {k: -v / g for k, v in literal.x.items() if v}
            side, offset = (-1 if g > 0 else 1), literal.bound / g
            found += [Limit(i, c, region, output, side, slope, offset, literal.strict) for region in rule.regions]
    return sorted(found, key=lambda limit: STAGES.index(limit.stage))  # a stable sort: rules keep their order


def gaps(clip: Clip, limit: Limit) -> list[tuple[Form, Fraction]]:
    """Return forms (slope, constant): where one is >= 0, what this clip leaves obeys the limit; all are needed.

    An affine clip leaves v with |v - (s.x + o)| <= E, and then float32(v): (1 -+ u) v and at most `tiny`.
    """
    side = limit.side
    if not clip.limit.slope:
        return [({k: -side * v for k, v in limit.slope.items()}, side * (clip.offset - limit.offset))]
    result = []
    for factor in (1 - U, 1 + U):
        slope = {k: side * factor * v for k, v in clip.slope.items()}
        for k, v in limit.slope.items():
            slope[k] = slope.get(k, Fraction(0)) - side * v
        result.append((slope, side * (factor * clip.offset - limit.offset) - factor * clip.error - TINY))
    return result


def by_side(clips: list[Clip]) -> dict[tuple[int, int], list[int]]:
    """Return the numbers of clips by output and side."""
    sides: dict[tuple[int, int], list[int]] = {}
    for j, clip in enumerate(clips):
        sides.setdefault((clip.limit.output, clip.limit.side), []).append(j)
    return sides


class Pairs:
    """Which clips may undo which limits, and the proof that what they leave obeys them. Clips are named by number."""

    def __init__(self, boxes: Boxes, clips: list[Clip]) -> None:
        self.boxes, self.clips, self.facts = boxes, clips, Facts(boxes)
        self.reaches: dict[tuple[int, int], Fraction] = {}
        self.demands: dict[int, Fraction] = {}
        self.boxes_of: dict[int, list[tuple[Mapping[int, Fraction], Mapping[int, Fraction]]]] = {}
        self.sides = by_side(clips)

    def against(self, k: int) -> list[int]:
        """Return the clips that have to obey limit k: its own, and the later ones of the other side."""
        limit = self.clips[k].limit
        return [k, *(j for j in self.sides.get((limit.output, -limit.side), ()) if j > k)]

    def most(self) -> int:
        """Return an upper bound of how many pairs there are."""
        lower = {output: len(own) for (output, side), own in self.sides.items() if side > 0}
        upper = ((output, len(own)) for (output, side), own in self.sides.items() if side < 0)
        return len(self.clips) + sum(lower.get(output, 0) * count for output, count in upper)

    def nonempty(self, region: int) -> list[tuple[Mapping[int, Fraction], Mapping[int, Fraction]]]:
        """Return the box of a region in each format in which it is not empty."""
        if region not in self.boxes_of:
            found = [(self.boxes.of(region, fmt), fmt) for fmt in FORMATS]
            filled = [(ends, fmt) for ends, fmt in found if all(a <= b for a, b in ends.values())]
            self.boxes_of[region] = [self.boxes.sides(ends, fmt) for ends, fmt in filled]
        return self.boxes_of[region]

    def least(self, j: int, side: int) -> Fraction:
        """Return the least of side * (what clip j leaves), of a clip whose region is not empty."""
        if (j, side) not in self.reaches:
            clip = self.clips[j]
            forms = gaps(clip, clip.limit._replace(side=side, slope={}, offset=Fraction(0)))
            ends = self.nonempty(clip.limit.region)
            least = [c - bounded({k: -v for k, v in s.items()}, [], [], *box) for s, c in forms for box in ends]
            self.reaches[j, side] = min(least)
        return self.reaches[j, side]

    def demand(self, k: int) -> Fraction:
        """Return the most of side * (what limit k asks for) over the box where it binds, which is not empty."""
        if k not in self.demands:
            limit = self.clips[k].limit
            form = {i: limit.side * v for i, v in limit.slope.items()}
            most = [bounded(form, [], [], *box) for box in self.nonempty(limit.region)]
            self.demands[k] = limit.side * limit.offset + max(most)
        return self.demands[k]

    def margin(self, k: int, j: int, mu_data: Any) -> Fraction | None:
        """Prove that what clip j leaves obeys limit k; return the margin, None where they never meet.

        The limit binds on its region as stated; the clip is on in its region as the gate sees it.
        """
        limit, clip = self.clips[k].limit, self.clips[j]
        if not (self.nonempty(limit.region) and self.nonempty(clip.limit.region)):
            return None
        spare = self.least(j, limit.side) - self.demand(k)
        if not mu_data and spare > 0:  # what the clip leaves anywhere obeys the limit wherever it binds
            return spare
        margins = []
        for slope, constant in gaps(clip, limit):
            form = {i: -v for i, v in slope.items()}
            excess = self.facts.most(form, -constant, limit.region, clip.limit.region, mu_data)
            if excess is not None:
                if not (excess < 0 or (excess == 0 and not limit.strict)):
                    raise Rejected(f"not proved (short by {rounded_text(excess, 3, up=True)})")
                margins.append(-excess)
        return min(margins, default=None)


def read_clips(spec: Specification, tensors: dict[str, Tensor], limits: list[Limit]) -> list[Clip]:
    """Read the deployed numbers of all clips."""
    d, clips = len(spec.inputs), []
    for stage in STAGES:
        own = [limit for limit in limits if limit.stage == stage]
        offsets = values(tensors, f"clips.{stage}", "F32", (len(own),))
        affine = stage.startswith("affine")
        slopes = values(tensors, f"clips.{stage}_slope", "F32", (len(own), d)) if affine else []
        for i, limit in enumerate(own):
            slope = {k: v for k, v in enumerate(slopes[i * d : (i + 1) * d]) if v}
            error = spec.error(slope, offsets[i], "clip") if affine else Fraction(0)
            require(spec.largest(slope, offsets[i]) + error <= WIDE, f"clips.{stage}: a limit beyond 2^100")
            numbers = [offsets[i], *slope.values()]
            require(all(not v or abs(v) >= TINY for v in numbers), f"clips.{stage}: a number is too close to 0")
            clips.append(Clip(limit, slope, offsets[i], error))
    default = values(tensors, "clips.default", "F32", (len(spec.outputs),))
    require(all(abs(v) <= WIDE for v in default), "clips.default: beyond 2^100")
    return clips


def names_of() -> set[str]:
    """Return the names of the tensors that hold the clips."""
    names = {"clips.default"} | {f"clips.{stage}" for stage in STAGES}
    return names | {f"clips.{stage}_slope" for stage in STAGES if stage.startswith("affine")}


def check_clips(
    spec: Specification, clips: list[Clip], proof_data: Any
) -> tuple[list[tuple[Obligation, Fraction]], Pairs]:
    """Check the clip list: every limit by its own clip, and by every later clip of the other side."""
    proofs = read_proofs(proof_data, "limit clip", "mu")
    pairs, settled = Pairs(Boxes(spec), clips), []
    require(pairs.most() <= MAX_PAIRS, "rules: too many pairs of limits")
    for k, clip in enumerate(clips):
        limit = clip.limit
        obligation = Obligation(0, limit.rule, limit.region, tuple(spec.regions[limit.region]), limit.clause)
        margins = []
        for j in pairs.against(k):
            try:
                margins.append(pairs.margin(k, j, *proofs.pop((k, j), [[]])))
            except Rejected as reason:
                other = "" if j == k else f" against rule {spec.rules[clips[j].limit.rule].name!r}"
                raise Unproved(obligation, f"{reason}{other}") from None
        found = [margin for margin in margins if margin is not None]
        settled.append((obligation, min(found, default=Fraction(0))))
    require(not proofs, f"proof {list(proofs)[:1]} is for no obligation")
    return settled, pairs


def read_proofs(data: Any, keys: str, values: str) -> dict[tuple[int, ...], list[Any]]:
    """Index proofs by the whole numbers of their keys; each has these fields, of which the last are multipliers."""
    proofs: dict[tuple[int, ...], list[Any]] = {}
    for entry in items(data, "proofs"):
        found = fields(entry, f"{keys} {values}", "proof")
        key = tuple(found[: len(keys.split())])
        require(all(type(part) is int for part in key), "proof: malformed key")
        require(key not in proofs, f"proof {key}: given twice")
        proofs[key] = [*found[len(key) : -1], items(found[-1], "mu")]
    return proofs
