"""The page of rules before training: a bank's ten rules on data, a contradiction, labels with hostile names."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from smle import Specification, diagnose
from smle.report import write_rules_page
from support.commands import run
from support.report_rules import CHOICE, HOSTILE, LABELS

EXAMPLES = Path(__file__).parents[2] / "examples"
CLASH = """
inputs: {score: [300, 850], age: [18, 100]}
outputs: [limit]
rules:
  - {name: low, when: score < 480 or age < 21, then: limit <= 5}
  - {name: high, when: score > 400, then: limit >= 10}
"""


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    source = importlib.util.spec_from_file_location("bank", EXAMPLES / "bank.py")
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    place = tmp_path_factory.mktemp("bank") / "loans.csv"
    module.customers(800).to_csv(place, index=False)
    return place


@pytest.fixture(scope="module")
def pages(tmp_path_factory, bank, labels, choice):
    place = tmp_path_factory.mktemp("rules-pages")
    (place / "clash.yaml").write_text(CLASH)
    assert run("rules", EXAMPLES / "bank.yaml", "--data", bank, "-o", place / "bank.html").exit_code == 0
    assert run("rules", place / "clash.yaml", "-o", place / "clash.html").exit_code == 1
    for name, rules, (_, table) in (("labels", LABELS, labels), ("choice", CHOICE, choice)):
        write_rules_page(diagnose(rules, table, table), place / f"{name}.html", table=table, name=HOSTILE)
    return place


@pytest.mark.parametrize("kind", ["bank", "clash", "labels", "choice"])
@pytest.mark.parametrize("width", [1280, 390])
def test_opens_without_errors_and_fits_the_window(browser, pages, kind, width):
    browser.open(pages / f"{kind}.html", width=width, dark=width == 390)
    assert browser.errors == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("getComputedStyle(document.body).fontSize") == "16px"  # the style sheet passed the policy
    assert browser.run("document.querySelectorAll('img, iframe').length") == 0
    narrow = browser.run(
        "[...document.querySelectorAll('td, p, h3')].filter(e => e.innerText.length > 12 && e.clientWidth < 40).length"
    )
    assert narrow == 0
    before = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.run("document.getElementById('theme').click()")
    assert browser.run("getComputedStyle(document.body).backgroundColor") != before


def test_every_rule_is_there_with_its_rows_and_its_cost(browser, pages, bank):
    table = pd.read_csv(bank, keep_default_na=False, na_values={"arrears": "", "work": ""})
    found = diagnose(EXAMPLES / "bank.yaml", table, table)
    browser.open(pages / "bank.html")
    articles = browser.run("[...document.querySelectorAll('article')].map(e => e.innerText)")
    assert len(articles) == len(found.spec.rules) == 10
    for article, rule, cost in zip(articles, found.spec.rules, found.data.costs, strict=True):
        assert rule.name in article
        said = {0: "no row breaks it", 1: "1 row breaks it"}.get(cost.broken, f"{cost.broken:,} rows break it")
        assert said in article
        assert ("costs nothing here" in article) == (not cost.lost)
        assert all(f"R² of {name}" in article for name in cost.lost)
    drawn = browser.run("document.querySelectorAll('article svg.plot').length")
    assert drawn == 2 * sum(cost.broken > 0 for cost in found.data.costs)
    inputs = browser.run("document.getElementById('inputs').innerText")
    assert f"{table['arrears'].isna().sum()} (" in inputs  # missing values are counted
    assert browser.run("document.querySelectorAll('.matrix td.meets').length") == 45  # all ten can meet
    assert browser.run("document.querySelector('.verdict').innerText").startswith("CONSISTENT")


def test_a_contradiction_is_the_first_thing_to_see(browser, pages):
    browser.open(pages / "clash.html")
    assert browser.run("document.querySelector('.verdict').innerText").startswith("CONTRADICTORY")
    assert "for example at score=" in browser.run("document.getElementById('findings').innerText")
    assert browser.run("document.querySelectorAll('.matrix td.clash').length") == 1
    assert browser.run("[...document.querySelectorAll('.badge.bad')].length") == 3


def test_names_are_text(browser, pages):
    browser.open(pages / "labels.html")
    assert browser.errors == []
    assert browser.run("document.querySelector('h1').textContent") == HOSTILE
    assert browser.run("document.scripts.length") == 1


def test_the_page_replaces_no_rules_and_no_table(tmp_path, bank):
    rules = tmp_path / "rules.html"
    rules.write_text(CLASH)
    result = run("rules", rules, "-o", rules)
    assert result.exit_code == 2
    assert "is the rules file itself" in result.output
    assert rules.read_text() == CLASH
    before = bank.read_bytes()
    assert run("rules", EXAMPLES / "bank.yaml", "--data", bank, "-o", bank).exit_code == 2
    assert bank.read_bytes() == before


def test_two_thousand_entries_make_a_short_page(tmp_path):
    """By the name of the table, and with few bars."""
    rng, articles = np.random.default_rng(0), [f"a{i:04}" for i in range(2000)]
    caps = dict(zip(articles, rng.uniform(10, 100, 2000).round(2).tolist(), strict=True))
    spec = Specification.build(
        inputs={"article": {"categories": articles}, "demand": (0, 100)},
        outputs=["price"],
        tables={"cap": {"key": "article", "values": caps}},
        rules={"list": "price <= cap[article]", "busy": ("demand >= cap[article]", "price <= 1.1 * cap[article]")},
    )
    names = rng.choice(articles, 3000)
    table = pd.DataFrame({"article": names, "demand": rng.uniform(0, 100, 3000)})
    table["price"] = np.array([caps[name] for name in names]) * rng.uniform(0.5, 1.05, 3000)
    page = write_rules_page(diagnose(spec, table, table), tmp_path / "rules.html", table=table, name="shop")
    text = page.read_text()
    assert len(text) < 150_000
    assert "every input of the domain  ⟹  price &lt;= cap[article]" in text
    assert "demand &gt;= cap[article]  ⟹  price &lt;= 1.1 * cap[article]" in text
    assert "article=a0000" not in text
    assert "of 2,000 the 12 with the most such rows" in text
