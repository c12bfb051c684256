from __future__ import annotations

import pandas as pd
import pytest

from smle import diagnose

RULES = """
inputs: {{x: [0, 1]}}
choices: {{advice: {{options: [clear, left, right], pick: {pick}}}}}
rules:
  - name: not clear when high
    when: x >= 0.5
    then: advice != clear
"""


@pytest.mark.parametrize("pick", ["max", "min"])
def test_choices_are_judged_as_they_are_picked(pick: str) -> None:
    table = pd.DataFrame({"x": [0.1, 0.6, 0.7, 0.9], "advice": ["clear", "clear", "left", "right"]})
    found = diagnose(RULES.format(pick=pick), table, table)
    assert found.to_json()["data"]["broken"] == [1 / 4]
