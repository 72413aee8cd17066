"""Results of kind `memory`: bytes of K/V, saving by shared prefixes, and empty slots of chunks (section 3.1 of the
paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from chunkbench.bench.analysis.derive import Group
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.store.results import DecodeResult, SessionResult


class MemoryResult(AttentionPoint, SessionResult):
    """The K/V that an implementation of decode attention holds."""


CONTIGUOUS, PAKV = "naive", "chunk_attn"
"""`CONTIGUOUS` holds each sequence in one contiguous piece. `PAKV` holds shared chunks once."""


@dataclass(frozen=True)
class Saving:
    """The saving of memory at one point, after the last decode step. Savings are bytes without sharing over bytes with
    sharing.
    """

    ratio: float
    """r = n_s / (n_p + n_c)."""
    measured: float | None
    """Bytes of the contiguous cache over bytes of the prefix-aware cache. None unless both were measured."""
    at_batch: float
    """The saving if each shared token were held exactly once, for the point's sequences and prompts."""
    limit: float
    """1 / (1 - r), which `at_batch` approaches for many sequences."""
    empty: float | None
    """Slots of chunks that hold no token, over the tokens of all sequences."""
    bound: float
    """(c - 1) / n, the upper bound of `empty` for chunks of c tokens: a sequence fills all its chunks except the last.
    """


def saving(contiguous: DecodeResult | MemoryResult | None, cache: DecodeResult | MemoryResult) -> Saving | None:
    """The saving of `cache` over `contiguous`. None for trees and for prompts of different lengths, because they have
    no single r.
    """
    n_p, n_s, b = cache.n_p, cache.n_s, cache.batch_size
    if not isinstance(n_p, int) or n_s is None:
        return None
    n = n_p + cache.n_c
    shared = n_s - n_s % cache.chunk_size  # only whole chunks are shared
    distinct = cache.prompts * shared + b * (n - shared)
    held = cache.kv_bytes / cache.token_bytes if cache.kv_bytes else None
    contiguous_bytes = contiguous.kv_bytes if contiguous is not None else None
    return Saving(
        ratio=n_s / n,
        measured=contiguous_bytes / cache.kv_bytes if contiguous_bytes and cache.kv_bytes else None,
        at_batch=b * n / (cache.prompts * n_s + b * (n - n_s)),
        limit=n / (n - n_s),
        empty=(held - distinct) / (b * n) if held is not None else None,
        bound=(cache.chunk_size - 1) / n,
    )


def saving_of(group: Group) -> Saving | None:
    """The saving of the prefix-aware cache at a point. None if its bytes are unknown."""
    cache, contiguous = group.rows.get(PAKV), group.rows.get(CONTIGUOUS)
    if cache is None or cache.kv_bytes is None or not isinstance(cache.facts, MemoryResult):
        return None
    other = contiguous.facts if contiguous is not None else None
    return saving(other if isinstance(other, MemoryResult) else None, cache.facts)
