"""Install the lowest versions that pyproject.toml allows: python packaging/floors.py FOLDER [PACKAGE ...].

The environment is made in FOLDER; further packages come in their newest versions. torch stays the one of
constraints.txt: older builds without CUDA are not on every index.
"""

import re
import subprocess
import sys
import venv
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
EXTRAS = ("onnx", "parquet", "torch")


def lowest(requirement: str, pinned: dict[str, str]) -> str:
    """Return a requirement at its floor; torch as it is pinned."""
    name, floor = requirement.split(">=")
    return f"{name}=={pinned[name] if name == 'torch' else floor}"


def main(folder: Path, others: list[str]) -> None:
    """Make the environment, and print what is in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = dict(
        re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    wanted = [*project["dependencies"], *(name for extra in EXTRAS for name in project["optional-dependencies"][extra])]
    floors = [lowest(requirement, pinned) for requirement in wanted]
    venv.create(folder, with_pip=True, clear=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    _run(*pip, "install", "--quiet", *floors, *others)
    _run(*pip, "install", "--quiet", "--no-deps", "--editable", ROOT)
    _run(*pip, "check")
    print("Lowest versions:", ", ".join(floors))


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)  # noqa: S603


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
