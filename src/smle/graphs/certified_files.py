"""ONNX files with certificates beside them. Every file written was accepted by the ONNX checker."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save as serialize

import smle_check
from smle.certificates.agreement import require_same_rules
from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.certificates.gate import domain_arrays
from smle.errors import CertificateError, ModelFormatError, NotCertifiedError, RuleError
from smle.extras import require
from smle.files import replacing
from smle.graphs.backbone import WIDE, mlp_backbone, onnx_backbone, wide_features
from smle.graphs.head_graph import certified_program, graph_model, inputs_of, interface_of, plain_program
from smle.heads.table import head_of
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification
from smle.tables.further import FurtherColumns
from smle_check.onnx.check_file import FORMAT
from smle_check.onnx.nodes import FEATURES, STACKED, Interface
from smle_check.reading import BACKBONE

if TYPE_CHECKING:
    from smle.storage import ModelRecord

__all__ = ["CheckedFile", "check_onnx", "companion", "read_checked", "write_certified", "write_onnx"]

FilePath = str | os.PathLike[str]


def write_onnx(
    record: ModelRecord,
    path: FilePath,
    *,
    backbone: Any | FilePath | None = None,
    monitor: bool = True,
    stacked: bool = False,
) -> None:
    """Write a model as ONNX, and `<path>.certificate.json` beside it.

    Inputs and outputs have the names of the rules; the head computes exactly what is certified. A model without rules
    is written without a certificate.

    Args:
        record: The model.
        path: The ONNX file to write.
        backbone: Another backbone to serve with the certified head, as an ONNX model or its path: one input `features`
            (batch, d), one output (batch, n), such as a quantized copy of `backbone_model(record)`. For a stored model,
            another one that reads columns of the same table, with one output (batch, m).
        monitor: Add the outputs `in_domain`, `outside_input` and `active_rules`. False: a smaller and faster graph.
        stacked: Write all answers to one tensor `outputs` (rows, outputs), in the order of the rules, instead of one
            tensor per name; labels also to `labels`. Faster for single rows and many outputs.

    Raises:
        NotCertifiedError: If the model has rules but no certificate.
        CertificateError: If the certificate is not accepted, or the file does not run in onnxruntime.
        ModelFormatError: If the model in front or the kind of head has no graph, or `path` is the model.onnx of a
            model folder.
        RuleError: If names of the rules cannot be used in the graph, or a choice cannot be stacked.
        MissingDependencyError: If onnx or onnxruntime is not installed.
    """
    spec = record.specification
    if record.certificate is not None:
        _require_same_weights(record, record.certificate)
    if record.onnx is not None:
        part = onnx_backbone(record.onnx if backbone is None else backbone, columns=inputs_of(spec))
    else:
        source = FEATURES if record.further is None else WIDE
        part = mlp_backbone(record.weights, source=source) if backbone is None else (
            onnx_backbone(backbone, source=source)
        )  # fmt: skip
        if record.further is not None:
            part = part.behind(wide_features(FurtherColumns.from_json(record.further)))
    write_certified(spec, record.certificate, record.weights, part, Path(path), monitor=monitor, stacked=stacked)


def _require_same_weights(record: ModelRecord, certificate: Certificate) -> None:
    bound = [role for role in ("head", "backbone") if certificate.document["binds"][role] is not None]
    changed = [role for role in record.changed() if role in bound]
    if changed:
        raise NotCertifiedError(
            f"The weights were changed after they were certified ({', '.join(changed)}). Nothing was written. Load or "
            "fit the model again."
        )


def check_onnx(path: FilePath) -> smle_check.OnnxResult:
    """Check an ONNX file with the certificate beside it; return what is proved, matched and only asserted.

    If the certificate file has the text of the rules, it is compiled again and must state what is proved.

    Raises:
        CertificateError: If the checker rejects it; the message says why.
    """
    return read_checked(path).result


class CheckedFile(NamedTuple):
    """An accepted ONNX file: its bytes, what is proved, and the texts that the certificate binds.

    `spec` and `model` (model.json) are None if the certificate file does not have their text.
    """

    data: bytes
    result: smle_check.OnnxResult
    spec: Specification | None
    model: str | None


def read_checked(path: FilePath) -> CheckedFile:
    """Check as `check_onnx` does; also return the checked bytes and the texts bound to them."""
    try:
        data, sealed = smle_check.read_onnx(os.fspath(path))
        result = smle_check.check_onnx(data, sealed)
        document = smle_check.read_json(sealed, "onnx certificate")
    except smle_check.Rejected as reason:
        raise CertificateError(str(reason)) from None
    if document["rules"] is None:
        return CheckedFile(data, result, None, document["model"])
    files = {role: document[role].encode() for role in ("model", "rules") if document[role] is not None}
    block = base64.b64decode(document["block"] or "")
    certificate = Certificate(smle_check.canonical(document["certificate"]), block, {}, files)
    try:
        spec = Specification.from_yaml(document["rules"] + "\n")
    except RuleError as error:
        raise CertificateError(f"The rules in the certificate file cannot be read: {error}") from None
    require_same_rules(certificate, spec)
    read = result.interface
    if read != interface_of(spec, monitor=read.monitored, head="grid" if read.steps else "", stacked=read.stacked):
        raise CertificateError(
            "The graph reads its inputs or outputs in another way than its rules say (missing values, whole numbers, "
            "choices). Export the model again."
        )
    return CheckedFile(data, result, spec, document["model"])


def companion(path: Path) -> Path:
    """Return the path of the certificate of an ONNX file."""
    return path.with_name(path.name + ".certificate.json")


def write_certified(
    spec: Specification,
    certificate: Certificate | None,
    weights: dict[str, npt.NDArray[np.generic]],
    backbone: Backbone,
    path: Path,
    *,
    monitor: bool,
    stacked: bool = False,
) -> None:
    """Write head and backbone as ONNX, with a certificate beside it if there are rules. Raises as `write_onnx` does."""
    if path.name == "model.onnx" and (path.parent / "model.safetensors").exists():
        raise ModelFormatError(
            f"Cannot write '{path}': in a model folder that name is for the model in front of the head. Choose another "
            "place for the exported model."
        )
    kind = "" if certificate is None else certificate.document["program"]["head"]
    interface = interface_of(spec, monitor=monitor, head=kind, stacked=stacked)
    if stacked:
        _require_stackable(interface)
    tensors = _head(tensors_of(weights))
    if not spec.rules:
        tensors |= tensors_of(domain_arrays(spec))  # for `in_domain`
        data = graph_model(interface, plain_program(interface, tensors), backbone, []).SerializeToString(
            deterministic=True
        )
        companion(path).unlink(missing_ok=True)
        _replace({path: data})
        return
    if certificate is None:
        raise NotCertifiedError("This model has rules but no certificate. Expected a certified model to export.")
    require_same_rules(certificate, spec)
    if "heads.weight" in tensors and not tensors["heads.weight"].shape[0]:
        raise NotCertifiedError(
            "No rule of this model can ever be active, so there is nothing certified to export. See `smle rules`."
        )
    proposals, count = head_of(certificate).nodes(certificate)
    program = certified_program(interface, certificate, tensors, proposals=count)
    titles = [rule["name"] for rule in certificate.document["specification"]["rules"]]
    data = graph_model(interface, program, backbone, titles, proposals).SerializeToString(deterministic=True)
    sealed = _sealed(certificate, data)
    try:
        smle_check.check_onnx(data, sealed)
    except smle_check.Rejected as reason:
        raise CertificateError(f"The exported model was not accepted: {reason}") from None
    _run_once(data, interface, backbone)
    _replace({path: data, companion(path): sealed})


def _require_stackable(interface: Interface) -> None:
    names = [item.name for item in interface.outputs if item.kind == "choice"]
    if names:
        raise RuleError(f"Choices ({', '.join(names)}) are texts and cannot be stacked. Export with stacked=False.")
    if STACKED in interface.columns:
        raise RuleError(f"With stacked=True the answers are called '{STACKED}'. Rename the output of that name.")


def _run_once(data: bytes, interface: Interface, backbone: Backbone) -> None:
    """Run a file once before it is called proved; raise CertificateError if onnxruntime cannot load or run it.

    A backbone with inputs of its own is only loaded, since valid inputs are unknown.
    """
    runtime = require("onnxruntime", "ONNX export")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        if not backbone.inputs:
            feeds: dict[str, npt.NDArray[Any]] = {}
            for item in interface.inputs:
                text = [[item.categories[item.default]]] * 2 if item.categories else None
                feeds[item.name] = np.zeros((2, 1), np.float32) if text is None else np.array(text, dtype=object)
            session.run(None, feeds)
    except Exception as error:  # runtimes raise anything
        raise CertificateError(
            f"The exported model does not run in onnxruntime {runtime.__version__}: {error}"
        ) from error


def _sealed(certificate: Certificate, data: bytes) -> bytes:
    """Return the certificate file: the model's certificate, its digest, and that of the ONNX file."""
    document = {
        "format": FORMAT,
        "version": smle_check.VERSION,
        "onnx": smle_check.sha256(data),
        "model_certificate": smle_check.sha256(certificate.text),
        "certificate": certificate.document,
        "head": base64.b64encode(serialize(arrays_of(_head(certificate.tensors)))).decode(),
        "block": base64.b64encode(certificate.block).decode() if certificate.block else None,
        "model": _text(certificate, "model"),
        "rules": _text(certificate, "rules"),
    }
    document["digest"] = smle_check.sha256(smle_check.canonical(document))
    return smle_check.canonical(document) + b"\n"


def _head(tensors: Mapping[str, smle_check.Tensor]) -> dict[str, smle_check.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(BACKBONE)}


def _text(certificate: Certificate, role: str) -> str | None:
    data = certificate.files.get(role)
    return None if data is None else data.decode()


def _replace(files: dict[Path, bytes]) -> None:
    """Write files under temporary names, then move them into place, so that none is ever half written."""
    with replacing(*files) as fresh:
        for path, data in zip(fresh, files.values(), strict=True):
            path.write_bytes(data)
