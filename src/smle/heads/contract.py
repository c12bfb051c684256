"""The contract that every head in `table.py` keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.heads.slopes import Slopes, changed_bits
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification
from smle_check.heads.sums import WIDE

__all__ = ["FORMATS", "AnswersProgram", "Ask", "AsksOnce", "HeadKind", "HeadProgram", "Outcome"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
FORMATS = (np.dtype(np.float32), np.dtype(np.float64))
Ask = Callable[[Array], Array]
"""Maps encoded inputs (n, d) of the current rows to the model's answers there, (n, width) in float32."""


class Outcome(NamedTuple):
    """What a head serves to n rows.

    * `given` (n, width): the model's answers at the rows' own inputs; for a box, its embedding.
    * `outputs` (n, m) in float32: the answers served.
    * `by` (n,): what each row got: 0 its own answer, possibly clipped; 1 the nearest allowed answer; 2 the stored safe
      one; 3 an allowed answer from a search that was cut short.
    """

    given: Array
    outputs: Array
    by: npt.NDArray[np.int8]


class HeadProgram(Protocol):
    """The program of a certified head, in NumPy. Its outputs are served unchanged."""

    @property
    def width(self) -> int:
        """How many columns of the model's answers it reads."""

    @property
    def reads_answers(self) -> bool:
        """Whether it reads answers in the order of the outputs, rather than an embedding."""

    def serve(self, X: Array, ask: Ask) -> Outcome:
        """Serve encoded inputs X (n, d) in float32 or float64; may ask the model more than once."""

    def bits_of(self, X: Array) -> Mask:
        """Return a mask of the gate's regions that each row lies in (n, regions)."""


class AsksOnce(ABC):
    """A program that asks the model once, at the rows' own inputs: a function of inputs and answers."""

    reads_answers = True

    @property
    def moves(self) -> bool:
        """Whether served answers may depend on the inputs when the model's answers do not."""
        return False

    @property
    @abstractmethod
    def width(self) -> int:
        """How many columns of the model's answers it reads."""

    @abstractmethod
    def bits_of(self, X: Array) -> Mask:
        """Return a mask of the gate's regions that each row lies in (n, regions)."""

    @abstractmethod
    def __call__(self, X: Array, answers: Array) -> Array:
        """Return the served answers (n, m) in float32."""

    def explained(self, X: Array, answers: Array) -> tuple[Array, npt.NDArray[np.int8]]:
        """Return the served answers, and how each row was served (n,): see `Outcome`."""
        return self(X, answers), np.zeros(len(answers), dtype=np.int8)

    def slopes(self, X: Array, answers: Array, served: Array) -> Slopes:
        """Return the derivatives of served answers (n, m): kept answers move with the model's, others do not move."""
        return Slopes(~changed_bits(answers, served), np.abs(answers) <= float(WIDE), None)

    def serve(self, X: Array, ask: Ask) -> Outcome:
        """Serve encoded inputs: see `HeadProgram`."""
        given = ask(X)
        return Outcome(given, *self.explained(X, given))


class AnswersProgram(AsksOnce):
    """A program made from a certificate, for answers in the order of the outputs.

    Attributes:
        certificate: What the program is made from.
        specification: The rules in the certificate.
        labels: The outputs that are labels.
        regions: The regions of the gate.
        stored: The tensors of the head, by name.
        tree: The tree of safe answers.
    """

    def __init__(self, certificate: Certificate) -> None:
        self.certificate, document = certificate, certificate.document
        self.specification = spec = smle_check.StatedSpecification(document["specification"], certificate.block)
        self.labels = [i for i, entry in enumerate(document["specification"]["outputs"]) if entry["kind"] == "label"]
        self.regions: list[int] = document["gate"]["regions"]
        self.stored = MappingProxyType(arrays_of(certificate.tensors))
        self.tree = document["program"]["tree"]
        self._place = {region: i for i, region in enumerate(self.regions)}
        self._shape = len(spec.inputs), len(spec.outputs)
        ends = [[self.stored[f"domain.{end}_{kind.name}"] for end in ("lower", "upper")] for kind in FORMATS]
        self._domain = dict(zip((4, 8), ends, strict=True))  # by the size of a number

    @property
    def width(self) -> int:
        """How many columns of the model's answers it reads."""
        return self._shape[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.certificate,)  # a copy prepares everything anew

    def _wrong_shapes(self, X: Array, answers: Array) -> ValueError:
        rows, (d, m) = len(answers), self._shape
        return ValueError(
            f"Expected inputs of shape {(rows, d)} and answers of shape {(rows, m)}. Got {X.shape} and {answers.shape}."
        )

    def _native(self, X: Array) -> Array:
        """Return inputs in this machine's byte order."""
        kind = X.dtype.newbyteorder("=")
        if kind not in FORMATS:  # converting may round, and then the rules would hold at other inputs
            raise TypeError(f"Expected inputs in float32 or float64. Got {X.dtype}.")
        return X.astype(kind, copy=False)

    def _inside(self, X: Array) -> Array:
        """Return inputs in float64, clamped to the domain; NaN becomes the lower end."""
        lower, upper = self._domain[X.dtype.itemsize]
        return np.asarray(np.fmin(np.fmax(X, lower), upper).astype(np.float64, copy=False))

    def _leaves(self, rows: int, holds: Callable[[Any, Numbers], Mask]) -> Iterator[tuple[Numbers, Array, Array]]:
        """Yield the rows of each leaf of the tree, with slope (m, d) and offset (m,) of its answer.

        `holds(question, rows)` returns a mask of the rows that answer a question of the tree with yes.
        """
        leaves = zip(self.stored["safe.slope"], self.stored["safe.offset"], strict=True)
        stack = [(self.tree, np.arange(rows))]
        while stack:
            tree, own = stack.pop()
            if tree is None:
                yield own, *next(leaves)
            else:
                inside = holds(tree[0], own)
                stack += [(tree[2], own[~inside]), (tree[1], own[inside])]


@dataclass(frozen=True)
class HeadKind:
    """A kind of head.

    Attributes:
        certify: Makes a certificate from rules: `certify(spec, default=, scale=, files=)`.
        program: Makes what runs from a certificate.
        nodes: Returns the parts of an ONNX graph that propose answers, and how many answers per row; the checker prints
            the certified nodes.
        words: Returns one line about the head for reports, from what a certificate states about its program.
        suits: Returns whether the head serves these rules behind any model. The last suitable head in the table is
            chosen.
    """

    certify: Callable[..., Certificate]
    program: Callable[[Certificate], HeadProgram]
    nodes: Callable[[Certificate], tuple[list[Backbone], int]]
    words: Callable[[Mapping[str, str]], str]
    suits: Callable[[Specification], bool]
