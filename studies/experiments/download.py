"""Downloads that are whole or not there at all."""

from __future__ import annotations

import csv
import http.client
import io
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from smle.errors import DataError

_TIMEOUT = 60.0  # seconds without an answer
_LARGEST = 64 << 20  # bytes of a label table
_CHUNK = 1 << 16


def read_url(url: str) -> Iterator[bytes]:
    """Yield a file's bytes in pieces.

    Raises:
        DataError: If the address is not on the web, cannot be read, or ends early.
    """
    if not url.startswith(("http://", "https://")):
        raise DataError(f"expected an address that starts with http:// or https://. Got {url}.")
    request = urllib.request.Request(url, headers={"User-Agent": "smle"})  # noqa: S310 (the scheme was checked)
    received = 0
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
            length = answer.headers.get("Content-Length")
            while piece := answer.read(_CHUNK):
                received += len(piece)
                yield piece
    except (OSError, http.client.HTTPException, urllib.error.URLError) as error:
        raise DataError(f"{error}.") from None
    if length is not None and received != int(length):
        raise DataError(f"the connection ended after {received} of {length} bytes.")


def write_whole(path: Path, content: bytes, *, check: Callable[[Path], None]) -> None:
    """Write a file at once, after a check: a reader, or a second writer, never sees half of it or a wrong one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        check(Path(name))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def arff(url: str) -> bytes:
    """Return an ARFF file, unpacked if the address is that of a zip archive.

    Raises:
        DataError: If it cannot be read, is too large, or the archive holds no ARFF file.
    """
    content = bytearray()
    for piece in read_url(url):
        content += piece
        if len(content) > _LARGEST:
            raise DataError(f"expected at most {_LARGEST} bytes.")
    if not url.endswith(".zip"):
        return bytes(content)
    try:
        with zipfile.ZipFile(io.BytesIO(bytes(content))) as archive:
            names = [item for item in archive.infolist() if item.filename.lower().endswith(".arff")]
            if len(names) != 1 or names[0].file_size > _LARGEST:
                raise DataError(f"expected an archive with one ARFF file. Got {len(names)}.")
            return archive.read(names[0])
    except zipfile.BadZipFile as error:
        raise DataError(f"{error}.") from None


@dataclass(frozen=True, eq=False)
class M4:
    """Fetches series of the M4 competition, by name with (category, period), from its tables.

    The competition has a table `Train/<period>-train.csv` and a table `Test/<period>-test.csv` per period, a series in
    each row; a series is its training part followed by its test part.
    """

    series: Mapping[str, tuple[str, str]]

    def __call__(self, url: str) -> bytes:
        """Return a table with columns id, category, period, t, value.

        Raises:
            DataError: If a table cannot be read or a series is missing.
        """
        values: dict[str, list[str]] = {name: [] for name in self.series}
        for period in dict.fromkeys(period for _, period in self.series.values()):
            for part in ("Train", "Test"):
                self._collect(f"{url}/{part}/{period}-{part.lower()}.csv", period, values)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("id", "category", "period", "t", "value"))
        for name, (category, period) in self.series.items():
            writer.writerows((name, category, period, t, value) for t, value in enumerate(values[name]))
        return text.getvalue().encode()

    def _collect(self, url: str, period: str, values: dict[str, list[str]]) -> None:
        missing = {name for name, (_, own) in self.series.items() if own == period}
        for line in _lines(url):
            name = line.split(",", 1)[0].strip('"')
            if name in missing:
                cells = next(csv.reader([line]))[1:]
                values[name] += [cell for cell in cells if cell and cell != "NA"]
                missing.remove(name)
        if missing:
            raise DataError(f"{url}: expected the series {', '.join(sorted(missing))}.")


def _lines(url: str) -> Iterator[str]:
    """Yield a text's lines; the tables of the competition are too large to keep for a few rows."""
    rest = b""
    for piece in read_url(url):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode("ascii", errors="replace").rstrip("\r") for line in whole)
    if rest:
        yield rest.decode("ascii", errors="replace")
