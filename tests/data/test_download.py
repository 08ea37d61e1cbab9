"""`get` against a server of our own on this machine; nothing leaves it."""

import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rrcluster.data.catalogue import SOURCES, Source, SourceFile
from rrcluster.data.sources import check, get
from rrcluster.errors import DataError

CONTENT = b"four small words here" * 100
PUBLISHED = gzip.compress(CONTENT, mtime=0)
FILE = SourceFile(
    name="words-idx1-ubyte",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    bytes=len(CONTENT),
    download_sha256=hashlib.sha256(PUBLISHED).hexdigest(),
    download_bytes=len(PUBLISHED),
)
PAGES = {"/good/words-idx1-ubyte.gz": PUBLISHED, "/bad/words-idx1-ubyte.gz": PUBLISHED[:-1] + b"?"}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        page = PAGES.get(self.path)
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Length", str(len(page or b"")))
        self.end_headers()
        self.wfile.write(page or b"")

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def publish(server, monkeypatch, tmp_path):
    """Make a dataset `words`, published in these folders of the server, the only known one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RRCLUSTER_DATA", raising=False)

    def with_hosts(*hosts):
        urls = tuple(f"http://127.0.0.1:{server.server_port}/{host}/" for host in hosts)
        entry = Source("words", "Words", "for tests", "none", files=(FILE,), urls=urls)
        monkeypatch.setitem(SOURCES, "words", entry)

    return with_hosts


@pytest.mark.parametrize("progress", [False, True])
def test_gets_the_file_and_then_leaves_it_alone(publish, server, tmp_path, progress):
    publish("good")
    (row,) = get("words", tmp_path / "mine", progress=progress)
    assert row.sha256_ok
    assert row.path == tmp_path / "mine/words/words-idx1-ubyte.gz"
    assert row.path.read_bytes() == PUBLISHED
    assert get("words", tmp_path / "mine") == (row,)
    assert len(server.asked) == 1


def test_falls_back_to_the_next_host(publish, server, tmp_path):
    publish("missing", "bad", "good")
    (row,) = get("words", progress=True)
    assert row.path == tmp_path / "cache/rrcluster/words/words-idx1-ubyte.gz"
    assert row.sha256_ok
    assert [path.split("/")[1] for path in server.asked] == ["missing", "bad", "good"]
    assert check("words") == (row,)


def test_a_failure_names_every_host_and_leaves_nothing(publish, tmp_path):
    publish("missing", "bad")
    with pytest.raises(DataError) as error:
        get("words", tmp_path / "mine", progress=False)
    for part in ("/missing/", "404", "/bad/", "hash", "RRCLUSTER_DATA=folder"):
        assert part in str(error.value)
    assert "rrcluster data get" not in str(error.value)  # which has just failed
    assert list((tmp_path / "mine/words").iterdir()) == []


def test_a_damaged_file_is_replaced(publish, tmp_path):
    publish("good")
    (row,) = get("words", tmp_path, progress=False)
    row.path.write_bytes(PUBLISHED[:-5])
    assert not check("words", tmp_path)[0].sha256_ok
    assert get("words", tmp_path, progress=False) == (row,)
    assert row.path.read_bytes() == PUBLISHED


def test_a_folder_that_cannot_be_made(publish, tmp_path):
    publish("good")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot be created"):
        get("words", tmp_path / "file", progress=False)


def test_what_needs_no_download(server):
    assert [row.sha256_ok for row in get("fashion-mini")] == [True]
    assert get("synthetic") == ()
    assert server.asked == []
