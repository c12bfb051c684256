"""One document per trap, in one file as the list that auditors read: each is sealed anew and refused for its reason."""

import random
import struct
import time
from collections.abc import Callable
from fractions import Fraction

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


# --- Multipliers -------------------------------------------------------------------------------------------------


@trap("lambda = 0 proves any non-strict clause", base="braking", reason="not all 0")
def _(p):
    for proof in p.document["proof"]["obligations"]:
        proof["lambda"] = ["0"] * len(proof["lambda"])


@trap("negative lambda", base="clauses", reason="lambda must be >= 0")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"][0] = "-1"


@trap("hexadecimal lambda that underflows to 0", base="strict", reason="lambda|number")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = ["0x1p-1999"]


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


@trap("NaN as a number", base="strict", reason="is not an exact number")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = ["nan"]


@trap("infinity as a number", base="strict", reason="is not an exact number")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = ["inf"]


@trap("hexadecimal number beyond the range", base="strict", reason="out of range|not an exact number")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = ["0x1p+9999"]


@trap("decimal numbers are not exact text", base="strict", reason="is not an exact number")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = ["1.0"]


@trap("division by zero in a number", base="strict", reason="is not an exact number")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = ["1/0"]


@trap("digits of another script", base="strict", reason="is not an exact number")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = ["\u0661"]


@trap("number as JSON integer", base="strict", reason="number as a short string")
def _(p):
    p.document["proof"]["obligations"][0]["lambda"] = [1]


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


@trap("a proof is missing", base="braking", reason="no proof")
def _(p):
    del p.document["proof"]["obligations"][3]


@trap("all proofs are missing", base="braking", reason="no proof")
def _(p):
    p.document["proof"]["obligations"] = []


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


@trap("an empty clause", base="strict", reason="empty clause")
def _(p):
    rules_of(p)[0]["clauses"] = [[]]


@trap("a rule that requires nothing", base="strict", reason="nothing required")
def _(p):
    rules_of(p)[0]["clauses"] = []


@trap("a rule without regions never binds", base="strict", reason="no region")
def _(p):
    rules_of(p)[0]["regions"] = []


@trap("exclusions without proof", base="labels", reason="not .* and .*: no proof")
def _(p):
    p.document["proof"]["obligations"] = [q for q in p.document["proof"]["obligations"] if "exclusions" not in q]


@trap("exclusions outside of the block", base="labels", reason=r"outside of certificate\.bin|index below")
def _(p):
    rules_of(p)[0]["exclusions"]["count"] = 10**9


@trap("exclusions at an odd offset", base="labels", reason=r"outside of certificate\.bin")
def _(p):
    rules_of(p)[0]["exclusions"]["offset"] = 1


@trap("exclusions of outputs that do not exist", base="labels", reason="pairs h < k")
def _(p):
    p.block = struct.pack("<II", 0, 4) + p.block[8:]


@trap("an output excluded with itself", base="labels", reason="pairs h < k")
def _(p):
    p.block = struct.pack("<II", 1, 1) + p.block[8:]


@trap("a wrong truth", base="strict", reason="not proved")
def _(p):
    rules_of(p)[0]["clauses"][0][0]["bound"] = "-10"


@trap("a wrong truth with a number of 500 digits", base="strict", reason="not proved")
def _(p):
    rules_of(p)[0]["clauses"][0][0]["bound"] = "-" + "9" * 500


# --- Fields, versions, shapes ------------------------------------------------------------------------------------


@trap("unknown field of the certificate", base="strict", reason="unknown field")
def _(p):
    p.document["trust"] = "me"


@trap("unknown field of a literal", base="strict", reason="unknown field")
def _(p):
    rules_of(p)[0]["clauses"][0][0]["tolerance"] = "1"


@trap("unknown field of the program", base="strict", reason="unknown field")
def _(p):
    p.document["program"]["tolerance"] = "1"


@trap("missing field", base="strict", reason="missing field")
def _(p):
    del p.document["proof"]["coverage"]


@trap("older version", base="strict", reason="version '1' is not supported")
def _(p):
    p.document["version"] = 1


@trap("unknown version", base="strict", reason="version '3' is not supported")
def _(p):
    p.document["version"] = 3


@trap("a version as text", base="strict", reason="is not supported")
def _(p):
    p.document["version"] = "2"


@trap("another format", base="strict", reason="not of the format 'smle-certificate'")
def _(p):
    p.document["format"] = "smle-model"


@trap("an unknown kind of head", base="strict", reason="unknown kind of head 'grid'")
def _(p):
    p.document["program"]["head"] = "grid"


@trap("a head whose kind is a list", base="strict", reason="expected a kind of head")
def _(p):
    p.document["program"]["head"] = ["box"]


@trap("a program without a head", base="strict", reason="expected a kind of head")
def _(p):
    del p.document["program"]["head"]


@trap("a program that is a name", base="strict", reason="expected a kind of head")
def _(p):
    p.document["program"] = "box"


@trap("a box that says it is a clip list", base="strict", reason="program: unknown field")
def _(p):
    p.document["program"]["head"] = "rules"


@trap("a box with the program of a clip list", base="strict", reason="proof: unknown field")
def _(p):
    p.document["program"] = {"head": "rules", "tree": None}


@trap(
    "a box with program and proof of a clip list",
    base="strict",
    reason="does not|not part of the stated program|regions",
)
def _(p):
    p.document["program"], p.document["proof"] = {"head": "rules", "tree": None}, {"pairs": [], "safe": [], "moved": []}


@trap("a proof of two kinds", base="strict", reason="proof: unknown field")
def _(p):
    p.document["proof"]["pairs"] = []


@trap("coverage where version 1 had it", base="strict", reason="unknown field")
def _(p):
    p.document["coverage"] = p.document["proof"]["coverage"]


@trap("a bfloat16 program", base="strict", reason="only float32")
def _(p):
    p.document["program"]["precision"] = "bfloat16"


@trap("a clip by ReLU", base="strict", reason="unknown kind")
def _(p):
    p.document["program"]["clip"] = "relu"


@trap("bounds by a network", base="strict", reason="unknown kind")
def _(p):
    p.document["program"]["bounds"] = "network"


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


@trap("region with an unknown row", base="strict", reason="index below")
def _(p):
    p.document["specification"]["regions"][0] = [17]


@trap("region with a negative row number", base="strict", reason="index below")
def _(p):
    p.document["specification"]["regions"][0] = [-1]


@trap("true as an index", base="strict", reason="index below")
def _(p):
    rules_of(p)[0]["regions"] = [False]


@trap("row without terms", base="strict", reason="row: malformed")
def _(p):
    p.document["specification"]["rows"][0]["terms"] = []


@trap("row with a zero coefficient", base="strict", reason="row: malformed")
def _(p):
    p.document["specification"]["rows"][0]["terms"] = [[0, "0"]]


@trap("comparison with a scaled input", base="strict", reason="coefficient 1 or -1")
def _(p):
    p.document["specification"]["rows"][0]["terms"] = [[0, "2"]]


@trap("strict is not a truth value", base="strict", reason="row: malformed")
def _(p):
    p.document["specification"]["rows"][0]["strict"] = 0


@trap("input with an empty range", base="strict", reason="empty range")
def _(p):
    p.document["specification"]["inputs"][0]["lower"] = "1"


@trap("input beyond float32", base="strict", reason="beyond the range of float32")
def _(p):
    p.document["specification"]["inputs"][0]["upper"] = "1" + "0" * 39


@trap("two inputs of one name", base="dose", reason="duplicate name")
def _(p):
    p.document["specification"]["inputs"][1]["name"] = "weight"


@trap("an output with the name of an input", base="dose", reason="duplicate name")
def _(p):
    p.document["specification"]["outputs"][0]["name"] = "weight"


@trap("two rules of one name", base="strict", reason="duplicate rule name")
def _(p):
    rules_of(p)[1]["name"] = rules_of(p)[0]["name"]


@trap("names that differ only in what is not printed", base="dose", reason="names that look the same")
def _(p):
    p.document["specification"]["inputs"][0]["name"] = "a\u202e"
    p.document["specification"]["inputs"][1]["name"] = "a\u2066"


@trap("unknown kind of output", base="strict", reason="unknown kind")
def _(p):
    p.document["specification"]["outputs"][0]["kind"] = "wish"


# --- One-hot groups ----------------------------------------------------------------------------------------------


@trap("one-hot groups that overlap leave no input", base="roads", reason="groups overlap")
def _(p):
    p.document["specification"]["one_hot"] = [[1, 2], [1, 2, 3]]


@trap("one-hot group over a number", base="roads", reason="0/1 inputs")
def _(p):
    p.document["specification"]["one_hot"] = [[0, 1, 2, 3]]


@trap("one-hot group of one", base="roads", reason="different inputs")
def _(p):
    p.document["specification"]["one_hot"] = [[1]]


@trap("one-hot group with a member twice", base="roads", reason="different inputs")
def _(p):
    p.document["specification"]["one_hot"] = [[1, 2, 3, 3]]


# --- Gate and coverage -------------------------------------------------------------------------------------------


@trap("a signature without a head", base="braking", reason="coverage: no head")
def _(p):
    p.document["proof"]["coverage"]["conflicts"].pop()


@trap("an implication is missing", base="braking", reason="coverage: no head")
def _(p):
    p.document["proof"]["coverage"]["implications"] = []


@trap("a conflict that is none", base="clauses", reason="the multipliers prove nothing")
def _(p):
    p.document["proof"]["coverage"]["conflicts"] = [{"regions": [0, 1], "multipliers": []}]


@trap("a conflict of no regions", base="strict", reason="the multipliers prove nothing")
def _(p):
    p.document["proof"]["coverage"]["conflicts"] = [{"regions": [], "multipliers": []}]


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


@trap("an implication with a proof too few", base="braking", reason="one proof per row")
def _(p):
    p.document["proof"]["coverage"]["implications"][0]["multipliers"] = []


@trap("an implication with a negative multiplier", base="braking", reason="negative multiplier")
def _(p):
    for entry in p.document["proof"]["coverage"]["implications"]:
        for proof in entry["multipliers"]:
            proof["complement"] = "-1"


@trap("a gated region named twice", base="strict", reason="given twice|domain|gate|signatures")
def _(p):
    p.document["gate"]["regions"] = [0, 0]


@trap("one signature twice", base="strict", reason="the same signature twice")
def _(p):
    p.weights["gate.signatures"] = np.uint8([[1, 0], [1, 0], [0, 0]])


@trap("a signature that is no bit", base="strict", reason="zeros and ones")
def _(p):
    p.weights["gate.signatures"] = np.uint8([[2, 0], [0, 1], [0, 0]])


@trap("no signature at all", base="strict", reason=r"gate\.signatures")
def _(p):
    p.weights["gate.signatures"] = np.zeros((0, 2), "u1")


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


@trap("guard without slack", base="braking", reason=r"gate\.thresholds")
def _(p):
    p.weights["gate.thresholds"] = np.array([-4.0])


@trap("a guard with sums in float32", base="braking", reason=r"gate\.coefficients|gate\.thresholds")
def _(p):
    for name in ("gate.coefficients", "gate.thresholds"):
        p.weights[name] = p.weights[name].astype("<f4")


@trap("guard with one ulp less slack", base="braking", reason=r"gate\.thresholds")
def _(p):
    p.weights["gate.thresholds"] = np.nextafter(p.weights["gate.thresholds"], -np.inf)


@trap("guard with one ulp more slack", base="braking", reason=r"gate\.thresholds")
def _(p):
    p.weights["gate.thresholds"] = np.nextafter(p.weights["gate.thresholds"], np.inf)


@trap("strict comparison with the next smaller number", base="strict", reason=r"gate\.constants_float32")
def _(p):
    below = np.nextafter(np.float32(0.3), np.float32(0))
    p.weights["gate.constants_float32"] = np.array([below, -0.3], dtype=np.float32)


@trap("float64 comparison with a float32 constant", base="strict", reason=r"gate\.constants_float64")
def _(p):
    p.weights["gate.constants_float64"] = p.weights["gate.constants_float32"].astype("f8")


@trap("a guard in float32 alone", base="strict", reason=r"gate\.constants_float64")
def _(p):
    del p.weights["gate.constants_float64"]


@trap("guard coefficients that are not the rule's", base="braking", reason=r"gate\.coefficients")
def _(p):
    p.weights["gate.coefficients"] = p.weights["gate.coefficients"] * (1 + 2.0**-52)


@trap("a domain that is cut", base="strict", reason=r"domain\.upper_float32")
def _(p):
    p.weights["domain.upper_float32"] = np.float32([0.5])


# --- Weights -----------------------------------------------------------------------------------------------------


@trap("NaN in a head", base="strict", reason="NaN or infinity")
def _(p):
    p.weights["heads.weight"] = np.full_like(p.weights["heads.weight"], np.nan)


@trap("infinity in the bounds", base="strict", reason="NaN or infinity")
def _(p):
    p.weights["bounds.upper"] = np.full_like(p.weights["bounds.upper"], np.inf)


@trap("a head that may overflow", base="strict", reason="may overflow float32")
def _(p):
    p.weights["heads.weight"] = np.full_like(p.weights["heads.weight"], 3e38)


@trap("an overflow that cancels", base="strict", reason="may overflow float32")
def _(p):
    p.weights["heads.weight"] = np.tile(np.float32([3e38, -3e38, 0]), (2, 1, 1))


@trap("bounds that may overflow", base="affine", reason="may overflow float32")
def _(p):
    p.weights["bounds.upper_slope"] = np.full_like(p.weights["bounds.upper_slope"], 3e38)


@trap("a bfloat16 head", base="strict", reason="expected F32")
def _(p):
    p.weights["heads.weight"] = p.weights["heads.weight"].astype("f2")


@trap("a float64 head, rounded when it is loaded", base="strict", reason="expected F32")
def _(p):
    p.weights["heads.weight"] = p.weights["heads.weight"].astype("f8")


@trap("a head of the wrong shape", base="strict", reason="expected F32 of shape")
def _(p):
    p.weights["heads.weight"] = p.weights["heads.weight"][:, :, :2]


@trap("a head transposed", base="labels", reason="expected F32 of shape")
def _(p):
    p.weights["heads.weight"] = np.ascontiguousarray(p.weights["heads.weight"].transpose(0, 2, 1))


@trap("heads in another order", base="strict", reason="not proved")
def _(p):
    p.weights["heads.bias"] = p.weights["heads.bias"][::-1].copy()


@trap("a tensor is missing", base="strict", reason="missing")
def _(p):
    del p.weights["bounds.upper"]


@trap("a fallback that breaks a rule", base="strict", reason="the fallback output breaks it")
def _(p):
    p.weights["heads.fallback"] = -p.weights["heads.fallback"]


@trap("a fallback that breaks an exclusion", base="labels", reason="the fallback output breaks it")
def _(p):
    p.weights["heads.fallback"] = np.zeros_like(p.weights["heads.fallback"])


@trap("a fallback of NaN", base="strict", reason="NaN or infinity")
def _(p):
    p.weights["heads.fallback"] = np.full_like(p.weights["heads.fallback"], np.nan)


@trap("a clamp program without fallback", base="strict", reason=r"heads\.fallback")
def _(p):
    del p.weights["heads.fallback"]


@trap("a stray fallback that a loader would use", base="strict", reason="not part of the stated program")
def _(p):
    p.document["program"]["clip"] = "where"
    p.weights["heads.fallback"] = np.full_like(p.weights["heads.fallback"], 99)


@trap("stray slopes that a loader would use", base="strict", reason="not part of the stated program")
def _(p):
    for side in ("lower", "upper"):
        p.weights[f"bounds.{side}_slope"] = np.full((3, 1), 99, "f4")


@trap("a tensor of no program", base="strict", reason="not part of the stated program")
def _(p):
    p.weights["heads.scale"] = np.float32([2.0])


@trap("affine bounds clipped by a clamp that lets NaN through", base="affine", reason="unknown kind")
def _(p):
    p.document["program"]["clip"] = "clamp"


@trap("a pass-through behind a clamp", base="strict", reason="passthrough")
def _(p):
    p.weights["heads.passthrough"] = np.zeros((2, 1, 1), "f4")


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
