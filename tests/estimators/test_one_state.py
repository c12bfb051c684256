"""A fitted model is one state: what is read, proved and stored belong together. Long: one test per way to part them."""

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge

import smle_check
from smle import (
    NetworkClassifier,
    NetworkRegressor,
    SafeClassifier,
    SafeRegressor,
    SMLERegressor,
    Specification,
    correct,
    load,
)
from smle.certificates.document import Certificate, arrays_of
from smle.errors import CertificateError, ContradictionError, DataError, ModelFormatError, NotCertifiedError, RuleError
from smle.export import check_onnx, write_onnx
from smle.heads.box.training.enforcement import Enforcement
from smle.rules import Choice
from smle.storage import write_record
from smle.tables import encode_inputs, option_values
from support.builder import reseal
from support.commands import run
from support.exported import changed_outer
from support.safe_networks import AtTheEnd

QUICK = {"max_epochs": 5, "hidden_layer_sizes": (8,), "embedding": 4, "random_state": 0}
LEARNED = {**QUICK, "enforcement": AtTheEnd()}  # heads with numbers of their own
CAP = "{{inputs: {{x: [0, 1]}}, outputs: [y], rules: [{{name: cap, then: y <= {0}}}]}}\n"
ADVICE = """
inputs: {{x: [0, 1]}}
choices: {{advice: {{options: [{0}], pick: {1}}}}}
rules: [{{name: never left, then: advice == keep}}]
"""


def capped(most):
    return SafeRegressor(CAP.format(most), NetworkRegressor(**QUICK), compare=False)


def advising():
    return SafeClassifier(ADVICE.format("keep, left", "max"), NetworkClassifier(**QUICK), compare=False)


@pytest.fixture
def table():
    x = np.linspace(0, 1, 40)
    return pd.DataFrame({"x": x}), pd.DataFrame({"y": 2 + 2 * x}), np.where(x > 0.5, "left", "keep")


@pytest.mark.parametrize("other", [("keep, left", "min"), ("left, keep", "max")])
def test_a_failed_fit_does_not_change_how_outputs_are_read(table, other):
    X, _, y = table
    model = advising().fit(X, y)
    model.set_params(spec=Specification.from_yaml(ADVICE.format(*other)))
    with pytest.raises(DataError, match="outside the domain"):
        model.fit(X + 5, y)
    assert set(model.predict(X)) == {"keep"}
    assert model.classes_.tolist() == ["keep", "left"]


class Nothing(Enforcement):
    """An enforcement that enforces nothing."""

    name = "nothing"

    def finish(self, network):
        network.eval()


def test_a_model_without_proof_does_not_replace_a_proved_one(table):
    X, y, _ = table
    model = SMLERegressor(Specification.from_yaml(CAP.format(0.5)), **QUICK, compare=False).fit(X, y)
    before = model.predict(X)
    model.set_params(enforcement=Nothing(), refit_heads=False, max_epochs=30)
    with pytest.raises(NotCertifiedError):
        model.fit(X, y)
    assert np.array_equal(model.predict(X), before)
    model.certificate_.check()


def test_names_of_an_earlier_table_are_forgotten(table):
    X, y, _ = table
    model = capped(0.5).fit(X, y)
    assert model.feature_names_in_.tolist() == ["x"]
    assert not hasattr(model.fit(X.to_numpy(), y), "feature_names_in_")


@pytest.mark.parametrize("kind", ["SafeClassifier", "SafeRegressor"])
def test_another_kind_of_model_is_refused(table, tmp_path, kind):
    X, y, names = table
    model = capped(0.5).fit(X, y) if kind == "SafeClassifier" else advising().fit(X, names)
    model.save(tmp_path / "m")
    place = tmp_path / "m" / "model.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "kind": kind}))
    reseal(tmp_path / "m")
    for verify in (True, False):
        with pytest.raises(CertificateError, match=f"a {kind} predicts"):
            load(tmp_path / "m", verify=verify)
    done = run("verify", tmp_path / "m")
    assert done.exit_code == 1
    assert "Holds" not in done.output


def test_a_forged_folder_of_the_right_kind_is_what_the_test_above_says(table, tmp_path):
    """The forger's tool works: with nothing changed the folder is accepted."""
    X, y, _ = table
    capped(0.5).fit(X, y).save(tmp_path / "m")
    reseal(tmp_path / "m")
    assert load(tmp_path / "m").certificate_ is not None


OTHER_RULES = {  # and why the folder and the file are refused
    CAP.format(0.5): ("'cap' is not the one", "'cap' is not the one"),
    "nonsense": ("Got a text", "cannot be read"),
    "{inputs: {x: [0, 1]}, outputs: [y], rules: []}\n": ("no rules", "does not state the rules that were certified"),
}


@pytest.mark.parametrize("rules", OTHER_RULES)
def test_rules_must_be_those_of_the_certificate(table, tmp_path, rules):
    """In folders and beside files: even who makes all digests new cannot pass other rules off as proved."""
    model, file = capped(100).fit(*table[:2]), tmp_path / "m.onnx"
    model.save(tmp_path / "m")
    model.to_onnx(file)
    place = tmp_path / "m.onnx.certificate.json"
    for stated in (model.specification_.to_yaml(), rules):
        (tmp_path / "m" / "rules.yaml").write_text(stated)
        reseal(tmp_path / "m")
        inner = json.loads(place.read_bytes())["certificate"]
        inner["binds"]["rules"] = smle_check.sha256(stated.encode())
        place.write_bytes(changed_outer(place.read_bytes(), inner, rules=stated))
        if stated != rules:
            assert load(tmp_path / "m").certificate_.check()
            assert check_onnx(file).proved
    of_folder, of_file = OTHER_RULES[rules]
    with pytest.raises((CertificateError, RuleError), match=of_folder):
        load(tmp_path / "m")
    with pytest.raises(CertificateError, match=of_file):
        check_onnx(file)
    assert run("verify", file).exit_code == 1


def test_a_category_named_like_a_missing_value(tmp_path):
    rules = """
inputs: {x: [0, 1], region: {categories: [EU, NA], missing: EU}}
outputs: [y]
rules: [{name: cap, when: region == NA, then: y <= 1}, {name: floor, when: region == EU, then: y >= 2}]
"""
    (tmp_path / "r.yaml").write_text(rules)
    rows = ["x,region,y", *(f"{i / 60},{'NA' if i % 2 else 'EU'},{i % 2 * -3 + 3}" for i in range(60))]
    (tmp_path / "d.csv").write_text("\n".join(rows) + "\n")
    done = run("train", tmp_path / "d.csv", tmp_path / "r.yaml", "-o", tmp_path / "m", "--set", "max_epochs=5")
    assert done.exit_code == 0
    (tmp_path / "q.csv").write_text("x,region\n0.5,NA\n0.5,EU\n0.5,\n0.5,n/a\n")
    done = run("predict", tmp_path / "m", tmp_path / "q.csv", "-o", tmp_path / "p.csv")
    assert done.exit_code == 0
    y = pd.read_csv(tmp_path / "p.csv")["y"]
    assert y[0] <= 1
    assert (y[1:] >= 2).all()


WHOLE = Specification.from_yaml("""
inputs: {lanes: {range: [1, 8], integer: true, missing: 1}, g: {categories: [a, b], missing: b}}
outputs: [y]
rules: [{name: few, when: lanes < 3, then: y <= 0}]
""")


def test_fractions_beside_infinities_are_refused():
    table = pd.DataFrame({"lanes": [2.5, np.inf], "g": ["a", "a"]})
    with pytest.raises(DataError, match=r"whole numbers. Got 2.5"):
        encode_inputs(WHOLE, table)


def test_missing_values_of_all_kinds():
    for kind in ("object", "string"):
        table = pd.DataFrame({"lanes": pd.array([2, None], dtype="Int64"), "g": pd.array(["a", pd.NA], dtype=kind)})
        assert encode_inputs(WHOLE, table).tolist() == [[2, 1, 0], [1, 0, 1]]


LIMIT = "{inputs: {x: [0, 1], k: [0, 1e18]}, outputs: [y], rules: [{name: r, when: x >= 0.7, then: y <= 1}]}\n"


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"x": np.float32([0.7, 0.1]), "k": np.int64([3, 2**24])}, np.float32),
        ({"x": np.float32([0.7, 0.1]), "k": np.uint8([3, 4])}, np.float32),
        ({"x": np.float32([0.7, 0.1]), "k": np.int64([3, 2**24 + 2])}, np.float64),
        ({"x": np.float32([0.7, 0.1]), "k": np.array([3.0, 4.0])}, np.float64),
        ({"x": np.array([0.7, 0.1]), "k": np.int8([3, 4])}, np.float64),
        ({"x": np.int8([0, 1]), "k": np.int8([3, 4])}, np.float64),
    ],
)
def test_float32_columns_keep_their_meaning_beside_whole_numbers(columns, kind):
    encoded = encode_inputs(Specification.from_yaml(LIMIT), pd.DataFrame(columns))
    assert encoded.dtype == kind
    assert encoded.tolist() == [[float(columns["x"][i]), float(columns["k"][i])] for i in range(2)]


def test_a_loaded_model_that_was_changed_is_not_stored(table, tmp_path):
    X, y, _ = table
    SMLERegressor(Specification.from_yaml(CAP.format(1)), **LEARNED, compare=False).fit(X, y).save(tmp_path / "model")
    model = load(tmp_path / "model")
    model.save(tmp_path / "again")
    record = model.record()
    for name, part in (("heads.bias", "head"), ("backbone.1.bias", "backbone")):
        changed = replace(record, weights={**record.weights, name: record.weights[name] + 1})
        with pytest.raises(NotCertifiedError, match=f"{part} changed"):
            write_record(changed, tmp_path / "changed")
        with pytest.raises(NotCertifiedError, match=rf"were changed after they were certified \({part}\)"):
            write_onnx(changed, tmp_path / "changed.onnx")
    model.description_["seed"] = 7
    with pytest.raises(NotCertifiedError, match="model changed"):
        model.save(tmp_path / "changed")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "model"]


def test_another_default_of_torch_changes_nothing(table, tmp_path):
    X, y, _ = table
    model = capped(1).fit(X, y)
    model.save(tmp_path / "model")
    torch.set_default_dtype(torch.float64)
    try:
        again = capped(1).fit(X, y)
        stored = load(tmp_path / "model")
        assert torch.get_default_dtype() is torch.float64
        for other in (again, stored):
            assert np.array_equal(other.predict(X), model.predict(X))
            assert np.array_equal(other.predict(X.iloc[:1]), model.predict(X.iloc[:1]))
    finally:
        torch.set_default_dtype(torch.float32)


def test_categories_that_are_numbers_may_have_gaps():
    text = "{inputs: {grade: {categories: ['1', '2'], missing: '2'}}, outputs: [y], rules: [{name: r, then: y <= 1}]}\n"
    table = pd.DataFrame({"grade": [1, None, 2]})
    assert table["grade"].dtype == "float64"
    assert encode_inputs(Specification.from_yaml(text), table).tolist() == [[1, 0], [0, 1], [0, 1]]


@pytest.mark.parametrize("values", [np.array([1 + 2j, 3]), np.array(["2020-01-01", "NaT"], dtype="datetime64[ns]")])
def test_what_is_no_real_number_is_refused(values):
    with pytest.raises(DataError, match="real numbers"):
        encode_inputs(WHOLE, pd.DataFrame({"lanes": values, "g": ["a", "a"]}))


def test_whole_numbers_are_named_among_the_assumptions(tmp_path):
    lanes = np.tile(np.arange(1, 9), 8)
    X = pd.DataFrame({"lanes": lanes, "g": ["a", "b"] * 32})
    SafeRegressor(WHOLE, NetworkRegressor(**QUICK), compare=False).fit(X, -1.0 * lanes).save(tmp_path / "m")
    done = run("verify", tmp_path / "m", "--assumptions")
    assert "assumed: Inputs declared as whole numbers are whole: lanes." in done.output


NEVER = """
inputs: {a: [0, 10], b: [0, 1]}
outputs: [y]
rules: [{name: far, when: a >= 80, then: y <= 0}]
"""


@pytest.mark.parametrize(
    "options", [None, {}, {"enforcement": "pdcg"}, {"gate": False}, {"gate": False, "bounds": "affine"}]
)
def test_a_rule_that_is_never_active_binds_nothing(tmp_path, options):
    X = np.random.default_rng(0).uniform(0, 1, (40, 2))
    model = SafeRegressor(NEVER, NetworkRegressor(**QUICK), compare=False)
    if options is not None:
        model = SMLERegressor(NEVER, **{**LEARNED, **options}, compare=False)
    model.fit(X, 1 + X[:, 0])
    assert model.predict(X).min() > 0
    model.save(tmp_path / "m")
    assert np.array_equal(load(tmp_path / "m").predict(X), model.predict(X))
    if options is None or not options.get("gate", True):
        model.to_onnx(tmp_path / "m.onnx")
        assert check_onnx(tmp_path / "m.onnx")
        return
    with pytest.raises(NotCertifiedError, match="ever be active"):
        model.to_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("factor", [1e-50, 1e-44, 1e38])
def test_targets_beyond_float32_are_refused(table, factor):
    X, y, _ = table
    with pytest.raises(DataError, match="another unit"):
        capped(1).fit(X, factor * y)


def test_a_band_without_room_for_a_box_is_served_by_the_head_of_rules(table):
    X, y, _ = table
    rules = "{inputs: {x: [0, 1]}, outputs: [y], rules: [{name: band, then: 5 <= y <= 5.000005}]}\n"
    with pytest.raises(NotCertifiedError, match=r"No safe heads were found for this box.* Leave more room"):
        SMLERegressor(rules, **LEARNED, compare=False).fit(X, y)
    served = SafeRegressor(rules, NetworkRegressor(**QUICK), compare=False).fit(X, y).predict(X)
    assert ((served >= 5) & (served <= 5.000005)).all()


@pytest.mark.parametrize("unit", [1e-12, 1e7, 1e9])
def test_the_unit_of_the_targets_does_not_matter(unit):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (120, 2))
    y = np.clip(0.8 * X[:, 0] + np.sin(X[:, 1]), 0, 10)
    rules = """
inputs: {{a: [0, 10], b: [0, 10]}}
outputs: [y]
rules: [{{name: high, when: a >= 8, then: y >= {0!r}}}, {{name: range, then: 0 <= y <= {1!r}}}]
"""
    scores = [
        SafeRegressor(
            rules.format(5 * u, 10 * u),
            NetworkRegressor(**{**QUICK, "hidden_layer_sizes": (32,), "embedding": 16}),
            compare=False,
        )
        .fit(X, u * y)
        .score(X, u * y)
        for u in (1.0, unit)
    ]
    assert scores[1] == pytest.approx(scores[0], abs=0.01)


@pytest.mark.parametrize("moving", [False, True])
def test_outputs_of_very_different_sizes(moving):
    X = np.random.default_rng(0).uniform(0, 1, (200, 2))
    Y = np.column_stack([1e9 * X[:, 0], X[:, 1]])
    limit = "1e9 * a + 1e7" if moving else "9e8"
    rules = f"""
inputs: {{a: [0, 1], b: [0, 1]}}
outputs: [revenue, share]
rules:
  - {{name: cap, then: 0 <= revenue <= {limit} and 0.001 <= share <= 0.9}}
  - {{name: few, when: b <= 0.2, then: share <= 0.15}}
"""
    model = SafeRegressor(
        rules,
        NetworkRegressor(**{**QUICK, "max_epochs": 60, "hidden_layer_sizes": (32,), "embedding": 16}),
        compare=False,
    ).fit(X, Y)
    assert model.score(X, Y) > 0.8


def test_an_option_beyond_the_type_of_the_targets_stays_a_name():
    choice = Choice("level", ("0", "1", "300"))
    assert option_values(choice, np.array([0, 1], dtype=np.int8)).tolist() == ["0", "1", "300"]
    assert option_values(choice, np.array([0, 1], dtype=np.int16)).tolist() == [0, 1, 300]


def test_a_number_that_may_mean_several_categories_is_refused():
    text = (
        "{inputs: {g: {categories: ['01', '1.0']}}, outputs: [y], rules: [{name: r, when: g == CASE, then: y <= 0}]}\n"
    )
    with pytest.raises(RuleError, match=r"may mean '01', '1\.0'"):
        Specification.from_yaml(text.replace("CASE", "1"))
    Specification.from_yaml(text.replace("CASE", '"01"'))


def test_fit_names_the_rules_that_clash(table):
    X, y, _ = table
    rules = """
inputs: {x: [0, 1]}
outputs: [y]
rules: [{name: r, then: y <= 9}, {name: p, then: y >= 5}, {name: q, then: y <= 4}]
"""
    with pytest.raises(ContradictionError, match=r"'p'.*'q'") as caught:
        SafeRegressor(rules, NetworkRegressor(**QUICK), compare=False).fit(X, y)
    assert "'r'" not in str(caught.value)


GATED = "{inputs: {x: [0, 1]}, outputs: [y], rules: [{name: cap, when: x <= 0.5, then: y <= 3}]}\n"


def gated(options="QUICK"):
    if options == "LEARNED":
        return SMLERegressor(GATED, **LEARNED, compare=False)
    return SafeRegressor(GATED, NetworkRegressor(**QUICK), compare=False)


def test_a_copy_is_taken_over_only_if_the_checker_accepts_it(table):
    X, y, _ = table
    served = gated().fit(X, y).deployed_
    state, proof = served.__getstate__(), served.proof
    clip = proof.tensors["clips.constant_upper"]
    higher = {**proof.tensors, "clips.constant_upper": clip._replace(data=np.float32([9]).tobytes())}
    other = Specification.from_yaml(GATED.replace("y <= 3", "y <= 2"))
    for change in ({"_proof": replace(proof, tensors=higher)}, {"_spec": other}):
        with pytest.raises(CertificateError):
            type(served).__new__(type(served)).__setstate__({**state, **change})


TREE = """inputs: {x: [0, 10]}
outputs: [a, b]
rules:
  - {name: low, when: x <= 5, then: a + b <= 1}
  - {name: high, when: x > 5, then: a + b >= 3}
"""


def swapped(certificate):
    """Write into what a certificate says: the safe answers of the two sides change places."""
    tree = certificate.document["program"]["tree"]
    assert tree == [0, None, None]
    tree[0] = 1


def test_nothing_is_changed_by_writing_into_the_document_of_a_certificate():
    """Programs read it when they are made, one of them the tree of safe answers at every call."""
    model = correct(lambda table: np.zeros((len(table), 2)), Specification.from_yaml(TREE))
    X, bits = np.array([[1.0], [9.0]]), np.array([[True, False], [False, True]])
    safe = model.head._safe(X, bits)
    assert (safe.sum(axis=1) <= 1).tolist() == [True, False]
    swapped(model.certificate_)
    for other in (model, copy.deepcopy(model)):
        assert other.certificate_.check()
        assert np.array_equal(other.head._safe(X, bits), safe)


def test_a_copy_holds_nothing_but_what_the_checker_reads():
    """A file may say of a certificate what was read off another one: the parsed document, what is proved."""
    certificate = correct(lambda table: np.zeros((len(table), 2)), Specification.from_yaml(TREE)).certificate_
    assert certificate.proved
    state = certificate.__getstate__()
    assert set(state) == {"text", "block", "tensors", "files"}
    read = Certificate.__new__(Certificate)
    read.__setstate__({**state, "document": {"program": {"head": "rules", "tree": None}}, "proved": ()})
    assert read.document == certificate.document
    assert read.proved == certificate.proved


def test_a_copy_without_its_certificate_is_refused(table):
    X, y, _ = table
    served = gated().fit(X, y).deployed_
    with pytest.raises(NotCertifiedError, match="rules but no certificate"):
        type(served).__new__(type(served)).__setstate__({**served.__getstate__(), "_proof": None})


@pytest.mark.parametrize("options", ["QUICK", "LEARNED"])
def test_tensors_of_a_program_cannot_be_exchanged(table, options):
    X, y, _ = table
    head = gated(options).fit(X, y).deployed_.head
    tensors = head.tensors if options == "LEARNED" else head.stored
    with pytest.raises(TypeError, match="item assignment"):
        tensors["gate.constants_float64"] = np.zeros(1)


@pytest.mark.parametrize("options", ["QUICK", "LEARNED"])
@pytest.mark.parametrize("source", ["fitted", "loaded", "unpickled", "copied"])
def test_nothing_can_be_written_into_what_is_served(table, tmp_path, options, source):
    """What is served are the bytes that the checker saw, in every copy of a model; parts cannot be exchanged."""
    X, y, _ = table
    model = gated(options).fit(X, y)
    before = model.predict(X)
    if source == "loaded":
        model.save(tmp_path / "model")
        model = load(tmp_path / "model")
    elif source != "fitted":
        model = pickle.loads(pickle.dumps(model)) if source == "unpickled" else copy.deepcopy(model)
    served = model.deployed_
    tensors = arrays_of(served.proof.tensors)
    held = [*served.front.scaling, *(part for layer in served.front.layers for part in layer)]
    held += [
        array for array in (served.head.stored if served.reads_answers else served.head.tensors).values() if array.size
    ]
    assert len(held) > 10
    for array in [*held, *(array for array in tensors.values() if array.size)]:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
    for name in ("front", "head", "proof", "specification_", "certificate_"):
        with pytest.raises(AttributeError):
            setattr(served, name, None)
    for name in ("specification_", "certificate_"):
        with pytest.raises(AttributeError):
            setattr(model, name, None)
    assert np.array_equal(model.predict(X), before)
    assert len(model.certificate_.check()) == 1


@pytest.mark.parametrize("options", ["QUICK", "LEARNED"])
def test_a_module_of_torch_is_a_copy(table, options):
    X, y, _ = table
    model = gated(options).fit(X, y)
    before, network = model.predict(X), model.to_torch()
    features = torch.tensor(X.to_numpy())
    np.testing.assert_allclose(network(features).numpy(), before, rtol=1e-5, atol=1e-6)
    assert not any(part.requires_grad for part in network.parameters())
    for part in (*network.parameters(), *network.buffers()):
        part.data.fill_(9)
    assert np.array_equal(model.predict(X), before)
    assert not np.array_equal(network(features).numpy(), before)
    with pytest.raises(ModelFormatError, match="one of an estimator"):
        SafeRegressor(GATED, estimator=Ridge()).fit(X, y).to_torch()
