"""Exports compute what the head of their cell computes, and outside verifiers confirm them."""

import os
import re
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from smle import Specification
from smle.certificates.agreement import cells_of
from smle.errors import NotCertifiedError, RuleError
from smle.graphs.backbone import layers_of
from smle.storage import ModelRecord
from studies.verifier_export import cell_specification, write_cell, write_cells
from support import ask_verifier
from support.exported import MIXED, Exported, hand_made, untrained
from tests.support.sampling import hard_points

REAL = ["braking", "clauses", "affine", "affine without gate", "dose", "strict", "labels", "affine labels"]


def head_outputs(exported: Exported, cell: int, X: np.ndarray) -> np.ndarray:
    """The head of a cell behind the backbone, in float64, straight from the definition."""
    w = {name: value.astype(float) for name, value in exported.record.weights.items()}
    z = X.astype(float)
    layers = layers_of(exported.record.weights)
    for i, (W, b) in enumerate(layers):
        z = z @ W.T + b
        z = z if i == len(layers) - 1 else np.maximum(z, 0)
    lower, upper = w["bounds.lower"], w["bounds.upper"]
    if "bounds.lower_slope" in w:
        lower, upper = X @ w["bounds.lower_slope"].T + lower, X @ w["bounds.upper_slope"].T + upper
    y = np.minimum(np.maximum(z, lower), upper) @ w["heads.weight"][cell].T + w["heads.bias"][cell]
    return y + X @ w["heads.passthrough"][cell].T if "heads.passthrough" in w else y


@pytest.mark.parametrize("name", REAL)
def test_exports_compute_what_the_heads_compute(name, tmp_path):
    exported = hand_made(name)
    X = next(iter(hard_points(exported.spec, np.random.default_rng(0), 200, dtype=np.float32)))
    for cell in range(len(exported.record.weights["heads.weight"])):
        place = tmp_path / f"{cell}.onnx"
        write_cell(exported.record, cell, place)
        running = onnxruntime.InferenceSession(place)
        Y = np.concatenate([running.run(None, {"x": row[None]})[0] for row in X])
        expected = head_outputs(exported, cell, X)
        assert np.abs(Y - expected).max() < 1e-4 * (1 + np.abs(expected).max())


@pytest.mark.parametrize("name", REAL)
def test_properties_state_what_the_cell_requires(name, tmp_path):
    """Read back from VNN-LIB, the property is broken by exactly the outputs that break a rule of the cell."""
    exported = hand_made(name)
    spec, cells = exported.spec, cells_of(exported.record.certificate, exported.spec)
    rng = np.random.default_rng(0)
    for cell in range(len(exported.record.weights["heads.weight"])):
        write_cell(exported.record, cell, tmp_path / "cell.onnx")
        required = cell_specification(spec, cells, cell)
        read = Specification.from_vnnlib(tmp_path / "cell.vnnlib")
        for X in hard_points(spec, rng, 60, dtype=np.float64):
            for x in X:
                x = [min(max(Fraction(v), a), b) for v, a, b in zip(x.tolist(), spec.lower, spec.upper, strict=True)]
                y = [Fraction(v) for v in rng.normal(size=len(spec.targets)).round(2).tolist()]
                assert bool(required.violated(x, y)) == bool(read.violated(x, y))


def test_rules_of_the_cell_are_those_of_the_specification():
    exported = hand_made("braking")
    cells = cells_of(exported.record.certificate, exported.spec)
    seen = set()
    for cell, active in enumerate(cells):
        names = [rule.name for rule in cell_specification(exported.spec, cells, cell).rules]
        assert "range" in names
        assert len(names) == len(active) + 1
        seen |= set(names)
    assert seen == {"emergency", "tailgating", "phantom", "range"}


def test_all_cells_at_once(tmp_path):
    exported = hand_made("braking")
    write_cells(exported.record, tmp_path / "cells")
    count = len(exported.record.weights["heads.weight"])
    names = sorted(p.name for p in (tmp_path / "cells").iterdir())
    assert names == sorted(f"cell_{c}.{kind}" for c in range(count) for kind in ("onnx", "vnnlib"))


def test_refusals(tmp_path):
    exported = hand_made("affine")
    with pytest.raises(ValueError, match="Expected a cell in 0"):
        write_cell(exported.record, 99, tmp_path / "cell.onnx")
    with pytest.raises(RuleError, match="real inputs only"):
        write_cell(untrained(MIXED).record, 0, tmp_path / "cell.onnx")
    bare = ModelRecord(exported.record.weights, {}, exported.record.rules, None)
    with pytest.raises(NotCertifiedError):
        write_cell(bare, 0, tmp_path / "cell.onnx")
    free = untrained("inputs: {a: [0, 1]}\noutputs: [y]\nrules: [{name: r, when: a <= 0.5, then: y >= 0}]\n")
    write_cell(free.record, 0, tmp_path / "cell.onnx")
    with pytest.raises(NotCertifiedError, match="Cell 1 is free"):
        write_cell(free.record, 1, tmp_path / "cell.onnx")


@pytest.mark.parametrize("name", REAL)
def test_plain_exports_compute_literals_and_half_spaces(name, tmp_path):
    """Their property, read by its signs alone, is satisfied where a rule is broken, and not where all hold by far."""
    exported = hand_made(name)
    cells = cells_of(exported.record.certificate, exported.spec)
    X = np.concatenate(list(hard_points(exported.spec, np.random.default_rng(0), 150, dtype=np.float32)))
    found = {True: 0, False: 0}
    for cell in range(len(exported.record.weights["heads.weight"])):
        for shift in (0.0, 0.7, -25.0):  # the head as certified, and moved so that rules break
            weights = {**exported.record.weights}
            weights["heads.bias"] = weights["heads.bias"] + np.float32(shift)
            record = ModelRecord(weights, {}, exported.record.rules, exported.record.certificate)
            write_cell(record, cell, tmp_path / "cell.onnx", plain=True)
            required = cell_specification(exported.spec, cells, cell)
            running = onnxruntime.InferenceSession(tmp_path / "cell.onnx")
            cases = plain_cases((tmp_path / "cell.vnnlib").read_text())
            Y = head_outputs(Exported(exported.spec, record, b"", b""), cell, X)
            for x, y in zip(X, Y, strict=True):
                signs = running.run(None, {"x": x[None]})[0][0]
                if np.abs(signs).min() < 1e-4:  # too close for floats
                    continue
                satisfied = any(all(sign * signs[i] > 0 for i, sign in case) for case in cases)
                broken = bool(required.violated([Fraction(v) for v in x.tolist()], [Fraction(v) for v in y.tolist()]))
                assert satisfied == broken
                found[broken] += 1
    assert min(found.values()) > 9


def plain_cases(text: str) -> list[list[tuple[int, int]]]:
    """Read the cases of a plain property: (output, sign) that must be, all of them."""
    return [
        [(int(i), 1 if op == ">=" else -1) for op, i in re.findall(r"\((>=|<=) Y_(\d+) 0\.0\)", line)]
        for line in text.splitlines()
        if line.startswith("    (and")
    ]


def broken_somewhere(place, spec: Specification) -> list[str]:
    """Ask Marabou for inputs that break a rule of a export's cell; return the rules that it says can be broken."""
    from maraboupy import Marabou

    found = []
    options = Marabou.createOptions(verbosity=0, timeoutInSeconds=600)
    for rule in spec.rules:
        for region in rule.regions:
            for clause in rule.requirement.expanded():
                network = Marabou.read_onnx(str(place))
                x, y = network.inputVars[0].flatten(), network.outputVars[0].flatten()
                for v, low, high in zip(x, spec.lower, spec.upper, strict=True):
                    network.setLowerBound(int(v), float(low))
                    network.setUpperBound(int(v), float(high))
                for row in region.rows:
                    columns = [int(x[i]) for i, _ in row.coefficients]
                    network.addInequality(columns, [float(q) for _, q in row.coefficients], float(row.bound))
                for literal in clause.literals:  # all literals broken: -(g.y + s.x) <= -h
                    terms = [(int(y[i]), -float(q)) for i, q in literal.outputs]
                    terms += [(int(x[i]), -float(q)) for i, q in literal.inputs]
                    network.addInequality([v for v, _ in terms], [q for _, q in terms], -float(literal.bound))
                answer, _, _ = network.solve(verbose=False, options=options)
                assert answer in ("sat", "unsat"), answer
                if answer == "sat":
                    found.append(rule.name)
    return found


@pytest.fixture
def marabou():
    """maraboupy warns on import about parsers that it does not have."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("maraboupy.Marabou", reason="maraboupy is not installed: pip install maraboupy")


@pytest.mark.parametrize("name", ["braking", "clauses", "affine", "dose"])
def test_marabou_confirms_exports(name, tmp_path, marabou):
    exported = hand_made(name)
    proved = exported.record.certificate.proved
    cells = cells_of(exported.record.certificate, exported.spec)
    assert min(item.margin for item in proved) > 1e-5
    for cell in range(len(exported.record.weights["heads.weight"])):
        write_cell(exported.record, cell, tmp_path / "cell.onnx")
        assert broken_somewhere(tmp_path / "cell.onnx", cell_specification(exported.spec, cells, cell)) == []


def test_marabou_finds_a_export_that_is_not_safe(tmp_path, marabou):
    exported = hand_made("braking")
    weights = {**exported.record.weights}
    weights["heads.bias"] = weights["heads.bias"] - np.float32(0.3)
    record = ModelRecord(weights, {}, exported.record.rules, exported.record.certificate)
    cells = cells_of(exported.record.certificate, exported.spec)
    write_cell(record, 0, tmp_path / "cell.onnx")
    assert "emergency" in broken_somewhere(tmp_path / "cell.onnx", cell_specification(exported.spec, cells, 0))


def python_with(package: str) -> str:
    """Return the interpreter that SMLE_VERIFIERS names; the pins of verifiers differ from ours."""
    python = os.environ.get("SMLE_VERIFIERS")
    assert python, f"SMLE_VERIFIERS names no python that has {package}. `make audit-studies` makes one."
    return python


def ask(package: str, places: list[Path]) -> set[str]:
    script = ask_verifier.__file__
    command = [python_with(package), script, package, *places]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr
    answers = [line for line in done.stdout.splitlines() if line.startswith("answer: ")]
    assert len(answers) == len(places)
    return set(answers)


@pytest.mark.audit
@pytest.mark.parametrize(
    ("package", "name"),
    [
        *(("vibecheck", name) for name in ("braking", "clauses", "affine", "dose")),
        ("pynever", "affine"),
        ("pynever", "dose"),
    ],
)
def test_another_verifier_confirms_plain_exports(package, name, tmp_path):
    exported = hand_made(name)
    places = [tmp_path / f"cell_{cell}.onnx" for cell in range(len(exported.record.weights["heads.weight"]))]
    for cell, place in enumerate(places):
        write_cell(exported.record, cell, place, plain=True)
    assert ask(package, places) == {"answer: holds"}


@pytest.mark.audit
@pytest.mark.parametrize("package", ["vibecheck", "pynever"])
def test_another_verifier_finds_a_plain_export_that_is_not_safe(package, tmp_path):
    exported = hand_made("dose")
    weights = {**exported.record.weights}
    weights["heads.bias"] = weights["heads.bias"] - np.float32(20)
    record = ModelRecord(weights, {}, exported.record.rules, exported.record.certificate)
    write_cell(record, 0, tmp_path / "t.onnx", plain=True)
    assert ask(package, [tmp_path / "t.onnx"]) == {"answer: broken"}
