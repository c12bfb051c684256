"""The progress bar."""

from __future__ import annotations

import math
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smle.training.options import History

__all__ = ["Bar"]


class Bar:
    """Shows loss, validation loss, safety and time left, on stderr."""

    def __init__(self, title: str, total: int, *, final: int = 0, shown: bool | None) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  {task.fields[numbers]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._is_shown = sys.stderr.isatty() if shown is None else shown
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not self._is_shown, transient=True)
        self._title, self._final = title, final
        self._task = self._progress.add_task(title, total=total, numbers="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_shown:  # stopping a bar that was not shown prints an empty line in some versions of rich
            self._progress.stop()

    def show(self, history: History) -> None:
        """Show the losses of the last epoch."""
        parts = [f"loss {history.loss[-1]:.4g}", f"validation {history.validation_loss[-1]:.4g}"]
        if history.safety and not math.isnan(history.safety[-1]):
            parts.append(f"{history.safety_name} {history.safety[-1]:.3g}")
        numbers = "  ".join(parts)
        if history.final_epochs:  # they come on top of max_epochs, and are named
            title = f"{self._title}, final epochs"
            self._progress.update(
                self._task, description=title, completed=history.final_epochs, total=self._final, numbers=numbers
            )
        else:
            self._progress.update(self._task, completed=len(history.loss), numbers=numbers)
