"""Every constant of sections 12 and 13, derived again and asked for at its border. Long: one law per constant."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from smle_check.claims import Unproved
from smle_check.floats import BINARY32, BINARY64, FORMATS
from smle_check.heads.candidates import (
    MAX_DEPTH,
    Safe,
    checked_of,
    move_forms,
    read_safe,
    read_tree,
    rounding,
    without_zeros,
)
from smle_check.heads.clips import Clip, Pairs, check_clips, gaps, limits_of, read_clips
from smle_check.heads.known import Boxes, Facts, Known, Leaf, Members
from smle_check.stated import StatedLiteral

U, TINY, WIDE = Fraction(1, 2**24), Fraction(1, 2**126), Fraction(2**100)
TEXT = """
inputs: {x: [-3, 1000], z: [0.1, 7], k: {categories: [r, g, b]}}
outputs: [p, q]
rules:
  - {name: moving, when: x < 5.1, then: p >= 0.3 * x - 0.7 * z - 1}
  - {name: above, when: x + 3 * z >= 4.3, then: p < 0.31 * x + 300}
  - {name: fixed, when: z > 0.3 and x <= 7.7, then: q >= 0.1}
  - {name: most, then: q < 900.7}
  - {name: tied, when: k == g and x - z <= 100.3, then: 0.1 * p + q <= 0.7 * x + 901 or p - q >= 0.3}
"""


def stated(certificate: Certificate) -> smle_check.StatedSpecification:
    """What the checker reads."""
    return smle_check.StatedSpecification(certificate.document["specification"], certificate.block)


@cache
def made() -> tuple[Certificate, smle_check.StatedSpecification, list[Clip]]:
    certificate = certify_rules(Specification.from_yaml(TEXT))
    spec = stated(certificate)
    return certificate, spec, read_clips(spec, certificate.tensors, limits_of(spec))


def sum_error(weights: list[Fraction], sizes: list[Fraction], offset: Fraction) -> Fraction:
    """E64 of section 2, and the numbers of float32 that may count as 0."""
    n, tiny = len(weights), Fraction(1, 2**1022)
    g = Fraction(n + 1, 2**53 - n - 1)
    size = abs(offset) + sum(abs(w) * s for w, s in zip(weights, sizes, strict=True))
    absolute = tiny * (2 * n + 1 + sum(map(abs, weights)) + sum(sizes)) * (1 + g)
    return g * size + absolute + 2 * TINY * sum(map(abs, weights))


def normal(value: float) -> Fraction:
    return Fraction(value if abs(value) >= 2.0**-1022 else 0.0)


def following(value: Fraction) -> Fraction:
    """The next float64 number that is 0 or normal."""
    after = math.nextafter(float(value), math.inf)
    if abs(after) < 2.0**-1022:
        after = 0.0 if value < 0 else 2.0**-1022
    return Fraction(after)


def points(spec, count=40):
    rng = np.random.default_rng(0)
    ends = list(zip(*spec.passed[BINARY64], strict=True))
    for _ in range(count):
        yield [Fraction(float(rng.uniform(float(a), float(b)))) for a, b in ends]


def at(form, x):
    slope, constant = form
    return constant + sum(v * x[k] for k, v in slope.items())


def affine(clip, x):
    return at((clip.slope, clip.offset), x)


def test_what_a_clip_leaves_is_bounded_as_stated():
    _, spec, clips = made()
    assert [clip.limit.stage for clip in clips] == ["affine_lower", "affine_upper", "constant_lower", "constant_upper"]
    for clip in clips[:2]:
        sizes = [spec.sizes[k] for k in clip.slope]
        assert clip.error == sum_error(list(clip.slope.values()), sizes, clip.offset)
    assert [clip.error for clip in clips[2:]] == [0, 0]
    flat = clips[0]._replace(slope={})  # a slope that is stored as 0 is rounded as stated, like any other
    for (clip, other), x in product(product([*clips, flat], clips), points(spec)):
        limit, side = other.limit, other.limit.side
        asked = side * at((limit.slope, limit.offset), x)
        if clip.limit.slope:
            w = side * affine(clip, x) - clip.error  # the least of side * v
            least = min((1 - U) * w, (1 + U) * w) - TINY
        else:
            least = side * clip.offset
        assert min(at(form, x) for form in gaps(clip, limit)) == least - asked


LOOKED_UP = """
inputs: {k: {categories: [r, g, b]}, w: [0, 100], j: {categories: [s, t]}}
outputs: [p]
tables:
  cap: {key: k, values: {r: 1, g: 1000000000000000, b: 0.001}}
  fee: {key: j, values: {s: 3, t: 0}}
rules:
  - {name: most, then: "p <= cap[k] + fee[j] + 0.1 * w + 1"}
  - {name: least, then: "p >= fee[j] - 0.3 * w - cap[k]"}
"""


def one_hot(spec):
    """Inputs at which one member of each group is 1."""
    for members in product(*spec.groups):
        for w in (Fraction(0), Fraction(100), Fraction(0.1)):
            yield [Fraction(int(k in members)) if k in spec.group else w for k in range(len(spec.inputs))]


def test_errors_of_sums_with_categories_are_those_of_the_category():
    certificate = certify_rules(Specification.from_yaml(LOOKED_UP))
    spec = stated(certificate)
    clips = read_clips(spec, certificate.tensors, limits_of(spec))
    assert len(clips) == 2
    for (clip, other), x in product(product(clips, clips), one_hot(spec)):
        read = [k for k in range(len(x)) if k not in spec.group or x[k]]
        sizes = [spec.sizes[k] for k in read]
        error = sum_error([clip.slope.get(k, Fraction(0)) for k in read], sizes, clip.offset)
        assert error == clip.error + sum(v * x[k] for k, v in clip.more.items())
        limit, side = other.limit, other.limit.side
        w = side * affine(clip, x) - error
        least = min((1 - U) * w, (1 + U) * w) - TINY
        assert min(at(form, x) for form in gaps(clip, limit)) == least - side * at((limit.slope, limit.offset), x)
        w = clip.limit.side * affine(clip, x) + error
        most = max((1 - U) * w, (1 + U) * w) + 2 * TINY
        assert max(at(form, x) for form in move_forms(clip, {}, Fraction(0), Fraction(0))) == most
    # What is lost at a category is of the size of its own numbers.
    for x in one_hot(spec):
        lost = at((clips[1].limit.slope, clips[1].limit.offset), x) - affine(clips[1], x)
        assert 0 <= lost <= Fraction(1, 10**6) * (at((clips[1].limit.slope, clips[1].limit.offset), x) + 1)


def test_how_far_clips_move_safe_answers_is_bounded_as_stated():
    _, spec, clips = made()
    stored, own = ({0: Fraction(1, 8), 1: Fraction(-3)}, Fraction(5, 2)), Fraction(1, 1000)
    for clip, x in product(clips, points(spec)):
        side = clip.limit.side
        if clip.limit.slope:
            w = side * affine(clip, x) + clip.error
            most = max((1 - U) * w, (1 + U) * w) + 2 * TINY
        else:
            most = side * clip.offset
        forms = move_forms(clip, *stored, own)
        assert max(at(form, x) for form in forms) == most - side * at(stored, x) - own


def test_rounding_of_safe_answers_is_bounded_as_stated():
    _, spec, _ = made()
    slope, offset = {0: Fraction(1, 8), 1: Fraction(-3)}, Fraction(-5, 2)
    error = sum_error(list(slope.values()), [spec.sizes[0], spec.sizes[1]], offset)
    reach = abs(offset) + abs(slope[0]) * spec.sizes[0] + abs(slope[1]) * spec.sizes[1]
    assert rounding(spec, slope, offset) == error + U * (reach + error) + 2 * TINY
    assert rounding(spec, {}, offset) == 0


def test_stated_ends_are_those_of_the_formats():
    _, spec, _ = made()
    boxes = Boxes(spec)
    moving, fixed = (limit.region for limit in limits_of(spec)[:4:2])
    for fmt, kind in zip(FORMATS, (np.float32, np.float64), strict=True):
        low, high = (float(side[0]) for side in spec.passed[fmt])
        c, e = kind("5.1"), kind("0.3")
        assert boxes.of(moving, fmt).ends[0] == (low, float(np.nextafter(c, kind(0))))
        assert boxes.beyond(moving, fmt).ends[0] == (float(c), high)
        assert boxes.of(fixed, fmt).ends[1][0] == float(np.nextafter(e, kind(9)))
        assert boxes.of(fixed, fmt).ends[0][1] == float(kind("7.7"))
        assert boxes.beyond(fixed, fmt) == ({}, {})  # two comparisons: what is outside is no range
    single = Specification.from_yaml(
        "inputs: {x: [0, 9]}\noutputs: [p]\nrules:\n"
        + "".join(f"  - {{name: r{i}, when: x {op} 3, then: p <= 1}}\n" for i, op in enumerate((">=", ">", "<=")))
    )
    certificate = certify_rules(single)
    boxes = Boxes(stated(certificate))
    regions = [boxes.spec.rules[i].regions[0] for i in range(3)]
    below, after = math.nextafter(3, 0), math.nextafter(3, 9)
    assert [boxes.beyond(g, BINARY64).ends[0] for g in regions] == [(0, below), (0, 3), (after, 9)]
    assert boxes.meeting([regions[0]], BINARY64, [regions[1]]) == ({0: (3, 3)}, {})
    assert boxes.meeting([regions[1]], BINARY64, [regions[0]]) is None


def test_of_a_category_exactly_one_is_on():
    _, spec, _ = made()
    boxes, tied = Boxes(spec), spec.rules[4].regions[0]
    known = boxes.meeting([tied], BINARY64)
    assert known.members == {0: Members(frozenset({3}), True)}
    assert boxes.meeting([tied], BINARY64, [tied]) == known  # nothing is known outside of two rows
    form = {2: Fraction(7), 3: Fraction(-2), 4: Fraction(5)}
    assert boxes.most(form, known, BINARY64) == -2
    assert boxes.most(form, Known({}, {}), BINARY64) == 7
    assert boxes.most({2: Fraction(-7)}, Known({}, {}), BINARY64) == 0  # at a member without a coefficient
    assert boxes.most({2: Fraction(-7), 3: Fraction(-2), 4: Fraction(-5)}, Known({}, {}), BINARY64) == -2


def test_what_is_known_in_a_leaf_holds_at_its_points():
    _, spec, _ = made()
    boxes = Boxes(spec)
    oblique = spec.rules[1].regions[0]  # x + 3 z >= 4.3, one row
    (row,) = spec.regions[oblique]
    enlarged = spec.rows[row].compared[BINARY64][0]
    assert enlarged > spec.rows[row].bound
    inside, outside = Facts(boxes, Leaf((oblique,), ())), Facts(boxes, Leaf((), (oblique,)))
    form = {0: Fraction(-1), 1: Fraction(-3)}
    assert inside.most(form, Fraction(0), None, None, [[row, "1"]]) == enlarged
    assert inside.most(form, Fraction(0), oblique, None, [[row, "1"]]) == spec.rows[row].bound
    assert outside.complement(oblique) == ({0: Fraction(1), 1: Fraction(3)}, Fraction(43, 10))
    turned = {0: Fraction(1), 1: Fraction(3)}
    assert outside.most(turned, Fraction(0), None, None, [[len(spec.rows) + oblique, "1"]]) == Fraction(43, 10)
    with pytest.raises(smle_check.Rejected, match="expected an index below"):
        inside.most(form, Fraction(0), None, None, [[len(spec.rows) + oblique, "1"]])
    with pytest.raises(smle_check.Rejected, match="does not bind here"):
        outside.most(form, Fraction(0), None, None, [[row, "1"]])


def limited(rules: str, **constants: list[float]) -> list:
    """Check a clip list whose constants are given; return the margins."""
    spec = Specification.from_yaml(f"inputs: {{x: [0, 10], z: [0, 10]}}\noutputs: [p]\nrules:\n{rules}")
    certificate = certify_rules(spec)
    read = stated(certificate)
    tensors = certificate.tensors | tensors_of(
        {f"clips.{stage}": np.array(values, dtype=np.float32) for stage, values in constants.items()}
    )
    settled, _ = check_clips(read, read_clips(read, tensors, limits_of(read)), [])
    return [margin for _, margin in settled]


def test_borders_of_strict_limits_are_not_allowed_and_others_are():
    two = "  - {name: a, then: p >= 1}\n  - {name: b, then: p <= 2}\n"
    strict = two.replace(">=", ">").replace("<=", "<")
    assert limited(two, constant_lower=[1], constant_upper=[2]) == [0, 0]
    assert limited(two, constant_lower=[1], constant_upper=[1]) == [0, 1]
    for lower, upper in (([1], [1.5]), ([1.5], [2]), ([1.5], [1])):
        with pytest.raises(Unproved):
            limited(strict, constant_lower=lower, constant_upper=upper)
    assert limited(strict, constant_lower=[1.5], constant_upper=[1.75]) == [Fraction(1, 2), Fraction(1, 4)]


def test_later_clips_of_the_other_side_are_asked_and_earlier_ones_are_not():
    rules = "  - {name: a, when: x <= 5, then: p >= 1}\n  - {name: b, when: x >= 4, then: p <= 2}\n"
    with pytest.raises(Unproved, match="against rule 'b'"):
        limited(rules, constant_lower=[1], constant_upper=[0.5])
    assert limited(rules, constant_lower=[7], constant_upper=[2]) == [1, 0]  # the upper one comes last
    apart = rules.replace("x >= 4", "x > 5")
    assert limited(apart, constant_lower=[1], constant_upper=[0.5]) == [0, Fraction(3, 2)]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("clips.constant_lower", 2.0**101, "beyond 2^100"),
        ("clips.constant_lower", 1e-40, "too close to 0"),
        ("clips.affine_lower", 2.0**101, "beyond 2^100"),
        ("clips.affine_lower", 1e-40, "too close to 0"),
        ("clips.affine_lower_slope", 1e-40, "too close to 0"),
        ("clips.affine_lower_slope", 2.0**100 / 900, "beyond 2^100"),  # x may be 1000
        ("clips.default", 2.0**101, "clips.default"),
        ("safe.slope", 1e-40, "too close to 0"),
        ("safe.offset", 1e-40, "too close to 0"),
        ("safe.offset", 2.0**101, "beyond 2^100"),
        ("safe.slope", 2.0**100 / 900, "beyond 2^100"),
    ],
)
def test_stored_numbers_are_normal_and_not_too_large(name, value, reason):
    certificate, spec, _ = made()
    stored = tensors_of({name: np.full(certificate.tensors[name].shape, value, dtype=np.float32)})
    leaves = certificate.tensors["safe.offset"].shape[0]
    read, more = (read_clips, limits_of(spec)) if name.startswith("clips.") else (read_safe, leaves)
    with pytest.raises(smle_check.Rejected, match=re.escape(reason)):
        read(spec, certificate.tensors | stored, more)


def refusal(certificate: Certificate, *answers: tuple[float, float], region: int | None = None) -> str:
    """What the checker says to constant safe answers, as whoever writes them by hand would seal them; "" if nothing.

    With a region, there are two of them: inside and outside.
    """
    offset, slope = np.float32(answers), np.zeros((len(answers), 2, 1), dtype=np.float32)
    tensors = certificate.tensors | tensors_of({"safe.offset": offset, "safe.slope": slope})
    document = json.loads(certificate.text)
    del document["digest"]
    if region is not None:
        document["program"]["tree"] = [region, None, None]
    document["binds"]["head"] = smle_check.weights_digest(tensors)
    text = smle_check.canonical({**document, "digest": smle_check.sha256(smle_check.canonical(document))}) + b"\n"
    try:
        smle_check.check_certificate(text, tensors, certificate.block, certificate.files)
    except smle_check.Rejected as error:
        return str(error)
    return ""


UNPROVED = "not proved for the safe answer"


def coupled(rules: str, outputs: str = "outputs: [p, q]"):
    return certify_rules(Specification.from_yaml(f"inputs: {{x: [0, 10]}}\n{outputs}\nrules:\n{rules}"))


@pytest.mark.parametrize(
    ("rules", "good", "bad"),
    [
        ("  - {name: a, then: p + q <= 3}\n", (1, 2), (1, 2.0000002)),
        ("  - {name: a, then: p + q < 3}\n", (1, 1.9999999), (1, 2)),
        ("  - {name: a, then: p >= 1}\n  - {name: b, then: p + q <= 3}\n", (-7, 2), (-7, 2.0000002)),
        ("  - {name: a, then: p <= 1}\n  - {name: b, then: p - q >= 3}\n", (7, -2), (7, -1.9999999)),
        ("  - {name: a, then: p <= 1}\n  - {name: b, then: p + q <= 3}\n", (-7, 10), (-7, 10.000001)),
        ("  - {name: a, then: p >= 1}\n  - {name: b, then: p - q >= 3}\n", (7, 4), (7, 4.0000005)),
        ("  - {name: a, when: x > 5, then: p >= 1}\n  - {name: b, when: x <= 4, then: p + q <= 3}\n", (0, 2), (0, 3.1)),
    ],
)
def test_safe_answers_may_lie_on_the_border_behind_the_clips_and_not_beyond(rules, good, bad):
    certificate = coupled(rules)
    assert certificate.tensors["safe.offset"].shape == (1, 2)
    assert refusal(certificate, good) == ""
    assert UNPROVED in refusal(certificate, bad)


def test_labels_of_a_safe_answer_are_off_below_zero_only():
    certificate = coupled("  - {name: a, then: not (c and d)}\n", "labels: [c, d]")
    assert refusal(certificate, (3, -(2.0**-126))) == ""
    for both in ((0, 0), (3, 0)):
        assert "may have both" in refusal(certificate, both)


def test_clips_that_are_off_in_a_leaf_move_nothing_there_and_others_do():
    rules = "  - {name: a, when: x > 5, then: p >= 1}\n  - {name: b, then: p + q <= 3}\n"
    certificate = coupled(rules)
    region = certificate.document["specification"]["rules"][0]["regions"][0]
    assert refusal(certificate, (1, 2), (-7, 10), region=region) == ""
    for inside, outside in (((-7, 10), (-7, 10)), ((1, 2), (-7, 10.000001))):
        assert UNPROVED in refusal(certificate, inside, outside, region=region)


@pytest.mark.parametrize("then", ["p + q <= 3", "not (c and d)"])
def test_safe_answers_obey_in_every_region_of_a_rule(then):
    labels = "c" in then
    rules = f"  - {{name: a, when: x <= 1 or x >= 5, then: '{then}'}}\n"
    certificate = coupled(rules, "labels: [c, d]" if labels else "outputs: [p, q]")
    regions = certificate.document["specification"]["rules"][0]["regions"]
    assert len(regions) == 2
    for region in regions:  # where its bit is off the other region may still hold
        assert refusal(certificate, (1, -1), (-1, 1), region=region) == ""
        for inside, outside in (((1, -1), (2, 2)), ((2, 2), (1, -1))):
            assert ("may have both" if labels else UNPROVED) in refusal(certificate, inside, outside, region=region)


def test_literals_that_differ_in_anything_are_checked_apart():
    thens = ("p + q <= 3", "p + q < 3", "p + q <= 4", "p + q <= 3 + x", "p + q <= 3 - x", "p + 2 * q <= 3", "q - p < 3")
    rules = "".join(f"  - {{name: r{i}, then: {then} or p - q >= 9}}\n" for i, then in enumerate(thens))
    spec = stated(coupled(rules))
    checked = checked_of(spec)
    assert len(checked.literals) == len(thens) + 1  # p - q >= 9 is in all of them
    for clause in checked.clauses:
        own = spec.rules[clause.rule].clauses[clause.clause]
        assert [checked.literals[k] for k in clause.literals] == own
    zero = StatedLiteral({0: Fraction(0), 1: Fraction(2)}, {0: Fraction(0)}, Fraction(1), False)
    assert without_zeros(zero) == StatedLiteral({1: Fraction(2)}, {}, Fraction(1), False)


def test_affine_clips_move_safe_answers_by_their_rounded_values():
    # p is raised to 0.5 x, rounded: at x = 10 to 5 and what rounding may add. q has to leave room for that.
    certificate = coupled("  - {name: a, then: p >= 0.5 * x}\n  - {name: b, then: p + q <= 30}\n")
    spec = stated(certificate)
    (clip,) = read_clips(spec, certificate.tensors, limits_of(spec))
    w = clip.slope[0] * 10 + clip.offset + clip.error
    most = 30 - ((1 + U) * w + 2 * TINY)
    good = np.float32(float(most))
    good = good if Fraction(float(good)) <= most else np.nextafter(good, np.float32(0))
    assert refusal(certificate, (-3, good)) == ""
    for bad in (np.nextafter(good, np.float32(99)), np.float32(25)):
        assert UNPROVED in refusal(certificate, (-3, bad))


def test_trees_are_not_too_deep():
    tree, regions = None, list(range(MAX_DEPTH + 1))
    for region in regions[1:]:
        tree = [region, None, tree]
    assert len(read_tree(tree, regions)) == MAX_DEPTH + 1
    with pytest.raises(smle_check.Rejected, match="too deep"):
        read_tree([0, None, tree], regions)


def test_formats_are_those_of_the_page():
    assert (BINARY32.unit_roundoff, BINARY32.smallest_normal) == (U, TINY)
    assert (BINARY64.unit_roundoff, BINARY64.smallest_normal) == (Fraction(1, 2**53), Fraction(1, 2**1022))


@pytest.mark.parametrize(("end", "factor"), [("0.3", 10), ("0.65", 100)])
def test_pairs_hold_in_both_formats(end, factor):
    # The nearest float32 number to 0.3 is above it, the nearest float64 number below; for 0.65 it is the other way.
    value = int(Fraction(end) * factor)
    rules = f"  - {{name: a, when: x <= {end}, then: p >= {factor} * x}}\n  - {{name: b, then: p <= {2 * value}}}\n"
    limited(rules, constant_upper=[float(np.nextafter(np.float32(value), np.float32(99)))])
    with pytest.raises(Unproved, match="against rule 'b'"):
        limited(rules, constant_upper=[value])


@pytest.mark.parametrize(("end", "factor"), [("0.3", 10), ("0.65", 100)])
def test_safe_answers_hold_in_both_formats(end, factor):
    value = int(Fraction(end) * factor)
    certificate = coupled(f"  - {{name: a, when: x <= {end}, then: p + q >= {factor} * x}}\n")
    assert refusal(certificate, (0, np.nextafter(np.float32(value), np.float32(99)))) == ""
    assert UNPROVED in refusal(certificate, (0, value))


def test_what_a_clip_leaves_anywhere_is_the_least_of_both_roundings_and_formats():
    """Pairs are first compared by their extremes over whole boxes: the least that a clip leaves, the most asked."""
    _, spec, clips = made()
    pairs = Pairs(Boxes(spec), clips)
    for j, clip in enumerate(clips):
        boxes = [
            [
                {k: known.ends.get(k, own)[i] for k, own in enumerate(zip(*spec.passed[fmt], strict=True))}
                for i in (0, 1)
            ]
            for known, fmt in pairs.nonempty(clip.limit.region)
        ]
        assert len(boxes) == 2
        for side in (1, -1):
            forms = gaps(clip, clip.limit._replace(side=side, slope={}, offset=Fraction(0)))
            ends = [
                c + sum(min(v * low[k], v * high[k]) for k, v in s.items()) for s, c in forms for low, high in boxes
            ]
            assert pairs.least(j, side) == min(ends)
            assert len(set(ends)) > 1 or not clip.limit.slope
        asked = {k: clip.limit.side * v for k, v in clip.limit.slope.items()}
        most = [sum(max(v * low[k], v * high[k]) for k, v in asked.items()) for low, high in boxes]
        assert pairs.demand(j) == clip.limit.side * clip.limit.offset + max(most)


OUTSIDE = """
inputs: {x: [0, 10], z: [0, 10], k: {categories: [r, g, b]}}
outputs: [p, q]
rules:
  - {name: not red, when: k != r, then: p + q <= 1}
  - {name: two planes, when: x + z <= 3 and x - z <= 1, then: p - q <= 1}
  - {name: two ends, when: 2 <= x <= 3, then: p - q >= -7}
"""


def test_what_is_known_outside_of_regions_and_of_one_hot_columns():
    """A column that is 0 leaves the others; outside of a region of two rows none of them need be broken."""
    spec = stated(certify_rules(Specification.from_yaml(OUTSIDE)))
    boxes = Boxes(spec)
    red, planes, ends = (spec.rules[i].regions[0] for i in range(3))
    for fmt in FORMATS:
        assert boxes.meeting([red], fmt) == ({}, {0: Members(frozenset({2}), False)})
        assert boxes.beyond(red, fmt) == ({}, {0: Members(frozenset({2}), True)})
        assert boxes.meeting([red], fmt, [red]) is None
        assert boxes.beyond(planes, fmt) == boxes.beyond(ends, fmt) == ({}, {})
    assert all(Facts(boxes, Leaf((), (g,))).complement(g) is None for g in (red, planes, ends))


def test_what_a_safe_answer_makes_of_a_literal():
    """g . w + s . x - h, with what rounding may add: R of every output, whichever clips there are."""
    _, spec, _ = made()
    w = [({0: Fraction(1, 2), 1: Fraction(3)}, Fraction(7)), ({0: Fraction(-5)}, Fraction(1, 4))]
    safe = Safe(Facts(Boxes(spec)), [], w, {})
    margins = [rounding(spec, *own) for own in w]
    assert [(safe.way(i, 1), safe.way(i, -1)) for i in range(2)] == [(r, r) for r in margins]
    assert all(r > 0 for r in margins)
    g, s, h = {0: Fraction(2), 1: Fraction(-3)}, {0: Fraction(11), 2: Fraction(1)}, Fraction(13)
    form, constant = safe.form(StatedLiteral(g, s, h, False), None)
    assert form == {0: 2 * Fraction(1, 2) + 3 * 5 + 11, 1: Fraction(6), 2: Fraction(1)}
    assert constant == 2 * 7 - Fraction(3, 4) - h + 2 * margins[0] + 3 * margins[1]


def test_a_region_that_holds_numbers_of_one_format_only_counts():
    """No float32 number lies between 0.5 and 0.50000001: a clip that is on there alone may still undo a limit."""
    text = """
inputs: {x: [0, 1]}
outputs: [y]
rules:
  - {name: least, then: y >= 1}
  - {name: sliver, when: 0.5 < x and x < 0.50000001, then: y <= 2}
"""
    certificate = certify_rules(Specification.from_yaml(text))
    spec = stated(certificate)
    clips = read_clips(spec, certificate.tensors, limits_of(spec))
    pairs = Pairs(Boxes(spec), clips)
    assert [len(pairs.nonempty(clip.limit.region)) for clip in clips] == [2, 1]
    assert pairs.margin(0, 1, []) == 1
    undone = Pairs(Boxes(spec), [clips[0], clips[1]._replace(offset=Fraction(0))])
    with pytest.raises(smle_check.Rejected, match="not proved"):
        undone.margin(0, 1, [])
