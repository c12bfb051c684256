"""The peers' environment: packages that the bench installs for itself, beside this Python's and never into it.

The environment is a venv that sees the packages of the Python that runs the bench, so that torch is neither downloaded
nor replaced. A peer that does not install or does not import becomes a row of the table.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import signal
import sys
import sysconfig
import threading
import venv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType

from tests.support.environments import command, python_of, reason_of

_FIXED = ("torch", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Peer:
    """A package to compare with.

    * `package`: its name on PyPI. `module`: what is imported to see whether it works.
    * `instead`: what is installed, step by step, where `pip install package` fails; () means nothing else is known.
    """

    package: str
    module: str
    instead: tuple[tuple[str, ...], ...] = ()


PEERS = (
    Peer("cvxpylayers", "cvxpylayers.torch"),
    Peer(
        "rayen",
        "rayen.constraint_module",
        (("pycddlib-standalone", "cvxpylayers", "colorama", "tqdm"), ("--no-deps", "rayen")),
    ),
    Peer("pishield", "pishield.shield_layer"),
)


@dataclass(frozen=True)
class Installed:
    """What became of a peer: `direct` if `pip install package` was enough; `usable` if it imports; else `reason`."""

    package: str
    version: str
    direct: bool
    usable: bool
    reason: str = ""

    @property
    def story(self) -> str:
        """One phrase for the table."""
        if not self.usable:
            return f"not installed: {self.reason}"
        return "yes" if self.direct else f"not by itself ({self.reason}); {_way(self.package)}"


def _way(package: str) -> str:
    steps = next(peer.instead for peer in PEERS if peer.package == package)
    return "worked: " + ", then ".join(f"`pip install {' '.join(step)}`" for step in steps)


def prepare(folder: Path) -> dict[str, Installed]:
    """Return the peers in `folder`, installing what is not there yet; never raises because of a peer."""
    record = folder / "installed.json"
    known: dict[str, Installed] = {}
    if record.exists():
        known = {name: Installed(**item) for name, item in json.loads(record.read_text(encoding="utf-8")).items()}
    missing = [peer for peer in PEERS if peer.package not in known]
    if missing:
        reason = _create(folder)
        for peer in missing:
            known[peer.package] = (
                Installed(peer.package, "", False, False, reason) if reason else _install(peer, folder)
            )
        record.write_text(json.dumps({name: asdict(item) for name, item in known.items()}, indent=1), encoding="utf-8")
    activate(folder)
    return known


def activate(folder: Path) -> None:
    """Let this process import what is in the environment; packages of its own come first."""
    site = str(_site(folder))
    if site not in sys.path:
        sys.path.append(site)
        importlib.invalidate_caches()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Swallow what peers print."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError when what is inside takes longer than so many seconds of processor time.

    Without effect outside the main thread and where the system has no such timer.
    """
    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


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


def _install(peer: Peer, folder: Path) -> Installed:
    direct, output = _pip(folder, peer.package)
    reason = "" if direct else reason_of(output)
    done = direct
    if not direct and peer.instead:
        done = all(_pip(folder, *step)[0] for step in peer.instead)
    version = _version(folder, peer.package)
    if not done:
        return Installed(peer.package, version, False, False, reason)
    code, output = command([str(python_of(folder)), "-c", f"import {peer.module}"])
    return Installed(peer.package, version, direct, code == 0, reason if code == 0 else reason_of(output))


def _pip(folder: Path, *arguments: str) -> tuple[bool, str]:
    pip = [str(python_of(folder)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    code, output = command([*pip, "-c", str(folder / "constraints.txt"), *arguments])
    with (folder / "pip.log").open("a", encoding="utf-8") as log:
        log.write(f"$ pip install {' '.join(arguments)}\n{output}\n")
    return code == 0, output


def _version(folder: Path, package: str) -> str:
    found = [item.version for item in metadata.distributions(name=package, path=[str(_site(folder))])]
    return found[0] if found else ""
