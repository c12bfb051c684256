"""smle project: edited rules for a trained model."""

import json
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from smle import NetworkClassifier, SafeClassifier, SMLERegressor, Specification, load
from smle.demo import BRAKING_RULES
from smle.doors.assure import project_model
from smle.errors import DataError, NotCertifiedError
from smle.rules.membership import broken
from smle.tables import encode_inputs
from support.commands import refused, run

MORE = "  - {name: icy, when: friction <= 0.3 and speed >= 10, then: brake <= 0.95}\n"
LABEL = "rules:\n  - {name: r, then: brake}\n"
EDITS = {
    "stricter": BRAKING_RULES.replace("brake >= 0.8", "brake >= 0.9"),
    "other regions": BRAKING_RULES.replace("distance >= 150", "distance >= 120").replace("near: 10", "near: 25"),
    "a new rule": BRAKING_RULES + MORE,
    "depends on inputs": BRAKING_RULES + "  - {name: gentle, then: brake <= 0.5 + 0.02 * speed + 0.5 * friction}\n",
    "one rule less": BRAKING_RULES.replace("  - name: physical range\n    then: 0 <= brake <= 1\n", ""),
    "wider domain": BRAKING_RULES.replace("speed: [0, 40]", "speed: [0, 50]"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_rules_hold(edit, braking_folder, braking_table, tmp_path):
    path = tmp_path / "edited.yaml"
    path.write_text(EDITS[edit])
    data = []
    if edit == "one rule less":  # nothing is asked of some inputs any more, and no head was trained for them
        assert "Pass the training data" in refused("project", braking_folder, path, "-o", tmp_path / "new")
        braking_table.to_csv(tmp_path / "data.csv", index=False)
        data = ["--data", tmp_path / "data.csv"]
    result = run("project", braking_folder, path, "-o", tmp_path / "new", "--json", *data)
    assert result.exit_code == 0, result.output
    assert run("verify", tmp_path / "new").exit_code == 0
    new, spec = load(tmp_path / "new"), Specification.from_yaml(EDITS[edit])
    rng = np.random.default_rng(0)
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    rows = pd.DataFrame(rng.uniform(low, high, (4000, 3)), columns=list(spec.columns))
    assert not broken(spec, encode_inputs(spec, rows), new.raw_outputs(rows)).any()
    margins = json.loads(result.stdout)["margins"]
    assert set(margins) >= {rule.name for rule in spec.rules}
    for rule in spec.rules:
        least = min(item.margin for item in new.certificate_.proved if item.rule == rule.name)
        assert Fraction(margins[rule.name]["new"]) <= least < Fraction(math.nextafter(margins[rule.name]["new"], 9e9))
    if edit != "depends on inputs":  # new slopes: near parameters are not near outputs there
        assert new.score(braking_table, braking_table["brake"]) > 0.8


def test_the_same_rules_change_nothing(braking_model, braking_folder, braking_table, tmp_path):
    (tmp_path / "same.yaml").write_text(BRAKING_RULES)
    text = run("project", braking_folder, tmp_path / "same.yaml", "-o", tmp_path / "new")
    assert text.exit_code == 0, text.output
    new = load(tmp_path / "new")
    assert np.array_equal(new.predict(braking_table), braking_model.predict(braking_table))
    assert new.description_["provenance"]["projected_from"] == braking_model.certificate_.document["digest"]
    assert new.description_["scores"] == {}


def test_data_fit_the_new_heads(braking_model, braking_folder, braking_table, tmp_path):
    """Where parameters that are near do not mean outputs that are near, data help."""
    edit = "depends on inputs"
    (tmp_path / "edited.yaml").write_text(EDITS[edit])
    braking_table.to_csv(tmp_path / "data.csv", index=False)
    places = ("-o", tmp_path / "b", "--data", tmp_path / "data.csv")
    fitted = run("project", braking_folder, tmp_path / "edited.yaml", *places, "--json")
    assert fitted.exit_code == 0, fitted.output
    scores = json.loads(fitted.stdout)["scores"]
    assert scores["rows"] == 300
    bare = project_model(braking_model, Specification.from_yaml(EDITS[edit]))
    rows = braking_table[["distance", "speed", "friction"]]
    assert load(tmp_path / "b").score(rows, braking_table["brake"]) > 0.8 >= bare.score(rows, braking_table["brake"])
    assert load(tmp_path / "b").description_["training"]["rows"] == 1200


def test_refusals(braking_folder, tmp_path):
    head = BRAKING_RULES.split("rules:", maxsplit=1)[0]
    for text, code, reason in (
        (BRAKING_RULES.replace("brake <= 0.1", "brake <= 0.1 and brake >= 0.2"), 1, "no phantom braking"),
        (BRAKING_RULES.replace("friction", "grip"), 2, "same inputs"),
        (BRAKING_RULES.replace("brake", "stop"), 2, "same outputs"),
        (head.replace("outputs: [brake]", "labels: [brake]") + LABEL, 2, "kinds of outputs"),
        (head + "rules: []\n", 3, "states no rules"),
    ):
        (tmp_path / "edited.yaml").write_text(text)
        call = ("project", braking_folder, tmp_path / "edited.yaml", "-o", tmp_path / "new")
        assert reason in refused(*call, code=code)
        assert not (tmp_path / "new").exists()
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "precious").write_text("")
    (tmp_path / "edited.yaml").write_text(BRAKING_RULES)
    taken = refused("project", braking_folder, tmp_path / "edited.yaml", "-o", tmp_path / "place")
    assert "is not a model folder" in taken


def test_a_score_that_cannot_be_measured_is_said_to_be_unknown(braking_folder, braking_table, tmp_path):
    (tmp_path / "wider.yaml").write_text(EDITS["wider domain"])
    call = ("project", braking_folder, tmp_path / "wider.yaml", "--data", tmp_path / "data.csv", "-o")
    braking_table.assign(speed=braking_table["speed"] + 10).to_csv(tmp_path / "data.csv", index=False)
    done = run(*call, tmp_path / "faster")
    assert done.exit_code == 0, done.output
    assert "Score on 300 held-out rows: unknown (rows lie outside the domain) before, " in done.stdout
    braking_table.head(5).to_csv(tmp_path / "data.csv", index=False)
    done = run(*call, tmp_path / "few")
    assert done.exit_code == 0, done.output
    assert "No rows were held out" in done.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--data", "data.csv", "--test-share", 7), "Expected --test-share to be a number from 0 up to 1. Got 7.0."),
        (("--data", "data.csv", "--test-share", -3), "Expected --test-share to be a number from 0 up to 1. Got -3.0."),
        (("--test-share", 0.5), "--test-share needs --data"),
    ],
)
def test_a_share_that_holds_nothing_out_is_refused(
    braking_folder, braking_table, tmp_path, monkeypatch, options, reason
):
    monkeypatch.chdir(tmp_path)
    braking_table.to_csv("data.csv", index=False)
    (tmp_path / "same.yaml").write_text(BRAKING_RULES)
    assert reason in refused("project", braking_folder, "same.yaml", "-o", "new", *options)
    assert not (tmp_path / "new").exists()


def test_choices_and_labels_can_be_projected():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-3, 3, (300, 2)), columns=["a", "b"])
    quick = {"hidden_layer_sizes": (8,), "embedding": 8, "max_epochs": 10, "random_state": 0}
    rules = (
        "inputs: {{a: [-3, 3], b: [-3, 3]}}\nchoices: {{advice: [clear, left, right]}}\n"
        "rules:\n  - {{name: wall, when: a <= {at}, then: advice != left}}\n"
    )
    y = np.where(X["b"] < 0, "clear", np.where(X["a"] > 0, "right", "left"))
    model = SafeClassifier(rules.format(at=-1), NetworkClassifier(**quick), compare=False).fit(X, y)
    for data in ({}, {"X": X, "y": pd.DataFrame({"advice": y})}):
        new = project_model(model, Specification.from_yaml(rules.format(at=1)), **data)
        assert not (new.predict(X)[X["a"] <= 1] == "left").any()
        assert set(new.classes_) == {"clear", "left", "right"}
    smallest = rules.format(at=1).replace("[clear, left, right]", "{options: [clear, left, right], pick: min}")
    with pytest.raises(DataError, match=r"pick: max, as in the model's rules.*opposite decisions"):
        project_model(model, Specification.from_yaml(smallest))
    labels = "inputs: {{a: [-3, 3], b: [-3, 3]}}\nlabels: [cat, dog]\nrules:\n  - {{name: r, {rule}}}\n"
    marks = np.stack([X["a"] > 0, X["b"] > 0], axis=1).astype(int)
    model = SafeClassifier(
        labels.format(rule="then: not (cat and dog)"), NetworkClassifier(**quick), compare=False
    ).fit(X, marks)
    new = project_model(model, Specification.from_yaml(labels.format(rule="when: a >= 1, then: cat implies dog")))
    inside = new.predict(X)[X["a"] >= 1]
    assert (inside[:, 0] <= inside[:, 1]).all()


def test_a_model_without_gate_keeps_one_head(braking_table):
    rules = BRAKING_RULES.replace("brake <= 0.1", "brake <= 1")
    columns = ["distance", "speed", "friction"]
    quick = {"hidden_layer_sizes": (8,), "embedding": 8, "max_epochs": 2, "random_state": 0, "compare": False}
    model = SMLERegressor(rules, gate=False, **quick)
    model.fit(braking_table[columns], braking_table["brake"])
    new = project_model(model, Specification.from_yaml(rules.replace("brake >= 0.8", "brake >= 0.9")))
    assert new.certificate_.document["gate"]["regions"] == []
    with pytest.raises(NotCertifiedError):
        project_model(model, Specification.from_yaml(rules.split("rules:", maxsplit=1)[0] + "rules: []\n"))
