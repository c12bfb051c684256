"""Spark, DuckDB and Arrow get the answers of one process, bad rows set aside; a killed worker of Ray loses nothing."""

import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from smle import NetworkClassifier, NetworkRegressor, SafeClassifier, SafeRegressor, load
from smle.errors import DataError
from smle.export import write_onnx
from smle.platforms import RowsPredictor, predict_arrow, predict_dask, predict_ray, predict_spark
from smle.platforms.answers import SET_ASIDE

pa = pytest.importorskip("pyarrow")
RULES = """
inputs: {income: [0, 100000], score: {range: [300, 850], missing: 500}, work: {categories: [employed, none]}}
outputs: [limit]
rules:
  - {name: unscored, when: score is missing, then: limit <= 1000}
  - {name: share, then: 0 <= limit <= 0.2 * income}
"""
LABELS = """
inputs: {x: [0, 1], k: {categories: [a, b]}}
labels: [cat, animal]
rules:
  - {name: r, then: cat implies animal}
"""


@pytest.fixture(scope="module")
def table():
    rng, n = np.random.default_rng(3), 900
    work = rng.choice(["employed", "none"], n)
    table = pd.DataFrame({"id": np.arange(n), "income": rng.uniform(0, 1e5, n), "score": rng.uniform(300, 850, n)})
    table = table.assign(work=work)
    table.loc[rng.random(n) < 0.2, "score"] = np.nan
    return table


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    place = tmp_path_factory.mktemp("engines") / "model"
    model = SafeRegressor(RULES, NetworkRegressor(max_epochs=3))
    model.fit(table.drop(columns="id"), table["income"] / 8).save(place)
    return place


@pytest.fixture(scope="module")
def answers(folder, table):
    return RowsPredictor(folder, keep=["id"])(table)


@pytest.fixture
def bad(table):
    table = table.copy()
    table.loc[[3, 700], "work"] = "fax"
    return table


def same(found, answers):
    """Whether answers are those of one process, but for last bits."""
    found = found.sort_values("id").reset_index(drop=True)
    kept = ~found["id"].isin([3, 700]) if SET_ASIDE in found else np.ones(len(found), dtype=bool)
    equal = np.array_equal(found["id"], answers["id"]) and np.allclose(
        found["limit"][kept], answers["limit"][kept], rtol=1e-4, atol=0.01
    )
    if SET_ASIDE not in found:
        return equal
    words = "'work': expected one of employed, none, got 'fax'"
    told = dict(found.loc[~kept, ["id", SET_ASIDE]].to_numpy().tolist()) == {3: words, 700: words}
    return equal and told and found["limit"][~kept].isna().all() and found[SET_ASIDE][kept].isna().all()


def test_bad_rows_are_set_aside_row_by_row(folder, bad, answers, tmp_path):
    rows = RowsPredictor(folder, keep=["id"], bad_rows="set aside")
    assert same(rows(bad), answers)
    with pytest.raises(DataError, match="unknown category 'fax'"):
        RowsPredictor(folder)(bad)
    nothing = rows(bad.loc[[3, 700]])
    assert nothing["limit"].isna().all()
    assert list(rows(bad[:0]).columns) == ["id", "limit", SET_ASIDE]
    with pytest.raises(ValueError, match="bad_rows"):
        RowsPredictor(folder, bad_rows="drop")
    write_onnx(load(folder).record(), tmp_path / "m.onnx")
    assert same(RowsPredictor(tmp_path / "m.onnx", keep=["id"], bad_rows="set aside")(bad), answers)


def test_labels_have_one_type_in_every_part(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.uniform(0, 1, 200), "k": rng.choice(["a", "b"], 200)})
    targets = np.stack([table["x"] > 0.7, table["x"] > 0.4], axis=1).astype(int)
    SafeClassifier(LABELS, NetworkClassifier(max_epochs=2)).fit(table, targets).save(tmp_path / "m")
    rows, plain = RowsPredictor(tmp_path / "m", bad_rows="set aside"), RowsPredictor(tmp_path / "m")(table)
    strange = table.assign(k=["c", *table["k"][1:]])
    kinds = [rows(part).dtypes.to_dict() for part in (table, strange, strange[:1], table[:0])]
    assert all(kind == kinds[0] for kind in kinds)
    assert np.array_equal(rows(strange)[["cat", "animal"]].iloc[1:], plain.iloc[1:])


def test_arrow(folder, table, bad, answers):
    for rows in (pa.Table.from_pandas(table), pa.Table.from_pandas(table).to_reader(max_chunksize=100)):
        assert same(predict_arrow(rows, folder, keep=["id"]).read_all().to_pandas(), answers)
    found = predict_arrow(pa.Table.from_pandas(bad), folder, keep=["id"], bad_rows="set aside").read_all()
    assert same(found.to_pandas(), answers)
    with pytest.raises(DataError, match="Cannot keep 'no'"):
        predict_arrow(pa.Table.from_pandas(table), folder, keep=["no"])
    empty = predict_arrow(pa.Table.from_pandas(table[:0]), folder).read_all()
    assert empty.schema.names == ["limit"]
    whole = pa.table({"income": [1, 2], "score": pa.array([2**53 + 1, None], pa.int64()), "work": ["none", "none"]})
    with pytest.raises(DataError, match="9007199254740993"):  # not rounded because of the gap beside it
        predict_arrow(whole, folder).read_all()


@pytest.mark.audit
def test_duckdb(folder, table, bad, answers):
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.execute("create table rows as select * from bad")
    stream = predict_arrow(connection.cursor().sql("from rows"), folder, keep=["id"], bad_rows="set aside")
    connection.register("stream", stream)
    connection.execute("create table answers as from stream")
    assert same(connection.sql("from answers").df(), answers)
    good = connection.cursor().sql("from rows where work != 'fax'")
    assert predict_arrow(good, folder).read_all().num_rows == len(table) - 2
    with pytest.raises(Exception, match="unknown category 'fax'"):
        predict_arrow(connection.cursor().sql("from rows"), folder).read_all()


@pytest.mark.audit
@pytest.mark.filterwarnings("default")
def test_spark(folder, bad, table, answers, monkeypatch):
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "3").getOrCreate()
    try:
        frame = spark.createDataFrame(table).repartition(3)
        found = predict_spark(frame, folder, keep=["id"])
        assert same(found.toPandas(), answers)
        assert [field.dataType.simpleString() for field in found.schema.fields] == ["bigint", "double"]
        strange = spark.createDataFrame(bad).repartition(3)
        assert same(predict_spark(strange, folder, keep=["id"], bad_rows="set aside").toPandas(), answers)
        with pytest.raises(Exception, match="unknown category 'fax'"):
            predict_spark(strange, folder).toPandas()
        with pytest.raises(DataError, match="Cannot keep 'no'"):
            predict_spark(frame, folder, keep=["no"])
    finally:
        spark.stop()


@pytest.mark.audit
def test_dask_sets_aside(folder, bad, answers):
    frames = pytest.importorskip("dask.dataframe")
    found = predict_dask(frames.from_pandas(bad, npartitions=3), folder, keep=["id"], bad_rows="set aside")
    assert same(found.compute(scheduler="synchronous"), answers)


@pytest.mark.audit
@pytest.mark.filterwarnings("default")  # ray warns of its own settings
def test_a_killed_worker_of_ray_loses_no_rows(folder, bad, answers):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=3, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:

        def slowly(part):
            time.sleep(0.3)
            return part

        data = ray.data.from_pandas(bad).repartition(30).map_batches(slowly, batch_format="pandas", batch_size=None)
        found = predict_ray(data, folder, keep=["id"], bad_rows="set aside", workers=1, batch_size=30)
        parts, killed = [], []
        for part in found.iter_batches(batch_format="pandas", batch_size=None, prefetch_batches=0):
            parts.append(part)
            if not killed:
                killed = [pid for pid in descendants(os.getpid()) if "MapWorker" in command(pid)]
                assert killed, "no worker of the model is running"
                os.kill(killed[0], 9)
        assert same(pd.concat(parts), answers)
        assert len(parts) > 1
    finally:
        ray.shutdown()


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants(pid):
    """Return the processes that this one started, and those that they started."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found
