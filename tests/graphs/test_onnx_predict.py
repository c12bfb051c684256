"""Predicting with an exported file by names: what the runtime answers, and what a model folder refuses."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from torch import nn

from smle import NetworkClassifier, SafeClassifier, Specification, certify, load
from smle.errors import CertificateError, DataError, MissingDependencyError, ModelFormatError
from smle.export import load_onnx, write_network, write_onnx
from smle.graphs.backbone import mlp_backbone
from smle.graphs.certified_files import read_checked
from smle.heads.box.network.assurance import project
from smle.nn import BoxNetwork
from smle.tables import encode_inputs
from support.commands import run as command
from support.exported import MIXED, columns_of, model_of, resealed, run, session, untrained

COLUMNS = ["distance", "speed", "friction"]


@pytest.fixture
def mixed(tmp_path):
    """A file with numbers, labels and choices, and a table for it with missing values."""
    made = untrained(MIXED)
    write_onnx(made.record, tmp_path / "mixed.onnx")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "note": ["007"] * 300,
            "tyre": rng.choice(["summer", "winter"], 300),
            "speed": np.where(rng.random(300) < 0.2, np.nan, rng.uniform(0, 40, 300)),
            "road": rng.choice(["dry", "wet", "icy", None], 300),
            "load": rng.uniform(-1, 1, 300),
        }
    )
    return made.spec, tmp_path / "mixed.onnx", table


def test_every_kind_of_input_and_output(mixed):
    spec, path, table = mixed
    found, facts = load_onnx(path).predict(table, return_info=True)
    answers = run(session(path.read_bytes()), spec, encode_inputs(spec, table))
    assert list(found.columns) == ["brake", "warn", "stop", "advice", "gear"]
    assert [str(kind) for kind in found.dtypes[:3]] == ["float64", "int64", "int64"]
    for name in found.columns:
        assert found[name].tolist() == answers[name][:, 0].tolist(), name
    assert found["advice"].nunique() > 1
    assert found["warn"].nunique() == 2
    icy = np.array(["icy" in active for active in facts["active_rules"]])
    assert (icy == ((table["road"] == "icy") & (table["speed"].fillna(7.5) > 10))).all()
    assert icy.any()
    assert (found["brake"][icy] >= 0.5).all()
    assert facts["in_domain"].all()


def test_the_command_reads_tables_as_for_a_folder(mixed, tmp_path):
    _, path, table = mixed
    table.to_csv(tmp_path / "t.csv", index=False)
    done = command("predict", path, tmp_path / "t.csv", "-o", tmp_path / "p.csv", "--info", "--keep", "note", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["certified"] is True
    written = pd.read_csv(tmp_path / "p.csv", dtype=str, keep_default_na=False)
    assert list(written.columns) == ["note", "brake", "warn", "stop", "advice", "gear", "active_rules", "in_domain"]
    assert (written["note"] == "007").all()
    expected = load_onnx(path).predict(table)
    for name in expected.columns:
        assert written[name].astype(expected[name].dtype).tolist() == expected[name].tolist()


def test_folder_and_file_agree(braking_model, braking_folder, braking_table, tmp_path):
    braking_model.to_onnx(tmp_path / "m.onnx")
    found = load_onnx(tmp_path / "m.onnx").predict(braking_table)
    assert found.index.equals(braking_table.index)
    np.testing.assert_allclose(found["brake"], load(braking_folder).predict(braking_table[COLUMNS]), atol=1e-4)
    with pytest.raises(DataError, match=r"named columns \(distance, speed, friction\)\. Got ndarray"):
        load_onnx(tmp_path / "m.onnx").predict(braking_table[COLUMNS].to_numpy())


def test_rows_outside_the_domain(braking_model, braking_table, tmp_path):
    braking_model.to_onnx(tmp_path / "m.onnx")
    model = load_onnx(tmp_path / "m.onnx")
    far = braking_table[COLUMNS].copy()
    far.loc[[11, 40], "distance"] = [250.0, 1e300]
    with pytest.raises(DataError, match=r"2 of 1500 rows lie outside .* \(first 250 in row 12\)"):
        model.predict(far)
    with pytest.warns(UserWarning, match=r"rows 12, 41") as caught:
        clamped = model.predict(far, out_of_domain="warn")
    assert caught[0].filename == __file__
    assert np.isfinite(clamped["brake"]).all()
    assert clamped.equals(model.predict(far, out_of_domain="clip"))
    with pytest.raises(ValueError, match="out_of_domain"):
        model.predict(far, out_of_domain="ignore")
    far.to_csv(tmp_path / "far.csv", index=False)
    refused = command("predict", tmp_path / "m.onnx", tmp_path / "far.csv", "-o", tmp_path / "p.csv")
    assert refused.exit_code == 2
    assert "far.csv, rows 1 to 1500: 2 of 1500 rows lie outside" in refused.output
    warned = command(
        "predict", tmp_path / "m.onnx", tmp_path / "far.csv", "-o", tmp_path / "p.csv", "--out-of-domain", "warn"
    )
    assert "2 of 1500 rows" in warned.output
    assert len(pd.read_csv(tmp_path / "p.csv")) == 1500


def test_whole_numbers_that_float32_cannot_hold_are_refused(tmp_path):
    made = untrained("""
inputs: {count: [0, 100000000], size: [0, 1]}
outputs: [y]
rules: [{name: many, when: count > 16777216, then: y >= 1}, {name: always, then: 0 <= y <= 2}]
""")
    write_onnx(made.record, tmp_path / "m.onnx")
    model = load_onnx(tmp_path / "m.onnx")
    table = pd.DataFrame({"count": [5, 16777216, 16777218], "size": [0.1, 0.2, 0.3]})
    assert (model.predict(table)["y"] >= [0, 0, 1]).all()
    table.loc[1, "count"] = 16777217
    with pytest.raises(DataError, match=r"'count': 16777217.* cannot be read exactly \(float32"):
        model.predict(table)
    with pytest.raises(DataError, match="cannot be read exactly"):
        model.predict(table, out_of_domain="clip")


def test_options_have_the_type_of_the_targets(tmp_path):
    spec = Specification.from_yaml("""
inputs: {x: [0, 1]}
choices: {grade: ['1', '2', '3']}
rules: [{name: r, when: x >= 0.5, then: grade != 3}]
""")
    table = pd.DataFrame({"x": np.linspace(0, 1, 60)})
    grades = (3 - 2 * table["x"]).round().astype(int)
    model = SafeClassifier(
        spec, NetworkClassifier(hidden_layer_sizes=(8,), embedding=4, max_epochs=3), compare=False, random_state=0
    )
    model.fit(table, grades)
    model.to_onnx(tmp_path / "m.onnx")
    found = load_onnx(tmp_path / "m.onnx").predict(table)["grade"]
    assert found.dtype == model.predict(table).dtype == np.int64
    assert found.tolist() == model.predict(table).tolist()


def test_what_is_not_certified_does_not_run(mixed, tmp_path):
    _, path, table = mixed
    table.to_csv(tmp_path / "t.csv", index=False)
    companion = path.with_name("mixed.onnx.certificate.json")
    data, sealed = path.read_bytes(), companion.read_bytes()
    changed = onnx.load(str(path))
    bias = next(t for t in changed.graph.initializer if t.name == "heads.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) - 9, "heads.bias"))
    path.write_bytes(changed.SerializeToString())
    for content in (sealed, resealed(sealed, path.read_bytes())):
        companion.write_bytes(content)
        with pytest.raises(CertificateError):
            load_onnx(path)
        refused = command("predict", path, tmp_path / "t.csv", "-o", tmp_path / "p.csv")
        assert refused.exit_code == 1
        assert refused.output.startswith("does not hold: ")
    path.write_bytes(data)
    companion.unlink()
    refused = command("predict", path, tmp_path / "t.csv", "-o", tmp_path / "p.csv")
    assert refused.exit_code == 1
    assert "mixed.onnx.certificate.json: no such file" in refused.output
    assert not (tmp_path / "p.csv").exists()
    path.unlink()
    assert command("predict", path, tmp_path / "t.csv").exit_code == 2


def test_what_was_checked_is_what_runs(mixed, monkeypatch):
    _, path, table = mixed
    before = load_onnx(path).predict(table)

    def checked_and_replaced(place):
        file = read_checked(place)
        path.write_bytes(b"")
        return file

    monkeypatch.setattr("smle.graphs.onnx_model.read_checked", checked_and_replaced)
    assert load_onnx(path).predict(table).equals(before)


def test_the_model_is_not_overwritten(mixed, tmp_path):
    _, path, table = mixed
    table.to_csv(tmp_path / "t.csv", index=False)
    for place in (path, path.with_name("mixed.onnx.certificate.json")):
        before = place.read_bytes()
        refused = command("predict", path, tmp_path / "t.csv", "-o", place)
        assert refused.exit_code == 2
        assert "is a file of the model" in refused.output
        assert place.read_bytes() == before


def test_files_that_tables_do_not_feed(tmp_path):
    pytest.importorskip("onnxscript", reason="torch.onnx needs onnxscript")
    spec = Specification.from_yaml("{inputs: {x: [0, 1]}, outputs: [y], rules: [{name: r, then: 0 <= y <= 1}]}\n")
    network = project(BoxNetwork(nn.Linear(5, 4), spec, embedding=4))
    write_network(network, tmp_path / "m.onnx", example=torch.zeros(2, 5))
    with pytest.raises(CertificateError, match="does not have the text of the rules"):
        load_onnx(tmp_path / "m.onnx")
    certificate = certify(network, files={"rules": spec.to_yaml().encode()})
    write_network(network, tmp_path / "m.onnx", example=torch.zeros(2, 5), certificate=certificate)
    with pytest.raises(ModelFormatError, match="has inputs of its own"):
        load_onnx(tmp_path / "m.onnx")


def test_a_failing_backbone_is_one_line(tmp_path):
    """The proof does not need the backbone, so a file with a broken one is accepted, and must not answer."""
    made = untrained(MIXED)
    backbone = mlp_backbone(made.record.weights)
    backbone.initializers.append(onnx.numpy_helper.from_array(np.array([5, -1]), "backbone/shape"))
    backbone.nodes[-1].output[0] = "backbone/last"
    backbone.nodes.append(onnx.helper.make_node("Reshape", ["backbone/last", "backbone/shape"], ["backbone/embedding"]))
    data = model_of(made.spec, made.record, backbone).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    (tmp_path / "m.onnx.certificate.json").write_bytes(resealed(made.companion, data))
    table = pd.DataFrame({"speed": [1.0] * 3, "load": [0.0] * 3, "road": ["dry"] * 3, "tyre": ["summer"] * 3})
    with pytest.raises(ModelFormatError, match="onnxruntime cannot run this file"):
        load_onnx(tmp_path / "m.onnx").predict(table)


def test_no_active_rules_without_monitor(tmp_path):
    made = untrained(MIXED)
    write_onnx(made.record, tmp_path / "m.onnx", monitor=False)
    table = pd.DataFrame({"speed": [1.0], "load": [0.0], "road": ["dry"], "tyre": ["summer"]})
    model = load_onnx(tmp_path / "m.onnx")
    expected = columns_of(made.spec, run(session((tmp_path / "m.onnx").read_bytes()), made.spec, model.encode(table)))
    assert model.predict(table)["brake"].tolist() == expected[:, 0].tolist()
    with pytest.raises(ModelFormatError, match="monitor=False"):
        model.predict(table, return_info=True)


def test_missing_runtime_is_named(mixed, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match=r"onnxruntime\. Install it with: pip install 'smle\[onnx\]'"):
        load_onnx(Path(mixed[1]))
