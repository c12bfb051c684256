"""Models that many tests look at are fitted once, by the process that comes first, and loaded by the others."""

import fcntl
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from smle import load
from smle.estimators import SafeEstimator


def fitted_once(name: str, fit: Callable[[], SafeEstimator], factory: pytest.TempPathFactory) -> SafeEstimator:
    """Return the model `name`: loaded, even where it was fitted, so that tests see the same in every process."""
    folder = factory.getbasetemp()
    if folder.name.startswith("popen-"):  # a worker's; the run's own is above
        folder = folder.parent
    place = folder / "fitted" / name
    place.parent.mkdir(exist_ok=True)
    with Path(f"{place}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            fit().save(place)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Nothing is proved")  # a model without rules is among them
        return load(place)
