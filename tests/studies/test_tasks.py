"""The benchmarks' tasks: sizes, properties and scores are the paper's."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import smle
from smle.advice.costs import lost_scores
from smle.baselines import nearest_allowed
from smle.estimators.class_tasks import task_of
from studies.experiments import classification, data, forecasting, synthetic
from studies.experiments.tasks import accuracy, r2

needs_data = pytest.mark.skipif("SMLE_DATA" not in os.environ, reason="needs the data: set SMLE_DATA to their folder")

SIZES = {
    "CHD-49": (555, 49, 6, (1, 5, 9)),
    "Flags": (194, 39, 7, (1, 7, 13)),
    "Foodtruck": (407, 28, 12, (1, 22, 41)),
    "Water-quality": (1060, 16, 14, (1, 28, 55)),
    "Yeast": (2417, 103, 14, (2, 28, 55)),
}
"""Rows, features, labels and forbidden pairs for the three quantiles."""


@pytest.mark.parametrize(("n", "sizes"), [(2, (4025, 802)), (4, (4014, 801)), (8, (4035, 820))])
def test_synthetic_sizes(n, sizes):
    found = synthetic.synthetic_data(n, synthetic.POWERS["hard"])
    assert (len(found.X), len(found.X_test)) == sizes
    assert found.y.shape == (sizes[0], 4)
    assert sizes[0] + sizes[1] + len(found.interpolation[0]) + len(found.extrapolation[0]) == 6000


def test_synthetic_properties_are_54_with_the_papers_shapes():
    found = synthetic.properties()
    assert len({item.key for item in found}) == 54
    for item in found:
        assert item.Q.shape == (int(np.log2(item.inputs)) + 2, item.inputs)
        assert item.R.shape[0] == int(np.log2(item.R.shape[1])) + 2


@needs_data
def test_synthetic_properties_are_drawn_bit_for_bit():
    stored = json.loads((Path(os.environ["SMLE_DATA"]) / "synthetic" / "properties.json").read_text())
    for entry, item in zip(stored, synthetic.properties(), strict=True):
        assert (entry["inputs"], entry["task"], entry["property"]) == (item.inputs, item.task, item.name)
        rows = len(item.q)  # the rest is the box |x_j| <= 2, the domain of the specification
        for name, mine in (("Q", item.Q), ("q", item.q)):
            assert np.array_equal(np.array(entry[name])[:rows], mine)
        for name, mine in (("R", item.R), ("r", item.r)):
            assert np.array_equal(np.array(entry[name]), mine)


def test_synthetic_oracle_scores_as_in_the_paper():
    median = {}
    for item in synthetic.properties():
        task = synthetic.load(item.key)
        allowed = nearest_allowed(task.specification, task.X_test, task.y_test)
        assert not task.broken(task.X_test, allowed).any()
        median.setdefault(task.group, []).append(task.score(allowed))
    found = [round(float(np.median(median[f"P{k}"])), 3) for k in range(1, 7)]
    assert found == [1.0, 0.987, 0.963, 0.88, 0.743, 0.603]


def test_windows_undo_to_the_series():
    values = np.arange(40.0) ** 1.5
    cut = forecasting.windows(values)
    assert cut.X.shape == (29, 8)
    assert cut.y.shape == (29, 4)
    assert np.allclose(cut.X + cut.last, np.lib.stride_tricks.sliding_window_view(values, 12)[:, :8])
    assert np.allclose(cut.y + cut.last, np.lib.stride_tricks.sliding_window_view(values, 12)[:, 8:])
    assert np.all(cut.X[:, -1] == 0)


def test_forecasts_are_scored_after_undoing_the_difference():
    task = forecasting.load("Standin-S1-0.95", data.standin_series())
    assert task.score(task.y_test) == 1.0
    level = task.y_test + task.last_test
    constant = level.mean(axis=0) - task.last_test  # predicting the mean level scores zero
    assert task.score(constant) == pytest.approx(0.0, abs=1e-12)


def test_bounded_change_counts_beyond_the_tolerance():
    task = forecasting.load("Standin-S1-0.90", data.standin_series())
    delta = float(np.quantile(np.abs(np.diff(_scaled(data.standin_series()["S1"]))), 0.9))
    steps = np.array([[0.0, delta, 0.0, delta], [0.0, delta + 2e-6, 0.0, 0.0], [0.0, delta + 5e-7, 0.0, 0.0]])
    assert task.broken(task.X_test[:3], steps).tolist() == [False, True, False]


def _scaled(values):
    part = values[: int(0.8 * len(values))]
    return (values - part.mean()) / part.std()


@needs_data
def test_forecasting_has_75_tasks_with_the_papers_oracle():
    series = data.series()
    groups = {}
    for key in forecasting.task_keys():
        task = forecasting.load(key, series)
        allowed = nearest_allowed(task.specification, task.X_test, task.y_test)
        groups.setdefault(task.group, []).append(task.score(allowed))
        assert np.abs(task.X_test).max() <= float(task.specification.inputs[0].upper)
    assert {group: len(scores) for group, scores in groups.items()} == {"1.00": 25, "0.95": 25, "0.90": 25}
    found = {group: [round(float(q), 3) for q in np.quantile(s, (0.25, 0.5, 0.75))] for group, s in groups.items()}
    assert found == {"1.00": [1.0, 1.0, 1.0], "0.95": [1.0, 1.0, 1.0], "0.90": [0.998, 0.999, 1.0]}


@needs_data
@pytest.mark.parametrize("name", SIZES)
def test_classification_sizes(name):
    rows, features, labels, pairs = SIZES[name]
    table = data.label_table(name)
    assert table.X.shape == (rows, features)
    assert table.y.shape == (rows, labels)
    for quantile, count in zip(classification.QUANTILES, pairs, strict=True):
        task = classification.load(f"{name}-{quantile}", table)
        assert len(task.specification.rules[0].requirement.exclusions) == count
        assert len(task.X_test) == int(np.ceil(0.2 * rows))
        assert np.abs(task.X).max() <= float(task.specification.inputs[0].upper)


@needs_data
def test_classification_oracle_scores_as_in_the_paper():
    groups = {}
    for key in classification.task_keys():
        task = classification.load(key, data.label_table(key.rsplit("-", 1)[0]))
        allowed = nearest_allowed(task.specification, task.X_test, task.y_test) - 0.5
        groups.setdefault(task.group, []).append(task.score(allowed))
    found = {group: [round(float(q), 3) for q in np.quantile(s, (0.25, 0.5, 0.75))] for group, s in groups.items()}
    assert found == {"0.0": [1.0, 1.0, 1.0], "0.3": [0.978, 0.99, 0.993], "0.6": [0.908, 0.947, 0.959]}


def test_scores_by_hand():
    truth = np.array([[0.0, 1.0], [2.0, 3.0]])
    assert r2(truth, truth) == 1.0
    assert r2(truth, np.array([[1.0, 2.0], [1.0, 2.0]])) == 0.0
    assert r2(truth, np.array([[0.0, 2.0], [2.0, 2.0]])) == 0.5  # one output right, one at its mean
    labels = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert accuracy(labels, np.array([[0.0, -1.0], [2.0, -3.0]])) == 0.75  # a logit of 0 predicts the label


# --- selection


def test_the_published_selection_gives_the_papers_properties_of_eight_inputs():
    picked = synthetic.chosen(synthetic.graded(8, "hard", range(30), range(30)))
    assert [item.seeds for item in picked] == list(synthetic.SEEDS[8, "hard"])
    grades = [item.difficulty for item in picked]
    assert grades == sorted(grades)
    assert picked[0].oracle == pytest.approx(1.0, abs=1e-3)


def test_the_published_order_is_that_of_grades_over_three_sets():
    orders = {key: synthetic.trained_order(*key) for key in synthetic.SEEDS}
    assert all(sorted(order) == [1, 2, 3, 4, 5, 6] for order in orders.values())
    assert {key for key, order in orders.items() if order == (1, 2, 3, 4, 5, 6)} == {
        (2, "hard"),
        (8, "easy"),
        (8, "hard"),
    }
    assert orders[4, "easy"] == (1, 3, 5, 2, 4, 6)


def test_a_level_without_a_property_of_its_own_takes_places_at_even_distances():
    pool = [synthetic.Candidate((0, number), grade, 1 - grade) for number, grade in enumerate((0.0, 0.01, 0.02, 0.5))]
    assert [item.difficulty for item in synthetic.chosen(pool, count=4)] == [0.0, 0.01, 0.02, 0.5]
    assert [item.difficulty for item in synthetic.chosen(pool, count=2)] == [0.0, 0.5]


def test_constant_targets_score_alike_everywhere():
    spec = smle.Specification.from_yaml("inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= 2}]")
    truth = np.full((5, 1), 3.0)
    for answer, wanted in ((3.0, 1.0), (2.0, 0.0)):
        outputs = np.full((5, 1), answer)
        assert r2(truth, outputs) == r2(truth, outputs, "pooled") == wanted
        assert 1 - task_of(spec).losses(truth, outputs).mean() == wanted
        ((_, lost, by_row),) = lost_scores(spec, truth, outputs)
        assert 1 - lost == pytest.approx(wanted)
        assert len(by_row) == 5
