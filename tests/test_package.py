"""The package as a whole: public names, lazy imports, snippets in the documents."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import smle

ROOT = Path(__file__).parent.parent


def test_public_names_exist_and_are_sorted():
    assert sorted(smle.__all__) == smle.__all__
    for name in smle.__all__:
        assert getattr(smle, name) is not None
    assert set(smle.__all__) <= set(dir(smle))
    with pytest.raises(AttributeError):
        _ = smle.nonsense


@pytest.mark.parametrize(
    ("module", "absent"), [("smle_check", ["torch", "numpy", "smle"]), ("smle.rules", ["torch"]), ("smle", ["numpy"])]
)
def test_imports_are_light(module, absent):
    code = f"import sys, {module}; print([m for m in {absent} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_readme_rules_are_readable():
    text = (ROOT / "README.md").read_text()
    for snippet in re.findall(r"```yaml\n(.*?)```", text, flags=re.S):
        assert smle.Specification.from_yaml(snippet).rules


def test_ci_runs_the_readme_command():
    assert "exec make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()
