"""Conversations: turns that follow the answers of the server."""

from __future__ import annotations

import time

import pytest
from aiohttp import web

from chunkbench.traffic import Chat, PlannedRequest
from chunkbench.traffic.load import LoadOptions
from tests.traffic.load.scripted import Handler, event, measure, stream


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
