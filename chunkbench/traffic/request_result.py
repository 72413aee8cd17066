"""The result of each request, and the figures of a measurement (`docs/design.md`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeVar

from pydantic import NonNegativeFloat

from chunkbench.bench.experiment.terms import Count
from chunkbench.bench.store.results import Facts

RequestStatus = Literal["ok", "wrong", "refused", "error", "timeout", "cancelled"]


class RequestResult(Facts):
    """The result of one request. Times are in seconds after the start of the measurement, on the client's clock."""

    due: NonNegativeFloat
    """Time at which the request should be sent. In a closed loop: time at which its client was free."""
    sent: NonNegativeFloat | None = None
    """Time at which the request was sent; None if there was no connection."""
    first: NonNegativeFloat | None = None
    """Time at which the first token arrived; None without a stream."""
    last: NonNegativeFloat | None = None
    """Time at which the last token arrived."""
    prompt_tokens: Count | None
    """Number of prompt tokens; None for a text whose tokens the server does not report."""
    asked_tokens: Count
    """Number of tokens of all answers that the request asks for; a maximum if the model may end an answer earlier."""
    answers: Count = 1
    tokens: Count = 0
    """Number of tokens of all answers."""
    cached_tokens: Count | None = None
    """Number of prompt tokens that the server found in its cache; None if the server does not say."""
    gaps: tuple[NonNegativeFloat, ...] = ()
    """Seconds between two parts of the stream that hold tokens, in order. A part may hold several tokens. Empty if they
    were not recorded."""
    status: RequestStatus = "ok"
    """ok: answered; wrong: the server's token counts do not fit the request; refused: HTTP status 4xx; error:
    another failure; timeout: no complete answer in time; cancelled: the client was interrupted."""
    reason: str = ""


FIGURES: Mapping[str, str] = {
    "normalized": "(last token - due) / tokens",
    "latency": "last token - due",
    "ttft": "first token - due",
    "tpot": "(last token - first token) / (tokens - 1)",
    "itl": "99th percentile of the request's gaps between tokens",
}
"""Name of a figure that an objective limits -> how it is computed for one request."""


@dataclass(frozen=True)
class Objective:
    """The most seconds that a figure of a request may have."""

    figure: str
    """A key of `FIGURES`."""
    limit_s: float

    def met(self, request: RequestResult) -> bool:
        """Whether an answered request meets the objective. A request without this figure does not."""
        value = figure_of(self.figure, request)
        return value is not None and value <= self.limit_s


def figure_of(figure: str, request: RequestResult) -> float | None:
    """Seconds of one of the `FIGURES` of an answered request. None if the request does not have it."""
    last = request.last or 0.0
    if figure == "normalized":
        return normalized_latency(request)
    if figure == "latency":
        return last - request.due
    if figure == "itl":
        return quantile(request.gaps, 0.99) if request.gaps else None
    if request.first is None:
        return None
    if figure == "ttft":
        return request.first - request.due
    return time_per_token(request) if request.tokens > request.answers else None


LATE_SHARE = 0.01
"""The client is late if its mean sending delay is more than this share of the mean latency."""


@dataclass(frozen=True)
class Quantiles:
    """Mean and percentiles of a time, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True)
class LoadNumbers:
    """The figures of one measurement of a server. Times are in seconds. A figure is None if no request has it. If
    requests have several answers, times per token divide by the mean number of tokens of an answer."""

    requests: int
    answered: int
    failed: int
    cancelled: int
    """Number of requests that were interrupted at the client. They count neither as answered nor as failed."""
    seconds: float
    """Seconds from the first request's due time to the last token."""
    normalized_latency: Quantiles | None
    """(last token - due time) / number of answer tokens, as in section 4.2 of the paper."""
    latency: Quantiles | None
    """Last token - due time."""
    time_to_first_token: Quantiles | None
    """First token - due time."""
    time_per_token: Quantiles | None
    """(last token - first token) / (number of answer tokens - 1)."""
    gap: Quantiles | None
    """Gaps between two parts of the stream that hold tokens, of all requests: inter-token latency. None if gaps were
    not recorded."""
    requests_per_s: float
    tokens_per_s: float
    """Number of generated tokens per second."""
    goodput_per_s: float | None
    """Number of requests per second that meet all objectives; None without objectives."""
    cached_share: float | None
    """Share of the prompt tokens that the server found in its cache, from 0 to 1; None if the server does not say."""
    sending_delay: Quantiles | None
    """Time sent - due time: how late the client was."""

    @property
    def client_late(self) -> bool:
        """Whether the client was late enough to distort the latencies."""
        if self.sending_delay is None or self.latency is None:
            return False
        return self.sending_delay.mean > LATE_SHARE * self.latency.mean


def load_numbers(requests: Sequence[RequestResult], objectives: Sequence[Objective] = ()) -> LoadNumbers:
    """Compute the figures of a measurement. `objectives`: for goodput."""
    answered = [request for request in requests if request.status == "ok" and request.last is not None]
    seconds = max((r.last or 0.0 for r in answered), default=0.0) - min((r.due for r in requests), default=0.0)
    per_s = 1 / seconds if seconds > 0 else 0.0
    cancelled = sum(request.status == "cancelled" for request in requests)
    good = None
    if objectives:
        good = per_s * sum(all(one.met(request) for one in objectives) for request in answered)
    streamed = [request for request in answered if request.first is not None]
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
        time_to_first_token=_quantiles(streamed, lambda r: (r.first or 0.0) - r.due),
        time_per_token=_quantiles(
            [r for r in streamed if r.tokens > r.answers],
            time_per_token,
        ),
        gap=_quantiles([gap for request in answered for gap in request.gaps], float),
        requests_per_s=per_s * len(answered),
        tokens_per_s=per_s * sum(request.tokens for request in answered),
        goodput_per_s=good,
        cached_share=cached,
        sending_delay=_quantiles([r for r in requests if r.sent is not None], lambda r: (r.sent or 0.0) - r.due),
    )


def normalized_latency(request: RequestResult) -> float:
    """(last token - due time) / number of tokens of an answer, in seconds per token."""
    assert request.last is not None
    return (request.last - request.due) * request.answers / request.tokens


def time_per_token(request: RequestResult) -> float:
    """(last token - first token) / (number of tokens of an answer - 1), in seconds per token. The request must have a
    first token, and more than one."""
    return ((request.last or 0.0) - (request.first or 0.0)) / (request.tokens / request.answers - 1)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values v for which v >= x holds for at least the share `share` of all values x. For 0.5: the
    lower median. Raises ValueError if there is no value."""
    if not values:
        raise ValueError("no values: a quantile needs at least one")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


Value = TypeVar("Value")


def _quantiles(values_of: Sequence[Value], value: Callable[[Value], float]) -> Quantiles | None:
    values = [value(one) for one in values_of]
    if not values:
        return None
    return Quantiles(fmean(values), *(quantile(values, share) for share in (0.5, 0.9, 0.95, 0.99)))
