"""Pages of the documentation: their snippets run, their links lead somewhere, and every page is in the navigation."""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
import shlex
import subprocess
import warnings
from pathlib import Path

import pytest
import yaml

from smle.demo import BRAKING_RULES, braking_data
from support.commands import run
from support.parameter_tables import parameter_tables, stated_on_the_page

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Pages whose blocks have tests of their own.
ELSEWHERE = {"first-week.md", "second-week.md", "rules.md", "supply-chain.md", "command-line.md", "reproduction.md"}
# What a page takes for granted.
GIVEN = {
    "onnx.md": """
import sys
from smle import SMLERegressor, Specification
from smle.demo import BRAKING_RULES, braking_data
spec, data = Specification.from_yaml(BRAKING_RULES), braking_data(rows=200)
model = SMLERegressor(spec, max_epochs=2, random_state=0, compare=False)  # twins are of a box
model.fit(data[list(spec.columns)], data["brake"]).save("demo/model")
sys.argv = ["serve.py", "model.onnx"]
"""
}


# In front of a block that needs packages of the extra audit.
MORE = "<!-- needs the extra audit -->\n"


def snippets(page: Path, *, more: bool = True) -> list[tuple[str, str]]:
    """The blocks of a page that run, those that need the extra audit among them or not."""
    text = page.read_text(encoding="utf-8")
    if not more:
        text = text.replace(MORE + "```python", "```text")
    return [(kind, body) for kind, body in FENCE.findall(text) if kind in ("python", "sh")]


def promised(page: Path) -> dict[str, str]:
    """What a page says that a block of Python prints: the block of text right behind it."""
    return dict(
        re.findall(
            r"^```python\n((?:(?!^```).)*)^```\n\n```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
        )
    )


RUNNABLE = [
    pytest.param(page, more, marks=[pytest.mark.audit] if more else [], id=page.stem + more * "-whole")
    for page in PAGES
    for more in (False, True)
    if page.name not in ELSEWHERE and "results" not in page.parts
    if (MORE in page.read_text(encoding="utf-8") if more else snippets(page, more=False))
]


def slug(heading: str) -> str:
    plain = re.sub(r"[`*_]", "", heading).strip().lower()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain)).strip("-")


@pytest.mark.parametrize(("page", "more"), RUNNABLE)
def test_snippets_run(page: Path, more: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pytest"])
    braking_data(rows=300).to_csv("braking.csv", index=False)
    Path("braking.yaml").write_text(BRAKING_RULES, encoding="utf-8")
    names: dict[str, object] = {}
    exec(GIVEN.get(page.name, ""), names)
    outputs = promised(page)
    for kind, body in snippets(page, more=more):
        if kind == "python":
            printed = io.StringIO()
            with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
                if more:  # other packages may warn about each other
                    warnings.simplefilter("ignore")
                exec(compile(body, str(page), "exec"), names)
            assert printed.getvalue() == outputs.get(body, printed.getvalue())
            continue
        for line in body.strip().splitlines():
            command = shlex.split(line, comments=True)
            if command[0] in ("cp", "sed"):
                subprocess.run(command, check=True)
                continue
            if command[0] == "python3":  # the checkers run without anything installed
                command[-1:] = [str(Path.cwd() / command[-1])]
                subprocess.run(command, check=True, cwd=DOCS.parent, capture_output=True)
                continue
            assert command[0] == "smle", (
                f"{page.name}: blocks marked sh are run, and this is no command of smle: {line}"
            )
            result = run(*command[1:])
            assert result.exit_code == 0, (line, result.output)


def test_every_name_of_the_api_page_is_there() -> None:
    entries = re.findall(
        r"^::: (\S+)(?:\n    options: \{\w+: \[(.*)\]\})?", (DOCS / "api.md").read_text(), re.MULTILINE
    )
    assert len(entries) > 30
    for name, members in entries:
        found = pkgutil.resolve_name(name)
        assert found.__doc__, name
        for member in filter(None, members.split(", ")):
            assert getattr(found, member).__doc__, f"{name}.{member}"


PUBLIC = ("", ".attacks", ".baselines", ".errors", ".export", ".nn", ".platforms", ".report", ".training")
IMPORTED = re.compile(r"^ *from (smle[\w.]*) import (?:\((.*?)\)|([^(\n]+))", re.MULTILINE | re.DOTALL)


def api_entries() -> set[str]:
    return set(re.findall(r"^::: (\S+)", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_on_the_api_page(module: str) -> None:
    entries, found = api_entries(), importlib.import_module(f"smle{module}")
    if found.__name__ in entries:  # the whole module
        return
    documented = {id(pkgutil.resolve_name(entry)) for entry in entries}
    missing = [name for name in found.__all__ if id(getattr(found, name)) not in documented]
    assert not missing, f"{found.__name__}: {missing} are not in docs/api.md"


@pytest.mark.parametrize("page", [page for page in PAGES if "results" not in page.parts], ids=lambda page: page.stem)
def test_pages_use_public_names_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`(smle(?:\.\w+)+)", re.sub(FENCE, "", text)):
        pkgutil.resolve_name(name)
    entries = api_entries()
    documented = {id(pkgutil.resolve_name(entry)) for entry in entries}
    for module, several, one in IMPORTED.findall(text):
        for name in re.findall(r"\w+", (several or one).partition("#")[0]):
            found = pkgutil.resolve_name(f"{module}.{name}")
            assert module in entries or id(found) in documented or module == "smle.demo", (
                f"{page.name} imports {module}.{name}, which is not in docs/api.md"
            )


def test_the_tasks_of_a_researcher_are_short() -> None:
    blocks = [body for kind, body in snippets(DOCS / "howto" / "build-on-the-paper.md") if kind == "python"]
    assert max(sum(bool(line.strip()) for line in body.splitlines()) for body in blocks) <= 20


def test_the_readme_keeps_its_word() -> None:
    (block,) = [body for kind, body in FENCE.findall(README.read_text(encoding="utf-8")) if kind == "python"]
    exec(compile(block, str(README), "exec"), {})


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(FENCE, "", page.read_text(encoding="utf-8"))
    text = re.sub(r"^ {4}.*$|`[^`]*`", "", prose, flags=re.MULTILINE)
    for link in LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there."
        if anchor and target.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{page.name} links to {link}: no such heading."


def test_every_page_is_in_the_navigation() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        return [page for part in parts for page in pages(part)]  # type: ignore[union-attr]

    nav = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    kinds = [kind for entry in nav for kind in entry]
    assert kinds == ["Start", "Tutorials", "How to", "Reference", "Explanation", "Results"]
    listed = set(pages(nav))
    found = {page.relative_to(DOCS).as_posix() for page in PAGES}
    assert listed <= found
    assert {page for page in found - listed if not page.startswith("results/")} == set()


def test_the_tables_of_parameters_are_what_the_classes_state() -> None:
    assert stated_on_the_page() == parameter_tables(), "run: PYTHONPATH=src:tests python -m support.parameter_tables"
