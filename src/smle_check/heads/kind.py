"""The contract of a kind of head for the checker. `smle_check/heads/table.py` lists the kinds."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import Claim, DerivedObligation
from smle_check.onnx.nodes import Interface, Program
from smle_check.onnx.operation_nodes import Printer, Tensors
from smle_check.stated import StatedSpecification
from smle_check.statement import STATEMENT


class Deployed(NamedTuple):
    """A checked head, to be printed as ONNX nodes; `stated` is the certificate's `program`."""

    program: Program
    interface: Interface
    spec: StatedSpecification
    gated: list[int]
    stated: Mapping[str, Any]
    tensors: Tensors
    proposals: int


class Kind(NamedTuple):
    """A kind of head.

    * `check` derives every obligation of a claim and settles each with its margin; it raises if one is not proved.
    * `printer` prints its program as nodes.
    * `words`: the kind in words. `enforced_by`: what enforces a clause, in a word, or "" if margins say enough.
    * `statement`: what its certificates claim.
    * `reads_steps`: whether it reads inputs in its own way, including steps; otherwise the gate's constants are
      compared.
    """

    check: Callable[[Claim], list[tuple[DerivedObligation, Fraction]]]
    printer: Callable[[Deployed], Printer]
    words: str
    enforced_by: Callable[[StatedSpecification, DerivedObligation], str] = lambda spec, obligation: ""
    statement: dict[str, Any] = STATEMENT
    reads_steps: bool = False
