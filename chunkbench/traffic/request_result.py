"""Results of requests: the facts about each request, and the numbers of a measurement (`docs/design.md`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pydantic import NonNegativeFloat

from chunkbench.bench.experiment.terms import Count
from chunkbench.bench.store.results import Facts

RequestStatus = Literal["ok", "wrong", "refused", "error", "timeout", "cancelled"]


class RequestResult(Facts):
    """The result of one request. Times are in seconds after the start of the measurement, on the client's clock."""

    due: NonNegativeFloat
    """Time at which the request should be sent. With closed-loop clients: time at which the client was free."""
    sent: NonNegativeFloat | None = None
    """Time at which the request left the client; None if no connection was made."""
    first: NonNegativeFloat | None = None
    """Time at which the first token arrived."""
    last: NonNegativeFloat | None = None
    """Time at which the last token arrived."""
    prompt_tokens: Count | None
    """Tokens of the prompt; None if the prompt is text and the server does not report its tokens."""
    asked_tokens: Count
    """Tokens that the request asks for; the largest number if the model may end the answer earlier."""
    tokens: Count = 0
    """Tokens that arrived."""
    cached_tokens: Count | None = None
    """Prompt tokens that the server did not compute; None if it does not say."""
    status: RequestStatus = "ok"
    """ok: answered; wrong: the server's token counts are not those asked for; refused: an answer of status 4xx;
    error: another failure; timeout: no whole answer in time; cancelled: the client was interrupted."""
    reason: str = ""


LATE_SHARE = 0.01
"""A client delays requests if its mean sending delay is above this share of the mean latency."""


@dataclass(frozen=True)
class Quantiles:
    """Mean and percentiles of a time, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class LoadNumbers:
    """The numbers of one measurement of a server. Times are in seconds. A number is None if no request has it."""

    requests: int
    answered: int
    failed: int
    cancelled: int
    """Requests that were cut by an interrupt of the client. They count neither as answered nor as failed."""
    seconds: float
    """Seconds from the first request's due time to the last token."""
    normalized_latency: Quantiles | None
    """(last token - due) / tokens, as in the paper (section 4.2). Time in the queue counts."""
    latency: Quantiles | None
    """last token - due."""
    time_to_first_token: Quantiles | None
    """first token - due."""
    time_per_token: Quantiles | None
    """(last - first) / (tokens - 1)."""
    requests_per_s: float
    tokens_per_s: float
    """Generated tokens per second."""
    goodput_per_s: float | None
    """Requests per second whose normalized latency meets the objective; None without an objective."""
    cached_share: float | None
    """Share of the prompt tokens that the server did not compute; None if the server does not say."""
    sending_delay: Quantiles | None
    """sent - due: the delay by the client."""

    @property
    def client_late(self) -> bool:
        """Whether the client delayed requests, so that a part of the latencies comes from the client."""
        if self.sending_delay is None or self.latency is None:
            return False
        return self.sending_delay.mean > LATE_SHARE * self.latency.mean


def load_numbers(requests: Sequence[RequestResult], objective_s: float | None = None) -> LoadNumbers:
    """The numbers of one measurement. `objective_s`: maximum seconds per generated token."""
    answered = [request for request in requests if request.status == "ok" and request.last is not None]
    seconds = max((r.last or 0.0 for r in answered), default=0.0) - min((r.due for r in requests), default=0.0)
    per_s = 1 / seconds if seconds > 0 else 0.0
    cancelled = sum(request.status == "cancelled" for request in requests)
    good = None
    if objective_s is not None:
        good = per_s * sum(normalized_latency(request) <= objective_s for request in answered)
    told = [request for request in answered if request.cached_tokens is not None and request.prompt_tokens]
    cached = sum(r.cached_tokens or 0 for r in told) / sum(r.prompt_tokens or 0 for r in told) if told else None
    return LoadNumbers(
        requests=len(requests),
        answered=len(answered),
        failed=len(requests) - len(answered) - cancelled,
        cancelled=cancelled,
        seconds=max(seconds, 0.0),
        normalized_latency=_quantiles(answered, normalized_latency),
        latency=_quantiles(answered, lambda r: (r.last or 0.0) - r.due),
        time_to_first_token=_quantiles(answered, lambda r: (r.first or 0.0) - r.due),
        time_per_token=_quantiles(
            [r for r in answered if r.tokens > 1], lambda r: ((r.last or 0.0) - (r.first or 0.0)) / (r.tokens - 1)
        ),
        requests_per_s=per_s * len(answered),
        tokens_per_s=per_s * sum(request.tokens for request in answered),
        goodput_per_s=good,
        cached_share=cached,
        sending_delay=_quantiles([r for r in requests if r.sent is not None], lambda r: (r.sent or 0.0) - r.due),
    )


def normalized_latency(request: RequestResult) -> float:
    """(last token - due) / tokens of an answered request, in seconds per token."""
    assert request.last is not None
    return (request.last - request.due) / request.tokens


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values: a quantile needs at least one")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _quantiles(requests: Sequence[RequestResult], value: Callable[[RequestResult], float]) -> Quantiles | None:
    values = [value(request) for request in requests]
    if not values:
        return None
    return Quantiles(fmean(values), *(quantile(values, share) for share in (0.5, 0.9, 0.99)))
