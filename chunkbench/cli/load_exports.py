"""Writes a load in the formats of other load generators: AIPerf 0.13, and `vllm bench serve` 0.32.

Their latencies count from when a request was sent, not from when it was due.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import Any

from chunkbench.cli.load_document import Load
from chunkbench.traffic.request_result import RequestResult, figure_of, quantile

Exported = Callable[[Load, float | None], dict[str, Any]]
"""Makes the JSON object of a load. Arguments: the load, and the shape of the gamma distribution of arrivals; None for
constant gaps."""


def latency(request: RequestResult) -> float:
    """Last token - time sent, in seconds."""
    return (request.last or 0.0) - (request.sent or 0.0)


def first_token(request: RequestResult) -> float | None:
    """First token - time sent, in seconds. None without a stream."""
    return None if request.first is None else request.first - (request.sent or 0.0)


def aiperf_record(number: int, turn: tuple[int, int], request: RequestResult, start_ns: int) -> dict[str, Any]:
    """A line of AIPerf's `profile_export.jsonl`. `turn`: (number of the conversation's first request, turn).
    `start_ns`: wall-clock time at which the measurement began.
    """
    sent, end = request.sent or request.due, request.last or request.sent or request.due
    figures = {
        "time_to_first_token": (first_token(request), "ms", 1e3),
        "request_latency": (latency(request) if request.last is not None else None, "ms", 1e3),
        "inter_token_latency": (figure_of("tpot", request), "ms", 1e3),
        "output_sequence_length": (request.tokens, "tokens", 1),
        "input_sequence_length": (request.prompt_tokens, "tokens", 1),
    }
    failed = request.status not in ("ok", "cancelled")
    return {
        "metadata": {
            "session_num": turn[0],
            "conversation_id": str(turn[0]),
            "turn_index": turn[1] - 1,
            "x_request_id": str(number),
            "request_start_ns": start_ns + int(sent * 1e9),
            "request_end_ns": start_ns + int(end * 1e9),
            "worker_id": "chunkbench",
            "record_processor_id": "chunkbench",
            "benchmark_phase": "profiling",
            "was_cancelled": request.status == "cancelled",
        },
        "metrics": {
            name: {"value": value * factor, "unit": unit}
            for name, (value, unit, factor) in figures.items()
            if value is not None and not failed
        },
        "error": {"type": request.status, "message": request.reason} if failed else None,
    }


_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def _aiperf_metric(values: Sequence[float], unit: str) -> dict[str, Any] | None:
    if not values:
        return None
    shares = {f"p{percent}": quantile(values, percent / 100) for percent in _PERCENTILES}
    ends = {"min": min(values), "max": max(values), "std": pstdev(values)}
    return {"unit": unit, "avg": fmean(values), **shares, **ends, "count": len(values)}


def aiperf(load: Load, burstiness: float | None) -> dict[str, Any]:
    """The content of AIPerf's `profile_export_aiperf.json`."""
    numbers, requests = load.numbers, load.measured.requests
    ok = [request for request in requests if request.status == "ok"]
    milliseconds = {
        "request_latency": [latency(one) for one in ok],
        "time_to_first_token": [value for one in ok if (value := first_token(one)) is not None],
        "inter_token_latency": [value for one in ok if (value := figure_of("tpot", one)) is not None],
        "inter_chunk_latency": [gap for one in ok for gap in one.gaps],
    }
    counts = {
        "output_sequence_length": [float(one.tokens) for one in ok],
        "input_sequence_length": [float(one.prompt_tokens) for one in ok if one.prompt_tokens is not None],
    }
    single = {
        "request_throughput": (numbers.requests_per_s, "requests/sec"),
        "output_token_throughput": (numbers.tokens_per_s, "tokens/sec"),
        "request_count": (float(len(ok)), "requests"),
        "error_request_count": (float(numbers.failed), "requests"),
        "total_osl": (float(sum(one.tokens for one in ok)), "tokens"),
        "total_isl": (float(sum(one.prompt_tokens or 0 for one in ok)), "tokens"),
        "benchmark_duration": (numbers.seconds, "sec"),
        "goodput": (numbers.goodput_per_s, "requests/sec"),
    }
    return {
        "schema_version": "1.4",
        **{name: {"unit": unit, "avg": value} for name, (value, unit) in single.items() if value is not None},
        **{name: _aiperf_metric([one * 1e3 for one in values], "ms") for name, values in milliseconds.items()},
        **{name: _aiperf_metric(values, "tokens") for name, values in counts.items()},
        "was_cancelled": load.interrupted,
        "error_summary": [
            {"error_details": {"message": reason}, "count": count} for reason, count in load.failures.most_common()
        ],
    }


def vllm_bench(load: Load, burstiness: float | None) -> dict[str, Any]:
    """The file of `vllm bench serve --save-result --save-detailed`, without the texts of the answers."""
    numbers, requests = load.numbers, load.measured.requests
    ok = [request for request in requests if request.status == "ok"]
    seconds = numbers.seconds or 1.0
    read, written = sum(one.prompt_tokens or 0 for one in ok), sum(one.tokens for one in ok)
    figures = {
        "ttft": [value for one in ok if (value := first_token(one)) is not None],
        "tpot": [value for one in ok if (value := figure_of("tpot", one)) is not None],
        "itl": [gap for one in ok for gap in one.gaps],
        "e2el": [latency(one) for one in ok],
    }
    summary = {
        f"{name}_{figure}_ms": reduce(values) * 1e3 if values else 0.0
        for figure, values in figures.items()
        for name, reduce in (("mean", fmean), ("median", median), ("std", pstdev), ("p99", _p99))
    }
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": load.measured.model,
        "tokenizer_id": load.measured.model,
        "num_prompts": len(load.measured.plan.requests),
        "request_rate": load.step.rate if load.step.rate is not None else "inf",
        "burstiness": burstiness,
        "max_concurrency": load.step.clients,
        "duration": numbers.seconds,
        "completed": len(ok),
        "failed": numbers.failed,
        "total_input_tokens": read,
        "total_output_tokens": written,
        "request_throughput": numbers.requests_per_s,
        "request_goodput": numbers.goodput_per_s,
        "output_throughput": numbers.tokens_per_s,
        "total_token_throughput": (read + written) / seconds,
        "input_lens": [one.prompt_tokens or 0 for one in requests],
        "output_lens": [one.tokens for one in requests],
        "ttfts": [first_token(one) or 0.0 for one in requests],
        "itls": [list(one.gaps) for one in requests],
        "errors": [one.reason for one in requests],
        **summary,
    }


def _p99(values: Sequence[float]) -> float:
    return quantile(values, 0.99)


EXPORTS: Mapping[str, Exported] = {"aiperf": aiperf, "vllm-bench": vllm_bench}
"""Name of a format -> function that makes its JSON object."""


def exported(loads: Sequence[Load], form: str, burstiness: float | None) -> str:
    """The loads in the format `form`: an object, or for a ladder a list of objects, one for each step."""
    made = [EXPORTS[form](load, burstiness) for load in loads]
    return json.dumps(made[0] if len(made) == 1 else made, indent=2)
