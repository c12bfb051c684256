"""Predicting on Ray Data and Dask gives the answers of one process; errors name their place; models are loaded once."""

import numpy as np
import pytest

from smle import load
from smle.errors import CertificateError, DataError
from smle.platforms import RowsPredictor, predict_dask, predict_ray
from smle.platforms.answers import loaded

COLUMNS = ["distance", "speed", "friction"]


def expected(folder, table):
    return load(folder).predict(table[COLUMNS])


def test_one_load_per_process_and_one_more_for_a_folder_that_changed(braking_folder, braking_table):
    rows = RowsPredictor(braking_folder, keep=["speed"])
    table = braking_table.set_index(braking_table.index + 7)
    first = rows(table)
    assert list(first.columns) == ["speed", "brake"]
    assert first.index.equals(table.index)
    assert np.array_equal(first["brake"], expected(braking_folder, table))
    assert loaded(rows.model) is loaded(rows.model)
    assert rows(table[:0]).empty
    rules = braking_folder / "rules.yaml"
    rules.write_text(rules.read_text().replace("0.8", "0.7"))
    with pytest.raises(CertificateError):
        rows(table)


def test_errors_name_the_rows(braking_folder, braking_table):
    rows = RowsPredictor(braking_folder)
    far = braking_table.assign(distance=500.0)
    with pytest.raises(DataError, match=r"Partition 3 \(1500 rows\): .*outside the domain"):
        rows(far, 3)
    with pytest.raises(DataError, match=r"begins with distance=500\.0"):
        rows(far)
    with pytest.raises(DataError, match="Cannot keep 'id'"):
        RowsPredictor(braking_folder, keep=["id"])(braking_table)
    with pytest.raises(DataError, match="Cannot keep 'brake'"):
        RowsPredictor(braking_folder, keep=["brake"])(braking_table)
    assert len(RowsPredictor(braking_folder, out_of_domain="clip")(far)) == len(far)
    with pytest.raises(ValueError, match="raise, warn or clip"):
        RowsPredictor(braking_folder, out_of_domain="hope")


@pytest.mark.audit
def test_dask(braking_folder, braking_table):
    frames = pytest.importorskip("dask.dataframe")
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        frame = frames.from_pandas(braking_table, npartitions=5)
        found = predict_dask(frame, braking_folder, keep=["speed"]).compute()
        assert found["speed"].equals(braking_table["speed"])
        assert np.allclose(found["brake"], expected(braking_folder, braking_table), rtol=1e-6)  # last bits: batch sizes
        far = braking_table.assign(distance=braking_table["distance"].where(braking_table.index < 1400, 500.0))
        with pytest.raises(DataError, match=r"Partition 4 .*outside the domain"):
            predict_dask(frames.from_pandas(far, npartitions=5), braking_folder).compute()


@pytest.mark.audit
@pytest.mark.filterwarnings("default")  # ray warns of its own settings
def test_ray(braking_folder, braking_table):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        table = braking_table.assign(row=np.arange(len(braking_table)))
        data = ray.data.from_pandas(table).repartition(5)
        found = predict_ray(data, braking_folder, keep=["row"]).to_pandas().sort_values("row")
        assert np.allclose(found["brake"], expected(braking_folder, braking_table), rtol=1e-6)  # last bits: batch sizes
        far = ray.data.from_pandas(table.assign(distance=500.0))
        with pytest.raises(Exception, match=r"begins with distance=500.*outside the domain"):
            predict_ray(far, braking_folder).to_pandas()
        rules = braking_folder / "rules.yaml"
        rules.write_text(rules.read_text().replace("0.8", "0.7"))
        with pytest.raises(Exception, match=r"rules\.yaml"):
            predict_ray(data, braking_folder).to_pandas()
    finally:
        ray.shutdown()
