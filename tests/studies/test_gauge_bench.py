from __future__ import annotations

from studies.bench import run_bench


def test_quick_run_compares_variants() -> None:
    found = run_bench("gauge", quick=True)
    (table,) = found.tables
    assert [row[0] for row in table.rows] == ["as it comes", "targets as they are"]
    assert all(0 <= float(str(row[1])) < 0.5 for row in table.rows)
