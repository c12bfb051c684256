"""What projections did, drawn."""

import pytest
from typer.testing import CliRunner

from studies.cli import app


def test_a_trace_is_drawn(tmp_path):
    target = tmp_path / "trace.png"
    arguments = ["trace", "synthetic", "n2-easy-P3", "--preset", "paper", "--quick", "-o", str(target)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "found no counterexample" in result.output


@pytest.mark.parametrize("preset", ["best"])
def test_only_the_papers_network_projects(tmp_path, preset):
    arguments = ["trace", "synthetic", "n2-easy-P3", "--preset", preset, "--quick", "-o", str(tmp_path / "t.png")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Expected settings of the paper's network" in result.output
