"""The peers bench: layers obey their formulas, gates err where floats do, tables say who is better."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smle.rules import Literals, Specification
from studies.bench import peer_env, peers, run_bench
from studies.bench.peer_env import PEERS
from studies.bench.peer_layers import FloatGate, Guarded, HardNet, LinearCell, NotStatableError, guarded, load_case
from studies.bench.peer_methods import PeerJob, border_of, solve
from studies.harness import within
from tests.support.environments import reason_of
from tests.support.sampling import Judge

SPEC = Specification.from_yaml(
    "inputs: {a: [-2, 2], b: [-2, 2]}\noutputs: [y]\nrules:\n"
    "  - {name: tilted, when: 0.1 * a + 0.7 * b <= 0.3, then: y <= 1}\n"
)


def cell(A: list[list[float]], c: list[float], S: list[list[float]] | None = None) -> LinearCell:
    g, h = np.array(A), np.array(c)
    s = np.zeros((len(g), 1)) if S is None else np.array(S)
    return LinearCell((), Literals(g, s, h, np.zeros(len(g), dtype=bool)))


# --- HardNet's closed form


def test_outputs_of_the_closed_form_obey_and_allowed_ones_stay() -> None:
    rng = np.random.default_rng(0)
    A, c = rng.normal(size=(3, 4)), rng.normal(size=3)
    layer = HardNet(cell(A.tolist(), c.tolist()))
    f = torch.tensor(rng.normal(size=(200, 4)) * 3, dtype=torch.float32)
    y = layer(f, f, torch.zeros(200, 1))
    assert (y.double().numpy() @ A.T <= c + 1e-4).all()
    allowed = (f.double().numpy() @ A.T <= c).all(axis=1)
    assert 0 < allowed.sum() < 200
    np.testing.assert_array_equal(y[allowed].numpy(), f[allowed].numpy())


def test_rows_that_hold_with_equality_are_not_pushed_further() -> None:
    layer = HardNet(cell([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]))
    y = layer(torch.empty(0), torch.tensor([[3.0, 0.5]]), torch.zeros(1, 1))
    np.testing.assert_allclose(y.numpy(), [[1.0, 0.5]])


def test_parallel_rows_become_an_interval_that_moves_with_the_input() -> None:
    # y <= 2 x, y <= 5, y >= 1
    layer = HardNet(cell([[1.0], [2.0], [-1.0]], [0.0, 10.0, -1.0], [[-2.0], [0.0], [0.0]]))
    x = torch.tensor([[2.0], [4.0], [2.0]])
    y = layer(x, torch.tensor([[9.0], [9.0], [-9.0]]), x)
    np.testing.assert_allclose(y.numpy()[:, 0], [4.0, 5.0, 1.0])


def test_more_rows_than_outputs_have_no_closed_form() -> None:
    with pytest.raises(NotStatableError, match="3 rows for 2 outputs"):
        HardNet(cell([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [1.0, 1.0, 1.0]))


# --- gates


def test_a_float_gate_misjudges_border_points_and_the_judge_sees_what_passes() -> None:
    points = border_of(SPEC, 4000, seed=0)
    judge = Judge(SPEC)
    ((_, inside),) = judge.active(points)
    said = FloatGate(judge.cells.rows, 2)(torch.tensor(points))[:, 0].numpy()
    assert (said != inside).any()
    outputs = np.where(said, 1.0, 50.0).astype(np.float32)[:, None]
    broken = judge.judge(points, outputs).rows
    np.testing.assert_array_equal(broken, np.flatnonzero(inside & ~said))


def test_rows_outside_the_gate_get_the_plain_output() -> None:
    backbone, last = nn.Identity(), nn.Linear(2, 1)
    gate = FloatGate(Judge(SPEC).cells.rows, 2)
    made = HardNet(cell([[1.0]], [-100.0], [[0.0, 0.0]]))
    X = torch.randn(50, 2)
    for sparse in (False, True):
        network = Guarded(backbone, last, shift=np.zeros(1), size=1.0, layers=[(gate, made)], sparse=sparse)
        with torch.no_grad():
            y, plain, inside = network(X)[:, 0], last(X)[:, 0], gate(X)[:, 0]
        assert 0 < inside.sum() < 50
        torch.testing.assert_close(y, torch.where(inside, torch.full_like(plain, -100.0), plain))


# --- methods


def test_what_a_method_has_no_words_for_is_a_row() -> None:
    case = load_case("Standin-0.3")
    with pytest.raises(NotStatableError, match="disjunction"):
        guarded("HardNet-style", case, nn.Identity(), nn.Linear(1, 1), shift=np.zeros(1), size=1.0)
    (row,) = solve(PeerJob("Standin-0.3", 0, 1, 10, methods=("HardNet-style",)))
    assert row["status"].startswith("cannot state the rules")
    assert "score" not in row


def test_a_missing_package_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pishield.shield_layer", None)
    (row,) = solve(PeerJob("quick", 0, 1, 10, methods=("PiShield",)))
    assert row["status"].startswith("not installed")


@pytest.mark.audit
def test_quick_run_writes_all_files_and_certified_networks_never_violate(tmp_path: Path) -> None:
    result = run_bench("peers", quick=True, output=tmp_path)
    assert result.passed
    assert all(result.passed.values())
    table = result.tables[0]
    lines = {str(line[0]).strip("*"): line for line in table.rows}
    assert {"plain", "preprocess", "postprocess (MAP)", "HardNet-style", "smle", "smle, published preset"} == set(lines)
    on_test = table.columns.index("test points that violate")
    assert float(str(lines["plain"][on_test]).rstrip("%")) > 0
    assert lines["smle"][on_test] == lines["smle"][on_test + 1] == "0.00%"
    assert lines["smle"][table.columns.index("ONNX")] == "yes"
    assert json.loads((tmp_path / "peers.json").read_text())["quick"] is True
    assert "quick runs install nothing" in (tmp_path / "peers.md").read_text()


# --- tables


def fake(method: str, seed: int, score: float, **more: object) -> dict[str, object]:
    row: dict[str, object] = {
        "task": "t", "kind": "synthetic", "standin": False, "metric": "r2", "seed": seed, "method": method,
        "status": "done", "score": score, "cpu_train": 2.0, "epochs": 2, "worst": 0.0,
        "violations_test": 0.0, "violations_border": 0.0,
    }  # fmt: skip
    return row | {f"ratio_{batch}": 1.0 for batch in (1, 256, 8192)} | more


def test_a_peer_that_is_better_is_said_to_be() -> None:
    rows = [fake("plain", s, 0.5) for s in range(3)]
    rows += [fake("RAYEN", s, 0.9 + s / 1000, cpu_train=1.0) for s in range(3)]
    rows += [fake("smle", s, 0.8 + s / 1000, ratio_256=2.0) for s in range(3)]
    lines = {str(line[0]): line[-1] for line in peers._summary("synthetic", peers.frame(rows)).rows}
    assert lines["RAYEN"] == "accuracy (+0.100), training cost, answers at batch 256"
    assert lines["plain"] == "answers at batch 256"
    assert lines["**smle**"] == ""


def test_a_difference_within_the_interval_is_not_better() -> None:
    rows = [fake("plain", s, 0.8 + (-1) ** s / 10) for s in range(5)] + [fake("smle", s, 0.81) for s in range(5)]
    assert peers._summary("synthetic", peers.frame(rows)).rows[0][-1] == ""


def test_a_violation_of_ours_is_a_requirement_not_met() -> None:
    rows = [
        fake("plain", 0, 0.5),
        fake("smle", 0, 0.5, violations_border=0.001),
        fake("smle, published preset", 0, 0.5),
    ]
    assert list(peers._passed(peers.frame(rows)).values()) == [True, False]


# --- the environment


def test_reasons_name_the_cause_without_addresses() -> None:
    output = "Looking in https://host/simple\ncython/_cdd.c:12:1: fatal error: cddlib/setoper.h: No such file\nERROR: x"
    assert reason_of(output) == "_cdd.c:12:1: fatal error: setoper.h: No such file"
    assert "host" not in reason_of("ERROR: could not fetch https://host/a/b.whl")


def test_what_takes_too_long_is_stopped() -> None:
    with pytest.raises(TimeoutError, match=r"0\.05 s of processor time"), within(0.05):
        sum(1 for _ in itertools.count())
    with within(0.05):
        pass
    sum(range(5_000_000))  # the timer is off again


def test_a_peer_that_does_not_install_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_env, "pip", lambda folder, *arguments: "no such package")
    monkeypatch.setattr(peer_env, "activate", lambda folder: None)
    monkeypatch.setenv("SMLE_PEERS", str(tmp_path))
    found = peer_env.prepare()
    assert found == dict.fromkeys((peer.package for peer in PEERS), "not installed: no such package")
    monkeypatch.setattr(peer_env, "_install", None)  # known ones are not tried again
    assert peer_env.prepare() == found
