"""Labels, and one choice between options: targets, loss, scores, probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError, ModelFormatError
from smle.estimators.tasks import Numbers, Sides, Task
from smle.parameters import by_name
from smle.rules import Choice, Specification
from smle.serving.settled import Settled
from smle.tables import encode_choices, encode_numbers, option_of, option_values

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

__all__ = ["LabelTask", "Options", "task_of"]

Array = npt.NDArray[np.float64]
_PRIOR = 4.0  # largest size of typical logits


class LabelTask(Task):
    """Several labels may apply; a label is on if its logit is >= 0."""

    refit_loss = "logistic"

    def __init__(
        self, spec: Specification, y: Any = None, *, class_weight: str | Mapping[Any, float] | None = None
    ) -> None:
        super().__init__(spec)
        self.class_weight = class_weight
        self.thresholds: Array | None = None
        """The probability (m,) at or above which each label is on.

        Logits are shifted by it; None means one half.
        """

    def encode(self, y: Any) -> Array:
        """Return targets of 0 and 1."""
        labels = encode_numbers(self.spec, y)
        if not np.isin(labels, (0.0, 1.0)).all():
            raise DataError("Expected 0 or 1 for every label. Got other numbers.")
        return labels

    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return integers, as a vector for one label."""
        labels = targets.astype(np.int64)
        return labels[:, 0] if labels.shape[1] == 1 else labels

    def default(self, targets: Array) -> tuple[Array, Array]:
        """Return the log-odds of the shares, and 1."""
        chance = (targets.sum(axis=0) + 0.5) / (len(targets) + 1.0)
        return np.clip(np.log(chance / (1 - chance)), -_PRIOR, _PRIOR), np.ones(len(chance))

    def facts(self) -> dict[str, Any]:
        """Return the thresholds, and None as the classes."""
        return {"classes": None, "thresholds": None if self.thresholds is None else self.thresholds.tolist()}

    def restored(self, description: Mapping[str, Any]) -> Self:
        """Restore the thresholds."""
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
        """0 and 1 for each label, as in scikit-learn."""
        return [np.array([0, 1]) for _ in self.spec.outputs]

    def predictions(self, outputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return labels as 0 and 1."""
        return (outputs >= 0).astype(np.int64)

    def decisions(self, outputs: Array) -> Array:
        """Return logits (n, m)."""
        return outputs

    def ordered(self, chances: Array) -> Array:
        """Return probabilities in the order of `classes`."""
        return chances

    def chances(self, outputs: Array, settled: Settled | None = None) -> Array:
        """Return probabilities (n, m), at least one half, or the threshold, exactly where a label is on.

        A label that the rules determine gets 1 or 0.
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
        """Return for each label whether it is on (n,), and the names of both sides."""
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
        """The value of each option, in the type of y."""

    @property
    def refit_loss(self) -> str:
        """The loss for refitting learned heads."""
        return "softmax" if self.sign > 0 else "softmin"

    def encode(self, y: Any) -> Array:
        """Return 1 for the chosen option, 0 for others."""
        return encode_choices(self.choice, y)

    def truth(self, targets: Array) -> Array:
        """Return scores that make the chosen option win."""
        return targets * self.sign

    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return the values of the chosen options."""
        return np.asarray(self.values[targets.argmax(axis=1)])

    def default(self, targets: Array) -> tuple[Array, Array]:
        """Return the logarithms of the shares, and 1."""
        chance = (targets.sum(axis=0) + 0.5) / (len(targets) + 1.0)
        return np.clip(np.log(chance) * self.sign, -_PRIOR, _PRIOR), np.ones(len(chance))

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
        """Return the values of the options."""
        return {"classes": self.values.tolist()}

    def restored(self, description: Mapping[str, Any]) -> Self:
        """Restore the values of the options."""
        classes = description.get("classes")
        self.values = option_values(self.choice, classes if isinstance(classes, list) else None)
        return self

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """The columns in the order of `classes`."""
        return np.argsort(self.values)

    @property
    def classes(self) -> npt.NDArray[Any]:
        """The values in sorted order, as in scikit-learn."""
        return np.asarray(self.values[self.order])

    def predictions(self, outputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of the winning options."""
        return np.asarray(self.values[(outputs * self.sign).argmax(axis=1)])

    def decisions(self, outputs: Array) -> Array:
        """Return scores (n, options) in the order of `classes`; for two options, the lead of the second (n,)."""
        scores = outputs[:, self.order] * self.sign
        return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)

    def ordered(self, chances: Array) -> Array:
        """Return probabilities in the order of `classes`."""
        return np.asarray(chances[:, self.order])

    def chances(self, outputs: Array, settled: Settled | None = None) -> Array:
        """Return probabilities (n, options) in the order of the options; the winner has the largest.

        An option that the rules forbid gets 0, and the others share the rest as they would without it.
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
        """Return the columns of all options, as those of one output."""
        return [list(range(len(self.choice.options)))]

    def losses(self, truth: Array, answers: Array, weight: Array | None = None) -> Array:
        """Return 1 where another option wins."""
        wrong = (self.sign * truth).argmax(axis=1) != (self.sign * answers).argmax(axis=1)
        return np.asarray(wrong[:, None], dtype=np.float64)

    def sides(self, truth: Array) -> list[Sides | None]:
        """Return the winning option of each row (n,), and the names of all options."""
        return [((self.sign * truth).argmax(axis=1), tuple(self.choice.options))]


def task_of(spec: Specification) -> Task:
    """Return the task of a specification. Raises DataError if outputs are of several kinds."""
    kinds: dict[str, type[Task]] = {"numbers": Numbers, "labels": LabelTask, "choice": Options}
    if spec.output_kind not in kinds:
        raise DataError("Expected outputs of one kind: numbers, labels or one choice. Got several.")
    return kinds[spec.output_kind](spec)
