"""Counts of what a model sees, and tests of whether they changed."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from smle import SafeRegressor, SMLERegressor, Specification
from smle.errors import DataError, ModelFormatError
from smle.monitor import Usage, compare
from smle.tables import encode_inputs
from support.commands import run
from support.drift_rows import LOANS, alarms, counted, loans
from support.safe_networks import AtTheEnd

COLUMNS = ["distance", "speed", "friction"]


def test_false_alarms_are_as_rare_as_the_page_says():
    """Of 200 pages 2 may be wrong at 1 %, of 60 12 at 20 %; more than 7 and 20 happen in 1 of 100 runs at most."""
    assert sum(map(bool, alarms(200, 0.01))) <= 7
    assert 3 <= sum(map(bool, alarms(60, 0.2, seed=1))) <= 20  # and the tests are not idle


@pytest.mark.parametrize(
    ("changed", "name"), [({"income": 1.1}, "income"), ({"income": 1.3}, "income"), ({"abroad": 0.1}, "region")]
)
def test_drift_is_found_at_three_thousand_rows(changed, name):
    found = alarms(40, 0.01, **changed)
    assert sum(name in page for page in found) >= 38
    if name == "region":
        assert sum("abroad" in page for page in found) >= 38  # the rule about it is on more often
    if changed == {"income": 1.3}:
        assert sum("indebted" in page for page in found) >= 38


def test_what_moved_comes_first_and_names_the_category():
    random = np.random.default_rng(3)
    training = counted(loans(random))
    found = compare(training, counted(loans(random, abroad=0.1), training.edges), LOANS)
    first = found.changes[0]
    assert (first.kind, first.verdict) == ("input", "changed")
    assert first.name == "region"
    assert first.part == "abroad"
    assert first.training == pytest.approx(0.05, abs=0.02)
    assert first.now == pytest.approx(0.1, abs=0.02)
    assert [(c.kind, c.name) for c in found.moved[1:]] == [("rule", "abroad")]
    richer = compare(training, counted(loans(random, income=1.3), training.edges), LOANS).changes[0]
    assert richer.now / richer.training == pytest.approx(1.3, abs=0.05)  # medians


def test_differences_within_the_tolerance_are_small():
    random = np.random.default_rng(4)
    training = counted(loans(random, 50_000))
    later = counted(loans(random, 50_000, income=1.02), training.edges)
    sizes = {c.name: c for c in compare(training, later, LOANS, tolerance=0).changes}
    assert sizes["income"].verdict == "changed"
    assert 0.005 < sizes["income"].size < 0.03
    assert {c.name: c for c in compare(training, later, LOANS, tolerance=0.03).changes}["income"].verdict == "small"


def test_chunks_add_up(braking_model, braking_table):
    whole = braking_model.usage(braking_table)
    parts = [braking_model.usage(braking_table[i : i + 400]) for i in range(0, len(braking_table), 400)]
    total = sum(parts[1:], parts[0])
    assert total.rules == whole.rules
    assert total.cells == whole.cells
    assert total.bins == whole.bins
    assert total.rows == whole.rows
    assert total.clipped == pytest.approx(whole.clipped)


def test_usage_is_what_the_description_says_and_reads_back(braking_model, braking_table):
    whole = braking_model.usage(braking_table)
    assert Usage.from_json(braking_model.description_["training"]) == whole
    assert Usage.from_json(whole.to_json()) == whole
    for broken in ({}, None, [], {"rows": 3}, {**whole.to_json(), "columns": 3}):
        with pytest.raises(ModelFormatError):
            Usage.from_json(broken)


def test_the_same_rows_are_no_drift(braking_model, braking_table):
    training = Usage.from_json(braking_model.description_["training"])
    found = compare(training, braking_model.usage(braking_table), braking_model.specification_)
    assert not found.moved
    assert all(change.verdict in ("same", "shown") and change.size == 0 for change in found.changes)


def test_shifted_rows_are_drift(braking_model, braking_table):
    training = Usage.from_json(braking_model.description_["training"])
    faster = braking_table.assign(speed=30 + braking_table["speed"] / 4, distance=braking_table["distance"] + 120)
    now = braking_model.usage(faster)
    found = {(c.kind, c.name): c for c in compare(training, now, braking_model.specification_).changes}
    outside = int((faster["distance"] > 200).sum())
    assert now.outside["distance"] == now.outside_rows == outside
    assert found["domain", "rows outside"].verdict == "changed"
    assert found["rule", "no phantom braking"].verdict == "changed"
    assert found["rule", "physical range"].verdict == "same"
    assert found["input", "speed"].verdict == "changed"
    assert found["input", "friction"].verdict == "same"


def test_few_rows_find_only_what_is_large(braking_model, braking_table):
    training = Usage.from_json(braking_model.description_["training"])
    few = braking_model.usage(braking_table.head(5))
    found = compare(training, few, braking_model.specification_)
    assert not found.moved
    assert found.detectable > 0.3  # and it says so
    many = compare(training, braking_model.usage(braking_table), braking_model.specification_)
    assert many.detectable < 0.2


def test_nothing_is_compared_with_no_rows(braking_model, braking_table):
    training, spec = braking_model.usage(braking_table), braking_model.specification_
    aside = braking_model.usage(braking_table.head(3).assign(speed="fast"), bad_rows="set aside")
    with pytest.raises(DataError, match=r"none now \(3 were set aside: model.without_bad_rows\(table\) says why\)\."):
        compare(training, aside, spec)
    with pytest.raises(DataError, match=r"none in training \("):
        compare(aside, training, spec)
    with pytest.raises(DataError, match=r"none now\."):
        compare(training, replace(aside, set_aside=0), spec)


def test_rules_without_a_bit_in_the_gate_are_judged_at_their_own_region(braking_spec, braking_table):
    near_only = replace(braking_spec, rules=tuple(r for r in braking_spec.rules if r.name != "no phantom braking"))
    quick = {"hidden_layer_sizes": (8,), "embedding": 4, "max_epochs": 1, "random_state": 0, "compare": False}
    single = SMLERegressor(near_only, gate=False, **quick, enforcement=AtTheEnd())
    single.fit(braking_table[COLUMNS], braking_table["brake"])
    near = (braking_table["distance"] <= 10) & (braking_table["speed"] >= 20)
    assert single.usage(braking_table).rules["emergency braking"] == near.sum()
    names = single.predict(braking_table, return_info=True)[1]["active_rules"]
    assert [("emergency braking" in row) for row in names] == near.tolist()


def test_infinite_inputs_are_counted_as_outside(braking_model, braking_table):
    odd = braking_table.head(10).assign(speed=np.inf)
    usage = braking_model.usage(odd)
    assert usage.outside["speed"] == 10
    assert encode_inputs(braking_model.specification_, odd).shape == (10, 3)


def test_a_column_without_values_is_said_to_be_missing(tmp_path):
    rules = (
        "inputs: {x: [0, 1], k: {range: [0, 9], missing: 0}}\noutputs: [y]\nrules:\n- {name: r, then: 0 <= y <= 1}\n"
    )
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.random(300), "k": rng.integers(0, 9, 300).astype(float)})
    table.loc[::10, "k"] = np.nan
    model = SafeRegressor(Specification.from_yaml(rules), estimator=HistGradientBoostingRegressor(max_iter=3)).fit(
        table, table["x"]
    )
    assert model.description_["training"]["missing"] == {"k": 30}
    model.save(tmp_path / "model")
    table.assign(k=np.nan).to_csv(tmp_path / "now.csv", index=False)
    said = run("monitor", tmp_path / "model", tmp_path / "now.csv")
    assert said.exit_code == 0, said.output
    assert "WARNING: 'k' is missing in every row" in said.output
    shown = json.loads(run("monitor", tmp_path / "model", tmp_path / "now.csv", "--json").stdout)
    (change,) = [change for change in shown["changes"] if change["kind"] == "missing"]
    assert (change["name"], change["training"], change["now"], change["verdict"]) == ("k", 0.1, 1.0, "changed")
    assert shown["drift"] is True
    assert shown["false_alarms"] == 0.01
