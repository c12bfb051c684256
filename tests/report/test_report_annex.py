"""The report as an annex: every point of Annex IV, what is here and what is not; nothing is claimed without proof."""

from smle.report import write_report
from smle.report.card import annex_view
from support.commands import run

POINTS = ["1 (a)", "1 (b)–(h)", *(f"2 ({letter})" for letter in "abcdefgh"), "3", "4", "5", "6", "7", "8", "9"]
SECTIONS = [(name, name.capitalize()) for name in ("rules", "scope", "data", "card", "files")]


def test_every_point_is_named_and_none_is_called_complete():
    rows = annex_view(SECTIONS, proved=True)["annex"]
    assert [row["number"] for row in rows] == POINTS
    assert all(row["missing"] for row in rows)
    assert {row["number"] for row in rows if row["state"] == "open"} == {"2 (e)", "2 (f)", "4", "7", "8"}


def test_sections_that_are_not_there_and_models_without_proof_claim_nothing():
    assert {row["state"] for row in annex_view(SECTIONS, proved=False)["annex"]} == {"open"}
    (data,) = (row for row in annex_view([("card", "Card")], proved=True)["annex"] if row["number"] == "2 (d)")
    assert (data["state"], data["missing"]) == ("open", "everything")


def test_the_command_adds_it_only_when_asked(braking_folder, tmp_path):
    assert run("report", braking_folder, "-o", tmp_path / "plain.html").exit_code == 0
    assert run("report", braking_folder, "-o", tmp_path / "annex.html", "--annex").exit_code == 0
    assert "Annex IV" not in (tmp_path / "plain.html").read_text(encoding="utf-8")
    page = (tmp_path / "annex.html").read_text(encoding="utf-8")
    assert 'href="#annex"' in page
    assert "not legal advice" in page
    (braking_folder / "rules.yaml").write_text("damaged")
    assert run("report", braking_folder, "-o", tmp_path / "annex.html", "--annex").exit_code == 1
    assert "<td>partly</td>" not in (tmp_path / "annex.html").read_text(encoding="utf-8")


def test_it_starts_on_a_page_of_its_own_and_fits_the_paper(browser, braking_model, tmp_path):
    pages = {}
    for annex in (False, True):
        write_report(braking_model, path=tmp_path / "page.html", annex=annex)
        browser.open(tmp_path / "page.html", width=718)
        pages[annex] = browser.pdf().count(b"/Type /Page\n")
    assert pages[True] > pages[False] > 0
    browser.call("Emulation.setEmulatedMedia", media="print")
    style = "getComputedStyle(document.getElementById('annex'))"
    assert browser.run(f"{style}.breakBefore") == "page"
    assert browser.run("document.documentElement.scrollWidth") <= 718
    rows = "[...document.querySelectorAll('#annex tbody tr')].map(row => getComputedStyle(row).breakInside)"
    assert set(browser.run(rows)) == {"avoid"}
    assert browser.errors == []
    browser.call("Emulation.setEmulatedMedia", media="")
