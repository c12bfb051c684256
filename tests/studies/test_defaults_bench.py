"""The study of defaults: its quick run, its gradients, and that it goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from smle.certificates.rules import certify_rules
from smle.nn.certified_head import CertifiedHead
from smle.rules import Specification
from studies.bench import run_bench
from studies.bench.default_tasks import load, names
from studies.bench.defaults import WAYS, _Served


def test_quick_run_compares_ways_and_goes_on(tmp_path: Path) -> None:
    result = run_bench("defaults", quick=True, folder=tmp_path / "runs")
    summary, single = result.tables
    assert {str(row[0]) for row in summary.rows} == {"synthetic", "moving limits", "separate ranges", "small data"}
    assert {str(row[0]) for row in single.rows} == set(names(quick=True))
    assert single.columns[1 : len(WAYS) + 1] == WAYS
    assert list(result.passed.values())[:2] == [True, True]  # no violation, level with post-processing
    files = sorted((tmp_path / "runs" / "jobs").glob("*.json"))
    assert len(files) == 4
    changed = json.loads(files[0].read_text())
    changed["rows"][0]["group"] = "kept"
    files[0].write_text(json.dumps(changed))
    again = run_bench("defaults", quick=True, folder=tmp_path / "runs")
    assert "kept" in {str(row[0]) for row in again.tables[0].rows}


def test_options_of_other_benches_are_refused() -> None:
    with pytest.raises(ValueError, match="takes no --jobs"):
        run_bench("clips", quick=True, jobs=2)


def test_the_gradient_is_that_of_the_candidate_that_serves() -> None:
    spec = Specification.from_yaml("""
inputs: {a: [0, 1]}
outputs: [p, q]
rules: [{name: sum, then: p + q <= 1 and p - q <= 3}]
""")
    head = CertifiedHead(certify_rules(spec, scale=[1.0, 1.0]))
    answers = torch.tensor([[0.2, 0.3], [2.0, 1.0], [9.0, -1.0]], requires_grad=True)
    served = _Served.apply(answers, torch.full((3, 1), 0.5), head, torch.ones(2))
    weight = torch.tensor([[1.0, 2.0]] * 3)
    (served * weight).sum().backward()
    # As it is; on the face p + q = 1, whose direction is (1, -1) / sqrt 2; at the corner, which does not move.
    expected = torch.tensor([[1.0, 2.0], [-0.5, 0.5], [0.0, 0.0]])
    assert torch.allclose(answers.grad, expected, atol=1e-3)


@pytest.mark.parametrize("name", ["doses", "hospital", "bank", "two ranges", "three ranges", "diabetes", "wine"])
def test_problems_fit_their_rules(name: str) -> None:
    problem = load(name)
    assert len(problem.X) == len(problem.y)
    low, high = ([float(v) for v in side] for side in (problem.spec.lower, problem.spec.upper))
    assert (low <= problem.X).all()
    assert (high >= problem.X).all()
    certify_rules(problem.spec).check()
