"""One proof for the same rules: in the process, and in a folder; what is found there is checked all the same."""

import copy
import pickle

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score

import smle_check
from smle import SafeRegressor, Specification
from smle.certificates import issue
from smle.heads.rules import rules_author
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import program_of

RULES = "inputs: {x: [0, 1]}\noutputs: [a, b]\nrules:\n- {name: alt, then: a <= 0.2 or b >= a + x}\n"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(issue, "_drafts", issue.OrderedDict())


def counted(monkeypatch, home, name):
    """Return a list that grows with the first argument of every call of a function."""
    calls, own = [], getattr(home, name)
    monkeypatch.setattr(home, name, lambda first, *others: calls.append(first) or own(first, *others))
    return calls


@pytest.fixture
def found(monkeypatch):
    """Return the rules for which a proof was found."""
    return counted(monkeypatch, rules_author, "_draft")


@pytest.fixture
def checked(monkeypatch):
    """Return the certificates that the checker was asked about."""
    return counted(monkeypatch, smle_check, "check_certificate")


def test_a_cross_validation_needs_one_proof(found):
    X = np.random.default_rng(0).uniform(0, 1, (60, 1))
    y = np.hstack([X, 1 - X])
    cross_val_score(SafeRegressor(Specification.from_yaml(RULES), Ridge()), X, y, cv=5)
    assert len(found) == 1


def test_other_rules_need_another_proof(found):
    certify_rules(Specification.from_yaml(RULES))
    certify_rules(Specification.from_yaml(RULES.replace("0.2", "0.3")))
    certify_rules(Specification.from_yaml(RULES.replace("[0, 1]", "[0, 2]")))
    assert len(found) == 3


def test_a_known_proof_gives_the_same_certificate_and_keeps_what_is_of_the_model():
    spec = Specification.from_yaml(RULES)
    first = certify_rules(spec, default=[1.0, 2.0], scale=[3.0, 4.0], files={"rules": b"r"})
    second = certify_rules(spec, default=[5.0, 6.0], scale=[7.0, 8.0], files={"model": b"m"})
    issue._drafts.clear()
    again = certify_rules(spec, default=[5.0, 6.0], scale=[7.0, 8.0], files={"model": b"m"})
    assert second.text == again.text
    assert second.tensors == again.tensors
    assert first.document["proof"] == second.document["proof"]
    assert first.document["binds"] != second.document["binds"]
    assert len(second.check()) == len(first.check()) > 0


def test_a_search_checks_each_certificate_once(checked):
    X = np.random.default_rng(0).uniform(0, 1, (60, 1))
    y = np.hstack([X, 1 - X])
    search = GridSearchCV(SafeRegressor(Specification.from_yaml(RULES), Ridge()), {"estimator__alpha": [1, 2, 3]}, cv=4)
    search.fit(X, y)
    assert len(checked) == len(set(checked)) == 5  # four folds, and all rows


def test_whatever_else_is_asked_for_is_checked(checked):
    spec = Specification.from_yaml(RULES)
    first = certify_rules(spec, default=[1.0, 2.0], files={"rules": b"r"})
    assert certify_rules(spec, default=[1.0, 2.0], files={"rules": b"r"}).text == first.text
    assert len(checked) == 1
    certify_rules(spec, default=[1.0, 3.0], files={"rules": b"r"})
    certify_rules(spec, default=[1.0, 2.0], files={"rules": b"s"})
    certify_rules(spec, default=[1.0, 2.0], files={"model": b"r"})
    assert len(set(checked)) == 4


def test_nobody_writes_into_a_certificate():
    certificate = certify_rules(Specification.from_yaml(RULES), files={"rules": b"r"})
    for one in (certificate, pickle.loads(pickle.dumps(certificate)), copy.deepcopy(certificate)):
        with pytest.raises(TypeError):
            one.tensors["check.thresholds"] = one.tensors["check.sizes"]
        with pytest.raises(TypeError):
            one.files["rules"] = b"other"
        assert one.check() == certificate.proved


def test_one_program_is_made_of_a_certificate_and_copies_make_their_own():
    spec = Specification.from_yaml(RULES)
    first, second = certify_rules(spec), certify_rules(spec)
    assert program_of(first) is program_of(second)
    assert program_of(copy.deepcopy(first)) is not program_of(first)
    assert program_of(certify_rules(spec, default=[1.0, 2.0])) is not program_of(first)


def test_a_folder_keeps_proofs_for_later_processes(found, tmp_path, monkeypatch):
    monkeypatch.setenv("SMLE_CACHE", str(tmp_path))
    spec = Specification.from_yaml(RULES)
    first = certify_rules(spec)
    issue._drafts.clear()
    assert certify_rules(spec).text == first.text
    assert len(found) == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("harm", ["garbage", "numbers", "other rules", "no proof"])
def test_what_a_folder_holds_is_not_trusted(found, tmp_path, monkeypatch, harm):
    monkeypatch.setenv("SMLE_CACHE", str(tmp_path))
    spec = Specification.from_yaml(RULES)
    wanted = certify_rules(spec)
    (place,) = tmp_path.iterdir()
    if harm == "garbage":
        place.write_bytes(b"x" * 100)
    else:
        with safe_open(place, framework="numpy") as file:
            words, arrays = dict(file.metadata()), {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118
        if harm == "numbers":
            arrays["check.thresholds"] += 1
        elif harm == "other rules":
            words["stated"] = words["stated"].replace('"1/5"', '"9/5"')
        else:
            words["stated"] = words["stated"].replace('"proof"', '"nothing"')
        save_file(arrays, place, metadata=words)
    issue._drafts.clear()
    assert certify_rules(spec).text == wanted.text
    assert len(found) == 2


def test_a_folder_that_cannot_be_written_is_told_and_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SMLE_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="The proof was not kept in SMLE_CACHE .*a part of the path is a file"):
        certificate = certify_rules(Specification.from_yaml(RULES))
    assert certificate.check()
