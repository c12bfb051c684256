"""smle train: settings, the baseline, interruptions."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from smle import NetworkRegressor, SafeRegressor, load
from smle.cli.settings import TrainSettings, checked_parameters
from smle.demo import BRAKING_RULES
from smle.errors import TrainingError
from smle.training.checkpoints import Checkpoint, is_checkpoint, read_checkpoint, write_checkpoint
from smle_check.digits import margin_text
from support.commands import refused, run
from support.processes import environment

QUICK = ("--set", "hidden_layer_sizes=8")


BOX = ("--estimator", "smle")


def _train(files, *more, data="data.csv", call=run):
    return call("train", files / data, files / "rules.yaml", "-o", files / "m", "--overwrite", *more)


def test_summary_and_scores(files):
    answer = json.loads(_train(files, *QUICK, *BOX, "--set", "max_epochs=5", "--json").stdout)
    scores = answer["scores"]
    assert answer["rows"] == {"training": 1200, "test": 300}
    assert scores["metric"] == "R2"
    assert scores["rows"] == 300
    assert set(scores["score"]) == {"plain", "postprocess", "safe", "oracle"}
    assert scores["violations"]["safe"] == scores["violations"]["oracle"] == scores["violations"]["postprocess"] == 0
    assert scores["violations"]["data"] > 0
    assert max(scores["score"].values()) == scores["score"]["oracle"] <= 1
    model = load(files / "m")
    assert model.description_["scores"] == scores
    assert model.description_["history"]["epochs"] == answer["history"]["epochs"] == 5
    text = _train(files, *QUICK, *BOX, "--set", "max_epochs=5").output
    assert "On 300 held-out rows" in text
    assert "(replaced the previous one)" in text
    assert scores["plain"] == "quick"
    assert f"{scores['score']['safe']:.4f}" in text
    worst = min(item.margin for item in load(files / "m").certificate_.proved)
    assert f"Worst margin: {margin_text(worst)}\n" in text


def test_without_test_rows(files):
    nothing = _train(files, *QUICK, "--set", "max_epochs=1", "--test-share", 0)
    assert nothing.exit_code == 0, nothing.output
    assert "On 300 validation rows" in nothing.output
    assert load(files / "m").description_["provenance"]["rows"] == 1500


def test_parquet_trains_the_same_model(files, braking_table):
    braking_table.to_parquet(files / "data.parquet")
    for data in ("data.csv", "data.parquet"):
        assert _train(files, *QUICK, "--set", "max_epochs=2", data=data).exit_code == 0
        if data == "data.csv":
            weights = load(files / "m").record().weights
    again = load(files / "m").record().weights
    assert all(np.array_equal(value, again[name]) for name, value in weights.items())


def test_settings_file_and_options_that_win(files):
    (files / "s.yaml").write_text(
        "estimator: smle\nhidden_layer_sizes: [8, 8]\nembedding: 4\nmax_epochs: 3\nseed: 5\nbounds: affine\n"
    )
    answer = json.loads(_train(files, "--config", files / "s.yaml", "--set", "max_epochs=2", "--json").stdout)
    model = load(files / "m")
    described = model.description_
    assert described["architecture"] == {"backbone": "mlp", "hidden": [8, 8], "embedding": 4}
    assert (model.bounds, model.random_state, type(model).__name__) == ("affine", 5, "SMLERegressor")
    assert answer["history"]["epochs"] == 2
    assert answer["scores"]["plain"] == "quick"


WRONG = {
    "max_epoch: 3": "unknown parameter 'max_epoch'. Did you mean 'max_epochs'?",
    "learning-rate: 3": "Did you mean 'learning_rate'?",
    "frobnicate: 1": "Known are: out_of_domain, compare, hidden_layer_sizes",
    "- 1": "expected lines such as",
    "max_epochs: [": "not readable as YAML",
    "hidden_layer_sizes: [8, -1]": "hidden_layer_sizes",
    "hidden_layer_sizes: wide": "hidden_layer_sizes",
    "test_share: 2": "test_share",
    "max_epochs: many": "Expected max_epochs to be a positive whole number. Got 'many'",
    "max_epochs: 1e-2": "Expected max_epochs",
    "learning_rate: -1e-2": "Expected learning_rate to be a positive number",
    "learning_rate: nan": "Expected learning_rate",
    "patience: 0": "Expected patience",
    "bounds: affine": "unknown parameter 'bounds'",
    "random_state: 3": "'random_state' is set by --seed",
    "checkpoint: file": "'checkpoint' is set by --checkpoint",
    "seed: -1": "seed",
    "seed: true": "seed",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_settings_are_named(files, text):
    (files / "s.yaml").write_text(text + "\n")
    said = _train(files, "--config", files / "s.yaml", call=refused)
    assert WRONG[text] in said
    assert "s.yaml" in said
    assert not (files / "m").exists()


def test_wrong_options_are_named(files):
    for option, value in (("--seed", -1), ("--test-share", 1)):
        assert f"Expected {option} to be" in _train(files, option, value, call=refused)
    for text, reason in (("max_epochs=0", "--set: Expected max_epochs to be"), ("max_epochs", "expected a name and a")):
        assert reason in _train(files, "--set", text, call=refused)
    unknown = _train(files, "--estimator", "ridge", "--set", "max_epochs=3", call=refused)
    assert "Invalid parameter 'max_epochs'" in unknown
    assert "no such file" in _train(files, "--config", files / "absent.yaml", call=refused)
    assert "it is a folder" in _train(files, "--config", files, call=refused)


def test_values_are_read_as_they_are_written(tmp_path):
    (tmp_path / "s.yaml").write_text("learning_rate: 1e-2\nmax_epochs: 100\nseed: '4294967295'\ntest_share: 5e-1\n")
    assigned = ["learning_rate=0.5", "hidden-layer-sizes=64,64", "schedule=null", "out_of_domain=clip"]
    settings = TrainSettings.read(tmp_path / "s.yaml", assigned, {})
    assert (settings.seed, settings.test_share, settings.estimator) == (4294967295, 0.5, "network")
    safe, inner = checked_parameters(settings.parameters, SafeRegressor, NetworkRegressor)
    assert safe == {"out_of_domain": "clip"}
    assert inner == {"learning_rate": 0.5, "max_epochs": 100, "hidden_layer_sizes": (64, 64), "schedule": None}
    alone = TrainSettings.read(tmp_path / "s.yaml", ["hidden_layer_sizes=8", "weight_decay=1e-3"], {})
    (inner,) = checked_parameters(alone.parameters, NetworkRegressor)
    assert (inner["hidden_layer_sizes"], inner["learning_rate"], inner["weight_decay"]) == ((8,), 1e-2, 1e-3)


@pytest.fixture
def untrained(monkeypatch):
    """Training must not begin."""

    def fit(*arguments, **options):
        raise AssertionError

    monkeypatch.setattr("smle.estimators.SafeRegressor.fit", fit)
    monkeypatch.setattr("smle.estimators.SafeClassifier.fit", fit)


def test_rules_without_training_rows_are_named(files, braking_table):
    assert "no training rows" not in _train(files, *QUICK, "--set", "max_epochs=1").output
    braking_table[braking_table["distance"] > 100].to_csv(files / "far.csv", index=False)
    shown = _train(files, *QUICK, "--set", "max_epochs=1", data="far.csv").output
    assert "no training rows fall where these rules apply: emergency braking" in " ".join(shown.split())


def test_swapped_files_are_recognized(files, untrained):
    said = refused("train", files / "rules.yaml", files / "data.csv", "-o", files / "m")
    assert "Expected the table first" in said


def test_places_are_tried_before_training(files, untrained):
    (files / "file").write_text("")
    begin = ("train", files / "data.csv", files / "rules.yaml", "-o")
    for place in (files / "file" / "m", files / "file" / "deep" / "m"):
        assert f"'{files / 'file'}' is a file, not a folder" in refused(*begin, place)
    for name in ("m", "m/run", "file/run"):
        assert f"'{files / name}'" in refused(*begin, files / "m", "--checkpoint", files / name)
    assert sorted(p.name for p in files.iterdir()) == ["data.csv", "file", "rules.yaml"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files from anyone")
def test_a_file_system_that_takes_nothing(files, untrained):
    for more in ((), ("--checkpoint", "/proc/run")):
        place = files / "m" if more else "/proc/m"
        said = refused("train", files / "data.csv", files / "rules.yaml", "-o", place, *more)
        assert "the folder '/proc' is not writable" in said


def test_counts_are_those_of_the_file(files, braking_table):
    """Even if the bad rows would have been held out."""
    braking_table.assign(speed=braking_table["speed"].where(braking_table.index != 7)).to_csv(
        files / "holes.csv", index=False
    )
    assert "1 of 1500 values are missing" in _train(files, data="holes.csv").output
    far = braking_table.copy()
    far.loc[41, "distance"] = 500.0
    far.to_csv(files / "far.csv", index=False)
    assert "first 500 in row 42" in _train(files, data="far.csv").output


def test_mixed_outputs_are_refused_with_the_way_out(files, braking_table, untrained):
    text = BRAKING_RULES.replace("outputs: [brake]", "outputs: [brake]\nchoices: {lamp: [on, off]}")
    (files / "rules.yaml").write_text(text)
    braking_table.assign(lamp="on").to_csv(files / "data.csv", index=False)
    said = _train(files, *QUICK, "--set", "max_epochs=1", call=refused)
    assert "smle.nn.SafeNetwork" in said
    assert f"{files / 'rules.yaml'}: " in said
    assert "'brake' (a number), 'lamp' (a choice)" in said
    assert "SafeClassifier" not in said


def test_a_file_without_rules_trains_a_plain_network(files):
    (files / "rules.yaml").write_text(BRAKING_RULES.split("rules:", maxsplit=1)[0] + "rules: []\n")
    result = _train(files, *QUICK, "--set", "max_epochs=1")
    assert result.exit_code == 0, result.output
    assert "Proved rules" not in result.output
    assert "no rules, so nothing is proved" in result.output
    assert "replaced" not in result.output
    assert run("predict", files / "m", files / "data.csv", "-o", files / "p.csv", "--info").exit_code == 0
    assert run("monitor", files / "m", files / "data.csv").exit_code == 0
    assert "nothing is proved" in refused("verify", files / "m", code=3)


def test_checkpoint_options(files):
    place = files / "run.checkpoint"
    assert "--resume needs --checkpoint" in _train(files, "--resume").output
    assert "there is no checkpoint" in _train(files, "--checkpoint", place, "--resume").output
    assert "Got the folder" in _train(files, "--checkpoint", files).output
    write_checkpoint(Checkpoint({}, {"fingerprint": "another"}), place)
    assert "Add --resume" in _train(files, "--checkpoint", place).output
    assert "belongs to another run" in _train(files, "--checkpoint", place, "--resume", *QUICK).output
    assert not (files / "m").exists()


@pytest.mark.parametrize("name", ["data.csv", "empty", "weights"])
def test_a_file_that_is_no_checkpoint_is_left_alone(files, untrained, name):
    (files / "empty").write_text("")
    save_file({"x": np.zeros(3)}, files / "weights")
    before = {p.name: p.read_bytes() for p in files.iterdir()}
    for more in ((), ("--resume",)):
        said = _train(files, "--checkpoint", files / name, *more, call=refused)
        assert "is not a checkpoint of smle" in said
        assert "Name another file" in said
        assert "elete" not in said
    assert {p.name: p.read_bytes() for p in files.iterdir()} == before


def test_reading_what_is_no_checkpoint(files):
    """Only a file of ours may be deleted."""
    with pytest.raises(TrainingError, match="is not a checkpoint of smle") as caught:
        read_checkpoint(files / "data.csv")
    assert "elete" not in str(caught.value)
    save_file({"x": np.zeros(3)}, files / "later", metadata={"format": "smle-checkpoint-2"})
    assert is_checkpoint(files / "later")
    with pytest.raises(TrainingError, match="not a checkpoint of this version") as caught:
        read_checkpoint(files / "later")
    assert "Delete it" in str(caught.value)


# The program, but it cannot end before it is stopped: it waits after the twentieth checkpoint.
# A shell without job control starts what it puts in the background with interrupts switched off: switch them on.
_WAITS = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import smle.training.loop as loop
from smle.cli import main
write, written = loop.write_checkpoint, []
def write_and_wait(*arguments):
    write(*arguments)
    written.append(arguments)
    if len(written) == 20:
        time.sleep(3600)
loop.write_checkpoint = write_and_wait
main()
"""


def _start(files, *more, waits=False):
    program = [sys.executable, "-c", _WAITS] if waits else [Path(sys.executable).with_name("smle")]
    command = [*program, "train", "data.csv", "rules.yaml", "-o", "m", "--overwrite", *QUICK, *more]
    return subprocess.Popen(
        command, cwd=files, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    )


def _wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, f"the run ended before {path.name} was seen: {process.communicate()}"
        time.sleep(0.01)


def test_an_interrupted_run_goes_on_to_the_same_model(files):
    options = ("--set", "max_epochs=30", "--set", "patience=30", "--checkpoint", "run.checkpoint")
    process = _start(files, *options, waits=True)
    _wait_for(files / "run.checkpoint", process)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "interrupted: no model was written. To continue: smle train data.csv" in message
    assert message.strip().endswith("--resume")
    assert not (files / "m").exists()
    process = _start(files, *options, "--resume")
    _, message = process.communicate(timeout=1200)
    assert process.returncode == 0, message
    assert message == ""  # quiet: not a terminal
    assert sorted(p.name for p in files.iterdir()) == ["data.csv", "m", "rules.yaml"]
    resumed = load(files / "m").record().weights
    whole = _train(files, *QUICK, *options[:-2])
    assert whole.exit_code == 0, whole.output
    again = load(files / "m").record().weights
    assert all(np.array_equal(value, again[name]) for name, value in resumed.items())


CAPPED = """
inputs: {w: [2, 250], a: [0, 1]}
outputs: [y]
rules:
  - {name: per weight, then: 0 <= y <= 0.05 * w}
  - {name: cap, then: y <= 4}
"""


def test_a_model_that_is_no_good_is_called_so(tmp_path):
    rng = np.random.default_rng(0)
    w, a = rng.uniform(2, 250, 800), rng.uniform(0, 1, 800)
    y = np.minimum(0.05 * w, 4) * (0.3 + 0.6 * a)
    pd.DataFrame({"w": w, "a": a, "y": y}).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "rules.yaml").write_text(CAPPED)
    more = ("--set", "hidden_layer_sizes=32,32", "--set", "max_epochs=40", *BOX)
    done = _train(tmp_path, *more)
    assert done.exit_code == 0, done.output
    assert "AccuracyWarning" not in done.output
    text = load(tmp_path / "m").description_["scores"]["concern"]
    assert "on 160 held-out rows" in text
    assert "learned heads keep to one convex part" in text
    assert "Use SafeRegressor or SafeClassifier" in text
    assert f"WARNING: {text}\n" in done.output
    assert json.loads(_train(tmp_path, *more, "--json").stdout)["warning"] == text


def test_a_network_that_is_no_better_hides_nothing(files):
    """The network inside is bad after one epoch; the quick plain model that `fit` compares with is not."""
    answer = json.loads(_train(files, *QUICK, "--set", "max_epochs=1", "--json").stdout)
    assert answer["scores"]["plain"] == "network"
    assert answer["scores"]["score"]["plain"] < 0.7
    assert "A quick plain model" in answer["warning"]


def test_outputs_and_rare_labels_have_lines_of_their_own(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.random(600)
    table = pd.DataFrame({"x": x, "fraud": (x > 0.95).astype(int), "large": (x > 0.5).astype(int)})
    table.to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "rules.yaml").write_text(
        "inputs: {x: [0, 1]}\nlabels: [fraud, large]\nrules: [{name: r, then: fraud implies large}]\n"
    )
    done = _train(tmp_path, "--set", "hidden_layer_sizes=16", "--set", "max_epochs=60")
    assert done.exit_code == 0, done.output
    lines = [line.split("│") for line in done.output.splitlines() if "│" in line]
    names = [(cells[1].strip(), cells[2].strip()) for cells in lines]
    assert ("fraud", "Balanced accuracy") in names
    assert ("large", "Accuracy") in names
    assert ("large", "Balanced accuracy") not in names
    assert any(score.startswith("Recall of fraud") for _, score in names)
