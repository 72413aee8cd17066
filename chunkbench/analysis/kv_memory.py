"""What a shared prefix saves of K/V memory, and what holding it in whole chunks or blocks costs (section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkbench.experiment.point import element_bytes

if TYPE_CHECKING:
    from chunkbench.store.facts import CaseFacts

CONTIGUOUS, PAKV = "naive", "chunk_attn"
"""Who holds every sequence by itself in one piece, and who holds whole chunks once."""


@dataclass(frozen=True)
class Saving:
    """Of one point, at the end of its completions. Ratios are memory without sharing over memory with it."""

    ratio: float
    """r = n_s / (n_p + n_c)."""
    measured: float | None
    """Contiguous bytes over those of the prefix-aware cache; None unless both were measured."""
    at_batch: float
    """What it would be if every shared token were held once, for this many sequences and prompts."""
    limit: float
    """1 / (1 - r): the same for ever more sequences."""
    empty: float | None
    """Slots of the cache's chunks that hold no token, as a share of the sequences' tokens."""
    bound: float
    """(c - 1) / n, which `empty` cannot exceed: every sequence fills all its chunks but the last."""


def saving(contiguous: CaseFacts | None, cache: CaseFacts) -> Saving | None:
    """None for ragged prompts and for trees, of which r is no one number."""
    n_p, n_s, b = cache.n_p, cache.n_s, cache.batch_size
    if not isinstance(n_p, int) or n_s is None:
        return None
    n = n_p + cache.n_c
    whole = n_s - n_s % cache.chunk_size  # a chunk is shared where all of it is the same
    distinct = cache.prompts * whole + b * (n - whole)
    held = cache.kv_bytes / token_bytes(cache) if cache.kv_bytes else None
    known = contiguous.kv_bytes if contiguous is not None else None
    return Saving(
        ratio=n_s / n,
        measured=known / cache.kv_bytes if known and cache.kv_bytes else None,
        at_batch=b * n / (cache.prompts * n_s + b * (n - n_s)),
        limit=n / (n - n_s),
        empty=(held - distinct) / (b * n) if held is not None else None,
        bound=(cache.chunk_size - 1) / n,
    )


def token_bytes(case: CaseFacts) -> int:
    """K and V of one token over all KV heads."""
    return 2 * case.kv_heads * case.head_dim * element_bytes(case.dtype)
