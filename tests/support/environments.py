"""Environments of their own for packages that tests and studies compare with: what was said, and why it failed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_SECONDS = 900.0  # one pip command; a source that compiles for longer counts as not installed


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def command(arguments: list[str]) -> tuple[int, str]:
    """Run a command; return its code and what it said. Never raises because of it."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return 1, f"ERROR: not done after {_SECONDS:.0f} s"
    except OSError as error:
        return 1, f"ERROR: {error}"
    return done.returncode, done.stdout + done.stderr


def pip(folder: Path, *arguments: str) -> str:
    """Install packages into an environment; return what went wrong, or nothing."""
    wanted = ["install", "--disable-pip-version-check", "--no-input", *arguments]
    code, output = command([str(python_of(folder)), "-m", "pip", *wanted])
    return "" if code == 0 else reason_of(output)


def reason_of(output: str) -> str:
    """Return the line that says most, without addresses: a compiler's fatal error, else the last error."""
    lines = [line.strip() for line in output.splitlines() if re.search(r"error", line, re.IGNORECASE)]
    fatal = [line for line in lines if "fatal error" in line]
    line = fatal[0] if fatal else (lines[-1] if lines else "unknown")
    return re.sub(r"\S*/(?=[^\s/])", "", line)[:160]
