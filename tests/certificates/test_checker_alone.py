"""The checker is one file: it runs under a bare interpreter, loads nothing else, and prints what it proved."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from builder import CASES, case

from smle.certificates import checker

FILE = Path(checker.__file__)


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-I", "-S", *arguments], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize("name", list(CASES))
def test_runs_alone_on_a_folder(name, tmp_path):
    package = case(name)
    done = run(str(FILE), str(package.write(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.rstrip().splitlines()[-1].startswith(f"PROVED: {len(package.check())} statements")


def test_a_copy_runs_anywhere(tmp_path):
    """Nothing beside the file is needed: an auditor may read it, copy it and run it."""
    copy = tmp_path / "elsewhere" / "check_it.py"
    copy.parent.mkdir()
    copy.write_bytes(FILE.read_bytes())
    folder = case("braking").write(tmp_path / "model")
    done = run(str(copy), str(folder), cwd=copy.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sentences_name_rules_inputs_and_numbers(tmp_path):
    done = run(str(FILE), str(case("braking").write(tmp_path)))
    assert "rule 'emergency': where" in done.stdout
    assert "distance <= 10" in done.stdout
    assert "brake >= 0.8" in done.stdout
    assert "brake <= 1" in done.stdout
    assert "everywhere" in run(str(FILE), str(case("dose").write(tmp_path / "dose"))).stdout


def test_exit_code_and_reason_of_a_refusal(tmp_path):
    package = case("braking")
    package.weights["heads.bias"] = -package.weights["heads.bias"]
    done = run(str(FILE), str(package.seal().write(tmp_path)))
    assert done.returncode == 1
    assert done.stdout.startswith("REJECTED: rule ")
    assert "short by" in done.stdout


def test_as_a_module(tmp_path):
    folder = case("strict").write(tmp_path)
    command = [sys.executable, "-m", "smle.certificates.checker", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_import_loads_neither_torch_nor_numpy():
    code = (
        "import sys; import smle.certificates.checker; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy', 'pandas', 'yaml', 'sklearn', 'scipy',"
        " 'highspy', 'safetensors'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_source_imports_the_standard_library_only():
    imported = set()
    for node in ast.walk(ast.parse(FILE.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= set(sys.stdlib_module_names)
    assert not imported & {"pickle", "marshal", "ctypes", "subprocess", "socket", "importlib"}


def test_source_has_no_assert_that_an_option_could_switch_off():
    """`python -O` removes assert statements; a checker must not lean on them."""
    tree = ast.parse(FILE.read_text())
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"eval", "exec", "compile", "__import__"}


def test_result_does_not_depend_on_options(tmp_path):
    folder = case("labels").write(tmp_path)
    plain = run(str(FILE), str(folder)).stdout
    assert run("-O", str(FILE), str(folder)).stdout == plain
    assert run("-OO", "-W", "error", "-X", "dev", str(FILE), str(folder)).stdout == plain
