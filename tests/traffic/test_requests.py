"""Requests: their results and cached tokens."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.traffic.cache_hits import CacheHits, Exchange, cache_hits
from chunkbench.traffic.request_result import RequestResult, load_numbers, quantile


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


def exchange(sent: float, prompt: str | tuple[int, ...], cached: int | None = 0, answer: str = "") -> Exchange:
    result = RequestResult(
        due=sent, sent=sent, prompt_tokens=len(prompt), asked_tokens=1, tokens=1, cached_tokens=cached
    )
    return Exchange(result, prompt, prompt + answer if isinstance(prompt, str) else prompt)


def equal(a: str, b: str) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


def hits(*ended: Exchange, counted: float | None = None) -> CacheHits:
    found = cache_hits(ended, counted)
    assert found is not None
    return found


@given(st.lists(st.text("ab", min_size=1, max_size=8), min_size=1, max_size=12))
def test_what_requests_share_is_what_stands_at_the_begin_of_an_earlier_one(prompts: list[str]) -> None:
    expected = sum(
        max((equal(prompt, other) for other in prompts[:number]), default=0) for number, prompt in enumerate(prompts)
    )
    found = hits(*(exchange(number, prompt) for number, prompt in enumerate(prompts)))
    assert found.shared == expected / sum(map(len, prompts))


def test_the_order_is_that_in_which_they_were_sent_and_answers_count() -> None:
    later, first = exchange(2.0, "hello world!", 5), exchange(1.0, "hello", 0, answer=" world")
    found = hits(later, first)
    assert (found.prompt_tokens, found.cached_tokens, found.computed_tokens, found.most_cached) == (17, 5, 12, 5)
    assert (found.shared, found.unit, found.source) == (11 / 17, "characters", "usage")


def test_metrics_speak_where_usage_does_not() -> None:
    silent = exchange(0.0, (1, 2, 3), None)
    assert (hits(silent).cached_tokens, hits(silent).computed_tokens, hits(silent).warm) == (None, None, False)
    found = hits(silent, counted=2.0)
    assert (found.cached_tokens, found.source, found.most_cached, found.unit) == (2, "metrics", None, "tokens")


def test_a_warm_cache_is_told_from_sharing() -> None:
    """Of token ids to four tokens a request; text may differ by a template and by the length of its words."""
    shared = [exchange(0.0, tuple(range(100))), exchange(1.0, tuple(range(100)), 100)]
    assert not hits(*shared).warm
    assert not hits(exchange(0.0, tuple(range(100)), 4)).warm
    assert hits(exchange(0.0, tuple(range(100)), 5)).warm
    text = "x" * 1000
    assert not hits(exchange(0.0, text, 60)).warm
    assert hits(exchange(0.0, text, 100)).warm


def test_requests_that_failed_are_not_counted_and_may_be_found() -> None:
    failed = exchange(0.0, (1, 2, 3, 4))
    failed = failed._replace(request=failed.request.model_copy(update={"status": "timeout"}))
    assert cache_hits([failed]) is None
    found = hits(failed, exchange(1.0, (1, 2, 3, 4), 4))
    assert (found.requests, found.prompt_tokens, found.shared, found.warm) == (1, 4, 1.0, False)
