"""Makes requests for replays: drawn at random, from texts, or from files of real traffic."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from chunkbench.attention.text import SegmentText, Text, TokenText
from chunkbench.bench.experiment.forest import PromptSegment
from chunkbench.traffic.arrivals import Arrivals, Lengths, due_times
from chunkbench.traffic.formats import read_traffic
from chunkbench.traffic.prompts import Prompts
from chunkbench.traffic.request import Chat
from chunkbench.traffic.texts import Texts
from chunkbench.traffic.trace import TraceRequest

_CUT = 1 << 37
"""First segment id that shortened prompts use. The segment ids of all other prompts are smaller."""


class ReplayRequest(NamedTuple):
    due: float
    """Due time, in seconds after the start."""
    text: Text
    """The tokens of prompt and answer. Requests share a prefix if their leading segments have equal ids, or if their
    leading tokens are equal."""

    @property
    def answer(self) -> int:
        """Number of tokens to generate."""
        return self.text.total - self.text.prompt


def from_prompts(prompts: Prompts, answer: int, due: Sequence[float]) -> list[ReplayRequest]:
    """Make one request for each due time. All prompts have the same length and share as `prompts` says. Answers have
    `answer` tokens.

    Request i uses path i modulo the number of paths of `prompts.paths()`. Raises ValueError.
    """
    paths = prompts.paths()
    fresh = count_from(1 + max(segment.id for path in paths for segment in path))
    requests = []
    for number, time in enumerate(due):
        path = paths[number % len(paths)]
        private = prompts.n_p - sum(segment.tokens for segment in path)
        requests.append(
            replay_request(time, [*path, PromptSegment(next(fresh), private)], PromptSegment(next(fresh), answer))
        )
    return requests


def from_lengths(
    lengths: Lengths, due: Sequence[float], seed: int | str, n_s: int = 0, prompts: int = 1
) -> list[ReplayRequest]:
    """Make one request with drawn lengths for each due time. Request i begins with the `n_s` tokens of system prompt
    i modulo `prompts`. The drawn prompt follows. Raises ValueError."""
    if n_s < 0 or prompts < 1:
        raise ValueError(f"n_s must be at least 0 and prompts at least 1, not {n_s} and {prompts}")
    chance = random.Random(f"lengths of requests {seed}")
    fresh = count_from(prompts)
    requests = []
    for number, time in enumerate(due):
        system = PromptSegment(number % prompts, n_s)
        user = PromptSegment(next(fresh), lengths.prompt.draw(chance))
        requests.append(replay_request(time, [system, user], PromptSegment(next(fresh), lengths.answer.draw(chance))))
    return requests


def replay_request(due: float, prompt: Sequence[PromptSegment], answer: PromptSegment) -> ReplayRequest:
    """Make a request from segments. Empty segments are left out. Raises ValueError if prompt or answer has no token."""
    tokens = sum(segment.tokens for segment in prompt)
    if tokens < 1 or answer.tokens < 1:
        raise ValueError(f"a request needs tokens in prompt and answer, not {tokens} and {answer.tokens}")
    segments = tuple((segment.id, segment.tokens) for segment in (*prompt, answer) if segment.tokens)
    return ReplayRequest(due, SegmentText(segments, tokens))


def truncated(requests: Sequence[ReplayRequest], tokens: int) -> list[ReplayRequest]:
    """Shorten prompts to at most their last `tokens` tokens.

    The remaining tokens have new positions, and therefore other K and V. So a shortened prompt shares nothing.
    """
    fresh = count_from(_CUT)

    def cut(request: ReplayRequest) -> ReplayRequest:
        if request.text.prompt <= tokens:
            return request
        prompt, answer = PromptSegment(next(fresh), tokens), PromptSegment(next(fresh), request.answer)
        return replay_request(request.due, [prompt], answer)

    return list(map(cut, requests))


_BYTES = 256


def from_texts(texts: Texts, rate: float, count: int, seed: int | str) -> list[ReplayRequest]:
    """Make the first `count` requests of texts, or all if there are fewer. They are in order of due time.

    Each byte of a text in UTF-8 is a token: about four times as many tokens as a model's tokenizer gives. An answer has
    `MOST_ANSWER_TOKENS` tokens, with ids that occur nowhere else in texts or answers. The prompt of a later turn begins
    with all earlier texts and answers of the conversation. The turn's due time is that of the turn before, plus the
    turn's delay. Conversations start by a Poisson process. `rate`: mean number of requests per second. Raises
    ValueError.
    """
    turns = sum(map(len, texts.lines))
    starts = due_times(Arrivals(), rate * len(texts.lines) / turns, len(texts.lines), f"{seed} conversations")
    fresh = count_from(_BYTES)
    said: list[tuple[int, ...]] = []
    requests: list[ReplayRequest] = []
    for planned in texts.plan(starts, None):
        text = planned.prompt.text() if isinstance(planned.prompt, Chat) else planned.prompt
        assert isinstance(text, str)
        due, prompt = planned.due, tuple(text.encode())
        if planned.after is not None:
            due, prompt = requests[planned.after].due + due, said[planned.after] + prompt
        said.append((*prompt, *islice(fresh, planned.max_tokens)))
        requests.append(ReplayRequest(due, TokenText(said[-1], len(prompt), len(said[-1]))))
    return sorted(requests, key=lambda request: request.due)[:count]


def read_replayed(
    path: Path, count: int, longest: int | None = None, rate: float | None = None, seed: int | str = 0
) -> list[ReplayRequest]:
    """Read the first `count` requests of a file that have at most `longest` tokens in prompt and answer. They are in
    order of due time.

    Prompts share what their token ids or their blocks have in common. If the file has neither, they share nothing. The
    file does not hold the texts of answers, so each answer gets new token ids. In real conversations, later prompts
    find earlier answers in a cache; here they do not.

    `rate`: requests per second of a Poisson process that draws the due times. None: the file's times, shifted to begin
    at 0 s. Raises TraceError, and ValueError if no request is short enough.
    """
    trace = read_traffic(path)
    kept = trace.first(count, longest)
    due = due_times(Arrivals(), rate, len(kept), seed) if rate else [request.due - kept[0].due for request in kept]
    if trace.has_token_ids:
        fresh = count_from(1 + max(max(request.prompt) for request in kept))
        return [_of_tokens(time, request, fresh) for time, request in zip(due, kept, strict=True)]
    fresh = count_from(1 + max((block for request in kept for block in request.blocks), default=0))
    return [_of_blocks(time, request, trace.block_tokens, fresh) for time, request in zip(due, kept, strict=True)]


def _of_tokens(due: float, request: TraceRequest, fresh: Iterator[int]) -> ReplayRequest:
    ids = (*request.prompt, *islice(fresh, request.answer_tokens))
    return ReplayRequest(due, TokenText(ids, request.prompt_tokens, len(ids)))


def _of_blocks(due: float, request: TraceRequest, block_tokens: int, fresh: Iterator[int]) -> ReplayRequest:
    """The request with one segment per block of its prompt, the last of which may be partial. Without blocks, the
    prompt is one segment."""
    prompt = [PromptSegment(block, block_tokens) for block in request.blocks[:-1]]
    left = request.prompt_tokens - len(prompt) * block_tokens
    prompt.append(PromptSegment(request.blocks[-1] if request.blocks else next(fresh), left))
    return replay_request(due, prompt, PromptSegment(next(fresh), request.answer_tokens))
