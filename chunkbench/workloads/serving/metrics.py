"""Metrics of servers under load. Most of them have one value for each arrival seed."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from chunkbench.report.metric import BYTES, COUNT, NUMBER, SECONDS, SHARE, Metric, Samples, by_name
from chunkbench.traffic.request_result import LoadNumbers
from chunkbench.workloads.serving.result import ConstrainedAnswers, ServerFacts, ServingResult

Work = dict[str, float]
"""Name of a cost of following constraints -> its sum over all answers whose cost is known. `told` is the number of
these answers.
"""


def _load(value: Callable[[LoadNumbers], float | None]) -> Samples:
    """Build a metric of requests that has a value for each measurement."""
    return lambda facts: [value(one.numbers) for one in facts.measurements]


def _quantile(time: str, which: str) -> Samples:
    """Build a metric for the mean or a percentile of a time; None where no request has that time."""
    return _load(lambda numbers: getattr(getattr(numbers, time), which, None))


def _server(value: Callable[[ServerFacts], float | None]) -> Samples:
    """Build a metric of a server's facts; measurements without such facts are left out."""
    return lambda facts: [value(one.server) for one in facts.measurements if one.server]


def _answers(value: Callable[[ConstrainedAnswers], int]) -> Samples:
    """Build a metric that counts answers in each measurement."""
    return lambda facts: [value(one.constrained) for one in facts.measurements if one.constrained]


def _work(value: Callable[[Work], float]) -> Samples:
    """Build a metric of the cost of following constraints; measurements without known cost are left out."""

    def of(facts: ServingResult) -> list[float | None]:
        told = [one.constrained.work for one in facts.measurements if one.constrained]
        return [value(work) for work in told if work.get("sampled")]

    return of


def _retokenizing(facts: ServingResult) -> list[float | None]:
    """[measurement] seconds of tokenising again over seconds of the measurement; measurements without known cost are
    left out.
    """
    told = [(one.constrained.work, one.numbers.seconds) for one in facts.measurements if one.constrained]
    return [work["retokenize_s"] / seconds for work, seconds in told if work and seconds]


METRICS = by_name(
    Metric("first_token_p50", "first token, ms: median", _quantile("time_to_first_token", "p50"), SECONDS),
    Metric("first_token_p99", "  99th percentile", _quantile("time_to_first_token", "p99"), SECONDS),
    Metric("per_token_p50", "each token, ms: median", _quantile("time_per_token", "p50"), SECONDS),
    Metric("per_token_p99", "  99th percentile", _quantile("time_per_token", "p99"), SECONDS),
    Metric(
        "gap_s",
        "gap between tokens, ms: median",
        lambda facts: [one.gap_s for one in facts.measurements if one.gap_s is not None],
        SECONDS,
    ),
    Metric("answer_s", "latency of an answer, ms", _quantile("latency", "mean"), SECONDS),
    Metric(
        "answered_per_s", "requests answered per second", _load(lambda n: n.requests_per_s or None), NUMBER, "higher"
    ),
    Metric("cached_share", "cached prompt tokens", _load(lambda n: n.cached_share), SHARE, "higher"),
    Metric("peak_kv_bytes", "peak K/V, MB", _server(lambda server: server.peak_kv_bytes), BYTES, combine=max),
    Metric(
        "peak_process_bytes",
        "peak memory of processes, MB",
        lambda facts: [one.peak_process_bytes for one in facts.measurements if one.peak_process_bytes is not None],
        BYTES,
        combine=max,
    ),
    Metric("peak_batch", "peak batch", _server(lambda server: server.peak_batch), COUNT, "", max),
    Metric("step_s", "mean step, ms", _server(lambda server: server.step_s), SECONDS),
    Metric("overhead_s", "  overhead, ms", _server(lambda server: server.overhead_s), SECONDS),
    Metric("tree_s", "  prefix tree's part, ms", _server(lambda server: server.tree_s), SECONDS),
    Metric(
        "answer_tokens",
        "tokens of an answer",
        lambda facts: [
            fmean(request.tokens / request.answers for request in one.requests) for one in facts.measurements
        ],
        NUMBER,
        "",
    ),
    Metric("valid", "answers: valid", _answers(lambda answers: answers.valid), COUNT, "higher", sum),
    Metric("cut", "  cut", _answers(lambda answers: answers.cut), COUNT, combine=sum),
    Metric("invalid", "  invalid", _answers(lambda answers: answers.invalid), COUNT, combine=sum),
    Metric("answer_steps", "steps of an answer", _work(lambda work: work["sampled"] / work["told"]), NUMBER),
    Metric("answer_pieces", "pieces of an answer", _work(lambda work: work["pieces"] / work["told"]), NUMBER, ""),
    Metric(
        "forced_share",
        "forced tokens",
        _work(lambda work: work["forced"] / (work["sampled"] + work["forced"])),
        SHARE,
        "higher",
    ),
    Metric("rolled_back", "tokens rolled back", _work(lambda work: work["rolled_back"] / work["told"]), NUMBER),
    Metric("compile_s", "compile, ms", _work(lambda work: work["compile_s"] / work["told"]), SECONDS),
    Metric(
        "mask_us",
        "mask and automaton, us/step",
        _work(lambda work: (work["mask_s"] + work["automaton_s"]) / work["sampled"] * 1e6),
        NUMBER,
    ),
    Metric("retokenizing_share", "re-tokenising, of the time", _retokenizing, SHARE),
)
