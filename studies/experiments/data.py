"""Where the benchmarks' data come from: a given folder, the folder SMLE_DATA, the user's cache, or a download.

Folders are laid out alike: `forecasting/m4_selected.csv` and `classification/*.arff`. The synthetic benchmark is drawn
from its seeds and needs no files. Whatever the source, the numbers must have the stated SHA-256 digest.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from smle.errors import DataError
from smle.files import replacing
from studies.experiments.classification import DATA_SETS, LabelTable, read_arff
from studies.experiments.forecasting import FILE, PERIODS, SERIES, read_series
from studies.harness import Array

_M4 = "https://raw.githubusercontent.com/Mcompetitions/M4-methods/master/Dataset"
_UCO = "http://www.uco.es/grupos/kdis/MLLResources/ucobigfiles/Datasets/Full"
_PAPER = "https://raw.githubusercontent.com/Francobaldi/SMLE_AAAI2025/main/benchmarks/classification/data"


# --- downloads


def read_url(url: str) -> bytes:
    """Return a file's bytes.

    Raises:
        DataError: If the address is not on the web, cannot be read, or ends early.
    """
    if not url.startswith(("http://", "https://")):
        raise DataError(f"expected an address that starts with http:// or https://. Got {url}.")
    request = urllib.request.Request(url, headers={"User-Agent": "smle"})  # noqa: S310 (the scheme was checked)
    try:
        with urllib.request.urlopen(request, timeout=60.0) as answer:  # noqa: S310
            content: bytes = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{error}.") from None
    return content


def fetch_arff(url: str) -> bytes:
    """Return an ARFF file, unpacked if the address is that of a zip archive.

    Raises:
        DataError: If it cannot be read, or the archive holds no ARFF file.
    """
    content = read_url(url)
    if not url.endswith(".zip"):
        return content
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            (name,) = (name for name in archive.namelist() if name.lower().endswith(".arff"))
            return archive.read(name)
    except (ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"expected an archive with one ARFF file. {error}.") from None


def fetch_series(url: str, names: Sequence[str] = SERIES) -> bytes:
    """Return a table id, t, value of series of the M4 competition: the training part of each and then its test part.

    The competition has a table `Train/<period>-train.csv` and a table `Test/<period>-test.csv` per period, a series in
    each row.

    Raises:
        DataError: If a table cannot be read or a series is missing.
    """
    values: dict[str, list[str]] = {name: [] for name in names}
    for period in dict.fromkeys(PERIODS[name[0]] for name in names):
        for part in ("Train", "Test"):
            text = read_url(f"{url}/{part}/{period}-{part.lower()}.csv").decode("ascii", errors="replace")
            for line in text.replace('"', "").splitlines():
                name, *cells = line.split(",")
                if name in values:
                    values[name] += [cell for cell in cells if cell not in ("", "NA")]
    if missing := [name for name in names if not values[name]]:
        raise DataError(f"expected the series {', '.join(missing)}.")
    lines = [f"{name},{t},{value}\n" for name in names for t, value in enumerate(values[name])]
    return "".join(["id,t,value\n", *lines]).encode()


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


def series_digest(path: Path) -> str:
    """Return the SHA-256 digest of the benchmark's series in a file, by name; other series do not count."""
    values = read_series(path)
    return _digest((f"{name} {len(values[name])}", values[name]) for name in sorted(set(SERIES) & set(values)))


def table_digest(path: Path) -> str:
    """Return the SHA-256 digest of features and labels in a file; how it spells them does not count."""
    table = read_arff(path)
    return _digest((str(part.shape), part) for part in (table.X, table.y))


def _digest(parts: Iterable[tuple[str, Array]]) -> str:
    digest = hashlib.sha256()
    for words, numbers in parts:
        digest.update(f"{words}\n".encode())
        digest.update(np.ascontiguousarray(numbers, dtype="<f8").tobytes())
    return digest.hexdigest()


_DIGESTS = {
    "CHD-49": "76250192ee22220f78d520253131bc6fd9f6e83c78ce326b0bdeaaa3d9b2c539",
    "Flags": "21c77829d92d62db89005456a9ba8180444b71f3f6d745d8c8b78f5c336324c6",
    "Foodtruck": "27c54abeaddb3126478445e79c6859d128b04b7d1fa50d87e910eb389f0862ec",
    "Water-quality": "e05432187086cd460bf1a1733eb68a117a55fa7c6076825c6d3d6c744280b371",
    "Yeast": "f55f97d853fe937cec946e703d2b77914ec31ab6b70522d4aa0d7893485546ff",
}
SOURCES: dict[str, Source] = {
    "series": Source(
        f"forecasting/{FILE}",
        (_M4,),
        fetch_series,
        series_digest,
        "377e0f0eb82b4f18c9e9d65b3e39d193d716841f8c7b52bce31ce3a4c774f349",
        "25 series of the M4 competition",
    )
} | {
    name: Source(
        f"classification/{file}",
        (f"{_UCO}/{name.replace('CHD-', 'CHD_')}_Meka.zip", f"{_PAPER}/{file}"),
        fetch_arff,
        table_digest,
        _DIGESTS[name],
        f"data set {name} of the multi-label repository of the University of Cordoba",
    )
    for name, file in DATA_SETS.items()
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
    """Return the path of a data file: in the folder that is given, else in SMLE_DATA if it is set, else in the cache.

    It is downloaded to the cache, from `urls` instead of the source's own places if there are any.

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
        _check(source, path)
        return path
    path = cache_folder() / source.path
    if not path.is_file():
        _download(source, path, source.urls if urls is None else urls)
    return path


@lru_cache(maxsize=32)
def _check(source: Source, path: Path) -> None:
    found = source.digest_of(path)
    if found != source.digest:
        raise DataError(
            f"'{path}' is not the {source.what} as the paper used it: expected the SHA-256 digest "
            f"{source.digest[:12]}..., got {found[:12]}.... Name another folder with --data-dir or SMLE_DATA."
        )


def cache_folder() -> Path:
    """Return the folder for downloads below the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "smle"


def _download(source: Source, path: Path, urls: tuple[str, ...]) -> None:
    failures = []
    for url in urls:
        try:
            with replacing(path) as (fresh,):  # a reader, or a second writer, never sees half of it or a wrong one
                fresh.write_bytes(source.fetch(url))
                _check(source, fresh)
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
