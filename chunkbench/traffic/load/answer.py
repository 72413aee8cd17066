"""Reads answers of a server: its list of models, its error messages, and streams of tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from chunkbench.bench.experiment.terms import Count
from chunkbench.traffic import PlannedRequest
from chunkbench.traffic.load.event_stream import EventStream

if TYPE_CHECKING:
    import aiohttp

_MOST_TEXT_BYTES = 1 << 24
"""Maximum size of an answer that is read as text, in bytes. Pages of metrics have some hundred kilobytes."""
_WHOLE = {
    *("stop", "length", "tool_calls", "function_call"),
    *("eos", "eos_token", "stop_sequence", "end_turn", "max_tokens", "model_length"),
}
"""Values of `finish_reason` that mean a complete answer, for OpenAI's and other servers."""


class _Answer(BaseModel):
    """Base class of the parts of an answer. Only the named fields are read."""

    model_config = ConfigDict(strict=True)


class _Details(_Answer):
    cached_tokens: Count | None = None


class _Usage(_Answer):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None


class _Part(_Answer):
    """A part of a content that is a list, as reasoning models send it."""

    type: Any = "text"
    text: str | None = None
    thinking: Any = None


class _Delta(_Answer):
    content: str | list[_Part] | None = None
    reasoning_content: Any = None
    """What a model writes before its answer. It is not part of the answer."""
    reasoning: Any = None
    tool_calls: Any = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content if part.type in ("text", "output_text"))
        return self.content or ""

    @property
    def holds_token(self) -> bool:
        """Whether this part of an event surely holds a token."""
        content = self.content
        said = any(part.text or part.thinking for part in content) if isinstance(content, list) else content
        return bool(said or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(_Answer):
    index: Count = 0
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: Any = None


class _Chunk(_Answer):
    """An event of the stream."""

    id: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None

    @property
    def first(self) -> list[_Choice]:
        """The parts of the first answer."""
        return [choice for choice in self.choices or () if not choice.index]

    @property
    def text(self) -> str:
        """The text of the first answer."""
        pieces = (choice.delta.text if choice.delta else choice.text for choice in self.first)
        return "".join(piece or "" for piece in pieces)

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the first answer; empty if the server does not send them."""
        return [token for choice in self.first for token in choice.token_ids or ()]

    @property
    def holds_token(self) -> bool:
        """Whether the event surely holds a token."""
        choices = self.choices or ()
        return any(choice.text or choice.token_ids or (choice.delta and choice.delta.holds_token) for choice in choices)


class ServedModel(_Answer):
    model_config = ConfigDict(extra="allow")

    id: str
    max_model_len: Any = None


class Models(_Answer):
    data: list[ServedModel]


class Tokens:
    """The tokens of the answers to one request, with their times, and the text of the first answer."""

    def __init__(self, answers: int = 1) -> None:
        self._answers = answers
        self.ids: list[int] = []
        """Token ids of the first answer; empty if the server does not send them."""
        self.request = ""
        """The server's id of the request; empty if the server does not send it."""
        self._finish: dict[int, Any] = {}
        """Index of each answer that ended -> the server's reason to end it."""
        self._highest = 0  # index of an answer
        self._pieces: list[str] = []
        self._times: dict[bool, tuple[float, float, int]] = {}
        """For chunks with a token (True) and without (False): time of the first, time of the last, and their number."""
        self._gaps: dict[bool, list[float]] = {True: [], False: []}
        self._last: dict[tuple[bool, int], float] = {}
        """(whether chunks hold a token, index of an answer) -> time of the last such chunk."""
        self._usage = _Usage()

    def add(self, event: dict[str, Any], at: float) -> None:
        """Add an event of the stream that came at the time `at`. Raises ValueError."""
        chunk = _Chunk.model_validate(event)
        self._usage = chunk.usage or self._usage
        self.request = str(chunk.id or self.request)
        if chunk.choices:
            self._finish |= {choice.index: choice.finish_reason for choice in chunk.choices if choice.finish_reason}
            self._highest = max(self._highest, *(choice.index for choice in chunk.choices))
            self._pieces.append(chunk.text)
            self.ids += chunk.token_ids
            first, _, count = self._times.get(chunk.holds_token, (at, at, 0))
            self._times[chunk.holds_token] = first, at, count + 1
            kind = chunk.holds_token, chunk.choices[0].index
            if kind in self._last:
                self._gaps[chunk.holds_token].append(at - self._last[kind])
            self._last[kind] = at

    @property
    def cut(self) -> bool:
        """Whether the first answer ended at the maximum number of tokens of the request."""
        return bool(self._finish.get(0) == "length")

    @property
    def unfinished(self) -> str:
        """Text that says why an answer is not complete; empty if all are complete. If a server dies, its stream just
        ends."""
        for reason in self._finish.values():
            if str(reason).lower() not in _WHOLE:
                return f"the server broke the answer off: finish_reason {one_line(str(reason))}"
        if len(self._finish) < self._answers:
            return "the stream ended without a finish_reason: the answer may be cut off"
        return ""

    @property
    def _token_times(self) -> tuple[float | None, float | None, int]:
        """Times and number of the chunks that count as tokens: those with text or, if no chunk has text because the
        server has no tokenizer, all chunks."""
        return self._times.get(True) or self._times.get(False) or (None, None, 0)

    @property
    def first(self) -> float | None:
        return self._token_times[0]

    @property
    def last(self) -> float | None:
        return self._token_times[1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between two chunks of the same answer that count as tokens, in the order in which they came."""
        return self._gaps[True in self._times]

    @property
    def count(self) -> int:
        """Number of answer tokens that the server reports. Without a report: number of chunks that count as tokens."""
        counted = self._usage.completion_tokens
        return self._token_times[2] if counted is None else counted

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def prompt(self) -> int | None:
        """Number of prompt tokens as the server reports it; None if it does not."""
        return self._usage.prompt_tokens

    @property
    def cached(self) -> int | None:
        """Number of prompt tokens that the server found in its cache; None if it does not say."""
        details = self._usage.prompt_tokens_details
        return details.cached_tokens if details else None

    def wrong(self, request: PlannedRequest) -> str:
        """Text on the first contradiction between answer and request, such as a wrong number of tokens. Empty if there
        is no contradiction."""
        if self.last is None or self.count == 0:
            return "the stream ended without a token"
        if self._highest >= self._answers:
            return f"an answer has index {self._highest}, {self._answers} asked for"
        if self.count > request.asked_tokens or (request.exact and self.count < request.asked_tokens):
            return f"{self.count} tokens generated, {request.asked_tokens} asked for"
        sent = len(request.prompt) if isinstance(request.prompt, tuple) else self.prompt
        if self.prompt not in (None, sent):
            return f"the server counts {self.prompt} prompt tokens, {sent} were sent"
        if sent is not None and (self.cached or 0) > sent:
            return f"the server counts {self.cached} cached tokens in a prompt of {sent}"
        return ""


async def at_most(most: int, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a body. Raises ValueError after more than `most` bytes."""
    left = most
    async for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ValueError(f"the answer does not end: more than {most:,} bytes came")
        yield piece


async def text_of(answer: aiohttp.ClientResponse) -> str:
    """The text of an answer that is not a stream. It is read as UTF-8, whatever charset the server names. Raises
    ValueError if it is too long."""
    return b"".join([piece async for piece in at_most(_MOST_TEXT_BYTES, answer.content.iter_any())]).decode(
        errors="replace"
    )


async def events(pieces: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of server-sent events up to [DONE]. Raises ValueError for an event that is not JSON, and if no
    event came."""
    stream = EventStream()
    begin, events_found = b"", False
    async for piece in pieces:
        begin = begin or piece
        for data in stream.feed(piece):
            if data.strip() == "[DONE]":
                return
            if data.strip():
                event = json.loads(data)
                if not isinstance(event, dict):
                    raise ValueError(f"an event is not a JSON object: {data[:80]}")
                events_found = True
                yield event
    if begin.strip() and not events_found:
        raise ValueError(f"no event came, but {message(begin.decode(errors='replace'))}")


async def whole(pieces: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON object of an answer that is no stream. Raises ValueError if it is none."""
    answer = json.loads(b"".join([piece async for piece in pieces]))
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    yield answer


def failure(event: dict[str, Any]) -> str:
    """The error message that an event holds; empty if the event is no error."""
    if event.get("error") or (event.get("message") and not event.get("choices")):
        return _said(event)
    return ""


def message(text: str) -> str:
    """The error message in a JSON text, in one line. For a text that is not JSON: its beginning."""
    with suppress(ValueError, RecursionError):
        return _said(json.loads(text))
    return one_line(text)


def _said(answer: Any) -> str:
    """The message of an error in the form of OpenAI (`error.message`), old vLLM (`message`), TGI (`error`) or FastAPI
    (`detail`)."""
    for key in ("error", "message", "detail"):
        if isinstance(answer, dict) and answer.get(key):
            answer = answer[key]
    return one_line(answer if isinstance(answer, str) else json.dumps(answer))


def explain(error: BaseException) -> str:
    """The text of an exception, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the answer'}: {first['msg']}"
    if type(error) is ValueError:
        return one_line(str(error))
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def one_line(text: str) -> str:
    """The beginning of a server's text, in one line without control characters."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())[:300])
