"""Whole numbers that the format of the gate cannot hold are refused at every door; nothing else is."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

from smle import NetworkRegressor, SafeRegressor, Specification
from smle.cli import app
from smle.errors import DataError
from smle.heads.box.network.assurance import certify, project
from smle.nn import BoxNetwork, SafeNetwork
from smle.rules.membership import active_rules
from smle.tables import encode_inputs
from smle.tables.table_files import read_chunks, read_table

FIRST = 2**53 + 1  # the first whole number that float64 lacks
RULES = """
inputs: {id: [0, 20000000000000000], x: [0, 1]}
outputs: [y]
rules: [{name: new, when: id > 9007199254740992, then: y >= 1}]
"""
SPEC = Specification.from_yaml(RULES)
MIXED = Specification.from_yaml(RULES.replace("x: [0, 1]", "x: [0, 1], road: {categories: [dry, wet]}"))


def _polars(values):
    return polars.DataFrame({"id": values, "x": [0.5] * len(values)}, strict=False)


def _frame(values, **options):
    return pd.DataFrame({"id": pd.Series(values, **options), "x": [0.5] * len(values)})


def _arrow(values):
    return pyarrow.table({"id": values, "x": [0.5] * len(values)})


DOORS = {
    "list": lambda n: [[n, 0.5], [1, 0.25]],
    "tuples": lambda n: ((n, 0.5), (1, 0.25)),
    "rows of arrays": lambda n: [np.array([n, 0]), np.array([1, 1])],
    "int64": lambda n: np.array([[n, 0], [1, 1]]),
    "uint64": lambda n: np.array([[n, 0], [1, 1]], dtype=np.uint64),
    "tensor": lambda n: torch.tensor([[n, 0], [1, 1]]),
    "longdouble": lambda n: np.array([[n, 0.5], [1, 0.25]], dtype=np.longdouble),
    "objects": lambda n: np.array([[n, 0.5], [1, 0.25]], dtype=object),
    "numpy scalars": lambda n: np.array([[np.int64(n), 0.5], [1, 0.25]], dtype=object),
    "decimals": lambda n: np.array([[Decimal(n), 0.5], [1, 0.25]], dtype=object),
    "fractions": lambda n: np.array([[Fraction(n), 0.5], [1, 0.25]], dtype=object),
    "text": lambda n: np.array([[str(n), "0.5"], ["1", "0.25"]]),
    "text with zeros": lambda n: np.array([[f"{n}.00", "0.5"], ["1", "0.25"]], dtype=object),
    "bytes": lambda n: np.array([[str(n).encode(), b"0.5"], [b"1", b"0.25"]]),
    "masked": lambda n: np.ma.MaskedArray([[n, 0], [1, 1]], mask=False),
    "int64 column": lambda n: _frame([n, 1]),
    "uint64 column": lambda n: _frame([n, 1], dtype="uint64"),
    "object column": lambda n: _frame([n, 1.5], dtype=object),
    "text column": lambda n: _frame([str(n), "1"]),
    "decimal column": lambda n: _frame([Decimal(n), Decimal("1.5")]),
    "categorical column": lambda n: _frame(pd.Categorical([n, 1])),
    "polars": lambda n: _polars([n, 1]),
    "arrow": lambda n: _arrow([n, 1]),
}
GAPS = {
    "list": lambda n: [[n, 0.5], [None, 0.25], [float("nan"), 0.25]],
    "masked": lambda n: np.ma.MaskedArray([[n, 0], [1, 1]], mask=[[0, 0], [1, 0]]),
    "Int64": lambda n: _frame([n, None], dtype="Int64"),
    "arrow column": lambda n: _frame([n, None], dtype="int64[pyarrow]"),
    "categorical column": lambda n: _frame(pd.Categorical([n, None])),
    "polars": lambda n: _polars([n, None]),
    "arrow": lambda n: _arrow([n, None]),
}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"id": rng.integers(0, 2**54, 60) // 4 * 4, "x": rng.random(60)})
    return SafeRegressor(
        SPEC, NetworkRegressor(hidden_layer_sizes=(4,), embedding=2, max_epochs=2), random_state=0, compare=False
    ).fit(X, 1 + X["x"])


@pytest.mark.parametrize("door", DOORS)
def test_a_rounded_whole_number_is_refused(model, door):
    table = DOORS[door]
    with pytest.raises(DataError, match=r"9007199254740993.* cannot be read exactly"):
        model.predict(table(FIRST))
    with pytest.raises(DataError, match="cannot be read exactly"):
        model.usage(table(FIRST))
    if door != "arrow":  # the estimator's door
        with pytest.raises(DataError, match="cannot be read exactly"):
            encode_inputs(SPEC, table(FIRST))
        exact = encode_inputs(SPEC, table(FIRST + 1))
        assert exact.dtype == np.float64
        assert exact[0, 0] == 2**53 + 2
    assert model.predict(table(FIRST + 1), return_info=True)[1]["active_rules"][0] == ("new",)


@pytest.mark.parametrize("door", GAPS)
def test_so_is_one_beside_missing_values(model, door):
    spec = Specification.from_yaml(RULES.replace("id: [0, 20000000000000000]", "id: {range: [0, 2e16], missing: 7}"))
    y = np.ones(2 if door != "list" else 3)
    other = SafeRegressor(
        spec, NetworkRegressor(hidden_layer_sizes=(4,), embedding=2, max_epochs=1, final_epochs=0), random_state=0
    )
    with pytest.raises(DataError, match="9007199254740993 cannot be read exactly"):
        other.fit(GAPS[door](FIRST), y)
    other.fit(GAPS[door](FIRST + 1), y)
    assert other.predict(GAPS[door](FIRST + 1), return_info=True)[1]["active_rules"][:2] == [("new",), ()]


def test_so_is_one_beside_categories():
    rows = [[FIRST, 0.5, "dry"]]
    with pytest.raises(DataError, match="Input 'id': 9007199254740993 cannot"):
        encode_inputs(MIXED, rows)
    assert encode_inputs(MIXED, [[FIRST + 1, 0.5, "dry"]]).tolist() == [[2.0**53 + 2, 0.5, 1.0, 0.0]]


def test_so_is_a_stand_in_for_missing_values():
    text = "{inputs: {a: {range: [0, 20000000], missing: 16777217}}, outputs: [y], rules: []}\n"
    with pytest.raises(DataError, match="stand-in for missing values: 16777217 cannot be read exactly"):
        encode_inputs(Specification.from_yaml(text), np.array([[np.nan]], dtype=np.float32))
    assert encode_inputs(Specification.from_yaml(text), np.array([[np.nan]])).item() == 16777217


@pytest.mark.parametrize(
    "value",
    [
        0.1, 9007199254740993.0, np.float32(0.7), "0.1", "9007199254740992", "9007199254740993.5",
        "9.007199254740993e15", "6.02214076e23", Decimal("0.1"), Decimal("9007199254740993.5"), Fraction(1, 3),
        "1e16", " 42 ", -0.0,
        np.float16(0.1), "0" * 30 + "1", 10**16,
    ],
)  # fmt: skip
def test_fractions_floats_and_exponents_are_read_as_the_nearest_floats(value):
    spec = Specification.from_yaml("{inputs: {a: [-1e30, 1e30]}, outputs: [y], rules: []}\n")
    expected = float(value)
    for table in ([[value]], np.array([[value]], dtype=object), pd.DataFrame({"a": [value]})):
        assert encode_inputs(spec, table).astype(np.float64).item() == expected


@pytest.mark.parametrize("value", ["1" + 400 * "0", 10**400, Decimal("1e400"), "1e400"])
def test_finite_numbers_beyond_all_floats_are_refused(value):
    spec = Specification.from_yaml("{inputs: {a: [-1e30, 1e30]}, outputs: [y], rules: []}\n")
    with pytest.raises(DataError, match=r"cannot be read exactly|too large for a float"):
        encode_inputs(spec, {"a": [value]})
    assert encode_inputs(spec, pd.DataFrame({"a": ["inf"]})).item() == np.inf


CSV = {
    "mixed": "id,x\n{0},0.5\n1.0,0.25\n",
    "missing": "id,x\n{0},0.5\n,0.25\n",
    "exponent": "id,x\n{0},0.5\n1e3,0.25\n",
    "plain": "id,x\n{0},0.5\n1,0.25\n",
    "longer than uint64": "id,x\n{0},0.5\n18446744073709551616,0.25\n",
    "quoted": 'id,x\n"{0}",0.5\n1.0,0.25\n',
    "zeros": "id,x\n{0}.0,0.5\n1,0.25\n",
}


@pytest.mark.parametrize("kind", CSV)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_in_csv_files_too(tmp_path, kind, rows):
    spec = Specification.from_yaml(RULES.replace("id: [0, 20000000000000000]", "id: {range: [0, 2e16], missing: 7}"))
    place = tmp_path / "table.csv"
    place.write_text(CSV[kind].format(FIRST))
    with pytest.raises(DataError, match=r"9007199254740993(\.0)? cannot be read exactly"):
        _ = [encode_inputs(spec, chunk) for chunk in read_chunks(place, rows=rows)]
    place.write_text(CSV[kind].format(FIRST + 1))
    read = [encode_inputs(spec, chunk) for chunk in read_chunks(place, rows=rows)]
    assert np.concatenate(read)[0].tolist() == [2.0**53 + 2, 0.5]


def test_late_chunks_of_csv_files_stay_in_step(tmp_path):
    numbers = [*range(2500), *range(2**53, 2**53 + 5000, 2), 1.5, 2**60]
    place = tmp_path / "table.csv"
    place.write_text("id,x\n" + "".join(f"{n},0.5\n" for n in numbers))
    spec = Specification.from_yaml(RULES.replace("20000000000000000", "2e18"))
    for rows in (7, 1000, 10000):
        read = np.concatenate([encode_inputs(spec, chunk) for chunk in read_chunks(place, rows=rows)])
        assert read[:, 0].tolist() == [float(n) for n in numbers]
    assert encode_inputs(spec, read_table(place))[:, 0].tolist() == [float(n) for n in numbers]


def test_the_command_refuses_it(model, tmp_path):
    model.save(tmp_path / "model")
    (tmp_path / "table.csv").write_text(CSV["mixed"].format(FIRST))
    for command in ("predict", "monitor"):
        result = CliRunner().invoke(app, [command, str(tmp_path / "model"), str(tmp_path / "table.csv")])
        assert result.exit_code != 0
        assert "9007199254740993 cannot be read exactly" in " ".join(result.output.split())


def test_in_parquet_files_too(tmp_path):
    spec = Specification.from_yaml(RULES.replace("id: [0, 20000000000000000]", "id: {range: [0, 2e16], missing: 7}"))
    place = tmp_path / "table.parquet"

    def write(number):
        pyarrow.parquet.write_table(pyarrow.table({"id": [number, None], "x": [0.5, 0.5], "y": [1.0, 1.0]}), place)

    write(FIRST)
    with pytest.raises(DataError, match="9007199254740993 cannot be read exactly"):
        encode_inputs(spec, read_table(place))
    write(FIRST + 1)
    assert encode_inputs(spec, read_table(place))[:, 0].tolist() == [2.0**53 + 2, 7.0]


# --- tensors


def _network(top):
    spec = Specification.from_yaml(
        f"{{inputs: {{id: [0, {top}]}}, outputs: [y], rules: [{{name: new, when: id > {top // 2}, then: y >= 1}},"
        f" {{name: old, when: id <= {top // 2}, then: y <= 0.5}}]}}\n"
    )
    return BoxNetwork(torch.nn.Linear(1, 4), spec, embedding=4)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint32, torch.uint64])
@pytest.mark.parametrize("mode", ["training", "eval", "deployed"])
def test_integer_tensors_are_read_as_the_numbers_they_are(rows, kind, mode):
    """In float32, 16777217 would be 16777216, where the other rule applies."""
    network = _network(2**25)
    network.train(mode == "training")
    use = network
    if mode == "deployed":
        safe = project(network)
        use = SafeNetwork.of(safe.backbone, safe.spec, certify(safe)).eval()
    for number, fits in ((2**24 + 1, lambda y: y >= 1), (2**24, lambda y: y <= 0.5)):
        assert fits(use(torch.tensor(rows * [[number]]).to(kind))).all()


@pytest.mark.parametrize("rows", [1, 3])
def test_integer_tensors_that_float64_cannot_hold_are_refused(rows):
    network = _network(2**54).eval()
    with pytest.raises(DataError, match="Column 0 of the features: 9007199254740993 cannot be read exactly"):
        network(torch.tensor(rows * [[FIRST]]))
    assert (network(torch.tensor(rows * [[FIRST + 1]])) >= 1).all()
    assert (network(torch.tensor(rows * [[2**53]])) <= 0.5).all()
    with pytest.raises(TypeError, match="real numbers"):
        network(torch.zeros(rows, 1, dtype=torch.complex64))
    # A domain that ends before: what is rounded lies beyond it and is clamped.
    assert (_network(2**25).eval()(torch.tensor(rows * [[FIRST]])) >= 1).all()


@pytest.mark.parametrize("kind", ["int64", "object", "list", "mixed list", "tensor", "further dimension"])
def test_networks_refuse_arrays_whose_whole_numbers_would_be_rounded(kind):
    network = SafeNetwork(torch.nn.Linear(1, 1), _network(2**54).spec)
    given = {
        "int64": np.array([[FIRST]]),
        "object": np.array([[FIRST]], dtype=object),
        "list": [[FIRST]],
        "mixed list": [[FIRST], [0.5]],
        "tensor": torch.tensor([[FIRST]]),
        "further dimension": np.array([[[FIRST]]]),
    }
    with pytest.raises(DataError, match="Input 'id': 9007199254740993 cannot be read exactly"):
        network.predict(given[kind])
    assert network.predict(np.array([[FIRST + 1]])) >= 1


def test_a_compiled_program_refuses_what_it_cannot_see():
    def compiled(top):
        return torch.compile(_network(top), fullgraph=True, backend="eager")

    with pytest.raises(Exception, match="a compiled program cannot see"):
        compiled(2**54)(torch.tensor([[1], [2]]))
    assert (compiled(2**25)(torch.tensor([[2**24 + 1], [2**24 + 1]])) >= 1).all()


def test_the_monitor_reads_integers_so_too():
    spec = _network(2**25).spec
    encoded = encode_inputs(spec, np.array([[2**24 + 1], [2**24]]))
    assert active_rules(spec, encoded).tolist() == [[True, False], [False, True]]
