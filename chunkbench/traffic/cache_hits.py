"""What a server found in its cache, beside what the requests share by themselves."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from chunkbench.attention.tokens import alike
from chunkbench.traffic.request_result import RequestResult

SLACK_TOKENS = 64
"""Cached tokens of a request that say nothing: a chat template begins all prompts alike, and blocks are whole."""
_BY_CHANCE_TOKENS = 4
"""First tokens of a request that may be those of a warm-up by chance."""
_LENGTHS_DIFFER = 1.1
"""A character of one text is more of a token than one of another."""


class Exchange(NamedTuple):
    """A request that has ended, and what was said: token ids or text."""

    request: RequestResult
    prompt: Sequence[Any]
    whole: Sequence[Any]
    """The prompt with its answer, as far as a later prompt may repeat it."""


@dataclass(frozen=True)
class CacheHits:
    """Prompt tokens of the answered requests, found in the server's cache or computed."""

    requests: int
    prompt_tokens: int
    """All of them: what a server that shares nothing computes."""
    cached_tokens: int | None
    """Those that the server found; None if it does not say."""
    source: Literal["usage", "metrics"] | None
    """Who says so: the usage of each answer, or the server's metrics, which count all its clients."""
    most_cached: int | None
    """Of one request; None if usage does not say."""
    shared: float
    """Share of the prompts that was sent or answered before: what an endless cache finds that was empty at first."""
    unit: Literal["tokens", "characters"]
    """What `shared` counts."""

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that the server computed."""
        return None if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens

    @property
    def warm(self) -> bool:
        """Whether the server found more than these requests can have left: its cache was not empty at first."""
        most, slack = self.shared * self.prompt_tokens, _BY_CHANCE_TOKENS
        if self.unit == "characters":
            most, slack = most * _LENGTHS_DIFFER, SLACK_TOKENS
        return (self.cached_tokens or 0) > most + slack * self.requests

    def doubt(self, control: bool) -> str:
        """Why latencies may say more about what the cache held than about the server; empty if they do not.

        `control`: the requests share nothing.
        """
        if control and (self.most_cached or 0) > SLACK_TOKENS:
            most = f"{self.most_cached} tokens of a request were found in the cache"
            return f"The control fails: {most}. A long chat template, or other clients?"
        if not control and self.warm:
            return (
                "The cache was warm: the server found more than the requests share by themselves, from earlier calls "
                "or other clients. Restart it, or give another --seed; --control shows its speed without a cache."
            )
        return ""


def cache_hits(ended: Sequence[Exchange], counted: float | None = None) -> CacheHits | None:
    """What was found of requests; None if none was answered whose length is known.

    `counted`: tokens that the server's metrics say it found meanwhile.
    """
    sent = [exchange for exchange in ended if exchange.request.sent is not None]
    sent.sort(key=lambda exchange: exchange.request.sent or 0.0)
    done = [exchange for exchange in sent if exchange.request.status == "ok" and exchange.request.prompt_tokens]
    if not done:
        return None
    told = [exchange.request.cached_tokens for exchange in done if exchange.request.cached_tokens is not None]
    cached = sum(told) if told else None if counted is None else round(counted)
    return CacheHits(
        requests=len(done),
        prompt_tokens=sum(exchange.request.prompt_tokens or 0 for exchange in done),
        cached_tokens=cached,
        source=None if cached is None else "usage" if told else "metrics",
        most_cached=max(told, default=None),
        shared=_shared(sent, done),
        unit="characters" if isinstance(done[0].prompt, str) else "tokens",
    )


def _shared(sent: Sequence[Exchange], done: Sequence[Exchange]) -> float:
    earlier: list[Any] = []  # in lexicographic order: one of the two neighbours shares most
    counted = {id(exchange) for exchange in done}
    shared = 0
    for exchange in sent:
        place = bisect(earlier, exchange.prompt)
        if id(exchange) in counted:
            near = earlier[max(0, place - 1) : place + 1]
            shared += max((alike(exchange.prompt, other) for other in near), default=0)
        insort(earlier, exchange.whole)
    return shared / sum(len(exchange.prompt) for exchange in done)
