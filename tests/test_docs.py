"""Pages of the documentation: their snippets run, their links lead somewhere, and every page is in the navigation."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from smle.cli import app
from smle.demo import BRAKING_RULES, braking_data

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Pages with snippets that tests of their own run, or that are fragments of a longer program.
ELSEWHERE = {
    "rules.md",
    "training.md",
    "onnx.md",
    "diagnosis.md",
    "certificate-format.md",
    "supply-chain.md",
    "command-line.md",
    "reproduction.md",
}


def snippets(page: Path) -> list[tuple[str, str]]:
    return [(kind, body) for kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind in ("python", "sh")]


RUNNABLE = [page for page in PAGES if page.name not in ELSEWHERE and "results" not in page.parts and snippets(page)]


def slug(heading: str) -> str:
    plain = re.sub(r"[`*_]", "", heading).strip().lower()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain)).strip("-")


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    for needed in re.findall(r"<!-- needs: (\w+) -->", text):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install {needed}")
    monkeypatch.chdir(tmp_path)
    braking_data(rows=300).to_csv("braking.csv", index=False)
    Path("braking.yaml").write_text(BRAKING_RULES, encoding="utf-8")
    names: dict[str, object] = {}
    for kind, body in snippets(page):
        if kind == "python":
            exec(compile(body, str(page), "exec"), names)
            continue
        for line in body.strip().splitlines():
            command = shlex.split(line, comments=True)
            assert command[0] == "smle", (
                f"{page.name}: blocks marked sh are run, and this is no command of smle: {line}"
            )
            result = CliRunner().invoke(app, command[1:])
            assert result.exit_code == 0, (line, result.output)


@pytest.mark.parametrize("page", [*PAGES, DOCS.parent / "README.md"], ids=lambda page: page.stem)
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
        assert isinstance(parts, list) or hasattr(parts, "__iter__")
        return [page for part in parts for page in pages(part)]  # type: ignore[union-attr]

    listed = set(pages(yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert listed == {page.relative_to(DOCS).as_posix() for page in PAGES}
