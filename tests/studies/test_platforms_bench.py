"""The bench of clusters runs on both engines; on few rows its ratios say nothing."""

import pytest

from studies.bench import run_bench


@pytest.mark.audit
@pytest.mark.filterwarnings("default")  # ray warns of its own settings
def test_quick_run():
    found = run_bench("platforms", quick=True)
    assert [row[0] for row in found.tables[0].rows] == ["Dask", "Ray Data"]
