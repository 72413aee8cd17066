"""Requests for a replay: drawn ones, those of texts, and those of files of real traffic."""

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
"""Ids of segments of cut prompts begin here, far above all other ids."""


class ReplayRequest(NamedTuple):
    """A request of a replay."""

    due: float
    """Seconds after the start."""
    text: Text
    """Prompt and answer. Two requests share a prefix if their leading segments have equal ids, or their leading tokens
    are equal."""

    @property
    def answer(self) -> int:
        """Tokens to generate."""
        return self.text.total - self.text.prompt


def from_prompts(prompts: Prompts, answer: int, due: Sequence[float]) -> list[ReplayRequest]:
    """Requests with prompts of one length that share as `prompts` describes, and answers of `answer` tokens.

    Requests i and j share the segments that paths i and j of `prompts.paths()` share, both modulo the number of paths.
    Raises ValueError.
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
    """Requests with drawn lengths. Request i begins with system prompt i modulo `prompts`; its `n_s` tokens (0: no
    system prompt) add to the drawn length. Raises ValueError."""
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
    """A request made of segments. Empty segments are left out. Raises ValueError if prompt or answer has no token."""
    tokens = sum(segment.tokens for segment in prompt)
    if tokens < 1 or answer.tokens < 1:
        raise ValueError(f"a request needs tokens in prompt and answer, not {tokens} and {answer.tokens}")
    segments = tuple((segment.id, segment.tokens) for segment in (*prompt, answer) if segment.tokens)
    return ReplayRequest(due, SegmentText(segments, tokens))


def truncated(requests: Sequence[ReplayRequest], tokens: int) -> list[ReplayRequest]:
    """The requests with at most the last `tokens` tokens of their prompts.

    The tokens of a cut prompt have other positions than before. So no other request has the same K and V, and a cut
    prompt shares nothing.
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
    """The first `count` requests of texts, in order of due time; fewer if the texts have fewer.

    Tokens are the bytes of the text in UTF-8, about four times as many as with a model's tokenizer. An answer has
    `MOST_ANSWER_TOKENS` tokens, which no other request has. A later turn repeats all earlier texts and answers, and is
    due its delay after the turn before was due. Conversations start by a Poisson process, so that `rate` requests per
    second are due in the mean. Raises ValueError.
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
    """The first `count` requests of a file that have at most `longest` tokens in prompt and answer, in order of due
    time.

    Prompts share as their token ids or the blocks of the trace say; without either, they share nothing. The text of
    answers is not known. So an answer gets tokens that no other request has, and no later prompt finds them in a cache,
    although in reality the next prompt of the conversation contains them. `rate`: requests per second of Poisson
    arrivals, drawn by `seed`; None: the times of the file, shifted to begin at 0 s. Raises TraceError, and ValueError
    if all requests are longer.
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
