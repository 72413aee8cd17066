"""Compares the tokens that a server found in its cache with the tokens that the requests share."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from chunkbench.attention.tokens import alike
from chunkbench.traffic.request_result import RequestResult

SLACK_TOKENS = 64
"""Number of cached tokens of a request to ignore: a chat template begins all prompts with the same tokens, and a cache
rounds to whole blocks."""
_BY_CHANCE_TOKENS = 4
"""Number of first tokens of a request that may be equal to those of a warm-up by chance."""
_LENGTHS_DIFFER = 1.1
"""Texts differ by up to this factor in tokens per character. A comparison of tokens with characters allows for it."""


class Exchange(NamedTuple):
    """A request that has ended, with its prompt and answer as token ids or text."""

    request: RequestResult
    prompt: Sequence[Any]
    whole: Sequence[Any]
    """The prompt and the part of its answer that a later prompt may repeat."""


@dataclass(frozen=True)
class CacheHits:
    """Counts the prompt tokens of the answered requests that were found in the server's cache, and those that were
    computed."""

    requests: int
    prompt_tokens: int
    """All prompt tokens. A server that shares nothing computes all of them."""
    cached_tokens: int | None
    """Prompt tokens that the server found in its cache; None if the server does not say."""
    source: Literal["usage", "metrics"] | None
    """Source of `cached_tokens`: the usage of each answer, or the server's metrics, which count all its clients."""
    most_cached: int | None
    """Largest number of cached tokens of one request; None if the usage of answers does not say."""
    shared: float
    """Share of the prompts that earlier prompts or answers contain. A cache without limit that was empty at first finds
    this share."""
    unit: Literal["tokens", "characters"]
    """The unit in which `shared` was counted."""

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that the server computed."""
        return None if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens

    @property
    def warm(self) -> bool:
        """Whether the server found more tokens than these requests can have left in the cache: then the cache was not
        empty at first."""
        most, slack = self.shared * self.prompt_tokens, _BY_CHANCE_TOKENS
        if self.unit == "characters":
            most, slack = most * _LENGTHS_DIFFER, SLACK_TOKENS
        return (self.cached_tokens or 0) > most + slack * self.requests

    def doubt(self, control: bool) -> str:
        """Why latencies may depend on the earlier contents of the cache; empty if they do not.

        `control`: whether these are control requests, which share nothing (`chunkbench load --control`).
        """
        if control and (self.most_cached or 0) > SLACK_TOKENS:
            most = f"{self.most_cached} tokens of a request were found in the cache"
            return f"The control fails: {most}. Does the server have a long chat template, or other clients?"
        if not control and self.warm:
            return (
                "The cache was warm: the server found more tokens than these requests share, from earlier calls "
                "or other clients. Restart it, or give another --seed; --control shows its speed without a cache."
            )
        return ""


def cache_hits(ended: Sequence[Exchange], counted: float | None = None) -> CacheHits | None:
    """The cache hits of requests; None if no request with a known length was answered.

    `counted`: tokens that the server found in its cache meanwhile, according to its metrics.
    """
    sent = [exchange for exchange in ended if exchange.request.sent is not None]
    sent.sort(key=lambda exchange: exchange.request.sent or 0.0)
    answered = [exchange for exchange in sent if exchange.request.status == "ok" and exchange.request.prompt_tokens]
    if not answered:
        return None
    reported = [exchange.request.cached_tokens for exchange in answered if exchange.request.cached_tokens is not None]
    cached = sum(reported) if reported else None if counted is None else round(counted)
    return CacheHits(
        requests=len(answered),
        prompt_tokens=sum(exchange.request.prompt_tokens or 0 for exchange in answered),
        cached_tokens=cached,
        source=None if cached is None else "usage" if reported else "metrics",
        most_cached=max(reported, default=None),
        shared=_shared(sent, answered),
        unit="characters" if isinstance(answered[0].prompt, str) else "tokens",
    )


def _shared(sent: Sequence[Exchange], done: Sequence[Exchange]) -> float:
    earlier: list[Any] = []  # in lexicographic order, so one of the two neighbours shares most
    counted = {id(exchange) for exchange in done}
    shared = 0
    for exchange in sent:
        place = bisect(earlier, exchange.prompt)
        if id(exchange) in counted:
            near = earlier[max(0, place - 1) : place + 1]
            shared += max((alike(exchange.prompt, other) for other in near), default=0)
        insort(earlier, exchange.whole)
    return shared / sum(len(exchange.prompt) for exchange in done)
