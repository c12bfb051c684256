"""The report of a model behind a head of rules: what was kept, moved and replaced, and in which parts answers lie."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from smle import SafeRegressor, Specification
from smle.errors import AccuracyWarning
from smle.monitor import Usage, compare
from smle.monitor.corrections import WAYS, Corrections
from smle.report import write_report
from smle.rules.membership import broken
from smle.tables import encode_inputs

LOAN = """
inputs:
  income: [0, 200]
  work: {categories: [job, none], missing: none}
outputs: [card, rate]
rules:
  - {name: affordable, then: 0 <= card <= 0.3 * income and card <= 40}
  - {name: two lists, then: rate <= 12 or rate >= 14}
  - {name: no work, when: work == none, then: card + rate <= 30}
"""


def table_of(rows, seed=0):
    rng = np.random.default_rng(seed)
    income, work = rng.uniform(0, 200, rows), rng.choice(["job", "none"], rows)
    table = pd.DataFrame({"income": income, "work": work, "town": rng.choice(["a", "b"], rows)})
    table["card"] = 0.25 * income + 5 * (table.town == "a") + rng.normal(0, 2, rows)
    table["rate"] = 17 - 0.05 * income + rng.normal(0, 1, rows)
    return table


@pytest.fixture(scope="module")
def loan():
    table = table_of(600)
    spec = Specification.from_yaml(LOAN)
    encoder = make_column_transformer((OneHotEncoder(), ["work", "town"]), remainder="passthrough")
    model = SafeRegressor(spec, estimator=make_pipeline(encoder, Ridge()))
    return model.fit(table.drop(columns=["card", "rate"]), table[["card", "rate"]])


def page_of(model, tmp_path, data=None):
    write_report(model, data, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text()


def test_counts_are_those_of_the_rows(loan):
    """Every count is taken again here, from what the model answered and what it served."""
    table = table_of(400, seed=1)
    found, spec = loan.answer(table, count=False), loan.specification_
    own, served = found.answers.astype(np.float64), found.served.astype(np.float64)
    counts = loan.usage(table).head
    moved = (own != served).any(axis=1)
    assert 20 < moved.sum() < 380
    assert counts.ways == {
        "kept": (~moved).sum(),
        "moved": moved.sum(),
        "near": 0,
        "replaced": 0,
        "safe": (found.by == 2).sum(),
    }
    wrong = broken(spec, encode_inputs(spec, table), own)
    assert counts.broken == {rule.name: wrong[:, r].sum() for r, rule in enumerate(spec.rules)}
    assert moved.sum() == wrong.any(axis=1).sum()
    assert counts.moves["card"].rows == (own[:, 0] != served[:, 0]).sum()
    assert counts.moves["rate"].largest == np.abs(own - served)[:, 1].max()
    (part,) = counts.parts
    assert (part.rule, part.on) == ("two lists", 400)
    assert part.served == ((served[:, 1] <= 12).sum(), (served[:, 1] >= 14).sum())
    assert part.own == ((own[:, 1] <= 12).sum(), (own[:, 1] >= 14).sum())
    assert part.outside == wrong[:, 1].sum() > 0


def test_counts_are_recorded_add_up_and_read_back(loan):
    table = table_of(400, seed=1)
    whole = loan.usage(table)
    parts = (loan.usage(table[:150]) + loan.usage(table[150:])).head
    assert (parts.ways, parts.broken, parts.parts) == (whole.head.ways, whole.head.broken, whole.head.parts)
    assert parts.moves["card"] == pytest.approx(whole.head.moves["card"], rel=1e-12)
    assert Usage.from_json(whole.to_json()) == whole
    recorded = Usage.from_json(loan.description_["training"]).head
    again = loan.usage(table_of(600)).head  # numbers were read as float32 then
    assert (recorded.rows, recorded.ways, recorded.parts) == (600, again.ways, again.parts)


def test_rows_are_told_how_they_were_served(loan):
    table = table_of(300, seed=2)
    before = dict(loan.served_)
    _, info = loan.predict(table, return_info=True)
    assert list(info["served"][:3]) == ["moved" if any(row) else "kept" for row in info["moved"][:3]]
    counts = pd.Series(info["served"]).value_counts()
    assert {way: loan.served_[way] - before[way] for way in WAYS if loan.served_[way] > before[way]} == dict(counts)
    assert loan.usage(table).head.ways["moved"] == counts["moved"]
    loan.raw_outputs(table)
    assert sum(loan.served_.values()) - sum(before.values()) == 300  # rows of reports and of scores are not counted


def test_the_page_shows_every_count(loan, tmp_path):
    table = table_of(400, seed=1)
    page, counts = page_of(loan, tmp_path, table), loan.usage(table).head
    assert "How answers are served" in page
    for way in WAYS:
        assert f"{counts.ways[way]:,} (" in page
    for count in (*counts.parts[0].served, *counts.parts[0].own, counts.parts[0].outside):
        assert f"{count:,} (" in page
    assert "<b>two lists</b>: rate &lt;= 12 or rate &gt;= 14" in page
    assert "model alone, nearest allowed" in page
    assert "by 3 clips" in page
    assert "by 1 check" in page
    assert "3 clips and 2 checks" in page
    assert "smallest margin" not in page
    assert "answers that were moved" in page  # a drawing
    bare = page_of(loan, tmp_path)  # what is recorded needs no table
    assert f"{loan.description_['training']['head']['ways']['moved']:,} moved to obey" in bare


def test_answers_that_are_nan_are_replaced_and_have_no_score(loan, tmp_path, monkeypatch):
    table = table_of(400, seed=1)
    answers = loan.deployed_.front.answers(table, encode_inputs(loan.specification_, table))
    answers[7, 0], answers[8, 1] = np.nan, np.inf
    monkeypatch.setattr(loan.deployed_.front, "answers", lambda X, encoded: answers)
    assert loan.usage(table).head.ways["replaced"] == 2
    page = page_of(loan, tmp_path, table)
    assert "2 replaced (NaN or infinite)" in page
    assert "model alone, nearest allowed" not in page


def test_safe_answers_are_counted_and_warned_of(loan, tmp_path, monkeypatch):
    table = table_of(400, seed=1)

    program = loan.deployed_.head
    serve = program.serve

    def often(encoded, ask):
        found = serve(encoded, ask)
        found.by[:3] = 2
        return found

    monkeypatch.setattr(program, "serve", often)
    counts = loan.usage(table).head
    assert counts.ways["safe"] == 3
    assert "3 of 400 rows (0.75%), more than a tenth of a percent" in counts.concern
    assert "3 of 400 rows (0.75%)" in page_of(loan, tmp_path, table)
    loan.deployed_.served_ = dict.fromkeys(WAYS, 0)
    with pytest.warns(UserWarning, match="The stored safe answer served 3 of"):
        loan.predict(table)
    monkeypatch.undo()
    assert not loan.usage(table).head.concern


def test_fit_warns_of_safe_answers(monkeypatch):
    table = table_of(60)
    rules = "inputs: {income: [0, 200]}\noutputs: [card]\nrules: [{name: cap, then: 0 <= card <= 40}]"
    monkeypatch.setattr(Corrections, "concern", "too many safe answers")
    with pytest.warns(AccuracyWarning, match="too many safe answers"):
        SafeRegressor(rules, estimator=Ridge()).fit(table[["income"]], table["card"])


def test_drift_of_inputs_is_found_with_what_the_head_does(loan):
    table = table_of(2000, seed=3)
    later = table.assign(income=table["income"].clip(80, 100))  # rates lie between the two lists
    found = compare(loan.usage(table), loan.usage(later), loan.specification_).changes
    changes = {(c.kind, c.name): c for c in found}
    assert changes["input", "income"].verdict == "changed"
    assert changes["served", "moved"].size > 0.1  # shown beside it, and not tested
    assert changes["broken", "two lists"].size > 0.1
    assert changes["served", "safe"].size == 0
    assert {c.verdict for c in found if c.kind in ("served", "broken")} == {"shown"}
    assert not any(kind == "clip" for kind, _ in changes)


LABELS = """
inputs: {length: [0, 3]}
labels: [cat, dog, animal]
choices: {size: [small, large]}
rules:
  - {name: implied, then: dog implies animal}
  - {name: one of them, then: not (cat and dog)}
"""


def test_an_answer_whose_scores_moved_was_not_kept():
    spec = Specification.from_yaml(LABELS)
    own = np.array([[1, -1, -1, 0, 1], [-1, 1, -2, 0, 1], [1, 2, 3, 1, 0], [-1, -1, 1, 0, 1]], dtype=np.float32)
    served = np.array([[2, -1, -1, 0, 3], [-1, 1, 0, 0, 1], [-1, 2, 3, 1, 0], [-1, -1, 1, 0, 1]], dtype=np.float32)
    counts = Corrections.of(spec, np.zeros((4, 1)), own, served, np.zeros(4))
    assert counts.ways == {"kept": 1, "moved": 3, "near": 0, "replaced": 0, "safe": 0}
    assert {name: moves.rows for name, moves in counts.moves.items()} == {"cat": 2, "dog": 0, "animal": 1, "size": 1}
    assert counts.broken == {"implied": 1, "one of them": 1}
    (part,) = counts.parts
    assert (part.served, part.own, part.outside) == ((2, 3), (2, 2), 1)  # dog is off, animal is on
