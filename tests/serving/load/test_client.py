"""The load's client against real servers: ours, and ones that misbehave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from chunkbench.serving.load import LoadError, LoadOptions, Measured, describe_server, send
from chunkbench.traces import Arrivals, PlannedRequest, due_times

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def event(**fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def stream(
    pieces: int | None = None, prompt: int | None = None, wait: float = 0.0, tell: bool = True, fault: str = ""
) -> Handler:
    """A server's completions: `pieces` tokens (default: as asked for), `wait` seconds before each."""

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if fault == "500":
            return web.json_response({"error": {"message": "broken inside"}}, status=500)
        if fault == "400":
            return web.json_response({"error": {"message": "too long"}}, status=400)
        response = web.StreamResponse()
        await response.prepare(request)
        count = asked["max_tokens"] if pieces is None else pieces
        for _ in range(count):
            await asyncio.sleep(wait)
            await response.write(event(choices=[{"index": 0, "text": ""}]))
            if fault == "cut":
                assert request.transport is not None
                request.transport.close()
                return response
            if fault == "event":
                await response.write(event(error={"message": "broke later"}))
                return response
        counted = len(asked["prompt"]) if prompt is None else prompt
        if tell:
            usage = {"prompt_tokens": counted, "completion_tokens": count}
            await response.write(event(choices=[], usage={**usage, "prompt_tokens_details": {"cached_tokens": 1}}))
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


@asynccontextmanager
async def server(handler: Handler, models: object = None) -> AsyncIterator[str]:
    async def listed(_: web.Request) -> web.Response:
        return web.json_response(models or {"data": [{"id": "m", "max_model_len": 99}]})

    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    app.router.add_get("/v1/models", listed)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def measure(handler: Handler, plan: list[PlannedRequest], options: LoadOptions = LoadOptions()) -> Measured:  # noqa: B008
    async def run() -> Measured:
        async with server(handler) as url:
            return await send(await describe_server(url), plan, options)

    return asyncio.run(run())


def plan(count: int, due: float = 0.0, tokens: int = 3) -> list[PlannedRequest]:
    return [PlannedRequest(number * due, (1, 2, 3, 4), tokens) for number in range(count)]


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
        (stream(pieces=0), "wrong", "the stream ended without a token"),
        (stream(prompt=5), "wrong", "the server counts 5 prompt tokens, 4 were sent"),
        (stream(wait=1), "timeout", "no whole answer within 0.5 s"),
    ],
)
def test_a_server_that_misbehaves(handler: Handler, status: str, reason: str) -> None:
    limit = 0.5 if status == "timeout" else 10.0  # a busy machine answers late
    (request,) = measure(handler, plan(1), LoadOptions(timeout_s=limit)).requests
    assert request.status == status
    assert reason in request.reason


def test_nobody_listens() -> None:
    with pytest.raises(LoadError, match="no server of OpenAI's protocol answers"):
        asyncio.run(describe_server("http://127.0.0.1:9"))


def test_the_model_of_a_server() -> None:
    async def ask(models: object, model: str | None, suffix: str = "") -> str:
        async with server(stream(), models) as url:
            return (await describe_server(url + suffix, model)).model

    two = {"data": [{"id": "a"}, {"id": "b"}]}
    assert asyncio.run(ask(None, None, "/v1/")) == "m"
    assert asyncio.run(ask(two, "b")) == "b"
    with pytest.raises(LoadError, match="serves a, b; name one"):
        asyncio.run(ask(two, None))
    with pytest.raises(LoadError, match="serves a, b, not c"):
        asyncio.run(ask(two, "c"))
    with pytest.raises(LoadError, match="no server of OpenAI's protocol answers"):
        asyncio.run(ask([1], None))


@pytest.mark.serial
def test_requests_are_sent_when_they_are_due() -> None:
    """The bar is 2 ms at 50 requests/s; a test on a shared machine allows ten times as much."""
    dues = due_times(Arrivals(), 50.0, 50, 0)
    requests = measure(stream(), [PlannedRequest(due, (1,), 1) for due in dues]).requests
    delays = sorted((request.sent or 9) - request.due for request in requests)
    assert delays[0] >= 0
    assert delays[len(delays) // 2] < 0.02
