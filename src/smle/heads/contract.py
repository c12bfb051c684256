"""The contract that every head in `table.py` keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.heads.slopes import Slopes, changed_bits
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification
from smle_check.heads.sums import WIDE

__all__ = ["Ask", "AsksOnce", "HeadKind", "HeadProgram", "Outcome"]

Array = npt.NDArray[Any]
Ask = Callable[[Array], Array]
"""Maps encoded inputs (n, d) of the current rows to the model's answers there, (n, width) in float32."""


class Outcome(NamedTuple):
    """What a head serves to n rows.

    * `given` (n, width): the model's answers at the rows' own inputs; for a box, its embedding.
    * `outputs` (n, m) in float32: what is served.
    * `by` (n,): how a row was served: 0 its own answer, possibly clipped; 1 the nearest allowed answer; 2 the stored
      safe one; 3 an allowed answer of a search that was cut short.
    """

    given: Array
    outputs: Array
    by: npt.NDArray[np.int8]


class HeadProgram(Protocol):
    """The program of a certified head, in NumPy. Nothing is computed behind it."""

    @property
    def width(self) -> int:
        """How many columns of the model's answers it reads."""

    @property
    def reads_answers(self) -> bool:
        """Whether these are answers in the order of the outputs, rather than an embedding."""

    def serve(self, X: Array, ask: Ask) -> Outcome:
        """Serve encoded inputs X (n, d), float32 or float64, asking the model once or more often."""

    def bits_of(self, X: Array) -> npt.NDArray[np.bool_]:
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
    def bits_of(self, X: Array) -> npt.NDArray[np.bool_]:
        """Return a mask of the gate's regions that each row lies in (n, regions)."""

    @abstractmethod
    def __call__(self, X: Array, answers: Array) -> Array:
        """Return the served answers (n, m) in float32."""

    def explained(self, X: Array, answers: Array) -> tuple[Array, npt.NDArray[np.int8]]:
        """Return the served answers, and how each row was served (n,): see `Outcome`."""
        return self(X, answers), np.zeros(len(answers), dtype=np.int8)

    def slopes(self, X: Array, answers: Array, served: Array) -> Slopes:
        """Return the derivatives of served answers (n, m) by answers (n, width); kept answers pass them on."""
        return Slopes(~changed_bits(answers, served), np.abs(answers) <= float(WIDE), None)

    def serve(self, X: Array, ask: Ask) -> Outcome:
        """Serve encoded inputs: see `HeadProgram`."""
        given = ask(X)
        return Outcome(given, *self.explained(X, given))


@dataclass(frozen=True)
class HeadKind:
    """A kind of head.

    Attributes:
        certify: From rules to a certificate: `certify(spec, default=, scale=, files=)`.
        program: From a certificate to what runs.
        nodes: From a certificate to the parts of an ONNX graph that propose answers, and how many per row; the checker
            prints the certified nodes.
        words: From a certificate's statement of its program to one line about the head, for reports.
        suits: Whether it serves these rules behind any model. The last suitable head in the table is chosen.
    """

    certify: Callable[..., Certificate]
    program: Callable[[Certificate], HeadProgram]
    nodes: Callable[[Certificate], tuple[list[Backbone], int]]
    words: Callable[[Mapping[str, str]], str]
    suits: Callable[[Specification], bool]
