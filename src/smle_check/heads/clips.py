"""The clip list: limits on single outputs, read off the rules, behind any model (section 12).

A rule asks `y_i >= L(x)` or `y_i <= U(x)` on a region; L and U are constant or affine. Each is one clip with a bit of
its own, so that rules may overlap in any number:

    q = float64(answer of the model);  q = q if |q| <= W else default
    for the clips that are on, in this order: affine lower, affine upper, constant lower, constant upper
        v = s.x + o in float64 (affine)  or  c (constant);     q = q if q >= v else v  (upper clips: <=)
    y = float32(q)

The final value is q or one clip's value, and only a later clip of the other side can undo a rule: pairs suffice.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import Obligation, Unproved
from smle_check.digits import rounded_text
from smle_check.floats import FORMATS, TINY, Binary, U, above, below, error64
from smle_check.kernel import bounded, multipliers_of
from smle_check.reading import Rejected, Tensor, fields, index, items, require, values
from smle_check.specification import Literal, Specification

WIDE = Fraction(2) ** 100
MAX_LIMITS, MAX_PAIRS = 100_000, 5_000_000
STAGES = ("affine_lower", "affine_upper", "constant_lower", "constant_upper")
Ends = dict[int, tuple[Fraction, Fraction]]  # of some inputs; the others have their whole range


class Limit(NamedTuple):
    """What a rule asks on a region: side * (y_output - (slope.x + offset)) >= 0, or > 0; side is 1 or -1."""

    rule: int
    clause: int
    region: int
    output: int
    side: int
    slope: dict[int, Fraction]
    offset: Fraction
    strict: bool

    @property
    def stage(self) -> str:
        """Which group of clips it belongs to."""
        return f"{'affine' if self.slope else 'constant'}_{'lower' if self.side > 0 else 'upper'}"


class Clip(NamedTuple):
    """A limit with the numbers that are deployed for it: slope.x + offset, computed with at most this error."""

    limit: Limit
    slope: dict[int, Fraction]
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


class Boxes:
    """The ranges that comparisons of a region, or of two, leave to inputs of a format; each region is read once."""

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self.domain = {fmt: [dict(enumerate(side)) for side in spec.passed[fmt]] for fmt in FORMATS}
        self.known: dict[tuple[int, Binary], Ends] = {}

    def of(self, region: int, fmt: Binary) -> Ends:
        """Return the ranges that the comparisons of one region leave; low > high where that is none."""
        if (region, fmt) in self.known:
            return self.known[region, fmt]
        low, high = self.spec.passed[fmt]
        ends: Ends = {}
        for row in (self.spec.rows[r] for r in self.spec.regions[region] if len(self.spec.rows[r].terms) == 1):
            ((k, sign),) = row.terms.items()
            bound, strict = row.compared[fmt]
            a, b = ends.get(k, (low[k], high[k]))
            if sign > 0:
                ends[k] = a, min(b, below(bound, fmt) if strict else bound)
            else:
                ends[k] = max(a, above(-bound, fmt) if strict else -bound), b
        self.known[region, fmt] = ends
        return ends

    def meeting(self, regions: Iterable[int], fmt: Binary, outside: Iterable[int] = ()) -> Ends | None:
        """Return the ranges where some regions meet, outside of others; None: no input is there.

        Regions of one comparison have an outside that is a range; of others nothing is used here.
        """
        ends: Ends = {}
        for own in [*(self.of(region, fmt) for region in regions), *(self.beyond(region, fmt) for region in outside)]:
            for k, (low, high) in own.items():
                a, b = ends.get(k, (low, high))
                ends[k] = max(a, low), min(b, high)
                if ends[k][0] > ends[k][1]:
                    return None
        for group in self.spec.groups:  # exactly one is 1, the others 0
            own = {k: ends.get(k, (Fraction(0), Fraction(1))) for k in group}
            ones = [k for k in group if own[k][0] > 0]
            if len(ones) > 1 or all(b < 1 for _, b in own.values()):
                return None
            if ones:
                ends |= {k: (own[k][0], min(own[k][1], Fraction(int(k in ones)))) for k in group}
        return None if any(a > b for a, b in ends.values()) else ends

    def beyond(self, region: int, fmt: Binary) -> Ends:
        """Return the ranges outside of a region that is one comparison."""
        rows = [self.spec.rows[r] for r in self.spec.regions[region]]
        if len(rows) != 1 or len(rows[0].terms) != 1:
            return {}
        ((k, sign),) = rows[0].terms.items()
        low, high = (side[k] for side in self.spec.passed[fmt])
        bound, strict = rows[0].compared[fmt]
        if sign > 0:
            return {k: (max(low, bound if strict else above(bound, fmt)), high)}
        return {k: (low, min(high, -bound if strict else below(-bound, fmt)))}

    def sides(self, ends: Ends, fmt: Binary) -> tuple[Mapping[int, Fraction], Mapping[int, Fraction]]:
        """Return the lower and the upper ends of all inputs."""
        low, high = self.domain[fmt]
        lower, upper = ({k: pair[i] for k, pair in ends.items()} for i in (0, 1))
        return ChainMap(lower, low), ChainMap(upper, high)


def gaps(clip: Clip, limit: Limit) -> list[tuple[dict[int, Fraction], Fraction]]:
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


class Pairs:
    """Which clips may undo which limits, and the proof that what they leave obeys them. Clips are named by number."""

    def __init__(self, boxes: Boxes, clips: list[Clip]) -> None:
        self.boxes, self.clips = boxes, clips
        self.reaches: dict[tuple[int, int], Fraction] = {}
        self.demands: dict[int, Fraction] = {}
        self.boxes_of: dict[int, list[tuple[Mapping[int, Fraction], Mapping[int, Fraction]]]] = {}
        self.sides: dict[tuple[int, int], list[int]] = {}
        for j, clip in enumerate(clips):
            self.sides.setdefault((clip.limit.output, clip.limit.side), []).append(j)

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
        spec = self.boxes.spec
        stated, seen = set(spec.regions[limit.region]), set(spec.regions[clip.limit.region])
        mu = multipliers_of(mu_data, stated | seen | set(range(spec.stated, len(spec.rows))), "mu") if mu_data else {}
        margins = []
        for fmt in FORMATS:
            ends = self.boxes.meeting((limit.region, clip.limit.region), fmt)
            if ends is None:
                continue
            box, rows = self.boxes.sides(ends, fmt), []
            for r in mu:
                row = spec.rows[r]
                oblique = len(row.terms) > 1 and r in stated
                rows.append((row.terms, row.bound if oblique else row.compared[fmt][0]))
            for slope, constant in gaps(clip, limit):
                bound = bounded({i: -v for i, v in slope.items()}, rows, list(mu.values()), *box) - constant
                if not (bound < 0 or (bound == 0 and not limit.strict)):
                    raise Rejected(f"not proved (short by {rounded_text(bound, 3, up=True)})")
                margins.append(-bound)
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
            sizes = [spec.sizes[k] for k in slope]
            error = error64(list(slope.values()), sizes, offsets[i], "clip") if affine else Fraction(0)
            reach = abs(offsets[i]) + sum((abs(v) * spec.sizes[k] for k, v in slope.items()), Fraction(0))
            require(reach + error <= WIDE, f"clips.{stage}: a limit beyond 2^100")
            numbers = [offsets[i], *slope.values()]
            require(all(not v or abs(v) >= TINY for v in numbers), f"clips.{stage}: a number is too close to 0")
            clips.append(Clip(limit, slope, offsets[i], error))
    default = values(tensors, "clips.default", "F32", (len(spec.outputs),))
    require(all(abs(v) <= WIDE for v in default), "clips.default: beyond 2^100")
    return clips


def names_of(stages: tuple[str, ...] = STAGES) -> set[str]:
    """Return the names of the tensors that hold the clips."""
    names = {"clips.default"} | {f"clips.{stage}" for stage in stages}
    return names | {f"clips.{stage}_slope" for stage in stages if stage.startswith("affine")}


def check_clips(
    spec: Specification, clips: list[Clip], proof_data: Any
) -> tuple[list[tuple[Obligation, Fraction]], Pairs]:
    """Check the clip list: every limit by its own clip, and by every later clip of the other side."""
    proofs = read_proofs(proof_data, len(clips))
    pairs, settled = Pairs(Boxes(spec), clips), []
    require(pairs.most() <= MAX_PAIRS, "rules: too many pairs of limits")
    for k, clip in enumerate(clips):
        limit = clip.limit
        obligation = Obligation(0, limit.rule, tuple(spec.regions[limit.region]), limit.clause)
        margins = []
        for j in pairs.against(k):
            try:
                margins.append(pairs.margin(k, j, proofs.pop((k, j), [])))
            except Rejected as reason:
                other = "" if j == k else f" against rule {spec.rules[clips[j].limit.rule].name!r}"
                raise Unproved(obligation, f"{reason}{other}") from None
        found = [margin for margin in margins if margin is not None]
        settled.append((obligation, min(found, default=Fraction(0))))
    require(not proofs, f"proof {list(proofs)[:1]} is for no obligation")
    return settled, pairs


def read_proofs(data: Any, count: int) -> dict[tuple[int, int], Any]:
    """Index the multipliers by (clip of the limit, clip that may undo it); pairs without an entry have none."""
    proofs: dict[tuple[int, int], Any] = {}
    for entry in items(data, "proofs"):
        limit, clip, mu = fields(entry, "limit clip mu", "proof")
        key = index(limit, count, "proof"), index(clip, count, "proof")
        require(key not in proofs, f"proof {key}: given twice")
        proofs[key] = items(mu, "mu")
    return proofs
