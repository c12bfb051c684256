"""What is exported runs: it is run once before it is called proved, and its size is no reason to refuse it."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import smle
from smle import Specification
from smle.errors import CertificateError
from smle.graphs.backbone import onnx_backbone
from smle.graphs.certified_files import companion, write_certified
from smle.heads.rules.rules_author import certify_rules
from support.exported import untrained


@pytest.mark.parametrize("when", ["x >= 0 or x < 0", "x >= 0", "x < 0.5 or x >= 0.5"])
@pytest.mark.parametrize("bounds", ["fixed", "affine"])
def test_a_box_whose_gate_has_regions_that_are_always_or_never_active(when, bounds):
    text = f"inputs: {{x: [0, 1]}}\noutputs: [y]\nrules:\n  - {{name: a, when: {when}, then: y <= 1}}\n"
    model = untrained(text, bounds)
    session = onnxruntime.InferenceSession(model.onnx, providers=["CPUExecutionProvider"])
    y = session.run(["y"], {"x": np.float32([[0.0], [0.5], [1.0], [np.nan]])})[0]
    assert (y <= 1).all()


def test_a_file_that_does_not_run_is_not_written(tmp_path):
    """The checker reads no model: this one makes two rows of each."""
    spec = Specification.from_yaml("inputs: {x: [0, 1]}\noutputs: [y]\nrules:\n  - {name: a, then: y <= 1}\n")
    graph = helper.make_graph(
        [helper.make_node("Concat", ["features", "features"], ["out"], axis=0)],
        "g",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", 1])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["M", 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    path = tmp_path / "m.onnx"
    with pytest.raises(CertificateError, match="does not run in onnxruntime"):
        write_certified(
            spec, certificate, smle.certificates.document.arrays_of(certificate.tensors), onnx_backbone(model), path,
            monitor=True,
        )  # fmt: skip
    assert not path.exists()
    assert not companion(path).exists()
