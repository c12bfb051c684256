"""The contract of a head: four members. `table.py` lists the heads that keep it."""

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
"""From encoded inputs (n, d) of the rows at hand to what the model answers there: (n, width) in float32."""


class Outcome(NamedTuple):
    """What a head serves to n rows.

    * `given` (n, width): what the model answered at the rows' own inputs, an embedding in front of a box.
    * `outputs` (n, m) in float32: what is served.
    * `by` (n,): what served a row: 0 its own answer, possibly clipped; 1 the nearest allowed answer; 2 the stored safe
      one; 3 an allowed answer of a search that was cut short.
    """

    given: Array
    outputs: Array
    by: npt.NDArray[np.int8]


class HeadProgram(Protocol):
    """What a certified head runs, in NumPy. Nothing is computed behind it."""

    @property
    def width(self) -> int:
        """How many columns it reads of what the model answers."""

    @property
    def reads_answers(self) -> bool:
        """Whether these are answers in the order of the outputs; False: an embedding."""

    def serve(self, X: Array, ask: Ask) -> Outcome:
        """Serve encoded inputs X (n, d), float32 or float64; the model is asked, once or more often."""

    def bits_of(self, X: Array) -> npt.NDArray[np.bool_]:
        """Return which regions of the gate each row lies in (n, regions)."""


class AsksOnce(ABC):
    """A program that asks the model once, at the rows' own inputs: a function of inputs and answers."""

    reads_answers = True

    @property
    def moves(self) -> bool:
        """Whether what is served may move with inputs, answers staying as they are."""
        return False

    @property
    @abstractmethod
    def width(self) -> int:
        """How many columns it reads of what the model answers."""

    @abstractmethod
    def bits_of(self, X: Array) -> npt.NDArray[np.bool_]:
        """Return which regions of the gate each row lies in (n, regions)."""

    @abstractmethod
    def __call__(self, X: Array, answers: Array) -> Array:
        """Return what is served (n, m) in float32."""

    def explained(self, X: Array, answers: Array) -> tuple[Array, npt.NDArray[np.int8]]:
        """Return what is served, and by what (n,): see `Outcome`."""
        return self(X, answers), np.zeros(len(answers), dtype=np.int8)

    def slopes(self, X: Array, answers: Array, served: Array) -> Slopes:
        """Return derivatives of what was served (n, m) to answers (n, width): those that were kept pass them on."""
        return Slopes(~changed_bits(answers, served), np.abs(answers) <= float(WIDE), None)

    def serve(self, X: Array, ask: Ask) -> Outcome:
        """Serve encoded inputs: see `Program`."""
        given = ask(X)
        return Outcome(given, *self.explained(X, given))


@dataclass(frozen=True)
class HeadKind:
    """A kind of head.

    Attributes:
        certify: From rules to a certificate: `certify(spec, default=, scale=, files=)`.
        program: From a certificate to what runs.
        nodes: From a certificate to the pieces of an ONNX graph that propose answers, and how many a row has; the
            certified nodes themselves are printed by the checker.
        words: From what a certificate states of its program to one line about the head, for reports.
        suits: Which rules it is for, behind any model. The last head in the table that suits is chosen.
    """

    certify: Callable[..., Certificate]
    program: Callable[[Certificate], HeadProgram]
    nodes: Callable[[Certificate], tuple[list[Backbone], int]]
    words: Callable[[Mapping[str, str]], str]
    suits: Callable[[Specification], bool]
