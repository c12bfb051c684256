"""One document per trap, in one file as the list that auditors read: each is sealed anew and refused for its reason."""

import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smle_check
from support.builder import Package
from support.sound import sound

Change = Callable[[Package], None]
TRAPS: list = []
SPEC, PROOFS, COVERAGE = "specification", "proof/obligations", "proof/coverage"
RULE, PROOF, IMPLICATION = f"{SPEC}/rules/0", f"{PROOFS}/0", f"{COVERAGE}/implications/0"
LEAF = f"{PROOF}/cases/0"
LAMBDA, LITERAL, EXCLUSIONS = f"{LEAF}/lambda", f"{RULE}/clauses/0/0", f"{RULE}/exclusions"
EXCLUDED, SIDES = f"{PROOF}/exclusions", ("lower", "upper")


def trap(name: str, base: str, reason: str, *changes: Change) -> None:
    """Add a trap: what it is, the sound model that is changed, why the result must be refused."""
    TRAPS.append(pytest.param(base, changes, reason, id=name))


def put(place: str, value: Any) -> Change:
    """Set what is at a place of the document, or make it from what is there."""
    *path, last = (int(part) if part.isdigit() else part for part in place.split("/"))

    def change(p: Package) -> None:
        holder: Any = p.document
        for part in path:
            holder = holder[part]
        holder[last] = value(holder[last]) if callable(value) else value

    return change


def gone(place: str) -> Change:
    """Delete what is at a place of the document."""
    outer, _, last = place.rpartition("/")

    def without(holder: Any) -> Any:
        if isinstance(holder, list):
            return [*holder[: int(last)], *holder[int(last) + 1 :]]
        return {key: value for key, value in holder.items() if key != last}

    return put(outer, without)


def tensor(name: str, value: Any) -> Change:
    """Set a tensor, or make it from what is there; None: delete it."""

    def change(p: Package) -> None:
        old = p.weights.pop(name, None)
        if value is not None:
            p.weights[name] = value(old) if callable(value) else value

    return change


def filled(name: str, value: float) -> Change:
    return tensor(name, lambda array: np.full_like(array, value))


def entry(name: str, place: int, value: float) -> Change:
    """Set one number of a tensor."""
    return tensor(name, lambda array: np.where(np.arange(array.size).reshape(array.shape) == place, value, array))


def block(change: Callable[[bytes], bytes]) -> Change:
    return lambda p: setattr(p, "block", change(p.block))


def last_weights(first: float, second: float) -> Change:
    """Give the last excluded pair other weights."""
    return block(lambda data: data[:-8] + struct.pack("<ff", first, second))


def first_pair(h: int, k: int) -> Change:
    """Exclude another pair of outputs first."""
    return block(lambda data: struct.pack("<II", h, k) + data[8:])


def empty_cells(proof: Callable[[int], list]) -> Change:
    """Claim that the cells of both heads are empty."""
    return put(PROOFS, [{"head": h, "region": None, "empty": proof(h)} for h in (0, 1)])


# --- Multipliers -------------------------------------------------------------------------------------------------

trap("lambda = 0 proves any non-strict clause", "braking", "not all 0", put(LAMBDA, ["0"]))
trap("negative lambda", "clauses", "lambda must be >= 0", put(f"{LAMBDA}/0", "-1"))
trap("hexadecimal lambda that underflows to 0", "strict", "lambda|number", put(LAMBDA, ["0x1p-1999"]))
trap(
    "lambda for a literal that does not exist", "strict", "one lambda per literal", put(LAMBDA, lambda own: [*own, "1"])
)
trap("lambda on the wrong literal", "clauses", "not proved", put(LAMBDA, ["1", "0"]))
trap("lambda on the other literal alone", "clauses", "not proved", put(LAMBDA, ["0", "1"]))
trap("negative mu", "affine", "negative multiplier", put(f"{LEAF}/mu/0/1", "-1"))
trap("mu for a row that does not bind here", "braking", "does not bind here|index below", put(f"{LEAF}/mu", [[4, "1"]]))
trap("mu twice for the same row", "affine", "indices must increase", put(f"{LEAF}/mu", lambda own: own * 2))
trap("mu too small", "affine", "not proved", put(f"{LEAF}/mu/0/1", "0"))
trap("no mu", "affine", "not proved", *(put(f"{PROOFS}/{i}/cases/0/mu", []) for i in range(4)))
trap(
    "no mu for one head", "affine without gate", "not proved", *(put(f"{PROOFS}/{i}/cases/0/mu", []) for i in range(2))
)
trap("NaN as a number", "strict", "is not an exact number", put(LAMBDA, ["nan"]))
trap("infinity as a number", "strict", "is not an exact number", put(LAMBDA, ["inf"]))
trap("hexadecimal number beyond the range", "strict", "out of range|not an exact number", put(LAMBDA, ["0x1p+9999"]))
trap("decimal numbers are not exact text", "strict", "is not an exact number", put(LAMBDA, ["1.0"]))
trap("division by zero in a number", "strict", "is not an exact number", put(LAMBDA, ["1/0"]))
trap("digits of another script", "strict", "is not an exact number", put(LAMBDA, ["\u0661"]))
trap("number as JSON integer", "strict", "number as a short string", put(LAMBDA, [1]))
trap("a number of a million digits", "strict", "short string", put(LAMBDA, ["9" * 1_000_000]))
trap("exclusion weights zero", "labels", "exclusions: multipliers", last_weights(0, 0))
trap("exclusion weight NaN", "labels", "exclusions: multipliers", last_weights(0.5, np.nan))
trap("exclusion weight infinite", "labels", "exclusions: multipliers", last_weights(np.inf, 0.5))
trap("exclusion weight negative", "labels", "exclusions: multipliers", last_weights(-0.5, 1.5))

# --- Obligations -------------------------------------------------------------------------------------------------

trap("a proof is missing", "braking", "no proof", put(PROOFS, lambda own: own[:3] + own[4:]))
trap("all proofs are missing", "braking", "no proof", put(PROOFS, []))
trap(
    "a proof for another head",
    "braking",
    "no proof|for no obligation|not proved",
    put(f"{PROOF}/head", lambda h: h + 1),
)
trap("a proof given twice", "strict", "given twice", put(PROOFS, lambda own: [*own, own[0]]))
trap(
    "a proof for no obligation",
    "strict",
    "for no obligation",
    put(PROOFS, lambda own: [*own, {**own[0], "head": 1, "rule": 0}]),
)
trap(
    "a proof of emptiness for no obligation",
    "strict",
    "for no obligation",
    put(PROOFS, lambda own: [*own, {"head": 77, "region": None, "empty": {"junk": 1}}]),
)
trap("emptiness claimed without proof", "strict", "not proved empty", empty_cells(lambda h: []))
trap("emptiness with multipliers of zero", "strict", "not proved empty", empty_cells(lambda h: [[h, "0"]]))
trap(
    "emptiness proved with a row of another cell",
    "strict",
    "does not bind here|index below",
    empty_cells(lambda h: [[0, "1"], [1, "1"]]),
)
trap("an empty clause", "strict", "empty clause", put(f"{RULE}/clauses", [[]]))
trap("a rule that requires nothing", "strict", "nothing required", put(f"{RULE}/clauses", []))
trap("a rule without regions never binds", "strict", "no region", put(f"{RULE}/regions", []))
trap(
    "exclusions without proof",
    "labels",
    "not .* and .*: no proof",
    put(PROOFS, lambda own: [q for q in own if "exclusions" not in q]),
)
trap(
    "exclusions outside of the block", "labels", "outside of certificate|index below", put(f"{EXCLUSIONS}/count", 10**9)
)
trap("exclusions at an odd offset", "labels", r"outside of certificate\.bin", put(f"{EXCLUSIONS}/offset", 1))
trap("exclusions of outputs that do not exist", "labels", "pairs h < k", first_pair(0, 4))
trap("two outputs in the other order", "labels", "pairs h < k", first_pair(2, 1))
trap("an output excluded with itself", "labels", "pairs h < k", first_pair(1, 1))
trap("a wrong truth", "strict", "not proved", put(f"{LITERAL}/bound", "-10"))
trap("a wrong truth with a number of 500 digits", "strict", "not proved", put(f"{LITERAL}/bound", "-" + "9" * 500))

# --- Fields, versions, shapes ------------------------------------------------------------------------------------

trap("unknown field of the certificate", "strict", "unknown field", lambda p: p.document.update(trust="me"))
trap("unknown field of a literal", "strict", "unknown field", put(LITERAL, lambda own: {**own, "tolerance": "1"}))
trap("unknown field of the program", "strict", "unknown field", put("program", lambda own: {**own, "tolerance": "1"}))
trap("missing field", "strict", "missing field", gone(COVERAGE))
trap("older version", "strict", "version '1' is not supported", put("version", 1))
trap("unknown version", "strict", "version '3' is not supported", put("version", 3))
trap("a version as text", "strict", "is not supported", put("version", "2"))
trap("another format", "strict", "not of the format 'smle-certificate'", put("format", "smle-model"))
trap("an unknown kind of head", "strict", "unknown kind of head 'lattice'", put("program/head", "lattice"))
trap("a head whose kind is a list", "strict", "expected a kind of head", put("program/head", ["box"]))
trap("a program without a head", "strict", "expected a kind of head", gone("program/head"))
trap("a program that is a name", "strict", "expected a kind of head", put("program", "box"))
trap("a box that says it is a clip list", "strict", "program: unknown field", put("program/head", "rules"))
trap(
    "a box with the program of a clip list",
    "strict",
    "proof: unknown field",
    put("program", {"head": "rules", "tree": None}),
)
trap(
    "a box with program and proof of a clip list",
    "strict",
    "does not|not part of the stated program|regions",
    put("program", {"head": "rules", "tree": None}),
    put("proof", {"pairs": [], "safe": [], "moved": []}),
)
trap("a proof of two kinds", "strict", "proof: unknown field", put("proof", lambda own: {**own, "pairs": []}))
trap("a bfloat16 program", "strict", "only float32", put("program/precision", "bfloat16"))
trap("a clip by ReLU", "strict", "unknown kind", put("program/clip", "relu"))
trap("bounds by a network", "strict", "unknown kind", put("program/bounds", "network"))
trap("a softer claim", "strict", "statement", put("statement", {**smle_check.STATEMENT, "claim": "Rules mostly hold."}))
trap("fewer assumptions", "strict", "statement", put("statement", {**smle_check.STATEMENT, "assumptions": []}))
trap("region with rows out of order", "braking", "rows must increase", put(f"{SPEC}/regions/0", lambda own: own[::-1]))
trap("region with an unknown row", "strict", "index below", put(f"{SPEC}/regions/0", [17]))
trap("region with a negative row number", "strict", "index below", put(f"{SPEC}/regions/0", [-1]))
trap("true as an index", "strict", "index below", put(f"{RULE}/regions", [False]))
trap("row without terms", "strict", "row: malformed", put(f"{SPEC}/rows/0/terms", []))
trap("row with a zero coefficient", "strict", "row: malformed", put(f"{SPEC}/rows/0/terms", [[0, "0"]]))
trap("comparison with a scaled input", "strict", "coefficient 1 or -1", put(f"{SPEC}/rows/0/terms", [[0, "2"]]))
trap("strict is not a truth value", "strict", "row: malformed", put(f"{SPEC}/rows/0/strict", 0))
trap("input with an empty range", "strict", "empty range", put(f"{SPEC}/inputs/0/lower", "1"))
trap("input beyond float32", "strict", "beyond the range of float32", put(f"{SPEC}/inputs/0/upper", "1" + "0" * 39))
trap("two inputs of one name", "dose", "duplicate name", put(f"{SPEC}/inputs/1/name", "weight"))
trap("an output with the name of an input", "dose", "duplicate name", put(f"{SPEC}/outputs/0/name", "weight"))
trap(
    "two rules of one name",
    "strict",
    "duplicate rule name",
    put(f"{SPEC}/rules", lambda own: [own[0], {**own[1], "name": own[0]["name"]}]),
)
trap(
    "names that differ only in what is not printed",
    "dose",
    "names that look the same",
    put(f"{SPEC}/inputs/0/name", "a\u202e"),
    put(f"{SPEC}/inputs/1/name", "a\u2066"),
)
trap("unknown kind of output", "strict", "unknown kind", put(f"{SPEC}/outputs/0/kind", "wish"))

# --- One-hot groups ----------------------------------------------------------------------------------------------

ONE_HOT = f"{SPEC}/one_hot"
trap("one-hot groups that overlap leave no input", "roads", "groups overlap", put(ONE_HOT, [[1, 2], [1, 2, 3]]))
trap("one-hot group over a number", "roads", "0/1 inputs", put(ONE_HOT, [[0, 1, 2, 3]]))
trap("one-hot group of one", "roads", "different inputs", put(ONE_HOT, [[1]]))
trap("one-hot group with a member twice", "roads", "different inputs", put(ONE_HOT, [[1, 2, 3, 3]]))

# --- Gate and coverage -------------------------------------------------------------------------------------------

CONFLICTS, NOTHING = f"{COVERAGE}/conflicts", "the multipliers prove nothing"
trap("a signature without a head", "braking", "coverage: no head", put(CONFLICTS, lambda own: own[:-1]))
trap("an implication is missing", "braking", "coverage: no head", put(f"{COVERAGE}/implications", []))
trap("a conflict that is none", "clauses", NOTHING, put(CONFLICTS, [{"regions": [0, 1], "multipliers": []}]))
trap("a conflict of no regions", "strict", NOTHING, put(CONFLICTS, [{"regions": [], "multipliers": []}]))
trap(
    "a conflict that touches only without strictness",
    "strict",
    "multipliers prove nothing|gate.constants",
    put(f"{SPEC}/rows/0/strict", False),
    tensor("gate.constants_float32", np.float32([0.3, -0.3])),
    tensor("gate.constants_float64", np.float64([0.3, -0.3])),
)
trap(
    "a conflict with a multiplier of a foreign row",
    "braking",
    "does not bind here|index below",
    put(f"{CONFLICTS}/0/multipliers", [[2, "1"], [3, "1"]]),
)
trap(
    "an implication that is none",
    "braking",
    "prove nothing|one proof per row|index below",
    put(f"{IMPLICATION}/regions", []),
)
trap("an implication with a proof too few", "braking", "one proof per row", put(f"{IMPLICATION}/multipliers", []))
trap(
    "an implication with a negative multiplier",
    "braking",
    "negative multiplier",
    put(f"{IMPLICATION}/multipliers/0/complement", "-1"),
)
trap("a gated region named twice", "strict", "given twice|domain|gate|signatures", put("gate/regions", [0, 0]))
SIGNATURES = "gate.signatures"
trap(
    "one signature twice", "strict", "the same signature twice", tensor(SIGNATURES, np.uint8([[1, 0], [1, 0], [0, 0]]))
)
trap("a signature that is no bit", "strict", "zeros and ones", tensor(SIGNATURES, np.uint8([[2, 0], [0, 1], [0, 0]])))
trap("no signature at all", "strict", r"gate\.signatures", tensor(SIGNATURES, np.zeros((0, 2), "u1")))
HEADS = ("heads.weight", "heads.bias", "heads.fallback")
FREE = (tensor("free.weight", np.ones((4, 5), "f4")), tensor("free.bias", np.ones(4, "f4")))
trap(
    "a head that no signature names is a free head for a rule",
    "strict",
    "coverage|expected F32|no proof",
    tensor(SIGNATURES, np.uint8([[1, 0], [0, 0]])),
    *(tensor(name, lambda own: own[:1]) for name in HEADS),
)
# Region 0 is the whole domain and has no bit, so the last head is bound by rule 0: it must be a certified one.
trap(
    "the free head serves a cell where an ungated rule binds",
    "labels",
    "stated program|expected F32",
    *(tensor(name, lambda own: own[:1]) for name in HEADS),
    *FREE,
)
trap("a free head beside heads for every cell", "labels", "not part of the stated program", *FREE)
GUARD = "gate.thresholds"
trap("guard without slack", "braking", r"gate\.thresholds", tensor(GUARD, np.array([-4.0])))
trap(
    "a guard with sums in float32",
    "braking",
    r"gate\.coefficients|gate\.thresholds",
    *(tensor(name, lambda own: own.astype("<f4")) for name in ("gate.coefficients", GUARD)),
)
trap(
    "guard with one ulp less slack",
    "braking",
    r"gate\.thresholds",
    tensor(GUARD, lambda own: np.nextafter(own, -np.inf)),
)
trap(
    "guard with one ulp more slack",
    "braking",
    r"gate\.thresholds",
    tensor(GUARD, lambda own: np.nextafter(own, np.inf)),
)
trap(
    "strict comparison with the next smaller number",
    "strict",
    r"gate\.constants_float32",
    tensor("gate.constants_float32", np.float32([np.nextafter(np.float32(0.3), np.float32(0)), -0.3])),
)
trap(
    "float64 comparison with a float32 constant",
    "strict",
    r"gate\.constants_float64",
    tensor("gate.constants_float64", np.float32([0.3, -0.3]).astype("f8")),
)
trap("a guard in float32 alone", "strict", r"gate\.constants_float64", tensor("gate.constants_float64", None))
trap(
    "guard coefficients that are not the rule's",
    "braking",
    r"gate\.coefficients",
    tensor("gate.coefficients", lambda own: own * (1 + 2.0**-52)),
)
trap("a domain that is cut", "strict", r"domain\.upper_float32", tensor("domain.upper_float32", np.float32([0.5])))

# --- Weights -----------------------------------------------------------------------------------------------------

WEIGHT, FALLBACK, STRAY = "heads.weight", "heads.fallback", "not part of the stated program"
trap("NaN in a head", "strict", "NaN or infinity", filled(WEIGHT, np.nan))
trap("infinity in the bounds", "strict", "NaN or infinity", filled("bounds.upper", np.inf))
trap("a head that may overflow", "strict", "may overflow float32", filled(WEIGHT, 3e38))
trap(
    "an overflow that cancels",
    "strict",
    "may overflow float32",
    tensor(WEIGHT, np.tile(np.float32([3e38, -3e38, 0]), (2, 1, 1))),
)
trap("bounds that may overflow", "affine", "may overflow float32", filled("bounds.upper_slope", 3e38))
trap("a bfloat16 head", "strict", "expected F32", tensor(WEIGHT, lambda own: own.astype("f2")))
trap(
    "a float64 head, rounded when it is loaded", "strict", "expected F32", tensor(WEIGHT, lambda own: own.astype("f8"))
)
trap("a head of the wrong shape", "strict", "expected F32 of shape", tensor(WEIGHT, lambda own: own[:, :, :2]))
trap("a head transposed", "labels", "expected F32 of shape", tensor(WEIGHT, lambda own: own.transpose(0, 2, 1).copy()))
trap("heads in another order", "strict", "not proved", tensor("heads.bias", lambda own: own[::-1].copy()))
trap("a tensor is missing", "strict", "missing", tensor("bounds.upper", None))
trap("a fallback that breaks a rule", "strict", "the fallback output breaks it", tensor(FALLBACK, np.negative))
trap("a fallback that breaks an exclusion", "labels", "the fallback output breaks it", filled(FALLBACK, 0))
trap("a fallback of NaN", "strict", "NaN or infinity", filled(FALLBACK, np.nan))
trap(
    "an offset instead of the pass-through",  # dose <= 0.5 weight fails at weight 40
    "dose",
    "not proved",
    filled("heads.passthrough", 0),
    tensor("heads.bias", lambda own: own + np.float32(24)),
)
trap("a clamp program without fallback", "strict", r"heads\.fallback", tensor(FALLBACK, None))
trap("a stray fallback that a loader would use", "strict", STRAY, put("program/clip", "where"), filled(FALLBACK, 99))
trap(
    "stray slopes that a loader would use",
    "strict",
    STRAY,
    *(tensor(f"bounds.{side}_slope", np.full((3, 1), 99, "f4")) for side in ("lower", "upper")),
)
trap("a tensor of no program", "strict", STRAY, tensor("heads.scale", np.float32([2.0])))
trap("affine bounds clipped by a clamp that lets NaN through", "affine", "unknown kind", put("program/clip", "clamp"))
trap("a pass-through behind a clamp", "strict", "passthrough", tensor("heads.passthrough", np.zeros((2, 1, 1), "f4")))


# --- Boxes whose bounds cross: cases, cuts and gaps -----------------------------------------------------------------

GAPS, CUTS, PAIRS = f"{PROOFS}/0/gaps", f"{PROOFS}/1/cases", f"{PROOFS}/1/exclusions"
NODES = "without a proof|belong to no cut|not proved|does not bind here|index below|same unit"
for at in range(7):
    trap(f"case {at} is missing", "crossing", NODES, gone(f"{CUTS}/{at}"))
trap("a case too many", "crossing", "belong to no cut", put(CUTS, lambda own: [*own, own[-1]]))
trap("cases in another order", "crossing", NODES, put(CUTS, lambda own: own[::-1]))
trap("the line above max(l, u) alone", "crossing", "not proved", put(CUTS, lambda own: [{**own[2], "mu": []}]))
for unit in (3, -1, "0", None, True):
    trap(f"a cut of the unit {unit!r}", "crossing", "index", put(f"{CUTS}/0/unit", unit))
trap("a unit is cut twice", "crossing", "the same unit twice", put(f"{CUTS}/1/unit", 1))
trap("a cut with another field", "crossing", "unknown field", put(f"{CUTS}/0/crossed", True))
trap("the row of a cut elsewhere", "crossing", "does not bind here|index below", put(f"{CUTS}/2/mu", [[3, "1"]]))
trap("the row of no cut", "affine", "does not bind here|index below", put(f"{LEAF}/mu", [[2, "1"]]))
trap("a case that is said to be empty", "crossing", "not proved empty", put(f"{CUTS}/2", {"empty": []}))
trap("without gaps less is proved", "crossing", "not proved", gone(f"{PROOFS}/0"))
trap(
    "gaps without multipliers prove less",
    "crossing",
    "not proved",
    put(GAPS, lambda own: [[i, "1", [], []] for i in range(3)]),
)
for what, change, reason in (
    ("slope above 1", lambda gap: [gap[0], "2", *gap[2:]], "slope in 0 .. 1"),
    ("slope below 0", lambda gap: [gap[0], "-1/2", *gap[2:]], "slope in 0 .. 1"),
    ("slope that is no float32", lambda gap: [gap[0], "1/3", *gap[2:]], "slope in 0 .. 1"),
    ("another unit", lambda gap: [gap[0] + 1, *gap[1:]], "the same unit twice"),
    ("no such unit", lambda gap: [3, *gap[1:]], "index below 3"),
    ("a part missing", lambda gap: gap[:3], r"expected \[unit"),
    ("a negative multiplier", lambda gap: [*gap[:3], [[0, "-1"]]], "negative multiplier"),
    ("a row that does not bind", lambda gap: [*gap[:3], [[1, "1"]]], "does not bind here|index below"),
    ("a cut as a row", lambda gap: [*gap[:3], [[2, "1"]]], "does not bind here|index below"),
):
    trap(f"a gap: {what}", "crossing", reason, put(f"{GAPS}/0", change))
NO_GAPS = {"region": None, "gaps": []}
trap("gaps of a free head", "crossing", "is for no obligation", put(PROOFS, lambda own: [*own, {"head": 1, **NO_GAPS}]))
trap("gaps given twice", "crossing", "given twice", put(PROOFS, lambda own: [*own, own[0]]))
trap(
    "gaps of constant bounds", "braking", "only affine bounds", put(PROOFS, lambda own: [*own, {"head": 0, **NO_GAPS}])
)
trap("pairs without cases", "crossing labels", "not proved|outside of certificate.bin", put(f"{PAIRS}/cases", []))
trap("pairs without weights", "crossing labels", "one proof per pair", put(f"{PAIRS}/weights", None))
trap("a pair given twice", "crossing labels", "a pair given twice", put(f"{PAIRS}/cases", lambda own: own * 2))
trap("cases of no pair", "crossing labels", "index below 3", put(f"{PAIRS}/cases/0/0", 3))
trap("a pair without cases", "crossing labels", "expected .pair, cases", put(f"{PAIRS}/cases/0", [1]))

# --- Bounds by networks: boxes, cuts and slopes ---------------------------------------------------------------------

BOXES, SLOPES = f"{PROOF}/cases", "slopes: expected numbers in 0 .. 1"
for name in ("upper_slope", "upper", "hidden.0.weight", "hidden.0.bias"):
    change = tensor(f"bounds.{name}", lambda own: own + np.float32(0.25))
    trap(f"a larger bounds.{name}", "network everywhere", "not proved|proof", change)
trap(
    "slopes that change sides and signs",
    "network everywhere",
    "not proved",
    lambda p: p.weights.update({f"bounds.{a}_slope": -p.weights[f"bounds.{b}_slope"] for a, b in (SIDES, SIDES[::-1])}),
)
for value in (1.5, -0.25, np.nan, np.inf):
    trap(
        f"a first slope of {value}",
        "network everywhere",
        SLOPES,
        block(lambda d, v=value: struct.pack("<f", v) + d[4:]),
    )
    trap(
        f"another slope of {value}",
        "network everywhere",
        SLOPES,
        block(lambda d, v=value: d[:4] + struct.pack("<f", v) + d[8:]),
    )
trap(
    "worse slopes prove less", "network everywhere", "not proved", block(lambda d: struct.pack("<f", 1) * (len(d) // 4))
)
for at in range(11):
    trap(f"box {at} is missing", "network everywhere", f"{NODES}|cut outside", gone(f"{BOXES}/{at}"))
trap("a box too many", "network everywhere", "belong to no cut", put(BOXES, lambda own: [*own, own[-1]]))
trap("no box", "network everywhere", "without a proof", put(BOXES, []))
for at in ("1", "-1", "2", "1/3", "0x1.0000000000001p-1"):
    trap(f"a cut at {at}", "network everywhere", "cut outside of its box", put(f"{BOXES}/0/at", at))
trap("a box that is said to be empty", "network everywhere", "not proved empty", put(f"{BOXES}/2", {"empty": []}))
trap(
    "empty boxes without multipliers",
    "network wedge",
    "not proved empty",
    *(put(f"{BOXES}/{at}/empty/0/1", "0") for at in (6, 7)),
)
trap(
    "network bounds as affine ones",
    "network everywhere",
    f"expected F32 of shape|{STRAY}",
    put("program/bounds", "affine"),
)
for name in ("bounds.hidden.0.bias", "bounds.hidden.1.bias", "bounds.hidden.0.weight"):
    trap(f"{name} is missing", "network tent", "missing", tensor(name, None))
trap("a layer more", "network tent", "missing", tensor("bounds.hidden.2.bias", np.zeros(1, "f4")))
trap(
    "a layer transposed",
    "network tent",
    "expected F32 of shape",
    tensor("bounds.hidden.1.weight", lambda own: own.T.copy()),
)
trap("a box without slopes", "network everywhere", "missing field", gone(f"{BOXES}/2/slopes"))
trap("slopes of affine bounds", "affine", "unknown field", put(f"{LEAF}/slopes", 0))
trap("network bounds behind a clamp", "network everywhere", "unknown kind", put("program/clip", "clamp"))
trap("a pair without a proof", "network labels", "one proof per pair", gone(f"{EXCLUDED}/cases/2"))
trap("a pair without boxes", "network labels", "without a proof", put(f"{EXCLUDED}/cases/1", [1, []]))
trap("logits that are higher", "network labels", "not proved", tensor("heads.bias", lambda own: own + np.float32(0.75)))

# --- Heads of steps -------------------------------------------------------------------------------------------------

TREE = "program/tree"
trap("a softer claim", "steps", "statement", put("statement", smle_check.STATEMENT))
trap("a box's program", "steps", "statement|steps|unknown", put("program/head", "rules"))
trap("no steps of inputs", "steps", "step", gone(f"{SPEC}/inputs/0/step"))
trap("no step of an output", "steps", "field", gone(f"{SPEC}/outputs/0/step"))
trap("a step of null", "steps", "number", put(f"{SPEC}/outputs/0/step", None))
trap("a step of 0", "steps", "step", put(f"{SPEC}/outputs/0/step", "0"))
trap("a negative step", "steps", "step|range", put(f"{SPEC}/outputs/0/step", "-1"))
trap("an input's step of 0", "steps", "range|step", put(f"{SPEC}/inputs/0/step", "0"))
trap("a finer step", "steps", "prescribe", put(f"{SPEC}/outputs/2/step", "1/1000"))
trap("a step that float32 cannot tell apart", "steps", "apart|digits", put(f"{SPEC}/outputs/2/step", "1/100000000"))
trap("a step of many digits", "steps", "digits", put(f"{SPEC}/outputs/2/step", "1000001/100000003"))
trap("a wider range", "steps", "prescribe", put(f"{SPEC}/outputs/2/upper", "90"))
trap("an empty range", "steps", "no multiple", put(f"{SPEC}/outputs/2/upper", "-1"))
trap("a range beyond float32", "steps", "apart", put(f"{SPEC}/outputs/2/upper", "1000000"))
trap("a range beyond everything", "steps", "range", put(f"{SPEC}/outputs/2/upper", "1" + "0" * 500))
trap("a real input made whole", "steps", "prescribe|no multiple", put(f"{SPEC}/inputs/2/step", "1"))
trap("a whole input made real", "steps", "prescribe|slope|one_hot", put(f"{SPEC}/inputs/0/step", None))
trap("an end next to 0", "steps", "close to 0|prescribe", put(f"{SPEC}/inputs/2/upper", "1/" + str(2**110)))
trap("another rule", "steps", "prescribe", put(f"{SPEC}/rules/1/clauses/0/0/bound", "1"))
trap("a stricter rule", "steps", "prescribe", put(f"{SPEC}/rules/4/clauses/0/0/strict", True))
trap("another tree", "steps", "tensor|tree|range", put(TREE, [0, None, None]))
trap("a tree of an unknown region", "steps", "region", put(TREE, [99, None, None]))
trap("a cut of no input", "steps", "index", put(TREE, [{"input": 9, "at": "1"}, None, None]))
trap("a cut between steps", "steps", "whole number", put(TREE, [{"input": 0, "at": "1/2"}, None, None]))
trap("a cut between floats", "steps", "float32", put(TREE, [{"input": 2, "at": "1/10"}, None, None]))
trap("a cut beyond floats", "steps", "float32", put(TREE, [{"input": 2, "at": "1" + "0" * 60}, None, None]))
trap("a cut with more to say", "steps", "unknown field", put(TREE, [{"input": 2, "at": "0", "x": 1}, None, None]))
trap("a cut that is no number", "steps", "number", put(TREE, [{"input": 2, "at": 1}, None, None]))
trap("a tree that is a text", "steps", "tree", put(TREE, "null"))
trap("a field more", "steps", "unknown field", put("program/precision", "float32"))
NOTHING_OF = {"leaf": 7, "rule": 0, "region": 0, "clause": 0, "literal": 0, "mu": []}
trap("a proof for nothing", "steps", "no obligation", put("proof/safe", [NOTHING_OF]))
trap("a proof of another kind", "steps", "unknown field", put("proof", {"safe": [], "pairs": []}))
trap("another gate", "steps", "gate", put("gate/regions", [0]))
for name, place, value, reason in (
    ("safe.offset", 0, 0.5, "whole"),
    ("safe.offset", 0, 13.0, "range|not proved"),
    ("safe.offset", 0, float(2**53), "2\\^53|beyond"),
    ("safe.slope", 2, 1.0, "without a step"),
    ("safe.slope", 0, 2.0**50, "2\\^53"),
    ("safe.offset", 0, np.nan, "NaN"),
):
    trap(f"{name} of {value}", "steps", reason, entry(name, place, value))
for unit in (0.0, -1.0, 1e-300, 1e300):
    trap(f"distances in the unit {unit}", "steps", r"check\.scale", entry("check.scale", 0, unit))
trap("a default that no program has", "steps", "not part of", tensor("clips.default", np.zeros(3)))
trap("steps in another head", "rules limits", "only a grid head", put(f"{SPEC}/inputs/0/step", None))


@pytest.mark.parametrize(("base", "changes", "reason"), TRAPS)
def test_trap(base, changes, reason):
    package = sound(base)
    for change in changes:
        change(package)
    start = time.process_time()
    with pytest.raises(smle_check.Rejected, match=reason):
        package.seal().check()
    assert time.process_time() - start < 10, "refused, but not quickly"
