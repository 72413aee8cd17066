"""What a server's page for Prometheus says."""

from __future__ import annotations

import aiohttp

from chunkbench.traffic.load.answer import text_of
from chunkbench.traffic.load.client import ServerTarget
from chunkbench.traffic.load.prometheus import sum_of

_CACHED = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
"""Counters of prompt tokens that a server did not compute."""


async def cached_so_far(target: ServerTarget) -> float | None:
    """Prompt tokens that a server found in its cache since it started; None if it does not say."""
    page = f"{target.url.removesuffix('/v1')}/metrics"
    try:
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(page) as answer:
            text = await text_of(answer) if answer.status == 200 else ""
        return next((found for name in _CACHED if (found := sum_of(text, name)) is not None), None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
