"""Adding a kind of head, as docs/howto/add-a-head.md does: a folder, a file in the checker, a line in both tables."""

import shutil
import subprocess
import sys
from pathlib import Path

from support.project import ROOT

ADDED = ROOT / "docs" / "howto" / "heads"
NAMES = {"even": "EVEN", "largest": "LARGEST"}


def test_new_heads_need_a_folder_a_file_and_two_lines(tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(ADDED, source, dirs_exist_ok=True)
    for name, constant in NAMES.items():
        for table, home in (("smle", f"smle.heads.{name}.{name}_head"), ("smle_check", f"smle_check.heads.{name}")):
            with (source / table / "heads" / "table.py").open("a") as file:
                file.write(f"\nfrom {home} import {constant}\nHEADS['{name}'] = {constant}\n")
    script = ROOT / "tests" / "support" / "try_new_heads.py"
    ran = subprocess.run(
        [sys.executable, script, tmp_path], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("both heads work\n")
