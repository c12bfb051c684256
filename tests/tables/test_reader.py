"""The one way in which numbers are read: the same at every door, from every kind of table, once per column."""

import datetime
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge

from smle import SafeRegressor, Specification, correct
from smle.certificates.gate import domain_arrays
from smle.errors import DataError
from smle.tables import Reader, SetAside, encode_inputs, encode_numbers, in_domain
from smle.tables.frames import as_numbers
from smle.tables.table_files import read_chunks, read_table, text_columns

SPEC = Specification.from_yaml("""
inputs:
  a: {range: [0, 10], missing: 3}
  flag: [0, 1]
  n: {range: [0, 9007199254740994], integer: true}
  color: {categories: [red, blue], missing: red}
  day: [2000-01-01, 2030-01-01]
outputs: [y]
rules: [{name: small, then: y <= 5}]
""")
COLUMNS = {
    "a": [1.5, None, 2.0],
    "flag": [True, False, True],
    "n": [1, 2**53, None],
    "color": ["red", "blue", None],
    "day": [datetime.date(2010, 1, day) for day in (1, 2, 3)],
}
NUMBERS = {**COLUMNS, "n": [1, 2**53, 3]}
TABLES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "lazy polars": pl.LazyFrame,
    "arrow": pa.table,
    "record batch": lambda columns: pa.table(columns).to_batches()[0],
    "dict": dict,
    "dicts": lambda columns: [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
}
ONE = Specification.from_yaml("{inputs: {x: [0, 100]}, outputs: [y], rules: [{name: r, then: y <= 5}]}")


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_is_read_alike(kind):
    expected = Reader(SPEC).read(pd.DataFrame(NUMBERS))
    found = Reader(SPEC).read(TABLES[kind](NUMBERS))
    assert found.encoded.dtype == np.float64
    assert np.array_equal(found.encoded, expected.encoded)
    assert found.encoded[:, 0].tolist() == [1.5, 3.0, 2.0]
    assert {name: mask.tolist() for name, mask in found.missing.items()} == {
        "a": [False, True, False],
        "color": [False, False, True],
    }
    with pytest.raises(DataError, match=r"Input 'n': 1 of 3 values are missing"):
        Reader(SPEC).read(TABLES[kind](COLUMNS))
    with pytest.raises(DataError, match="9007199254740993 cannot be read exactly"):
        Reader(SPEC).read(TABLES[kind]({**COLUMNS, "n": [1, 2**53 + 1, None if kind != "pandas" else 3]}))


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_is_served_alike(kind):
    rng = np.random.default_rng(0)
    spec = Specification.from_yaml("""
inputs: {a: [0, 1], b: {range: [0, 1], missing: 0}}
outputs: [y]
rules: [{name: r, when: a >= 0.5, then: y <= 0.3}]
""")
    X = {name: rng.uniform(size=40).tolist() for name in "ab"}
    y = [a + b for a, b in zip(X["a"], X["b"], strict=True)]
    X["b"][3] = None
    table = TABLES[kind](X)
    expected = pd.DataFrame(X)
    for model in (
        SafeRegressor(spec, estimator=HistGradientBoostingRegressor(), compare=False).fit(table, y),
        correct(lambda t: np.asarray(t["a"]) + 0.5, spec),
    ):
        assert np.array_equal(model.predict(table), model.predict(expected))


def test_columns_are_read_once(monkeypatch):
    X = pd.DataFrame({"a": np.linspace(0, 1, 20), "b": np.linspace(1, 0, 20)})
    spec = Specification.from_yaml("{inputs: {a: [0, 1]}, outputs: [y], rules: [{name: r, then: y <= 0.5}]}")
    model = SafeRegressor(spec, estimator=Ridge(), compare=False).fit(X, X["a"])
    read = []
    own = pd.DataFrame.__getitem__
    monkeypatch.setattr(pd.DataFrame, "__getitem__", lambda table, name: (read.append(name), own(table, name))[1])
    model.predict(X)
    assert sorted(read) == ["a", "b"]


STRANGE = ["1_0", "\uff11\uff12", "\u0663", "1\u066b5", True, "True", "1e1_0", "0x10", b"1_0", "1 000", "--1", ""]


@pytest.mark.parametrize("value", STRANGE)
def test_what_only_python_takes_for_a_number_is_refused_at_every_door(value, tmp_path):
    doors = {
        "table": lambda: encode_inputs(ONE, pd.DataFrame({"x": [2.0, value]})),
        "text": lambda: encode_inputs(ONE, pd.DataFrame({"x": ["2", str(value)]})),
        "objects": lambda: encode_inputs(ONE, np.array([[2.0], [value]], dtype=object)),
        "dict": lambda: encode_inputs(ONE, {"x": [2.0, value]}),
        "encoded": lambda: Reader(ONE).read_encoded(np.array([[2.0], [value]], dtype=object)),
        "targets": lambda: encode_numbers(ONE, np.array([2.0, value], dtype=object)),
        "estimator": lambda: SafeRegressor(ONE, estimator=Ridge(), compare=False).fit(
            np.array([[2.0], [value]], dtype=object), [1.0, 2.0]
        ),
        "function": lambda: correct(lambda t: np.ones(len(t)), ONE).predict(np.array([[value]], dtype=object)),
    }
    if value is not True:  # it was a column of numbers and truth values in training
        doors["model inside"] = lambda: as_numbers("x", np.array([2.0, value], dtype=object), np.float32)
    if isinstance(value, str) and value:
        (tmp_path / "t.csv").write_text(f"x,z\n{value},1\n2,1\n", encoding="utf-8")
        doors["file"] = lambda: encode_inputs(ONE, read_table(tmp_path / "t.csv", text=text_columns(ONE)))
    for name, door in doors.items():
        with pytest.raises(ValueError, match=r"expected numbers|could not convert") as refusal:
            door()
        assert isinstance(refusal.value, DataError) or name == "estimator", name


def test_truth_values_are_numbers_where_nothing_else_can_be_meant(tmp_path):
    (tmp_path / "t.csv").write_text("flag,x\nTrue,1\nFalse,2\n")
    table = read_table(tmp_path / "t.csv")
    flag = Specification.from_yaml("{inputs: {flag: [0, 1]}, outputs: [y], rules: []}")
    assert encode_inputs(flag, table).tolist() == [[1.0], [0.0]]
    with pytest.raises(DataError, match=r"Input 'flag': expected numbers. Got True. Write 1 and 0."):
        encode_inputs(Specification.from_yaml("{inputs: {flag: [0, 2]}, outputs: [y], rules: []}"), table)
    beside = pd.DataFrame({"flag": [True, False], "x": np.float32([0.7, 0.1])})
    both = Specification.from_yaml("{inputs: {flag: [0, 1], x: [0, 1]}, outputs: [y], rules: []}")
    assert encode_inputs(both, beside).dtype == np.float32
    labels = Specification.from_yaml("{inputs: {x: [0, 1]}, labels: [cat], rules: []}")
    assert encode_numbers(labels, [True, False]).tolist() == [[1.0], [0.0]]


def test_rows_say_what_is_missing_and_what_is_wrong():
    found = Reader(SPEC).examine({
        "a": ["1_0", "x", None],
        "flag": [0, 1, 0.5],
        "n": [2**53 + 1, 2.5, "3"],
        "color": ["green", None, "red"],
        "day": ["2010-13-01", "2010-01-01", None],
    })  # fmt: skip
    assert SetAside.of(found, found.faults).reasons == {
        0: "'a': expected a number, got '1_0'; "
        "'n': expected a number that a float holds exactly, got 9007199254740993; "
        "'color': expected one of red, blue, got 'green'; "
        "'day': expected a date such as 2020-01-31, got '2010-13-01'",
        1: "'a': expected a number, got 'x'; 'n': expected a whole number, got 2.5",
        2: "'day' is missing",
    }
    assert {name: np.flatnonzero(mask).tolist() for name, mask in found.missing.items()} == {
        "a": [2],
        "color": [1],
        "day": [2],
    }
    assert np.isnan(found.encoded).any(axis=1).tolist() == [True, True, True]
    assert found.encoded[2].tolist()[:5] == [3.0, 0.5, 3.0, 1.0, 0.0]
    assert Reader(SPEC).examine(NUMBERS).faults == ()


def test_ends_of_the_domain_are_those_of_the_program():
    text = "{inputs: {x: [0.1, 0.7], z: [%s, 2]}, outputs: [y], rules: [{name: r, then: y <= 1}]}"
    twice = Fraction(1) + Fraction(1, 2**24) + Fraction(1, 2**60)  # by way of float64 it would be rounded down
    spec = Specification.from_yaml(text % f"{float(twice)!r}")
    exact = Specification(
        tuple(
            type(item)(item.name, twice if item.name == "z" else item.lower, item.upper, item.integer)
            for item in spec.inputs
        ),
        spec.outputs,
        spec.rules,
    )
    for stated in (spec, exact):
        program = domain_arrays(stated)
        for kind in (np.float32, np.float64):
            lower, upper = stated.ends(kind)
            assert np.array_equal(lower, program[f"domain.lower_{kind.__name__}"])
            assert np.array_equal(upper, program[f"domain.upper_{kind.__name__}"])
            assert lower.dtype == upper.dtype == kind
            assert not lower.flags.writeable
            assert in_domain(stated, np.array([lower, upper])).all()
    assert exact.ends(np.float32)[0][1] == np.nextafter(np.float32(1), np.float32(2))


def test_encoded_inputs_are_read_as_tables_are():
    reader = Reader(SPEC)
    encoded = reader.read(NUMBERS).encoded
    assert np.array_equal(reader.read_encoded(encoded), encoded)
    assert np.array_equal(reader.read_encoded(encoded.reshape(3, 1, -1)), encoded.reshape(3, 1, -1))
    gaps = np.array(encoded, dtype=object)
    gaps[0, 0], gaps[1, 3:5] = None, np.nan
    filled = reader.read_encoded(gaps)
    assert filled[0, 0] == 3.0
    assert filled[1, 3:5].tolist() == [1.0, 0.0]
    spec = Specification.from_yaml("{inputs: {x: [0, 1], z: [0, 1]}, outputs: [y], rules: []}")
    rows = np.array([[0.7, 0.5]], dtype=">f4")
    assert Reader(spec).read_encoded(rows).dtype == np.float32
    masked = np.ma.MaskedArray([[0.7, 0.5]], mask=[[True, False]])
    with pytest.raises(DataError, match="1 of 1 values are missing"):
        Reader(spec).read_encoded(masked)
    with pytest.raises(DataError, match=r"Expected features of shape"):
        Reader(spec).read_encoded(np.zeros((2, 3)))


@pytest.mark.parametrize("ending", ["3,4", "3,4\n", "3,4\n\n", "3\n", '"3\n",4'])
@pytest.mark.parametrize("verbatim", [False, True])
def test_a_row_that_ends_early_is_refused(tmp_path, ending, verbatim):
    path = tmp_path / "t.csv"
    whole = "a,b,c\n1,2,\n\n" + "1,2,3\n" * 5
    path.write_text(whole + "1,2,\n")
    assert len(pd.concat(read_chunks(path, rows=2, verbatim=verbatim))) == 7
    path.write_text(whole + ending)
    with pytest.raises(DataError, match=r"expected 3 values in every row.*Got [12] in row 7\."):
        list(read_chunks(path, rows=2, verbatim=verbatim))


def test_columns_whose_rows_are_in_different_orders_are_refused():
    """pandas would sort rows by their labels, and fill what one column lacks: answers would be for other rows."""
    spec = Specification.from_yaml("{inputs: {a: [0, 9], b: {range: [0, 9], missing: 0}}, outputs: [y], rules: []}\n")
    a = pd.Series([1.0, 2.0, 3.0])
    for other in ([2, 1, 0], [1, 2, 3], ["x", "y", "z"]):
        with pytest.raises(DataError, match="rows are in one order"):
            encode_inputs(spec, {"a": a, "b": pd.Series([4.0, 5.0, 6.0], index=other)})
    same = {"a": a.set_axis([7, 5, 6]), "b": pd.Series([4.0, 5.0, 6.0], index=[7, 5, 6])}
    assert encode_inputs(spec, same).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert encode_inputs(spec, {"a": [1, 2, 3], "b": same["b"]}).tolist() == [[1, 4], [2, 5], [3, 6]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"a": 1.0, "b": 2}, r"Got one row as a dict. Pass a list with it: \[row\]"),
        ({"a": [1.0, 2.0], "b": [3.0]}, "equally long"),
    ],
)
def test_a_dict_that_is_no_table_is_refused(rows: dict[str, object], said: str):
    spec = Specification.from_yaml("{inputs: {a: [0, 9], b: [0, 9]}, outputs: [y], rules: []}\n")
    with pytest.raises(DataError, match=said):
        encode_inputs(spec, rows)
