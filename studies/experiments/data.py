"""Where the benchmarks' data come from: a given folder, the folder SMLE_DATA, the user's cache, or a download.

Folders are laid out alike: `forecasting/m4_selected.csv` and `classification/*.arff`. The synthetic benchmark is drawn
from its seeds and needs no files. Whatever the source, the numbers must have the stated SHA-256 digest.
"""

from __future__ import annotations

import csv
import hashlib
import http.client
import io
import os
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from smle.errors import DataError
from smle.files import replacing
from studies.experiments.classification import DATA_SETS, LabelTable, read_arff
from studies.experiments.forecasting import FILE, SERIES, read_series
from studies.experiments.tasks import Array

_M4 = "https://raw.githubusercontent.com/Mcompetitions/M4-methods/master/Dataset"
_UCO = "http://www.uco.es/grupos/kdis/MLLResources/ucobigfiles/Datasets/Full"
_PAPER = "https://raw.githubusercontent.com/Francobaldi/SMLE_AAAI2025/main/benchmarks/classification/data"


# --- downloads

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


def fetch_arff(url: str) -> bytes:
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


# --- sources


@dataclass(frozen=True)
class Source:
    """A data file: its place below a data folder, where it is downloaded from, what it is, and its numbers' digest.

    `fetch(url)` returns the file's bytes; the first of `urls` that works is taken. `digest_of(path)` reads the file.
    """

    path: str
    urls: tuple[str, ...]
    fetch: Callable[[str], bytes]
    digest_of: Callable[[Path], str]
    digest: str
    what: str

    def check(self, path: Path) -> None:
        """Require that a file holds the numbers that the paper used.

        Raises:
            DataError: If it does not.
        """
        found = self.digest_of(path)
        if found != self.digest:
            raise DataError(
                f"This is not the {self.what} as the paper used it: expected the SHA-256 digest {self.digest[:12]}..., "
                f"got {found[:12]}..."
            )


def series_digest(path: Path) -> str:
    """Return the SHA-256 digest of the benchmark's series in a file, by name; other series do not count."""
    digest, values = hashlib.sha256(), read_series(path)
    for name in sorted(set(SERIES) & set(values)):
        digest.update(f"{name} {len(values[name])}\n".encode())
        digest.update(np.ascontiguousarray(values[name], dtype="<f8").tobytes())
    return digest.hexdigest()


def table_digest(path: Path) -> str:
    """Return the SHA-256 digest of features and labels in a file; how it spells them does not count."""
    digest, table = hashlib.sha256(), read_arff(path)
    for part in (table.X, table.y):
        digest.update(f"{part.shape}\n".encode())
        digest.update(np.ascontiguousarray(part, dtype="<f8").tobytes())
    return digest.hexdigest()


def _label_source(name: str, archive: str, digest: str) -> Source:
    file = DATA_SETS[name]
    urls = (f"{_UCO}/{archive}_Meka.zip", f"{_PAPER}/{file}")
    what = f"data set {name} of the multi-label repository of the University of Cordoba"
    return Source(f"classification/{file}", urls, fetch_arff, table_digest, digest, what)


SOURCES: dict[str, Source] = {
    "series": Source(
        f"forecasting/{FILE}",
        (_M4,),
        M4(SERIES),
        series_digest,
        "377e0f0eb82b4f18c9e9d65b3e39d193d716841f8c7b52bce31ce3a4c774f349",
        "25 series of the M4 competition",
    ),
    "CHD-49": _label_source("CHD-49", "CHD_49", "76250192ee22220f78d520253131bc6fd9f6e83c78ce326b0bdeaaa3d9b2c539"),
    "Flags": _label_source("Flags", "Flags", "21c77829d92d62db89005456a9ba8180444b71f3f6d745d8c8b78f5c336324c6"),
    "Foodtruck": _label_source(
        "Foodtruck", "Foodtruck", "27c54abeaddb3126478445e79c6859d128b04b7d1fa50d87e910eb389f0862ec"
    ),
    "Water-quality": _label_source(
        "Water-quality", "Water-quality", "e05432187086cd460bf1a1733eb68a117a55fa7c6076825c6d3d6c744280b371"
    ),
    "Yeast": _label_source("Yeast", "Yeast", "f55f97d853fe937cec946e703d2b77914ec31ab6b70522d4aa0d7893485546ff"),
}
"""All data files by name."""


def series(given: str | None = None) -> Mapping[str, Array]:
    """Return the series of the forecasting benchmark.

    Raises:
        DataError: If they are nowhere to be found, or are not the paper's.
    """
    return read_series(locate(SOURCES["series"], given))


def label_table(name: str, given: str | None = None) -> LabelTable:
    """Return a data set of the classification benchmark.

    Raises:
        DataError: If it is nowhere to be found, or is not the paper's.
    """
    return read_arff(locate(SOURCES[name], given))


def prepare(benchmarks: Sequence[str], given: str | None = None) -> None:
    """Make sure that all data of some benchmarks are there, before work is spread over processes.

    Raises:
        DataError: If something is missing; the message says what, and how to provide it.
    """
    for name, source in SOURCES.items():
        if ("forecasting" if name == "series" else "classification") in benchmarks:
            locate(source, given)


# --- finding


def locate(source: Source, given: str | None = None, *, urls: tuple[str, ...] | None = None) -> Path:
    """Return the path of a data file, downloading it to the cache if no folder is named.

    Args:
        source: The file.
        given: A data folder. None: SMLE_DATA if it is set, else the cache.
        urls: Where to download from instead of the source's own places.

    Raises:
        DataError: If it is not in the named folder, or cannot be downloaded.
    """
    named = given or os.environ.get("SMLE_DATA")
    if named:
        path = Path(named) / source.path
        if not path.is_file():
            raise DataError(
                f"Expected the {source.what} as '{path}'. Put it there, or name another folder with --data-dir or "
                "SMLE_DATA; without either it is downloaded."
            )
        _check_named(source, path)
        return path
    path = cache_folder() / source.path
    if not path.is_file():
        _download(source, path, source.urls if urls is None else urls)
    return path


@lru_cache(maxsize=32)
def _check_named(source: Source, path: Path) -> None:
    try:
        source.check(path)
    except DataError as error:
        raise DataError(f"'{path}': {error} Name another folder with --data-dir or SMLE_DATA.") from None


def cache_folder() -> Path:
    """Return the folder for downloads below the user's cache, where the platform has it."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base) / "smle" / "Cache" if base else Path.home() / "AppData" / "Local" / "smle" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "smle"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "smle"


def _download(source: Source, path: Path, urls: tuple[str, ...]) -> None:
    failures = []
    for url in urls:
        try:
            with replacing(path) as (fresh,):  # a reader, or a second writer, never sees half of it or a wrong one
                fresh.write_bytes(source.fetch(url))
                source.check(fresh)
            return
        except DataError as error:
            failures.append(f"{url}: {error}")
    raise DataError(
        f"The {source.what} could not be downloaded. {' '.join(failures)} Get the file in another way, put it in a "
        f"folder as '{source.path}', and name that folder with --data-dir or SMLE_DATA."
    )


# --- small generated data that stand in for the real ones, so that everything can be tried without any download

STANDIN_SERIES = ("S1", "S2")

_LENGTH, _ROWS, _FEATURES, _LABELS = 400, 240, 10, 6


def standin_series() -> Mapping[str, Array]:
    """Return random walks with a season of 24 steps."""
    state = np.random.RandomState(0)
    time = np.arange(_LENGTH)
    walks = {name: np.cumsum(state.normal(0, 0.3, _LENGTH)) for name in STANDIN_SERIES}
    return {name: 100 + walk + 5 * np.sin(2 * np.pi * time / 24) for name, walk in walks.items()}


def standin_table() -> LabelTable:
    """Return labels drawn from a random linear model of random features."""
    state = np.random.RandomState(0)
    X = state.normal(size=(_ROWS, _FEATURES))
    logits = X @ state.normal(size=(_FEATURES, _LABELS)) + state.normal(-1.0, 0.5, _LABELS)
    y = (state.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    return LabelTable(X, y)
