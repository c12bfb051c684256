"""The tasks by what a specification predicts."""

from __future__ import annotations

from smle.errors import DataError
from smle.estimators.class_tasks import Labels, Options
from smle.estimators.number_tasks import Numbers, Quantiles
from smle.estimators.task import Held, Rows, Task
from smle.rules import Specification

__all__ = ["Held", "Labels", "Numbers", "Options", "Quantiles", "Rows", "Task", "task_of"]


def task_of(spec: Specification) -> Task:
    """Return what a specification predicts.

    Raises:
        DataError: If outputs are of several kinds.
    """
    kinds: dict[str, type[Task]] = {"numbers": Numbers, "labels": Labels, "choice": Options}
    if spec.output_kind not in kinds:
        raise DataError("Expected outputs of one kind: numbers, labels or one choice. Got several.")
    return kinds[spec.output_kind](spec)
