"""Servers as targets, and conversations with them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from chunkbench.traffic import Chat, PlannedRequest
from chunkbench.traffic.load import (
    LoadError,
    LoadOptions,
    LoadResult,
    ServerTarget,
    cached_so_far,
    describe_server,
    send,
)
from tests.traffic.load.scripted import Handler, event, measure, plan, server, stream


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


@asynccontextmanager
async def redirecting(status: bytes) -> AsyncIterator[str]:
    """The address of a server that answers every request with this status and `Location`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


def test_a_redirect_to_what_cannot_be_printed() -> None:
    """Halves of surrogate pairs, which a line of --out cannot hold, and escape sequences."""

    async def run() -> LoadResult:
        async with redirecting(b"301 Moved\r\nLocation: \xe9\x1b[31m") as url:
            return await send(ServerTarget(f"{url}/v1", "m"), plan(1), LoadOptions())

    (request,) = asyncio.run(run()).requests
    assert request.status == "error"
    assert request.reason.isprintable()
    request.model_dump_json()


def test_a_redirect_to_an_address_where_nothing_answers_names_both() -> None:
    async def ask() -> None:
        async with redirecting(b"307 Moved\r\nLocation: http://a b") as url:
            with pytest.raises(LoadError, match=rf"{url}/v1 redirects to a b:80, where nothing answers \("):
                await describe_server(url)

    asyncio.run(ask())


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


@pytest.mark.parametrize(
    ("key", "user", "first"),
    [
        (" secret\n", "", "Bearer secret"),
        ("", "", None),
        ("secret", "me:pass@", "Basic bWU6cGFzcw=="),  # a password in the address takes the place of the key
    ],
)
def test_the_key_is_sent_and_told_to_nobody(
    monkeypatch: pytest.MonkeyPatch, key: str, user: str, first: str | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    heard: list[str | None] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"  # a compressor holds tokens back until it has many
        heard.append(request.headers.get("Authorization"))
        return await stream()(request)

    async def run() -> str:
        async with server(elsewhere) as other:

            async def moved(request: web.Request) -> web.StreamResponse:
                heard.append(request.headers.get("Authorization"))
                return web.Response(status=307, headers={"Location": f"{other}/v1/completions"})

            async with server(moved) as url, server(moved, {"data": {}}) as broken:
                target = await describe_server(url.replace("//", f"//{user}"))
                measured = await send(target, plan(1), LoadOptions())
                assert measured.requests[0].status == "ok"
                with pytest.raises(LoadError) as caught:
                    await describe_server(broken.replace("//", f"//{user}"))
                return f"{measured} {caught.value} {'' if user else target}"

    told = asyncio.run(run())
    assert heard == [first, None]
    assert "secret" not in told
    assert "pass" not in told


def test_a_key_with_a_line_break_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sec\nret")
    with pytest.raises(LoadError, match="OPENAI_API_KEY holds a line break"):
        asyncio.run(describe_server("http://127.0.0.1:9"))


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


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('# HELP x\nvllm:prefix_cache_hits_total{e="0"} 30.0\nvllm:prefix_cache_hits_total{e="1"} 12\n', 42.0),
        ("sglang:cached_tokens_total 7\n", 7.0),
        ("vllm:prefix_cache_queries_total 9\n", None),
        ("vllm:prefix_cache_hits_total many\n", None),
        (None, None),
    ],
)
def test_what_metrics_say_of_the_cache(page: str | None, expected: float | None) -> None:
    async def run() -> float | None:
        async with server(stream(), metrics=page) as url:
            return await cached_so_far(ServerTarget(f"{url}/v1", "m"))

    assert asyncio.run(run()) == expected


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
            finish = "stop" if delta is said[-1] else None
            await response.write(event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}]))
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
