"""Processes that tests start."""

import os
import sys


def environment(**more: str) -> dict[str, str]:
    """Return variables under which a process imports what this one does, and computes on one thread."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1", **more}
