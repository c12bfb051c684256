"""docs/rules.md keeps its word: its files are read, its tables compile, its Python runs."""

import re
from pathlib import Path

import pytest

from smle.rules import Specification

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
SCRIPTS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
WHENS, THENS = (
    re.findall(r"^\| `([^|]*?)` \|", part, re.MULTILINE)
    for part in re.search(r"In `when`(.*?)In `then`(.*?)\nTies", TEXT, re.DOTALL).groups()
)


@pytest.mark.parametrize("text", FILES)
def test_files_are_read_and_survive_the_round_trip(text):
    specification = Specification.from_yaml(text)
    assert specification.rules
    assert Specification.from_yaml(specification.to_yaml()) == specification


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run(script):
    exec(compile(script, str(PAGE), "exec"), {})


def test_the_tables_are_found():
    assert len(WHENS) == 14
    assert len(THENS) == 16


@pytest.mark.parametrize(("when", "then"), [*((w, "brake <= 1") for w in WHENS), *((None, t) for t in THENS)])
def test_every_form_in_the_tables_compiles(when, then):
    base = Specification.from_yaml(FILES[0])
    stated = {"r": then} if when is None else {"r": (when, then)}
    made = Specification.build(inputs=base.inputs, outputs=base.outputs, constants={"near": 10}, rules=stated)
    assert made.rules[0].then == then
    assert made.rules[0].when == when
