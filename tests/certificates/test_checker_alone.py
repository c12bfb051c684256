"""The checker runs under a bare interpreter, loads nothing but the standard library, and prints what it proved."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import smle_check
from support.builder import case
from support.sound import MAKERS, sound

ROOT = Path(__file__).parents[2]
FOLDER = Path(smle_check.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-I", "-S", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.mark.parametrize("name", MAKERS)
def test_runs_alone_on_a_folder(name, tmp_path):
    package = sound(name)
    done = run(str(FOLDER), str(package.write(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.rstrip().splitlines()[-1].startswith(f"PROVED: {len(package.check())} statements")


def test_a_copy_runs_anywhere(tmp_path):
    """Nothing beside the folder is needed: an auditor may read it, copy it and run it."""
    copy = tmp_path / "elsewhere" / "smle_check"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    folder = case("braking").write(tmp_path / "model")
    done = run(str(copy), str(folder), cwd=copy.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_archive_runs_anywhere(tmp_path):
    """`make checker` packs the same folder into one file."""
    packed = tmp_path / "smle-check.pyz"
    subprocess.run([sys.executable, str(ROOT / "packaging" / "archive.py"), str(packed)], check=True)
    folder = case("braking").write(tmp_path / "model")
    done = run(str(packed), str(folder), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == run(str(FOLDER), str(folder)).stdout


def test_sentences_name_rules_inputs_and_numbers(tmp_path):
    done = run(str(FOLDER), str(case("braking").write(tmp_path)))
    assert "rule 'emergency': where" in done.stdout
    assert "distance <= 10" in done.stdout
    assert "brake >= 0.8" in done.stdout
    assert "brake <= 1" in done.stdout
    assert "everywhere" in run(str(FOLDER), str(case("dose").write(tmp_path / "dose"))).stdout


def test_exit_code_and_reason_of_a_refusal(tmp_path):
    package = case("braking")
    package.weights["heads.bias"] = -package.weights["heads.bias"]
    done = run(str(FOLDER), str(package.seal().write(tmp_path)))
    assert done.returncode == 1
    assert done.stdout.startswith("REJECTED: rule ")
    assert "short by" in done.stdout


def test_as_a_module(tmp_path):
    folder = case("strict").write(tmp_path)
    command = [sys.executable, "-m", "smle_check", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_source_imports_the_standard_library_only(source):
    imported = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= {*sys.stdlib_module_names, "smle_check"}
    assert not imported & {"pickle", "marshal", "ctypes", "subprocess", "socket", "importlib"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_source_has_no_assert_that_an_option_could_switch_off(source):
    """`python -O` removes assert statements; a checker must not lean on them."""
    tree = ast.parse(source.read_text())
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"eval", "exec", "compile", "__import__"}


def test_every_file_is_read_in_one_sitting():
    assert len(SOURCES) > 15
    assert {path.name: lines for path in SOURCES if (lines := len(path.read_text().splitlines())) > 510} == {}


def test_result_does_not_depend_on_options(tmp_path):
    folder = case("labels").write(tmp_path)
    plain = run(str(FOLDER), str(folder)).stdout
    assert run("-O", str(FOLDER), str(folder)).stdout == plain
    assert run("-OO", "-W", "error", str(FOLDER), str(folder)).stdout == plain
