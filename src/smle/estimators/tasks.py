"""What a model predicts: how to read targets, typical values, the loss, the scores. Here: numbers and quantiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.parameters import ClassificationParameters
from smle.rules import Number, Specification
from smle.serving.settled import Settled
from smle.tables import encode_numbers

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from smle.training.options import Loss

__all__ = ["Held", "Numbers", "Quantiles", "Task", "TrainingRows", "quantile_names", "spread", "target_of"]

Array = npt.NDArray[np.float64]
Sides = tuple[npt.NDArray[np.int64], tuple[str, ...]]
# docs/networks.md has the measurements.
_FINAL = 40  # epochs on all rows, for labels and choices
_NOISE = 0.1  # share of the variance
_DECAY = 0.1  # share of the variance, too
_LARGEST = 1e30  # of targets, and one over the least spread


class Task(ABC):
    """What a model predicts: outputs of one kind.

    Targets (n, m) are numbers, labels as 0 or 1, options as 1 for the chosen one. The truth (n, m) differs for options
    with `pick: min`: the chosen one has the lowest score. Outputs (n, m) are what models compute: numbers, logits of
    labels, scores of options. Every score is one minus a mean of losses by row, so that models can be compared row by
    row.
    """

    metric: ClassVar[str] = "accuracy"

    def __init__(self, spec: Specification, y: Any = None) -> None:
        self.spec = spec

    @property
    @abstractmethod
    def refit_loss(self) -> str | None:
        """The loss for refitting learned heads, or None."""

    @property
    def is_scored(self) -> bool:
        """Whether the score measures what the loss minimizes."""
        return True

    # --- targets

    @property
    def target_columns(self) -> list[str]:
        """The columns in which a table may hold the targets."""
        return [item.name for item in self.spec.outputs]

    @abstractmethod
    def encode(self, y: Any) -> Array:
        """Return the targets that the loss compares with. Raises DataError if y holds anything else."""

    def truth(self, targets: Array) -> Array:
        """Return targets as rules and scores read them."""
        return targets

    @abstractmethod
    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return the targets to fit an inner estimator on."""

    # --- training

    def units(self, targets: Array) -> tuple[Array, Array]:
        """Return shift and scale (m,) of the outputs."""
        m = targets.shape[1]
        return np.zeros(m), np.ones(m)

    @abstractmethod
    def default(self, targets: Array) -> tuple[Array, Array]:
        """Return outputs (m,) that replace NaN, typical of rows with these targets, and the spread (m,) of outputs."""

    @abstractmethod
    def loss(self, targets: Array) -> Any:
        """Return the loss as a function of (outputs, targets), with a value for every row or number."""

    def final_epochs(self, max_epochs: int, targets: Array) -> tuple[int, float]:
        """Return the default number of final epochs, and the validation loss below which they are safe."""
        return min(_FINAL, max_epochs // 4), np.inf

    def decay(self, targets: Array) -> tuple[float, float]:
        """Return the default weight decay, and the validation loss below which it falls."""
        return ClassificationParameters.weight_decay or 0.0, 0.0

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return further entries for model.json, needed to read answers again."""

    @abstractmethod
    def restored(self, description: Mapping[str, Any]) -> Self:
        """Restore the entries of `facts`, and return the task."""

    # --- scores

    def chances(self, outputs: Array, settled: Settled | None = None) -> Array | None:
        """Return probabilities (n, m), given what the rules determine; None for numbers."""
        return None

    def columns(self) -> list[list[int]]:
        """Return the columns of each output."""
        return [[j] for j in range(len(self.spec.outputs))]

    def answers(self, outputs: Array) -> Array:
        """Return outputs as the scores read them: labels as 0 or 1."""
        return outputs

    def probable(self, outputs: Array) -> Array:
        """Return outputs as the search for the nearest ones reads them: labels as probabilities."""
        return outputs

    def scale(self, truth: Array, weight: Array | None = None) -> Array:
        """Return the unit (m,) of each column in which squared errors add up to the losses."""
        return np.ones(truth.shape[1])

    @abstractmethod
    def losses(self, truth: Array, answers: Array, weight: Array | None = None) -> Array:
        """Return the loss of each row and output: squared error over the variance, or 1 for a wrong label or option."""

    def sides(self, truth: Array) -> list[Sides | None]:
        """Return for each output the true side of each row (n,) and the names of all sides; None for numbers."""
        return [None] * len(self.spec.outputs)


class Held(NamedTuple):
    """Rows held out, by number; the network's answers there (n, m) before it learned from them; weights."""

    rows: npt.NDArray[np.int64]
    outputs: Array
    weight: Array | None = None


class TrainingRows(NamedTuple):
    """A table as passed and as `frame_of` reads it, the task, inputs (n, d) and targets (n, m)."""

    table: Any
    frame: Any
    task: Task
    encoded: npt.NDArray[Any]
    targets: Array

    @property
    def spec(self) -> Specification:
        """The rules."""
        return self.task.spec


class Numbers(Task):
    """Numeric outputs."""

    metric = "R2"

    def __init__(
        self, spec: Specification, y: Any = None, *, loss: str | Loss = "squared_error", quantile: float = 0.5
    ) -> None:
        super().__init__(spec)
        self.chosen, self.quantile = loss, quantile
        self.flat = y is not None and np.asarray(y).ndim == 1
        """Whether answers are a vector, as the targets were."""

    @property
    def is_scored(self) -> bool:
        """Whether R2 measures what the loss minimizes."""
        return self.chosen == "squared_error"

    @property
    def refit_loss(self) -> Any:
        """The loss for refitting learned heads; only squared errors have one."""
        return "squared" if self.is_scored else None

    def encode(self, y: Any) -> Array:
        """Return the numbers. Raises DataError if float32 cannot tell them apart or the loss cannot take them."""
        targets = encode_numbers(self.spec, y)
        for name, own, scale in zip(self.spec.targets, targets.T, spread(targets), strict=True):
            largest = np.abs(own).max(initial=0)
            if largest > _LARGEST or scale < 1 / _LARGEST:
                raise DataError(
                    f"Output '{name}': values up to {largest:.3g} with a standard deviation of {scale:.3g} are beyond "
                    "what float32 arithmetic can tell apart. State it in another unit."
                )
            if self.chosen == "poisson" and not (own.min() >= 0 and own.mean() > 0):
                raise DataError(
                    f"Output '{name}': loss='poisson' is for counts and rates. Expected numbers from 0 on, and some "
                    "above 0. Got others."
                )
        return targets

    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return one output as a vector, several as a matrix."""
        return targets[:, 0] if targets.shape[1] == 1 else targets

    def units(self, targets: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation."""
        return targets.mean(axis=0), spread(targets)

    def default(self, targets: Array) -> tuple[Array, Array]:
        """Return a quantile, the median by default, and the standard deviation."""
        return np.quantile(targets, self.quantile if self.chosen == "quantile" else 0.5, axis=0), spread(targets)

    def loss(self, targets: Array) -> Any:
        """Return the named loss, in units of the spread, or the given function, in those of the targets."""
        import torch

        from smle.training.losses import loss_of, quantile_loss

        if callable(self.chosen):
            return self.chosen
        poisson = self.chosen == "poisson"
        unit = targets.mean(axis=0) if poisson else spread(targets)
        scale = torch.as_tensor(unit, dtype=torch.float32)
        of_gap = quantile_loss(self.quantile) if self.chosen == "quantile" else loss_of(self.chosen)

        def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
            known = scale.to(predicted.device)
            if poisson:
                return _poisson(predicted / known, wanted / known)
            return of_gap((predicted - wanted) / known, torch.zeros_like(known))

        return loss

    def final_epochs(self, max_epochs: int, targets: Array) -> tuple[int, float]:
        """Return a quarter, safe below a tenth of the variance; never safe for losses other than squared errors."""
        return max_epochs // 4, _NOISE * self._variance(targets) if self.is_scored else 0.0

    def decay(self, targets: Array) -> tuple[float, float]:
        """Return 1, which falls below a tenth of the variance; 0 for losses other than squared errors."""
        return (1.0, _DECAY * self._variance(targets)) if self.is_scored else (0.0, 0.0)

    def _variance(self, targets: Array) -> float:
        """Return the loss of the mean: 1, or less if targets are constant."""
        return float((((targets.mean(axis=0) - targets) / spread(targets)) ** 2).mean())

    def facts(self) -> dict[str, Any]:
        """Return whether answers are a vector."""
        return {"flat": self.flat}

    def restored(self, description: Mapping[str, Any]) -> Self:
        """Restore whether answers are a vector."""
        self.flat = bool(description.get("flat")) and len(self.spec.outputs) == 1
        return self

    def scale(self, truth: Array, weight: Array | None = None) -> Array:
        """Return the (weighted) standard deviation, 1 where it is zero."""
        mean = np.average(truth, weights=weight, axis=0)
        deviation = np.sqrt(np.average((truth - mean) ** 2, weights=weight, axis=0))
        return np.where(deviation > 0, deviation, 1.0)

    def losses(self, truth: Array, answers: Array, weight: Array | None = None) -> Array:
        """Return squared errors over the variance; without variance, as in scikit-learn, 0 if all are exact, else 1."""
        error = ((truth - answers) / self.scale(truth, weight)) ** 2
        return np.where((truth == truth[0]).all(axis=0), error.any(axis=0).astype(np.float64), error)


def _poisson(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Return the Poisson deviance of rates, without a link; below a hundredth it continues as a straight line."""
    least = 0.01
    rate = predicted.clamp(min=least)
    return rate - wanted * rate.log() + (predicted - rate) * (1 - wanted / least)


class Quantiles(Numbers):
    """Quantiles of one number, with the pinball loss of each."""

    is_scored = False

    def __init__(self, spec: Specification, quantiles: tuple[float, ...]) -> None:
        super().__init__(spec)
        self.levels = np.asarray(quantiles, dtype=np.float64)

    @property
    def target_columns(self) -> list[str]:
        """The column of the number itself."""
        return [target_of(self.spec.outputs[0].name)]

    def encode(self, y: Any) -> Array:
        """Return the number itself, once for each quantile."""
        number = Number(self.target_columns[0])
        single = Specification(self.spec.inputs, (number,), (), self.spec.constants)
        return np.repeat(Numbers(single).encode(y), len(self.levels), axis=1)

    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return the number as a vector."""
        return targets[:, 0]

    def units(self, targets: Array) -> tuple[Array, Array]:
        """Return the quantiles of all rows, and the standard deviation."""
        return np.quantile(targets[:, 0], self.levels), spread(targets)

    default = units

    def loss(self, targets: Array) -> Any:
        """Return the pinball loss in units of the spread."""
        import torch

        scale, levels = (torch.as_tensor(part, dtype=torch.float32) for part in (spread(targets), self.levels))

        def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
            gap = (wanted - predicted) / scale.to(predicted.device)
            level = levels.to(predicted.device)
            return torch.maximum(level * gap, (level - 1) * gap)

        return loss


def quantile_names(target: str, levels: Array) -> list[str]:
    """Return the names of a number's quantiles: `demand_q5`, `demand_q50`, ..."""
    return [target + f"_q{100 * level:.6g}".replace(".", "_") for level in levels]


def target_of(name: str) -> str:
    """Return the name of the number that a quantile belongs to."""
    return name.rsplit("_q", 1)[0]


def spread(values: npt.NDArray[Any]) -> Array:
    """Return the standard deviation of each column, 1 where it is zero."""
    deviation = values.std(axis=0, dtype=np.float64)
    return np.where(deviation > 0, deviation, 1.0)
