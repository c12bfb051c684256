"""Files about the project: they can be read, and agree with each other."""

import re
from pathlib import Path

import yaml

import smle

ROOT = Path(__file__).parents[1]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere():
    citation = yaml.safe_load(read("CITATION.cff"))
    stated = [re.search(r'^version = "(.+)"', read(name), re.MULTILINE) for name in PROJECTS]
    assert {str(citation["version"]), *(found[1] for found in stated if found)} == {smle.__version__}
    assert all(stated)
    assert [person["family-names"] for person in citation["references"][0]["authors"]] == ["Francobaldi", "Lombardi"]


PROJECTS = ("pyproject.toml", "packaging/smle-check/pyproject.toml")


def test_hooks_name_commands_and_options_that_exist():
    from support.commands import run

    hooks = yaml.safe_load(read(".pre-commit-hooks.yaml"))
    local = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"smle-rules", "smle-verify"}
    for hook in [*hooks, *local]:
        words = hook["entry"].split()
        if words[0].endswith("smle"):
            shown = run(words[1], "--help")
            assert shown.exit_code == 0
            assert all(option in shown.output for option in words[2:])
    pattern = next(hook["files"] for hook in hooks if hook["id"] == "smle-rules")
    assert re.search(pattern, "models/credit/rules.yaml")


def test_pages_and_targets_that_are_named_exist():
    for name in ("SECURITY.md", "RELEASING.md", "CONTRIBUTING.md"):
        text = read(name)
        for link in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (ROOT / link).exists(), (name, link)
        for target in re.findall(r"`make (?:-k )?([a-z-]+)", text):
            assert re.search(rf"^(\.PHONY:|AUDIT :=).* {target}\b", read("Makefile"), re.MULTILINE), target
