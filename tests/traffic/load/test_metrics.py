"""Pages of metrics: what is read of them, and the watch that asks a server for them."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chunkbench.traffic.load.prometheus import sum_of
from chunkbench.workloads.serving.servers.vllm import MetricsWatch

PAGES = [
    ("m 1\n", 1),
    ("m 1", 1),
    ("# TYPE m counter\nm 1\n", 1),
    ('m{a="1"} 30.0\nm{a="2"} 12\n', 42),
    ('m{a="x}y"} 2\n', 2),
    ('m{a="x\\"} 9\\\\"} 2\n', 2),
    ('m{a="b # c",} 2\n', 2),
    ("m 3 1700000000000\n", 3),
    ('m{a="b"} 3 1700000000000\n', 3),
    ('m 1\r\nm{a="b"} 2\r\n', 3),
    ('m\t1\nm{a="b"}\t2\n', 3),
    ('m  1\nm{a="b"}  2\n', 3),
    ('m {a="b"} 4\n', 4),
    ("m 1e3\n", 1000),
    ("m 0\n", 0),
    ("other 1\nbroken {\n# m 3\nm 2\nmore 5\nm_total 7\n", 2),
    ("m_total 7\n", None),
    ("", None),
    ("m NaN\nm 1\n", None),
    ("m +Inf\n", None),
    ("m many\n", None),
    ("m\n", None),
    ('m{a="b} 1\n', None),
    ('m{ ="b"} 1\n', None),
    (f"m 1{'0' * 400}\n", None),
]


@pytest.mark.parametrize(("page", "expected"), PAGES)
def test_the_sum_of_a_metric(page: str, expected: float | None) -> None:
    assert sum_of(page, "m") == expected


class Pages:
    """A server that sends one answer after the other, the last one again and again."""

    def __init__(self, *answers: bytes) -> None:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.wfile.write(left.pop(0) if len(left) > 1 else left[0])

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def page(usage: str) -> bytes:
    text = f"vllm:num_requests_running 3\nvllm:kv_cache_usage_perc {usage}\n"
    return b"HTTP/1.0 200 OK\r\n\r\n" + text.encode()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkbench.workloads.serving.servers.vllm.SAMPLE_S", 0.01)


def watched(*answers: bytes, samples: int) -> list[tuple[int | None, int | None]]:
    """The first samples of a watch of a server with these answers."""
    pages, start = Pages(*answers), time.perf_counter()
    watch = MetricsWatch(pages.url, 100)
    try:
        watch.begin()
        while len(watch._moments) < samples and time.perf_counter() < start + 10:
            time.sleep(0.01)
        return [(moment.batch, moment.kv_bytes) for moment in watch.between(start, time.perf_counter())[:samples]]
    finally:
        watch.close()
        pages.close()


def test_the_watch_asks_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert watched(page("0.5"), samples=2) == [(3, 50), (3, 50)]


def test_a_page_that_cannot_be_read_does_not_end_the_watch() -> None:
    ok = b"HTTP/1.0 200 OK\r\n"
    bad = [b"no HTTP\r\n\r\n", ok + b"Content-Length: 99\r\n\r\nshort", ok + b"\r\n\xff\xfe"]
    assert watched(*bad, page("NaN"), page("0.25"), samples=2) == [(3, None), (3, 25)]
