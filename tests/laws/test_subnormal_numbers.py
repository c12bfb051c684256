"""Runtimes may treat subnormal numbers as zero. No input is subnormal here, and every rule holds all the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import smle_check
from smle.errors import RuleError
from smle.graphs.backbone import mlp_backbone
from smle.heads.box.network.assurance import certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.networks.backbones import MLP
from smle.rules import Specification
from smle.rules.membership import broken
from support.exported import feed, model_of, untrained
from support.runtimes import Case, installed_runtime

SIGNS = """
inputs: {a: [-1, 1], b: [-2, 2]}
outputs: [y]
rules:
  - {name: negative, when: a < 0, then: y <= -0.1}
  - {name: not negative, when: a >= 0, then: y >= 0.1}
"""

FOUR = """
inputs: {a: [-1, 1], b: [-2, 2]}
outputs: [y, z]
rules:
  - {name: below, when: a < 0, then: y <= -0.1}
  - {name: above, when: a > 0, then: y >= 0.1}
  - {name: at, when: a >= 0 and a <= 0, then: -0.01 <= y <= 0.01}
  - {name: left, when: b < 0 and a <= 0.5, then: z <= 3}
  - {name: right, when: b >= 0, then: z >= 3.5}
"""

ONE = """
inputs: {a: [-1, 1], b: [-2, 2]}
outputs: [y]
rules:
  - {name: quadrant, when: a > 0 and b < 0, then: y >= 0.1}
"""

SMALLEST = 2.0**-126
POINTS = (0.0, -0.0, SMALLEST, -SMALLEST, 1e-30, -1e-30, 0.5, 1.0, -1.0)


def grid(kind):
    a, b = np.meshgrid(POINTS, POINTS)
    return np.stack([a.ravel(), b.ravel()], axis=1).astype(kind)


@pytest.fixture
def flushing():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormal numbers")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("text", [SIGNS, FOUR, ONE])
def test_torch_with_subnormal_numbers_flushed(flushing, text, kind):
    torch.manual_seed(1)
    spec = Specification.from_yaml(text)
    network = BoxNetwork(MLP((8,), 6, shift=np.zeros(2), scale=np.ones(2)), spec, embedding=6)
    network.heads.raw_weight.data.normal_()
    network = project(network)
    certify(network).check()
    X = grid(kind)
    with torch.no_grad():
        batch = network(torch.from_numpy(X)).numpy()
        single = np.concatenate([network(torch.from_numpy(X[i : i + 1])).numpy() for i in range(len(X))])
    for answers in (batch, single):
        assert not broken(spec, X, answers.astype(np.float64)).any()


def test_onnxruntime_with_subnormal_numbers_as_zero():
    """In a process of its own: onnxruntime looks at the option when the first session is made."""
    specs, cases, X = [], [], grid(np.float32)
    batches = [X, *(X[i : i + 1] for i in range(len(X)))]
    for text in (SIGNS, FOUR, ONE):
        for monitor in (True, False):
            exported = untrained(text)
            model = model_of(exported.spec, exported.record, mlp_backbone(exported.record.weights), monitor=monitor)
            feeds = [feed(exported.spec, rows) for rows in batches]
            specs.append(exported.spec)
            cases.append(Case(model.SerializeToString(), exported.spec.targets, feeds))
    for spec, found in zip(specs, installed_runtime().answers(cases, flush=True), strict=True):
        for rows, answers in zip(batches, found, strict=True):
            assert not broken(spec, rows, np.concatenate(answers, axis=1).astype(np.float64)).any()


def test_no_constant_of_domain_and_gate_is_subnormal():
    tensors = untrained(FOUR).record.certificate.tensors
    for name, tensor in tensors.items():
        if name.startswith(("domain.", "gate.constants", "gate.coefficients", "gate.thresholds")):
            numbers = np.frombuffer(tensor.data, dtype={"F32": "<f4", "F64": "<f8"}[tensor.dtype])
            assert not ((numbers != 0) & (np.abs(numbers) < np.finfo(numbers.dtype).tiny)).any(), name


@pytest.mark.parametrize("text", ["x <= 1e-40", "x > -1e-39"])
def test_conditions_too_close_to_zero_are_refused(text):
    rule = f"{{name: near zero, when: {text}, then: y >= 0}}"
    spec = Specification.from_yaml(f"{{inputs: {{x: [-1, 1]}}, outputs: [y], rules: [{rule}]}}\n")
    with pytest.raises(RuleError, match=r"too close to 0.*another unit"):
        BoxNetwork(MLP((4,), 4, shift=np.zeros(1), scale=np.ones(1)), spec, embedding=4)


def test_the_checker_refuses_subnormal_constants_by_itself():
    data = {
        "inputs": [{"name": "x", "lower": "-1", "upper": "1"}],
        "one_hot": [],
        "outputs": [{"name": "y", "kind": "number"}],
        "rows": [{"terms": [[0, "1"]], "bound": "0x1.0p-140", "strict": False}],
        "regions": [[0]],
        "rules": [],
    }
    with pytest.raises(smle_check.Rejected, match="too close to 0 for float32"):
        smle_check.StatedSpecification(data, b"")
