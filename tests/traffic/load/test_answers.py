"""Answers of servers: streams of events, and what they say."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.traffic import Chat, PlannedRequest
from chunkbench.traffic.load import LoadOptions
from chunkbench.traffic.load.answer import Tokens
from chunkbench.traffic.load.event_stream import EventStream
from tests.traffic.load.scripted import TOKENS, chunk, in_turn, measure, plan, raw, stream


@pytest.mark.parametrize("charset", ["hex", "x-unknown", "idna"])
def test_the_charset_of_an_error_is_not_believed(charset: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        headers = {"Content-Type": f"text/plain; charset={charset}"}
        return web.Response(status=500, body=b"broken \xff\x1b[31m", headers=headers)

    (request,) = measure(answer, plan(1)).requests
    assert (request.status, request.reason) == ("error", "status 500: broken \ufffd?[31m")


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
    assert (endless.status, "the answer does not end" in endless.reason) == ("error", True)
    assert (honest.status, honest.tokens) == ("ok", 3)


@pytest.mark.parametrize("usage", [[], [{"choices": [], "usage": {"completion_tokens": 4}}]])
@pytest.mark.serial
def test_chunks_without_text_are_no_tokens(usage: list[dict[str, object]]) -> None:
    """An empty chunk at once, four tokens after 0.3 s, an empty end after 0.6 s."""
    (request,) = measure(raw(chunk(), 0.3, *TOKENS, 0.3, chunk(finish="length"), *usage), plan(1, 0, 4)).requests
    assert (request.status, request.tokens) == ("ok", 4)
    assert request.sent is not None
    assert request.first is not None
    assert request.last is not None
    assert 0.3 <= request.first - request.sent < 0.5
    assert 0.3 <= request.last - request.sent < 0.5


def test_token_ids_are_tokens_without_text() -> None:
    """A token may be a part of a character."""
    part = {"choices": [{"index": 0, "text": "", "token_ids": [7]}]}
    (request,) = measure(raw(chunk(), part, chunk("a"), chunk(finish="length")), plan(1, 0, 2)).requests
    assert (request.status, request.tokens) == ("ok", 2)


CACHED = {"prompt_tokens_details": {"cached_tokens": 9}}
MALFORMED: list[tuple[bytes | dict[str, object], str, str]] = [
    (chunk("a", "stop", usage={"completion_tokens": None, "prompt_tokens_details": None}), "ok", ""),
    (chunk("a", usage="x"), "error", "usage: Input should be a valid dictionary"),
    (chunk("a", usage={"completion_tokens": "1"}), "error", "usage.completion_tokens: Input should be a valid int"),
    (chunk("a", usage={"completion_tokens": -1}), "error", "usage.completion_tokens: Input should be greater"),
    (chunk("a", usage={"completion_tokens": 10**30}), "error", "usage.completion_tokens: Input should be less"),
    (chunk("a", usage={"prompt_tokens_details": {"cached_tokens": -1}}), "error", "cached_tokens: Input should"),
    (chunk("a", "stop", usage=CACHED), "wrong", "the server counts 9 cached tokens in a prompt of 4"),
    ({"choices": "x"}, "error", "choices: Input should be a valid list"),
    ({"choices": [None]}, "error", "choices.0: Input should be a valid dictionary"),
    ({"error": {"message": "half \ud800 and \x1b[31m red\n"}}, "error", "half ? and ?[31m red"),
    ({"object": "error", "message": "out of memory", "code": 500}, "error", "out of memory"),
    ({"error": "generation failed", "error_type": "generation"}, "error", "generation failed"),
    (b'event: error\ndata: {"detail": [], "message": "overloaded"}\n\n', "error", "overloaded"),
    (b"data: 5\n\n", "error", "an event is not a JSON object: 5"),
    (b"data: {\n\n", "error", "JSONDecodeError"),
    (b"data: " + b"[" * 100_000 + b"\n\n", "error", "RecursionError"),
    (b'{"choices": [{"text": "a"}]}', "error", 'no event came, but {"choices": [{"text": "a"}]}'),
    (b'{"detail": "log in"}', "error", "no event came, but log in"),
    (b": ping\n\n", "error", "no event came, but : ping"),
    (b"", "error", "the stream ended without a finish_reason"),
]


def test_a_malformed_answer_fails_its_request_alone() -> None:
    answers = [raw(part) for part, _, _ in MALFORMED] + [raw(chunk("a", "stop"))]
    *ended, last = measure(in_turn(answers), plan(len(answers), 0, 1), LoadOptions(clients=1)).requests
    for request, (part, status, reason) in zip(ended, MALFORMED, strict=True):
        assert request.status == status, part
        assert reason in request.reason
        request.model_dump_json()
    assert last.status == "ok"


def delta(content: object, finish: object = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": content, **fields}, "finish_reason": finish}]}


DONE = b"data: [DONE]\n\n"
CUT_OFF = "the stream ended without a finish_reason: the answer may be cut off"
BROKEN_OFF = "the server broke the answer off: finish_reason "
ENDS: list[tuple[tuple[bytes | dict[str, object], ...], str]] = [
    ((), CUT_OFF),
    ((DONE,), CUT_OFF),
    ((delta(None, ""), DONE), CUT_OFF),
    ((delta(None, "abort"), DONE), BROKEN_OFF + "abort"),
    ((delta(None, "error"),), BROKEN_OFF + "error"),
    ((delta(None, {"type": "abort"}), DONE), BROKEN_OFF + "{'type': 'abort'}"),
    ((delta(None, "stop"),), ""),
    ((delta(None, "stop"), delta(None), DONE), ""),
    ((delta(None, "length"), DONE), ""),
    ((delta(None, "STOP"), DONE), ""),
]


def test_only_a_whole_answer_is_an_answer() -> None:
    """Three chunks of a chat that may have more, and how the stream goes on."""
    answers = [raw(delta("a"), delta("b"), delta("c"), *end) for end, _ in ENDS]
    asked = [PlannedRequest(0, Chat(({"role": "user", "content": "x"},)), 9, exact=False)] * len(ENDS)
    requests = measure(in_turn(answers), asked, LoadOptions(clients=1)).requests
    for request, (end, reason) in zip(requests, ENDS, strict=True):
        assert (request.status, request.reason, request.tokens >= 3) == ("error" if reason else "ok", reason, True), end


def part(*ends: tuple[int, str | None], **fields: object) -> dict[str, object]:
    """An event with one token for each (index of an answer, reason to end it)."""
    choices = [{"index": index, "text": "ab"[index], "finish_reason": finish} for index, finish in ends]
    return {"choices": choices, **fields}


def test_several_answers_are_whole_when_each_has_ended() -> None:
    halves = [part((0, None)), part((1, None)), part((1, "stop"))]
    end = part((0, "length"))
    both = part((0, "length"), (1, "length"), usage={"completion_tokens": 4})
    stranger = part(usage={"completion_tokens": 4}) | {"choices": [{"index": 2, "text": "c", "finish_reason": "stop"}]}
    streamed, searched = PlannedRequest(0, (1,), 2, answers=2), PlannedRequest(0, (1,), 2, answers=2, beams=True)
    expected = [
        (streamed, raw(*halves, end), ""),
        (streamed, raw(*halves), CUT_OFF),
        (streamed, raw(*halves[1:], end), "3 tokens generated, 4 asked for"),
        (streamed, raw(*halves, stranger), "an answer has index 2, 2 asked for"),
        (searched, raw(json.dumps(both).encode()), ""),
        (searched, raw(b"[]"), "the answer is not a JSON object"),
    ]
    answers, asked = in_turn(answer for _, answer, _ in expected), [request for request, _, _ in expected]
    ended = measure(answers, asked, LoadOptions(clients=1)).requests
    assert [(one.answers, one.reason) for one in ended] == [(2, reason) for _, _, reason in expected]
    assert [ended[4].first, ended[4].tokens, ended[4].last is None] == [None, 4, False]


def text(said: str) -> dict[str, object]:
    return {"type": "text", "text": said}


THINKING = {"type": "thinking", "thinking": [text("hm")]}


@pytest.mark.parametrize(
    ("contents", "answer", "count"),
    [
        (["a", "b"], "ab", 2),
        ([[text("a")], [text("b"), text("c")]], "abc", 2),
        ([[THINKING], [THINKING], [text("a")]], "a", 3),
        ([[THINKING, text("a")], "b"], "ab", 2),
        ([[{"type": "reasoning", "text": "hm"}], [{"text": "a"}]], "a", 2),
        ([[], [text("")], [text("a")], None], "a", 1),
    ],
)
def test_a_content_of_parts(contents: list[object], answer: str, count: int) -> None:
    """Parts of text are the answer; thoughts are tokens and no answer."""
    tokens = Tokens()
    for at, content in enumerate(contents):
        tokens.add(delta(content, "stop" if content is contents[-1] else None), at)
    assert (tokens.text, tokens.count, tokens.unfinished) == (answer, count, "")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "tool_calls"])
@pytest.mark.parametrize("value", ["hm", ["hm"], {"text": "hm"}])
def test_what_is_no_text_is_a_token_in_any_form(field: str, value: object) -> None:
    """An event with the role alone is none, and neither is one with nothing."""
    tokens = Tokens()
    for at, fields in enumerate(({"role": "assistant"}, {field: value}, {field: value}, {})):
        tokens.add(delta(None, **fields), at)
    assert (tokens.text, tokens.first, tokens.last, tokens.count) == ("", 1, 2, 2)


TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=6)
OTHER = st.sampled_from([":", ": a comment", "event: x", "id: 7", "retry", "retry: 9", "datas: no", " data: no"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A stream of one kind of line ends, and the data of its events."""
    end = draw(st.sampled_from(["\n", "\r", "\r\n"]))
    lines: list[str] = []
    told = []
    for data in draw(st.lists(st.lists(TEXT, max_size=3), max_size=4)):
        for line in data:
            lines += [draw(OTHER)] if draw(st.booleans()) else []
            lines.append(f"data:{draw(st.sampled_from(['', ' '])) if line[:1] != ' ' else ' '}{line}")
        lines.append("")
        told += ["\n".join(data)] if data else []
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return (mark + "".join(line + end for line in lines)).encode(), told


@given(streams(), st.lists(st.integers(0, 200), max_size=8))
@settings(max_examples=100, deadline=None)
def test_events_do_not_depend_on_where_a_stream_is_cut(stream: tuple[bytes, list[str]], cuts: list[int]) -> None:
    content, told = stream
    for places in (sorted(cuts), range(len(content))):
        reader = EventStream()
        edges = [0, *places, len(content)]
        pieces = [content[begin:end] for begin, end in itertools.pairwise(edges)]
        assert [data for piece in pieces for data in reader.feed(piece)] == told


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_is_told_at_the_first_byte_that_ends_it(end: bytes) -> None:
    reader = EventStream()
    content = b"data: a" + end + end
    whole = len(content) - (end == b"\r\n")
    assert [list(reader.feed(content[place : place + 1])) for place in range(whole)] == [*[[]] * (whole - 1), ["a"]]
    assert list(reader.feed(content[whole:] + b"data: b" + end)) == []
    assert list(EventStream().feed(b"data: \xff\n\n")) == ["\ufffd"]


def test_a_long_line_takes_time_by_its_length() -> None:
    """A line that is read again for each of its pieces takes minutes here."""
    reader = EventStream()
    began = time.process_time()
    for _ in range(100_000):
        assert not list(reader.feed(b"x"))
    assert time.process_time() - began < 3
