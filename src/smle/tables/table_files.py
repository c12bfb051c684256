"""Tables in files: CSV and Parquet, read whole or in chunks, written completely or not at all."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import shlex
import sys
import unicodedata
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from smle.errors import DataError
from smle.extras import require
from smle.files import reason_of, replacing
from smle.rules import Categorical, Choice, NumericInput, Specification
from smle.tables.any_table import require_distinct
from smle.tables.values import may_be_rounded

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

__all__ = ["TableWriter", "read_chunks", "read_table", "text_columns"]

CHUNK = 65536
_HEADER = 1 << 20  # characters at most
_NO_NAMES: frozenset[str] = frozenset()
_NO_TEXT: Mapping[str, frozenset[str]] = {}
_PARQUET = (".parquet", ".pq")
_NOT_WRITTEN = (".xlsx", ".xls", ".ods", ".gz")
_OTHER_KINDS = {
    **dict.fromkeys(
        (".xlsx", ".xls", ".xlsm", ".ods"),
        "Save the sheet as CSV (in Excel: CSV UTF-8), or read it with pandas.read_excel and pass the table in Python.",
    ),
    **dict.fromkeys(
        (".json", ".jsonl", ".ndjson"), "Read it with pandas.read_json, and save it as CSV or pass the table in Python."
    ),
    **dict.fromkeys(
        (".feather", ".arrow", ".orc"), "Read it with pandas, and save it as Parquet or pass the table in Python."
    ),
}
_KINDS = {
    b"\x1f\x8b": "a file packed by gzip: name it *.csv.gz",
    b"PAR1": "Parquet: rename the file",
    b"PK\x03\x04": "a zip archive, perhaps a spreadsheet: unpack it, or save the sheet as CSV",
}  # by the first bytes
_BAD_GZIP = (gzip.BadGzipFile, zlib.error, EOFError)
# Texts that usually mean a missing value. In a column of names they may be names: Namibia's code is NA.
_MISSING = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "-NaN", "-nan", "NaN", "nan"]
) | {"<NA>", "N/A", "NA", "n/a", "NULL", "null", "None"}


def text_columns(spec: Specification, further: Iterable[str] = ()) -> dict[str, frozenset[str]]:
    """Return the columns to read as text, with their known names: categories, choices, dates.

    `further`: columns that a model reads as text; no name is known in them.
    """
    categories = {item.name: frozenset(item.categories) for item in spec.inputs if isinstance(item, Categorical)}
    options = {item.name: frozenset(item.options) for item in spec.outputs if isinstance(item, Choice)}
    dates = {item.name: _NO_NAMES for item in spec.inputs if isinstance(item, NumericInput) and item.dates}
    return dict.fromkeys(further, _NO_NAMES) | categories | options | dates


def read_table(path: str | os.PathLike[str], *, text: Mapping[str, frozenset[str]] = _NO_TEXT) -> pd.DataFrame:
    """Read a whole table; decimals become the nearest floats. Columns with large integers may stay text.

    Args:
        path: A file of comma, semicolon or tab separated values (also `.gz`), or a Parquet file.
        text: Columns to read as text, so that `01` stays `01`, each with names that never mean a missing value, such as
            NA.

    Raises:
        DataError: If the file is missing, not a table, empty, or repeats a column name.
        MissingDependencyError: If a Parquet file is given without pyarrow.
    """
    import pandas as pd

    return pd.concat(list(read_chunks(path, text=text)), ignore_index=True)


def read_chunks(
    path: str | os.PathLike[str],
    *,
    text: Mapping[str, frozenset[str]] = _NO_TEXT,
    rows: int = CHUNK,
    verbatim: bool = False,
    empty: bool = False,
) -> Iterator[pd.DataFrame]:
    """Yield a table in chunks of at most `rows` rows, numbered from 0 on; memory does not grow with the file.

    With `verbatim`, columns are as in the file: text from CSV files, where no text means a missing value, and the
    file's own types from Parquet files. With `empty`, a table without rows is one chunk without rows. Raises as
    `read_table` does.
    """
    place = Path(path)
    _require_file(place)
    parts = _parquet_chunks(place, rows, verbatim) if _is_parquet(place) else _csv_chunks(place, text, rows, verbatim)
    start = 0
    for part in parts:
        if not len(part) and not empty:  # pandas yields this for a header without rows
            continue
        part.columns = [unicodedata.normalize("NFC", str(name)) for name in part.columns]
        part.index = range(start, start + len(part))  # type: ignore[assignment]
        start += len(part)
        yield part
    if not start and not empty:
        raise DataError(f"{place}: expected rows below the header. Got an empty table.")


def _is_parquet(place: Path) -> bool:
    return place.suffix.lower() in _PARQUET


def _require_file(place: Path) -> None:
    other = _OTHER_KINDS.get(place.suffix.lower())
    if other is not None:
        raise DataError(f"Cannot read '{place}': tables are read from CSV files (also .gz) and Parquet files. {other}")
    if place.is_dir():
        raise DataError(f"Cannot read '{place}': it is a folder. Expected a CSV or Parquet file.")
    if not place.is_file():
        raise DataError(f"Cannot read '{place}': no such file. Expected a CSV or Parquet file.")


def _csv_chunks(place: Path, text: Mapping[str, frozenset[str]], rows: int, verbatim: bool) -> Iterator[pd.DataFrame]:
    import pandas as pd

    separator, names, encoding = _header(place)
    if verbatim:
        text = dict.fromkeys(names, _MISSING)
    options: dict[str, Any] = {
        "sep": separator,
        "chunksize": rows,
        "index_col": False,
        "dtype": {name: str for name in names if name in text},
        "keep_default_na": False,
        "na_values": {name: sorted(_MISSING - text.get(name, frozenset())) for name in names},
        "encoding": encoding,
        "names": names,
        "header": 0,
        "low_memory": False,
        "skip_blank_lines": len(names) > 1,  # with a single column, a blank line is a missing value
        **_exact_digits(),
    }
    try:
        with pd.read_csv(place, **options) as reader:
            whole = _of_whole_rows(_strictly(reader), place, separator, len(names))
            if verbatim:
                yield from whole
                return
            with pd.read_csv(place, **{**options, "dtype": str}) as texts:  # only read where needed
                yield from _large_as_text(whole, _strictly(texts))
    except pd.errors.EmptyDataError:
        raise DataError(f"{place}: expected rows below the header. Got an empty table.") from None
    except UnicodeDecodeError as error:
        raise _other_encoding(place, error) from None
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        raise DataError(f"{place}: not readable as a table of separated values ({reason}).") from None
    except _BAD_GZIP as error:
        raise _damaged(place, error) from None


def _damaged(place: Path, error: Exception) -> DataError:
    return DataError(f"{place}: expected text (CSV) packed by gzip. Got a damaged or other file ({error}).")


def _strictly(reader: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield the chunks of a reader. Raises ParserWarning for a row longer than the header."""
    import pandas as pd

    while True:
        with warnings.catch_warnings():  # not around the yield, or callers would run with these settings
            warnings.simplefilter("error", pd.errors.ParserWarning)
            part = next(reader, None)
        if part is None:
            return
        yield part


def _of_whole_rows(parts: Iterator[pd.DataFrame], place: Path, separator: str, width: int) -> Iterator[pd.DataFrame]:
    """Yield chunks, or raise DataError for a row shorter than the header, which pandas would fill up.

    Only a row whose last value is missing can be short: if there is one, the file is read again.
    """
    start, counted, widths = 0, 0, _widths(place, separator)
    for part in parts:
        end = start + len(part)
        last = part.iloc[:, -1]
        if width > 1 and (last.isna() | (last == "")).any():
            for row, found in enumerate(islice(widths, end - counted), start=counted + 1):
                if found < width:
                    raise DataError(
                        f"{place}: expected {width} values in every row, as in the header. Got {found} in row {row}. "
                        "Was the file cut off? A missing value is written as nothing between two separators."
                    )
            counted = end
        start = end
        yield part


def _widths(place: Path, separator: str) -> Iterator[int]:
    """Yield the number of values in each row below the header, skipping blank lines."""
    with _text_of(place) as text:
        rows = csv.reader(text, delimiter=separator)
        try:
            next(rows)
            for row in rows:
                if len(row) > 1 or (row and row[0].strip()):
                    yield len(row)
        except csv.Error as error:
            raise DataError(f"{place}: not readable as a table of separated values ({error}).") from None


def _opened(place: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(place) if place.suffix.lower() == ".gz" else place.open("rb")


@contextmanager
def _text_of(place: Path) -> Iterator[TextIO]:
    """Open a file as text: in UTF-8, or in UTF-16 if a byte order mark says so."""
    with _opened(place) as raw:
        encoding = "utf-16" if raw.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        raw.seek(0)
        with io.TextIOWrapper(raw, encoding=encoding, newline="") as text:
            yield text


def _large_as_text(reader: Iterator[pd.DataFrame], texts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield chunks with columns of large floats as text, as in the file: pandas may have rounded integers.

    It reads integers as floats if a column mixes `1` and `1.0`, or if values are missing.
    """
    behind = 0
    for part in reader:
        behind += 1
        floats = part.select_dtypes("float64")
        large = [name for name in floats.columns if may_be_rounded(floats[name].to_numpy()).any()]
        if large:
            for _ in range(behind):
                text = next(texts)
            behind = 0
            part[large] = text[large].astype(object)
        yield part


def _header(place: Path) -> tuple[str, list[str], str]:
    """Return separator, column names and encoding."""
    try:
        with _text_of(place) as text:
            encoding, line = text.encoding, text.readline(_HEADER)
            # A quoted name may continue on the next line.
            while line.count('"') % 2 and len(line) < _HEADER and (more := text.readline(_HEADER)):
                line += more
    except UnicodeDecodeError as error:
        raise _other_encoding(place, error) from None
    except _BAD_GZIP as error:
        raise _damaged(place, error) from None
    if "\0" in line:
        raise _no_text(place)
    if not line.strip():
        raise DataError(f"{place}: expected a header with the column names. Got an empty first line.")
    separator = max((",", ";", "\t"), key=line.count)
    try:
        names = next(csv.reader(io.StringIO(line, newline=""), delimiter=separator))
    except csv.Error as error:
        raise DataError(f"{place}: expected a header with the column names. Got a first line with {error}.") from None
    names = [unicodedata.normalize("NFC", name) for name in names]
    require_distinct(names, where=str(place))
    return separator, names, encoding


def _no_text(place: Path) -> DataError:
    with _opened(place) as raw:
        start = raw.read(8)
    kind = next(
        (kind for begin, kind in _KINDS.items() if start.startswith(begin)), f"a file that begins with {start!r}"
    )
    return DataError(f"{place}: expected text (CSV), or Parquet in a file named *.parquet. Got {kind}.")


def _other_encoding(place: Path, error: UnicodeDecodeError) -> DataError:
    """Say which encoding a file seems to have; in Latin-1 and similar, accented letters are bytes above 127."""
    around = error.object[max(error.start - 12, 0) : error.start + 12]
    near = " ".join(around.decode("cp1252", "replace").split())
    if not near.isprintable() or "\ufffd" in near:
        return _no_text(place)
    return DataError(
        f"{place}: expected text in UTF-8. Got byte 0x{error.object[error.start]:02x} in '{near}', probably Latin-1 or "
        f"Windows-1252. Convert the file: iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(str(place))} > utf8.csv"
    )


def _exact_digits() -> dict[str, Any]:
    """Make pandas read decimals as the nearest floats, which is its default from 3.1 on."""
    import pandas as pd

    version = tuple(int(part) for part in pd.__version__.split(".")[:2])
    return {} if version >= (3, 1) else {"float_precision": "round_trip"}


def _arrow(what: str) -> tuple[Any, Any]:
    return require("pyarrow", f"{what} Parquet"), require("pyarrow.parquet", f"{what} Parquet")


def _parquet_chunks(place: Path, rows: int, verbatim: bool) -> Iterator[pd.DataFrame]:
    import pandas as pd

    arrow, parquet = _arrow("Reading")
    try:
        with parquet.ParquetFile(place) as file:
            require_distinct(list(file.schema_arrow.names), where=str(place))
            batches = (
                file.iter_batches(batch_size=rows) if file.metadata.num_rows else [file.schema_arrow.empty_table()]
            )
            for batch in batches:
                # Integers with missing values would become floats.
                yield batch.to_pandas(types_mapper=pd.ArrowDtype if verbatim else None, integer_object_nulls=True)
    except arrow.ArrowException as error:
        raise DataError(f"{place}: not readable as Parquet ({' '.join(str(error).split())}).") from None


class TableWriter:
    """Writes chunks to a CSV or Parquet file that appears when all are written, or to a stream.

    Numbers are written with the shortest digits that read back as the same floats. Use it as a context manager; after
    an error nothing is left, and an existing file stays.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._place = None if path is None else Path(path)
        self._fresh: Path | None = None
        self._open = ExitStack()
        self._stream: TextIO = sys.stdout
        self._parquet: Any = None
        self._begun = False

    def __enter__(self) -> Self:
        place = self._place
        if place is None:
            return self
        if place.is_dir():
            raise DataError(f"Cannot write '{place}': it is a folder. Name a file.")
        if place.suffix.lower() in _NOT_WRITTEN:
            raise DataError(
                f"Cannot write '{place}': tables are written as CSV or Parquet. Name a file such as predictions.csv "
                "or predictions.parquet."
            )
        if _is_parquet(place):
            _arrow("Writing")
        try:
            with ExitStack() as stack:
                (self._fresh,) = stack.enter_context(replacing(place))
                if not _is_parquet(place):
                    self._stream = stack.enter_context(self._fresh.open("w", encoding="utf-8", newline=""))
                self._open = stack.pop_all()
        except OSError as error:
            raise DataError(f"Cannot write '{place}': {reason_of(error)}. Name another place.") from None
        return self

    def write(self, table: pd.DataFrame) -> None:
        """Write a chunk. All chunks have the columns of the first."""
        if self._place is not None and _is_parquet(self._place):
            arrow, parquet = _arrow("Writing")
            batch = arrow.Table.from_pandas(table, preserve_index=False)
            if self._parquet is None:
                self._parquet = self._open.enter_context(parquet.ParquetWriter(self._fresh, batch.schema))
            self._parquet.write_table(batch.cast(self._parquet.schema))
        else:
            table.to_csv(self._stream, index=False, header=not self._begun)
        self._begun = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)
