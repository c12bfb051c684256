"""The peers' environment: packages that the bench installs for itself, beside this Python's and never into it.

The environment is a venv that sees the packages of the Python that runs the bench, so that torch is neither downloaded
nor replaced. A peer that does not install or does not import becomes a row of the table.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tests.support.environments import command, pip, python_of, reason_of

_FIXED = ("torch", "numpy", "scipy", "scikit-learn")


class Peer(NamedTuple):
    """A package to compare with: its name on PyPI, what is imported to see whether it works, and what is installed."""

    package: str
    module: str
    steps: tuple[tuple[str, ...], ...]


PEERS = (
    Peer("cvxpylayers", "cvxpylayers.torch", (("cvxpylayers",),)),
    Peer("pinet-hcnn", "pinet", (("pinet-hcnn",),)),
    # What rayen itself asks for needs a compiler and the headers of cddlib.
    Peer(
        "rayen",
        "rayen.constraint_module",
        (("pycddlib-standalone", "cvxpylayers", "colorama", "tqdm"), ("--no-deps", "rayen")),
    ),
    Peer("pishield", "pishield.shield_layer", (("pishield",),)),
)


def prepare() -> dict[str, str]:
    """Install the peers that are missing; return the version of each, or why it is not there. Never raises.

    The folder is the one that SMLE_PEERS names, else one in the user's cache.
    """
    named = os.environ.get("SMLE_PEERS")
    folder = (Path(named) if named else Path.home() / ".cache" / "smle" / "peers") / "environment"
    record = folder / "versions.json"
    known: dict[str, str] = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    missing = [peer for peer in PEERS if peer.package not in known]
    if missing:
        reason = _create(folder)
        known |= {peer.package: f"not installed: {reason}" if reason else _install(peer, folder) for peer in missing}
        record.write_text(json.dumps(known, indent=1), encoding="utf-8")
    activate(folder)
    return known


def activate(folder: Path) -> None:
    """Let this process import what is in the environment; packages of its own come first."""
    site = str(_site(folder))
    if site not in sys.path:
        sys.path.append(site)
        importlib.invalidate_caches()


def _site(folder: Path) -> Path:
    base = str(folder)
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": base, "platbase": base}))


def _create(folder: Path) -> str:
    """Make the environment; return what went wrong, or nothing."""
    if not python_of(folder).exists():
        venv.create(folder, with_pip=False)
    site = _site(folder)
    site.mkdir(parents=True, exist_ok=True)
    parents = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (site / "parent.pth").write_text("\n".join(dict.fromkeys(parents)) + "\n", encoding="utf-8")
    pins = [f"{name}=={metadata.version(name).split('+')[0]}" for name in _FIXED]
    (folder / "constraints.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
    code, _ = command([str(python_of(folder)), "-m", "pip", "--version"])
    return "" if code == 0 else "this Python has no pip"


def _install(peer: Peer, folder: Path) -> str:
    for step in peer.steps:
        if reason := pip(folder, "-c", str(folder / "constraints.txt"), *step):
            return f"not installed: {reason}"
    code, output = command([str(python_of(folder)), "-c", f"import {peer.module}"])
    if code:
        return f"does not import: {reason_of(output)}"
    return next(item.version for item in metadata.distributions(name=peer.package, path=[str(_site(folder))]))
