"""The clip list: limits on single outputs, read off the rules, behind any model (section 12).

A rule asks `y_i >= L(x)` or `y_i <= U(x)` on a region; L and U are constant or affine. Each is one clip with its own
bit, so that any number of rules may overlap:

    q = float64(answer of the model);  q = q if |q| <= W else default
    for the active clips, in this order: affine lower, affine upper, constant lower, constant upper
        v = s.x + o in float64 (affine)  or  c (constant);     q = q if q >= v else v  (upper clips: <=)
    y = float32(q)

The final value is q or one clip's value, and only a later clip of the other side can undo a rule, so pairs suffice.

A table, `y <= cap[article]`, is an affine clip without an offset, whose slope is over the columns of one group. Exactly
one of these is 1, so v is the stored number of that member: nothing is rounded, and the limit of each member is
compared with its own number.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import DerivedObligation, Unproved
from smle_check.digits import rounded_text
from smle_check.floats import FORMATS, TINY, Binary, U
from smle_check.heads.known import Boxes, Facts, Form, Known
from smle_check.heads.sums import WIDE
from smle_check.reading import Rejected, Tensor, fields, items, require, values
from smle_check.stated import StatedLiteral, StatedSpecification

MAX_LIMITS = 100_000
PER_PAIR = 100  # steps for each pair of a limit and a clip that may undo it
MOST_SLOTS = 32  # of a range, in an index of clips
STAGES = ("affine_lower", "affine_upper", "constant_lower", "constant_upper")


class Limit(NamedTuple):
    """A limit of a rule on a region: side * (y_output - (slope.x + offset)) >= 0, or > 0; side is 1 or -1."""

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
        """The group of clips it belongs to."""
        return f"{'affine' if self.slope else 'constant'}_{'lower' if self.side > 0 else 'upper'}"


class Clip(NamedTuple):
    """A limit with its deployed numbers: slope.x + offset, computed with an error of at most error + more.x.

    An error of 0 means a stored number, of a constant or a table. Other sums have an error above 0, and `more` for the
    members of groups: the number of one category does not enter the sums of others.
    """

    limit: Limit
    slope: Form
    offset: Fraction
    error: Fraction
    more: Form = {}  # noqa: RUF012 - never written


def is_limit(clause: list[StatedLiteral]) -> bool:
    """Return whether a clause limits a single output, so that a clip settles it."""
    return len(clause) == 1 and sum(map(bool, clause[0].y.values())) == 1


def limits_of(spec: StatedSpecification) -> list[Limit]:
    """Return the limits that the rules state, in the order of their clips. Other clauses are left to the check."""
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
    """Return forms (slope, constant); where all are >= 0, what this clip leaves obeys the limit.

    An affine clip leaves v with |v - (s.x + o)| <= E(x), and then float32(v): (1 -+ u) v and at most `tiny`. A constant
    and a table leave a stored float32 number, which is 0 or normal.
    """
    side = limit.side
    result = []
    for factor in (1 - U, 1 + U) if clip.error else (Fraction(1),):
        slope = {k: side * factor * v for k, v in clip.slope.items()}
        for k, v in limit.slope.items():
            slope[k] = slope.get(k, Fraction(0)) - side * v
        for k, v in clip.more.items():
            slope[k] -= factor * v
        lost = factor * clip.error + TINY if clip.error else Fraction(0)
        result.append((slope, side * (factor * clip.offset - limit.offset) - lost))
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
        self.boxes_of: dict[int, list[tuple[Known, Binary]]] = {}
        self.sides = by_side(clips)
        self.others = {key: Others(self, own, -key[1]) for key, own in self.sides.items()}

    def nonempty(self, region: int) -> list[tuple[Known, Binary]]:
        """Return what a region leaves, in each format in which it is not empty."""
        if region not in self.boxes_of:
            found = [(self.boxes.of(region, fmt), fmt) for fmt in FORMATS]
            self.boxes_of[region] = [(known, fmt) for known, fmt in found if not self.boxes.is_empty(known)]
        return self.boxes_of[region]

    def against(self, k: int) -> tuple[Fraction | None, list[int]]:
        """Return the clips against which limit k is proved one by one: its own, and later ones of the other side.

        The first value is the margin of the clips settled together, or None if there are none.
        """
        limit = self.clips[k].limit
        if not self.nonempty(limit.region):
            return None, []
        others = self.others.get((limit.output, -limit.side))
        spare = None if others is None else others.spare(k, self.demand(k))
        if others is None or (spare is not None and (spare > 0 or (spare == 0 and not limit.strict))):
            return spare, [k]
        return None, [k, *others.meeting(k)]

    def least(self, j: int, side: int) -> Fraction:
        """Return the least of side * (what clip j leaves), for a clip whose region is not empty."""
        if (j, side) not in self.reaches:
            clip = self.clips[j]
            forms = gaps(clip, clip.limit._replace(side=side, slope={}, offset=Fraction(0)))
            ends = self.nonempty(clip.limit.region)
            least = [c - self.boxes.most({k: -v for k, v in s.items()}, *own) for s, c in forms for own in ends]
            self.reaches[j, side] = min(least)
        return self.reaches[j, side]

    def demand(self, k: int) -> Fraction:
        """Return the most of side * (what limit k asks for) where it binds, which is somewhere."""
        limit = self.clips[k].limit
        form = {i: limit.side * v for i, v in limit.slope.items()}
        most = [self.boxes.most(form, *own) for own in self.nonempty(limit.region)]
        return limit.side * limit.offset + max(most)

    def margin(self, k: int, j: int, mu_data: Any) -> Fraction | None:
        """Prove that what clip j leaves obeys limit k; return the margin, or None if they never meet.

        The limit binds on its region as stated; the clip is active in its region as the gate sees it.
        """
        limit, clip = self.clips[k].limit, self.clips[j]
        margins = []
        for slope, constant in gaps(clip, limit):
            form = {i: -v for i, v in slope.items()}
            excess = self.facts.most(form, -constant, limit.region, clip.limit.region, mu_data)
            if excess is not None:
                if not (excess < 0 or (excess == 0 and not limit.strict)):
                    raise Rejected(f"not proved (short by {rounded_text(excess, 3, up=True)})")
                margins.append(-excess)
        return min(margins, default=None)


class Others:
    """The clips of one output and side, as limits of the other `side` meet them."""

    def __init__(self, pairs: Pairs, own: list[int], side: int) -> None:
        self.pairs, self.side = pairs, side
        self.clips = [j for j in own if self.left(j)]  # others are never active
        self.worst: list[Fraction] = []
        self.indices: list[Index] | None = None

    def left(self, j: int) -> list[Known]:
        """Return what the region of a clip leaves, in each format in which it is not empty."""
        return [known for known, _ in self.pairs.nonempty(self.pairs.clips[j].limit.region)]

    def spare(self, k: int, demand: Fraction) -> Fraction | None:
        """Return by how much the worst clip after limit k obeys it anywhere, or None if there is no clip."""
        if not self.worst:
            for j in reversed(self.clips):
                least = self.pairs.least(j, self.side)
                self.worst.append(min(least, self.worst[-1]) if self.worst else least)
            self.worst.reverse()
        first = bisect_right(self.clips, k)
        return self.worst[first] - demand if first < len(self.clips) else None

    def meeting(self, k: int) -> list[int]:
        """Return the clips after limit k whose regions may meet its own."""
        if self.indices is None:
            spec, found = self.pairs.boxes.spec, {j: self.left(j) for j in self.clips}
            read = {i for own in found.values() for known in own for i in known.ends}
            parts = [members_left(g) for g in range(len(spec.groups))]
            parts += [slots_left(i, [known for own in found.values() for known in own]) for i in sorted(read)]
            self.indices = [Index(keys, found) for keys in parts]
        own, best = self.left(k), self.clips
        for index in self.indices:
            listed = index.meeting(own)
            if listed is not None and len(listed) < len(best):
                best = listed
        return best[bisect_right(best, k) :]


Keys = Callable[[list[Known]], "Iterable[int] | None"]


class Index:
    """Clips by keys of their regions; regions that meet share a key. Keys are None for any region."""

    def __init__(self, keys: Keys, clips: Mapping[int, list[Known]]) -> None:
        self.keys, self.listed, self.anywhere = keys, dict[int, list[int]](), list[int]()
        for j, own in clips.items():
            found = keys(own)
            for key in () if found is None else found:
                self.listed.setdefault(key, []).append(j)
            self.anywhere += [j] if found is None else []

    def meeting(self, own: list[Known]) -> list[int] | None:
        """Return the clips that may meet a region, or None for all."""
        found = self.keys(own)
        if found is None:
            return None
        return sorted({*self.anywhere, *(j for key in found for j in self.listed.get(key, ()))})


def members_left(g: int) -> Keys:
    """Return the members that a region requires, in any format, if it names members of the group."""

    def keys(own: list[Known]) -> Iterable[int] | None:
        found = [known.members.get(g) for known in own]
        named = [members.names for members in found if members is not None and members.among]
        return frozenset().union(*named) if len(named) == len(own) else None

    return keys


def slots_left(i: int, all_known: list[Known]) -> Keys:
    """Return the slots between lower ends of one input's ranges that a region's own range meets, if they are few."""
    lows = sorted({known.ends[i][0] for known in all_known if i in known.ends})

    def keys(own: list[Known]) -> Iterable[int] | None:
        ends = [known.ends[i] for known in own if i in known.ends]
        first = bisect_right(lows, min((low for low, _ in ends), default=Fraction(0))) - 1
        last = bisect_right(lows, max((high for _, high in ends), default=Fraction(0))) - 1
        few = len(ends) == len(own) and last - first < MOST_SLOTS
        return range(first, last + 1) if few else None

    return keys


def read_clips(spec: StatedSpecification, tensors: dict[str, Tensor], limits: list[Limit]) -> list[Clip]:
    """Read the deployed numbers of all clips."""
    d, clips = len(spec.inputs), []
    for stage in STAGES:
        own = [limit for limit in limits if limit.stage == stage]
        offsets = values(tensors, f"clips.{stage}", "F32", (len(own),))
        affine = stage.startswith("affine")
        slopes = values(tensors, f"clips.{stage}_slope", "F32", (len(own), d)) if affine else []
        for i, limit in enumerate(own):
            slope = {k: v for k, v in enumerate(slopes[i * d : (i + 1) * d]) if v}
            error, more = spec.errors(slope, offsets[i], "clip") if affine else (Fraction(0), {})
            reach = spec.largest(slope, offsets[i]) + spec.largest(more, error)
            require(reach <= WIDE, f"clips.{stage}: a limit beyond 2^100")
            numbers = [offsets[i], *slope.values()]
            require(all(not v or abs(v) >= TINY for v in numbers), f"clips.{stage}: a number is too close to 0")
            clips.append(Clip(limit, slope, offsets[i], error, more))
    default = values(tensors, "clips.default", "F32", (len(spec.outputs),))
    require(all(abs(v) <= WIDE for v in default), "clips.default: beyond 2^100")
    return clips


def names_of() -> set[str]:
    """Return the names of the clip tensors."""
    names = {"clips.default"} | {f"clips.{stage}" for stage in STAGES}
    return names | {f"clips.{stage}_slope" for stage in STAGES if stage.startswith("affine")}


def check_clips(
    spec: StatedSpecification, clips: list[Clip], proof_data: Any
) -> tuple[list[tuple[DerivedObligation, Fraction]], Pairs]:
    """Check the clip list: every limit against its own clip, and against every later clip of the other side."""
    proofs = read_proofs(proof_data, "limit clip", "mu")
    pairs, settled, asked = Pairs(Boxes(spec), clips), [], []
    for k in range(len(clips)):
        asked.append(pairs.against(k))
        spec.work.plan(PER_PAIR * len(asked[-1][1]), "rules: pairs of limits")
    for k, (clip, (together, alone)) in enumerate(zip(clips, asked, strict=True)):
        limit = clip.limit
        obligation = DerivedObligation(0, limit.rule, limit.region, tuple(spec.regions[limit.region]), limit.clause)
        margins = [together]
        for j in alone:
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
    """Index proofs by the integers in their `keys`; the `values` fields hold the rest, multipliers last."""
    proofs: dict[tuple[int, ...], list[Any]] = {}
    for entry in items(data, "proofs"):
        found = fields(entry, f"{keys} {values}", "proof")
        key = tuple(found[: len(keys.split())])
        require(all(type(part) is int for part in key), "proof: malformed key")
        require(key not in proofs, f"proof {key}: given twice")
        proofs[key] = [*found[len(key) : -1], items(found[-1], "mu")]
    return proofs
