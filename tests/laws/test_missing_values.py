"""`score is missing` binds exactly on the rows without a score, at every door; `score is known` is its complement."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest

import smle_check
from smle import SMLERegressor, Specification, attack, diagnose, load
from smle.advice.compare import compare
from smle.certificates.agreement import assumptions_of
from smle.errors import ContradictionError, DataError, RuleError
from smle.estimators import NetworkRegressor, SafeRegressor
from smle.export import load_onnx, write_onnx
from smle.heads.rules.rules_author import certify_rules
from smle.networks.safe_network import SafeNetwork
from smle.rules import variables
from smle.tables import Reader
from smle.violations.points import finished
from smle_check.onnx.check_file import check_onnx
from smle_check.onnx.graph import Graph
from smle_check.onnx.match import read_inputs
from support.commands import run
from support.exported import resealed
from support.joined import every_constant_counts, every_node_counts, joined

RULES = """
inputs:
  income: [0, 100000]
  score: {range: [300, 850], missing: 500}
  work: {categories: [employed, retired, none], missing: none}
  late: {range: [0, 1], missing: 0.1}
  visits: {range: [0, 9], integer: true, missing: 0}
outputs: [limit]
rules:
  - {name: no score, when: score is missing, then: limit <= 1000}
  - {name: good score, when: score >= 700, then: limit >= 2000}
  - {name: both known, when: work is known and score is known, then: limit >= 1010}
  - {name: no work, when: work is missing, then: limit <= 8000}
  - {name: no late, then: late is missing implies limit <= 5000}
  - {name: late, then: late is known implies limit <= 9000}
  - {name: no visits, when: visits is missing or visits >= 8, then: limit <= 7000}
"""
SPEC = Specification.from_yaml(RULES)


@pytest.fixture(scope="module")
def table():
    rng, n = np.random.default_rng(5), 300
    table = pd.DataFrame(
        {
            "income": rng.uniform(0, 100_000, n),
            "score": rng.uniform(300, 850, n),
            "work": rng.choice(["employed", "retired", "none"], n),
            "late": rng.uniform(0, 1, n),
            "visits": rng.integers(0, 9, n).astype(float),
        }
    )
    for name in ("score", "work", "late", "visits"):
        table.loc[rng.random(n) < 0.25, name] = None
    table.loc[:9, "score"] = 500.0  # the stand-in, stated
    table.loc[:9, "work"] = "none"
    table.loc[:9, "late"] = 0.1
    return table.assign(limit=0.1 * table["income"])


@pytest.fixture(scope="module")
def model(table):
    inner = NetworkRegressor(max_epochs=3)
    return SafeRegressor(SPEC, inner).fit(table.drop(columns="limit"), table["limit"])


def on(table):
    """Return which rules bind, read off the table."""
    gone = table.isna()
    return np.stack(
        [
            gone["score"],
            table["score"] >= 700,
            ~gone["work"] & ~gone["score"],
            gone["work"],
            gone["late"],
            ~gone["late"],
            gone["visits"] | (table["visits"] >= 8),
        ],
        axis=1,
    )


def names(bits):
    return [tuple(rule.name for rule, bit in zip(SPEC.rules, row, strict=True) if bit) for row in bits]


def holds(table, limit):
    """Whether the answers obey what binds."""
    limits = np.array([limit <= 1000, limit >= 2000, limit >= 1010, limit <= 8000, limit <= 5000, limit <= 9000,
                       limit <= 7000])  # fmt: skip
    return bool((limits.T | ~on(table)).all())


def test_every_kind_of_table_says_the_same(model, table):
    X = table.drop(columns="limit")
    answers, info = model.predict(X, return_info=True)
    assert info["active_rules"] == names(on(table))
    assert holds(table, answers)
    dicts = [{k: None if v != v else v for k, v in row.items()} for row in X.to_dict("records")]
    for other in (pl.from_pandas(X), dicts, X.astype(object).to_numpy()):
        same, told = model.predict(other, return_info=True)
        assert np.array_equal(same, answers)
        assert told["active_rules"] == info["active_rules"]


def test_onnx_computes_it_from_nan_and_the_empty_text(model, table, tmp_path):
    import onnxruntime

    path = tmp_path / "m.onnx"
    write_onnx(model.record(), path)
    answers, info = load_onnx(path).predict(table, return_info=True)
    assert info["active_rules"] == names(on(table))
    assert holds(table, answers["limit"].to_numpy())
    session = onnxruntime.InferenceSession(str(path))
    assert [item.name for item in session.get_inputs()] == [item.name for item in SPEC.inputs]
    feed = {name: table[[name]].to_numpy(np.float32) for name in ("income", "score", "late", "visits")}
    feed["work"] = table["work"].fillna("").to_numpy(object)[:, None]
    served, active = session.run(["limit", "active_rules"], feed)
    assert np.array_equal(active, on(table.assign(late=table["late"].astype(np.float32))))
    assert holds(table, served[:, 0])
    lines = check_onnx(path.read_bytes(), path.with_name("m.onnx.certificate.json").read_bytes()).assumptions
    assert "`score is missing` is 1 where score is missing and has its stand-in, and else 0." in lines


def test_onnx_without_reports_and_files_whose_flags_were_exchanged(model, table, tmp_path):
    import onnx

    path = tmp_path / "m.onnx"
    write_onnx(model.record(), path, monitor=False)
    assert holds(table, load_onnx(path).predict(table)["limit"].to_numpy())
    stored = onnx.load(path)
    concat = next(node for node in stored.graph.node if "inputs/features" in node.output)
    concat.input[-1], concat.input[-2] = concat.input[-2], concat.input[-1]
    changed, place = stored.SerializeToString(), path.with_name("m.onnx.certificate.json")
    with pytest.raises(smle_check.Rejected, match="not that of the certified head"):
        check_onnx(changed, resealed(place.read_bytes(), changed))


def test_commands_predict_report_and_explain(model, table, tmp_path):
    model.save(tmp_path / "model")
    table.to_csv(tmp_path / "rows.csv", index=False)
    assert run("predict", tmp_path / "model", tmp_path / "rows.csv", "-o", tmp_path / "out.csv").exit_code == 0
    assert holds(table, pd.read_csv(tmp_path / "out.csv")["limit"].to_numpy())
    (tmp_path / "rules.yaml").write_text(RULES)
    assert "score is missing" in run("rules", tmp_path / "rules.yaml").output
    assert "`late is missing` is 1 where late is missing" in run("verify", tmp_path / "model", "--assumptions").output
    report = tmp_path / "report.html"
    assert run("report", tmp_path / "model", "--data", tmp_path / "rows.csv", "-o", report).exit_code == 0
    text = report.read_text()
    assert "When score is missing, then limit is at most 1000." in text
    assert "score is missing  ⟹  limit" in text  # and not what stands in for it
    assert '"sets"' in text  # the explorer puts the stand-in where a value is missing
    again = load(tmp_path / "model")
    assert again.specification_ == SPEC
    counted = again.deployed_.usage(table.drop(columns="limit"))
    assert counted.missing == {name: int(table[name].isna().sum()) for name in ("score", "work", "late", "visits")}
    assert counted.rules["no score"] == counted.missing["score"]


def test_rules_of_the_missing_and_of_other_values_never_meet():
    """`score >= 700` and `score is missing` contradict each other in numbers, and no row has both."""
    assert certify_rules(SPEC, default=np.zeros(1)).proved
    meets = RULES.replace("missing: 500", "missing: 800")
    with pytest.raises(ContradictionError, match=r"(?s)no score.*good score|good score.*no score"):
        certify_rules(Specification.from_yaml(meets), default=np.zeros(1))
    found = diagnose(Specification.from_yaml(meets))
    assert "score missing" in str(found)
    assert not any(item.kind == "contradiction" for item in diagnose(SPEC).findings)


def test_float32_rows_have_their_stand_in_rounded_once(table):
    X = table.drop(columns=["limit", "work"]).astype(np.float32).assign(work=table["work"])
    read = Reader(SPEC).read(X)
    assert read.encoded.dtype == np.float32
    assert np.array_equal(read.encoded[:, SPEC.flag_columns["late"]] == 1, X["late"].isna())
    bits = np.stack([[any(r.contains(x) for r in rule.regions) for rule in SPEC.rules] for x in exact(read.encoded)])
    assert np.array_equal(bits[:, 0], X["score"].isna())


def exact(rows):
    return [[Fraction(float(v)) for v in row] for row in rows]


def test_encoded_rows_must_fit():
    row = np.array([[1.0, 500.0, 0, 0, 1, 0.5, 3, 1, 0, 0, 0]])
    assert SPEC.columns[-4:] == tuple(f"{name} is missing" for name in ("score", "work", "late", "visits"))
    reader = Reader(SPEC)
    assert np.array_equal(reader.read_encoded(row), row)
    assert reader.missing_counts(row) == {"score": 1, "work": 0, "late": 0, "visits": 0}
    row[0, 1] = 600
    with pytest.raises(DataError, match="expected its stand-in 500 where 'score is missing' is 1"):
        reader.read_encoded(row)
    row[0, 1], row[0, 7] = np.nan, 0.0
    assert reader.read_encoded(row)[0, [1, 7]].tolist() == [500, 1]
    row[0, 8] = 0.5
    with pytest.raises(DataError, match="expected 0 or 1"):
        reader.read_encoded(row)


def test_sampled_points_can_occur_and_attacks_find_what_is_broken(table):
    points = finished(SPEC, np.random.default_rng(0).uniform(-1, 900, (500, len(SPEC.columns))), np.float32)
    for item, place, flag in SPEC.flagged:
        gone = points[:, flag] == 1
        assert set(np.unique(points[:, flag])) <= {0, 1}
        assert (points[gone, place] == np.array(item.stand_in, dtype=np.float32)).all()
    only = replace(SPEC, rules=SPEC.rules[:1])
    found = attack(lambda X: np.where(X["score"].isna(), 3000.0, 500.0), only, examples=table.drop(columns="limit"))
    assert found.violation.inputs == {"score": None}


def test_networks_read_tables_and_serve_the_missing(table):
    torch = pytest.importorskip("torch")
    network = SafeNetwork(torch.nn.Linear(len(SPEC.columns), 1), SPEC)
    answers = network.predict(table.drop(columns="limit"))
    assert holds(table, np.asarray(answers).reshape(-1))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("score is missing", "score is missing"),
        ("score is not missing", "score is known"),
        ("not score is missing", "score is known"),
        ("`score` is not known", "score is missing"),
        ("score is known and late is missing or income > 5", "score is known and late is missing or income > 5"),
    ],
)
def test_round_trip(text, printed):
    base = {"inputs": SPEC.inputs, "outputs": ["limit"]}
    made = Specification.build(**base, rules={"r": (text, "limit <= 1")})
    assert made.rules[0].when == printed
    assert Specification.from_yaml(made.to_yaml()) == made
    assert made.to_yaml().count("is missing") == printed.count("is missing")  # no input of that name is written


def test_python_says_the_same():
    score, limit = variables("score", "limit")
    base = {"inputs": SPEC.inputs, "outputs": ["limit"]}
    for condition, text in ((score.is_missing(), "score is missing"), (score.is_known(), "score is known")):
        made = Specification.build(**base, rules={"r": (condition, limit <= 1)})
        assert made == Specification.build(**base, rules={"r": (text, "limit <= 1")})
    with pytest.raises(RuleError, match="name of an input"):
        (score + 1).is_missing()


def test_a_rule_that_was_compiled_elsewhere_finds_its_column():
    made = Specification.build(inputs=SPEC.inputs, outputs=["limit"], rules=[SPEC.rules[4]])
    assert made.flags == ("late",)
    assert made == Specification.build(inputs=SPEC.inputs, outputs=["limit"], rules={"no late": SPEC.rules[4].then})


def test_names_that_clash_are_refused():
    inputs = {"score": {"range": (0, 9), "missing": 3}, "score is missing": (0, 1)}
    with pytest.raises(RuleError, match="is used twice"):
        Specification.build(inputs=inputs, outputs=["y"], rules={"r": ("score is missing", "y <= 1")})


def test_versions_are_compared_where_values_are_missing():
    def spec(*rules):
        return Specification.build(inputs=SPEC.inputs, outputs=["limit"], rules=dict(enumerate_names(rules)))

    def enumerate_names(rules):
        return ((f"r{i}", rule) for i, rule in enumerate(rules))

    always = spec((None, "limit <= 10"))
    split = spec(("score is missing", "limit <= 10"), ("score is known", "limit <= 10"))
    assert compare(always, split).verdict == "equal"
    part = spec(("score is missing", "limit <= 10"))
    found = compare(part, always)
    assert found.verdict == "stricter"
    assert found.newly_forbidden.missing == ()
    other = compare(part, spec(("late is missing", "limit <= 10")))
    assert other.verdict == "neither"
    assert "score=missing" in other.table()
    assert compare(part, part).verdict == "equal"


def test_what_the_flags_mean_is_said():
    assert any("`work is missing` is 1 where work is missing" in line for line in assumptions_of(SPEC, "rules"))


def test_every_node_and_constant_that_makes_a_flag_counts():
    made = joined(SPEC)
    assert every_node_counts(made, 2) > 60
    fills = ("inputs/1/fill", "inputs/3/fill", "inputs/4/fill")  # what stands in is the exporter's word
    assert "constants/empty" in every_constant_counts(made, free=(*fills, "clips."))


def test_categories_cannot_reach_into_the_flags():
    """Exactly one of two values would be missing, says such a certificate; the graph says nothing of the kind."""
    graph = Graph(joined(SPEC).onnx)
    columns, groups = list(SPEC.columns), [list(group) for group in SPEC.one_hot]
    assert [item.flagged for item in read_inputs(graph, columns, groups)] == [False, True, True, True, True]
    for one_hot in ([*groups, [7, 8]], [[2, 3, 4, 7]]):
        with pytest.raises(smle_check.Rejected, match="say what is missing"):
            read_inputs(graph, columns, one_hot)
    for other in (["score is missing", "income is missing"], ["work is missing", "score is missing"]):
        with pytest.raises(smle_check.Rejected, match="onnx"):
            read_inputs(graph, [*columns[:7], *other], groups)


GRID = """
inputs: {demand: {range: [0, 40], integer: true}, score: {range: [0, 9], missing: 5}}
outputs: {a: {integer: true, range: [0, 100]}, b: {integer: true, range: [0, 100]}}
rules:
  - {name: sum, then: a + b == demand}
  - {name: gone, when: score is missing, then: a <= 3}
  - {name: high, when: score >= 8, then: a >= 0.5 * demand}
"""
BOX = """
inputs: {demand: [0, 40], score: {range: [0, 9], missing: 5}}
outputs: [y]
rules:
  - {name: gone, when: score is missing, then: y <= 0.3}
  - {name: high, when: score >= 8, then: y >= 0.5}
"""


@pytest.fixture(scope="module")
def demands():
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"demand": rng.integers(0, 41, 200), "score": rng.uniform(0, 9, 200)})
    table.loc[rng.random(200) < 0.3, "score"] = np.nan
    return table


def test_heads_of_whole_numbers_and_boxes_know_it(demands, tmp_path):
    gone, high = demands["score"].isna().to_numpy(), (demands["score"] >= 8).to_numpy()
    first = np.round(0.7 * demands["demand"])
    targets = np.stack([first, demands["demand"] - first], axis=1)
    grid = SafeRegressor(GRID, NetworkRegressor(max_epochs=2), compare=False).fit(demands, targets)
    box = SMLERegressor(BOX, max_epochs=3, random_state=0, compare=False).fit(demands, targets[:, 0] / 40)
    for model, name in ((grid, "grid.onnx"), (box, "box.onnx")):
        write_onnx(model.record(), tmp_path / name)
    for a, b in (grid.predict(demands).T, load_onnx(tmp_path / "grid.onnx").predict(demands).to_numpy().T):
        assert np.array_equal(a + b, demands["demand"])
        assert (a[gone] <= 3).all()
        assert (a[high] >= 0.5 * demands["demand"][high]).all()
        assert (a[~gone] > 3).any()
    for y in (box.predict(demands), load_onnx(tmp_path / "box.onnx").predict(demands)["y"].to_numpy()):
        assert (y[gone] <= 0.3).all()
        assert (y[high] >= 0.5).all()
