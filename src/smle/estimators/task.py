"""What a model predicts: how targets are read, what is typical, the loss, the scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.parameters import ClassificationParameters
from smle.programs import Settled
from smle.rules import Specification

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Held", "Rows", "Task"]

Array = npt.NDArray[np.float64]
Sides = tuple[npt.NDArray[np.int64], tuple[str, ...]]
_FINAL = 40  # epochs on all rows, for labels and choices; docs/networks.md has the measurements


class Task(ABC):
    """Outputs of one kind.

    Targets (n, m) are numbers, labels as 0 or 1, options as 1 for the one that is chosen. The truth (n, m) differs for
    options with `pick: min`: the chosen one has the lowest score. Outputs (n, m) are what models compute: numbers,
    logits of labels, scores of options. Every score is one minus a mean of losses by row, so that two models are
    compared row by row.
    """

    metric: ClassVar[str] = "accuracy"

    def __init__(self, spec: Specification, y: Any = None) -> None:
        self.spec = spec

    @property
    @abstractmethod
    def refit_loss(self) -> str | None:
        """The loss of the refit of learned heads; None: there is none."""

    @property
    def is_scored(self) -> bool:
        """Whether the score is about what the loss asks for."""
        return True

    # --- targets

    @abstractmethod
    def encode(self, y: Any) -> Array:
        """Return the targets that the loss compares with.

        Raises:
            DataError: If y holds something else.
        """

    def truth(self, targets: Array) -> Array:
        """Return targets as rules and scores read them."""
        return targets

    @abstractmethod
    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return the targets that an inner estimator is fitted to."""

    # --- training

    def units(self, targets: Array) -> tuple[Array, Array]:
        """Return shift and scale (m,) of the outputs."""
        m = targets.shape[1]
        return np.zeros(m), np.ones(m)

    @abstractmethod
    def typical(self, targets: Array) -> Array:
        """Return typical outputs (m,) of rows with these targets."""

    def default(self, targets: Array) -> tuple[Array, Array]:
        """Return outputs (m,) that take the place of NaN, and the spread (m,) of outputs."""
        return self.typical(targets), np.ones(targets.shape[1])

    @abstractmethod
    def loss(self, targets: Array) -> Any:
        """Return the loss as a function of (outputs, targets), with a value for every row or number."""

    def final_epochs(self, max_epochs: int, targets: Array) -> tuple[int, float]:
        """Return how many final epochs there are by default, and below which validation loss they are safe."""
        return min(_FINAL, max_epochs // 4), np.inf

    def decay(self, targets: Array) -> tuple[float, float]:
        """Return the weight decay by default, and below which validation loss it falls."""
        return ClassificationParameters.weight_decay or 0.0, 0.0

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return further entries for model.json, by which answers are read again."""

    @abstractmethod
    def restored(self, description: Mapping[str, Any]) -> Self:
        """Take over the entries of `facts`, and return the task."""

    # --- scores

    def chances(self, outputs: Array, settled: Settled | None = None) -> Array | None:
        """Return probabilities (n, m), given what the rules settle; None for numbers."""
        return None

    def columns(self) -> list[list[int]]:
        """Return the columns of each output."""
        return [[j] for j in range(len(self.spec.outputs))]

    def answers(self, outputs: Array) -> Array:
        """Return outputs as the scores read them: labels as 0 or 1."""
        return outputs

    def probable(self, outputs: Array) -> Array:
        """Return outputs as the search for nearest ones reads them: labels as probabilities."""
        return outputs

    def scale(self, truth: Array, weight: Array | None = None) -> Array:
        """Return the unit (m,) of each column in which squared errors add up to the losses."""
        return np.ones(truth.shape[1])

    @abstractmethod
    def losses(self, truth: Array, answers: Array, weight: Array | None = None) -> Array:
        """Return the loss of each row and output: squared error over the variance, or 1 where it is wrong."""

    def sides(self, truth: Array) -> list[Sides | None]:
        """Return for each output the true side of each row (n,) and the names of all sides; None for numbers."""
        return [None] * len(self.spec.outputs)


class Held(NamedTuple):
    """Rows that were held out, by number, what a network answers there (n, m) before it learned from them, weights."""

    rows: npt.NDArray[np.int64]
    outputs: Array
    weight: Array | None = None


class Rows(NamedTuple):
    """A table as it was passed and as `frame_of` reads it, what is learned, inputs (n, d) and targets (n, m)."""

    table: Any
    frame: Any
    task: Task
    encoded: npt.NDArray[Any]
    targets: Array

    @property
    def spec(self) -> Specification:
        """The rules."""
        return self.task.spec
