"""What a model predicts, numbers, labels or one choice: how targets are read, what is typical, the loss, the scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.defaults import CLASSES
from smle.errors import DataError, ModelFormatError
from smle.estimators.inputs import spread
from smle.estimators.parameters import by_name
from smle.programs import Settled
from smle.rules import Choice, Specification
from smle.tables import encode_choices, encode_numbers, option_of, option_values

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from smle.training.options import Loss

__all__ = ["Held", "Labels", "Numbers", "Options", "Rows", "Task", "task_of"]

Array = npt.NDArray[np.float64]
Weights = str | Mapping[Any, float] | None
Sides = tuple[npt.NDArray[np.int64], tuple[str, ...]]
# docs/networks.md has the measurements.
_NOISE = 0.1  # share of the variance
_DECAY = 0.1  # share of the variance, too
_FINAL = 40  # epochs on all rows, for labels and choices
_LARGEST = 1e30  # of targets, and one over the least spread
_PRIOR = 4.0  # typical logits are kept within this distance of zero


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
        return CLASSES.weight_decay or 0.0, 0.0

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
        """Whether R2 is about what the loss asks for."""
        return self.chosen == "squared_error"

    @property
    def refit_loss(self) -> Any:
        """The loss of the refit of learned heads; there is one for squared errors only."""
        return "squared" if self.is_scored else None

    def encode(self, y: Any) -> Array:
        """Return the numbers; those beyond what float32 can tell apart are refused."""
        targets = encode_numbers(self.spec, y)
        for name, largest, scale in zip(
            self.spec.targets, np.abs(targets).max(axis=0, initial=0), spread(targets), strict=True
        ):
            if largest > _LARGEST or scale < 1 / _LARGEST:
                raise DataError(
                    f"Output '{name}': values up to {largest:.3g} with a standard deviation of {scale:.3g} are beyond "
                    "what float32 arithmetic can tell apart. State it in another unit."
                )
            if self.chosen == "poisson" and not (targets.min() >= 0 and targets.mean(axis=0).min() > 0):
                raise DataError(
                    f"Output '{name}': loss='poisson' is for counts and rates. Expected numbers from 0 on, and some "
                    "above. Got others."
                )
        return targets

    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return one output as a vector, several as a matrix."""
        return targets[:, 0] if targets.shape[1] == 1 else targets

    def units(self, targets: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation."""
        return targets.mean(axis=0), spread(targets)

    def typical(self, targets: Array) -> Array:
        """Return the mean."""
        return np.asarray(targets.mean(axis=0))

    def default(self, targets: Array) -> tuple[Array, Array]:
        """Return a quantile, the median by default, and the standard deviation."""
        return np.quantile(targets, self.quantile if self.chosen == "quantile" else 0.5, axis=0), spread(targets)

    def loss(self, targets: Array) -> Any:
        """Return the loss by name, in units of the spread, or the function that was given, in those of the targets."""
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
        """Return a quarter, below a tenth of the variance; for other losses than squared errors nothing is known."""
        return max_epochs // 4, _NOISE * self._variance(targets) if self.is_scored else 0.0

    def decay(self, targets: Array) -> tuple[float, float]:
        """Return 1, and less below a share of the variance; 0 for other losses than squared errors."""
        return (1.0, _DECAY * self._variance(targets)) if self.is_scored else (0.0, 0.0)

    def _variance(self, targets: Array) -> float:
        """Return the loss of the mean: 1, or less where targets are constant."""
        return float((((targets.mean(axis=0) - targets) / spread(targets)) ** 2).mean())

    def facts(self) -> dict[str, Any]:
        """Return whether answers are a vector."""
        return {"flat": self.flat}

    def restored(self, description: Mapping[str, Any]) -> Self:
        """Take over whether answers are a vector."""
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
    """Return the Poisson deviance of rates, without a link; below a hundredth it goes on as a straight line."""
    least = 0.01
    rate = predicted.clamp(min=least)
    return rate - wanted * rate.log() + (predicted - rate) * (1 - wanted / least)


class Labels(Task):
    """Labels, of which several may apply: on where the logit is >= 0."""

    refit_loss = "logistic"

    def __init__(
        self, spec: Specification, y: Any = None, *, class_weight: str | Mapping[Any, float] | None = None
    ) -> None:
        super().__init__(spec)
        self.class_weight = class_weight
        self.thresholds: Array | None = None
        """Chance (m,) from which on each label is on, if it is not one half: logits are shifted accordingly."""

    def encode(self, y: Any) -> Array:
        """Return 0 and 1."""
        labels = encode_numbers(self.spec, y)
        if not np.isin(labels, (0.0, 1.0)).all():
            raise DataError("Expected 0 or 1 for every label. Got other numbers.")
        return labels

    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return whole numbers, one label as a vector."""
        labels = targets.astype(np.int64)
        return labels[:, 0] if labels.shape[1] == 1 else labels

    def typical(self, targets: Array) -> Array:
        """Return log-odds of the shares."""
        chance = (targets.sum(axis=0) + 0.5) / (len(targets) + 1.0)
        return np.asarray(np.clip(np.log(chance / (1 - chance)), -_PRIOR, _PRIOR))

    def facts(self) -> dict[str, Any]:
        """Return that there are no options, and thresholds."""
        return {"classes": None, "thresholds": None if self.thresholds is None else self.thresholds.tolist()}

    def restored(self, description: Mapping[str, Any]) -> Self:
        """Take over thresholds."""
        found = description.get("thresholds")
        if found is not None:
            if (
                not isinstance(found, list)
                or len(found) != len(self.spec.targets)
                or not all(isinstance(value, float) and 0 < value < 1 for value in found)
            ):
                raise ModelFormatError("model.json: expected a threshold between 0 and 1 for each label.")
            self.thresholds = np.array(found)
        return self

    @property
    def classes(self) -> list[npt.NDArray[Any]]:
        """0 and 1 for each label, as scikit-learn has it."""
        return [np.array([0, 1]) for _ in self.spec.outputs]

    def predictions(self, outputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return labels as 0 and 1."""
        return (outputs >= 0).astype(np.int64)

    def chances(self, outputs: Array, settled: Settled | None = None) -> Array:
        """Return chances (n, m), at least one half, or the threshold, exactly where a label is on.

        A label that the rules settle has 1 or 0.
        """
        least = np.full(outputs.shape[1], 0.5) if self.thresholds is None else self.thresholds
        chance, on = self.probable(outputs + np.log(least / (1 - least))), outputs >= 0
        if settled is not None:
            chance = np.where(settled.on & on, 1.0, np.where(settled.off & ~on, 0.0, chance))
        return np.where(on, np.maximum(chance, least), np.minimum(chance, np.nextafter(least, 0.0)))

    def loss(self, targets: Array) -> Any:
        """Return the logistic loss, weighted by class."""
        import torch

        plain = partial(torch.nn.functional.binary_cross_entropy_with_logits, reduction="none")
        if self.class_weight is None:
            return plain
        if isinstance(self.class_weight, str):
            count = targets.sum(axis=0)
            on, off = (len(targets) / (2 * np.maximum(part, 1.0)) for part in (count, len(targets) - count))
        else:
            on, off = by_name("class_weight", self.class_weight, self.spec.targets, 1.0), np.ones(targets.shape[1])
        weights = torch.as_tensor(np.stack([off, on]), dtype=torch.float32)

        def loss(logits: Tensor, wanted: Tensor) -> Tensor:
            off, on = weights.to(logits.device)
            return plain(logits, wanted) * torch.where(wanted > 0.5, on, off)

        return loss

    def answers(self, outputs: Array) -> Array:
        """Return 0 and 1."""
        return (outputs >= 0).astype(np.float64)

    def probable(self, outputs: Array) -> Array:
        """Return probabilities."""
        return np.asarray(0.5 * (1.0 + np.tanh(outputs / 2)))

    def losses(self, truth: Array, answers: Array, weight: Array | None = None) -> Array:
        """Return 1 where a label is wrong."""
        return np.asarray(truth != answers, dtype=np.float64)

    def sides(self, truth: Array) -> list[Sides | None]:
        """Return off and on."""
        on = (truth >= 0.5).astype(np.int64)
        return [(on[:, j], (f"not {item.name}", item.name)) for j, item in enumerate(self.spec.outputs)]


class Options(Task):
    """One choice between options: the largest score wins, or the smallest with `pick: min`."""

    def __init__(
        self, spec: Specification, y: Any = None, *, class_weight: str | Mapping[Any, float] | None = None
    ) -> None:
        super().__init__(spec)
        self.class_weight = class_weight
        first = spec.outputs[0]
        assert isinstance(first, Choice)
        self.choice = first
        self.sign = 1.0 if first.pick == "max" else -1.0
        self.values = option_values(first, y)
        """What stands for each option, in the type that y has."""

    @property
    def refit_loss(self) -> str:
        """The loss of the refit of learned heads."""
        return "softmax" if self.sign > 0 else "softmin"

    def encode(self, y: Any) -> Array:
        """Return 1 for the chosen option."""
        return encode_choices(self.choice, y)

    def truth(self, targets: Array) -> Array:
        """Return scores with which the chosen option wins."""
        return targets * self.sign

    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return the chosen values."""
        return np.asarray(self.values[targets.argmax(axis=1)])

    def typical(self, targets: Array) -> Array:
        """Return logarithms of the shares."""
        chance = (targets.sum(axis=0) + 0.5) / (len(targets) + 1.0)
        return np.asarray(np.clip(np.log(chance) * self.sign, -_PRIOR, _PRIOR))

    def loss(self, targets: Array) -> Any:
        """Return the cross-entropy, weighted by class."""
        import torch

        options = self.choice.options
        weights: Array | None = None
        if isinstance(self.class_weight, str):
            count = targets.sum(axis=0)
            weights = len(targets) / (np.maximum(count, 1.0) * np.count_nonzero(count))
        elif self.class_weight is not None:
            given = {option_of(value, options): weight for value, weight in self.class_weight.items()}
            weights = by_name("class_weight", given, options, 1.0)
        by_option = None if weights is None else torch.as_tensor(weights, dtype=torch.float32)

        def loss(scores: Tensor, wanted: Tensor) -> Tensor:
            value = torch.nn.functional.cross_entropy(self.sign * scores, wanted, reduction="none")
            return value if by_option is None else value * (wanted @ by_option.to(wanted))

        return loss

    def facts(self) -> dict[str, Any]:
        """Return the values."""
        return {"classes": self.values.tolist()}

    def restored(self, description: Mapping[str, Any]) -> Self:
        """Take over the values."""
        classes = description.get("classes")
        self.values = option_values(self.choice, classes if isinstance(classes, list) else None)
        return self

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """The columns in the order of `classes`."""
        return np.argsort(self.values)

    @property
    def classes(self) -> npt.NDArray[Any]:
        """The values in sorted order, as scikit-learn has it."""
        return np.asarray(self.values[self.order])

    def predictions(self, outputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of the options that win."""
        return np.asarray(self.values[(outputs * self.sign).argmax(axis=1)])

    def chances(self, outputs: Array, settled: Settled | None = None) -> Array:
        """Return chances (n, options) in the order of the options; the one that wins has the largest.

        An option that the rules forbid has 0, and the others share the rest as they would without it.
        """
        scores = outputs * self.sign
        rows, best = np.arange(len(scores)), scores.argmax(axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        if settled is not None:
            weights = np.where(settled.off & (np.arange(scores.shape[1]) != best[:, None]), 0.0, weights)
        chance = weights / weights.sum(axis=1, keepdims=True)
        others = chance.copy()
        others[rows, best] = -1.0
        chance[rows, best] = np.maximum(chance[rows, best], np.nextafter(others.max(axis=1, initial=-1.0), 2.0))
        return np.asarray(chance)

    def columns(self) -> list[list[int]]:
        """Return all columns: they are one output."""
        return [list(range(len(self.choice.options)))]

    def losses(self, truth: Array, answers: Array, weight: Array | None = None) -> Array:
        """Return 1 where another option wins."""
        wrong = (self.sign * truth).argmax(axis=1) != (self.sign * answers).argmax(axis=1)
        return np.asarray(wrong[:, None], dtype=np.float64)

    def sides(self, truth: Array) -> list[Sides | None]:
        """Return the options."""
        return [((self.sign * truth).argmax(axis=1), tuple(self.choice.options))]


class Held(NamedTuple):
    """Rows that were held out, by number, and what a network answers there (n, m) before it learned from them."""

    rows: npt.NDArray[np.int64]
    outputs: Array


class Rows(NamedTuple):
    """A table, what is predicted, and the rows that count: inputs (n, d), targets (n, m), weights (n,) or None."""

    table: Any
    task: Task
    encoded: npt.NDArray[Any]
    targets: Array
    weight: Array | None

    @property
    def spec(self) -> Specification:
        """The rules."""
        return self.task.spec


def task_of(spec: Specification) -> Task:
    """Return what a specification predicts.

    Raises:
        DataError: If outputs are of several kinds.
    """
    kinds: dict[str, type[Task]] = {"numbers": Numbers, "labels": Labels, "choice": Options}
    if spec.output_kind not in kinds:
        raise DataError("Expected outputs of one kind: numbers, labels or one choice. Got several.")
    return kinds[spec.output_kind](spec)
