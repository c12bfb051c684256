"""Smoke test of both wheels and the archive: python packaging/smoke.py FOLDER, which has to hold what was built.

Each is installed in an environment of its own, without the clone in the path: the checker alone, and smle with the
packages of the running Python. Ends with an exit code other than 0 at the first thing that does not work.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "tests" / "certificates" / "corpus" / "v2" / "braking"


def main(folder: Path) -> None:
    """Install and try everything."""
    (alone,), (whole,) = (list(folder.glob(pattern)) for pattern in ("smle_check-*.whl", "smle-*.whl"))
    with tempfile.TemporaryDirectory() as place:
        checker = _installed(Path(place) / "checker", alone, packages=False)
        _run(checker / "smle-check", MODEL)
        _run(sys.executable, "-I", "-S", folder / "smle-check.pyz", MODEL)
        users = _installed(Path(place) / "users", whole, packages=True)
        for command in (
            ["--version"],
            ["rules", ROOT / "examples" / "bank.yaml"],
            ["verify", MODEL],
            ["schema", "rules"],
        ):
            _run(users / "smle", *command)
        _run(users / "smle-check", MODEL)
        found = _run(users / "python", "-I", "-c", "import smle, smle.schemas; print(smle.__file__)")
        if str(ROOT) in found:
            raise SystemExit(f"smle was imported from the clone: {found}")
    print("Both wheels and the archive work.")


def _installed(place: Path, wheel: Path, *, packages: bool) -> Path:
    """Make an environment with a wheel in it, and perhaps with the packages of this Python behind it."""
    venv.create(place, with_pip=True)
    commands = place / "bin"
    _run(commands / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    if packages:
        (here,) = (place / "lib").glob("python*/site-packages")
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (here / "packages.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
    return commands


def _run(*command: object) -> str:
    words = [str(part) for part in command]  # of this file only
    done = subprocess.run(words, capture_output=True, text=True, cwd=tempfile.gettempdir())  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
