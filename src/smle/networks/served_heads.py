"""Heads that an operator finds by a key, so that a recorded program finds its own head again and never another one."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.onnx import is_in_onnx_export

import smle_check
from smle.certificates.document import Certificate
from smle.errors import CertificateError, DataError, ModelFormatError
from smle.heads.contract import AsksOnce
from smle.heads.slopes import changed_bits
from smle.monitor.corrections import WIDE
from smle_check.reading import BACKBONE

__all__ = [
    "ServedHead",
    "box_digest",
    "exported_heads",
    "find_head",
    "head_digest",
    "looked_up",
    "refuse_unaided_export",
]

Array = npt.NDArray[Any]
Counts = dict[str, int] | None
_serials = itertools.count()
_alive: WeakValueDictionary[str, ServedHead] = WeakValueDictionary()
exported_heads: ContextVar[dict[str, Any] | None] = ContextVar("exported_heads", default=None)
"""Functions by name in the ONNX file that `smle.export.write_module` is writing."""


class ServedHead:
    """A head that can be found by its key while this object is alive.

    The key has the digest of the program and the number of this object. A recorded program finds the object itself or,
    if it is gone, as in another process, any other with the same digest. It never finds another program.

    Attributes:
        program: The program in NumPy.
        moves: Whether served answers may depend on features when the model's answers do not.
        digest: Identifies the program by its content.
        key: Identifies this program to the operator.
        live: A key for whatever program this object serves at the time, in this process only.
        certified: A function that returns the proof, or None.
        counts: `rows` so far, those `moved` and those `replaced`; None if not counted.
    """

    def __init__(
        self,
        program: AsksOnce,
        digest: str,
        *,
        widths: tuple[int, int, int],
        is_large: bool,
        counts: Counts = None,
        groups: Sequence[Sequence[int]] = (),
        certified: Callable[[], Certificate | None] = lambda: None,
    ) -> None:
        self.columns, self.width, self.outputs = widths  # of features, answers and served answers
        self.is_large, self.counts, self.certified = is_large, counts, certified
        self.groups = [np.array(group, dtype=np.intp) for group in groups]  # categories by which numbers are looked up
        self._serial = str(next(_serials))
        # A digest does not tell whether a file of another process means this object, so it also has a unique name.
        name = uuid4().hex
        self.live = f":{name}"
        self.deploy(program, digest)
        _alive[self._serial] = _alive[name] = self

    def deploy(self, program: AsksOnce, digest: str) -> None:
        """Serve another program from now on."""
        self.program, self.digest, self.moves = program, digest, program.moves
        self.key = f"{digest}:{self._serial}"  # belongs to this program

    def require_shapes(self, features: Tensor, answers: Tensor) -> None:
        """Raise ValueError unless there is one row of features, with the columns of the rules, for each answer."""
        shape = answers.shape
        if shape[-1:] != (self.width,) or features.shape != (*shape[:-1], self.columns):
            raise ValueError(
                f"Expected features of shape (..., {self.columns}) and answers of shape (..., {self.width}), in the "
                f"order of the rules' inputs and outputs. Got {tuple(features.shape)} and {tuple(answers.shape)}."
            )

    def serve(self, X: Array, t: Array) -> Array:
        """Serve inputs (n, d) and answers (n, width) as a new array (n, m) in float32."""
        for group in self.groups:
            _require_one(X[:, group], group)
        y = self.program(X, t)
        if self.counts is not None:
            self._count(t, y)
        return y.copy() if np.may_share_memory(y, t) or not y.flags.c_contiguous else y

    def _count(self, own: Array, final: Array) -> None:
        counts = self.counts
        assert counts is not None
        counts["rows"] += len(own)
        if not (own.view(np.int32) == final.view(np.int32)).all():
            changed = changed_bits(own, final)
            usable = (np.abs(own) <= WIDE).all(axis=1)
            counts["moved"] += int((changed.any(axis=1) & usable).sum())
            counts["replaced"] += int((~usable).sum())


def looked_up(certificate: Certificate) -> list[list[int]]:
    """Return the columns of the categories by which a certificate's rules look numbers up."""
    stated = certificate.document["specification"]
    forms = [literal["x"] for rule in stated["rules"] for clause in rule["clauses"] for literal in clause]
    forms += [row["terms"] for row in stated["rows"] if len(row["terms"]) > 1]
    read = {k for form in forms for k, _ in form}
    return [group for group in stated["one_hot"] if not read.isdisjoint(group)]


def _require_one(columns: Array, group: Array) -> None:
    """Raise DataError unless every row is one-hot: with two ones, numbers of tables would be added up."""
    right = ((columns == 0) | (columns == 1)).all(axis=1) & (columns.sum(axis=1) == 1)
    if not right.all():
        row = int(np.argmin(right))
        raise DataError(
            f"Features {group[0]} to {group[-1]} are the columns of a category, by which rules look numbers up: "
            f"expected one 1 among zeros. Got {int((columns[row] == 1).sum())} ones in row {row + 1}."
        )


def head_digest(certificate: Certificate) -> str:
    """Return a digest of the head of a certificate, independent of anything else bound to it."""
    document = certificate.document
    own = {name: tensor for name, tensor in certificate.tensors.items() if not name.startswith(BACKBONE)}
    stated = {name: document[name] for name in ("program", "specification", "gate")}
    binds = smle_check.bindings(own, certificate.block, {})
    return str(smle_check.sha256(smle_check.canonical({**stated, "binds": binds})))


def box_digest(ops: Any, tensors: Mapping[str, Array]) -> str:
    """Return the digest of a box that is not certified yet."""
    digest = hashlib.sha256(repr(list(ops)).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()


def find_head(key: str) -> ServedHead:
    """Return the head of a key. Raises CertificateError if there is none in this process."""
    digest, _, serial = key.partition(":")
    found = _alive.get(serial)
    if found is not None and (found.digest == digest or found.live == key):
        return found
    found = next((head for head in list(_alive.values()) if digest == head.digest), None)
    if found is None:
        raise CertificateError(
            f"No head {f'with the digest {digest[:16]}' if digest else 'that was compiled here'} is alive in this "
            "process. A recorded program needs the network that it was recorded from: keep that network, unchanged, or "
            "load its folder first (smle.load(folder, backbone=module))."
        )
    return found


def refuse_unaided_export() -> None:
    """Raise ModelFormatError if torch.onnx exports on its own: it knows no nodes for a head."""
    if "torch.onnx._internal.exporter" in sys.modules and is_in_onnx_export() and exported_heads.get() is None:
        raise ModelFormatError(
            "torch.onnx.export does not know the nodes of a certified head. Write a network alone, with its "
            "certificate, by network.to_onnx(path); a module that contains networks by "
            "smle.export.write_module(module, path, example)."
        )
