"""Checks guard and coverage: every input gets a certified head (section 5)."""

import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from smle_check.floats import BINARY32, BINARY64, FORMATS, Binary, coefficient, guard_slack, threshold_above
from smle_check.kernel import multipliers_of, refuted
from smle_check.reading import Tensor, fields, index, items, number, require
from smle_check.stated import StatedSpecification

MAX_STEPS = 50_000_000  # of the search over regions
GUARD_NAMES = frozenset(
    {f"{part}_{fmt.name}" for part in ("domain.lower", "domain.upper", "gate.constants") for fmt in FORMATS}
    | {"gate.coefficients", "gate.thresholds"}
)
"""The names of `guard_tensors`."""


def packed(numbers: list[Fraction], fmt: Binary, *shape: int) -> Tensor:
    """Pack numbers of a format into a tensor."""
    dtype, code = ("F32", "f") if fmt == BINARY32 else ("F64", "d")
    return Tensor(dtype, shape, struct.pack(f"<{len(numbers)}{code}", *map(float, numbers)))


def packed_rows(forms: Sequence[Mapping[int, Fraction | int]], columns: int) -> Tensor:
    """Pack linear forms over float64 numbers into a tensor, row by row, with 0 for missing coefficients."""
    data = bytearray(8 * len(forms) * columns)
    for i, form in enumerate(forms):
        for k, value in form.items():
            struct.pack_into("<d", data, 8 * (i * columns + k), float(value))
    return Tensor("F64", (len(forms), columns), bytes(data))


def guard_tensors(spec: StatedSpecification, gated: list[int]) -> dict[str, Tensor]:
    """Return the constants of domain and guard that section 5 prescribes."""
    d, result = len(spec.inputs), {}
    used = [spec.rows[r] for r in sorted({r for g in gated for r in spec.regions[g]})]
    comparisons = [row for row in used if len(row.terms) == 1]
    oblique = [row for row in used if len(row.terms) > 1]
    for fmt in FORMATS:
        for side, ends in zip(("lower", "upper"), spec.passed[fmt], strict=True):
            result[f"domain.{side}_{fmt.name}"] = packed(ends, fmt, d)
        constants = [row.compared[fmt][0] for row in comparisons]
        result[f"gate.constants_{fmt.name}"] = packed(constants, fmt, len(comparisons))
    thresholds = [threshold_above(row.bound + guard_slack(row.terms, spec.sizes)) for row in oblique]
    result["gate.coefficients"] = packed_rows([{k: coefficient(v) for k, v in row.terms.items()} for row in oblique], d)
    result["gate.thresholds"] = packed(thresholds, BINARY64, len(oblique))
    return result


def check_guard(spec: StatedSpecification, tensors: dict[str, Tensor], gated: list[int]) -> None:
    """Check that the stored constants of domain and guard are, bit by bit, what section 5 prescribes."""
    oblique = sum(len(spec.rows[r].terms) > 1 for r in {r for g in gated for r in spec.regions[g]})
    shape = tensors["gate.coefficients"].shape if "gate.coefficients" in tensors else ()
    require(
        shape == (oblique, len(spec.inputs)), "gate.coefficients is not what the rules prescribe"
    )  # bounds the work
    for name, prescribed in guard_tensors(spec, gated).items():
        require(tensors.get(name) == prescribed, f"{name} is not what the rules prescribe")


def check_coverage(spec: StatedSpecification, data: Any, gated: list[int], cells: list[tuple[int, ...]]) -> None:
    """Walk all signatures of the gated regions; each must be a cell or be refuted."""
    conflicts, implications = fields(data, "conflicts implications", "coverage")
    nogoods: list[set[int]] = []
    for entry in items(conflicts, "conflicts"):
        regions, mu = fields(entry, "regions multipliers", "conflict")
        together = [index(r, len(spec.regions), "conflict") for r in items(regions, "conflict")]
        binding = {r for g in together for r in spec.regions[g]} | set(range(spec.stated, len(spec.rows)))
        proof = multipliers_of(mu, binding, "conflict", spec.work)
        require(refuted(spec, proof, None, Fraction(0)), f"conflict {together}: the multipliers prove nothing")
        nogoods.append(set(together))
    implied: list[tuple[set[int], set[int]]] = []
    for entry in items(implications, "implications"):
        regions, consequence, proofs = fields(entry, "regions implied multipliers", "implication")
        together = [index(r, len(spec.regions), "implication") for r in items(regions, "implication")]
        target = index(consequence, len(spec.regions), "implication")
        known = {r for g in together for r in spec.regions[g]}
        binding = known | set(range(spec.stated, len(spec.rows)))
        require(len(items(proofs, "implication")) == len(spec.regions[target]), "implication: one proof per row")
        for r, entry_proof in zip(spec.regions[target], proofs, strict=True):
            weight_data, mu = fields(entry_proof, "complement rows", "implication")
            weight = number(weight_data, "implication")
            require(weight >= 0, "implication: negative multiplier")
            proof = multipliers_of(mu, binding, "implication", spec.work)
            # The guard computes each row once, so a row already inside has the same bit.
            require(
                r in known or refuted(spec, proof, spec.rows[r], weight),
                f"implication {together} => {target}: the multipliers prove nothing",
            )
        implied.append((set(together), {target}))
    # What to test once a region is decided: that all these are inside and this one outside is impossible.
    tests: dict[int, list[tuple[int, int]]] = {g: [] for g in gated}
    impossible: list[tuple[set[int], set[int]]] = [(inner, set()) for inner in nogoods] + implied
    for inner, outer in impossible:
        mask, bit = sum(1 << g for g in inner), sum(1 << g for g in outer)
        for g in inner | outer:
            if g in tests:
                tests[g].append((mask, bit))
    known_cells, steps = set(cells), 0
    stack: list[tuple[int, int, int]] = [(0, 0, 0)]  # number of decided regions, those inside, those outside
    while stack:
        depth, inside, outside = stack.pop()
        relevant = tests[gated[depth - 1]] if depth else []
        steps += 1 + len(relevant)
        require(steps <= MAX_STEPS, "coverage: too many signatures")
        if any(inside & mask == mask and outside & bit == bit for mask, bit in relevant):
            continue
        if depth == len(gated):
            cell = tuple(sorted(g for g in gated if inside >> g & 1))
            require(cell in known_cells, f"coverage: no head for the regions {list(cell)}")
            continue
        stack.append((depth + 1, inside, outside | 1 << gated[depth]))
        stack.append((depth + 1, inside | 1 << gated[depth], outside))
