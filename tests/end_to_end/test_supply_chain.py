"""The commands of docs/supply-chain.md sign a certificate, and a changed one is noticed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smle import load

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    """Return the blocks of the page that call ssh-keygen."""
    page = (ROOT / "docs" / "supply-chain.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    return [block for block in blocks if "ssh-keygen" in block]


def shell(block: str, folder: Path, model: Path) -> subprocess.CompletedProcess[str]:
    block = block.replace("python3 -I -S src/", f"{sys.executable} -I -S {ROOT}/src/")
    environment = {**os.environ, "MODEL": str(model)}
    return subprocess.run(
        ["sh", "-e", "-c", block], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen (OpenSSH) is not installed")
def test_a_certificate_is_signed_and_checked_with_the_page_s_commands(braking_folder, tmp_path):
    once, sign, check = commands()
    for block in (once, sign):
        done = shell(block, tmp_path, braking_folder)
        assert done.returncode == 0, done.stderr
    assert (braking_folder / "certificate.json.sig").exists()
    load(braking_folder)  # a signature beside the certificate does no harm
    done = shell(check, tmp_path, braking_folder)
    assert done.returncode == 0, done.stderr
    assert 'Good "smle-certificate" signature for releases@example.org' in done.stdout
    assert "PROVED" in done.stdout
    certificate = braking_folder / "certificate.json"
    certificate.write_bytes(certificate.read_bytes().replace(b"emergency", b"Emergency", 1))
    done = shell(check, tmp_path, braking_folder)
    assert done.returncode != 0
    assert "Good" not in done.stdout
    assert "PROVED" not in done.stdout


def test_the_make_targets_exist():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^sbom:", text, re.MULTILINE)
    assert re.search(r"^licenses:", text, re.MULTILINE)
