"""The bench of estimators inside: every requirement is met on a small table."""

import pytest

from studies.bench import run_bench


@pytest.mark.audit
def test_quick_run_meets_every_requirement():
    found = run_bench("estimators", quick=True)
    assert found.passed
    assert all(found.passed.values()), found.passed
    assert [len(table.rows) for table in found.tables] == [2, 2]
