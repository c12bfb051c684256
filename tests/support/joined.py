"""Heads of rules in ONNX files, behind a model that answers whatever it is handed, or behind a stored one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from smle.certificates.document import Certificate, arrays_of
from smle.certificates.rules import certify_rules
from smle.export.backbone import Backbone
from smle.export.files import _sealed
from smle.export.graph import certified_program, graph_model, interface_of
from smle.export.proposals import proposals_of
from smle.rules import Specification
from smle.storage import ModelRecord
from smle_check.onnx.program import EMBEDDING
from support.exported import Exported, feed

ANSWERS = "answers of the model"


def handed(m: int) -> Backbone:
    """A model that answers what it is handed."""
    value = helper.make_tensor_value_info(ANSWERS, TensorProto.FLOAT, ["N", m])
    return Backbone([helper.make_node("Identity", [ANSWERS], [EMBEDDING])], [], [value])


def joined(
    spec: Specification,
    certificate: Certificate | None = None,
    *,
    monitor: bool = True,
    model: Backbone | None = None,
    proposals: tuple[list[Backbone], int] | None = None,
) -> Exported:
    """Return the head of rules as ONNX, with its certificate; `proposals` in place of the nearest allowed answers."""
    if certificate is None:
        certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    interface = interface_of(spec, monitor=monitor)
    if proposals is None and "check.range" in certificate.tensors:
        proposals = proposals_of(certificate)
    nodes, count = proposals or ([], 1)
    program = certified_program(interface, certificate, certificate.tensors, proposals=count)
    titles = [rule.name for rule in spec.rules]
    graph = graph_model(interface, program, model or handed(len(spec.targets)), titles, nodes)
    data = graph.SerializeToString(deterministic=True)
    record = ModelRecord(arrays_of(certificate.tensors), {}, spec.to_yaml(), certificate)
    return Exported(spec, record, data, _sealed(certificate, data))


def flushing(data: bytes) -> onnxruntime.InferenceSession:
    """A session that reads subnormal numbers as zero."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def asked(
    running: onnxruntime.InferenceSession, spec: Specification, X: np.ndarray, answers: np.ndarray
) -> dict[str, Any]:
    """Return the outputs for encoded rows and handed answers."""
    names = [output.name for output in running.get_outputs()]
    return dict(zip(names, running.run(None, {**feed(spec, X), ANSWERS: answers.astype(np.float32)}), strict=True))
