"""The load's client against real servers: ours, and ones that misbehave."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from chunkbench.serving.load import (
    LoadError,
    LoadOptions,
    LoadResult,
    ServerTarget,
    cached_so_far,
    describe_server,
    send,
)
from chunkbench.serving.load.answer import Tokens
from chunkbench.traces import Arrivals, Chat, PlannedRequest, due_times

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
        if isinstance(models, bytes):
            return web.Response(body=models)
        return web.json_response(models or {"data": [{"id": "m", "max_model_len": 99}]})

    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_get("/v1/models", listed)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def measure(handler: Handler, plan: list[PlannedRequest], options: LoadOptions = LoadOptions()) -> LoadResult:  # noqa: B008
    async def run() -> LoadResult:
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
    assert asyncio.run(ask({"data": [{"id": "a"}, {"id": "a"}]}, None)) == "a"
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


@pytest.mark.parametrize("charset", ["hex", "x-unknown", "idna"])
def test_the_charset_of_an_error_is_not_believed(charset: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        headers = {"Content-Type": f"text/plain; charset={charset}"}
        return web.Response(status=500, body=b"broken \xff\x1b[31m", headers=headers)

    (request,) = measure(answer, plan(1)).requests
    assert (request.status, request.reason) == ("error", "status 500: broken \ufffd?[31m")


def test_a_redirect_to_what_cannot_be_printed() -> None:
    """Halves of surrogate pairs, which a line of --out cannot hold, and escape sequences."""

    async def run() -> LoadResult:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nLocation: \xe9\x1b[31m\r\n\r\n")
            writer.close()

        listener = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener:
            return await send(ServerTarget(f"http://127.0.0.1:{port}/v1", "m"), plan(1), LoadOptions())

    (request,) = asyncio.run(run()).requests
    assert request.status == "error"
    assert request.reason.isprintable()
    request.model_dump_json()


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_an_end(status: int) -> None:
    """It ends long before the limit of time, and the other request is answered."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if (await request.json())["prompt"][0] == 1:
            return await stream()(request)
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:
            await response.write(b"data: " + b"x" * 100_000)

    requests = [PlannedRequest(0, (number, 2), 3) for number in range(2)]
    endless, honest = measure(answer, requests, LoadOptions(timeout_s=60)).requests
    assert (endless.status, "the answer has no end" in endless.reason) == ("error", True)
    assert (honest.status, honest.tokens) == ("ok", 3)


def chunk(text: str = "", **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text}], **fields}


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


@pytest.mark.parametrize("usage", [[], [{"choices": [], "usage": {"completion_tokens": 4}}]])
@pytest.mark.serial
def test_chunks_without_text_are_no_tokens(usage: list[dict[str, object]]) -> None:
    """An empty chunk at once, four tokens after 0.3 s, an empty end after 0.6 s."""
    (request,) = measure(raw(chunk(), 0.3, *TOKENS, 0.3, chunk(finish_reason="length"), *usage), plan(1, 0, 4)).requests
    assert (request.status, request.tokens) == ("ok", 4)
    assert request.sent is not None
    assert request.first is not None
    assert request.last is not None
    assert 0.3 <= request.first - request.sent < 0.5
    assert 0.3 <= request.last - request.sent < 0.5


def test_token_ids_are_tokens_without_text() -> None:
    """A token may be a part of a character."""
    part = {"choices": [{"index": 0, "text": "", "token_ids": [7]}]}
    (request,) = measure(raw(chunk(), part, chunk("a"), chunk()), plan(1, 0, 2)).requests
    assert (request.status, request.tokens) == ("ok", 2)


def test_event_streams_of_other_servers() -> None:
    contents = (
        b'\xef\xbb\xbf: hello\r\rdata: {"choices":\rdata: [{"text": "a"}]}\r\rdata: [DONE]\r\r',
        b'data: {"choices": [{"text":\ndata: "a"}]}\n\nevent: end\ndata: [DONE]\n\n',
        b'data:{"choices":[{"text":"a"}]}\r\n\r\ndata:\r\n\r\ndata:[DONE]\r\n\r\n',
    )
    answers = iter(
        [raw(*(content[i : i + size] for i in range(0, 99, size))) for content in contents for size in (3, 99)]
    )

    async def in_turn(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    for request in measure(in_turn, plan(6, 0, 1), LoadOptions(clients=1)).requests:
        assert (request.status, request.reason, request.tokens) == ("ok", "", 1)


MALFORMED: list[tuple[bytes | dict[str, object], str, str]] = [
    (chunk("a", usage={"completion_tokens": None, "prompt_tokens_details": None}), "ok", ""),
    (chunk("a", usage="x"), "error", "usage: Input should be a valid dictionary"),
    (chunk("a", usage=[]), "error", "usage: Input should be a valid dictionary"),
    (chunk("a", usage={"completion_tokens": "1"}), "error", "usage.completion_tokens: Input should be a valid int"),
    (chunk("a", usage={"completion_tokens": 1.5}), "error", "usage.completion_tokens: Input should be a valid int"),
    (chunk("a", usage={"completion_tokens": -1}), "error", "usage.completion_tokens: Input should be greater"),
    (chunk("a", usage={"completion_tokens": 10**30}), "error", "usage.completion_tokens: Input should be less"),
    (chunk("a", usage={"prompt_tokens_details": [1]}), "error", "usage.prompt_tokens_details: Input should be"),
    (
        chunk("a", usage={"prompt_tokens_details": {"cached_tokens": -1}}),
        "error",
        "usage.prompt_tokens_details.cached_tokens: Input should be greater than or equal to 0",
    ),
    (
        chunk("a", usage={"prompt_tokens_details": {"cached_tokens": 9}}),
        "wrong",
        "the server counts 9 cached tokens in a prompt of 4",
    ),
    ({"choices": "x"}, "error", "choices: Input should be a valid list"),
    ({"choices": [None]}, "error", "choices.0: Input should be a valid dictionary"),
    ({"choices": [{"text": 5}]}, "error", "choices.0.text: Input should be a valid string"),
    ({"error": {"message": "half \ud800 and \x1b[31m red\n"}}, "error", "half ? and ?[31m red"),
    ({"object": "error", "message": "out of memory", "code": 500}, "error", "out of memory"),
    ({"error": "generation failed", "error_type": "generation"}, "error", "generation failed"),
    (b'event: error\ndata: {"detail": [], "message": "overloaded"}\n\n', "error", "overloaded"),
    (b"data: 5\n\n", "error", "an event is no JSON object: 5"),
    (b"data: {\n\n", "error", "JSONDecodeError"),
    (b"data: " + b"[" * 100_000 + b"\n\n", "error", "RecursionError"),
    (b'{"choices": [{"text": "a"}]}', "error", 'no event came, but {"choices": [{"text": "a"}]}'),
    (b'{"detail": "log in"}', "error", "no event came, but log in"),
    (b": ping\n\n", "error", "no event came, but : ping"),
    (b"", "wrong", "the stream ended without a token"),
]


def test_a_malformed_answer_fails_its_request_alone() -> None:
    answers = iter([raw(part) for part, _, _ in MALFORMED] + [raw(chunk("a"))])

    async def in_turn(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    *ended, last = measure(in_turn, plan(len(MALFORMED) + 1, 0, 1), LoadOptions(clients=1)).requests
    for request, (part, status, reason) in zip(ended, MALFORMED, strict=True):
        assert request.status == status, part
        assert reason in request.reason
        request.model_dump_json()
    assert last.status == "ok"


def test_a_malformed_list_of_models_is_one_error() -> None:
    lists: list[object] = [{"data": {}}, {"data": [{}]}, {"data": [{"id": 5}]}, {"data": [[]]}, {"models": []}, "x"]
    lists += [b"{", b"[" * 100_000, b'{"data": [{"id": "\\ud800"}]}', {"data": [{"id": None}]}, b'{"data": null}']

    async def ask(models: object) -> None:
        async with server(stream(), models) as url:
            await describe_server(url)

    async def ask_all() -> None:
        for models in lists:
            with pytest.raises(LoadError, match="no server of OpenAI's protocol answers: its models: "):
                await ask(models)

    asyncio.run(ask_all())


def test_redirects() -> None:
    """Those that keep the body are followed; the others are named."""
    rows = [
        (307, "completions?moved=1", ""),
        (308, "/v1/completions?moved=1", ""),
        (302, "https://other/v1/completions", "status 302: redirected to https://other/v1/completions; give that addr"),
        (307, "completions", "status 307: redirected to completions; give that address"),
        (307, "http://[bad", "Invalid"),
        (307, "ftp://other/", "ftp://other/"),
    ]

    async def moved(request: web.Request) -> web.StreamResponse:
        if "moved" in request.query:
            return await stream()(request)
        code, location, _ = rows[(await request.json())["prompt"][0]]
        return web.Response(status=code, headers={"Location": location})

    numbered = [PlannedRequest(0, (number,), 3) for number in range(len(rows))]
    for request, (_, location, reason) in zip(measure(moved, numbered).requests, rows, strict=True):
        assert request.status == ("error" if reason else "ok"), location
        assert reason in request.reason


def test_the_key_is_sent_and_told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str | None] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        heard.append(request.headers.get("Authorization"))
        return await stream()(request)

    async def run() -> tuple[str, LoadResult]:
        async with server(elsewhere) as other:

            async def moved(request: web.Request) -> web.StreamResponse:
                heard.append(request.headers.get("Authorization"))
                return web.Response(status=307, headers={"Location": f"{other}/v1/completions"})

            async with server(moved) as url:
                target = await describe_server(url)
                return repr(target), await send(target, plan(1), LoadOptions())

    monkeypatch.setenv("OPENAI_API_KEY", " secret\n")
    told, measured = asyncio.run(run())
    assert heard == ["Bearer secret", None]
    assert "secret" not in told + str(measured)
    monkeypatch.setenv("OPENAI_API_KEY", "")
    asyncio.run(run())
    assert heard[2:] == [None, None]
    monkeypatch.setenv("OPENAI_API_KEY", "sec\nret")
    with pytest.raises(LoadError, match="OPENAI_API_KEY holds a line break"):
        asyncio.run(run())


def test_a_password_in_an_address_takes_the_place_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str | None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        heard.append(request.headers.get("Authorization"))
        return await stream()(request)

    async def run(models: object) -> None:
        async with server(answer, models) as url:
            target = await describe_server(url.replace("//", "//me:pass@"))
            (request,) = (await send(target, plan(1), LoadOptions())).requests
            assert request.status == "ok"

    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    asyncio.run(run(None))
    assert heard == ["Basic bWU6cGFzcw=="]
    with pytest.raises(LoadError) as caught:
        asyncio.run(run({"data": {}}))
    assert "pass" not in str(caught.value)


def test_forms_of_an_address() -> None:
    ends = ("", "/", "/v1", "/v1/", "/v1/completions", "/v1/chat/completions/", "/v1/models")

    async def ask() -> None:
        async with server(stream()) as url:
            for start, end in itertools.product((url, url.removeprefix("http://")), ends):
                assert (await describe_server(start + end)).url == f"{url}/v1"

    asyncio.run(ask())


@pytest.mark.parametrize("address", ["ftp://a", "http://", "", "http://a:99999", "file:///etc", "http://[::1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(LoadError, match=r"not the address of a server, such as http://127\.0\.0\.1:8000"):
        asyncio.run(describe_server(address))


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
            sent = send(target, requests, LoadOptions(clients), lambda r, *_: told.append((r.status, r.reason)))
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


def told(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(*texts: str, fail: str = "", usage: bool = True) -> tuple[Handler, list[dict[str, object]]]:
    """A server of chats that answers in two pieces behind a first event with the role alone, and what it was sent."""
    asked: list[dict[str, object]] = []
    answers = iter(texts)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked.append({"path": request.path, "at": time.perf_counter(), **body})
        if fail and body["messages"][-1]["content"] == fail:
            return web.json_response({"error": {"message": "no"}}, status=400)
        text = next(answers)
        said: list[dict[str, object]] = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}]
        said += [{"content": text[:1]}, {"content": text[1:]}]
        response = web.StreamResponse()
        await response.prepare(request)
        for delta in said:
            await response.write(event(choices=[{"index": 0, "delta": delta}]))
        if usage:
            await response.write(event(choices=[], usage={"prompt_tokens": 50, "completion_tokens": 4}))
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer, asked


@pytest.mark.parametrize("clients", [None, 1])
def test_a_conversation_goes_on_with_the_answers_of_the_server(clients: int | None) -> None:
    """Its next turn is sent `due` seconds after the answer, also in a closed loop."""
    system = {"role": "system", "content": "S"}
    turns = [PlannedRequest(0.0, Chat((system, told("a"))), 9, exact=False)]
    turns.append(PlannedRequest(0.2, Chat((told("b"),), word="w "), 9, after=0, exact=False))
    turns.append(PlannedRequest(0.0, Chat((told("c"),)), 4, after=1))
    handler, asked = chat("one", "two", "three")
    first, second, third = measure(handler, turns, LoadOptions(clients)).requests
    assert [(r.status, r.prompt_tokens, r.tokens) for r in (first, second, third)] == [("ok", 50, 4)] * 3
    assert [body["path"] for body in asked] == ["/v1/chat/completions"] * 3
    answers = [{"role": "assistant", "content": text} for text in ("one", "two")]
    assert asked[0]["messages"] == [system, told("a")]
    assert asked[1]["messages"] == [{**system, "content": "w S"}, told("a"), answers[0], told("b")]
    assert asked[2]["messages"] == [system, told("a"), answers[0], told("b"), answers[1], told("c")]
    assert ["ignore_eos" in body for body in asked] == [False, False, True]
    assert first.last is not None
    assert second.sent is not None
    assert second.due >= first.last + 0.2
    assert second.sent >= second.due - 1e-6


@pytest.mark.parametrize("clients", [None, 2])
def test_a_turn_behind_one_that_failed_is_not_sent(clients: int | None) -> None:
    turns = [PlannedRequest(0.0, Chat((told(text),)), 9, after, exact=False) for text, after in (("a", None), ("b", 0))]
    turns.append(PlannedRequest(0.0, Chat((told("c"),)), 9, exact=False))
    handler, asked = chat("one", "two", fail="a")
    first, second, other = measure(handler, turns, LoadOptions(clients)).requests
    assert (first.status, second.status, other.status) == ("refused", "error", "ok")
    assert second.reason == "not sent: the turn before it was not answered"
    assert sorted(str(body["messages"]) for body in asked) == [str([told("a")]), str([told("c")])]


def test_answers_of_any_length_and_text_without_usage() -> None:
    """The first event of a chat has a role and no token; thoughts are tokens and no answer."""
    handler, _ = chat("one", usage=False)
    (request,) = measure(handler, [PlannedRequest(0.0, Chat((told("a"),)), 9, exact=False)]).requests
    assert (request.status, request.tokens, request.prompt_tokens) == ("ok", 3, None)
    (request,) = measure(stream(pieces=2), [PlannedRequest(0.0, "text", 9, exact=False)]).requests
    assert (request.status, request.tokens, request.prompt_tokens) == ("ok", 2, 4)
    (request,) = measure(stream(pieces=5), [PlannedRequest(0.0, "text", 4, exact=False)]).requests
    assert (request.status, request.reason) == ("wrong", "5 tokens generated, 4 asked for")
    (request,) = measure(stream(prompt=0), [PlannedRequest(0.0, "text", 3)]).requests
    assert (request.status, request.reason) == ("wrong", "the server counts 1 cached tokens in a prompt of 0")


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            '# HELP x\nvllm:prefix_cache_hits_total{engine="0"} 30.0\nvllm:prefix_cache_hits_total{engine="1"} 12\n',
            42.0,
        ),
        ("sglang:cached_tokens_total 7\n", 7.0),
        ("vllm:prefix_cache_queries_total 9\n", None),
        ("vllm:prefix_cache_hits_total many\n", None),
        (None, None),
    ],
)
def test_what_metrics_say_of_the_cache(page: str | None, expected: float | None) -> None:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=page) if page is not None else web.Response(status=404)

    async def run() -> float | None:
        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await cached_so_far(ServerTarget(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "m"))
        finally:
            await runner.cleanup()

    assert asyncio.run(run()) == expected


def test_a_part_of_a_call_of_a_tool_is_a_token() -> None:
    tokens = Tokens()
    call = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": None}, call, call, {}]
    for at, delta in enumerate(deltas):
        tokens.add({"choices": [{"index": 0, "delta": delta}]}, at)
    assert (tokens.first, tokens.last, tokens.count) == (1, 2, 2)
