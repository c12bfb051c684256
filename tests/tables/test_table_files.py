"""Tables in files: exact digits, chunks, and refusals of what is not a table."""

import gzip
import os
import unicodedata
import warnings

import numpy as np
import pandas as pd
import pytest

from smle.errors import DataError
from smle.rules import Specification
from smle.tables import encode_inputs, encode_numbers
from smle.tables.table_files import TableWriter, read_chunks, read_table, text_columns


@pytest.fixture
def numbers():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"x": rng.uniform(0, 1, 500), "n": rng.integers(0, 9, 500), "t": rng.choice(["01", "b"], 500)})


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.csv.gz", "T.CSV.GZ"])
def test_what_is_written_reads_back_exactly(numbers, tmp_path, name):
    path = tmp_path / name
    if name.lower().endswith(".gz"):
        path.write_bytes(gzip.compress(numbers.to_csv(index=False).encode()))
    else:
        with TableWriter(path) as writer:
            writer.write(numbers[:200])
            writer.write(numbers[200:])
    again = read_table(path, text={"t": frozenset()})
    assert np.array_equal(again["x"].to_numpy(), numbers["x"].to_numpy())
    assert again["t"].tolist() == numbers["t"].tolist()
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_chunks_are_the_table(numbers, tmp_path, name):
    with TableWriter(tmp_path / name) as writer:
        writer.write(numbers)
    parts = list(read_chunks(tmp_path / name, rows=64, text={"t": frozenset()}))
    assert [len(part) for part in parts] == [64] * 7 + [52]
    assert [int(part.index[0]) for part in parts] == list(range(0, 500, 64))
    pd.testing.assert_frame_equal(pd.concat(parts), read_table(tmp_path / name, text={"t": frozenset()}))


@pytest.mark.parametrize(
    "text", ["\ufeffa,b\n1,2\n", "a;b\n1;2\n", "a\tb\n1\t2\n", '"a","b"\r\n"1","2"\r\n', "a,b\n\n1,2\n"]
)
def test_kinds_of_separated_values(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert read_table(tmp_path / "t.csv").to_dict("list") == {"a": [1], "b": [2]}


NONSENSE = {
    "empty": (b"", "empty first line"),
    "blank": (b"\n\n", "empty first line"),
    "header only": (b"a,b\n", "empty table"),
    "twice the same name": (b"a,b,a\n1,2,3\n", "several columns named 'a'"),
    "too many fields": (b"a,b\n1,2\n1,2,3,4\n", "line 3"),
    "a field more in every row": (b"a,b\n1,2,3\n4,5,6\n", "header"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\x00\x00", r"expected text.* Got a file that begins with b'.x89PNG"),
    "zeros": (b"\x00" * 100, r"expected text.* Got a file that begins with b'.x00"),
    "gzip": (gzip.compress(b"a,b\n1,2\n"), r"Got a file packed by gzip: name it \*\.csv\.gz"),
    "Parquet": (b"PAR1\x15\x04\x15\xff", "Got Parquet: rename the file"),
    "zip": (b"PK\x03\x04\x14\x00\xff", "Got a zip archive"),
    "latin-1 in a row": (b"a,b\n1,M\xfcnchen\n", r"Got byte 0xfc in 'a,b 1,München', probably Latin-1 .* iconv -f"),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_refused_with_the_file_named(tmp_path, kind):
    data, reason = NONSENSE[kind]
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(DataError, match=reason) as caught:
        read_table(tmp_path / "t.csv")
    assert "t.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_without_rows_has_no_chunks_unless_it_may(tmp_path, name):
    with TableWriter(tmp_path / name) as writer:
        writer.write(pd.DataFrame({"a": [], "b": []}))
    with pytest.raises(DataError, match="expected rows below the header"):
        next(read_chunks(tmp_path / name))
    (only,) = read_chunks(tmp_path / name, empty=True)
    assert list(only.columns) == ["a", "b"]
    assert len(only) == 0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_told_by_its_mark(tmp_path, encoding):
    text = "größe,t\n1.5,01\n2.5,ä\n"
    mark = "" if encoding == "utf-16" else "\ufeff"
    (tmp_path / "t.csv").write_bytes((mark + text).encode(encoding))
    assert read_table(tmp_path / "t.csv", text={"t": frozenset()}).to_dict("list") == {
        "größe": [1.5, 2.5], "t": ["01", "ä"]
    }  # fmt: skip


def test_names_of_columns_have_one_unicode_form(tmp_path):
    apart = unicodedata.normalize("NFD", "größe")
    (tmp_path / "t.csv").write_text(f"{apart},x\n01,2\n", encoding="utf-8")
    assert read_table(tmp_path / "t.csv", text={"größe": frozenset()}).to_dict("list") == {"größe": ["01"], "x": [2]}
    spec = Specification.from_yaml("inputs: {größe: [0, 3]}\noutputs: [y]\nrules: []\n")
    with pytest.raises(DataError, match="'größe', which is there in another Unicode form"):
        encode_inputs(spec, pd.DataFrame({apart: [1.0]}))


@pytest.mark.parametrize("value", ["1,5", "1.234,56", " 1 234,5 "])
def test_decimal_commas_are_named(value):
    spec = Specification.from_yaml("inputs: {x: [0, 3]}\noutputs: [y]\nrules: []\n")
    with pytest.raises(DataError, match=r"Save the table with decimal points, .* decimal=','"):
        encode_inputs(spec, pd.DataFrame({"x": [value]}))
    with pytest.raises(DataError, match=r"Save the table with decimal points"):
        encode_numbers(spec, [value])


@pytest.mark.parametrize(
    ("name", "said"), [("t.xlsx", "read_excel"), ("t.json", "read_json"), ("t.feather", "Parquet")]
)
def test_it_is_said_which_files_are_tables(tmp_path, name, said):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=f"read from CSV files .also .gz. and Parquet files.*{said}"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["t.xlsx", "t.XLS", "t.ods", "t.csv.gz"])
def test_other_formats_are_not_written_under_a_false_name(numbers, tmp_path, name):
    with pytest.raises(DataError, match="CSV or Parquet"), TableWriter(tmp_path / name) as writer:
        writer.write(numbers)
    assert list(tmp_path.iterdir()) == []


def test_places_that_take_no_file_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"Cannot write '.*t\.csv': a part of the path is a file"):
        TableWriter(tmp_path / "file" / "t.csv").__enter__()


def test_wrong_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="it is a folder"):
        read_table(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_table(tmp_path / "absent.csv")
    (tmp_path / "t.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match="not readable as Parquet"):
        read_table(tmp_path / "t.parquet")
    (tmp_path / "t.csv.gz").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(DataError, match="expected text"):
        read_table(tmp_path / "t.csv.gz")
    (tmp_path / "long.csv").write_text("a" * 131073 + ",b\n1,2\n")
    with pytest.raises(DataError, match=r"long\.csv: expected a header .* larger than field limit"):
        read_table(tmp_path / "long.csv")


def test_a_gzip_file_that_is_cut_behind_its_header(tmp_path):
    """The header is readable; pandas meets the end."""
    rows = "".join(f"{i * i % 9973},{i}\n" for i in range(50_000))
    whole = gzip.compress(f"a,b\n{rows}".encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.csv\.gz: expected text \(CSV\) packed by gzip\. Got a damaged"):
        read_table(tmp_path / "cut.csv.gz")


def test_missing_pyarrow_is_named(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"smle\[parquet\]"):
        read_table(tmp_path / "t.parquet")
    with pytest.raises(ImportError, match=r"smle\[parquet\]"), TableWriter(tmp_path / "u.parquet"):
        pass


def test_names_stay_text():
    spec = Specification.from_yaml(
        "inputs: {a: [0, 1], zip: {categories: ['01', '02']}}\nchoices: {c: ['1', '2']}\n"
        "rules:\n  - {name: r, then: c != '1'}\n"
    )
    assert set(text_columns(spec)) == {"zip", "c"}


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_an_error_leaves_what_was_there(numbers, tmp_path, name):
    path = tmp_path / name
    with TableWriter(path) as writer:
        writer.write(numbers)
    before = path.read_bytes()
    with pytest.raises(AttributeError), TableWriter(path) as writer:
        [writer.write(part) for part in (numbers[:100], None)]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_full_disk_leaves_nothing(numbers, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"), TableWriter(tmp_path / "t.csv") as writer:
        writer.write(numbers)
    assert list(tmp_path.iterdir()) == []


def test_known_names_are_not_missing_values(tmp_path):
    (tmp_path / "t.csv").write_text("region,other,x\nNA,NA,NA\n,n/a,1\nnull,01,2\n")
    table = read_table(tmp_path / "t.csv", text={"region": frozenset({"NA", "EU"}), "other": frozenset({"01"})})
    assert table["region"].isna().tolist() == [False, True, True]
    assert table["region"][0] == "NA"
    assert table["other"].isna().tolist() == [True, True, False]
    assert table["x"].isna().tolist() == [True, False, False]


def test_blank_lines_of_a_single_column_are_missing_values(tmp_path):
    place = tmp_path / "one.csv"
    place.write_text("x\n1\n\n\n2\n")
    (table,) = read_chunks(place)
    assert table["x"].isna().tolist() == [False, True, True, False]
    place.write_text("x,y\n1,2\n\n3,4\n\n")
    (table,) = read_chunks(place)
    assert table["x"].tolist() == [1, 3]


def test_a_name_in_quotes_may_go_over_lines(tmp_path):
    (tmp_path / "t.csv").write_text('"a\nb",c,c\n1,2,3\n')
    with pytest.raises(DataError, match="several columns named 'c'"):
        read_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text('"a\nb",zip\n1,01\n')
    assert read_table(tmp_path / "t.csv", text={"zip": frozenset()}).to_dict("list") == {"a\nb": [1], "zip": ["01"]}


def test_a_file_that_is_read_in_part_leaves_warnings_alone(tmp_path):
    place = tmp_path / "table.csv"
    place.write_text("x\n1\n2\n3\n")
    before = list(warnings.filters)
    chunks = read_chunks(place, rows=1)
    next(chunks)
    assert warnings.filters == before
