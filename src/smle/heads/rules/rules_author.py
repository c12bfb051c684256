"""Builds the head of rules and its certificate from rules.

Bounds are read off the rules and rounded to the allowed side, so that the exact checker accepts the deployed numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import Draft, certified, compiled
from smle.certificates.multipliers import best_multipliers, largest
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.rules.distances import stated_units
from smle.heads.rules.safe_answers import NoSafeAnswer, SafeTree
from smle.nearest.oracle import common_units
from smle.regions.cells import Cells, regions_of
from smle.regions.consistency import room_at
from smle.regions.guard_rows import domain_box, guard_rows
from smle.regions.simplex import ExactOptimal
from smle.rules import Specification, label_columns, number_text
from smle.rules.shown import point_text, quoted
from smle_check.floats import BINARY32, BINARY64, FORMATS, TINY, U, above, nearest, round_down, round_up
from smle_check.guard import guard_tensors
from smle_check.heads.candidates import Checked, check_tensors, checked_of, gated_regions
from smle_check.heads.clips import STAGES, Clip, Limit, Pairs, gaps, limits_of
from smle_check.heads.known import Boxes, Facts, Leaf

__all__ = ["certify_rules"]

ZERO = Fraction(0)


def certify_rules(
    spec: Specification,
    *,
    default: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    files: dict[str, bytes] | None = None,
) -> Certificate:
    """Return the certified head of rules, which goes behind any model: clips, checked candidates, safe answers.

    Args:
        spec: The rules, of any kind and number.
        default: A typical answer (m,), which replaces NaN and infinite answers before the clips. By default 0, and
            labels off. Safe answers follow from the rules alone, so that the same rules need one proof.
        scale: The spread of each output (m,), such as the standard deviation of the targets; by default read off the
            rules.
        files: Files that the certificate binds, by role: `model`, `rules`, `onnx` (the model in front of the head).

    Raises:
        RuleError: If numbers of the rules are beyond float32.
        ContradictionError: If rules contradict each other; names an input where they do.
        NotCertifiedError: If they leave no float32 number somewhere, or no safe answer is proved; names the input.
    """
    spec = spec.merged
    cells, block = regions_of(spec), bytearray()
    document_spec = compiled(spec, cells, block)
    labels = label_columns(spec)
    typical = np.where(labels, -1.0, 0.0) if default is None else np.asarray(default, dtype=np.float64)
    own: dict[str, npt.NDArray[Any]] = {"clips.default": typical.astype(np.float32)}
    if scale is not None:
        units = np.asarray(scale, dtype=np.float64)
        own["check.scale"] = common_units(np.where(units > 0, units, 1.0), labels)

    def find() -> Draft:
        return _draft(spec, cells, document_spec, bytes(block))

    return certified("rules", document_spec, bytes(block), find, own=own, files=files)


def _draft(spec: Specification, cells: Cells, document_spec: dict[str, Any], block: bytes) -> Draft:
    """Return what the head of rules states, and its tensors, from the rules alone."""
    for fmt in FORMATS:
        domain_box(spec, fmt)  # raises if a range, or a condition below, is beyond float32
    guard_rows(cells, spec)
    stated = smle_check.StatedSpecification(document_spec, block)
    boxes = Boxes(stated)
    clips = [_clip(boxes, limit) for limit in limits_of(stated)]
    limit_proofs = [{"limit": k, "clip": j, "mu": mu} for k, j, mu in _proofs(spec, Pairs(boxes, clips)) if mu]
    checked, gated = checked_of(stated), gated_regions(stated)
    typical = np.where(label_columns(spec), -1.0, 0.0)
    tensors = guard_tensors(stated, gated) | tensors_of(_arrays(clips, len(spec.columns), typical))
    tree, proof = None, {"pairs": limit_proofs, "safe": [], "moved": []}
    if not checked.is_empty:
        try:
            tree, safe_proofs, more = _checked(spec, boxes, clips, checked, typical)
        except OverflowError as error:
            raise RuleError(
                f"Rules that tie outputs together need numbers beyond float64 ({error}). State outputs and inputs in "
                "other units."
            ) from error
        tensors, proof = tensors | more, proof | safe_proofs
    document: dict[str, Any] = {
        "program": {"head": "rules", "tree": tree},
        "specification": document_spec,
        "gate": {"regions": gated},
        "proof": proof,
    }
    return Draft(document, block, tensors)


def _checked(
    spec: Specification, boxes: Boxes, clips: list[Clip], checked: Checked, typical: npt.NDArray[np.float64]
) -> tuple[Any, dict[str, Any], dict[str, smle_check.Tensor]]:
    """Return the tree, the proofs and the tensors of the check and the safe answers."""
    stated, labels, limits = boxes.spec, label_columns(spec), [clip.limit for clip in clips]
    units = stated_units(stated, limits, checked)
    units = common_units(np.where(units > 0, units, 1.0), labels)
    search = SafeTree(boxes, clips, checked, typical, units)
    try:
        tree, slope, offset = search.answers()
    except NoSafeAnswer as failure:
        raise refusal(spec, boxes, failure) from None
    stored: dict[str, npt.NDArray[Any]] = {"check.scale": units, "safe.slope": slope, "safe.offset": offset}
    tensors = check_tensors(stated, checked) | tensors_of(stored)
    return tree, {"safe": search.proofs, "moved": search.moved}, tensors


# --- Numbers ---------------------------------------------------------------------------------------------------


def _clip(boxes: Boxes, limit: Limit) -> Clip:
    """Return the deployed numbers of a limit, no farther on its allowed side than rounding needs."""
    try:
        if not limit.slope:
            return Clip(limit, {}, _constant(limit), ZERO)
        return _table(boxes, limit) if boxes.spec.is_table(limit.slope, ZERO) else _affine(boxes, limit)
    except OverflowError as error:
        name = boxes.spec.rules[limit.rule].name
        raise RuleError(
            f"Rule '{name}' needs numbers beyond float32 ({error}). State the output in another unit."
        ) from error


def _table(boxes: Boxes, limit: Limit) -> Clip:
    """Return a number for each member of a group: its own limit, on the allowed side."""
    spec = boxes.spec
    group = spec.groups[spec.group[next(iter(limit.slope))]]
    values = {k: limit._replace(offset=limit.offset + limit.slope.get(k, ZERO)) for k in group}
    slope = {k: value for k, own in values.items() if (value := _constant(own))}
    return Clip(limit, slope, ZERO, ZERO)


def _affine(boxes: Boxes, limit: Limit) -> Clip:
    spec = boxes.spec
    low, high = (list(side) for side in spec.passed[BINARY64])
    for k in range(len(low)):
        ends = [boxes.of(limit.region, fmt).ends.get(k, (low[k], high[k])) for fmt in FORMATS]
        low[k], high[k] = min(a for a, _ in ends), max(b for _, b in ends)
    for fmt in FORMATS:
        for g, members in boxes.of(limit.region, fmt).members.items():
            left = [k for k in spec.groups[g] if k in members]
            low = [Fraction(int(len(left) == 1)) if k in left else v for k, v in enumerate(low)]
            high = [ZERO if boxes.group.get(k) == g and k not in left else v for k, v in enumerate(high)]
    slope, more = dict[int, Fraction](), dict[int, Fraction]()
    for _ in range(2):  # numbers of categories cover their own errors, which depend on them a little
        aims = {k: value + 2 * limit.side * more.get(k, ZERO) for k, value in limit.slope.items()}
        slope = {k: _slope(limit.side, value, low[k], high[k]) for k, value in aims.items()}
        slope = {k: value for k, value in slope.items() if value}
        more = spec.errors(slope, ZERO, "limit")[1]
    offset = limit.offset
    for _ in range(3):  # the error depends on the offset a little
        grown = abs(nearest(offset, BINARY32)) * 2 + TINY
        error = spec.errors(slope, grown, "limit")
        needed = max(_needed(limit, slope, error, factor, low, high) for factor in (1 - U, 1 + U))
        offset = limit.side * _inside(needed)
    return Clip(limit, slope, offset, *spec.errors(slope, offset, "limit"))


def _needed(
    limit: Limit,
    slope: dict[int, Fraction],
    error: tuple[Fraction, dict[int, Fraction]],
    factor: Fraction,
    low: list[Fraction],
    high: list[Fraction],
) -> Fraction:
    """Return the least side * offset for which the clip obeys its own limit on a box, for one rounding direction."""
    extra, (constant, more) = ZERO, error
    for k in set(slope) | set(limit.slope):
        missing = limit.side * (limit.slope.get(k, ZERO) / factor - slope.get(k, ZERO)) + more.get(k, ZERO)
        extra += max(missing * low[k], missing * high[k])
    return constant + (TINY + limit.side * limit.offset) / factor + extra


def _slope(side: int, value: Fraction, low: Fraction, high: Fraction) -> Fraction:
    """Return a float32 slope that errs to the allowed side, if the input does not change its sign."""
    if low < 0 < high:
        result = nearest(value, BINARY32)
    elif (side > 0) == (low >= 0):  # the product must not be less
        result = round_up(value / (1 - U if value > 0 else 1 + U), BINARY32)
    else:
        result = round_down(value / (1 + U if value > 0 else 1 - U), BINARY32)
    return result if abs(result) >= TINY else ZERO


def _constant(limit: Limit) -> Fraction:
    value = limit.side * limit.offset  # as a lower limit
    return limit.side * _inside(value, strict=limit.strict)


def _inside(value: Fraction, *, strict: bool = False) -> Fraction:
    """Return the smallest float32 number, 0 or normal, that is at least the value (above it if strict)."""
    if abs(value) < TINY:
        return TINY if value > 0 or (strict and value == 0) else ZERO
    return above(value, BINARY32) if strict else round_up(value, BINARY32)


def _arrays(clips: list[Clip], d: int, default: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {"clips.default": default.astype(np.float32)}
    for stage in STAGES:
        own = [clip for clip in clips if clip.limit.stage == stage]
        arrays[f"clips.{stage}"] = np.array([float(clip.offset) for clip in own], dtype=np.float32)
        if stage.startswith("affine"):
            slopes = np.zeros((len(own), d), dtype=np.float32)
            for i, clip in enumerate(own):
                for k, value in clip.slope.items():
                    slopes[i, k] = float(value)
            arrays[f"clips.{stage}_slope"] = slopes
    return arrays


# --- Proofs ----------------------------------------------------------------------------------------------------


def _proofs(spec: Specification, pairs: Pairs) -> Iterator[tuple[int, int, list[list[Any]]]]:
    """Yield (limit, clip, multipliers) for every pair that the checker will ask for."""
    for k in range(len(pairs.clips)):
        for j in pairs.against(k)[1]:
            yield k, j, _multipliers(spec, pairs, k, j)


def _multipliers(spec: Specification, pairs: Pairs, k: int, j: int) -> list[list[Any]]:
    """Return multipliers with which the checker accepts a pair; none if a box is enough."""
    if _accepted(pairs, k, j, []):
        return []
    limit, clip = pairs.clips[k].limit, pairs.clips[j]
    worst: ExactOptimal | None = None
    for slope, constant in gaps(clip, limit):
        form = {i: -v for i, v in slope.items()}
        for mu, optimum in best_multipliers(pairs.facts, form, -constant, stated=limit.region, seen=clip.limit.region):
            if _accepted(pairs, k, j, mu):
                return mu
            if optimum is not None and (worst is None or optimum.value > worst.value):
                worst = optimum
    raise _refusal(spec, pairs.boxes.spec, clip, limit, None if worst is None else worst.x)


def _accepted(pairs: Pairs, k: int, j: int, mu: list[list[Any]]) -> bool:
    try:
        pairs.margin(k, j, mu)
    except smle_check.Rejected:
        return False
    return True


def _refusal(
    spec: Specification,
    stated: smle_check.StatedSpecification,
    clip: Clip,
    limit: Limit,
    x: tuple[Fraction, ...] | None,
) -> Exception:
    """Return an error that names an input at which two limits leave nothing, and what to change."""
    rules = [spec.rules[item.rule] for item in (limit, clip.limit)]
    names = [rule.name if x is None else rule.name_at(x) for rule in rules]
    output = spec.targets[limit.output]
    if x is None:
        return NotCertifiedError(f"No proof was found for '{output}' where '{names[0]}' and '{names[1]}' apply.")
    first, second = (item.offset + _dot(item.slope, x) for item in (limit, clip.limit))
    place = f"at {point_text(spec, x, (limit.rule, clip.limit.rule))}"
    room = limit.side * (second - first)
    if clip.limit is limit:
        return NotCertifiedError(
            f"Rule '{names[0]}' limits '{output}' {place} more tightly than float32 numbers there can express. State a "
            "range that does not reach so close to 0, or another unit."
        )
    if room < 0 and not all(_applies(stated, item.region, x) for item in (limit, clip.limit)):
        return _border(place, quoted(names))
    alone = names[0] == names[1]
    if room < 0:
        who = (
            f"Rule '{names[0]}' contradicts itself"
            if alone
            else f"Rules '{names[0]}' and '{names[1]}' contradict each other"
        )
        return ContradictionError(
            f"{who} {place}: one {'part ' if alone else ''}asks {output} "
            f"{'>=' if limit.side > 0 else '<='} {number_text(first)}, the other {output} "
            f"{'<=' if limit.side > 0 else '>='} {number_text(second)}. Relax one of them."
        )
    who = f"rule '{names[0]}' leaves" if alone else f"rules '{names[0]}' and '{names[1]}' leave"
    what = "a single point" if room == 0 else f"only {number_text(room, 2)}"
    return NotCertifiedError(
        f"{place[0].upper()}{place[1:]} {who} '{output}' {what}: the band is "
        "narrower than float32 rounding. Widen it, or separate the conditions of the rules."
    )


def _applies(stated: smle_check.StatedSpecification, region: int, x: tuple[Fraction, ...]) -> bool:
    """Return whether an input satisfies the oblique conditions of a region as stated."""
    rows = [stated.rows[r] for r in stated.regions[region] if len(stated.rows[r].terms) > 1]
    totals = [_dot(row.terms, x) for row in rows]
    return all(total < row.bound if row.strict else total <= row.bound for row, total in zip(rows, totals, strict=True))


def _border(place: str, names: str) -> NotCertifiedError:
    return NotCertifiedError(
        f"{place[0].upper()}{place[1:]} conditions of rules {names} meet at a border over several inputs. Float sums "
        "cannot tell its two sides apart, and no answer obeys the rules on both. Leave a gap between the conditions, "
        "or allow a common answer there."
    )


def _dot(form: dict[int, Fraction], x: Iterable[Fraction]) -> Fraction:
    values = tuple(x)
    return sum((value * values[k] for k, value in form.items()), ZERO)


def refusal(spec: Specification, boxes: Boxes, failure: NoSafeAnswer) -> Exception:
    """Return an error that names an input without a safe answer, the reason, and what to change."""
    leaf = failure.leaf
    if failure.rules and failure.x is not None:
        return _contradiction(spec, failure.x, failure.rules)
    points = list(_points(boxes, leaf))
    is_border = not any(all(_applies(boxes.spec, g, x) for g in leaf.on) for x in points)
    if not points:  # nowhere as stated, but the gate may see the conditions hold
        points = list(_points(boxes, leaf, most=1, enlarged=True))
    for x, rules, kind in room_at(spec, points):
        if kind == "contradiction":
            return _contradiction(spec, x, rules)
        names, place = quoted([spec.rules[r].name_at(x) for r in rules]), point_text(spec, x, rules)
        if kind == "point":
            return NotCertifiedError(
                f"At {place} rules {names} leave a single point, which need not be a float32 number. Give one of them "
                "a gap or a tolerance."
            )
    active = [r for r, rule in enumerate(boxes.spec.rules) if any(g not in leaf.off for g in rule.regions)]
    names = quoted([boxes.spec.rules[r].name for r in active])
    where = f"near {point_text(spec, points[0], active)}" if points else "somewhere"
    if points and is_border:
        return _border(where, names)
    return NotCertifiedError(
        f"The rules seem to agree, but no stored answer was proved where {names} apply, {where}. Split a rule, or "
        "widen an alternative."
    )


def _contradiction(spec: Specification, x: tuple[Fraction, ...], rules: tuple[int, ...]) -> ContradictionError:
    names, place = quoted([spec.rules[r].name_at(x) for r in rules]), point_text(spec, x, rules)
    return ContradictionError(
        f"Rules {names} contradict each other at {place}: no answer obeys all of them. Relax one of them."
    )


def _points(boxes: Boxes, leaf: Leaf, most: int = 60, *, enlarged: bool = False) -> Iterator[tuple[Fraction, ...]]:
    """Yield inputs of a leaf, as stated or as the gate sees them: vertices in random directions."""
    known = boxes.meeting(leaf.on, BINARY64, leaf.off)
    if known is None:
        return
    d, facts = len(boxes.spec.inputs), Facts(boxes, leaf)
    rows = [facts.row(r, not enlarged, BINARY64) for r in facts.rows(None, None)]
    rows = [row for row in rows if len(row[0]) > 1]
    generator = np.random.default_rng(0)
    for i in range(most):
        weights = [Fraction(int(v)) for v in generator.integers(-3, 4, d)] if i else [ZERO] * d
        found = largest(boxes, known, BINARY64, {k: w for k, w in enumerate(weights) if w}, rows)
        if isinstance(found, ExactOptimal):
            yield found.x
