"""The trusted checker of smle. Standard library only, no solver, no tolerance.

    smle-check MODEL            python -m smle_check MODEL            python3 -I -S src/smle_check MODEL

What is proved, for the numbers in MODEL/model.safetensors or in an ONNX file: for every input in the domain and
whatever the model in front of the head answers (NaN and infinities included), the exact values of the float32 outputs
of the deployed head satisfy every rule in the certificate, for any order of summation, with or without fused
multiply-add. docs/certificate-format.md states the deployed program and the format; modules name its sections.

Every inequality is checked in rationals, or in integers on a power-of-two grid. The author of the certificate is not
trusted: multipliers are hints, and obligations are derived here. Anything unexpected raises `Rejected`.
"""

from smle_check.check import FILES, check_certificate, read_folder
from smle_check.command import CheckedModel, check
from smle_check.floats import BINARY32, BINARY64
from smle_check.onnx.check_file import OnnxResult, check_onnx, read_onnx
from smle_check.reading import Rejected, Tensor, bindings, canonical, read_json, read_weights, sha256, weights_digest
from smle_check.stated import StatedSpecification
from smle_check.statement import STATEMENT, VERSION
from smle_check.words import Proved, statement_of

__all__ = [
    "BINARY32",
    "BINARY64",
    "FILES",
    "STATEMENT",
    "VERSION",
    "CheckedModel",
    "OnnxResult",
    "Proved",
    "Rejected",
    "StatedSpecification",
    "Tensor",
    "bindings",
    "canonical",
    "check",
    "check_certificate",
    "check_onnx",
    "read_folder",
    "read_json",
    "read_onnx",
    "read_weights",
    "sha256",
    "statement_of",
    "weights_digest",
]
