"""The process in which libFuzzer runs: `python -m studies.fuzz.guided TARGET CORPUS [libFuzzer options]`."""

from __future__ import annotations

import random
import sys
from typing import Any


def main(arguments: list[str]) -> None:
    """Fuzz until the time is up or a defect is found; both end the process."""
    import importlib

    atheris: Any = importlib.import_module("atheris")
    # Only what is imported from here on counts its branches: our own readers, not the libraries.
    with atheris.instrument_imports(include=["smle"], enable_loader_override=False):
        from studies.fuzz.targets import TARGETS

        target = TARGETS[arguments[1]]
        pool = list(target.seeds().values())

    def custom(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)  # noqa: S311 - no secret
        if rng.random() < 0.5:
            made: bytes = atheris.Mutate(data, max_size)
            return made
        return target.mutate(data, rng, pool)[:max_size]

    atheris.Setup([arguments[0], *arguments[2:]], target.run, custom_mutator=custom)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
