"""One document per trap, in one file as the list that auditors read: each is sealed anew and refused for its reason."""

import random
import struct
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import smle_check
from smle_check.digits import margin_text
from support.builder import Package, case

Change = Callable[[Package], None]
TRAPS: list = []


def trap(name: str, *, base: str, reason: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        TRAPS.append(pytest.param(base, change, reason, id=name))
        return change

    return register


def rules_of(p: Package) -> list:
    return p.document["specification"]["rules"]


# --- One place of the document, or one tensor, is another --------------------------------------------------------

GONE = object()
STATED: dict[tuple[str, str], dict[str, tuple[object, str]]] = {
    ("clauses", "proof.obligations.0.lambda.0"): {"negative lambda": ("-1", "lambda must be >= 0")},
    ("strict", "proof.obligations.0.lambda"): {
        "hexadecimal lambda that underflows to 0": (["0x1p-1999"], "lambda|number"),
        "NaN as a number": (["nan"], "is not an exact number"),
        "infinity as a number": (["inf"], "is not an exact number"),
        "hexadecimal number beyond the range": (["0x1p+9999"], "out of range|not an exact number"),
        "decimal numbers are not exact text": (["1.0"], "is not an exact number"),
        "division by zero in a number": (["1/0"], "is not an exact number"),
        "digits of another script": (["\N{ARABIC-INDIC DIGIT ONE}"], "is not an exact number"),
        "number as JSON integer": ([1], "number as a short string"),
    },
    ("braking", "proof.obligations"): {"all proofs are missing": ([], "no proof")},
    ("strict", "specification.rules.0.clauses"): {
        "an empty clause": ([[]], "empty clause"),
        "a rule that requires nothing": ([], "nothing required"),
    },
    ("strict", "specification.rules.0.regions"): {
        "a rule without regions never binds": ([], "no region"),
        "true as an index": ([False], "index below"),
    },
    ("labels", "specification.rules.0.exclusions.offset"): {
        "exclusions at an odd offset": (1, r"outside of certificate\.bin")
    },
    ("strict", "specification.rules.0.clauses.0.0.bound"): {"a wrong truth": ("-10", "not proved")},
    ("strict", "trust"): {"unknown field of the certificate": ("me", "unknown field")},
    ("strict", "specification.rules.0.clauses.0.0.tolerance"): {"unknown field of a literal": ("1", "unknown field")},
    ("strict", "program.tolerance"): {"unknown field of the program": ("1", "unknown field")},
    ("strict", "version"): {
        "older version": (1, "version '1' is not supported"),
        "unknown version": (3, "version '3' is not supported"),
        "a version as text": ("2", "is not supported"),
    },
    ("strict", "format"): {"another format": ("smle-model", "not of the format 'smle-certificate'")},
    ("strict", "program.head"): {
        "an unknown kind of head": ("grid", "unknown kind of head 'grid'"),
        "a head whose kind is a list": (["box"], "expected a kind of head"),
        "a box that says it is a clip list": ("rules", "program: unknown field"),
        "a program without a head": (GONE, "expected a kind of head"),
    },
    ("strict", "program"): {
        "a program that is a name": ("box", "expected a kind of head"),
        "a box with the program of a clip list": ({"head": "rules", "tree": None}, "proof: unknown field"),
    },
    ("strict", "proof.pairs"): {"a proof of two kinds": ([], "proof: unknown field")},
    ("strict", "program.precision"): {"a bfloat16 program": ("bfloat16", "only float32")},
    ("strict", "program.clip"): {"a clip by ReLU": ("relu", "unknown kind")},
    ("strict", "program.bounds"): {"bounds by a network": ("network", "unknown kind")},
    ("strict", "specification.regions.0"): {
        "region with an unknown row": ([17], "index below"),
        "region with a negative row number": ([-1], "index below"),
    },
    ("strict", "specification.rows.0.terms"): {
        "row without terms": ([], "row: malformed"),
        "row with a zero coefficient": ([[0, "0"]], "row: malformed"),
        "comparison with a scaled input": ([[0, "2"]], "coefficient 1 or -1"),
    },
    ("strict", "specification.rows.0.strict"): {"strict is not a truth value": (0, "row: malformed")},
    ("strict", "specification.inputs.0.lower"): {"input with an empty range": ("1", "empty range")},
    ("dose", "specification.inputs.1.name"): {"two inputs of one name": ("weight", "duplicate name")},
    ("dose", "specification.outputs.0.name"): {"an output with the name of an input": ("weight", "duplicate name")},
    ("strict", "specification.outputs.0.kind"): {"unknown kind of output": ("wish", "unknown kind")},
    ("roads", "specification.one_hot"): {
        "one-hot groups that overlap leave no input": ([[1, 2], [1, 2, 3]], "groups overlap"),
        "one-hot group over a number": ([[0, 1, 2, 3]], "0/1 inputs"),
        "one-hot group of one": ([[1]], "different inputs"),
        "one-hot group with a member twice": ([[1, 2, 3, 3]], "different inputs"),
    },
    ("braking", "proof.coverage.implications"): {"an implication is missing": ([], "coverage: no head")},
    ("clauses", "proof.coverage.conflicts"): {
        "a conflict that is none": ([{"regions": [0, 1], "multipliers": []}], "the multipliers prove nothing")
    },
    ("strict", "proof.coverage.conflicts"): {
        "a conflict of no regions": ([{"regions": [], "multipliers": []}], "the multipliers prove nothing")
    },
    ("braking", "proof.coverage.implications.0.multipliers"): {
        "an implication with a proof too few": ([], "one proof per row")
    },
    ("strict", "gate.regions"): {"a gated region named twice": ([0, 0], "given twice|domain|gate|signatures")},
    ("affine", "program.clip"): {"affine bounds clipped by a clamp that lets NaN through": ("clamp", "unknown kind")},
    ("braking", "proof.obligations.3"): {"a proof is missing": (GONE, "no proof")},
    ("strict", "proof.coverage"): {"missing field": (GONE, "missing field")},
}
"""By base and place in the document: what is wrong, what stands there instead, the reason of the refusal."""

TENSORS: dict[tuple[str, str], dict[str, tuple[object, str]]] = {
    ("strict", "gate.signatures"): {
        "one signature twice": (lambda w: np.uint8([[1, 0], [1, 0], [0, 0]]), "the same signature twice"),
        "a signature that is no bit": (lambda w: np.uint8([[2, 0], [0, 1], [0, 0]]), "zeros and ones"),
        "no signature at all": (lambda w: np.zeros((0, 2), "u1"), r"gate\.signatures"),
    },
    ("braking", "gate.thresholds"): {
        "guard without slack": (lambda w: np.array([-4.0]), r"gate\.thresholds"),
        "guard with one ulp less slack": (lambda w: np.nextafter(w, -np.inf), r"gate\.thresholds"),
        "guard with one ulp more slack": (lambda w: np.nextafter(w, np.inf), r"gate\.thresholds"),
    },
    ("strict", "gate.constants_float64"): {
        "float64 comparison with a float32 constant": (
            lambda w: w.astype("f4").astype("f8"),
            r"gate\.constants_float64",
        ),
        "a guard in float32 alone": (GONE, r"gate\.constants_float64"),
    },
    ("braking", "gate.coefficients"): {
        "guard coefficients that are not the rule's": (lambda w: w * (1 + 2.0 ** (-52)), r"gate\.coefficients")
    },
    ("strict", "domain.upper_float32"): {
        "a domain that is cut": (lambda w: np.float32([0.5]), r"domain\.upper_float32")
    },
    ("strict", "heads.weight"): {
        "NaN in a head": (lambda w: np.full_like(w, np.nan), "NaN or infinity"),
        "a head that may overflow": (lambda w: np.full_like(w, 3e38), "may overflow float32"),
        "an overflow that cancels": (
            lambda w: np.tile(np.float32([3e38, -3e38, 0]), (2, 1, 1)),
            "may overflow float32",
        ),
        "a bfloat16 head": (lambda w: w.astype("f2"), "expected F32"),
        "a float64 head, rounded when it is loaded": (lambda w: w.astype("f8"), "expected F32"),
        "a head of the wrong shape": (lambda w: w[:, :, :2], "expected F32 of shape"),
    },
    ("strict", "bounds.upper"): {
        "infinity in the bounds": (lambda w: np.full_like(w, np.inf), "NaN or infinity"),
        "a tensor is missing": (GONE, "missing"),
    },
    ("affine", "bounds.upper_slope"): {
        "bounds that may overflow": (lambda w: np.full_like(w, 3e38), "may overflow float32")
    },
    ("labels", "heads.weight"): {
        "a head transposed": (lambda w: np.ascontiguousarray(w.transpose(0, 2, 1)), "expected F32 of shape")
    },
    ("strict", "heads.bias"): {"heads in another order": (lambda w: w[::-1].copy(), "not proved")},
    ("strict", "heads.fallback"): {
        "a fallback that breaks a rule": (lambda w: -w, "the fallback output breaks it"),
        "a fallback of NaN": (lambda w: np.full_like(w, np.nan), "NaN or infinity"),
        "a clamp program without fallback": (GONE, r"heads\.fallback"),
    },
    ("labels", "heads.fallback"): {
        "a fallback that breaks an exclusion": (lambda w: np.zeros_like(w), "the fallback output breaks it")
    },
    ("strict", "heads.scale"): {
        "a tensor of no program": (lambda w: np.float32([2.0]), "not part of the stated program")
    },
    ("strict", "heads.passthrough"): {
        "a pass-through behind a clamp": (lambda w: np.zeros((2, 1, 1), "f4"), "passthrough")
    },
}
"""By base and tensor: what is wrong, how its numbers change, the reason of the refusal."""


def stated(place: str, value: object) -> Change:
    def change(p: Package) -> None:
        *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
        item: Any = p.document
        for part in path:
            item = item[part]
        if value is GONE:
            del item[last]
        else:
            item[last] = value

    return change


def stored(name: str, value: Any) -> Change:
    def change(p: Package) -> None:
        old = p.weights.pop(name, None)
        if value is not GONE:
            p.weights[name] = value(old)

    return change


for (_base, _place), _cases in STATED.items():
    TRAPS += [pytest.param(_base, stated(_place, v), reason, id=name) for name, (v, reason) in _cases.items()]
for (_base, _place), _cases in TENSORS.items():
    TRAPS += [pytest.param(_base, stored(_place, v), reason, id=name) for name, (v, reason) in _cases.items()]


# --- Multipliers -------------------------------------------------------------------------------------------------


@trap("lambda = 0 proves any non-strict clause", base="braking", reason="not all 0")
def _(p):
    for proof in p.document["proof"]["obligations"]:
        proof["lambda"] = ["0"] * len(proof["lambda"])


@trap("lambda for a literal that does not exist", base="strict", reason="one lambda per literal")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"].append("1")


@trap("lambda on the wrong literal", base="clauses", reason="not proved")
def _(p):
    next(q for q in p.document["proof"]["obligations"] if len(q["lambda"]) == 2)["lambda"] = ["1", "0"]


@trap("negative mu", base="affine", reason="negative multiplier")
def _(p):
    next(q for q in p.document["proof"]["obligations"] if q["mu"])["mu"][0][1] = "-1"


@trap("mu for a row that does not bind here", base="braking", reason="does not bind here|index below")
def _(p):
    p.document["proof"]["obligations"][0]["mu"] = [[len(p.document["specification"]["rows"]) - 1, "1"]]


@trap("mu twice for the same row", base="affine", reason="indices must increase")
def _(p):
    entry = next(q for q in p.document["proof"]["obligations"] if q["mu"])
    entry["mu"] = entry["mu"] * 2


@trap("mu too small", base="affine", reason="not proved")
def _(p):
    entry = next(q for q in p.document["proof"]["obligations"] if q["mu"])
    entry["mu"][0][1] = "0"


@trap("a number of a million digits", base="strict", reason="short string")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = ["9" * 1_000_000]


@trap("exclusion weights zero", base="labels", reason="exclusions: multipliers")
def _(p):
    p.block = p.block[:-8] + bytes(8)


@trap("exclusion weight NaN", base="labels", reason="exclusions: multipliers")
def _(p):
    p.block = p.block[:-8] + struct.pack("<ff", 0.5, float("nan"))


@trap("exclusion weight infinite", base="labels", reason="exclusions: multipliers")
def _(p):
    p.block = p.block[:-8] + struct.pack("<ff", float("inf"), 0.5)


@trap("exclusion weight negative", base="labels", reason="exclusions: multipliers")
def _(p):
    p.block = p.block[:-8] + struct.pack("<ff", -0.5, 1.5)


# --- Obligations -------------------------------------------------------------------------------------------------


@trap("a proof for another head", base="braking", reason="no proof|for no obligation|not proved")
def _(p):
    p.document["proof"]["obligations"][0]["head"] += 1


@trap("a proof given twice", base="strict", reason="given twice")
def _(p):
    p.document["proof"]["obligations"].append(dict(p.document["proof"]["obligations"][0]))


@trap("a proof for no obligation", base="strict", reason="for no obligation")
def _(p):
    p.document["proof"]["obligations"].append({**p.document["proof"]["obligations"][0], "head": 1, "rule": 0})


@trap("a proof of emptiness for no obligation", base="strict", reason="for no obligation")
def _(p):
    p.document["proof"]["obligations"].append({"head": 77, "region": None, "empty": {"junk": 1}})


@trap("emptiness claimed without proof", base="strict", reason="not proved empty")
def _(p):
    p.document["proof"]["obligations"] = [{"head": h, "region": None, "empty": []} for h in (0, 1)]


@trap("emptiness with multipliers of zero", base="strict", reason="not proved empty")
def _(p):
    p.document["proof"]["obligations"] = [{"head": h, "region": None, "empty": [[h, "0"]]} for h in (0, 1)]


@trap("emptiness proved with a row of another cell", base="strict", reason="does not bind here|index below")
def _(p):
    p.document["proof"]["obligations"] = [{"head": h, "region": None, "empty": [[0, "1"], [1, "1"]]} for h in (0, 1)]


@trap("exclusions without proof", base="labels", reason="not .* and .*: no proof")
def _(p):
    p.document["proof"]["obligations"] = [q for q in p.document["proof"]["obligations"] if "exclusions" not in q]


@trap("exclusions outside of the block", base="labels", reason=r"outside of certificate\.bin|index below")
def _(p):
    rules_of(p)[0]["exclusions"]["count"] = 10**9


@trap("exclusions of outputs that do not exist", base="labels", reason="pairs h < k")
def _(p):
    p.block = struct.pack("<II", 0, 4) + p.block[8:]


@trap("an output excluded with itself", base="labels", reason="pairs h < k")
def _(p):
    p.block = struct.pack("<II", 1, 1) + p.block[8:]


@trap("a wrong truth with a number of 500 digits", base="strict", reason="not proved")
def _(p):
    rules_of(p)[0]["clauses"][0][0]["bound"] = "-" + "9" * 500


# --- Fields, versions, shapes ------------------------------------------------------------------------------------


@trap(
    "a box with program and proof of a clip list",
    base="strict",
    reason="does not|not part of the stated program|regions",
)
def _(p):
    p.document["program"], p.document["proof"] = {"head": "rules", "tree": None}, {"pairs": [], "safe": [], "moved": []}


@trap("coverage where version 1 had it", base="strict", reason="unknown field")
def _(p):
    p.document["coverage"] = p.document["proof"]["coverage"]


@trap("a softer claim", base="strict", reason="statement")
def _(p):
    p.document["statement"] = {**smle_check.STATEMENT, "claim": "Rules mostly hold."}


@trap("fewer assumptions", base="strict", reason="statement")
def _(p):
    p.document["statement"] = {**smle_check.STATEMENT, "assumptions": []}


@trap("region with rows out of order", base="braking", reason="rows must increase")
def _(p):
    regions = p.document["specification"]["regions"]
    next(r for r in regions if len(r) > 1).reverse()


@trap("input beyond float32", base="strict", reason="beyond the range of float32")
def _(p):
    p.document["specification"]["inputs"][0]["upper"] = "1" + "0" * 39


@trap("two rules of one name", base="strict", reason="duplicate rule name")
def _(p):
    rules_of(p)[1]["name"] = rules_of(p)[0]["name"]


@trap("names that differ only in what is not printed", base="dose", reason="names that look the same")
def _(p):
    p.document["specification"]["inputs"][0]["name"] = "a\u202e"
    p.document["specification"]["inputs"][1]["name"] = "a\u2066"


# --- One-hot groups ----------------------------------------------------------------------------------------------


# --- Gate and coverage -------------------------------------------------------------------------------------------


@trap("a signature without a head", base="braking", reason="coverage: no head")
def _(p):
    p.document["proof"]["coverage"]["conflicts"].pop()


@trap(
    "a conflict that touches only without strictness", base="strict", reason="multipliers prove nothing|gate.constants"
)
def _(p):
    p.document["specification"]["rows"][0]["strict"] = False
    p.weights["gate.constants_float32"] = np.float32([0.3, -0.3])
    p.weights["gate.constants_float64"] = np.float64([0.3, -0.3])


@trap("a conflict with a multiplier of a foreign row", base="braking", reason="does not bind here|index below")
def _(p):
    p.document["proof"]["coverage"]["conflicts"][0]["multipliers"] = [[2, "1"], [3, "1"], [0, "0"]][:2]


@trap("an implication that is none", base="braking", reason="prove nothing|one proof per row|index below")
def _(p):
    entry = p.document["proof"]["coverage"]["implications"][0]
    entry["regions"] = []


@trap("an implication with a negative multiplier", base="braking", reason="negative multiplier")
def _(p):
    for entry in p.document["proof"]["coverage"]["implications"]:
        for proof in entry["multipliers"]:
            proof["complement"] = "-1"


@trap(
    "a head that no signature names is a free head for a rule", base="strict", reason="coverage|expected F32|no proof"
)
def _(p):
    p.weights["gate.signatures"] = np.uint8([[1, 0], [0, 0]])
    p.weights["heads.weight"], p.weights["heads.bias"] = p.weights["heads.weight"][:1], p.weights["heads.bias"][:1]
    p.weights["heads.fallback"] = p.weights["heads.fallback"][:1]


@trap("the free head serves a cell where an ungated rule binds", base="labels", reason="stated program|expected F32")
def _(p):
    # Region 0 is the whole domain and has no bit, so the last head is bound by rule 0: it must be a certified one.
    for name in ("heads.weight", "heads.bias", "heads.fallback"):
        p.weights[name] = p.weights[name][:1]
    p.weights["free.weight"], p.weights["free.bias"] = np.ones((4, 5), "f4"), np.ones(4, "f4")


@trap("a free head beside heads for every cell", base="labels", reason="not part of the stated program")
def _(p):
    p.weights["free.weight"], p.weights["free.bias"] = np.ones((4, 5), "f4"), np.ones(4, "f4")


@trap("a guard with sums in float32", base="braking", reason=r"gate\.coefficients|gate\.thresholds")
def _(p):
    for name in ("gate.coefficients", "gate.thresholds"):
        p.weights[name] = p.weights[name].astype("<f4")


@trap("strict comparison with the next smaller number", base="strict", reason=r"gate\.constants_float32")
def _(p):
    below = np.nextafter(np.float32(0.3), np.float32(0))
    p.weights["gate.constants_float32"] = np.array([below, -0.3], dtype=np.float32)


# --- Weights -----------------------------------------------------------------------------------------------------


@trap("a stray fallback that a loader would use", base="strict", reason="not part of the stated program")
def _(p):
    p.document["program"]["clip"] = "where"
    p.weights["heads.fallback"] = np.full_like(p.weights["heads.fallback"], 99)


@trap("stray slopes that a loader would use", base="strict", reason="not part of the stated program")
def _(p):
    for side in ("lower", "upper"):
        p.weights[f"bounds.{side}_slope"] = np.full((3, 1), 99, "f4")


@pytest.mark.parametrize(("base", "change", "reason"), TRAPS)
def test_trap(base, change, reason):
    package = case(base)
    assert package.check(), "the base of the trap is sound"
    change(package)
    start = time.process_time()
    with pytest.raises(smle_check.Rejected, match=reason):
        package.seal().check()
    assert time.process_time() - start < 10, "refused, but not quickly"


def test_margins_are_printed_rounded_down():
    rng = random.Random(0)
    sizes = [Fraction(1, 3), Fraction(0), Fraction(10**400, 7), Fraction(1, 10**5000), Fraction(123456789)]
    sizes += [Fraction(rng.randint(1, 10**9), rng.randint(1, 10**30)) for _ in range(500)]
    for value in sizes:
        shown = Fraction(margin_text(value))
        assert 0 <= value - shown <= value / 100
