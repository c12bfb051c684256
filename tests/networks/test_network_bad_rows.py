"""Networks and their ONNX files answer the rows that can be read, as if they had come alone, and name the others."""

import numpy as np
import pandas as pd
import pytest
import torch

from smle import Specification
from smle.certificates.document import Certificate
from smle.errors import DataError
from smle.export import load_onnx, write_network
from smle.networks.safe_network import SafeNetwork

SPEC = Specification.from_yaml("""
inputs: {x: [0, 1], k: {categories: [a, b]}, s: {range: [0, 9], missing: 4}}
outputs: [y, z]
rules:
  - {name: r, when: k == a, then: y <= x and z >= 0}
  - {name: gone, when: s is missing, then: y <= 0}
""")


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return SafeNetwork(torch.nn.Linear(len(SPEC.columns), 2), SPEC)


@pytest.fixture
def table():
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"x": rng.uniform(0, 1, 20), "k": rng.choice(["a", "b"], 20), "s": rng.uniform(0, 9, 20)})
    table.loc[4, "s"] = None
    return table


def test_tables(network, table):
    want = network.predict(table)
    bad = table.astype({"x": object})
    bad.loc[2, "k"], bad.loc[7, "x"] = "fax", "12:30"
    with pytest.raises(DataError, match=r"fax|12:30"):
        network.predict(bad)
    with pytest.warns(UserWarning, match="2 of 20 rows were set aside .*without_bad_rows gives all reasons"):
        found = network.predict(bad, bad_rows="set aside")
    kept = np.delete(np.arange(20), [2, 7])
    assert np.isnan(found[[2, 7]]).all()
    assert np.allclose(found[kept], want[kept], rtol=1e-6)
    good, aside = network.without_bad_rows(bad)
    assert list(aside.reasons) == [2, 7]
    assert len(good) == 18
    assert np.array_equal(network.predict(table, bad_rows="set aside"), want)
    with pytest.raises(ValueError, match="bad_rows"):
        network.predict(table, bad_rows="drop")
    bad.loc[9, "x"] = 7.0
    with pytest.warns(UserWarning, match="set aside"), pytest.warns(UserWarning, match=r"\(rows 10\)"):
        network.predict(bad, bad_rows="set aside", out_of_domain="warn")


def test_encoded_arrays_and_further_inputs(table):
    class Two(torch.nn.Module):
        def forward(self, more):
            return more

    network = SafeNetwork(Two(), SPEC)
    encoded = np.array([[0.5, 1, 0, 3, 0], [0.5, 1, 1, 3, 0], [0.2, 0, 1, 5, 1], [0.2, 0, 1, 4, 1]])
    more = torch.arange(8, dtype=torch.float32).reshape(4, 2)
    with pytest.warns(UserWarning, match="set aside"):
        found = network.predict(encoded, more, bad_rows="set aside")
    assert np.isnan(found[[1, 2]]).all()
    assert np.array_equal(found[[0, 3]], network.predict(encoded[[0, 3]], more[[0, 3]]))
    with pytest.raises(DataError, match="rows, columns"):
        network.predict(encoded[None], more, bad_rows="set aside")


def test_onnx_files(network, table, tmp_path):
    place = tmp_path / "m.onnx"
    proof = network.certified({"rules": SPEC.to_yaml().encode()})
    assert isinstance(proof, Certificate)
    write_network(network, place, certificate=proof)
    model = load_onnx(place)
    want, facts = model.predict(table, return_info=True)
    bad = table.assign(k=["fax", *table["k"][1:]])
    found, told = model.predict(bad, return_info=True, bad_rows="set aside")
    assert found.iloc[0].isna().all()
    assert np.allclose(found.iloc[1:], want.iloc[1:], rtol=1e-6)
    assert told["set_aside"] == {0: "'k': expected one of a, b, got 'fax'"}
    assert told["active_rules"][1:] == facts["active_rules"][1:]
    assert not told["in_domain"][0]
    with pytest.warns(UserWarning, match="1 of 20 rows was set aside"):
        model.predict(bad, bad_rows="set aside")
    far = bad.assign(x=[0.5] * 19 + [7.0])
    with pytest.raises(DataError, match="row 20"):
        model.predict(far, bad_rows="set aside")
