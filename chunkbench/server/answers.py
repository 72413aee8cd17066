"""Collects the tokens of a request's answers, and writes these answers as JSON in the format of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chunkbench.server.constrained import Matcher
from chunkbench.server.engine import Generated, Request
from chunkbench.server.engine.logprobs import TokenLogprobs
from chunkbench.server.engine.request import Finish
from chunkbench.server.protocol import usage
from chunkbench.server.text import StopSearch, TextStream

TokenText = Callable[[int], str]
"""A function that returns the text of one token id."""


@dataclass
class Choice:
    """One answer to a prompt, with the tokens that have arrived so far."""

    index: int
    first_of_prompt: bool
    request: Request
    matcher: Matcher | None
    stream: TextStream
    search: StopSearch
    echo: str | None
    """The text of the prompt, which is sent before the answer. None: only the answer is sent."""
    count: int = 0
    """Number of tokens of the answer so far."""
    cached: int | None = None
    first: float | None = None
    """Time of the first token, in seconds of `time.perf_counter`."""
    last: float | None = None
    """Time of the latest token."""
    finish: Finish | None = None
    """Why the answer ended; None while it goes on."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of characters `[begin, end[` of the text that the constraint forced."""
    tokens: list[Generated] = field(default_factory=list)
    """Tokens that have not been sent to the client yet."""
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    """Number of characters of the answer's text so far."""
    offset: int = 0
    """Position, in characters, of the next token in the list of log-probabilities."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self.finish is not None

    def take(self, token: Generated, now: float) -> tuple[Generated, str]:
        """Add a token that arrived at the time `now`. Returns the token, with a new `finish` if a stop string ended the
        answer, and the text to send."""
        self.count += 1 - token.replaces
        self.cached = token.cached_tokens
        self.first, self.last = self.first or now, now
        self.prompt_logprobs = token.prompt_logprobs or self.prompt_logprobs
        last = token.finish is not None
        added = self.stream.add(token.token, last, token.replaces)
        piece, stopped = self.search.add(added, last, self.count > self.request.min_tokens)
        if token.forced and piece:
            self.spans.append((self.length, self.length + len(piece)))
        self.length += len(piece)
        self.finish = "stop" if stopped else token.finish
        return replace(token, finish=self.finish), piece

    def keep(self, token: Generated, piece: str) -> str:
        """Store a token until it is sent. Returns the text to send; the first text begins with the echo."""
        del self.tokens[len(self.tokens) - token.replaces :]
        self.tokens.append(token)
        text = piece if self.pieces or self.echo is None else self.echo + piece
        self.pieces.append(text)
        return text

    def sent(self) -> None:
        """Remove the stored tokens, because they were sent."""
        self.tokens = []

    def logprobs_to_send(self) -> list[tuple[int, TokenLogprobs | None]]:
        """Each token id to send now, with its log-probabilities. The first list begins with the tokens of an echo."""
        told = [(token.token, token.logprobs) for token in self.tokens]
        if self.echo is None or len(self.pieces) > len(self.tokens):
            return told
        return [*zip(self.request.prompt, self.prompt_logprobs, strict=True), *told]


def usage_of(choices: Sequence[Choice]) -> dict[str, Any]:
    """The token counts of a request's answers so far. A prompt with several answers counts once."""
    firsts = [choice for choice in choices if choice.first_of_prompt]
    cached = [choice.cached for choice in firsts if choice.cached is not None]
    prompts = sum(len(choice.request.prompt) for choice in firsts)
    return usage(prompts, sum(choice.count for choice in choices), sum(cached) if cached else None)


@dataclass(frozen=True)
class Form:
    """The JSON format of one route's answers."""

    prefix: str
    """First part of the id of a response, before the hyphen."""
    object: str
    event: str
    """Value of the field `object` in the events of a stream."""
    text: Callable[[str], dict[str, Any]]
    """Function that makes the fields with the text of a complete answer."""
    piece: Callable[[str, bool], dict[str, Any]]
    """Function that makes the fields with the text of an event. The second argument says whether the event is the
    first."""
    logprobs: Callable[[Choice, TokenText], dict[str, Any]]
    """Function that makes the JSON of the log-probabilities of the tokens to send now."""


def _completion_logprobs(choice: Choice, text: TokenText) -> dict[str, Any]:
    listed: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    most = choice.request.logprobs or 0
    for token, logprobs in choice.logprobs_to_send():
        listed["text_offset"].append(choice.offset)
        listed["tokens"].append(text(token))
        choice.offset += len(listed["tokens"][-1])
        listed["token_logprobs"].append(logprobs and logprobs.chosen.logprob)
        top = logprobs and (*logprobs.top[:most], logprobs.chosen)
        listed["top_logprobs"].append(top and {text(one.token): one.logprob for one in reversed(top)})
    return listed


def _chat_logprobs(choice: Choice, text: TokenText) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": text(token), "logprob": logprob, "bytes": list(text(token).encode())}

    return {
        "content": [
            entry(token, logprobs.chosen.logprob)
            | {"top_logprobs": [entry(one.token, one.logprob) for one in logprobs.top]}
            for token, logprobs in choice.logprobs_to_send()
            if logprobs is not None
        ],
        "refusal": None,
    }


COMPLETION = Form(
    "cmpl",
    "text_completion",
    "text_completion",
    lambda text: {"text": text},
    lambda text, first: {"text": text},
    _completion_logprobs,
)
CHAT = Form(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text}},
    lambda text, first: {"delta": {"role": "assistant", "content": text} if first else {"content": text}},
    _chat_logprobs,
)


@dataclass(frozen=True)
class Writer:
    """Makes the JSON of one response, which may hold several answers."""

    form: Form
    id: str
    model: str
    return_token_ids: bool
    created: int
    token_text: TokenText

    def head(self, object: str) -> dict[str, Any]:
        """The fields that every JSON object of the response has."""
        return {"id": self.id, "object": object, "created": self.created, "model": self.model}

    def event(self, choice: Choice, text: str, with_ids: bool) -> dict[str, Any]:
        """One event of a stream, as a JSON object. If `with_ids` is False, its list of token ids stays empty."""
        piece = self.form.piece(text, len(choice.pieces) == 1)
        return {**self.head(self.form.event), "choices": [self._choice(choice, piece, with_ids)]}

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The JSON object of a response without a stream."""
        entries = [self._choice(choice, self.form.text("".join(choice.pieces))) for choice in choices]
        whole = {**self.head(self.form.object), "choices": entries, "usage": usage_of(choices)}
        if choices[0].request.prompt_logprobs is not None:
            for entry, choice in zip(entries, choices, strict=True):
                # As in vLLM: in each answer of a completion, but beside the answers of a chat.
                (whole if self.form is CHAT else entry)["prompt_logprobs"] = self._prompt_logprobs(choice)
        return whole

    def _choice(self, choice: Choice, text: dict[str, Any], with_ids: bool = True) -> dict[str, Any]:
        finish = choice.tokens[-1].finish
        logprobs = None if choice.request.logprobs is None else self.form.logprobs(choice, self.token_text)
        entry = {"index": choice.index, **text, "logprobs": logprobs, "finish_reason": finish}
        if self.return_token_ids:
            entry["token_ids"] = [token.token for token in choice.tokens] if with_ids else []
        return entry

    def _prompt_logprobs(self, choice: Choice) -> list[dict[int, Any] | None]:
        """For each token of the prompt: id -> log-probability, rank and text, of the token and of the most probable
        ones."""
        return [
            one
            and {
                found.token: {
                    "logprob": found.logprob,
                    "rank": found.rank,
                    "decoded_token": self.token_text(found.token),
                }
                for found in (one.chosen, *one.top)
            }
            for one in choice.prompt_logprobs
        ]
