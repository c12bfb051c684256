"""Exit codes, the same in all commands: 0 holds, 1 refuted, 2 a wrong request, 3 undecided."""

import json

import numpy as np
import pytest
import typer

import smle.advice.compare
from smle.cli.app import reported
from smle.errors import CertificateError, ContradictionError, DataError, NotCertifiedError
from support.commands import refused, run

HEAD = "inputs: {x: [0, 1]}\noutputs: [y]\nrules:\n"
RULES = {
    0: "  - {name: low, then: 0 <= y <= 1}\n",
    1: "  - {name: low, then: y <= 0}\n  - {name: high, when: x >= 0.5, then: y >= 1}\n",
    2: "  - {name: low, then: y <= z}\n",
    3: "  - {name: funnel, then: 0.1 * x <= y <= 0.2 * x}\n",  # a single point at x = 0
}


@pytest.mark.parametrize("code", RULES)
def test_rules_and_train(tmp_path, code):
    (tmp_path / "rules.yaml").write_text(HEAD + RULES[code])
    x = np.linspace(0, 1, 50)
    (tmp_path / "data.csv").write_text("x,y\n" + "".join(f"{v},{v / 2}\n" for v in x))
    done = run("rules", tmp_path / "rules.yaml", "--json")
    assert done.exit_code == code, done.output
    if code != 2:
        found = json.loads(done.stdout)
        assert (found["contradictory"], found["undecided"]) == (code == 1, code == 3)
    model = ("--estimator", "ridge")
    done = run("train", tmp_path / "data.csv", tmp_path / "rules.yaml", "-o", tmp_path / "model", *model)
    assert done.exit_code == code, done.output
    assert done.stderr.startswith({0: "", 1: "does not hold: ", 2: "error: ", 3: "not proved: "}[code])


def test_each_of_many_files_is_named_and_the_worst_counts(tmp_path):
    places = {code: tmp_path / f"{code}.yaml" for code in RULES}
    for code, place in places.items():
        place.write_text(HEAD + RULES[code])
    done = run("rules", "--each", places[0], places[3], places[1])
    assert done.exit_code == 1
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == [str(places[c]) for c in (0, 3, 1)]
    assert run("rules", "--each", places[0], places[0]).exit_code == 0
    assert run("rules", "--each", places[3], places[0]).exit_code == 3
    assert run("rules", "--each", places[1], places[2]).exit_code == 2
    done = run("rules", "--each", places[3], places[1], places[2], places[0], "--json")
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    listed = [(item["file"], item["exit_code"]) for item in found["files"]]
    assert (listed, found["exit_code"]) == ([(str(places[c]), c) for c in (3, 1, 2, 0)], 2)
    assert "'z'" in found["files"][2]["reason"]


@pytest.mark.parametrize("command", [["--each"], ["diff"]])
@pytest.mark.parametrize("option", ["--data", "-o"])
def test_options_about_one_file_are_refused_for_several(tmp_path, command, option):
    place = tmp_path / "rules.yaml"
    place.write_text(HEAD + RULES[0])
    said = refused("rules", *command, place, place, option, tmp_path / "new")
    assert f"{command[0]} takes no {option}. Run `smle rules FILE {option} {tmp_path / 'new'}`" in said


def test_verify(braking_folder, tmp_path):
    def found():
        done = run("verify", braking_folder, "--json")
        return done.exit_code, json.loads(done.stdout)["verdict"]

    assert found() == (0, "proved")
    rules = braking_folder / "rules.yaml"
    rules.write_text(rules.read_text().replace("0.8", "0.9"))
    assert found() == (1, "rejected")
    (braking_folder / "certificate.json").unlink()
    assert found() == (3, "undecided")
    assert run("verify", tmp_path).exit_code == 2


def test_a_comparison_that_was_cut_off_is_undecided(tmp_path, monkeypatch):
    for name, end in (("old", 1), ("new", 2)):
        (tmp_path / f"{name}.yaml").write_text(HEAD + f"  - {{name: low, then: y <= {end}}}\n")
    both = tmp_path / "old.yaml", tmp_path / "new.yaml"
    assert run("rules", "diff", *both).exit_code == 0
    monkeypatch.setattr(smle.advice.compare, "forbidden_by_first_only", lambda old, new: (None, True))
    done = run("rules", "diff", *both)
    assert done.exit_code == 3
    assert "Not decided" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CertificateError("no"), 1),
        (ContradictionError("no"), 1),
        (NotCertifiedError("no", refuted=True), 1),
        (NotCertifiedError("open"), 3),
        (DataError("what"), 2),
        (OSError("what"), 2),
    ],
)
def test_what_an_error_means(error, code, capsys):
    with pytest.raises(typer.Exit) as ended, reported():
        raise error
    assert ended.value.exit_code == code
