"""Reads the metrics that a server offers to Prometheus."""

from __future__ import annotations

import math

import aiohttp

from chunkbench.pins import SERVING_INSTALL
from chunkbench.traffic.load.answer import text_of
from chunkbench.traffic.load.client import ServerTarget

try:
    from prometheus_client.parser import text_string_to_metric_families
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"pages of metrics need prometheus_client: {SERVING_INSTALL}", name=error.name) from error


def sum_of(metrics: str, name: str) -> float | None:
    """Sum of all samples of the metric `name` in a page of metrics. None if there is no such sample, if one cannot be
    read, or if the sum is not finite."""
    lines = "\n".join(line for line in metrics.split("\n") if line.lstrip().startswith(name))  # a page is long
    try:
        samples = [sample for family in text_string_to_metric_families(lines) for sample in family.samples]
        values = [float(sample.value) for sample in samples if sample.name == name]
    except (ValueError, IndexError, OverflowError):  # the parser raises ValueError for lines that are not in the format
        return None
    return sum(values) if values and math.isfinite(sum(values)) else None


_CACHED = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
"""Names of metrics that count prompt tokens found in the cache."""


async def cached_so_far(target: ServerTarget) -> float | None:
    """Prompt tokens that a server found in its cache since it started; None if the server does not say."""
    page = f"{target.url.removesuffix('/v1')}/metrics"
    try:
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(page) as answer:
            text = await text_of(answer) if answer.status == 200 else ""
        return next((found for name in _CACHED if (found := sum_of(text, name)) is not None), None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
