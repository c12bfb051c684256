"""Asking a runtime in a process of its own: flush modes take effect, refusals and crashes are told apart."""

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from studies.attacks.doors import HOSTILE, answer_of, exported, spoiled
from studies.attacks.subjects import boxes
from tests.support import environments, runtimes
from tests.support.exported import accepted, resealed
from tests.support.runtimes import Case, Runtime

X = np.array([[0.0], [1.0]], dtype=np.float32)


def tiny_above_zero() -> bytes:
    """Whether 2^-149 > 0; the two columns of the input are left over so that nothing is folded."""
    tiny = numpy_helper.from_array(np.array([[2.0**-149]], dtype=np.float32), "tiny")
    nodes = [helper.make_node("Greater", ["tiny", "x"], ["above"]), helper.make_node("Cast", ["above"], ["y"], to=1)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], [tiny])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return model.SerializeToString()


def test_flushing_takes_effect_and_ends_with_the_process():
    case = Case(tiny_above_zero(), ["y"], [{"x": X}, {"x": X[:1]}])
    runtime = runtimes.installed_runtime()
    for flush, expected in ((False, 1.0), (True, 0.0), (False, 1.0)):
        ((first, second),) = runtime.answers([case], flush=flush)
        assert first[0].tolist() == [[expected], [0.0]]
        assert second[0].tolist() == [[expected]]
    assert runtime.told == {"answered": 6}


def test_refusals_are_counted_and_the_other_cases_go_on():
    good, bad = tiny_above_zero(), b"no model"
    cases = [Case(bad, ["y"], [{"x": X}]), Case(good, ["y"], [{"x": X.astype(np.float64)}, {"x": X}])]
    runtime = runtimes.installed_runtime()
    (nothing,), (refused, answered) = runtime.answers(cases)
    assert nothing is None
    assert refused is None
    assert answered is not None
    assert runtime.told == {"refused": 2, "answered": 1}


def test_a_runtime_that_dies_is_told_apart_and_the_other_cases_go_on(tmp_path, monkeypatch):
    """A worker that kills itself in its second case."""
    worker = Path(runtimes.__file__).with_name("onnx_worker.py").read_text(encoding="utf-8")
    worker = worker.replace(
        "answers = session.run", "os.kill(os.getpid(), 9) if number == 1 else None; answers = session.run"
    )
    (tmp_path / "onnx_worker.py").write_text("import os\n" + worker.replace("from __future__ import annotations\n", ""))
    monkeypatch.setattr(runtimes, "__file__", str(tmp_path / "runtimes.py"))
    case = Case(tiny_above_zero(), ["y"], [{"x": X}])
    runtime = Runtime("made", Path(sys.executable))
    found = [answer is not None for (answer,) in runtime.answers([case] * 4)]
    assert found == [True, False, True, True]
    assert runtime.told == {"answered": 3, "crashed": 1}


def test_an_environment_that_cannot_be_made_has_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "VERSIONS", ("0.0.0",))
    monkeypatch.setattr(runtimes.venv, "create", lambda place, with_pip: place.mkdir(parents=True))
    monkeypatch.setattr(environments, "command", lambda arguments: (1, "ERROR: No matching distribution found"))
    found, missing = runtimes.prepare(tmp_path)
    assert found == []
    assert missing == {"0.0.0": "ERROR: No matching distribution found"}
    assert not (tmp_path / "0.0.0" / "ready").exists()


def test_answers_for_other_rows_are_no_answers():
    y, w = np.ones((3, 1)), np.zeros((3, 1))
    assert answer_of([y, w], 3, 2).tolist() == [[1, 0]] * 3
    for wrong in ([y[:1], w], [np.ones((4, 1)), np.ones((4, 1))], [np.ones(()), w], [y, np.zeros((3, 2))], [y]):
        assert np.isnan(answer_of(wrong, 3, 2)).all()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_backbones_are_put_before_the_head(name):
    """The checker may refuse the file or accept it: the spoiled part is the backbone, and files are well-formed."""
    honest, sealed = exported(boxes(quick=True)["one region"]())
    values = np.ones((64, 12), dtype=np.float32)
    data = spoiled(honest, HOSTILE[name], values)
    assert data != honest
    assert accepted(honest, sealed)
    assert accepted(honest, resealed(sealed, honest))
    assert not accepted(data, sealed)
    assert accepted(data, resealed(sealed, data))
