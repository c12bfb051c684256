import numpy as np
import pytest

from studies.experiments import tables
from studies.experiments.figures import draw_inference, draw_scores, draw_violations, picture
from studies.experiments.page import checks
from studies.experiments.tables import GROUPS, SCORES, SLOWDOWN, VIOLATIONS
from support.fake_rows import fake_rows

BENCHMARKS = tuple(GROUPS)


def line(table, *start):
    (found,) = [row for row in table.rows if row[: len(start)] == start]
    return dict(zip(table.columns, found, strict=True))


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_published_quartiles_enclose_their_medians(benchmark):
    for source in (SCORES, VIOLATIONS, SLOWDOWN):
        for groups in source.get(benchmark, {}).values():
            assert tuple(groups) == GROUPS[benchmark]
            assert all(box.q1 <= box.median <= box.q3 for box in groups.values())


def test_score_cells_are_quartiles_beside_the_paper():
    rows = fake_rows("synthetic")
    table = tables.scores(rows, "synthetic")
    ours = [row["score"] for row in rows if row["method"] == "smle" and row["group"] == "P3"]
    q1, median, q3 = np.percentile(ours, [25, 50, 75])
    assert line(table, "smle")["P3"] == f"{median:.3f} [{q1:.3f}, {q3:.3f}]"
    assert line(table, "smle, paper")["P3"] == "0.889 [0.881, 0.944]"


def test_stand_ins_are_not_set_beside_the_paper():
    rows = fake_rows("classification", standin=True)
    for make in (tables.scores, tables.violations, tables.inference, tables.by_preset):
        assert not any("paper" in cell for row in make(rows, "classification").rows for cell in row[:2])


def test_seed_interval_is_the_t_interval_of_the_medians():
    rows = fake_rows("classification", seeds=3)
    table = tables.seed_intervals(rows, "classification")
    medians = [
        np.median([r["score"] for r in rows if (r["method"], r["group"], r["seed"]) == ("smle", "0.3", seed)])
        for seed in range(3)
    ]
    half = 4.302652729911275 * np.std(medians, ddof=1) / np.sqrt(3)  # 97.5 % quantile, two degrees of freedom
    assert line(table, "smle")["0.3"] == f"{np.mean(medians):.3f} ± {half:.3f}"
    assert tables.seed_intervals(fake_rows("classification"), "classification") is None


def test_gaps_name_the_worst_run_and_count_wins():
    rows = fake_rows("synthetic")
    for row in rows:
        if row["method"] in ("smle", "postprocess") and row["group"] == "P2":
            top = next(r["score"] for r in rows if r["task"] == row["task"] and r["method"] == "oracle")
            row["score"] = top - (0.3 if row["task"] == "t4-P2" and row["method"] == "smle" else 0.01)
    found = tables.gaps(rows, "synthetic")
    (entry,) = [row for row in found.rows if row[0] == "P2"]
    assert entry[1:3] == ("0.0100", "0.3000 (t4-P2)")
    assert entry[5:] == ("0 / 8 / 1", "0.290000 (t4-P2)")


def test_slowdown_is_taken_within_a_run():
    rows = fake_rows("classification")
    for row in rows:
        if row["method"] == "smle":
            base = next(r for r in rows if r["task"] == row["task"] and r["method"] == "preprocess")
            row["seconds_per_example"] = 1.25 * base["seconds_per_example"]
    table = tables.inference(rows, "classification")
    assert line(table, "one example", "smle")["0.6"] == "1.25 [1.25, 1.25]"
    assert line(table, "whole test set", "smle, paper")["0.6"].startswith("2.324")


def test_a_model_without_proof_shows():
    rows = fake_rows("forecasting")
    next(row for row in rows if row["method"] == "smle" and row["group"] == "0.95")["certified"] = False
    entry = {row[0]: row[1] for row in tables.guarantees(rows, "forecasting").rows}
    assert entry == {"1.00": "25 of 25", "0.95": "24 of 25", "0.90": "25 of 25"}
    assert not checks(rows, "forecasting", "best")[0].met


def test_pdcg_counts_only_where_it_ran():
    assert tables.pdcg(fake_rows("synthetic"), "synthetic") is None
    table = tables.pdcg(fake_rows("synthetic", preset="paper"), "synthetic")
    assert [row[1] for row in table.rows] == ["8 of 9"] * 6


def test_ablation_is_the_mean_over_tasks_and_properties():
    rows = fake_rows("synthetic", study="q3-x") + fake_rows("synthetic", study="q3-y")
    studies = {("auxiliary complexity", "constant"): "q3-x"}
    table = tables.ablation(rows, "synthetic", studies)
    mean = np.mean([row["score"] for row in rows if row["study"] == "q3-x" and row["method"] == "smle"])
    assert [row[:3] for row in table.rows] == [("auxiliary complexity", "constant", f"{mean:.3f}")]
    assert table.rows[0][4] == "0.814"


def test_variants_are_compared_task_by_task():
    rows = fake_rows("synthetic", study="q3-x")
    gain = {"P1": 0.2, "P2": -0.05}
    rows += [row | {"study": "q3-y", "score": row["score"] + gain.get(row["group"], 0.0)} for row in rows]
    studies = {("auxiliary complexity", "constant"): "q3-x", ("auxiliary complexity", "linear"): "q3-y"}
    (found,) = tables.ablation_pairs(rows, "synthetic", studies).rows
    assert found[:2] == ("linear instead of constant", "54")
    assert found[2].startswith("+0.025 ±")
    assert found[4:] == ("9 / 9", "-0.050 to +0.200", "+0.005")


def test_missing_numbers_are_left_out_not_invented():
    rows = fake_rows("classification")
    for row in rows:
        row["score"] = None if row["method"] == "smle" else row["score"]
    assert "smle" not in [row[0] for row in tables.scores(rows, "classification").rows]


@pytest.mark.parametrize("off", [-1e-4, 1e-4])
@pytest.mark.parametrize(
    ("benchmark", "method", "limit", "places"),
    [("synthetic", "oracle", 0.005, (2, 3)), ("forecasting", "postprocess", 0.003, (2,))],
)
def test_checks_of_medians_have_no_slack(benchmark, method, limit, places, off):
    rows = fake_rows(benchmark)
    for row in rows:
        row["score"] = SCORES[benchmark][method][row["group"]].median - (limit + off) * (row["method"] == "smle")
    found = checks(rows, benchmark, "best")
    assert all(found[place].met == (off < 0) for place in places)


@pytest.mark.parametrize(("below", "met"), [(0.00009, True), (0.00011, False)])
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_no_run_of_our_default_may_be_behind_post_processing(benchmark, below, met):
    rows = fake_rows(benchmark)
    for row in rows:
        row["score"] = 0.9
    next(row for row in rows if row["method"] == "smle")["score"] -= below
    assert checks(rows, benchmark, "best")[1].met is met


@pytest.mark.parametrize(("off", "met"), [((0.01, -0.0099), True), ((0.01, -0.0101), False)])
def test_the_check_of_the_papers_quartiles_takes_the_mean_over_seeds(off, met):
    rows = [row | {"seed": seed} for seed in (0, 1) for row in fake_rows("synthetic", preset="paper")]
    for row in rows:
        row["score"] = SCORES["synthetic"]["smle"][row["group"]].q1 + off[row["seed"]]
    check = checks(rows, "synthetic", "paper")[1]
    assert check.statement.startswith("mean over 2 seed(s)")
    assert check.met is met


def test_a_run_without_a_finite_score_is_infinitely_bad():
    rows = fake_rows("synthetic")
    next(row for row in rows if row["method"] == "smle" and row["group"] == "P2")["score"] = None
    (entry,) = [row for row in tables.gaps(rows, "synthetic").rows if row[0] == "P2"]
    assert entry[2].startswith("inf (")
    worst = checks(rows, "synthetic", "best")
    assert not worst[0].met
    assert "1 without a finite score" in worst[0].found
    assert not next(check for check in worst if "no run more" in check.statement).met


def test_a_failed_job_fails_the_first_check():
    rows = fake_rows("synthetic")
    assert checks(rows, "synthetic", "best")[0].met
    assert not checks(rows, "synthetic", "best", failed=1)[0].met


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("draw", [draw_scores, draw_violations, draw_inference])
def test_figures_have_one_box_per_property_and_method(benchmark, draw):
    rows = fake_rows(benchmark)
    figure = draw(rows, benchmark, title="T")
    methods = {draw_scores: 4, draw_violations: 3, draw_inference: 2}[draw]
    boxes = [patch for axes in figure.axes for patch in axes.patches]
    panels = 2 if draw is draw_inference else 1
    assert len(boxes) == panels * methods * len(GROUPS[benchmark])


def test_figures_are_the_same_for_the_same_rows():
    rows = fake_rows("classification")
    first, second = (picture(draw_scores(rows, "classification", title="T"), "png") for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG")


def test_a_run_that_falls_out_of_the_picture_is_named_in_it():
    rows = fake_rows("synthetic")
    next(row for row in rows if row["method"] == "smle" and row["group"] == "P5")["score"] = -3.25
    figure = draw_scores(rows, "synthetic", title="T")
    assert figure.axes[0].get_ylim()[0] > 0
    assert "-3.25" in [text.get_text() for text in figure.axes[0].texts]
