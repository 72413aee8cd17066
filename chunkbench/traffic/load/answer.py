"""What is read of a server's answers: its models, and the tokens of a stream."""

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
"""Pages of metrics have some hundred kilobytes."""
_WHOLE = {
    *("stop", "length", "tool_calls", "function_call"),
    *("eos", "eos_token", "stop_sequence", "end_turn", "max_tokens", "model_length"),
}
"""Reasons for which a whole answer ends: OpenAI's, and other servers' words for them."""


class _Answer(BaseModel):
    """What is read of an answer; the rest is not looked at."""

    model_config = ConfigDict(strict=True)


class _Details(_Answer):
    cached_tokens: Count | None = None


class _Usage(_Answer):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None


class _Part(_Answer):
    """A part of a content that is a list, as models that think send it."""

    type: Any = "text"
    text: str | None = None
    thinking: Any = None


class _Delta(_Answer):
    content: str | list[_Part] | None = None
    reasoning_content: Any = None
    """What a model thinks before it answers; no part of the answer."""
    reasoning: Any = None
    tool_calls: Any = None

    @property
    def text(self) -> str:
        """The piece of the answer."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content if part.type in ("text", "output_text"))
        return self.content or ""

    @property
    def holds_token(self) -> bool:
        """Whether a token is known to be in it."""
        content = self.content
        said = any(part.text or part.thinking for part in content) if isinstance(content, list) else content
        return bool(said or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(_Answer):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: Any = None


class _Chunk(_Answer):
    id: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None

    @property
    def text(self) -> str:
        """The piece of the answer."""
        pieces = (choice.delta.text if choice.delta else choice.text for choice in self.choices or ())
        return "".join(piece or "" for piece in pieces)

    @property
    def token_ids(self) -> list[int]:
        """Of the piece; empty if the server does not tell them."""
        return [token for choice in self.choices or () for token in choice.token_ids or ()]

    @property
    def holds_token(self) -> bool:
        """Whether a token is known to be in it."""
        choices = self.choices or ()
        return any(choice.text or choice.token_ids or (choice.delta and choice.delta.holds_token) for choice in choices)


class ServedModel(_Answer):
    model_config = ConfigDict(extra="allow")

    id: str
    max_model_len: Any = None


class Models(_Answer):
    data: list[ServedModel]


class Tokens:
    """The tokens of one answer: when they came, how many, and their text."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        """Empty if the server does not tell them."""
        self.request = ""
        """The server's name of the request; empty if it does not tell."""
        self._finish: Any = None
        """The server's reason to end the answer; None until it tells one."""
        self._pieces: list[str] = []
        self._times: dict[bool, tuple[float, float, int]] = {}
        """Of chunks with and without text: the first, the last, and their number."""
        self._usage = _Usage()

    def add(self, event: dict[str, Any], at: float) -> None:
        """An event of the stream. Raises ValueError."""
        chunk = _Chunk.model_validate(event)
        self._usage = chunk.usage or self._usage
        self.request = str(chunk.id or self.request)
        if chunk.choices:
            self._finish = chunk.choices[-1].finish_reason or self._finish
            self._pieces.append(chunk.text)
            self.ids += chunk.token_ids
            first, _, count = self._times.get(chunk.holds_token, (at, at, 0))
            self._times[chunk.holds_token] = first, at, count + 1

    @property
    def cut(self) -> bool:
        """Whether the answer ended because it had as many tokens as were asked for."""
        return bool(self._finish == "length")

    @property
    def unfinished(self) -> str:
        """Why the answer is not whole; empty if it is. A stream also ends where its server dies."""
        if self._finish is None:
            return "the stream ended without a finish_reason: the answer may be cut off"
        if str(self._finish).lower() not in _WHOLE:
            return f"the server broke the answer off: finish_reason {one_line(str(self._finish))}"
        return ""

    @property
    def _told(self) -> tuple[float | None, float | None, int]:
        """A chunk without text is no token, except where no chunk has text: some servers have no tokenizer."""
        return self._times.get(True) or self._times.get(False) or (None, None, 0)

    @property
    def first(self) -> float | None:
        """When the first token came."""
        return self._told[0]

    @property
    def last(self) -> float | None:
        """When the last token came."""
        return self._told[1]

    @property
    def count(self) -> int:
        """Tokens of the answer: as the server counts, else chunks."""
        counted = self._usage.completion_tokens
        return self._told[2] if counted is None else counted

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self._pieces)

    @property
    def prompt(self) -> int | None:
        """Tokens of the prompt, as the server counts them; None if it does not say."""
        return self._usage.prompt_tokens

    @property
    def cached(self) -> int | None:
        """Prompt tokens that were not computed; None if the server does not say."""
        details = self._usage.prompt_tokens_details
        return details.cached_tokens if details else None

    def wrong(self, request: PlannedRequest) -> str:
        """Why the answer is not what was asked for; empty if it is."""
        if self.last is None or self.count == 0:
            return "the stream ended without a token"
        if self.count > request.max_tokens or (request.exact and self.count < request.max_tokens):
            return f"{self.count} tokens generated, {request.max_tokens} asked for"
        sent = len(request.prompt) if isinstance(request.prompt, tuple) else self.prompt
        if self.prompt not in (None, sent):
            return f"the server counts {self.prompt} prompt tokens, {sent} were sent"
        if sent is not None and (self.cached or 0) > sent:
            return f"the server counts {self.cached} cached tokens in a prompt of {sent}"
        return ""


async def at_most(most: int, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a body. Raises ValueError behind so many bytes."""
    left = most
    async for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ValueError(f"the answer has no end: more than {most:,} bytes came")
        yield piece


async def text_of(answer: aiohttp.ClientResponse) -> str:
    """The text of an answer that is no stream. It is UTF-8, whatever charset the server names. Raises ValueError if it
    has no end."""
    return b"".join([piece async for piece in at_most(_MOST_TEXT_BYTES, answer.content.iter_any())]).decode(
        errors="replace"
    )


async def events(pieces: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON of server-sent events up to [DONE]. Raises ValueError, also for bytes without an event."""
    stream = EventStream()
    begin, found = b"", False
    async for piece in pieces:
        begin = begin or piece
        for data in stream.feed(piece):
            if data.strip() == "[DONE]":
                return
            if data.strip():
                event = json.loads(data)
                if not isinstance(event, dict):
                    raise ValueError(f"an event is no JSON object: {data[:80]}")
                found = True
                yield event
    if begin.strip() and not found:
        raise ValueError(f"no event came, but {message(begin.decode(errors='replace'))}")


def failure(event: dict[str, Any]) -> str:
    """The message of an event that is an error, as servers write it; empty for another event."""
    if event.get("error") or (event.get("message") and not event.get("choices")):
        return _said(event)
    return ""


def message(text: str) -> str:
    """The message of an error in JSON, or the text as it is, shortened and in one line."""
    with suppress(ValueError, RecursionError):
        return _said(json.loads(text))
    return one_line(text)


def _said(answer: Any) -> str:
    """What an error says in OpenAI's form (`error.message`), in vLLM's of old (`message`), TGI's (`error`) or FastAPI's
    (`detail`)."""
    for key in ("error", "message", "detail"):
        if isinstance(answer, dict) and answer.get(key):
            answer = answer[key]
    return one_line(answer if isinstance(answer, str) else json.dumps(answer))


def explain(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the answer'}: {first['msg']}"
    if type(error) is ValueError:
        return one_line(str(error))
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def one_line(text: str) -> str:
    """The begin of a server's text as one line that can be printed."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())[:300])
