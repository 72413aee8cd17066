"""The load client: sending, timing, metrics of servers."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import pytest
from aiohttp import web

from chunkbench.traffic import Arrivals, PlannedRequest, due_times
from chunkbench.traffic.load import LoadError, LoadOptions, ServerTarget, describe_server, send
from chunkbench.traffic.load.metrics import sum_of
from chunkbench.traffic.load.timing import at_due_times, punctual
from chunkbench.workloads.serving.servers.vllm import metrics_watch
from tests.traffic.load.scripted import Handler, chunk, measure, plan, raw, server, stream


@pytest.mark.serial
def test_times_and_counts_of_an_answer() -> None:
    before = time.perf_counter()
    measured = measure(stream(wait=0.05), plan(2, due=0.1))
    assert measured.started > before
    for number, request in enumerate(measured.requests):
        assert (request.status, request.reason) == ("ok", "")
        assert (request.prompt_tokens, request.asked_tokens, request.tokens, request.cached_tokens) == (4, 3, 3, 1)
        assert request.due == pytest.approx(0.1 * number)
        assert request.sent is not None
        assert request.first is not None
        assert request.last is not None
        assert request.due <= request.sent < request.due + 0.05
        assert request.first - request.sent >= 0.05
        assert request.last - request.first >= 0.1


@pytest.mark.serial
def test_an_open_loop_does_not_wait_for_answers() -> None:
    """Each answer takes 0.3 s, and ten are due within 0.1 s: a client that waited would need 3 s."""
    measured = measure(stream(wait=0.3), plan(10, due=0.01, tokens=1))
    assert all((request.sent or 9) - request.due < 0.1 for request in measured.requests)
    assert max(request.last or 9 for request in measured.requests) < 1


@pytest.mark.serial
def test_more_requests_at_once_than_aiohttp_allows_by_default() -> None:
    measured = measure(stream(wait=0.5), plan(130, tokens=1))
    assert all((request.first or 9) < 2 for request in measured.requests)
    assert {request.status for request in measured.requests} == {"ok"}


@pytest.mark.parametrize("clients", [None, 3])
def test_a_turn_waits_for_the_answer_before_it(clients: int | None) -> None:
    """Also if that answer fails. The answer takes 0.3 s, the others are not held up."""
    turns = [PlannedRequest(0, (0,), 3), PlannedRequest(0.1, (1,), 3, after=0), PlannedRequest(0.01, (2,), 3)]
    turns.append(PlannedRequest(0, (3,), 3, after=1))

    async def answer(request: web.Request) -> web.StreamResponse:
        number = (await request.json())["prompt"][0]
        return await stream(wait=0.1 if number == 0 else 0, fault="500" if number == 1 else "")(request)

    first, second, other, third = measure(answer, turns, LoadOptions(clients)).requests
    assert (first.status, second.status, other.status, third.status) == ("ok", "error", "ok", "ok")
    assert first.last is not None
    assert second.sent is not None
    assert second.due >= first.last + (0.1 if clients is None else 0)
    assert second.sent >= second.due - 1e-6
    assert other.due < 0.2
    assert third.due >= second.sent


def test_closed_loop_clients_take_turns() -> None:
    measured = measure(stream(wait=0.02), plan(6), LoadOptions(clients=2))
    dues = sorted(request.due for request in measured.requests)
    ends = sorted(request.last or 0 for request in measured.requests)
    assert dues[:2] == pytest.approx([0, 0], abs=0.05)
    assert all(due >= end for due, end in zip(dues[2:], ends, strict=False))


@pytest.mark.parametrize(
    ("handler", "status", "reason"),
    [
        (stream(fault="500"), "error", "status 500: broken inside"),
        (stream(fault="400"), "refused", "status 400: too long"),
        (stream(fault="cut"), "error", "ClientPayloadError"),
        (stream(fault="event"), "error", "broke later"),
        (stream(pieces=2), "wrong", "2 tokens generated, 3 asked for"),
        (stream(pieces=2, tell=False), "wrong", "2 tokens generated, 3 asked for"),
        (stream(pieces=0), "error", "the stream ended without a finish_reason"),
        (raw(chunk("", "stop", usage={"completion_tokens": 0})), "wrong", "the stream ended without a token"),
        (stream(prompt=5), "wrong", "the server counts 5 prompt tokens, 4 were sent"),
        (stream(wait=1), "timeout", "no whole answer within 0.5 s"),
    ],
)
def test_a_server_that_misbehaves(handler: Handler, status: str, reason: str) -> None:
    limit = 0.5 if status == "timeout" else 10.0  # a busy machine answers late
    (request,) = measure(handler, plan(1), LoadOptions(timeout_s=limit)).requests
    assert request.status == status
    assert reason in request.reason


@pytest.mark.serial
def test_requests_are_sent_when_they_are_due() -> None:
    """The bar is 2 ms at 50 requests/s; a test on a shared machine allows ten times as much."""
    dues = due_times(Arrivals(), 50.0, 50, 0)
    requests = measure(stream(), [PlannedRequest(due, (1,), 1) for due in dues]).requests
    delays = sorted((request.sent or 9) - request.due for request in requests)
    assert delays[0] >= 0
    assert delays[len(delays) // 2] < 0.02


@pytest.mark.parametrize("clients", [None, 2])
def test_requests_that_the_client_cuts_are_no_failures_of_the_server(clients: int | None) -> None:
    """One is answered, two run, and the others are not sent: they are not in the result."""
    told: list[tuple[str, str]] = []
    heard: list[list[int]] = []
    requests = [PlannedRequest(0.02 * number, (number,), 3) for number in range(3)]
    requests += [PlannedRequest(60.0, (number,), 3) for number in range(3, 9)]

    async def run() -> None:
        over = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            heard.append((await request.json())["prompt"])
            if heard[-1] == [0]:
                return await stream()(request)
            response = await raw(chunk("a"))(request)
            await over.wait()
            return response

        async with server(answer) as url:
            target = await describe_server(url)
            before = asyncio.all_tasks()
            sent = send(target, requests, LoadOptions(clients), lambda _, r, *__: told.append((r.status, r.reason)))
            sending = asyncio.create_task(sent)
            while len(heard) < 3 or not told:
                await asyncio.sleep(0.01)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            left = {task for task in asyncio.all_tasks() - before if "send" in repr(task) or "_ask" in repr(task)}
            over.set()
            assert not left

    asyncio.run(run())
    assert told == [("ok", ""), *[("cancelled", "the client was interrupted")] * 2]


def test_connections_may_take_more_files_than_the_soft_limit() -> None:
    """The server is in this process, too: 60 requests are 120 files. The limit is as before then."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 30
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    try:
        requests = measure(stream(wait=0.5), plan(60, tokens=1)).requests
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert {(request.status, request.reason) for request in requests} == {("ok", "")}


@pytest.mark.parametrize(
    ("clients", "number", "limit"),
    [
        (None, errno.EMFILE, r"it may not open more files, .* \(ulimit -Hn\)"),
        (2, errno.EMFILE, r"it may not open more files, .* \(ulimit -Hn\)"),
        (None, errno.ENFILE, r"the system may not open more files: raise fs\.file-max"),
        (2, errno.EADDRNOTAVAIL, r"it has no free port .* net\.ipv4\.ip_local_port_range"),
        (None, errno.ECONNREFUSED, ""),
        (2, errno.ECONNRESET, ""),
    ],
)
def test_a_limit_of_this_machine_is_no_failure_of_the_server(
    monkeypatch: pytest.MonkeyPatch, clients: int | None, number: int, limit: str
) -> None:
    """It ends the measurement with one message; what the server did fails its requests."""

    async def connect(self: object, request: aiohttp.ClientRequest, **_: object) -> None:
        raise aiohttp.ClientConnectorError(request.connection_key, OSError(number, os.strerror(number)))

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect)
    target = ServerTarget("http://127.0.0.1:9/v1", "m")
    if limit:
        with pytest.raises(LoadError, match=f"the client is at its limit, not the server: {limit}, or use fewer"):
            asyncio.run(send(target, plan(5), LoadOptions(clients)))
        with pytest.raises(LoadError, match="the client is at its limit, not the server"):
            asyncio.run(describe_server(target.url))
    else:
        requests = asyncio.run(send(target, plan(5), LoadOptions(clients))).requests
        assert [request.status for request in requests] == ["error"] * 5
        with pytest.raises(LoadError, match=r"nothing answers at 127\.0\.0\.1:9"):
            asyncio.run(describe_server(target.url))


def test_times_are_met_in_order_and_never_early() -> None:
    """The process is left as it was."""
    before = gc.isenabled(), sys.getswitchinterval()
    dues = [time.perf_counter() + wait for wait in (0.0, 0.05, 0.05, 0.1)]
    launched: list[tuple[int, float]] = []
    with punctual():
        assert not gc.isenabled()
        assert sys.getswitchinterval() < before[1]
        asyncio.run(at_due_times(dues, lambda number: launched.append((number, time.perf_counter()))))
    assert (gc.isenabled(), sys.getswitchinterval()) == before
    assert [number for number, _ in launched] == [0, 1, 2, 3]
    assert all(at >= due for (_, at), due in zip(launched, dues, strict=True))


def test_the_waiting_thread_ends_when_the_measurement_is_cancelled() -> None:
    async def run() -> None:
        task = asyncio.create_task(at_due_times([time.perf_counter() + 60], lambda number: None))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    started = time.perf_counter()
    asyncio.run(run())
    assert time.perf_counter() - started < 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("# TYPE m counter\nm 1\n", 1),
        ('m{a="1"} 30.0\nm{a="2"} 12\n', 42),
        ('m{a="x}y"} 2\n', 2),
        ('m{a="x\\"} 9\\\\"} 2\n', 2),
        ('m{a="b # c",} 2\n', 2),
        ("m 3 1700000000000\n", 3),
        ('m 1\r\nm\t{a="b"}  2\r\n', 3),
        ("m 1e3\n", 1000),
        ("other 1\nbroken {\n# m 3\nm 2\nmore 5\nm_total 7\n", 2),
        ("m_total 7\n", None),
        ("", None),
        ("m NaN\nm 1\n", None),
        ("m\n", None),
        ('m{a="b} 1\n', None),
        ('m{ ="b"} 1\n', None),
        (f"m 1{'0' * 400}\n", None),
    ],
)
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


def watched(*answers: bytes, samples: int) -> list[tuple[int | None, int | None]]:
    """The first samples of a watch of a server with these answers."""
    pages, start = Pages(*answers), time.perf_counter()
    watch = metrics_watch(pages.url, 100)
    try:
        watch.begin()
        while len(watch._moments) < samples and time.perf_counter() < start + 10:
            time.sleep(0.01)
        return [(moment.batch, moment.kv_bytes) for moment in watch.between(start, time.perf_counter())[:samples]]
    finally:
        watch.close()
        pages.close()


def test_a_watch_asks_no_proxy_and_goes_on_behind_a_page_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    ok = b"HTTP/1.0 200 OK\r\n"
    bad = [b"no HTTP\r\n\r\n", ok + b"Content-Length: 99\r\n\r\nshort", ok + b"\r\n\xff\xfe"]
    assert watched(*bad, page("NaN"), page("0.25"), samples=2) == [(3, None), (3, 25)]
