"""`smle::serve`: the program of a head as one operator of torch, so that tracers and compilers record it.

Programs run in NumPy, where a tracer sees nothing: it would keep the answers to its example for all inputs. An operator
is recorded by its name and the key of its head, and asked again for every input. What it returns is what the program
returned, bit by bit: nothing is computed behind it, and gradients are attached beside it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.jit import is_tracing  # type: ignore[attr-defined]

import smle_check
from smle.certificates.document import Certificate
from smle.errors import CertificateError, DataError
from smle.heads.contract import AsksOnce
from smle.monitor.corrections import WIDE
from smle.networks.features import read_features
from smle_check.reading import BACKBONE

__all__ = ["ServedHead", "box_digest", "head_digest", "is_differentiated", "kept", "looked_up", "operator", "serve"]

Array = npt.NDArray[Any]
Counts = dict[str, int] | None
_NUMBER = 0x7FFFFFFF  # all bits of a float32 but its sign
_is_compiling = torch.compiler.is_compiling
_serials = itertools.count()
_alive: WeakValueDictionary[str, ServedHead] = WeakValueDictionary()


class ServedHead:
    """A head that can be asked by its key while somebody holds this object.

    The key has the digest of what is served and the number of this object. A recorded program finds the object itself;
    or, where that is gone, as in another process, any other with the same digest. It never finds another program.

    Attributes:
        program: What runs, in NumPy.
        digest: Names it by its content.
        key: What an operator is given to ask for it.
        live: Asks for whatever this object serves at that time, in this process alone.
        counts: `rows` so far, those `moved` and those `replaced`; None: nobody counts.
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
    ) -> None:
        self.columns, self.width, self.outputs = widths  # of features, answers and what is served
        self.is_large, self.counts = is_large, counts
        self.groups = [np.array(group, dtype=np.intp) for group in groups]  # by which numbers are looked up
        self._serial = str(next(_serials))
        # No digest tells whether a file of another process speaks of this object: its name is one that nobody else has.
        name = uuid4().hex
        self.live = f":{name}"
        self.deploy(program, digest)
        _alive[self._serial] = _alive[name] = self

    def deploy(self, program: AsksOnce, digest: str) -> None:
        """Serve another program from now on."""
        self.program, self.digest = program, digest
        self.key = f"{digest}:{self._serial}"  # asks for this program

    def require_shapes(self, features: Tensor, answers: Tensor) -> None:
        """Raise ValueError unless there is one row of features, with the columns of the rules, for each answer."""
        shape = answers.shape
        if shape[-1:] != (self.width,) or features.shape != (*shape[:-1], self.columns):
            raise ValueError(
                f"Expected features of shape (..., {self.columns}) and answers of shape (..., {self.width}), in the "
                f"order of the rules' inputs and outputs. Got {tuple(features.shape)} and {tuple(answers.shape)}."
            )

    def serve(self, X: Array, t: Array) -> Array:
        """Return what is served to inputs (n, d) and answers (n, width), in memory of its own: (n, m) in float32."""
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
    """Return the columns of categories by which the rules of a certificate look numbers up."""
    stated = certificate.document["specification"]
    forms = [literal["x"] for rule in stated["rules"] for clause in rule["clauses"] for literal in clause]
    forms += [row["terms"] for row in stated["rows"] if len(row["terms"]) > 1]
    read = {k for form in forms for k, _ in form}
    return [group for group in stated["one_hot"] if not read.isdisjoint(group)]


def _require_one(columns: Array, group: Array) -> None:
    """Raise DataError unless every row has one 1 among zeros: with two, numbers of tables would be added up."""
    right = ((columns == 0) | (columns == 1)).all(axis=1) & (columns.sum(axis=1) == 1)
    if not right.all():
        row = int(np.argmin(right))
        raise DataError(
            f"Features {group[0]} to {group[-1]} are the columns of a category, by which rules look numbers up: "
            f"expected one 1 among zeros. Got {int((columns[row] == 1).sum())} ones in row {row + 1}."
        )


def changed_bits(own: Array, final: Array) -> npt.NDArray[np.bool_]:
    """Return which float32 numbers were changed, by their bits; the two zeros count as one number.

    Where a processor takes tiny numbers for 0, a comparison of numbers would call them equal.
    """
    a, b = own.view(np.int32), final.view(np.int32)
    return np.asarray((a != b) & ((a | b) & _NUMBER != 0))


def kept(answers: Tensor, served: Tensor) -> Tensor:
    """Return which answers were served as they are, as `changed_bits` tells, in operations that can be recorded."""
    a, b = answers.view(torch.int32), served.view(torch.int32)
    return (a == b) | ((a | b) & _NUMBER == 0)


def head_digest(certificate: Certificate) -> str:
    """Return the digest of the head that a certificate speaks of, made of its content, whatever else is bound to it."""
    document = certificate.document
    own = {name: tensor for name, tensor in certificate.tensors.items() if not name.startswith(BACKBONE)}
    stated = {name: document[name] for name in ("program", "specification", "gate")}
    binds = smle_check.bindings(own, certificate.block, {})
    return str(smle_check.sha256(smle_check.canonical({**stated, "binds": binds})))


def box_digest(ops: Any, tensors: Mapping[str, Array]) -> str:
    """Return the digest of a box that nobody has certified yet."""
    digest = hashlib.sha256(repr(list(ops)).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()


def _head(key: str) -> ServedHead:
    """Return the head of a key.

    Raises:
        CertificateError: If there is none in this process.
    """
    digest, _, serial = key.partition(":")
    found = _alive.get(serial)
    if found is not None and (found.digest == digest or found.live == key):
        return found
    found = next((head for head in list(_alive.values()) if digest == head.digest), None)
    if found is None:
        raise CertificateError(
            f"No head {f'with the digest {digest[:16]}' if digest else 'that was compiled here'} is alive in this "
            "process. What was recorded asks the network that it was recorded from: keep that network, unchanged, or "
            "load its folder first (smle.load(folder, backbone=module))."
        )
    return found


# --- the operator

_library = torch.library.Library("smle", "DEF")  # type: ignore[no-untyped-call]
_SCHEMA = "(Tensor features, Tensor answers, Tensor? gradients, str key) -> Tensor"


def _run(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    head = _head(key)
    head.require_shapes(features, answers)
    X = read_features(features, is_large=head.is_large).numpy(force=True)
    t = answers.numpy(force=True)
    if answers.ndim == 2:
        served = torch.from_numpy(head.serve(X, t))
    else:
        y = head.serve(X.reshape(-1, head.columns), t.reshape(-1, head.width))
        served = torch.from_numpy(y).reshape(*answers.shape[:-1], head.outputs)
    return served if answers.is_cpu else served.to(answers.device)


def _shape(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    head = _head(key)
    head.require_shapes(features, answers)
    return answers.new_empty((*answers.shape[:-1], head.outputs), dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what derivatives need; features and key are at hand, should they read more one day."""
    _, answers, gradients, _ = inputs
    ctx.passes = gradients is not None
    if gradients is None:
        ctx.save_for_backward(answers, output)
        ctx.save_for_forward(answers, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.passes:
        return None, None, gradient, None
    return None, torch.where(kept(*ctx.saved_tensors), gradient, 0), None, None


class _Eager(torch.autograd.Function):
    """Attaches gradients to what the operator returns, which stays as it is."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        served: Tensor = operator(*inputs)
        _remember(ctx, inputs, served)
        return served

    backward = staticmethod(_backward)


class _Transformed(torch.autograd.Function):
    """The same in the form that `torch.func` takes, which is slower; and forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        served: Tensor = differentiable(*inputs)
        return served

    setup_context = staticmethod(_remember)
    backward = staticmethod(_backward)

    @staticmethod
    def jvp(ctx: Any, features: None, answers: Tensor | None, gradients: Tensor | None, key: None) -> Any:
        return gradients if ctx.passes or answers is None else torch.where(kept(*ctx.saved_tensors), answers, 0)


def _batched(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
    *tensors, key = arguments
    moved = []
    for tensor, place in zip(tensors, in_dims, strict=False):
        if tensor is not None:
            tensor = tensor.expand(info.batch_size, *tensor.shape) if place is None else tensor.movedim(place, 0)
        moved.append(tensor)
    return operator(*moved, key), 0


for _name in ("serve", "serve.differentiable"):
    _library.define(f"{_name}{_SCHEMA}")  # type: ignore[no-untyped-call]
    _library.impl(_name, _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"smle::{_name}", _shape, lib=_library)
    torch.library.register_vmap(f"smle::{_name}", _batched, lib=_library)
torch.library.register_autograd("smle::serve.differentiable", _backward, setup_context=_remember, lib=_library)
operator, differentiable = torch.ops.smle.serve.default, torch.ops.smle.serve.differentiable


def serve(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    """Return what the head of a key serves: (..., m) in float32, the bits of its program.

    Derivatives pass to answers that are kept; or, where `gradients` (..., m) are given, as they are to these.

    Shapes: features (..., d) in any format of real numbers, answers (..., width) in float32.

    Raises:
        ValueError: If there is not one row of features, with the columns of the rules, for each answer.
        TypeError, DataError: If features are no real numbers, or whole numbers that floats cannot hold; or if the
            columns of a category by which rules look numbers up are not one 1 among zeros.
        CertificateError: If no such head is alive.
    """
    if not is_differentiated(answers if gradients is None else gradients):
        served: Tensor = operator(features, answers, gradients, key)
    elif _is_compiling() or is_tracing():  # type: ignore[no-untyped-call]
        served = differentiable(features, answers, gradients, key)
    else:
        try:
            served = _Eager.apply(features, answers, gradients, key)  # type: ignore[no-untyped-call]
        except (RuntimeError, NotImplementedError):  # inside of `torch.func`, or forward
            served = _Transformed.apply(features, answers, gradients, key)  # type: ignore[no-untyped-call]
    return served


def is_differentiated(tensor: Tensor) -> bool:
    """Return whether derivatives by a tensor are asked for, backward or forward."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return True
    return not _is_compiling() and unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
