"""Counts the prompt tokens that a server found in its cache, and those that it could have found."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from chunkbench.attention.tokens import alike
from chunkbench.traffic.request_result import RequestResult, quantile

SLACK_TOKENS = 64
"""Up to this number of cached tokens per request may come from a chat template. The template begins all prompts with
the same tokens."""
_BY_CHANCE_TOKENS = 4
"""The first tokens of a request and of a warm-up request may be equal by chance, up to this number."""
_LENGTHS_DIFFER = 1.1
"""The number of tokens per character differs by up to this factor between texts."""


class Exchange(NamedTuple):
    """A request that has ended. `prompt` and `whole` are token ids or text."""

    request: RequestResult
    prompt: Sequence[Any]
    whole: Sequence[Any]
    """The prompt, and as much of the answer as a later prompt may repeat."""
    conversation: int = 0
    """Number of the first request of the conversation, by which all its turns are known."""
    turn: int = 1


class HitShares(NamedTuple):
    """Shares of the prompt tokens that the server found in its cache, over several requests or conversations."""

    of: str
    """What is counted: `requests`, `conversations`, or requests of one turn, such as `turn 2`."""
    number: int
    p10: float
    p50: float
    p90: float


_TURNS = 5
"""Turns that have figures of their own; later ones have theirs together."""


def hit_shares(ended: Sequence[Exchange]) -> list[HitShares]:
    """The shares of requests and, if there are conversations, of conversations and turns. Requests for which the
    server does not report cached tokens are left out.
    """
    known = [one for one in ended if one.request.cached_tokens is not None and one.request.prompt_tokens]
    groups: dict[str, list[float]] = {"requests": [_found([one]) for one in known]}
    if any(one.turn > 1 for one in known):
        names = sorted({one.conversation for one in known})
        groups["conversations"] = [_found([one for one in known if one.conversation == name]) for name in names]
        for one in sorted(known, key=lambda one: one.turn):
            turn = f"turn {one.turn}" if one.turn <= _TURNS else "later turns"
            groups.setdefault(turn, []).append(_found([one]))
    shares = ((of, values) for of, values in groups.items() if values)
    return [HitShares(of, len(values), *(quantile(values, at) for at in (0.1, 0.5, 0.9))) for of, values in shares]


def _found(ended: Sequence[Exchange]) -> float:
    return sum(one.request.cached_tokens or 0 for one in ended) / sum(one.request.prompt_tokens or 0 for one in ended)


@dataclass(frozen=True)
class CacheHits:
    """The prompt tokens of all answered requests, and how many of them the server found in its cache."""

    requests: int
    prompt_tokens: int
    """Number of prompt tokens. A server without sharing computes all of them."""
    cached_tokens: int | None
    """Number of prompt tokens that the server found in its cache; None if the server does not say."""
    source: Literal["usage", "metrics"] | None
    """Where `cached_tokens` comes from: the `usage` of each answer, or the server's metrics, which include other
    clients."""
    most_cached: int | None
    """Largest number of cached tokens of a single request; None if the answers have no such number."""
    shared: float
    """Share of the prompts, from 0 to 1, that repeats the beginning of an earlier request. An unlimited cache that
    is empty at first finds this share."""
    unit: Literal["tokens", "characters"]
    """Whether `shared` was computed from tokens or from characters."""

    @property
    def computed_tokens(self) -> int | None:
        return None if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens

    @property
    def warm(self) -> bool:
        """Whether the server found more tokens than these requests share. Then the cache was not empty at first."""
        most, slack = self.shared * self.prompt_tokens, _BY_CHANCE_TOKENS
        if self.unit == "characters":
            most, slack = most * _LENGTHS_DIFFER, SLACK_TOKENS
        return (self.cached_tokens or 0) > most + slack * self.requests

    def doubt(self, control: bool) -> str:
        """Text that says why the cache's earlier contents may have changed latencies; empty if they did not.

        `control`: whether the requests share nothing (`chunkbench load --control`).
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


def cache_hits(
    ended: Sequence[Exchange], counted: float | None = None, primed: Sequence[Sequence[Any]] = ()
) -> CacheHits | None:
    """Count the cache hits of requests. None if no request was answered, or no prompt has a known length.

    `counted`: number of cached tokens by the server's metrics. It is used if no answer reports its own number.
    `primed`: prefixes that the server got before the first request.
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
        shared=_shared(sent, answered, primed),
        unit="characters" if isinstance(answered[0].prompt, str) else "tokens",
    )


def _shared(sent: Sequence[Exchange], done: Sequence[Exchange], primed: Sequence[Sequence[Any]]) -> float:
    earlier: list[Any] = sorted(primed)  # in lexicographic order, so one of the two neighbours shares most
    counted = {id(exchange) for exchange in done}
    shared = 0
    for exchange in sent:
        place = bisect(earlier, exchange.prompt)
        if id(exchange) in counted:
            near = earlier[max(0, place - 1) : place + 1]
            shared += max((alike(exchange.prompt, other) for other in near), default=0)
        insort(earlier, exchange.whole)
    return shared / sum(len(exchange.prompt) for exchange in done)
