"""smle predict and smle monitor: chunks, policies, files that appear whole or not at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from smle import NetworkRegressor, SafeRegressor, load
from smle.estimators import without_rules
from smle.tables import table_files
from smle.tables.table_files import read_table
from support.commands import refused, run
from support.processes import environment

COLUMNS = ["distance", "speed", "friction"]


@pytest.fixture
def data(braking_folder, braking_table, tmp_path):
    braking_table[COLUMNS].to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv"


def chunks_of(rows, monkeypatch):
    defaults = table_files.read_chunks.__kwdefaults__
    monkeypatch.setattr(table_files.read_chunks, "__kwdefaults__", {**defaults, "rows": rows})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_chunks_make_no_difference(braking_folder, braking_table, data, tmp_path, monkeypatch, kind):
    if kind == "parquet":
        braking_table[COLUMNS].to_parquet(tmp_path / "data.parquet")
    source = tmp_path / f"data.{kind}"
    chunks_of(400, monkeypatch)
    result = run("predict", braking_folder, source, "-o", tmp_path / f"p.{kind}", "--json", "--require-certificate")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert json.loads(result.stdout) == {
        "columns_not_read": [],
        "rows": 1500,
        "output": str(tmp_path / f"p.{kind}"),
        "rows_outside_the_domain": 0,
        "certified": True,
    }
    written = read_table(tmp_path / f"p.{kind}")["brake"].to_numpy()
    model = load(braking_folder)
    expected = [np.asarray(model.predict(braking_table[i : i + 400])).ravel() for i in range(0, 1500, 400)]
    assert np.array_equal(written, np.concatenate(expected))


@pytest.fixture
def numbered(braking_table, tmp_path):
    """A table with names and numbers beside the inputs, some of them easily spoiled by reading."""
    rows = len(braking_table)
    table = braking_table[COLUMNS].assign(
        id=[f"{i:05}" for i in range(rows)],
        country=["NA", "", "null", "a, b"] * (rows // 4),
        late=pd.array([None] * 700 + [2**53 + 1 + i for i in range(rows - 700)], dtype="Int64"),
    )
    table.to_csv(tmp_path / "numbered.csv", index=False)
    table.to_parquet(tmp_path / "numbered.parquet")
    return table


@pytest.mark.parametrize("source", ["csv", "parquet"])
@pytest.mark.parametrize("target", ["csv", "parquet"])
def test_kept_columns_stand_first_as_they_were(braking_folder, numbered, tmp_path, monkeypatch, source, target):
    place, written = tmp_path / f"numbered.{source}", tmp_path / f"p.{target}"
    chunks_of(400, monkeypatch)
    alone = run("predict", braking_folder, place, "-o", tmp_path / "alone.csv")
    assert alone.stdout == f"Predictions: {tmp_path / 'alone.csv'} (1500 rows)\n"
    wanted = ["late", "country", "id", "speed"]
    options = [part for name in wanted for part in ("--keep", name)]
    result = run("predict", braking_folder, place, "-o", written, *options, "--info")
    assert result.exit_code == 0, result.output
    text = {"dtype": str, "keep_default_na": False}
    table = pd.read_csv(written, **text) if target == "csv" else pd.read_parquet(written)
    assert list(table.columns) == [*wanted, "brake", "active_rules", "in_domain", "clipped_share"]
    given = pd.read_csv(tmp_path / "numbered.csv", **text)
    for name in ("country", "id"):
        assert table[name].tolist() == given[name].tolist()
    late = ["" if pd.isna(value) else str(value) for value in table["late"].tolist()]
    assert late == [""] * 700 + [str(2**53 + 1 + i) for i in range(800)]
    assert (
        table["brake"].astype("float32").tolist()
        == pd.read_csv(tmp_path / "alone.csv")["brake"].astype("float32").tolist()
    )
    assert np.array_equal(table["speed"].astype(float), numbered["speed"])


def test_keep_all_and_what_cannot_be_kept(braking_folder, numbered, braking_table, tmp_path):
    place = tmp_path / "numbered.csv"
    result = run("predict", braking_folder, place, "--keep-all")
    header = result.stdout.splitlines()[0]
    assert header == ",".join([*numbered.columns, "brake"])
    kept = [line.rsplit(",", 1)[0] for line in result.stdout.splitlines()]
    assert kept == place.read_text().splitlines()
    assert "--json needs --output" in run("predict", braking_folder, place, "--json").output
    unknown = refused("predict", braking_folder, place, "--keep", "idd", "-o", tmp_path / "p.csv")
    assert "there is no column 'idd' (did you mean 'id'?)" in unknown
    braking_table.head(1).assign(in_domain=1).to_csv(tmp_path / "one.csv", index=False)
    one = ("predict", braking_folder, tmp_path / "one.csv", "-o", tmp_path / "p.csv")
    assert "Cannot keep 'brake'" in refused(*one, "--keep-all")
    assert "Cannot keep 'in_domain'" in refused(*one, "--keep", "in_domain", "--info")
    assert not (tmp_path / "p.csv").exists()
    assert "(1 row)" in run(*one, "--keep", "in_domain").output


ASIDE = ("--bad-rows", "set-aside")
WRONG = {
    "swapped": (["predict", "{t}", "{m}"], "were they swapped? Try: smle predict {m} {t}"),
    "swapped in a report": (["report", "{t}", "--data", "{m}"], "Try: smle report {m} --data {t}"),
    "swapped when monitored": (["monitor", "{t}", "{m}"], "Try: smle monitor {m} {t}"),
    "onnx": (["monitor", "{d}/model.onnx", "{t}"], "needs the model folder"),
    "no onnx": (["predict", "{d}/absent.onnx", "{t}"], "Cannot read '{d}/absent.onnx': no such file."),
    "onnx in a report": (["report", "{d}/model.onnx"], "needs the model folder"),
    "onnx as a baseline": (["report", "{m}", "--data", "{t}", "--plain", "{d}/model.onnx"], "needs the model folder"),
    "a file": (["predict", "{t}", "{t}"], "is a file. Expected a model folder"),
    "no model": (["predict", "{d}/absent", "{t}"], "'{d}/absent' is not a model folder: expected model.safetensors"),
    "no model to report": (["report", "{d}"], "'{d}' is not a model folder: expected model.safetensors"),
    "no table": (["predict", "{m}", "{d}/absent.csv"], "Cannot read '{d}/absent.csv': no such file."),
    "no table to report": (["report", "{m}", "--data", "{d}/absent.csv"], "Cannot read '{d}/absent.csv': no such"),
    "a folder": (["predict", "{m}", "{d}"], "Cannot read '{d}': it is a folder."),
    "a file of the model": (["predict", "{m}", "{t}", "-o", "{m}/model.json"], "is a file of the model"),
    "another format": (["predict", "{m}", "{t}", "-o", "{d}/p.xlsx"], "CSV or Parquet"),
    "the table itself": (["predict", "{m}", "{t}", "-o", "{t}"], "is the table itself"),
    "a folder to write": (["predict", "{m}", "{t}", "-o", "{d}"], "is a folder"),
    "below a file": (["predict", "{m}", "{t}", "-o", "{t}/p.csv"], "a part of the path is a file"),
    "an unknown policy": (["predict", "{m}", "{t}", "--out-of-domain", "hope"], "Got 'hope'"),
    "bad rows and no file": (["predict", "{m}", "{t}", *ASIDE], "--bad-rows set-aside needs --output FILE"),
    "the table of bad rows": (
        ["predict", "{m}", "{d}/p.csv.bad.csv", "-o", "{d}/p.csv", *ASIDE],
        "is the table itself",
    ),
    "unknown bad rows": (["predict", "{m}", "{t}", "--bad-rows", "drop"], "to be raise or set-aside. Got 'drop'."),
    "unknown bad rows to monitor": (["monitor", "{m}", "{t}", "--bad-rows", "drop"], "to be raise or set-aside. Got"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_named_before_anything_is_loaded_or_written(braking_folder, data, tmp_path, monkeypatch, kind):
    for heavy in ("smle.estimators", "smle.report"):
        monkeypatch.setitem(sys.modules, heavy, None)  # an import of it would fail
    (tmp_path / "model.onnx").write_bytes(b"\x08\x09")
    (tmp_path / "p.csv.bad.csv").write_text("distance,speed,friction\n")
    before = {place: place.read_bytes() for place in tmp_path.rglob("*") if place.is_file()}
    arguments, reason = WRONG[kind]
    names = {"m": braking_folder, "t": data, "d": tmp_path}
    assert reason.format(**names) in refused(*(part.format(**names) for part in arguments))
    assert {place: place.read_bytes() for place in tmp_path.rglob("*") if place.is_file()} == before


def test_info(braking_folder, data, tmp_path):
    assert run("predict", braking_folder, data, "-o", tmp_path / "p.csv", "--info").exit_code == 0
    written, table = pd.read_csv(tmp_path / "p.csv"), pd.read_csv(data)
    near = (table["distance"] <= 10) & (table["speed"] >= 20)
    assert written["active_rules"].str.contains("emergency braking").tolist() == near.tolist()
    assert written["in_domain"].all()
    assert written["clipped_share"].between(0, 1).all()


def test_domain_policies_name_rows(braking_folder, data, tmp_path):
    table = pd.read_csv(data)
    table.loc[[16, 700], "distance"] = [201.0, 999.0]
    table.to_csv(data, index=False)
    said = refused("predict", braking_folder, data, "-o", tmp_path / "p.csv")
    assert "2 of 1500 rows" in said
    assert "first 201 in row 17" in said
    assert not (tmp_path / "p.csv").exists()
    warned = run("predict", braking_folder, data, "-o", tmp_path / "p.csv", "--out-of-domain", "warn")
    assert warned.exit_code == 0
    assert "warning: 2 of 1500 rows lie outside the domain of the rules (rows 17, 701)." in warned.stderr
    quiet = run("predict", braking_folder, data, "-o", tmp_path / "q.csv", "--out-of-domain", "clip", "--json")
    assert json.loads(quiet.stdout)["rows_outside_the_domain"] == 2
    assert not quiet.stderr
    assert (tmp_path / "p.csv").read_bytes() == (tmp_path / "q.csv").read_bytes()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_without_rows_has_a_table_without_rows_as_its_answer(braking_folder, braking_table, tmp_path, suffix):
    data, answers = tmp_path / f"none{suffix}", tmp_path / "p.csv"
    none = braking_table.head(0)
    none.to_csv(data, index=False) if suffix == ".csv" else none.to_parquet(data, index=False)
    result = run("predict", braking_folder, data, "-o", answers, "--keep", "speed", "--info")
    assert result.exit_code == 0, result.output
    assert "(0 rows)" in result.output
    assert answers.read_text().startswith("speed,brake,active_rules,")
    assert len(answers.read_text().splitlines()) == 1


NONSENSE = {
    "missing value": ("distance,speed,friction\n1,,0.5\n", "1 of 1 values are missing"),
    "misspelt column": ("distanse,speed,friction\n1,2,0.5\n", "did you mean 'distanse'?"),
    "text": ("distance,speed,friction\n1,fast,0.5\n", "Got 'fast'"),
    "decimal comma": ("distance;speed;friction\n1;2;0,5\n", "Got '0,5'"),
    "empty": ("", "empty first line"),
    "two of a name": ("distance,speed,friction,speed\n1,2,0.5,3\n", "several columns named 'speed'"),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_gets_one_line(braking_folder, tmp_path, kind):
    text, reason = NONSENSE[kind]
    (tmp_path / "odd.csv").write_text(text)
    said = refused("predict", braking_folder, tmp_path / "odd.csv", "-o", tmp_path / "p.csv")
    assert reason in said
    assert "odd.csv" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "odd.csv"]
    assert refused("monitor", braking_folder, tmp_path / "odd.csv") == said


# Files may not grow beyond a number of bytes: lower the limit, and become the program.
_LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_file_that_cannot_grow_leaves_the_old_one(braking_folder, data, tmp_path):
    (tmp_path / "p.csv").write_text("old\n")
    command = [Path(sys.executable).with_name("smle"), "predict", braking_folder, data, "-o", tmp_path / "p.csv"]
    limited = [sys.executable, "-c", _LIMITED, "4096", *command]
    done = subprocess.run(limited, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "p.csv").read_text() == "old\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.csv", "model", "p.csv"]


GONE = {
    "text": (["verify", "{m}"], 141),
    "json": (["verify", "{m}", "--json"], 141),
    "table": (["predict", "{m}", "{d}"], 141),
    "exit code of its own": (["rules", "{m}/clash.yaml"], 141),
    "error": (["verify", "{m}/absent"], 2),
}


@pytest.mark.parametrize("kind", GONE)
def test_nobody_reads_at_all(braking_folder, data, kind):
    """1 would say that something does not hold."""
    clash = (braking_folder / "rules.yaml").read_text().replace("brake >= 0.5", "brake <= 0.5")
    (braking_folder / "clash.yaml").write_text(clash)
    arguments, code = GONE[kind]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [Path(sys.executable).with_name("smle"), *(part.format(m=braking_folder, d=data) for part in arguments)],
        stdout=writer,
        stderr=writer if kind == "error" else subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED=""),  # little output waits until the end
        check=False,
    )
    os.close(writer)
    assert done.returncode == code
    assert not done.stderr


def test_monitor(braking_folder, braking_table, data, tmp_path):
    same = json.loads(run("monitor", braking_folder, data, "--json").stdout)
    assert same["drift"] is False
    assert same["now"]["rows"] == same["training"]["rows"] == 1500
    moved = braking_table[COLUMNS].assign(speed=braking_table["speed"] / 4)
    moved.loc[3, "distance"] = 700.0
    moved.to_csv(tmp_path / "moved.csv", index=False)
    answer = json.loads(run("monitor", braking_folder, tmp_path / "moved.csv", "--json").stdout)
    assert answer["drift"] is True
    assert answer["now"]["outside_rows"] == 1
    changed = {c["name"] for c in answer["changes"] if c["verdict"] == "changed"}
    assert "emergency braking" in changed
    text = run("monitor", braking_folder, tmp_path / "moved.csv")
    assert text.exit_code == 0
    assert "changed" in text.output
    assert "Outside the range of distance: 1 row." in text.output
    refused("monitor", braking_folder, data, "--tolerance", 2)


def test_monitor_of_a_model_that_says_nothing_about_its_training(braking_model, data, tmp_path):
    from smle.doors.assure import project_model

    project_model(braking_model, braking_model.specification_).save(tmp_path / "bare")
    text = run("monitor", tmp_path / "bare", data)
    assert text.exit_code == 0, text.output
    assert "nothing to compare with" in text.output
    assert json.loads(run("monitor", tmp_path / "bare", data, "--json").stdout)["drift"] is None


@pytest.fixture(scope="session")
def plain_folder(braking_spec, braking_table, tmp_path_factory):
    """A model without rules, so without a certificate."""
    model = SafeRegressor(
        without_rules(braking_spec),
        NetworkRegressor(hidden_layer_sizes=(4,), embedding=4, max_epochs=1),
        random_state=0,
    )
    folder = tmp_path_factory.mktemp("plain") / "model"
    model.fit(braking_table[COLUMNS], braking_table["brake"]).save(folder)
    return folder


def test_predicting_without_a_certificate_is_said_and_can_be_refused(plain_folder, data, tmp_path):
    done = run("predict", plain_folder, data, "-o", tmp_path / "p.csv", "--json")
    assert done.exit_code == 0
    assert "warning: Nothing is proved about the model in" in done.stderr
    assert json.loads(done.stdout)["certified"] is False
    (tmp_path / "p.csv").unlink()
    said = refused("predict", plain_folder, data, "-o", tmp_path / "p.csv", "--require-certificate", code=3)
    assert "not proved: Nothing is proved" in said
    assert not (tmp_path / "p.csv").exists()
    refused("monitor", plain_folder, data, "--require-certificate", code=3)
    assert "warning: Nothing is proved" in run("monitor", plain_folder, data).stderr


def test_commands_that_promise_a_check_want_a_certificate(plain_folder, tmp_path):
    assert run("verify", plain_folder).exit_code == 3
    for command, place in (("export", tmp_path / "m.onnx"), ("report", tmp_path / "r.html")):
        done = run(command, plain_folder, "-o", place)
        assert done.exit_code == 3, done.output
        assert "nothing is proved" in done.stderr.lower()
        assert run(command, plain_folder, "-o", place, "--no-require-certificate").exit_code == 0
    assert not (tmp_path / "m.onnx.certificate.json").exists()


@pytest.fixture
def spoiled(braking_table, tmp_path):
    """A table in which rows 2, 403 and the last chunk cannot be read, and row 7 is outside."""
    table = braking_table[COLUMNS].head(1000).assign(id=[f"{i:04}" for i in range(1000)])
    table[COLUMNS] = table[COLUMNS].astype(object)
    table.loc[1, "speed"] = None
    table.loc[402, "friction"] = "icy, wet"
    table.loc[800:, "distance"] = "far"
    table.loc[6, "distance"] = 5000.0
    table.to_csv(tmp_path / "spoiled.csv", index=False)
    table.astype(dict.fromkeys(COLUMNS, "string")).to_parquet(tmp_path / "spoiled.parquet")
    return table


@pytest.mark.parametrize("source", ["csv", "parquet"])
@pytest.mark.parametrize("target", ["csv", "parquet"])
@pytest.mark.parametrize("size", [400, 65536])
def test_bad_rows_are_listed_and_the_others_predicted(
    braking_folder, braking_table, spoiled, tmp_path, monkeypatch, source, target, size
):
    chunks_of(size, monkeypatch)
    place, output = tmp_path / f"spoiled.{source}", tmp_path / f"p.{target}"
    call = ("predict", braking_folder, place, "-o", output, "--out-of-domain", "warn", "--keep", "id")
    refused(*call)
    assert not output.exists()
    result = run(*call, "--bad-rows", "set-aside", "--info")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "202 of 1000 rows cannot be read and were set aside (rows 2, 403, 801, 802, 803, ...)" in said
    assert "1 of 798 rows lie outside the domain of the rules (rows 7)" in said
    assert "(798 rows)" in result.stdout
    bad = pd.read_csv(tmp_path / f"p.{target}.bad.csv")
    assert bad["row"].tolist() == [2, 403, *range(801, 1001)]
    assert bad["reason"].tolist()[:2] == ["'speed' is missing", "'friction': expected a number, got 'icy, wet'"]
    written = pd.read_parquet(output) if target == "parquet" else pd.read_csv(output, dtype={"id": str})
    kept = [row for row in range(800) if row not in (1, 402)]
    assert written["row"].tolist() == [row + 1 for row in kept]
    assert written["id"].tolist() == [f"{row:04}" for row in kept]
    good = braking_table[COLUMNS].iloc[kept].copy()
    good.loc[6, "distance"] = 5000.0
    expected = load(braking_folder).predict(good, out_of_domain="clip")
    assert np.allclose(written["brake"], expected, rtol=1e-6, atol=1e-6)  # sums of chunks have other last bits
    assert written["in_domain"].tolist() == [row != 6 for row in kept]


def test_bad_rows_of_exported_files_in_json(braking_folder, spoiled, tmp_path):
    load(braking_folder).to_onnx(tmp_path / "model.onnx")
    call = ("predict", tmp_path / "model.onnx", tmp_path / "spoiled.csv", "-o", tmp_path / "p.csv")
    result = run(*call, "--out-of-domain", "clip", "--bad-rows", "set-aside", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["rows"], found["rows_set_aside"], found["bad_rows"]) == (798, 202, str(tmp_path / "p.csv.bad.csv"))
    assert len(read_table(tmp_path / "p.csv")) == 798


def test_rows_outside_are_named_by_their_number_beside_bad_ones(braking_folder, spoiled, tmp_path):
    call = ("predict", braking_folder, tmp_path / "spoiled.csv", "-o", tmp_path / "p.csv", "--bad-rows", "set-aside")
    assert "(first 5000 in row 7)" in refused(*call)
    assert not list(tmp_path.glob("p.csv*"))


def test_bad_rows_that_leave_none(braking_folder, spoiled, tmp_path):
    spoiled.tail(200).to_csv(tmp_path / "bad.csv", index=False)
    for kind in ("csv", "parquet"):
        output = tmp_path / f"p.{kind}"
        result = run("predict", braking_folder, tmp_path / "bad.csv", "-o", output, "--bad-rows", "set-aside")
        assert result.exit_code == 0, result.output
        written = pd.read_parquet(output) if kind == "parquet" else pd.read_csv(output)
        assert (list(written.columns), len(written)) == (["row", "brake"], 0)
        assert len(pd.read_csv(tmp_path / f"p.{kind}.bad.csv")) == 200
    said = refused("monitor", braking_folder, tmp_path / "bad.csv", "--bad-rows", "set-aside")
    assert "expected rows that can be read" in said


def test_the_monitor_counts_bad_rows(braking_folder, spoiled, tmp_path):
    call = ("monitor", braking_folder, tmp_path / "spoiled.csv")
    refused(*call)
    result = run(*call, "--bad-rows", "set-aside", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["now"]["rows"], found["now"]["set_aside"]) == (798, 202)
    assert next(change for change in found["changes"] if change["kind"] == "aside")["verdict"] == "changed"
    assert "202 of 1,000 rows cannot be read" in run(*call, "--bad-rows", "set-aside").output
