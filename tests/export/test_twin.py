"""Twins compute what the head of their cell computes, and outside verifiers confirm them."""

from fractions import Fraction

import numpy as np
import onnxruntime
import pytest
from exported import MIXED, Exported, hand_made, untrained

from smle import Specification
from smle.assurance import arrangement_of
from smle.bench.sampling import hard_points
from smle.errors import NotCertifiedError, RuleError
from smle.export import write_onnx, write_twin
from smle.export.backbone import layers_of
from smle.export.twin import cell_specification
from smle.storage import ModelRecord

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
def test_twins_compute_what_the_heads_compute(name, tmp_path):
    exported = hand_made(name)
    X = next(iter(hard_points(exported.spec, np.random.default_rng(0), 200, dtype=np.float32)))
    for cell in range(len(exported.record.weights["heads.weight"])):
        place = tmp_path / f"{cell}.onnx"
        write_twin(exported.record, cell, place)
        running = onnxruntime.InferenceSession(place)
        Y = np.concatenate([running.run(None, {"x": row[None]})[0] for row in X])
        expected = head_outputs(exported, cell, X)
        assert np.abs(Y - expected).max() < 1e-4 * (1 + np.abs(expected).max())


@pytest.mark.parametrize("name", REAL)
def test_properties_state_what_the_cell_requires(name, tmp_path):
    """Read back from VNN-LIB, the property is broken by exactly the outputs that break a rule of the cell."""
    exported = hand_made(name)
    spec, arrangement = exported.spec, arrangement_of(exported.record.certificate, exported.spec)
    rng = np.random.default_rng(0)
    for cell in range(len(exported.record.weights["heads.weight"])):
        write_twin(exported.record, cell, tmp_path / "twin.onnx")
        required = cell_specification(spec, arrangement, cell)
        read = Specification.from_vnnlib(tmp_path / "twin.vnnlib")
        for X in hard_points(spec, rng, 60, dtype=np.float64):
            for x in X:
                x = [min(max(Fraction(v), a), b) for v, a, b in zip(x.tolist(), spec.lower, spec.upper, strict=True)]
                y = [Fraction(v) for v in rng.normal(size=len(spec.targets)).round(2).tolist()]
                assert bool(required.violated(x, y)) == bool(read.violated(x, y))


def test_rules_of_the_cell_are_those_of_the_specification():
    exported = hand_made("braking")
    arrangement = arrangement_of(exported.record.certificate, exported.spec)
    seen = set()
    for cell, active in enumerate(arrangement.cells):
        names = [rule.name for rule in cell_specification(exported.spec, arrangement, cell).rules]
        assert "range" in names
        assert len(names) == len(active) + 1
        seen |= set(names)
    assert seen == {"emergency", "tailgating", "phantom", "range"}


def test_all_cells_at_once(tmp_path):
    exported = hand_made("braking")
    write_onnx(exported.record, tmp_path / "model.onnx", twin=tmp_path / "twins")
    count = len(exported.record.weights["heads.weight"])
    names = sorted(p.name for p in (tmp_path / "twins").iterdir())
    assert names == sorted(f"cell_{c}.{kind}" for c in range(count) for kind in ("onnx", "vnnlib"))


def test_refusals(tmp_path):
    exported = hand_made("affine")
    with pytest.raises(ValueError, match="Expected a cell in 0"):
        write_twin(exported.record, 99, tmp_path / "twin.onnx")
    with pytest.raises(RuleError, match="real inputs only"):
        write_twin(untrained(MIXED).record, 0, tmp_path / "twin.onnx")
    bare = ModelRecord(exported.record.weights, {}, exported.record.rules, None)
    with pytest.raises(NotCertifiedError):
        write_twin(bare, 0, tmp_path / "twin.onnx")
    free = untrained("inputs: {a: [0, 1]}\noutputs: [y]\nrules: [{name: r, when: a <= 0.5, then: y >= 0}]\n")
    write_twin(free.record, 0, tmp_path / "twin.onnx")
    with pytest.raises(NotCertifiedError, match="Cell 1 is free"):
        write_twin(free.record, 1, tmp_path / "twin.onnx")


def broken_somewhere(place, spec: Specification) -> list[str]:
    """Ask Marabou for inputs that break a rule of a twin's cell; return the rules that it says can be broken."""
    from maraboupy import Marabou

    found = []
    options = Marabou.createOptions(verbosity=0, timeoutInSeconds=60)
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
def test_marabou_confirms_twins(name, tmp_path, marabou):
    exported = hand_made(name)
    proved = exported.record.certificate.proved
    arrangement = arrangement_of(exported.record.certificate, exported.spec)
    assert min(item.margin for item in proved) > 1e-5
    for cell in range(len(exported.record.weights["heads.weight"])):
        write_twin(exported.record, cell, tmp_path / "twin.onnx")
        assert broken_somewhere(tmp_path / "twin.onnx", cell_specification(exported.spec, arrangement, cell)) == []


def test_marabou_finds_a_twin_that_is_not_safe(tmp_path, marabou):
    exported = hand_made("braking")
    weights = {**exported.record.weights}
    weights["heads.bias"] = weights["heads.bias"] - np.float32(0.3)
    record = ModelRecord(weights, {}, exported.record.rules, exported.record.certificate)
    arrangement = arrangement_of(exported.record.certificate, exported.spec)
    write_twin(record, 0, tmp_path / "twin.onnx")
    assert "emergency" in broken_somewhere(tmp_path / "twin.onnx", cell_specification(exported.spec, arrangement, 0))
