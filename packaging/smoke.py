"""Smoke test of both wheels and the archive: python packaging/smoke.py FOLDER, which has to hold what was built.

Each is installed in an empty environment with a home of its own, as a user would: the checker alone, and smle by the
commands of the README, with the versions of constraints.txt. There the code and the commands of the README run as they
are typed, and two type checkers read its code. The first thing that does not work ends it with an exit code other than
0.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "tests" / "certificates" / "corpus" / "v2" / "braking"
README = (ROOT / "README.md").read_text(encoding="utf-8")
# scikit-learn has no types; everything else on the README has.
CHECKED = "[mypy]\nstrict = True\n[mypy-sklearn.*]\nignore_missing_imports = True\n"


def main(folder: Path) -> None:
    """Install and try everything."""
    (alone,), (whole,) = (list(folder.glob(pattern)) for pattern in ("smle_check-*.whl", "smle-*.whl"))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        checker = Environment(place / "checker")
        checker.run("python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", alone)
        checker.run("smle-check", MODEL)
        checker.run("python", "-I", "-S", folder / "smle-check.pyz", MODEL)
        users = Environment(place / "users")
        users.offer(whole)
        users.type("pip install smle")  # rules and certificates need no more
        users.require(whole)
        for line in (
            "smle --version",
            "smle schema rules",
            f"smle rules {shlex.quote(str(ROOT / 'examples' / 'bank.yaml'))}",
            f"smle verify {shlex.quote(str(MODEL))}",
            *_blocks("sh"),
            "smle verify demo/model",
            "smle-check demo/model",
        ):
            users.type(line)
        types = Environment(place / "types")
        for home in (users.home, types.home):
            (home / "readme.py").write_text("\n".join(_blocks("python")) + "\n", encoding="utf-8")
        users.type("python readme.py")
        types.run("python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "mypy", "pyright")
        (types.home / "mypy.ini").write_text(CHECKED, encoding="utf-8")
        types.run("mypy", "--python-executable", users.commands / "python", "readme.py")
        (types.home / "pyrightconfig.json").write_text('{"include": ["readme.py"]}', encoding="utf-8")
        types.run("pyright", "--pythonpath", users.commands / "python")
    print("Both wheels and the archive work. The README runs as it is typed, and type checkers accept it.")


def _blocks(kind: str) -> list[str]:
    """Return the lines of the README's blocks of a kind."""
    found = re.findall(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line for block in found for line in block.splitlines()]


class Environment:
    """An empty environment with a home of its own, which is also the folder that commands run in."""

    def __init__(self, place: Path) -> None:
        venv.create(place, with_pip=True)
        self.commands, self.home = place / "bin", place / "home"
        self.home.mkdir()
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SMLE_"))}
        self.variables |= {"HOME": str(self.home), "PATH": f"{self.commands}{os.pathsep}{os.environ['PATH']}"}
        self.variables["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"

    def offer(self, wheel: Path) -> None:
        """Let pip find this wheel, as if it were published, and take the pinned versions of everything else."""
        pinned = self.home / "constraints.txt"
        text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
        pinned.write_text(f"{text}\nsmle=={wheel.name.split('-')[1]}\n", encoding="utf-8")
        self.variables["PIP_CONSTRAINT"] = str(pinned)
        self.variables["PIP_FIND_LINKS"] = f"{wheel.parent} {self.variables.get('PIP_FIND_LINKS', '')}".strip()

    def require(self, wheel: Path) -> None:
        """Stop unless the files of this very wheel are installed."""
        with zipfile.ZipFile(wheel) as file:
            (record,) = [name for name in file.namelist() if name.endswith("/RECORD")]
            wanted = {line for line in file.read(record).decode().splitlines() if "sha256=" in line}
        (packages,) = (self.commands.parent / "lib").glob("python*/site-packages")
        if not wanted <= set((packages / record).read_text(encoding="utf-8").splitlines()):
            raise SystemExit(f"pip took another smle than {wheel}.")

    def type(self, line: str) -> str:
        """Run a line in a shell, as a user types it."""
        return self.run("sh", "-c", line)

    def run(self, command: str, *arguments: object) -> str:
        """Run a command in the home; whatever goes wrong ends everything."""
        own = self.commands / command
        words = [str(own) if own.exists() else command, *map(str, arguments)]
        print("$", *words[-1:] if command == "sh" else words, flush=True)
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.home, env=self.variables)  # noqa: S603
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
