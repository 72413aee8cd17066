"""Servers that answer as a test says, and what the client makes of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from chunkbench.traffic import PlannedRequest
from chunkbench.traffic.load import LoadOptions, LoadResult, describe_server, send

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
        for number in range(count):
            await asyncio.sleep(wait)
            await response.write(event(**chunk(finish="length" if number == count - 1 else None)))
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


def in_turn(answers: Iterable[Handler]) -> Handler:
    """One answer after the other."""
    left = iter(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await next(left)(request)

    return answer


@asynccontextmanager
async def server(handler: Handler, models: object = None, metrics: str | None = None) -> AsyncIterator[str]:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=metrics) if metrics is not None else web.Response(status=404)

    async def listed(_: web.Request) -> web.Response:
        if isinstance(models, bytes):
            return web.Response(body=models)
        return web.json_response(models or {"data": [{"id": "m", "max_model_len": 99}]})

    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_get("/v1/models", listed)
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def server_in_a_thread(handler: Handler, models: object) -> Iterator[str]:
    """The same for a client that blocks, or is another process."""
    loop, started, ended = asyncio.new_event_loop(), Future[str](), asyncio.Event()

    async def serve() -> None:
        async with server(handler, models) as url:
            started.set_result(url)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        yield started.result(30)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def measure(handler: Handler, plan: list[PlannedRequest], options: LoadOptions = LoadOptions()) -> LoadResult:  # noqa: B008
    async def run() -> LoadResult:
        async with server(handler) as url:
            return await send(await describe_server(url), plan, options)

    return asyncio.run(run())


def plan(count: int, due: float = 0.0, tokens: int = 3) -> list[PlannedRequest]:
    return [PlannedRequest(number * due, (1, 2, 3, 4), tokens) for number in range(count)]


def chunk(text: str = "", finish: str | None = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], **fields}


def raw(*parts: bytes | float | dict[str, object]) -> Handler:
    """Completions of these bytes and events; a number is a pause in seconds."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                await response.write(event(**part) if isinstance(part, dict) else part)
        return response

    return answer


TOKENS = [chunk(text) for text in "abcd"]
