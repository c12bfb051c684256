"""Where data come from: folders, cache, downloads that are whole and right or not there at all."""

import io
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from smle.errors import DataError
from studies.experiments import data
from studies.experiments.classification import read_arff
from studies.experiments.forecasting import read_series

ARFF = b"""@relation 'Small: -C -2'
@attribute size numeric
@attribute color {red, green, blue}
@attribute first {0,1}
@attribute second {0,1}
@data
1.5,green,0,1
-2,blue,1,0
% a remark
0,red,1,1
"""


@contextmanager
def server(files, *, truncated=()):
    """Serve bytes by path on this machine; truncated ones promise more than they send."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path in truncated else content)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()
            thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("SMLE_DATA", raising=False)
    monkeypatch.setattr(data, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_", "."), content)
    return buffer.getvalue()


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.arff"
    path.write_bytes(ARFF)
    return replace(data.SOURCES["Flags"], path="classification/small.arff", digest=data.table_digest(path))


def test_arff_one_hot_drops_the_first_level(tmp_path):
    path = tmp_path / "small.arff"
    path.write_bytes(ARFF)
    table = read_arff(path)
    assert table.X.tolist() == [[1.5, 1, 0], [-2, 0, 1], [0, 0, 0]]
    assert table.y.tolist() == [[0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"-C -2", b""),
        (b"0,red,1,1", b"0,red,1"),
        (b"0,red,1,1", b"0,?,1,1"),
        (b"0,red,1,1", b"0,pink,1,1"),
        (b"0,red,1,1", b"0,red,1,2"),
        (b"size numeric", b"size date"),
    ],
)
def test_arff_refuses_what_it_does_not_understand(tmp_path, old, new):
    path = tmp_path / "bad.arff"
    path.write_bytes(ARFF.replace(old, new))
    with pytest.raises(DataError):
        read_arff(path)


def test_labels_come_first_with_a_positive_count(tmp_path):
    path = tmp_path / "first.arff"
    path.write_text("@relation 'a: -C 1'\n@attribute l {0,1}\n@attribute x numeric\n@data\n1,2.5\n0,3\n")
    table = read_arff(path)
    assert (table.y.tolist(), table.X.tolist()) == ([[1], [0]], [[2.5], [3]])


def test_download_unpacks_checks_and_keeps(cache, small):
    with server({"/small.zip": zipped(small_arff=ARFF)}) as base:
        path = data.locate(small, urls=(f"{base}/small.zip",))
    assert path == cache / "classification" / "small.arff"
    assert path.read_bytes() == ARFF
    assert data.locate(small, urls=()) == path  # no second download
    assert [item.name for item in path.parent.iterdir()] == ["small.arff"]


def test_second_source_serves_if_the_first_does_not(cache, small):
    with server({"/small.arff": ARFF}) as base:
        path = data.locate(small, urls=(f"{base}/gone.zip", f"{base}/small.arff"))
    assert path.read_bytes() == ARFF


@pytest.mark.parametrize(
    ("files", "truncated", "reason"),
    [
        ({}, (), "404"),
        ({"/small.zip": zipped(small_arff=ARFF)}, ("/small.zip",), "ended after|IncompleteRead"),
        ({"/small.zip": zipped(small_arff=ARFF.replace(b"1.5", b"1.25"))}, (), "SHA-256"),
        ({"/small.zip": zipped(readme_txt=b"nothing")}, (), "one ARFF file"),
        ({"/small.zip": b"no archive"}, (), "zip"),
    ],
)
def test_failed_downloads_leave_nothing_and_say_what_to_do(cache, small, files, truncated, reason):
    with server(files, truncated=truncated) as base, pytest.raises(DataError, match=reason) as caught:
        data.locate(small, urls=(f"{base}/small.zip",))
    assert "--data-dir" in str(caught.value)
    assert "classification/small.arff" in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_only_web_addresses_are_read(cache, small, tmp_path):
    (tmp_path / "small.arff").write_bytes(ARFF)
    with pytest.raises(DataError, match="http"):
        data.locate(small, urls=((tmp_path / "small.arff").as_uri(),))


def test_m4_series_are_selected_and_joined(tmp_path):
    files = {
        "/Train/Hourly-train.csv": b'"V1","V2","V3","V4"\n"H2",9,9,9\n"H1",1.5,2,NA\n',
        "/Test/Hourly-test.csv": b'"V1","V2"\n"H1",3\n"H2",9\n',
        "/Train/Daily-train.csv": b"V1,V2,V3\r\nD7,4,\r\nD8,9,9",
        "/Test/Daily-test.csv": b"V1,V2\nD7,5.25",
    }
    path = tmp_path / "table.csv"
    with server(files) as base:
        path.write_bytes(data.fetch_series(base, ("H1", "D7")))
        with pytest.raises(DataError, match="D9"):
            data.fetch_series(base, ("D9",))
    found = {name: values.tolist() for name, values in read_series(path).items()}
    assert found == {"H1": [1.5, 2, 3], "D7": [4, 5.25]}


def test_a_named_folder_must_hold_the_right_file(tmp_path, small, monkeypatch):
    with pytest.raises(DataError, match="--data-dir"):
        data.locate(small, str(tmp_path))
    folder = tmp_path / "classification"
    folder.mkdir()
    (folder / "small.arff").write_bytes(ARFF)
    assert data.locate(small, str(tmp_path)) == folder / "small.arff"
    monkeypatch.setenv("SMLE_DATA", str(tmp_path))
    assert data.locate(small) == folder / "small.arff"
    other = tmp_path / "other" / "classification"
    other.mkdir(parents=True)
    (other / "small.arff").write_bytes(ARFF.replace(b"1.5", b"1.25"))
    with pytest.raises(DataError, match="SHA-256"):
        data.locate(small, str(tmp_path / "other"))


def test_sources_are_addresses_with_digests():
    for source in data.SOURCES.values():
        assert len(source.digest) == 64
        assert int(source.digest, 16) >= 0
        assert all(url.startswith("http") for url in source.urls)
    assert len({source.digest for source in data.SOURCES.values()}) == len(data.SOURCES)
