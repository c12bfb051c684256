"""Every part of a document declares its work before it is done: small files that ask for much are refused at once."""

import random
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import smle_check
from smle import Specification
from smle.errors import RuleError
from smle.heads.rules.rules_author import certify_rules
from smle_check.work import BASE, Work
from support.builder import Package, refusal, repacked

SECONDS, BYTES = 6.0, 150 << 20


def quickly(call: Callable[[], object]) -> object:
    """Return what a call returns, which takes little time and little memory."""
    tracemalloc.start()
    start = time.process_time()
    try:
        result = call()
    finally:
        used, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert used < SECONDS, used
    assert peak < BYTES, peak
    return result


def head(rules: str, inputs: str = "x: [0, 10], z: [0, 10]", outputs: str = "outputs: [y, w]") -> Package:
    return repacked(certify_rules(Specification.from_yaml(f"inputs: {{{inputs}}}\n{outputs}\nrules:\n{rules}")))


@pytest.mark.parametrize("count", ["exactly", "at_least", "at_most"])
@pytest.mark.parametrize("place", ["then", "when"])
def test_counts_beyond_what_is_counted(count, place):
    condition = f"{count}(1000000000, {'y <= 1, w <= 1' if place == 'then' else 'x <= 1, z <= 1'})"
    text = f"then: '{condition}'" if place == "then" else f"when: '{condition}', then: y <= 1"
    rules = f"inputs: {{x: [0, 1], z: [0, 2]}}\noutputs: [y, w]\nrules: [{{name: r, {text}}}]\n"

    def read() -> str:
        try:
            return str(len(Specification.from_yaml(rules).rules[0].regions))
        except RuleError as error:
            return str(error)

    found = quickly(read)
    expected = {"then": "is always true" if count == "at_most" else "can never hold", "when": ""}[place]
    assert expected in str(found)


def test_rules_that_share_a_list_of_pairs():
    package = head("  - {name: r, then: 'at_most_one(a, b, c)'}\n", outputs="labels: [a, b, c]")
    spec = package.document["specification"]
    rule = spec["rules"][0]
    spec["rules"] = [{**rule, "name": f"r{i}", "exclusions": {"offset": 0, "count": 20_000}} for i in range(800)]
    package.block = struct.pack("<II", 0, 1) * 20_000
    assert "more work" in str(quickly(lambda: refusal(package)))


def test_a_million_exclusions_are_read_and_hold_their_pairs():
    """They are legitimate: 1,500 labels of which one may be on."""
    labels = 1500
    pairs = np.array(np.triu_indices(labels, 1), dtype="<u4").T.copy()
    package = head("  - {name: r, then: 'at_most_one(a, b)'}\n", outputs="labels: [a, b]")
    document = package.document["specification"]
    document["outputs"] = [{"kind": "label", "name": f"l{i}"} for i in range(labels)]
    document["rules"][0]["exclusions"] = {"offset": 0, "count": len(pairs)}
    block = pairs.tobytes()
    spec = quickly(lambda: smle_check.StatedSpecification(document, block, Work(len(block))))
    found = spec.rules[0].exclusions
    assert len(found) == len(pairs) > 1_000_000
    assert found[1499] == tuple(pairs[1499])
    assert found[-2:] == [tuple(pair) for pair in pairs[-2:]]
    assert next(iter(found)) == (0, 1)


def varint(number: int) -> bytes:
    result = b""
    while number > 127:
        result, number = result + bytes([number & 127 | 128]), number >> 7
    return result + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


@pytest.mark.parametrize("inner", [1, 13], ids=["nodes", "value_info"])
def test_empty_parts_of_an_onnx_file(inner, tmp_path):
    """In a process of limited means: watched by `quickly` it is ten times slower."""
    resource = pytest.importorskip("resource", reason="limits of processes are those of Unix")
    graph = field(inner, b"") * 2_250_000
    (tmp_path / "m.onnx").write_bytes(b"\x08\x09" + field(7, graph) + field(8, b"\x10\x14"))

    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (3, 3))

    code = "import sys; sys.path[:0] = sys.argv[1:2]\nfrom smle_check.onnx.graph import Graph\n"
    code += "Graph(open(sys.argv[2], 'rb').read())"
    place = str(Path(smle_check.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", code, place, str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited, check=False)
    assert "Rejected" in done.stderr
    assert "more work" in done.stderr, done.stderr


@pytest.mark.parametrize("place", ["rows", "literals", "multipliers"])
def test_long_denominators(place):
    """Their sums grow with every number: 800 of 600 digits have a common denominator of half a million."""
    rng = random.Random(0)
    package = head("  - {name: p, when: x + z <= 3, then: y + w <= x + z}\n  - {name: q, then: y <= 100}\n")
    document = package.document

    def long() -> str:
        return f"1/{rng.getrandbits(1900) | 1 << 1900 | 1}"

    if place == "rows":
        row = document["specification"]["rows"][0]
        document["specification"]["rows"] = [
            {**row, "terms": [[0, long()], [1, long()]], "bound": long()} for _ in range(300)
        ]
    elif place == "literals":
        clauses = document["specification"]["rules"][0]["clauses"]
        literal = clauses[0][0]
        clauses[0] = [{**literal, "y": [[0, long()], [1, long()]], "bound": long()} for _ in range(300)]
    else:
        spec = document["specification"]
        spec["inputs"] = [{"name": f"x{k}", "lower": "0", "upper": "10"} for k in range(2)]
        row = spec["rows"][0]
        spec["rows"] = [{**row, "bound": str(3 + k)} for k in range(300)]
        spec["regions"] = [list(range(300)), *spec["regions"][1:]]
        mu = [[k, long()] for k in range(300)]
        work = Work(100_000)
        stated = smle_check.StatedSpecification(spec, b"", work)
        facts = smle_check.heads.known.Facts(smle_check.heads.known.Boxes(stated))
        with pytest.raises(smle_check.Rejected, match=r"denominators|more work"):
            quickly(lambda: facts.most({0: stated.sizes[0]}, stated.sizes[0], 0, None, mu))
        return
    assert "denominators that are too long together" in str(quickly(lambda: refusal(package)))


def test_many_pairs_that_touch_are_settled_together():
    package = head("  - {name: p, then: y >= 1}\n  - {name: q, then: y <= 1}\n")
    for rule in package.document["specification"]["rules"]:
        rule["clauses"] = rule["clauses"] * 800
    for side in ("lower", "upper"):
        package.weights[f"clips.constant_{side}"] = np.full(800, 1, dtype="<f4")
    package.seal()
    assert len(quickly(package.check)) == 1600


def test_many_pairs_that_must_be_compared_are_refused():
    """Half of them are apart in x, half in z: no one input tells all of them apart."""
    apart = [("x", "<", 5), ("z", "<", 5), ("x", ">=", 5), ("z", ">=", 5)]
    rules = "".join(
        f"  - {{name: r{i}, when: {a} {op} {c}, then: {'y <= 1' if op == '<' else 'y <= 2'}}}\n"
        for i, (a, op, c) in enumerate(apart)
    )
    package = head(rules)
    spec = package.document["specification"]
    low, high = "constant_lower", "constant_upper"
    literal = spec["rules"][0]["clauses"][0][0]
    lower = [{**literal, "y": [[0, "-1"]], "bound": "-3"}]
    upper = [{**literal, "y": [[0, "1"]], "bound": "1"}]
    both = [{**spec["rules"][0], "name": f"n{i}", "regions": [0, 1] if i % 2 else [2, 3]} for i in range(2)]
    both[0]["clauses"], both[1]["clauses"] = [lower] * 900, [upper] * 900
    spec["regions"] = [[0, 1], [2, 1], [2, 3], [0, 3]]  # each lower one is apart from each upper one, in x or z
    spec["regions"] = [sorted(region) for region in spec["regions"]]
    both[0]["regions"], both[1]["regions"] = [0, 2], [1, 3]
    spec["rules"] = both
    package.document["gate"]["regions"] = [0, 1, 2, 3]
    package.weights[f"clips.{low}"] = np.full(1800, 3, dtype="<f4")
    package.weights[f"clips.{high}"] = np.full(1800, 1, dtype="<f4")
    assert "more work" in str(quickly(lambda: refusal(package)))


def test_two_thousand_limits_on_steps_of_an_input_pass():
    steps = "".join(f"  - {{name: r{i}, when: {i} <= x < {i + 1}, then: {i} <= y <= {i}.5}}\n" for i in range(1000))
    text = f"inputs: {{x: [0, 1000]}}\noutputs: [y]\nrules:\n{steps}"
    package = repacked(certify_rules(Specification.from_yaml(text)))
    start = time.process_time()
    assert len(package.check()) == 2000
    assert time.process_time() - start < 5


@pytest.mark.parametrize("unit", [0.0, -1.0, 2.0**-101, 2.0**101, 5e-324])
def test_units_of_distances_are_sane(unit):
    package = head("  - {name: r, then: y + w <= 1}\n")
    package.weights["check.scale"] = np.array([1.0, unit])
    assert "check.scale" in refusal(package)


def test_work_counts_words_of_the_common_denominator():
    work = Work(0)
    assert work.left == BASE
    work.plan(10, "a part")
    assert work.left == BASE - 10
    work.state([smle_check.reading.Fraction(1, 2**200)], "numbers")
    work.plan(10, "a part")
    assert work.left == BASE - 10 - 10 * (1 + 201 // 64)
    with pytest.raises(smle_check.Rejected, match="a part: more work"):
        work.plan(BASE, "a part")
