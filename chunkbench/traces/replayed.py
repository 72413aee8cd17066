"""Requests for a replay: when they are due, and texts that say what they share instead of tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count as count_from
from typing import NamedTuple

from chunkbench.experiment.forest import PromptSegment
from chunkbench.kvcache.text import SegmentText, Text
from chunkbench.traces.lengths import Lengths
from chunkbench.traces.prompts import Prompts

_CUT = 1 << 37
"""Ids of segments of cut prompts begin here, far above all others."""


class ReplayRequest(NamedTuple):
    """A request of a replay."""

    due: float
    """Seconds after the start."""
    text: Text
    """Prompt and answer. Segments with one id, or equal tokens behind equal tokens, are shared."""

    @property
    def answer(self) -> int:
        """Tokens to generate."""
        return self.text.total - self.text.prompt


def from_prompts(prompts: Prompts, answer: int, due: Sequence[float]) -> list[ReplayRequest]:
    """Requests with prompts of one length, shared as `prompts` says, and answers of `answer` tokens.

    Requests i and j share what paths i and j of `prompts.paths()` share, each modulo the number of paths. Raises
    ValueError.
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
    """Requests with drawn lengths. Before its private prompt, request i has system prompt i modulo `prompts` (`n_s`
    tokens, 0: none), which adds to the drawn length. Raises ValueError."""
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
    """A request of segments; empty ones are left out. Raises ValueError if prompt or answer has no token."""
    tokens = sum(segment.tokens for segment in prompt)
    if tokens < 1 or answer.tokens < 1:
        raise ValueError(f"a request needs tokens in prompt and answer, not {tokens} and {answer.tokens}")
    segments = tuple((segment.id, segment.tokens) for segment in (*prompt, answer) if segment.tokens)
    return ReplayRequest(due, SegmentText(segments, tokens))


def truncated(requests: Sequence[ReplayRequest], tokens: int) -> list[ReplayRequest]:
    """The same requests with at most the last `tokens` tokens of their prompts.

    What is left of a cut prompt has other positions than before. So its K and V are nobody else's, and it shares
    nothing.
    """
    fresh = count_from(_CUT)

    def cut(request: ReplayRequest) -> ReplayRequest:
        if request.text.prompt <= tokens:
            return request
        prompt, answer = PromptSegment(next(fresh), tokens), PromptSegment(next(fresh), request.answer)
        return replay_request(request.due, [prompt], answer)

    return list(map(cut, requests))
