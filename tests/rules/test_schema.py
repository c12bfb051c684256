"""The JSON Schemas: every file of the repository has the form that they state, and broken ones do not."""

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from smle.demo import BRAKING_RULES
from smle.schemas import NAMES, schema
from support.commands import run

ROOT = Path(__file__).parents[2]
RULES = sorted([*ROOT.glob("examples/*.yaml"), *ROOT.glob("tests/**/rules.yaml")])
CERTIFICATES = sorted(ROOT.glob("tests/certificates/corpus/v2*/*/certificate.json"))
BLOCKS = [
    text
    for page in sorted(ROOT.glob("docs/**/*.md"))
    for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if re.search(r"^inputs:", text, re.MULTILINE) and re.search(r"^rules:", text, re.MULTILINE)
]
GOOD = "inputs: {x: [0, 1]}\noutputs: [y]\nrules:\n  - {name: r, then: y <= 1}\n"


def judge(name):
    return Draft202012Validator(schema(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_and_the_command_prints_it(name):
    Draft202012Validator.check_schema(schema(name))
    assert json.loads(run("schema", name).stdout) == schema(name)
    assert run("schema", "hope").exit_code == 2


def test_every_rules_file_has_the_form():
    assert len(RULES) > 20
    assert len(BLOCKS) >= 4
    for text in [*(path.read_text(encoding="utf-8") for path in RULES), *BLOCKS, BRAKING_RULES, GOOD]:
        for loader in (yaml.SafeLoader, yaml.BaseLoader):  # as editors read it, and as smle does
            judge("rules").validate(yaml.load(text, Loader=loader))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inputs", "input"),
        ("outputs: [y]", ""),
        ("outputs: [y]", "output: [y]"),
        ("[0, 1]", "[0, 1, 2]"),
        ("[0, 1]", "{ranges: [0, 1]}"),
        ("[0, 1]", "{range: [0, 1], categories: [a]}"),
        ("[0, 1]", "{categories: []}"),
        ("[0, 1]", "{range: [0, 1], integer: 3}"),
        ("[0, 1]", "12"),
        ("name: r, ", ""),
        ("then: y <= 1", "than: y <= 1"),
        ("then: y <= 1", "when: x <= 1"),
        ("then: y <= 1", "then: y <= 1, never_together: pairs.csv"),
        ("then: y <= 1", "then: [y, 1]"),
        ("  - {name: r, then: y <= 1}", "  r: y <= 1"),
        ("outputs: [y]", "choices: {y: {options: [a, b], pick: most}}"),
    ],
)
def test_a_broken_rules_file_has_not(old, new):
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    for loader in (yaml.SafeLoader, yaml.BaseLoader):
        assert not judge("rules").is_valid(yaml.load(text, Loader=loader)), text


def test_certificates_have_the_form_and_changed_ones_have_not():
    assert len(CERTIFICATES) > 10
    for path in CERTIFICATES:
        document = json.loads(path.read_text(encoding="utf-8"))
        judge("certificate").validate(document)
        for key in schema("certificate")["required"]:
            assert not judge("certificate").is_valid({k: v for k, v in document.items() if k != key})
        assert not judge("certificate").is_valid({**document, "version": 3})
        assert not judge("certificate").is_valid({**document, "digest": "0"})
