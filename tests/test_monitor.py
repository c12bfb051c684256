"""Counts of what a model sees, and intervals for how they changed."""

import json
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor

from smle import SafeRegressor, Specification
from smle.errors import ModelFormatError
from smle.monitor import Usage, compare, wilson
from smle.tables import encode_inputs
from support.commands import run
from support.safe_networks import AtTheEnd

COLUMNS = ["distance", "speed", "friction"]


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(0.5, 6))
def test_the_interval_of_a_share(rows, share, z):
    count = round(share * rows)
    low, high = wilson(count, rows, z)
    assert 0 <= low <= count / rows <= high <= 1
    mirrored = wilson(rows - count, rows, z)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)
    wider = wilson(count, rows, z + 0.5)
    assert wider[0] <= low
    assert wider[1] >= high


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    z = NormalDist().inv_cdf(0.995)
    counts = rng.binomial(500, 0.07, size=4000)
    inside = [low <= 0.07 <= high for low, high in (wilson(int(k), 500, z) for k in counts)]
    assert 0.98 < np.mean(inside) <= 1.0


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
    changes = compare(training, braking_model.usage(braking_table))
    assert all(change.verdict != "changed" for change in changes)
    assert all(change.low <= 0 <= change.high for change in changes)


def test_shifted_rows_are_drift(braking_model, braking_table):
    training = Usage.from_json(braking_model.description_["training"])
    faster = braking_table.assign(speed=30 + braking_table["speed"] / 4, distance=braking_table["distance"] + 120)
    now = braking_model.usage(faster)
    found = {(c.kind, c.name): c for c in compare(training, now)}
    outside = int((faster["distance"] > 200).sum())
    assert now.outside["distance"] == now.outside_rows == outside
    assert found["domain", "rows outside"].verdict == "changed"
    assert found["rule", "no phantom braking"].verdict == "changed"
    assert found["rule", "physical range"].verdict == "same"
    assert any(c.kind == "input" and c.name.startswith("speed") and c.verdict == "changed" for c in found.values())
    assert not any(
        c.kind == "input" and c.name.startswith("friction") and c.verdict == "changed" for c in found.values()
    )


def test_few_rows_leave_it_open(braking_model, braking_table):
    training = Usage.from_json(braking_model.description_["training"])
    changes = compare(training, braking_model.usage(braking_table.head(5)))
    assert all(change.verdict != "same" or change.kind == "clip" for change in changes)


def test_rules_without_a_bit_in_the_gate_are_judged_at_their_own_region(braking_spec, braking_table):
    near_only = replace(braking_spec, rules=tuple(r for r in braking_spec.rules if r.name != "no phantom braking"))
    quick = {"hidden_layer_sizes": (8,), "embedding": 4, "max_epochs": 1, "random_state": 0, "compare": False}
    single = SafeRegressor(near_only, enforcement=AtTheEnd(), gate=False, **quick)
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
