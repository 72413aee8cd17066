"""Computes figures of a trace of requests: lengths, request rate, and hit rates of caches of several sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Mean, percentiles and maximum of a quantity, such as the prompt tokens of requests."""

    mean: float
    p50: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True)
class Hits:
    """Hit rates of a prefix cache that serves the requests one after the other."""

    cache_blocks: int | None
    """Size of the cache in blocks; None if the cache has no limit."""
    blocks: float
    """Share of all prompt blocks that the cache already holds, 0 to 1."""
    tokens: float
    """Share of all prompt tokens that the cache already holds, 0 to 1."""


@dataclass(frozen=True)
class TrafficNumbers:
    requests: int
    seconds: float
    per_s: float | None
    """Requests per second; None if all are due at once."""
    prompt_tokens: Spread
    answer_tokens: Spread
    blocks: int
    distinct_blocks: int
    hits: tuple[Hits, ...]
    reuse_s: Spread | None
    """Seconds from a request for a block to the next request for the same block; None if no block comes twice."""


def traffic_numbers(
    dues: Sequence[float],
    prompt_tokens: Sequence[int],
    answer_tokens: Sequence[int],
    prompts: Sequence[Sequence[int]],
    block_tokens: int,
    caches: Iterable[int] = (),
) -> TrafficNumbers:
    """Compute the figures of a trace whose requests are sorted by their due times.

    `dues`: due times in seconds. `prompts`: block ids of each prompt; empty lists if the trace has no ids.
    `block_tokens`: tokens of a block; the last block of a prompt may have fewer. `caches`: sizes in blocks. Hits are
    computed for these caches and for a cache without limit.
    """
    seconds = dues[-1] - dues[0]
    known = any(prompts)
    sizes = [*sorted(set(caches)), None] if known else []
    return TrafficNumbers(
        requests=len(dues),
        seconds=seconds,
        per_s=(len(dues) - 1) / seconds if seconds > 0 else None,
        prompt_tokens=_spread(prompt_tokens),
        answer_tokens=_spread(answer_tokens),
        blocks=sum(map(len, prompts)),
        distinct_blocks=len({block for blocks in prompts for block in blocks}),
        hits=tuple(_hits(prompts, prompt_tokens, block_tokens, size) for size in sizes),
        reuse_s=_reuse(dues, prompts),
    )


def _hits(prompts: Sequence[Sequence[int]], prompt_tokens: Sequence[int], block_tokens: int, size: int | None) -> Hits:
    """Hits in a cache with least-recently-used eviction.

    A prompt hits the leading blocks that the cache holds. Then all blocks of the prompt are the most recent ones, and
    the first block is more recent than the blocks after it: a block is worth nothing without the blocks before it.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hit_blocks = hit_tokens = 0
    for blocks, tokens in zip(prompts, prompt_tokens, strict=True):
        hits = next((place for place, block in enumerate(blocks) if block not in cache), len(blocks))
        hit_blocks += hits
        hit_tokens += min(hits * block_tokens, tokens)
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        if size is not None:
            while len(cache) > size:
                cache.popitem(last=False)
    return Hits(size, hit_blocks / sum(map(len, prompts)), hit_tokens / sum(prompt_tokens))


def _reuse(dues: Sequence[float], prompts: Sequence[Sequence[int]]) -> Spread | None:
    last: dict[int, float] = {}
    gaps = []
    for due, blocks in zip(dues, prompts, strict=True):
        for block in blocks:
            if block in last:
                gaps.append(due - last[block])
            last[block] = due
    return _spread(gaps) if gaps else None


def _spread(values: Sequence[float]) -> Spread:
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return Spread(fmean(values), p50, p90, p99, float(max(values)))
