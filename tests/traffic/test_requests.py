"""Numbers of a measurement, on requests whose numbers are known."""

from __future__ import annotations

import pytest

from chunkbench.traffic.request_result import RequestResult
from chunkbench.traffic.requests import load_numbers, quantile


def request(due: float, first: float, last: float, tokens: int = 5, **others: object) -> RequestResult:
    fields = {"due": due, "sent": due, "first": first, "last": last, "tokens": tokens, "asked_tokens": tokens}
    return RequestResult.model_validate({"prompt_tokens": 10, **fields, **others})


TWO = [request(1.0, 1.5, 3.5, cached_tokens=5), request(2.0, 3.0, 6.0, cached_tokens=10)]


def test_latency_counts_from_when_a_request_was_due() -> None:
    numbers = load_numbers([request(1.0, 2.0, 6.0, sent=1.75)])
    assert numbers.normalized_latency is not None
    assert numbers.normalized_latency.mean == 1.0
    assert numbers.time_to_first_token is not None
    assert numbers.time_to_first_token.mean == 1.0
    assert numbers.sending_delay is not None
    assert numbers.sending_delay.p99 == 0.75
    assert numbers.client_late


def test_what_the_client_cut_is_no_failure() -> None:
    cut = request(1.0, 2.0, 6.0, status="cancelled")
    numbers = load_numbers([TWO[0], cut, request(1.0, 2.0, 6.0, status="error")])
    assert (numbers.requests, numbers.answered, numbers.failed, numbers.cancelled) == (3, 1, 1, 1)


def test_means_rates_and_shares() -> None:
    numbers = load_numbers(TWO, objective_s=0.6)
    assert numbers.normalized_latency is not None
    assert numbers.normalized_latency.mean == pytest.approx((0.5 + 0.8) / 2)
    assert numbers.time_per_token is not None
    assert numbers.time_per_token.mean == pytest.approx((0.5 + 0.75) / 2)
    assert numbers.seconds == 5.0
    assert numbers.requests_per_s == pytest.approx(2 / 5)
    assert numbers.tokens_per_s == pytest.approx(10 / 5)
    assert numbers.goodput_per_s == pytest.approx(1 / 5)
    assert numbers.cached_share == 0.75
    assert not numbers.client_late


def test_failed_requests_count_but_have_no_latency() -> None:
    broken = RequestResult(due=0, prompt_tokens=1, asked_tokens=1, status="error", reason="gone")
    numbers = load_numbers([*TWO, broken])
    assert (numbers.requests, numbers.answered, numbers.failed) == (3, 2, 1)
    assert numbers.latency == load_numbers(TWO).latency
    assert load_numbers([broken]).normalized_latency is None
    assert load_numbers([]).requests_per_s == 0


def test_quantiles() -> None:
    assert [quantile([4, 1, 3, 2], share) for share in (0.25, 0.5, 0.9, 1)] == [1, 2, 4, 4]
    assert quantile([7], 0.01) == 7
    with pytest.raises(ValueError, match="at least one"):
        quantile([], 0.5)
