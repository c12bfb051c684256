"""Files about the project: they can be read, and agree with each other."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import smle
from support.project import project

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


def test_the_tag_and_the_newest_changes_are_those_of_this_version():
    for name in ("RELEASING.md", "docs/howto/editors-and-pipelines.md"):
        assert set(re.findall(r"\bv(\d+\.\d+\.\d+)\b", read(name))) == {smle.__version__}, name
    newest = re.split(r"^## ", read("CHANGELOG.md"), flags=re.MULTILINE)[1]
    assert newest.startswith(f"{smle.__version__} (")
    assert len(newest.splitlines()) <= 40
    assert "### Soundness" in newest


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


def test_nothing_that_is_ignored_is_committed():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a clone")
    assert listed.stdout == ""


def test_every_extra_has_what_messages_say_it_brings():
    from smle.extras import _EXTRAS

    extras = project()["optional-dependencies"]
    for package, extra in _EXTRAS.items():
        assert any(re.split(r"[^\w-]", wanted)[0] == package for wanted in extras[extra]), (package, extra)
    named = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        named |= {
            name for found in re.findall(r"smle\[([\w,]+)\]", page.read_text("utf-8")) for name in found.split(",")
        }
    assert named <= extras.keys()


def test_versions_of_python_that_are_claimed_are_run():
    """`make audit-pythons` runs them; the pinned one is that of the set-up."""
    claimed = {c.rpartition(" ")[2] for c in project()["classifiers"] if re.search(r":: 3\.\d+$", c)}
    run = set(re.findall(r"python(3\.\d+)", re.search(r"^PYTHONS \?= (.*)$", read("Makefile"), re.MULTILINE)[1]))
    assert claimed - run == {"3.11"}
    assert f">={min(claimed, key=lambda version: int(version[2:]))}" == project()["requires-python"]
