"""What rules say about themselves: kept in files, folders and certificates, shown on pages, compared by diff."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

import smle
from smle import SafeRegressor, Specification
from smle.advice.compare import compare
from smle.errors import CertificateError, RuleError
from smle.report import write_report
from smle.report.rules_page import write_rules_page
from smle.rules import About, rule
from support.commands import run

TEXT = """description: Limits of consumer loans
owner: Credit risk
since: 2024-01-31
inputs:
  income: [1, 100000]
outputs: [limit]
rules:
  - name: cap
    description: >
      No loan above what the board
      allows without a vote
    source: "Minutes of the board: 2023-11-30"
    owner: A. <Meyer>
    since: 2024-02-01
    then: limit <= 60000
  - name: positive
    then: limit >= 0
"""
CAP = About(
    "No loan above what the board allows without a vote", "Minutes of the board: 2023-11-30", "A. <Meyer>", "2024-02-01"
)


@pytest.fixture(scope="module")
def model():
    income = np.random.default_rng(0).uniform(1, 1e5, 80)
    table = pd.DataFrame({"income": income})
    return SafeRegressor(TEXT, estimator=Ridge(), compare=False).fit(table, 0.3 * income)


def test_it_survives_the_round_trip_and_means_nothing():
    spec = Specification.from_yaml(TEXT)
    assert spec.about == About(description="Limits of consumer loans", owner="Credit risk", since="2024-01-31")
    assert [r.about for r in spec.rules] == [CAP, About()]
    again = Specification.from_yaml(spec.to_yaml())
    assert again == spec
    assert again.to_yaml() == spec.to_yaml()
    said = re.compile(r"(?m)^ *(description|source|owner|since): .*\n(      .*\n)*")
    plain = Specification.from_yaml(said.sub("", TEXT))
    assert not dict(plain.rules[0].about)
    assert [(r.regions, r.requirement) for r in plain.rules] == [(r.regions, r.requirement) for r in spec.rules]
    assert plain != spec


def test_the_same_in_python():
    stated = {"description": CAP.description, "source": CAP.source, "owner": CAP.owner, "since": CAP.since}
    spec = Specification.build(
        inputs={"income": (1, 100_000)},
        outputs=["limit"],
        rules=[rule("cap", then="limit <= 60000", **stated), rule("positive", then="limit >= 0")],
        about={"description": "Limits of consumer loans", "owner": "Credit risk", "since": "2024-01-31"},
    )
    assert spec == Specification.from_yaml(TEXT)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("since: 2024-02-01", "since: last year", "Line 14: Rule 'cap', since: expected a date such as 2024-01-31"),
        ("since: 2024-02-01", "since: 2024-02-31", "Line 14:"),
        ("since: 2024-01-31", "since: soon", "Line 3: Rules, since: expected a date"),
        ("owner: Credit risk", "owner: ''", "Line 2: Rules, owner: expected a text of 1 to 2000 characters"),
        ("owner: Credit risk", "owners: me", "unknown key 'owners'. Did you mean 'owner'?"),
        ("owner: A. <Meyer>", "owner: [a, b]", "Rule 'cap', owner: expected a text"),
    ],
)
def test_what_cannot_be_read_is_refused(old, new, message):
    with pytest.raises(RuleError, match=re.escape(message)):
        Specification.from_yaml(TEXT.replace(old, new))


def test_folders_keep_it_and_certificates_bind_it(model, tmp_path):
    model.save(tmp_path / "model")
    assert smle.load(tmp_path / "model").specification_.rules[0].about == CAP
    rules = tmp_path / "model" / "rules.yaml"
    rules.write_text(rules.read_text(encoding="utf-8").replace("Meyer", "Moyer"), encoding="utf-8")
    with pytest.raises(CertificateError, match="rules"):
        smle.load(tmp_path / "model")


def test_pages_and_annex_show_it(model, tmp_path):
    page = write_report(model, path=tmp_path / "report.html", annex=True).path.read_text(encoding="utf-8")
    rules = write_rules_page(smle.diagnose(model.specification_), tmp_path / "rules.html").read_text(encoding="utf-8")
    for shown in (page, rules):
        assert "Limits of consumer loans" in shown
        assert "A. &lt;Meyer&gt;" in shown
        assert "<Meyer>" not in shown
        assert "2024-02-01" in shown
        assert "Minutes of the board: 2023-11-30" in shown
    annex = page[page.index('id="annex"') :]
    assert "Who says so" in annex
    assert "A. &lt;Meyer&gt;" in annex
    other = SafeRegressor(Specification.build(inputs={"income": (1, 2)}, outputs=["y"], rules={"r": "y >= 0"}))
    other.set_params(estimator=Ridge(), compare=False).fit(pd.DataFrame({"income": [1.0, 1.5, 2.0]}), [1.0, 2.0, 3.0])
    plain = write_report(other, path=tmp_path / "plain.html", annex=True).path.read_text(encoding="utf-8")
    assert "Who says so" not in plain
    assert '<dl class="about">' not in plain


def test_diff_compares_it(tmp_path):
    old, new = (
        Specification.from_yaml(TEXT),
        Specification.from_yaml(TEXT.replace("A. <Meyer>", "B. Weber").replace("owner: Credit risk\n", "")),
    )
    found = compare(old, new)
    assert found.verdict == "equal"
    assert [(s.rule, s.what, s.old, s.new) for s in found.said] == [
        (None, "owner", "Credit risk", None),
        ("cap", "owner", "A. <Meyer>", "B. Weber"),
    ]
    assert not compare(old, old).said
    (tmp_path / "old.yaml").write_text(old.to_yaml(), encoding="utf-8")
    (tmp_path / "new.yaml").write_text(new.to_yaml(), encoding="utf-8")
    said = run("rules", "diff", tmp_path / "old.yaml", tmp_path / "new.yaml").output
    assert "stated differently: owner of rule 'cap': 'B. Weber' (before: 'A. <Meyer>')" in said
    assert "stated differently: owner of the file: nothing (before: 'Credit risk')" in said
