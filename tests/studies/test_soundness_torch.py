"""The torch door in every mode: nothing is found in certified heads, and what is not safe is found in every mode."""

import pytest

from studies.bench import run_bench
from studies.bench.torch_attacks import MODES


@pytest.mark.audit
def test_the_quick_run_finds_nothing_where_it_should_and_something_where_it_should(tmp_path):
    result = run_bench("soundness_torch", quick=True, output=tmp_path)
    assert all(result.passed.values()), result.passed
    safe, shaped, _, box, grid, _ = (table.rows for table in result.tables)
    kinds = {row[0].split(":")[0] for row in safe}
    assert kinds == {"certified box", "learned box", "whole numbers"}
    assert {row[0].split(",")[0] for row in shaped} == {"Transformer", "graph network"}
    assert len(box) == len(grid) == 2 * len(MODES)
    assert all(violations > 0 for _, _, violations in box)
    flushed = [violations for way, _, violations in grid if "flush" in way]
    assert sum(violations > 0 for violations in flushed) >= len(MODES) - 2, "float64 and half hold no tiny numbers"
